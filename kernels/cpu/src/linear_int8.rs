//! The quantised product: activations in int8 per 32 (`act`), integer dot products, one f32 multiply-add a block of
//! 32. Owns the block step; a weight's zero point is subtracted in integers, so nothing cancels in f32.

use crate::act::{INT8_QUADS, INT8_WORDS};
use crate::linear::Linear;
use crate::pack::{BLOCK, padded_k};
use crate::panel::{QuantFormat, Scales};
use crate::simd::{Simd, unroll};

/// Runs the job.
///
/// # Safety
/// The CPU has `S`'s instruction set; the job passed `Kernels::linear`'s checks.
#[inline(always)]
pub(crate) unsafe fn run<S: Simd, W: QuantFormat>(job: &mut Linear<'_>) {
    for group in job.groups() {
        for i in 0..job.num_tiles() {
            for panel in group.clone() {
                // SAFETY: the caller's promise.
                unsafe { tile::<S, W>(job, panel, i) };
            }
        }
    }
}

/// One panel × tile `i` of the tokens.
#[inline(always)]
unsafe fn tile<S: Simd, W: QuantFormat>(job: &Linear<'_>, panel: usize, i: usize) {
    let (t0, width, act) = job.tile(i);
    let act = act.cast::<i32>();
    let mut column = 0;
    while column < width {
        // SAFETY: the caller's promise.
        unsafe {
            let at = At {
                panel,
                token: t0 + column,
                quads: act.add(INT8_QUADS * column),
                scales: act.add(INT8_QUADS * width + column),
                width,
            };
            column += match width - column {
                // Tiles are 12, 8, 4, 2 or 1 wide.
                12 if S::TILES => product::<S, W, 12>(job, &at),
                8 if S::TILES => product::<S, W, 8>(job, &at),
                4 if S::TILES => product::<S, W, 4>(job, &at),
                2 if S::TILES => product::<S, W, 2>(job, &at),
                _ => product::<S, W, 1>(job, &at),
            };
        }
    }
}

/// Where a register tile begins.
struct At {
    panel: usize,
    token: usize,
    /// The first token's quants of block 0; the next token's follow.
    quads: *const i32,
    /// The first token's scale of block 0; the next token's follows, and its sums are `width` words apart.
    scales: *const i32,
    width: usize,
}

/// T tokens × one panel in registers; gives T.
#[inline(always)]
unsafe fn product<S: Simd, W: QuantFormat, const T: usize>(job: &Linear<'_>, at: &At) -> usize {
    // SAFETY: every block of the panel and of the tile is read once; the caller's promise.
    unsafe {
        // Tiles are taken whole: their distances are constants then.
        let width = if S::TILES { T } else { at.width };
        let weights = job.panel(at.panel);
        let (mut x, mut words) = (at.quads, at.scales);
        let mut sums = [[S::splat(0.0); T]; 1];
        for b in 0..padded_k(job.k) / BLOCK {
            let mut quads = [S::splat_i(0); INT8_QUADS];
            unroll!(v in 0..4 => { [quads[2 * v], quads[2 * v + 1]] = W::quads::<S>(weights, b, v); });
            let scales = scales::<S, W>(weights, b);
            if T >= TOGETHER && S::LARGE_TILES {
                unroll!(i in 0..T / TOGETHER => {
                    let t = i * TOGETHER;
                    let (x, words) = (x.add(t * INT8_QUADS), words.add(t));
                    block::<S, W, TOGETHER>(&quads, &scales, x, words, width, &mut sums[0][t..t + TOGETHER]);
                });
            } else if T >= TOGETHER {
                // Few registers: the sums stay in memory, and a loop keeps the compiler from interleaving more tokens
                // than fit into registers.
                for i in 0..T / TOGETHER {
                    let t = i * TOGETHER;
                    let (x, words) = (x.add(t * INT8_QUADS), words.add(t));
                    block::<S, W, TOGETHER>(&quads, &scales, x, words, width, &mut sums[0][t..t + TOGETHER]);
                }
            } else {
                unroll!(t in 0..T => {
                    let (x, words) = (x.add(t * INT8_QUADS), words.add(t));
                    block::<S, W, 1>(&quads, &scales, x, words, width, &mut sums[0][t..t + 1]);
                });
            }
            (x, words) = (x.add(INT8_WORDS * width), words.add(INT8_WORDS * width));
        }
        job.finish::<S, 1, T>(at.token, at.panel, &sums, true);
        T
    }
}

/// Tokens whose integer sums run side by side.
const TOGETHER: usize = 4;

/// sums + one block of C tokens, with quants at `x` and scales at `words`.
#[inline(always)]
unsafe fn block<S: Simd, W: QuantFormat, const C: usize>(
    quads: &[S::I; INT8_QUADS],
    scales: &Scales<S>,
    x: *const i32,
    words: *const i32,
    width: usize,
    sums: &mut [S::F],
) {
    // SAFETY: the caller's promise: C tokens lie next to each other, `sums` has C elements.
    unsafe {
        let none = [S::splat_i(0); C];
        let dots: [[S::I; C]; 2] = if W::SPLIT {
            let [a, b, c, d, e, f, g, h] = *quads;
            [
                S::dots(&[a, b, c, d], W::QUANTS, x, words.add(3 * width)),
                S::dots(&[e, f, g, h], W::QUANTS, x.add(4), words.add(4 * width)),
            ]
        } else {
            [S::dots(quads, W::QUANTS, x, words.add(2 * width)), none]
        };
        unroll!(t in 0..C => {
            sums[t] = add_block::<S, W>([dots[0][t], dots[1][t]], scales, words.add(t), width, sums[t]);
        });
    }
}

/// Scales of a block, with the minima that sums of quants are multiplied with: where halves have their own, with the
/// other sign, as those sums have it.
///
/// # Safety
/// The CPU has `S`'s instruction set; the panel has a block `b`.
#[inline(always)]
pub(crate) unsafe fn scales<S: Simd, W: QuantFormat>(panel: *const u8, b: usize) -> Scales<S> {
    // SAFETY: the caller's promise.
    unsafe {
        let mut scales = W::scales::<S>(panel, b);
        if W::HAS_MIN {
            scales.m = W::mins::<S>(panel, b);
        }
        if W::HAS_MIN && W::SPLIT {
            let zero = S::splat(0.0);
            scales.m = [S::sub(zero, scales.m[0]), S::sub(zero, scales.m[1])];
        }
        scales
    }
}

/// `sum` + one block of a token: `dots` are its integer sums, of the block or of its halves; `words` are the token's
/// scale and, `width` words apart, its sums.
///
/// # Safety
/// The CPU has `S`'s instruction set; the token's words are readable.
#[inline(always)]
pub(crate) unsafe fn add_block<S: Simd, W: QuantFormat>(
    dots: [S::I; 2],
    scales: &Scales<S>,
    words: *const i32,
    width: usize,
    sum: S::F,
) -> S::F {
    // SAFETY: the caller's promise.
    unsafe {
        let d = S::splat(f32::from_bits(*words as u32));
        if W::SPLIT && W::HAS_MIN {
            // −Σq of each half, and its minimum with the other sign.
            let half = |i: usize| S::i32_to_f32(S::splat_i(*words.add((3 + i) * width)));
            let mut both = S::mul(S::i32_to_f32(dots[0]), scales.s[0]);
            both = S::fma(S::i32_to_f32(dots[1]), scales.s[1], both);
            both = S::fma(half(0), scales.m[0], both);
            both = S::fma(half(1), scales.m[1], both);
            return S::fma(both, d, sum);
        }
        let sum = S::fma(S::i32_to_f32(dots[0]), S::mul(scales.s[0], d), sum);
        if W::SPLIT {
            return S::fma(S::i32_to_f32(dots[1]), S::mul(scales.s[1], d), sum);
        }
        if W::HAS_MIN || W::QUANTS.zero_log2.is_none() {
            let offset = S::splat(f32::from_bits(*words.add(width) as u32));
            return S::fma(scales.m[0], offset, sum);
        }
        sum
    }
}
