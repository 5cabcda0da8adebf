//! Activation functions over a slice: y = f(x) or y = f(gate) · up. Owns the formulas; exp, tanh and erf come from
//! `math`.

use std::f32::consts::FRAC_1_SQRT_2;

use crate::math::{erfc, exp, sigmoid, tanh};
use crate::simd::{LANES, Simd};

/// An activation function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Activation {
    /// x · sigmoid(x).
    Silu,
    /// x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))).
    GeluTanh,
    /// x/2 · (1 + erf(x / √2)).
    GeluErf,
    /// max(x, 0).
    Relu,
    /// 1 / (1 + e^−x).
    Sigmoid,
    /// e^x.
    Exp,
    /// tanh x.
    Tanh,
}

#[inline(always)]
unsafe fn apply<S: Simd>(f: Activation, x: S::F) -> S::F {
    // SAFETY: the caller has the instruction set.
    unsafe {
        let half = S::mul(x, S::splat(0.5));
        match f {
            Activation::Silu => S::mul(x, sigmoid::<S>(x)),
            Activation::GeluTanh => {
                let cube = S::mul(S::mul(x, x), x);
                // √(2/π)
                let inner = S::mul(S::fma(cube, S::splat(0.044_715), x), S::splat(0.797_884_6));
                // (1 + tanh u) / 2 = 1 / (1 + e^(−2u)): no difference of near numbers.
                S::mul(x, sigmoid::<S>(S::add(inner, inner)))
            }
            // 1 + erf u = erfc(−u), for the same reason.
            Activation::GeluErf => S::mul(half, erfc::<S>(S::mul(x, S::splat(-FRAC_1_SQRT_2)))),
            // In this order NaN stays NaN (see `Simd::max`).
            Activation::Relu => S::max(S::splat(0.0), x),
            Activation::Sigmoid => sigmoid::<S>(x),
            Activation::Exp => exp::<S>(x),
            Activation::Tanh => tanh::<S>(x),
        }
    }
}

/// y = f(x), or f(x) · up.
///
/// # Safety
/// The CPU has `S`'s instruction set; `x`, `up` and `out` hold `n` elements. `out` may be `x` or `up`.
#[inline(always)]
unsafe fn map<S: Simd>(f: Activation, x: *const f32, up: Option<*const f32>, out: *mut f32, n: usize) {
    let mut i = 0;
    while i < n {
        let rest = n - i;
        let whole = rest >= LANES;
        // SAFETY: lanes i .. i + min(rest, 16) lie inside the slices.
        unsafe {
            let mut y = apply::<S>(
                f,
                if whole {
                    S::load(x.add(i))
                } else {
                    S::load_n(x.add(i), rest, 0.0)
                },
            );
            if let Some(up) = up {
                y = S::mul(
                    y,
                    if whole {
                        S::load(up.add(i))
                    } else {
                        S::load_n(up.add(i), rest, 0.0)
                    },
                );
            }
            if whole {
                S::store(out.add(i), y);
            } else {
                S::store_n(out.add(i), y, rest);
            }
        }
        i += LANES;
    }
}

/// Dispatches once a slice, not once a vector.
///
/// # Safety
/// As for `map`.
#[inline(always)]
pub(crate) unsafe fn activate<S: Simd>(f: Activation, x: *const f32, up: Option<*const f32>, out: *mut f32, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match f {
            Activation::Silu => map::<S>(Activation::Silu, x, up, out, n),
            Activation::GeluTanh => map::<S>(Activation::GeluTanh, x, up, out, n),
            Activation::GeluErf => map::<S>(Activation::GeluErf, x, up, out, n),
            Activation::Relu => map::<S>(Activation::Relu, x, up, out, n),
            Activation::Sigmoid => map::<S>(Activation::Sigmoid, x, up, out, n),
            Activation::Exp => map::<S>(Activation::Exp, x, up, out, n),
            Activation::Tanh => map::<S>(Activation::Tanh, x, up, out, n),
        }
    }
}
