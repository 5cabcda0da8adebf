//! Elementwise ops, and the activation functions that others use too.

use halyard_platform_api::ops::{GeluKind, SiluMul};
use halyard_platform_api::{DType, Result};

use crate::operand::Args;

/// out = f(x).
pub(super) fn unary(args: &Args<'_>, width: u32, dtype: DType, f: impl Fn(f32) -> f32) -> Result<()> {
    let mut x = args.typed(0, dtype, &[width as usize])?.floats();
    let out = args.typed(1, dtype, &[width as usize])?;
    args.same_elements(0, 1)?;
    x.iter_mut().for_each(|value| *value = f(*value));
    out.store_floats(&x);
    Ok(())
}

/// out = f(a, b).
pub(super) fn binary(args: &Args<'_>, width: u32, dtype: DType, f: impl Fn(f32, f32) -> f32) -> Result<()> {
    let mut a = args.typed(0, dtype, &[width as usize])?.floats();
    let b = args.typed(1, dtype, &[width as usize])?.floats();
    let out = args.typed(2, dtype, &[width as usize])?;
    args.same_elements(0, 1)?;
    args.same_elements(0, 2)?;
    a.iter_mut().zip(b).for_each(|(a, b)| *a = f(*a, b));
    out.store_floats(&a);
    Ok(())
}

pub(super) fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

pub(super) fn silu_mul(op: &SiluMul, gate: f32, up: f32) -> f32 {
    let (gate, up) = match op.limit {
        0.0 => (gate, up),
        limit => (gate.min(limit), up.clamp(-limit, limit)),
    };
    let alpha = if op.alpha == 0.0 { 1.0 } else { op.alpha };
    gate / (1.0 + (-alpha * gate).exp()) * (up + op.up_offset)
}

/// x times the share of a normal distribution below x, in f64: where the share is nearly 0, a sum 1 + erf or 1 + tanh
/// would keep nothing of it.
pub(super) fn gelu(kind: GeluKind, x: f32) -> f32 {
    let x = f64::from(x);
    let value = match kind {
        // (1 + tanh u) / 2 = 1 / (1 + e^(−2u))
        GeluKind::Tanh => {
            let root = (2.0 / std::f64::consts::PI).sqrt();
            x / (1.0 + (-2.0 * root * (x + 0.044715 * x * x * x)).exp())
        }
        // (1 + erf u) / 2 = erfc(−u) / 2
        GeluKind::Erf => 0.5 * x * erfc(-x / std::f64::consts::SQRT_2),
    };
    value as f32
}

/// 1 − the error function. Std has none: the Maclaurin series of erf up to 3 and the continued fraction of erfc above
/// (Abramowitz and Stegun 1964, 7.1.6 and 7.1.14), in f64, where both converge to more than f32's precision.
fn erfc(x: f64) -> f64 {
    let magnitude = x.abs();
    let factor = (-magnitude * magnitude).exp() / std::f64::consts::PI.sqrt();
    let value = if magnitude < 3.0 {
        // 1 − 2/√π·e^(−x²)·Σ 2ⁿx^(2n+1)/(1·3·…·(2n+1))
        let mut term = magnitude;
        let mut sum = term;
        for n in 1..100 {
            term *= 2.0 * magnitude * magnitude / f64::from(2 * n + 1);
            sum += term;
        }
        1.0 - 2.0 * factor * sum
    } else {
        // √π·e^(x²)·erfc(x) = 1/(x + (1/2)/(x + 1/(x + (3/2)/(x + …))))
        let fraction = (1..60)
            .rev()
            .fold(magnitude, |tail, n| magnitude + f64::from(n) / 2.0 / tail);
        factor / fraction
    };
    if x < 0.0 { 2.0 - value } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erfc_matches_its_table() {
        // From C's erfc (glibc 2.36).
        let table = [
            (0.0, 1.0),
            (0.5, 0.4795001221869535),
            (1.0, 0.15729920705028513),
            (2.0, 0.004677734981047265),
            (2.99, 2.3525603080640195e-05),
            (3.01, 2.073896363713263e-05),
            (4.0, 1.541725790028002e-08),
            (9.0, 4.13703174651381e-37),
        ];
        for (x, expected) in table {
            assert!((erfc(x) / expected - 1.0).abs() < 1e-10, "erfc({x}) = {:e}", erfc(x));
            assert!((erfc(-x) - (2.0 - expected)).abs() < 1e-15);
        }
    }

    #[test]
    fn silu_and_gelu_at_known_points() {
        assert!((silu(1.0) - 0.731_058_6).abs() < 1e-6);
        assert!((gelu(GeluKind::Erf, 1.0) - 0.841_344_7).abs() < 1e-6);
        assert!((gelu(GeluKind::Tanh, 1.0) - 0.841_192).abs() < 1e-6);
        assert_eq!(silu(-200.0), 0.0);
        // C's erfc and exp (glibc 2.36), in double precision.
        for (kind, x, expected) in [
            (GeluKind::Erf, -5.0, -1.433_257_859_595_973e-6),
            (GeluKind::Tanh, -5.0, -2.291_796_196_629_504_4e-7),
            (GeluKind::Erf, -6.0, -5.919_525_870_226_207e-9),
        ] {
            let found = f64::from(gelu(kind, x));
            assert!((found / expected - 1.0).abs() < 1e-7, "{kind:?} {x}: {found:e}");
        }
    }
}
