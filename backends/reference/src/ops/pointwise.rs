//! Elementwise ops, and the activation functions that others use too.

use halyard_platform_api::ops::GeluKind;
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

pub(super) fn gelu(kind: GeluKind, x: f32) -> f32 {
    match kind {
        GeluKind::Tanh => {
            let root = (2.0 / std::f32::consts::PI).sqrt();
            0.5 * x * (1.0 + (root * (x + 0.044715 * x * x * x)).tanh())
        }
        GeluKind::Erf => 0.5 * x * (1.0 + erf(f64::from(x) / std::f64::consts::SQRT_2) as f32),
    }
}

/// The error function. Std has none: the Maclaurin series below 3 and the continued fraction of erfc above (Abramowitz and
/// Stegun 1964, 7.1.6 and 7.1.14), in f64, where both converge to more than f32's precision.
pub(super) fn erf(x: f64) -> f64 {
    let magnitude = x.abs();
    let factor = (-magnitude * magnitude).exp() / std::f64::consts::PI.sqrt();
    let value = if magnitude < 3.0 {
        // 2/√π·e^(−x²)·Σ 2ⁿx^(2n+1)/(1·3·…·(2n+1))
        let mut term = magnitude;
        let mut sum = term;
        for n in 1..100 {
            term *= 2.0 * magnitude * magnitude / f64::from(2 * n + 1);
            sum += term;
        }
        2.0 * factor * sum
    } else {
        // √π·e^(x²)·erfc(x) = 1/(x + (1/2)/(x + 1/(x + (3/2)/(x + …))))
        let fraction = (1..60)
            .rev()
            .fold(magnitude, |tail, n| magnitude + f64::from(n) / 2.0 / tail);
        1.0 - factor / fraction
    };
    value.copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_matches_its_table() {
        // From C's erf (glibc 2.36); Abramowitz and Stegun 1964, table 7.1, has the first ones.
        let table = [
            (0.0, 0.0),
            (0.5, 0.5204998778),
            (1.0, 0.8427007929),
            (2.0, 0.9953222650),
            (2.99, 0.9999764743),
            (3.01, 0.9999792610),
            (4.0, 0.9999999846),
        ];
        for (x, expected) in table {
            assert!((erf(x) - expected).abs() < 2e-9, "erf({x}) = {}", erf(x));
            assert_eq!(erf(-x), -erf(x));
        }
    }

    #[test]
    fn silu_and_gelu_at_known_points() {
        assert!((silu(1.0) - 0.731_058_6).abs() < 1e-6);
        assert!((gelu(GeluKind::Erf, 1.0) - 0.841_344_7).abs() < 1e-6);
        assert!((gelu(GeluKind::Tanh, 1.0) - 0.841_192).abs() < 1e-6);
        assert_eq!(silu(-200.0), 0.0);
    }
}
