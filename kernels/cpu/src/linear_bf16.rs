//! The bf16 product: weights and activations in bf16, f32 sums by the hardware's dot product of pairs (by two f32
//! multiply-adds where there is none). Owns the tile loops and their prefetches; there is nothing to decode.
//!
//! Up to 24 tokens every weight is read once and is multiplied with all of them, so that reading and arithmetic
//! overlap. With more tokens, a pair of panels comes from memory while the first tile is multiplied and from the second
//! cache for the others; the first tiles also prefetch the next pair, or arithmetic would stall whenever a new one
//! begins.

use crate::act::ONE_TILE;
use crate::linear::{Linear, LinearFn};
use crate::pack::{BLOCK, padded_k};
use crate::simd::{Simd, unroll};

/// By number of tokens: 1 to 24.
pub(crate) type Few = [LinearFn; ONE_TILE];

/// Pairs of elements of a block.
const PAIRS: usize = BLOCK / 2;
/// Bytes of a vector of weights, and of a cache line.
const LINE: usize = 64;
/// How far ahead of its use a single panel's line is asked for: what is read at 15 GB/s while memory answers under
/// load, and some more. Measured.
const AHEAD: usize = 16 << 10;
/// Up to this many tokens a thread waits for memory only, and two panels at once keep more of its reads under way than
/// asking ahead does.
const READING: usize = 8;
/// Tiles that ask for the next pair of panels between them: each has half as many steps as the pair has lines.
const ASKING_TILES: usize = 2;

/// Runs the job, with one of `few` where it has as few tokens. Each of them is a function of its own: a compiler takes
/// minutes for all in one.
///
/// # Safety
/// The CPU has the instruction set of all of them; the job passed `Kernels::linear`'s checks.
pub(crate) unsafe fn run(job: &mut Linear<'_>, few: &Few, many: LinearFn) {
    let run = few.get(job.tokens.wrapping_sub(1)).copied().unwrap_or(many);
    // SAFETY: the caller's promise.
    unsafe { run(job) }
}

/// All tokens at once, T of them, with one panel after the other, or with two.
///
/// # Safety
/// The CPU has `S`'s instruction set; the job has T tokens and passed `Kernels::linear`'s checks.
#[inline(always)]
pub(crate) unsafe fn few<S: Simd, const T: usize>(job: &mut Linear<'_>) {
    let (mut panel, end) = (job.panels.start, job.panels.end);
    while panel < end {
        let at = At {
            panel,
            token: 0,
            act: job.act.as_ptr().cast(),
            width: T,
        };
        // SAFETY: the caller's promise.
        unsafe {
            if T <= READING && panel + 1 < end {
                product::<S, 2, T>(job, &at, None);
                panel += 2;
            } else {
                let ahead = (T > READING).then(|| job.panel(panel).wrapping_add(AHEAD));
                product::<S, 1, T>(job, &at, ahead);
                panel += 1;
            }
        }
    }
}

/// Tiles of tokens with groups of panels.
///
/// # Safety
/// The CPU has `S`'s instruction set; the job passed `Kernels::linear`'s checks.
#[inline(always)]
pub(crate) unsafe fn many<S: Simd>(job: &mut Linear<'_>) {
    for group in job.groups() {
        for i in 0..job.num_tiles() {
            let mut panel = group.start;
            while panel < group.end {
                let pair = S::LARGE_TILES && panel + 1 < group.end;
                // SAFETY: the caller's promise.
                unsafe { tile::<S>(job, panel, pair, i, group.len()) };
                panel += if pair { 2 } else { 1 };
            }
        }
    }
}

/// One panel or a pair of them × tile `i` of the tokens. `distance` is that to the panel which is used in the next
/// group.
#[inline(always)]
unsafe fn tile<S: Simd>(job: &Linear<'_>, panel: usize, pair: bool, i: usize, distance: usize) {
    let (t0, width, act) = job.tile(i);
    let mut column = 0;
    while column < width {
        // SAFETY: the caller's promise.
        unsafe {
            let at = At {
                panel,
                token: t0 + column,
                act: act.cast::<i32>().add(column * PAIRS),
                width,
            };
            column += if pair && S::LARGE_TILES {
                // Both panels of the next pair lie one behind the other: each asking tile takes one.
                let ahead = (i < ASKING_TILES).then(|| job.panel(panel + distance + i));
                match width - column {
                    12 => product::<S, 2, 12>(job, &at, ahead),
                    8 => product::<S, 2, 8>(job, &at, ahead),
                    4 => product::<S, 2, 4>(job, &at, ahead),
                    _ => product::<S, 2, 1>(job, &at, None),
                }
            } else if S::TILES && width - column >= 4 {
                product::<S, 1, 4>(job, &at, None)
            } else {
                product::<S, 1, 1>(job, &at, None)
            };
        }
    }
}

/// Where a register tile begins.
struct At {
    panel: usize,
    token: usize,
    act: *const i32,
    width: usize,
}

/// P panels × T columns in registers; gives T. A line from `ahead` on is asked for with each vector.
#[inline(always)]
unsafe fn product<S: Simd, const P: usize, const T: usize>(
    job: &Linear<'_>,
    at: &At,
    ahead: Option<*const u8>,
) -> usize {
    // SAFETY: a panel holds k / 2 vectors of 64 bytes, the tile 16 pairs a token and block. What is asked for need not
    // exist.
    unsafe {
        let mut w = [std::ptr::null(); P];
        for (p, w) in w.iter_mut().enumerate() {
            *w = job.panel(at.panel + p);
        }
        let mut x = at.act;
        let mut sums = [[S::splat(0.0); T]; P];
        let mut next = ahead.unwrap_or(w[0]);
        for _ in 0..padded_k(job.k) / BLOCK {
            for pair in 0..PAIRS {
                let mut row = [S::splat_i(0); P];
                for p in 0..P {
                    row[p] = S::load_i(w[p].add(LINE * pair));
                }
                S::prefetch(next.wrapping_add(LINE * pair));
                unroll!(t in 0..T => {
                    let x = S::splat_i(*x.add(t * PAIRS + pair));
                    for p in 0..P {
                        sums[p][t] = S::dot_bf16(sums[p][t], row[p], x);
                    }
                });
            }
            x = x.add(at.width * PAIRS);
            for w in &mut w {
                *w = w.add(LINE * PAIRS);
            }
            next = next.wrapping_add(LINE * PAIRS);
        }
        job.finish::<S, P, T>(at.token, at.panel, &sums, true);
        T
    }
}
