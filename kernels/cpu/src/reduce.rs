//! Reductions of one row: argmax, logsumexp, softmax. Owns their conventions: argmax takes the lowest index among
//! equals and says when there is none; the exponentials are relative to the row's largest finite-or-infinite value.

use crate::math::exp;
use crate::simd::{LANES, Simd};

/// Largest element, NaN passed over; −∞ for an empty row.
#[inline(always)]
unsafe fn max<S: Simd>(x: &[f32]) -> f32 {
    // SAFETY: reads stay inside `x`; the caller has the instruction set.
    unsafe {
        let mut best = S::splat(f32::NEG_INFINITY);
        let mut chunks = x.chunks_exact(LANES);
        for chunk in &mut chunks {
            best = S::max(S::load(chunk.as_ptr()), best);
        }
        let rest = chunks.remainder();
        best = S::max(S::load_n(rest.as_ptr(), rest.len(), f32::NEG_INFINITY), best);
        S::hmax(best)
    }
}

/// The largest element of a row, or why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Largest {
    /// Its index: the lowest among equals.
    At(usize),
    /// An element is NaN or +∞.
    NotFinite,
    /// No element is above −∞, or there is none.
    Nothing,
}

/// Largest element; +∞ where one is NaN, −∞ for an empty row.
#[inline(always)]
unsafe fn max_or_infinity<S: Simd>(x: &[f32]) -> f32 {
    // SAFETY: reads stay inside `x`; the caller has the instruction set.
    unsafe {
        let infinity = S::splat(f32::INFINITY);
        let mut best = S::splat(f32::NEG_INFINITY);
        let mut chunks = x.chunks_exact(LANES);
        for chunk in &mut chunks {
            // The minimum with +∞ is the element, and +∞ for a NaN.
            best = S::max(S::min(S::load(chunk.as_ptr()), infinity), best);
        }
        let rest = chunks.remainder();
        let last = S::load_n(rest.as_ptr(), rest.len(), f32::NEG_INFINITY);
        S::hmax(S::max(S::min(last, infinity), best))
    }
}

/// Index of the largest element: the lowest among equals.
///
/// # Safety
/// The CPU has `S`'s instruction set.
#[inline(always)]
pub(crate) unsafe fn argmax<S: Simd>(x: &[f32]) -> Largest {
    // SAFETY: the caller's promise.
    let best = unsafe { max_or_infinity::<S>(x) };
    if best == f32::INFINITY {
        return Largest::NotFinite;
    }
    if best == f32::NEG_INFINITY {
        return Largest::Nothing;
    }
    // The second pass stops at the answer; comparing there keeps indices out of the first.
    for (i, &x) in x.iter().enumerate() {
        if x == best {
            return Largest::At(i);
        }
    }
    Largest::Nothing
}

/// x = e^(x − max), and their sum. `max` must be finite.
#[inline(always)]
unsafe fn exp_in_place<S: Simd>(x: &mut [f32], max: f32) -> f32 {
    // SAFETY: every chunk holds 16 elements, the remainder its own length.
    unsafe {
        let shift = S::splat(max);
        let mut sums = S::splat(0.0);
        let mut chunks = x.chunks_exact_mut(LANES);
        for chunk in &mut chunks {
            let e = exp::<S>(S::sub(S::load(chunk.as_ptr()), shift));
            S::store(chunk.as_mut_ptr(), e);
            sums = S::add(sums, e);
        }
        let rest = chunks.into_remainder();
        let v = S::load_n(rest.as_ptr(), rest.len(), f32::NEG_INFINITY);
        let e = exp::<S>(S::sub(v, shift));
        S::store_n(rest.as_mut_ptr(), e, rest.len());
        S::sum(S::add(sums, e))
    }
}

/// ln Σ e^x; −∞ for an empty row or one of −∞, NaN if there is a NaN.
///
/// # Safety
/// The CPU has `S`'s instruction set.
#[inline(always)]
pub(crate) unsafe fn logsumexp<S: Simd>(x: &[f32]) -> f32 {
    // SAFETY: the caller's promise; reads stay inside `x`.
    unsafe {
        let max = max::<S>(x);
        if max.is_infinite() {
            for &x in x {
                if x.is_nan() {
                    return f32::NAN;
                }
            }
            return max;
        }
        let shift = S::splat(max);
        let mut sums = S::splat(0.0);
        // Partial sums of 4096 go to f64: over a large vocabulary f32 sums alone would lose digits.
        let mut total = 0f64;
        for (i, chunk) in x.chunks(LANES).enumerate() {
            let v = if chunk.len() == LANES {
                S::load(chunk.as_ptr())
            } else {
                S::load_n(chunk.as_ptr(), chunk.len(), f32::NEG_INFINITY)
            };
            sums = S::add(sums, exp::<S>(S::sub(v, shift)));
            if i % 256 == 255 {
                total += f64::from(S::sum(sums));
                sums = S::splat(0.0);
            }
        }
        total += f64::from(S::sum(sums));
        (f64::from(max) + total.ln()) as f32
    }
}

/// x = e^x / Σ e^x. A row of −∞ becomes NaN, as the formula says.
///
/// # Safety
/// The CPU has `S`'s instruction set.
#[inline(always)]
pub(crate) unsafe fn softmax<S: Simd>(x: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe {
        let max = max::<S>(x);
        let sum = exp_in_place::<S>(x, max);
        let scale = 1.0 / sum;
        for x in x {
            *x *= scale;
        }
    }
}
