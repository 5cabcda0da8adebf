//! Element by element: add, scale, softcap, and conversion between f32 and the half formats. Owns plain loops (the
//! compiler vectorises them inside the wrapper) and the vector loops that need more than arithmetic.

use half::{bf16, f16};

use crate::math::tanh;
use crate::simd::{LANES, Simd};

/// out += x.
#[inline(always)]
pub(crate) fn add(out: &mut [f32], x: &[f32]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out += *x;
    }
}

/// out *= factor.
#[inline(always)]
pub(crate) fn scale(out: &mut [f32], factor: f32) {
    for out in out {
        *out *= factor;
    }
}

/// cap · tanh(x / cap) on one vector.
///
/// # Safety
/// The CPU has `S`'s instruction set.
#[inline(always)]
pub(crate) unsafe fn softcap_vector<S: Simd>(x: S::F, cap: f32) -> S::F {
    // SAFETY: the caller's promise.
    unsafe { S::mul(S::splat(cap), tanh::<S>(S::mul(x, S::splat(1.0 / cap)))) }
}

/// x = cap · tanh(x / cap).
///
/// # Safety
/// The CPU has `S`'s instruction set.
#[inline(always)]
pub(crate) unsafe fn softcap<S: Simd>(x: &mut [f32], cap: f32) {
    let mut chunks = x.chunks_exact_mut(LANES);
    // SAFETY: every chunk holds 16 elements, the remainder its own length.
    unsafe {
        for chunk in &mut chunks {
            S::store(chunk.as_mut_ptr(), softcap_vector::<S>(S::load(chunk.as_ptr()), cap));
        }
        let rest = chunks.into_remainder();
        let v = S::load_n(rest.as_ptr(), rest.len(), 0.0);
        S::store_n(rest.as_mut_ptr(), softcap_vector::<S>(v, cap), rest.len());
    }
}

macro_rules! conversions {
    ($to:ident, $from:ident, $half:ident, $load:ident, $store:ident) => {
        /// f32 to half precision, to nearest even.
        ///
        /// # Safety
        /// The CPU has `S`'s instruction set; the slices have one length.
        #[inline(always)]
        pub(crate) unsafe fn $to<S: Simd>(x: &[f32], out: &mut [$half]) {
            let whole = x.len() / LANES * LANES;
            // SAFETY: i + 16 ≤ whole ≤ the length; the half types are transparent over u16.
            unsafe {
                let mut i = 0;
                while i < whole {
                    S::$store(out.as_mut_ptr().add(i).cast(), S::load(x.as_ptr().add(i)));
                    i += LANES;
                }
            }
            for i in whole..x.len() {
                out[i] = $half::from_f32(x[i]);
            }
        }

        /// Half precision to f32, exact.
        ///
        /// # Safety
        /// The CPU has `S`'s instruction set; the slices have one length.
        #[inline(always)]
        pub(crate) unsafe fn $from<S: Simd>(x: &[$half], out: &mut [f32]) {
            let whole = x.len() / LANES * LANES;
            // SAFETY: i + 16 ≤ whole ≤ the length; the half types are transparent over u16.
            unsafe {
                let mut i = 0;
                while i < whole {
                    S::store(out.as_mut_ptr().add(i), S::$load(x.as_ptr().add(i).cast()));
                    i += LANES;
                }
            }
            for i in whole..x.len() {
                out[i] = x[i].to_f32();
            }
        }
    };
}
conversions!(f32_to_f16, f16_to_f32, f16, load_f16, store_f16);
conversions!(f32_to_bf16, bf16_to_f32, bf16, load_bf16, store_bf16);
