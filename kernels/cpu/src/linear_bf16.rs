//! The bf16 product: weights and activations in bf16, f32 sums by the hardware's dot product of pairs (by two f32
//! multiply-adds where there is none). Owns the tile loop; there is nothing to decode.

use crate::linear::Linear;
use crate::pack::{BLOCK, padded_k};
use crate::simd::{Simd, unroll};

/// Runs the job.
///
/// # Safety
/// The CPU has `S`'s instruction set; the job passed `Kernels::linear`'s checks.
#[inline(always)]
pub(crate) unsafe fn run<S: Simd>(job: &mut Linear<'_>) {
    for group in job.groups() {
        for i in 0..job.num_tiles() {
            let mut panel = group.start;
            while panel < group.end {
                let pair = S::LARGE_TILES && panel + 1 < group.end;
                // SAFETY: the caller's promise.
                unsafe { tile::<S>(job, panel, pair, i) };
                panel += if pair { 2 } else { 1 };
            }
        }
    }
}

/// One panel or a pair of them × tile `i` of the tokens.
#[inline(always)]
unsafe fn tile<S: Simd>(job: &Linear<'_>, panel: usize, pair: bool, i: usize) {
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
                match width - column {
                    12 => product::<S, 2, 12>(job, &at),
                    8 => product::<S, 2, 8>(job, &at),
                    4 => product::<S, 2, 4>(job, &at),
                    _ => product::<S, 2, 1>(job, &at),
                }
            } else if S::TILES && width - column >= 4 {
                product::<S, 1, 4>(job, &at)
            } else {
                product::<S, 1, 1>(job, &at)
            };
        }
    }
}

/// Pairs of elements of a block.
const PAIRS: usize = BLOCK / 2;

/// Where a register tile begins.
struct At {
    panel: usize,
    token: usize,
    act: *const i32,
    width: usize,
}

/// P panels × T columns in registers; gives T.
#[inline(always)]
unsafe fn product<S: Simd, const P: usize, const T: usize>(job: &Linear<'_>, at: &At) -> usize {
    // SAFETY: a panel holds k / 2 vectors of 64 bytes, the tile 16 pairs a token and block.
    unsafe {
        let mut w = [std::ptr::null(); P];
        for (p, w) in w.iter_mut().enumerate() {
            *w = job.panel(at.panel + p);
        }
        let mut x = at.act;
        let mut sums = [[S::splat(0.0); T]; P];
        for _ in 0..padded_k(job.k) / BLOCK {
            for pair in 0..PAIRS {
                let mut row = [S::splat_i(0); P];
                for p in 0..P {
                    row[p] = S::load_i(w[p].add(64 * pair));
                }
                unroll!(t in 0..T => {
                    let x = S::splat_i(*x.add(t * PAIRS + pair));
                    for p in 0..P {
                        sums[p][t] = S::dot_bf16(sums[p][t], row[p], x);
                    }
                });
            }
            x = x.add(at.width * PAIRS);
            for w in &mut w {
                *w = w.add(64 * PAIRS);
            }
        }
        job.finish::<S, P, T>(at.token, at.panel, &sums, true);
        T
    }
}
