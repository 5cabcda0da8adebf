//! The exact product: f32 activations, weights dequantised to the values that the file means, f32 sums. Owns two
//! loops with one order of summation: few tokens decode weights in registers, many decode a chunk of two panels to
//! scratch once and reuse it for every tile of tokens.

use std::ops::Range;

use crate::format::WeightFormat;
use crate::isa::Isa;
use crate::linear::{CHUNK, Linear};
use crate::pack::{BLOCK, padded_k};
use crate::panel::PanelFormat;
use crate::simd::{LANES, Simd, unroll};

/// Up to this many tokens, weights of every format are decoded in registers.
const FEW_TOKENS: usize = 4;
/// Panels that meet every tile of few tokens before the next ones: as many as one token takes at once.
const PANELS: usize = 4;

/// Decodes a panel at k0..k1 to f32\[k\]\[16\].
pub(crate) type DecodeFn = unsafe fn(panel: *const u8, k0: usize, k1: usize, out: *mut f32);
/// Multiplies decoded panels with every tile of tokens.
pub(crate) type DecodedFn = unsafe fn(job: &mut Linear<'_>, chunk: &Chunk);

/// Two (or one) decoded panels over a part of K; the weights lie in the job's scratch.
pub(crate) struct Chunk {
    panel: usize,
    pair: bool,
    k0: usize,
    k1: usize,
}

/// The job for more than [`few_tokens`]: chunk by chunk, decode and multiply.
///
/// # Safety
/// Both functions' instruction sets are there; the job passed `Kernels::linear`'s checks.
pub(crate) unsafe fn many(job: &mut Linear<'_>, decode: DecodeFn, multiply: DecodedFn) {
    let k = padded_k(job.k);
    let (mut panel, end) = (job.panels.start, job.panels.end);
    while panel < end {
        let pair = panel + 1 < end;
        let mut k0 = 0;
        while k0 < k {
            let k1 = k.min(k0 + CHUNK);
            let scratch = job.scratch.as_mut_ptr();
            // SAFETY: the caller's promise; scratch holds two decoded chunks.
            unsafe {
                decode(job.panel(panel), k0, k1, scratch);
                if pair {
                    decode(job.panel(panel + 1), k0, k1, scratch.add(CHUNK * LANES));
                }
                multiply(job, &Chunk { panel, pair, k0, k1 });
            }
            k0 = k1;
        }
        panel += if pair { 2 } else { 1 };
    }
}

/// Up to how many tokens weights are decoded in registers: where a register holds 8 lanes and a shift or a conversion
/// decodes a weight, doing it twice is quicker than storing the decoded panel.
pub(crate) fn few_tokens(isa: Isa, format: WeightFormat) -> usize {
    match format {
        WeightFormat::F32 | WeightFormat::F16 | WeightFormat::Bf16 if isa == Isa::Avx2Fma => 2 * FEW_TOKENS,
        _ => FEW_TOKENS,
    }
}

/// The job with weights decoded in registers.
///
/// # Safety
/// The CPU has `S`'s instruction set; the job passed `Kernels::linear`'s checks.
#[inline(always)]
pub(crate) unsafe fn few<S: Simd, W: PanelFormat>(job: &mut Linear<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        // Few panels at a time, so that the second tile finds them in a cache.
        let end = job.panels.end;
        for first in job.panels.clone().step_by(PANELS) {
            for i in 0..job.num_tiles() {
                decode_panels::<S, W>(job, first..end.min(first + PANELS), i);
            }
        }
    }
}

/// Some panels × tile `i` of the tokens.
#[inline(always)]
unsafe fn decode_panels<S: Simd, W: PanelFormat>(job: &Linear<'_>, range: Range<usize>, i: usize) {
    let (token, width, act) = job.tile(i);
    let mut panel = range.start;
    while panel < range.end {
        // Several panels at once, as many as there are registers for: a chain of multiply-adds alone would wait for its
        // own latency.
        let panels = match width {
            1 if S::LARGE_TILES => PANELS,
            _ if width <= 2 || S::LARGE_TILES => 2,
            _ => 1,
        };
        let several = S::TILES && panel + panels <= range.end;
        let mut at = At {
            panel,
            token,
            act: act.cast(),
            stride: width,
        };
        // SAFETY: the caller's promise.
        unsafe {
            match width {
                1 if S::LARGE_TILES && several => decode_tile::<S, W, 1, PANELS, 1>(job, &at),
                1 if several => decode_tile::<S, W, 1, 2, 1>(job, &at),
                2 if several => decode_tile::<S, W, 2, 2, 2>(job, &at),
                4 if S::LARGE_TILES && several => decode_tile::<S, W, 4, 2, 4>(job, &at),
                4 if several => decode_tile::<S, W, 4, 1, 4>(job, &at),
                8 if several && W::PLAIN && !S::LARGE_TILES => {
                    decode_tile::<S, W, 4, 1, 8>(job, &at);
                    decode_tile::<S, W, 4, 1, 8>(job, &at.after(4));
                }
                _ => {
                    for _ in 0..width {
                        decode_tile::<S, W, 1, 1, 0>(job, &at);
                        at = at.after(1);
                    }
                }
            }
        }
        panel += if several { panels } else { 1 };
    }
}

/// Where a register tile begins: tokens next to each other, their elements `stride` apart along K.
struct At {
    panel: usize,
    token: usize,
    act: *const f32,
    stride: usize,
}

impl At {
    /// The same tile from a later token on.
    #[inline(always)]
    fn after(&self, tokens: usize) -> At {
        At {
            token: self.token + tokens,
            act: self.act.wrapping_add(tokens),
            ..*self
        }
    }
}

/// T tokens × P panels, weights decoded in registers. `STRIDE` is the tile's, or 0 where it is not known here.
#[inline(always)]
unsafe fn decode_tile<S: Simd, W: PanelFormat, const T: usize, const P: usize, const STRIDE: usize>(
    job: &Linear<'_>,
    at: &At,
) {
    // SAFETY: every block of the panels and of the tile is read once; the caller's promise.
    unsafe {
        let stride = if STRIDE > 0 { STRIDE } else { at.stride };
        let mut w = [std::ptr::null(); P];
        for p in 0..P {
            w[p] = job.panel(at.panel + p);
        }
        let blocks = padded_k(job.k) / BLOCK;
        let mut begin = 0;
        while begin < blocks {
            let end = blocks.min(begin + CHUNK / BLOCK);
            let mut sums = [[S::splat(0.0); T]; P];
            for b in begin..end {
                let mut heads = [W::block::<S>(w[0], b); P];
                for p in 1..P {
                    heads[p] = W::block::<S>(w[p], b);
                }
                for v in 0..4 {
                    for p in 0..P {
                        let x = at.act.add((BLOCK * b + 8 * v) * stride);
                        if S::LARGE_TILES {
                            let weights = W::decode8::<S>(w[p], b, v, &heads[p]);
                            unroll!(j in 0..8 => {
                                for t in 0..T {
                                    let x = S::splat(*x.add(j * stride + t));
                                    sums[p][t] = S::fma(weights[j], x, sums[p][t]);
                                }
                            });
                        } else {
                            unroll!(i in 0..4 => {
                                let weights = W::decode2::<S>(w[p], b, v, &heads[p], i);
                                unroll!(j in 0..2 => {
                                    for t in 0..T {
                                        let x = S::splat(*x.add((2 * i + j) * stride + t));
                                        sums[p][t] = S::fma(weights[j], x, sums[p][t]);
                                    }
                                });
                            });
                        }
                    }
                }
            }
            job.finish::<S, P, T>(at.token, at.panel, &sums, begin == 0);
            begin = end;
        }
    }
}

/// The weights of one panel at k0..k1 as f32\[k\]\[16\].
///
/// # Safety
/// The CPU has `S`'s instruction set; `out` holds (k1 − k0) · 16 floats, the panel the blocks of k0..k1.
#[inline(always)]
pub(crate) unsafe fn decode_chunk<S: Simd, W: PanelFormat>(panel: *const u8, k0: usize, k1: usize, out: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut out = out;
        for b in k0 / BLOCK..k1 / BLOCK {
            let block = W::block::<S>(panel, b);
            for v in 0..4 {
                let weights = W::decode8::<S>(panel, b, v, &block);
                unroll!(j in 0..8 => { S::store(out.add(j * LANES), weights[j]); });
                out = out.add(8 * LANES);
            }
        }
    }
}

/// A decoded chunk times every tile of tokens.
///
/// # Safety
/// The CPU has `S`'s instruction set; the job's scratch holds the chunk's decoded panels.
#[inline(always)]
pub(crate) unsafe fn multiply<S: Simd>(job: &mut Linear<'_>, chunk: &Chunk) {
    let weights = job.scratch.as_ptr();
    for i in 0..job.num_tiles() {
        let (t0, width, act) = job.tile(i);
        let mut column = 0;
        while column < width {
            // SAFETY: the caller's promise; the tile holds k rows of `width` floats.
            unsafe {
                let act = act.cast::<f32>().add(chunk.k0 * width + column);
                let at = At {
                    panel: chunk.panel,
                    token: t0 + column,
                    act,
                    stride: width,
                };
                column += if chunk.pair && S::LARGE_TILES {
                    match width - column {
                        12 => product::<S, 2, 12>(job, weights, &at, chunk),
                        8 => product::<S, 2, 8>(job, weights, &at, chunk),
                        4 => product::<S, 2, 4>(job, weights, &at, chunk),
                        _ => product::<S, 2, 1>(job, weights, &at, chunk),
                    }
                } else {
                    let second = At {
                        panel: at.panel + 1,
                        ..at
                    };
                    let rest = width - column;
                    let done = one_panel::<S>(job, weights, &at, chunk, rest);
                    if chunk.pair {
                        one_panel::<S>(job, weights.add(CHUNK * LANES), &second, chunk, rest);
                    }
                    done
                };
            }
        }
    }
}

/// One panel × as many of `rest` columns as few registers hold; gives how many.
#[inline(always)]
unsafe fn one_panel<S: Simd>(job: &Linear<'_>, weights: *const f32, at: &At, chunk: &Chunk, rest: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe {
        match rest {
            6 | 12 if S::TILES => product::<S, 1, 6>(job, weights, at, chunk),
            4 | 8 if S::TILES => product::<S, 1, 4>(job, weights, at, chunk),
            _ => product::<S, 1, 1>(job, weights, at, chunk),
        }
    }
}

/// P panels × T columns in registers; gives T.
#[inline(always)]
unsafe fn product<S: Simd, const P: usize, const T: usize>(
    job: &Linear<'_>,
    weights: *const f32,
    at: &At,
    chunk: &Chunk,
) -> usize {
    // SAFETY: the weights hold k1 − k0 vectors a panel, the activations as many rows.
    unsafe {
        let mut sums = [[S::splat(0.0); T]; P];
        let (mut x, mut w) = (at.act, weights);
        for _ in chunk.k0..chunk.k1 {
            let mut row = [S::splat(0.0); P];
            for p in 0..P {
                row[p] = S::load(w.add(p * CHUNK * LANES));
            }
            unroll!(t in 0..T => {
                let x = S::splat(*x.add(t));
                for p in 0..P {
                    sums[p][t] = S::fma(row[p], x, sums[p][t]);
                }
            });
            x = x.add(at.stride);
            w = w.add(LANES);
        }
        job.finish::<S, P, T>(at.token, at.panel, &sums, chunk.k0 == 0);
        T
    }
}
