//! Lays activations out for the products in `linear_*`, once for all weight panels: rounded or quantised as the mode
//! asks, in tiles of tokens so that the inner loop reads it forward, at distances that it knows. Owns the tiling; each
//! token's bytes depend on that token alone, so results cannot depend on the batch.
//!
//! The tokens are cut into tiles of 12, the rest into tiles of 8, 4, 2 and 1; up to 24 tokens in `Bf16` are one tile. A
//! tile of W tokens holds, with K padded by zeros to a multiple of 32:
//! - `F32` f32\[k\]\[W\];
//! - `Bf16` per 32 elements of K ("block"): bf16\[W\]\[32\];
//! - `Tiles` as `Bf16`, but every tile holds 16 tokens, the last one padded by zeros;
//! - `Int8` per block: i8\[W\]\[32\] quants, then \[W\] each of: f32 d (= max|x| / 127), f32 d·Σq, i32 −Σq over the
//!   block, over its first and over its second half;
//! - `Int8Tiles` as `Int8`, in tiles of 16 tokens as `Tiles`.

use std::ops::Range;

use crate::pack::{BLOCK, padded_k};
use crate::simd::{LANES, Simd};

/// What a product does with its activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ActMode {
    /// Keeps them in f32 and dequantises the weights: the exact mode, for every format.
    F32,
    /// Rounds them to bf16 and multiplies in bf16 with f32 sums; for `Bf16` weights.
    Bf16,
    /// As `Bf16`, laid out for matrix units.
    Tiles,
    /// Quantises each 32 to int8 with a scale and multiplies in integers; for the GGUF formats.
    Int8,
    /// As `Int8`, laid out for matrix units; results have the same bits.
    Int8Tiles,
}

impl ActMode {
    /// Whether every tile holds 16 tokens.
    const fn has_whole_tiles(self) -> bool {
        matches!(self, ActMode::Tiles | ActMode::Int8Tiles)
    }
}

/// Tokens of every tile of `Tiles` and `Int8Tiles`.
pub(crate) const TILE_ROWS: usize = 16;
/// Tokens of a full tile.
pub const TILE: usize = 12;
/// Up to so many tokens, `Bf16` lays all of them out as one tile: a register each, so that weights are read once.
pub(crate) const ONE_TILE: usize = 24;
/// 32-bit words that a token's block of 32 takes in `Int8`.
pub(crate) const INT8_WORDS: usize = INT8_QUADS + 5;
/// Of these, the words that hold quants.
pub(crate) const INT8_QUADS: usize = 8;

/// Bytes of one token's prepared activations of length `k`.
pub const fn act_token_bytes(mode: ActMode, k: usize) -> usize {
    match mode {
        ActMode::F32 => padded_k(k) * 4,
        ActMode::Bf16 | ActMode::Tiles => padded_k(k) * 2,
        ActMode::Int8 | ActMode::Int8Tiles => padded_k(k) / BLOCK * INT8_WORDS * 4,
    }
}

/// Bytes of the prepared activations of `tokens` tokens.
pub const fn act_bytes(mode: ActMode, tokens: usize, k: usize) -> usize {
    let rows = if mode.has_whole_tiles() {
        tokens.next_multiple_of(TILE_ROWS)
    } else {
        tokens
    };
    rows * act_token_bytes(mode, k)
}

/// Parts in which the preparation is split over threads: tiles, or the tokens of a single tile.
pub const fn num_act_parts(mode: ActMode, tokens: usize) -> usize {
    if mode.has_whole_tiles() {
        return tokens.div_ceil(TILE_ROWS);
    }
    if is_one_tile(mode, tokens) {
        return tokens;
    }
    num_tiles(tokens)
}

/// Tiles that `tokens` tokens make where they do not all lie in one.
pub(crate) const fn num_tiles(tokens: usize) -> usize {
    tokens / TILE + (tokens % TILE).count_ones() as usize
}

/// Whether all tokens lie in one tile.
pub(crate) const fn is_one_tile(mode: ActMode, tokens: usize) -> bool {
    matches!(mode, ActMode::Bf16) && tokens > 0 && tokens <= ONE_TILE
}

/// (first token, width) of tile `i` of `tokens` tokens where they do not all lie in one.
#[inline(always)]
pub(crate) const fn tile(tokens: usize, i: usize) -> (usize, usize) {
    let full = tokens / TILE;
    if i < full {
        return (i * TILE, TILE);
    }
    let (mut start, mut rest, mut left) = (full * TILE, tokens % TILE, i - full);
    loop {
        // The largest power of two in the rest; a remainder of 1..=11 is a sum of 8, 4, 2, 1.
        let width = 1 << rest.ilog2();
        if left == 0 {
            return (start, width);
        }
        start += width;
        rest -= width;
        left -= 1;
    }
}

/// One call of the preparation.
pub(crate) struct ActJob {
    pub mode: ActMode,
    /// \[tokens\] rows of `k` f32, `stride` elements apart.
    pub x: *const f32,
    pub stride: usize,
    pub k: usize,
    pub tokens: usize,
    pub parts: Range<usize>,
    /// The whole prepared buffer.
    pub dst: *mut u8,
}

/// Prepares the parts of the job.
///
/// # Safety
/// The CPU has `S`'s instruction set; `x` and `dst` are valid for the job's sizes.
#[inline(always)]
pub(crate) unsafe fn prepare<S: Simd>(job: &ActJob) {
    let token_bytes = act_token_bytes(job.mode, job.k);
    for part in job.parts.clone() {
        let (t0, width, own) = if job.mode.has_whole_tiles() {
            (part * TILE_ROWS, TILE_ROWS, 0..TILE_ROWS)
        } else if is_one_tile(job.mode, job.tokens) {
            (0, job.tokens, part..part + 1)
        } else {
            let (t0, width) = tile(job.tokens, part);
            (t0, width, 0..width)
        };
        for t in own {
            // SAFETY: token t0 + t < tokens, or a row of padding, and the tile's bytes lie inside `dst`.
            unsafe {
                let dst = job.dst.add(t0 * token_bytes);
                if t0 + t >= job.tokens {
                    padding(job.mode, job.k, dst, t, width);
                    continue;
                }
                let x = job.x.add((t0 + t) * job.stride);
                match job.mode {
                    ActMode::F32 => token_f32(x, job.k, dst.cast(), t, width),
                    ActMode::Bf16 | ActMode::Tiles => token_bf16::<S>(x, job.k, dst.cast(), t, width),
                    ActMode::Int8 | ActMode::Int8Tiles => token_int8::<S>(x, job.k, dst.cast(), t, width),
                }
            }
        }
    }
}

/// # Safety
/// `x` holds k floats, `dst` a tile of `width` tokens.
#[inline(always)]
unsafe fn token_f32(x: *const f32, k: usize, dst: *mut f32, t: usize, width: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        for i in 0..k {
            *dst.add(i * width + t) = *x.add(i);
        }
        for i in k..padded_k(k) {
            *dst.add(i * width + t) = 0.0;
        }
    }
}

/// 32 elements from `k0` on, zeros past `k`.
#[inline(always)]
unsafe fn load_block<S: Simd>(x: *const f32, k0: usize, k: usize) -> [S::F; 2] {
    // SAFETY: x holds k floats, k0 < k.
    unsafe {
        if k - k0 >= BLOCK {
            return [S::load(x.add(k0)), S::load(x.add(k0 + LANES))];
        }
        let rest = k - k0;
        let low = S::load_n(x.add(k0), rest.min(LANES), 0.0);
        let high = if rest > LANES {
            S::load_n(x.add(k0 + LANES), rest - LANES, 0.0)
        } else {
            S::splat(0.0)
        };
        [low, high]
    }
}

/// # Safety
/// As for `token_f32`, with the instruction set of `S`.
#[inline(always)]
unsafe fn token_bf16<S: Simd>(x: *const f32, k: usize, dst: *mut u16, t: usize, width: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        for b in 0..padded_k(k) / BLOCK {
            let v = load_block::<S>(x, b * BLOCK, k);
            let out = dst.add((b * width + t) * BLOCK);
            S::store_bf16(out, v[0]);
            S::store_bf16(out.add(LANES), v[1]);
        }
    }
}

/// Zeros in place of a token.
///
/// # Safety
/// `dst` holds a tile of `width` tokens of a mode with whole tiles.
#[inline(always)]
unsafe fn padding(mode: ActMode, k: usize, dst: *mut u8, t: usize, width: usize) {
    for b in 0..padded_k(k) / BLOCK {
        // SAFETY: the caller's promise.
        unsafe {
            if matches!(mode, ActMode::Tiles) {
                dst.add((b * width + t) * BLOCK * 2).write_bytes(0, BLOCK * 2);
                continue;
            }
            let block = dst.cast::<u32>().add(b * INT8_WORDS * width);
            block.add(t * INT8_QUADS).write_bytes(0, INT8_QUADS);
            for word in INT8_QUADS..INT8_WORDS {
                *block.add(word * width + t) = 0;
            }
        }
    }
}

/// # Safety
/// As for `token_f32`, with the instruction set of `S`.
#[inline(always)]
unsafe fn token_int8<S: Simd>(x: *const f32, k: usize, dst: *mut u32, t: usize, width: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        // 0 where all is finite; else NaN in some lane, and the token is looked at block by block.
        let (zero, mut poison) = (S::splat(0.0), S::splat(0.0));
        for b in 0..padded_k(k) / BLOCK {
            let v = load_block::<S>(x, b * BLOCK, k);
            poison = S::fma(v[1], zero, S::fma(v[0], zero, poison));
            block_int8::<S>(v, 0.0, dst.add(b * INT8_WORDS * width), t, width);
        }
        if S::sum(poison) == 0.0 {
            return;
        }
        for b in 0..padded_k(k) / BLOCK {
            let v = load_block::<S>(x, b * BLOCK, k);
            let poison = S::sum(S::fma(v[0], zero, S::mul(v[1], zero)));
            block_int8::<S>(v, poison, dst.add(b * INT8_WORDS * width), t, width);
        }
    }
}

/// One block; `poison` is 0, or NaN where the block has a NaN or an ∞: its output then is NaN, not a quiet 0.
///
/// # Safety
/// The CPU has `S`'s instruction set; `out` holds a block of `width` tokens.
#[inline(always)]
unsafe fn block_int8<S: Simd>(v: [S::F; 2], poison: f32, out: *mut u32, t: usize, width: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let d = S::hmax(S::max(S::abs(v[0]), S::abs(v[1]))) / 127.0 + poison;
        let inverse = if d > 0.0 { 1.0 / d } else { 0.0 };
        // Subnormal maxima have an infinite inverse: they are so small that they count as zero.
        let (d, inverse) = if inverse == f32::INFINITY {
            (0.0, 0.0)
        } else {
            (d, inverse)
        };
        let inverse = S::splat(inverse);
        let q = [S::round_i32(S::mul(v[0], inverse)), S::round_i32(S::mul(v[1], inverse))];
        let quads = out.add(t * INT8_QUADS).cast::<u8>();
        S::store_i8x16(quads, q[0]);
        S::store_i8x16(quads.add(LANES), q[1]);
        let sums = S::sum_halves(q);
        let sum = sums[0].wrapping_add(sums[1]);
        let out = out.add(INT8_QUADS * width + t);
        *out = d.to_bits();
        *out.add(width) = (d * sum as f32).to_bits();
        *out.add(2 * width) = sum.wrapping_neg() as u32;
        *out.add(3 * width) = sums[0].wrapping_neg() as u32;
        *out.add(4 * width) = sums[1].wrapping_neg() as u32;
    }
}
