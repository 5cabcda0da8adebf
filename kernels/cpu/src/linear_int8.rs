//! The quantised product: activations in int8 per 32 (`act`), integer dot products, one f32 multiply-add a block of
//! 32. Owns the block step; a weight's zero point is subtracted in integers, so nothing cancels in f32.

use crate::act::INT8_WORDS;
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
    for panel in job.panels.clone() {
        for i in 0..job.num_tiles() {
            let (t0, width, act) = job.tile(i);
            // SAFETY: the caller's promise.
            unsafe {
                if S::TILES {
                    match width {
                        12 => tile::<S, W, 12>(job, panel, t0, act, 12),
                        8 => tile::<S, W, 8>(job, panel, t0, act, 8),
                        4 => tile::<S, W, 4>(job, panel, t0, act, 4),
                        2 => tile::<S, W, 2>(job, panel, t0, act, 2),
                        _ => tile::<S, W, 1>(job, panel, t0, act, 1),
                    }
                } else {
                    for t in 0..width {
                        tile::<S, W, 1>(job, panel, t0 + t, act.add(4 * t), width);
                    }
                }
            }
        }
    }
}

/// T tokens × one panel. A token's words lie `stride` apart.
#[inline(always)]
unsafe fn tile<S: Simd, W: QuantFormat, const T: usize>(
    job: &Linear<'_>,
    panel: usize,
    t0: usize,
    act: *const u8,
    stride: usize,
) {
    // SAFETY: every block of the panel and of the tile is read once; the caller's promise.
    unsafe {
        let weights = job.panel(panel);
        let mut act = act.cast::<i32>();
        let mut sums = [[S::splat(0.0); T]; 1];
        for b in 0..padded_k(job.k) / BLOCK {
            let mut quads = [S::splat_i(0); 8];
            unroll!(v in 0..4 => { [quads[2 * v], quads[2 * v + 1]] = W::quads::<S>(weights, b, v); });
            let scales = W::scales::<S>(weights, b);
            unroll!(t in 0..T => {
                sums[0][t] = block::<S, W>(&quads, &scales, act.add(t), stride, sums[0][t]);
            });
            act = act.add(INT8_WORDS * stride);
        }
        job.finish::<S, 1, T>(t0, panel, &sums, true);
    }
}

/// sum + one block of one token, whose words begin at `x`.
#[inline(always)]
unsafe fn block<S: Simd, W: QuantFormat>(
    quads: &[S::I; 8],
    scales: &Scales<S>,
    x: *const i32,
    stride: usize,
    sum: S::F,
) -> S::F {
    // SAFETY: the caller's promise.
    unsafe {
        let d = S::splat(f32::from_bits(*x.add(8 * stride) as u32));
        if W::SPLIT {
            let mut low = zero_point::<S, W>(*x.add(11 * stride));
            unroll!(g in 0..4 => { low = S::dot4::<false>(low, quads[g], S::splat_i(*x.add(g * stride))); });
            let mut high = zero_point::<S, W>(*x.add(12 * stride));
            unroll!(g in 0..4 => { high = S::dot4::<false>(high, quads[4 + g], S::splat_i(*x.add((4 + g) * stride))); });
            let sum = S::fma(S::i32_to_f32(low), S::mul(scales.s[0], d), sum);
            return S::fma(S::i32_to_f32(high), S::mul(scales.s[1], d), sum);
        }
        let mut dot = zero_point::<S, W>(*x.add(10 * stride));
        unroll!(g in 0..8 => {
            let x = S::splat_i(*x.add(g * stride));
            dot = if W::WIDE { S::dot4::<true>(dot, quads[g], x) } else { S::dot4::<false>(dot, quads[g], x) };
        });
        let sum = S::fma(S::i32_to_f32(dot), S::mul(scales.s[0], d), sum);
        if W::ZERO_LOG2.is_some() {
            return sum;
        }
        S::fma(scales.m[0], S::splat(f32::from_bits(*x.add(9 * stride) as u32)), sum)
    }
}

/// What a block's integer sum starts from: −zero · Σq, or 0 for formats with an offset of their own.
#[inline(always)]
unsafe fn zero_point<S: Simd, W: QuantFormat>(negative_sum: i32) -> S::I {
    // SAFETY: the caller has the instruction set.
    unsafe {
        let v = S::splat_i(negative_sum);
        match W::ZERO_LOG2 {
            None => S::splat_i(0),
            Some(3) => S::shl::<3>(v),
            Some(4) => S::shl::<4>(v),
            Some(5) => S::shl::<5>(v),
            Some(_) => S::shl::<7>(v),
        }
    }
}
