//! exp, tanh, erfc and sigmoid on vectors. Owns the polynomials; each is within a few units in the last place of the
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

/// 2^x for x ≤ 0, as softmax asks: within 3·10⁻⁷ of the value, and 0 where that leaves the normal range. The polynomial
/// has the least greatest relative error on ±½ (Remez' exchange), 7.5·10⁻⁸ before rounding.
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

/// erfc x = 1 − erf x, good to a few units in the last place also where it is nearly 0. Up to 1 by the polynomial of
/// erf, above as e^(−x²) / x times a polynomial of 1 / x² (S. Moshier's Cephes, `ndtrf.c`, coefficients only).
///
/// # Safety
/// The CPU has `S`'s instruction set.
#[inline(always)]
pub(crate) unsafe fn erfc<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller's promise.
    unsafe {
        let polynomial = |coefficients: &[f32], z: S::F| {
            let mut y = S::splat(coefficients[0]);
            for &c in &coefficients[1..] {
                y = S::fma(y, z, S::splat(c));
            }
            y
        };
        let one = S::splat(1.0);
        let small = S::sub(one, S::mul(x, polynomial(&ERF, S::mul(x, x))));
        // Past 10 nothing is left of it; the clamp keeps ∞ out of the product.
        let a = S::min(S::splat(10.0), S::max(one, S::abs(x)));
        let q = S::div(one, a);
        let z = S::mul(q, q);
        let y = S::select_lt(a, S::splat(2.0), polynomial(&ERFC_TO_2, z), polynomial(&ERFC_FROM_2, z));
        let squared = S::mul(a, a);
        let tail = S::mul(S::mul(exp::<S>(S::sub(S::splat(0.0), squared)), q), y);
        // 2 − tail below 0.
        let large = S::select_lt(x, S::splat(0.0), S::sub(S::splat(2.0), tail), tail);
        S::select_lt(S::abs(x), one, small, large)
    }
}

/// erf x / x by x², up to 1.
const ERF: [f32; 7] = [
    7.853_861_4e-5,
    -8.010_193_6e-4,
    5.188_327_7e-3,
    -2.685_381_2e-2,
    1.128_358_5e-1,
    -3.761_262_6e-1,
    std::f32::consts::FRAC_2_SQRT_PI,
];
/// x·e^(x²)·erfc x by 1 / x², from 1 to 2.
const ERFC_TO_2: [f32; 9] = [
    2.326_82e-2,
    -1.387_039_4e-1,
    3.687_424_7e-1,
    -5.824_733e-1,
    6.210_004_6e-1,
    -4.944_515_3e-1,
    3.404_879_9e-1,
    -2.741_127e-1,
    5.638_259_4e-1,
];
/// The same from 2 on.
const ERFC_FROM_2: [f32; 8] = [
    -1.047_766_4e1,
    1.297_72e1,
    -7.495_517_7,
    2.921_019,
    -1.015_265_3,
    4.218_463_3e-1,
    -2.820_767_5e-1,
    5.641_895e-1,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::LANES;
    use crate::simd::portable::Portable;

    /// `exp2_nonpositive` of each lane.
    ///
    /// # Safety
    /// The CPU has `S`'s instruction set.
    #[inline(always)]
    unsafe fn exp2_lanes<S: Simd>(x: [f32; LANES]) -> [f32; LANES] {
        let mut y = [0.0; LANES];
        // SAFETY: the caller's promise; both arrays hold a vector.
        unsafe { S::store(y.as_mut_ptr(), exp2_nonpositive::<S>(S::load(x.as_ptr()))) };
        y
    }

    /// With the instructions enabled: without that, vectors would pass through memory and calls.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn exp2_avx512(x: [f32; LANES]) -> [f32; LANES] {
        // SAFETY: the caller has the instructions.
        unsafe { exp2_lanes::<crate::simd::avx512::Avx512<false, false>>(x) }
    }

    fn check(exp2: unsafe fn([f32; LANES]) -> [f32; LANES]) {
        for i in 0..130_000 {
            let x = -(i as f32) / 1000.0;
            // SAFETY: the callers of `check` have asked for the instructions.
            let y = unsafe { exp2([x; LANES]) }[i % LANES];
            let want = f64::from(x).exp2();
            if x < -126.0 {
                assert_eq!(y, 0.0, "2^{x}");
            } else {
                assert!((f64::from(y) - want).abs() <= 3e-7 * want, "2^{x} = {y}, not {want}");
            }
        }
        // SAFETY: as above.
        let y = unsafe { exp2([f32::NEG_INFINITY; LANES]) };
        assert_eq!(y, [0.0; LANES]);
        // SAFETY: as above.
        assert!(unsafe { exp2([f32::NAN; LANES]) }[0].is_nan());
    }

    #[test]
    fn exp2_is_within_its_bound_and_zero_where_it_would_be_subnormal() {
        check(exp2_lanes::<Portable>);
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
        {
            check(exp2_avx512);
        }
    }
}
