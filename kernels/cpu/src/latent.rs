//! Attention over paged latents (DeepSeek-AI 2024, arXiv 2405.04434): some queries of one sequence, some of its heads.
//! Owns the layout of a block and the tiles: 64 keys as f32 in scratch, read from the cache once for all rows (query ×
//! head) of the call.
//!
//! A block of `block_size` tokens is a row a token: the latent, and behind it the key that was turned.
//!
//! Tiles begin at fixed positions of the sequence, every row sums in the same order, and a tile without a visible key
//! leaves a row's state bitwise as it was. A row's result therefore depends on its own query and keys alone.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use half::{bf16, f16};

use crate::attention::softmax_row;
use crate::attention_job::KEYS;
use crate::kv::E4m3;
use crate::kv_layout::{KvDtype, KvNumber};
use crate::simd::{LANES, Simd, unroll};

/// Shape of one layer's block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LatentLayout {
    /// Element type: one of [`KvDtype::FLOATS`].
    pub dtype: KvDtype,
    /// Tokens in a block, at least 1.
    pub block_size: usize,
    /// Elements of a latent.
    pub latent_dim: usize,
    /// Elements of a key.
    pub rope_dim: usize,
}

impl LatentLayout {
    /// Elements of a row.
    const fn width(&self) -> usize {
        self.latent_dim + self.rope_dim
    }

    /// Elements of a row in scratch: whole vectors, the last one filled up with zeros.
    const fn padded(&self) -> usize {
        self.width().next_multiple_of(LANES)
    }

    const fn row_bytes(&self) -> usize {
        self.width() * self.dtype.bytes()
    }

    /// Bytes of a block.
    pub const fn block_bytes(&self) -> usize {
        self.block_size * self.row_bytes()
    }

    /// f32 of scratch that a call over so many rows (query × head) needs.
    pub const fn scratch(&self, rows: usize) -> usize {
        (KEYS + rows) * self.padded() + rows * (LANES + 1)
    }
}

/// Heads of several queries in memory.
#[derive(Debug, Clone, Copy)]
pub struct HeadRows<T> {
    /// Head 0 of query 0.
    pub first: T,
    /// Elements between two queries.
    pub stride: usize,
    /// Elements between two heads.
    pub head_stride: usize,
}

impl<T> HeadRows<T> {
    fn offset(&self, query: usize, head: usize) -> usize {
        query * self.stride + head * self.head_stride
    }
}

/// One call.
#[derive(Debug)]
pub struct LatentAttention<'a> {
    /// Layout of the blocks.
    pub layout: LatentLayout,
    /// First block of the pool, at this layer's bytes.
    pub pool: *const u8,
    /// Bytes between two blocks of the pool.
    pub block_stride: usize,
    /// The sequence's blocks in order, enough for the last query's position.
    pub block_table: &'a [i32],
    /// Queries of latents, \[latent_dim\] a head.
    pub q_latent: HeadRows<*const f32>,
    /// Queries of keys, \[rope_dim\] a head.
    pub q_rope: HeadRows<*const f32>,
    /// Weighted sums of latents, \[latent_dim\] a head.
    pub out: HeadRows<*mut f32>,
    /// Queries that this call computes.
    pub queries: Range<usize>,
    /// Heads that it computes.
    pub heads: Range<usize>,
    /// Position of query 0 in the sequence. A query sees its own position and those before it.
    pub first_position: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// At least [`LatentLayout::scratch`] of queries · heads.
    pub scratch: &'a mut [f32],
}

/// Writes one token's latent and key into slot `token` of `block`.
///
/// # Safety
/// `block` points to `layout.block_bytes()` writable bytes that no other thread touches in this token's slot.
///
/// # Panics
/// If `token` lies outside the block, `latent` or `key` has another length than the layout says, or the layout's type
/// is one of codes.
pub unsafe fn latent_write(layout: &LatentLayout, block: *mut u8, token: usize, latent: &[f32], key: &[f32]) {
    assert!(
        token < layout.block_size && latent.len() == layout.latent_dim && key.len() == layout.rope_dim,
        "slot {token}, a latent of {} and a key of {} for {layout:?}",
        latent.len(),
        key.len()
    );
    // SAFETY: checked above.
    unsafe {
        let row = block.add(token * layout.row_bytes());
        match layout.dtype {
            KvDtype::F32 => write_row::<f32>(row, latent, key),
            KvDtype::F16 => write_row::<f16>(row, latent, key),
            KvDtype::Bf16 => write_row::<bf16>(row, latent, key),
            KvDtype::E4m3 => write_row::<E4m3>(row, latent, key),
            KvDtype::I8 | KvDtype::U4 => panic!("latents in {:?}", layout.dtype),
        }
    }
}

unsafe fn write_row<E: KvNumber>(row: *mut u8, latent: &[f32], key: &[f32]) {
    for (i, &value) in latent.iter().chain(key).enumerate() {
        // SAFETY: the row holds latent and key.
        unsafe { E::write(row.add(i * E::BYTES), value) };
    }
}

/// Where the parts of the scratch are.
struct Scratch {
    /// \[KEYS, padded\]
    tile: *mut f32,
    /// \[rows, padded\]
    queries: *mut f32,
    /// Σ 2^(score − max), in parts, \[rows, LANES\].
    sums: *mut f32,
    /// Largest score so far, a base-2 logarithm, \[rows\].
    maxima: *mut f32,
}

/// Runs the call.
///
/// # Safety
/// The CPU has `S`'s instruction set; the promises of `Kernels::latent_attention`.
#[inline(always)]
pub(crate) unsafe fn run<S: Simd>(job: &mut LatentAttention<'_>) {
    let num_rows = job.queries.len() * job.heads.len();
    if num_rows == 0 {
        return;
    }
    let (layout, padded) = (job.layout, job.layout.padded());
    // SAFETY: the scratch is as long as `scratch` says, and all pointers below stay inside it.
    unsafe {
        let tile = job.scratch.as_mut_ptr();
        let queries = tile.add(KEYS * padded);
        let sums = queries.add(num_rows * padded);
        let scratch = Scratch {
            tile,
            queries,
            sums,
            maxima: sums.add(num_rows * LANES),
        };
        start(job, &scratch, num_rows);
        let end = job.first_position + job.queries.end;
        let mut first = 0;
        while first < end {
            let len = KEYS.min(end - first);
            match layout.dtype {
                KvDtype::F32 => load_tile::<S, f32>(job, &scratch, first, len),
                KvDtype::F16 => load_tile::<S, f16>(job, &scratch, first, len),
                KvDtype::Bf16 => load_tile::<S, bf16>(job, &scratch, first, len),
                KvDtype::E4m3 => load_tile::<S, E4m3>(job, &scratch, first, len),
                // Refused above, by `Kernels::latent_attention`.
                KvDtype::I8 | KvDtype::U4 => {}
            }
            let mut row = 0;
            while row < num_rows {
                row += match num_rows - row {
                    4.. if S::LARGE_TILES => keys::<S, 4, 4>(job, &scratch, row, first, len),
                    2.. if S::TILES && !S::LARGE_TILES => keys::<S, 2, 2>(job, &scratch, row, first, len),
                    _ if S::LARGE_TILES => keys::<S, 1, 16>(job, &scratch, row, first, len),
                    _ => keys::<S, 1, 4>(job, &scratch, row, first, len),
                };
            }
            first += KEYS;
        }
        for row in 0..num_rows {
            let scale = 1.0 / S::sum(S::load(scratch.sums.add(row * LANES)));
            let out = out_row(job, row);
            for d in 0..layout.latent_dim {
                *out.add(d) *= scale;
            }
        }
    }
}

/// Query and head of a row.
#[inline(always)]
fn place(job: &LatentAttention<'_>, row: usize) -> (usize, usize) {
    let heads = job.heads.len();
    (job.queries.start + row / heads, job.heads.start + row % heads)
}

#[inline(always)]
unsafe fn out_row(job: &LatentAttention<'_>, row: usize) -> *mut f32 {
    let (query, head) = place(job, row);
    // SAFETY: query and head are the call's.
    unsafe { job.out.first.add(job.out.offset(query, head)) }
}

/// Gathers the queries as rows of the cache are, and empties sums and results.
#[inline(always)]
unsafe fn start(job: &LatentAttention<'_>, scratch: &Scratch, num_rows: usize) {
    let layout = &job.layout;
    // SAFETY: query and head are the call's; the scratch holds every row.
    unsafe {
        for row in 0..num_rows {
            let (query, head) = place(job, row);
            let to = scratch.queries.add(row * layout.padded());
            let latent = job.q_latent.first.add(job.q_latent.offset(query, head));
            let rope = job.q_rope.first.add(job.q_rope.offset(query, head));
            std::ptr::copy_nonoverlapping(latent, to, layout.latent_dim);
            std::ptr::copy_nonoverlapping(rope, to.add(layout.latent_dim), layout.rope_dim);
            std::ptr::write_bytes(to.add(layout.width()), 0, layout.padded() - layout.width());
            std::ptr::write_bytes(scratch.sums.add(row * LANES), 0, LANES);
            *scratch.maxima.add(row) = f32::NEG_INFINITY;
            std::ptr::write_bytes(out_row(job, row), 0, layout.latent_dim);
        }
    }
}

/// The rows of `len` keys from position `first` on, as f32.
#[inline(always)]
unsafe fn load_tile<S: Simd, E: KvNumber>(job: &LatentAttention<'_>, scratch: &Scratch, first: usize, len: usize) {
    let layout = &job.layout;
    let (width, padded) = (layout.width(), layout.padded());
    for t in 0..len {
        let position = first + t;
        let block = job.block_table[position / layout.block_size] as usize;
        // SAFETY: the caller of `Kernels::latent_attention` promised the block; a row has `width` elements, and room
        // for `padded` in scratch.
        unsafe {
            let row = job.pool.add(block * job.block_stride);
            let row = row.add(position % layout.block_size * layout.row_bytes());
            let to = scratch.tile.add(t * padded);
            let mut d = 0;
            while d + LANES <= width {
                S::store(to.add(d), E::load::<S>(row.add(d * E::BYTES)));
                d += LANES;
            }
            while d < padded {
                *to.add(d) = if d < width { E::read(row.add(d * E::BYTES)) } else { 0.0 };
                d += 1;
            }
        }
    }
}

/// One tile of keys for R rows from `row` on, scores of K keys at a time; gives R.
#[inline(always)]
unsafe fn keys<S: Simd, const R: usize, const K: usize>(
    job: &LatentAttention<'_>,
    scratch: &Scratch,
    row: usize,
    first: usize,
    len: usize,
) -> usize {
    // SAFETY: rows and keys lie in scratch; the caller has the instruction set.
    unsafe {
        let mut scores = [[0f32; KEYS]; R];
        let mut at = 0;
        while at < len {
            scores_of::<S, R, K>(job, scratch, row, at, &mut scores);
            at += K;
        }
        let mut factors = [1f32; R];
        for r in 0..R {
            let visible = job.first_position + place(job, row + r).0 + 1;
            let seen = visible.saturating_sub(first).min(len);
            // Also hides what was never loaded.
            scores[r][seen..].fill(f32::NEG_INFINITY);
            let sum = &mut *scratch.sums.add((row + r) * LANES).cast::<[f32; LANES]>();
            let running = (&mut *scratch.maxima.add(row + r), sum);
            factors[r] = softmax_row::<S>(running, &mut scores[r], None);
        }
        let dim = job.layout.latent_dim;
        let mut d = 0;
        while d + LANES <= dim {
            d += match R {
                4 if dim - d >= 4 * LANES => values::<S, R, 4>(job, scratch, row, len, &scores, &factors, d),
                2 if dim - d >= 2 * LANES => values::<S, R, 2>(job, scratch, row, len, &scores, &factors, d),
                _ => values::<S, R, 1>(job, scratch, row, len, &scores, &factors, d),
            };
        }
        for r in 0..R {
            let out = out_row(job, row + r);
            for d in d..dim {
                let mut sum = *out.add(d) * factors[r];
                for (t, &weight) in scores[r][..len].iter().enumerate() {
                    sum += weight * *scratch.tile.add(t * job.layout.padded() + d);
                }
                *out.add(d) = sum;
            }
        }
    }
    R
}

/// q·k of R rows and K keys from `at` on, as base-2 logarithms. Keys past the tile's are computed of what is there.
#[inline(always)]
unsafe fn scores_of<S: Simd, const R: usize, const K: usize>(
    job: &LatentAttention<'_>,
    scratch: &Scratch,
    row: usize,
    at: usize,
    scores: &mut [[f32; KEYS]; R],
) {
    // SAFETY: KEYS is a multiple of K; rows and keys have `padded` elements.
    unsafe {
        let padded = job.layout.padded();
        let keys = scratch.tile.add(at * padded);
        let queries = scratch.queries.add(row * padded);
        let mut sums = [[S::splat(0.0); K]; R];
        let mut d = 0;
        while d < padded {
            let mut k = [S::splat(0.0); K];
            for j in 0..K {
                k[j] = S::load(keys.add(j * padded + d));
            }
            unroll!(r in 0..R => {
                let q = S::load(queries.add(r * padded + d));
                for j in 0..K {
                    sums[r][j] = S::fma(q, k[j], sums[r][j]);
                }
            });
            d += LANES;
        }
        let scale = job.scale * LOG2_E;
        if R * K == LANES {
            let mut parts = [S::splat(0.0); LANES];
            unroll!(r in 0..R => {
                for j in 0..K {
                    parts[r * K + j] = sums[r][j];
                }
            });
            // Lane i of vector l becomes lane l of sum i: adding the vectors adds up every sum at once.
            let mut parts = S::transpose(parts);
            let mut half = LANES / 2;
            while half > 0 {
                for i in 0..half {
                    parts[i] = S::add(parts[i], parts[i + half]);
                }
                half /= 2;
            }
            let mut lanes = [0f32; LANES];
            S::store(lanes.as_mut_ptr(), S::mul(parts[0], S::splat(scale)));
            for r in 0..R {
                scores[r][at..at + K].copy_from_slice(&lanes[r * K..(r + 1) * K]);
            }
            return;
        }
        for r in 0..R {
            for j in 0..K {
                scores[r][at + j] = S::sum(sums[r][j]) * scale;
            }
        }
    }
}

/// out = out · factor + Σ weight · latent for C vectors of dimensions from `d` on; gives their dimensions.
#[inline(always)]
unsafe fn values<S: Simd, const R: usize, const C: usize>(
    job: &LatentAttention<'_>,
    scratch: &Scratch,
    row: usize,
    len: usize,
    weights: &[[f32; KEYS]; R],
    factors: &[f32; R],
    d: usize,
) -> usize {
    // SAFETY: d + C · LANES ≤ latent_dim; keys below `len` were loaded.
    unsafe {
        let padded = job.layout.padded();
        let mut outs = [std::ptr::null_mut::<f32>(); R];
        let mut sums = [[S::splat(0.0); C]; R];
        unroll!(r in 0..R => {
            outs[r] = out_row(job, row + r).add(d);
            for c in 0..C {
                sums[r][c] = S::mul(S::load(outs[r].add(c * LANES)), S::splat(factors[r]));
            }
        });
        for t in 0..len {
            let key = scratch.tile.add(t * padded + d);
            let mut v = [S::splat(0.0); C];
            for c in 0..C {
                v[c] = S::load(key.add(c * LANES));
            }
            unroll!(r in 0..R => {
                let weight = S::splat(weights[r][t]);
                for c in 0..C {
                    sums[r][c] = S::fma(weight, v[c], sums[r][c]);
                }
            });
        }
        unroll!(r in 0..R => {
            for c in 0..C {
                S::store(outs[r].add(c * LANES), sums[r][c]);
            }
        });
    }
    C * LANES
}
