//! exp, tanh, erf and sigmoid on vectors. Owns the polynomials; each is within a few units in the last place of the
//! true value over the whole f32 range, and NaN goes through.

// Coefficients stand as they were published.
#![allow(clippy::excessive_precision)]

use crate::simd::Simd;

/// e^x. Range reduction x = n·ln 2 + r with ln 2 in two parts, then the degree-6 polynomial of Cephes `expf`
/// (Moshier, 1992), then 2^n, so that results below the normal range come out right.
///
/// # Safety
/// The CPU has `S`'s instruction set.
#[inline(always)]
pub(crate) unsafe fn exp<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller's promise.
    unsafe {
        // Past these e^x is 0 or ∞ in f32. Operand order keeps NaN (see `Simd::min`).
        let x = S::min(S::splat(89.0), S::max(S::splat(-104.0), x));
        let n = S::round(S::mul(x, S::splat(std::f32::consts::LOG2_E)));
        let r = S::fma(n, S::splat(-0.693_359_375), x);
        let r = S::fma(n, S::splat(2.121_944_4e-4), r);
        let mut p = S::splat(1.987_569_2e-4);
        for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_6e-1, 0.5] {
            p = S::fma(p, r, S::splat(c));
        }
        let p = S::fma(p, S::mul(r, r), S::add(r, S::splat(1.0)));
        S::scale_wide(p, n)
    }
}

/// 2^x for x ≤ 0, as softmax asks: within 3·10⁻⁷ of the value, and 0 where that leaves the normal range. The polynomial has the least greatest relative
/// error on ±½ (Remez' exchange), 7.5·10⁻⁸ before rounding.
///
/// # Safety
/// The CPU has `S`'s instruction set.
#[inline(always)]
pub(crate) unsafe fn exp2_nonpositive<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller's promise.
    unsafe {
        let n = S::round(x);
        let r = S::sub(x, n);
        let mut p = S::splat(1.327_647_199e-3);
        for c in [
            9.675_541_334e-3,
            5.550_713_273e-2,
            2.402_211_972e-1,
            6.931_469_671e-1,
            1.000_000_072,
        ] {
            p = S::fma(p, r, S::splat(c));
        }
        S::scale_pow2(p, n, x)
    }
}

/// 1 / (1 + e^−x).
///
/// # Safety
/// The CPU has `S`'s instruction set.
#[inline(always)]
pub(crate) unsafe fn sigmoid<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller's promise.
    unsafe {
        let one = S::splat(1.0);
        S::div(one, S::add(one, exp::<S>(S::sub(S::splat(0.0), x))))
    }
}

/// tanh x. Near 0 the odd polynomial of Cephes `tanhf`, elsewhere 1 − 2 / (e^2|x| + 1).
///
/// # Safety
/// The CPU has `S`'s instruction set.
#[inline(always)]
pub(crate) unsafe fn tanh<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller's promise.
    unsafe {
        let a = S::abs(x);
        let z = S::mul(x, x);
        let mut p = S::splat(-5.704_988_7e-3);
        for c in [2.063_908_9e-2, -5.373_971_5e-2, 1.333_144_2e-1, -3.333_328_2e-1] {
            p = S::fma(p, z, S::splat(c));
        }
        let small = S::fma(S::mul(p, z), x, x);
        let one = S::splat(1.0);
        let e = exp::<S>(S::add(a, a));
        let large = S::copysign(S::sub(one, S::div(S::splat(2.0), S::add(e, one))), x);
        S::select_lt(a, S::splat(0.625), small, large)
    }
}

/// erf x. Two minimax polynomials split near 0.93 (N. Juffa's `erff`, published on Stack Overflow 35148198,
/// coefficients only; about 1 unit in the last place).
///
/// # Safety
/// The CPU has `S`'s instruction set.
#[inline(always)]
pub(crate) unsafe fn erf<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller's promise.
    unsafe {
        let a = S::abs(x);
        let z = S::mul(x, x);
        let mut p = S::splat(-5.967_616e-4);
        for c in [
            4.991_194e-3,
            -2.676_813_5e-2,
            1.128_199_25e-1,
            -3.761_253_4e-1,
            1.283_791_66e-1,
        ] {
            p = S::fma(p, z, S::splat(c));
        }
        let small = S::fma(p, x, x);

        // Past 10 the result is 1; the clamp keeps ∞ − ∞ out of the polynomial.
        let t = S::min(S::splat(10.0), a);
        let mut q = S::splat(-1.728_534_7e-5);
        for c in [
            3.831_972_6e-4,
            -3.883_964_4e-3,
            2.425_462_2e-2,
            -1.067_778_8e-1,
            -6.348_468_7e-1,
            -1.287_175_1e-1,
        ] {
            q = S::fma(q, t, S::splat(c));
        }
        let q = S::fma(q, t, S::sub(S::splat(0.0), t));
        let large = S::copysign(S::sub(S::splat(1.0), exp::<S>(q)), x);
        S::select_lt(a, S::splat(0.927_734_4), small, large)
    }
}
