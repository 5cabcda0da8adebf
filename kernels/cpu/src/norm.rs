//! Normalisation of one row. Owns rms_norm and layer_norm; sums are in f32, 16 partial sums in a fixed order.

use crate::simd::{LANES, Simd};

/// Σ f(x) over a row with f = (x − shift)² or x.
#[inline(always)]
unsafe fn sum_row<S: Simd>(x: &[f32], shift: f32, square: bool) -> f32 {
    // SAFETY: reads stay inside `x`; the caller has the instruction set.
    unsafe {
        let mut sums = S::splat(0.0);
        let shift_v = S::splat(shift);
        let mut i = 0;
        while i < x.len() {
            let rest = x.len() - i;
            // Missing lanes read as `shift`, which adds nothing to the squares; a plain sum has shift 0.
            let v = if rest >= LANES {
                S::load(x.as_ptr().add(i))
            } else {
                S::load_n(x.as_ptr().add(i), rest, shift)
            };
            if square {
                let d = S::sub(v, shift_v);
                sums = S::fma(d, d, sums);
            } else {
                sums = S::add(sums, v);
            }
            i += LANES;
        }
        S::sum(sums)
    }
}

/// out = x / sqrt(mean(x²) + eps) · (weight + offset).
///
/// # Safety
/// The CPU has `S`'s instruction set; all slices have one length.
#[inline(always)]
pub(crate) unsafe fn rms_norm<S: Simd>(x: &[f32], weight: &[f32], offset: f32, eps: f32, out: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe {
        let mean = sum_row::<S>(x, 0.0, true) / x.len() as f32;
        let scale = 1.0 / (mean + eps).sqrt();
        for i in 0..out.len() {
            out[i] = x[i] * scale * (weight[i] + offset);
        }
    }
}

/// out = (x − mean) / sqrt(var + eps) · weight + bias, with the population variance.
///
/// # Safety
/// The CPU has `S`'s instruction set; all slices have one length.
#[inline(always)]
pub(crate) unsafe fn layer_norm<S: Simd>(x: &[f32], weight: &[f32], bias: Option<&[f32]>, eps: f32, out: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe {
        let n = x.len() as f32;
        let mean = sum_row::<S>(x, 0.0, false) / n;
        let variance = sum_row::<S>(x, mean, true) / n;
        let scale = 1.0 / (variance + eps).sqrt();
        for i in 0..out.len() {
            out[i] = (x[i] - mean) * scale * weight[i];
        }
        if let Some(bias) = bias {
            for i in 0..out.len() {
                out[i] += bias[i];
            }
        }
    }
}
