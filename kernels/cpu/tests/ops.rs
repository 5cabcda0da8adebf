//! The small ops of every instruction set against f64, at odd lengths and extreme values.
#![allow(missing_docs)]

mod common;

use common::{Rng, all_kernels};
use half::{bf16, f16};
use halyard_kernels_cpu::{Activation, Largest, RopeStyle, e4m3_from_f32, e4m3_to_f32};
use halyard_platform_api::e4m3;

/// Distance in units in the last place of the true value.
fn ulps(got: f32, want: f64) -> f64 {
    let rounded = want as f32;
    if got == rounded {
        return 0.0;
    }
    let ulp = f64::from(f32::from_bits(rounded.abs().to_bits() + 1)) - f64::from(rounded.abs());
    (f64::from(got) - want).abs() / ulp
}

/// erf by its Maclaurin series in f64; good to 1e-12 for |x| ≤ 4.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

#[test]
fn exp_is_within_two_units_in_the_last_place_everywhere() {
    let x: Vec<f32> = (-105_000..90_000).map(|i| i as f32 / 1000.0).collect();
    for kernels in all_kernels() {
        let mut out = vec![0f32; x.len()];
        kernels.activate(Activation::Exp, &x, &mut out);
        for (&x, &y) in x.iter().zip(&out) {
            let want = f64::from(x).exp();
            if want > f64::from(f32::MAX) {
                assert_eq!(y, f32::INFINITY, "{} e^{x}", kernels.isa());
            } else {
                assert!(ulps(y, want) <= 2.0, "{} e^{x} = {y}, not {want}", kernels.isa());
            }
        }
        let special = [f32::NEG_INFINITY, f32::INFINITY, f32::NAN, 0.0, -1e30, 1e30];
        let mut out = [1f32; 6];
        kernels.activate(Activation::Exp, &special, &mut out);
        assert_eq!(out[..2], [0.0, f32::INFINITY], "{}", kernels.isa());
        assert!(out[2].is_nan(), "{}", kernels.isa());
        assert_eq!(out[3..], [1.0, 0.0, f32::INFINITY], "{}", kernels.isa());
    }
}

type Formula<'a> = (Activation, &'a dyn Fn(f64) -> f64, f64);

#[test]
fn activations_follow_their_formulas() {
    let x: Vec<f32> = (-1200..1203)
        .map(|i| i as f32 / 100.0)
        .chain([1e-20, -1e-20, 80.0, -80.0])
        .collect();
    let root = (2.0 / std::f64::consts::PI).sqrt();
    let cases: [Formula<'_>; 6] = [
        (Activation::Silu, &|x| x / (1.0 + (-x).exp()), 4.0),
        (Activation::Sigmoid, &|x| 1.0 / (1.0 + (-x).exp()), 4.0),
        (Activation::Tanh, &|x| x.tanh(), 3.0),
        (Activation::Relu, &|x| x.max(0.0), 0.0),
        (
            Activation::GeluTanh,
            &|x| x / 2.0 * (1.0 + (root * (x + 0.044715 * x * x * x)).tanh()),
            4.0,
        ),
        (
            Activation::GeluErf,
            &|x| {
                if x.abs() > 4.0 {
                    x.max(0.0)
                } else {
                    x / 2.0 * (1.0 + erf(x / 2f64.sqrt()))
                }
            },
            4.0,
        ),
    ];
    for kernels in all_kernels() {
        for (f, formula, allowed) in &cases {
            let mut out = vec![0f32; x.len()];
            kernels.activate(*f, &x, &mut out);
            for (&x, &y) in x.iter().zip(&out) {
                let want = formula(f64::from(x));
                // gelu multiplies x by 1 + tanh: next to −1 its error is that of the sum, relative to |x|.
                let mut slack = if matches!(f, Activation::GeluTanh | Activation::GeluErf) {
                    f64::from(x).abs() * 2.4e-7
                } else {
                    0.0
                };
                if *f == Activation::GeluErf && x.abs() > 4.0 {
                    slack += 3.2e-5 * f64::from(x.abs());
                }
                let error = (f64::from(y) - want).abs();
                assert!(
                    ulps(y, want) <= *allowed || error <= slack,
                    "{} {f:?}({x}) = {y}, not {want}",
                    kernels.isa()
                );
            }
            let mut nan = [0f32; 3];
            kernels.activate(*f, &[f32::NAN; 3], &mut nan);
            assert!(nan.iter().all(|y| y.is_nan()), "{} {f:?}(NaN)", kernels.isa());
        }
    }
}

#[test]
fn gated_activations_multiply_by_up() {
    let mut rng = Rng(1);
    for kernels in all_kernels() {
        for n in [1, 15, 16, 17, 100] {
            let (gate, up) = (rng.vec(n), rng.vec(n));
            for f in [Activation::Silu, Activation::GeluTanh, Activation::GeluErf] {
                let (mut plain, mut gated) = (vec![0f32; n], vec![0f32; n]);
                kernels.activate(f, &gate, &mut plain);
                kernels.activate_mul(f, &gate, &up, &mut gated);
                for i in 0..n {
                    assert_eq!(gated[i], plain[i] * up[i], "{} {f:?} {i} of {n}", kernels.isa());
                }
            }
        }
    }
}

#[test]
fn norms_agree_with_f64() {
    let mut rng = Rng(2);
    for kernels in all_kernels() {
        for n in [1, 5, 16, 31, 576, 1000] {
            let x: Vec<f32> = rng.vec(n).iter().map(|x| x * 3.0 + 100.0).collect();
            let (w, b) = (rng.vec(n), rng.vec(n));
            let len = n as f64;
            let (mut rms, mut layer) = (vec![0f32; n], vec![0f32; n]);
            kernels.rms_norm(&x, &w, 1.0, 1e-5, &mut rms);
            kernels.layer_norm(&x, &w, Some(&b), 1e-5, &mut layer);
            let square = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / len;
            let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / len;
            let variance = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / len;
            for i in 0..n {
                let (xi, wi) = (f64::from(x[i]), f64::from(w[i]));
                let want = xi / (square + 1e-5).sqrt() * (wi + 1.0);
                assert!((f64::from(rms[i]) - want).abs() < 3e-6, "{} rms {n}", kernels.isa());
                let want = (xi - mean) / (variance + 1e-5).sqrt() * wi + f64::from(b[i]);
                // x − mean near 100 keeps about 1e-5 of a unit variance.
                let bound = if n == 1 { 1e-1 } else { 1e-4 };
                assert!(
                    (f64::from(layer[i]) - want).abs() < bound,
                    "{} layer {n}: {} {want}",
                    kernels.isa(),
                    layer[i]
                );
            }
        }
    }
}

#[test]
fn rope_rotates_pairs_and_leaves_the_rest() {
    let mut rng = Rng(3);
    for kernels in all_kernels() {
        for (head, rotary) in [(64, 64), (80, 32), (6, 6), (128, 2)] {
            let half = rotary / 2;
            let angles: Vec<f64> = (0..half).map(|i| 7.0 * 0.9f64.powi(i as i32)).collect();
            let cos_sin: Vec<f32> = angles
                .iter()
                .map(|a| a.cos() as f32)
                .chain(angles.iter().map(|a| a.sin() as f32))
                .collect();
            let x = rng.vec(head);
            for style in [RopeStyle::Neox, RopeStyle::Interleaved] {
                let mut y = x.clone();
                kernels.rope(&mut y, &cos_sin, style);
                for (i, angle) in angles.iter().enumerate() {
                    let (a, b) = if style == RopeStyle::Neox {
                        (i, i + half)
                    } else {
                        (2 * i, 2 * i + 1)
                    };
                    let (p, q) = (f64::from(x[a]), f64::from(x[b]));
                    let (c, s) = (angle.cos(), angle.sin());
                    assert!(
                        (f64::from(y[a]) - (p * c - q * s)).abs() < 1e-6,
                        "{} {style:?} {i}",
                        kernels.isa()
                    );
                    assert!(
                        (f64::from(y[b]) - (q * c + p * s)).abs() < 1e-6,
                        "{} {style:?} {i}",
                        kernels.isa()
                    );
                }
                assert_eq!(y[rotary..], x[rotary..], "{} {style:?}", kernels.isa());
            }
        }
    }
}

#[test]
fn argmax_takes_the_lowest_of_equals() {
    for kernels in all_kernels() {
        let mut long = vec![-3f32; 1000];
        (long[977], long[500], long[501]) = (2.0, 2.0, f32::NEG_INFINITY);
        assert_eq!(kernels.argmax(&long), Largest::At(500), "{}", kernels.isa());
        for at in 0..40 {
            let mut x = vec![0f32; 40];
            x[at] = 1.0;
            assert_eq!(kernels.argmax(&x), Largest::At(at), "{}", kernels.isa());
        }
    }
}

#[test]
fn argmax_tells_rows_without_a_distribution() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    for kernels in all_kernels() {
        for (len, at) in [(1, 0), (16, 3), (40, 39), (100, 36), (1000, 977)] {
            for bad in [nan, -nan, f32::from_bits(0x7F80_0001), inf] {
                let mut x = vec![-3f32; len];
                x[at] = bad;
                // A larger element in the same lane of a later vector must not hide it.
                x[len - 1] = if at == len - 1 { bad } else { 5.0 };
                assert_eq!(
                    kernels.argmax(&x),
                    Largest::NotFinite,
                    "{} {bad} at {at}",
                    kernels.isa()
                );
            }
            let mut masked = vec![-inf; len];
            assert_eq!(kernels.argmax(&masked), Largest::Nothing, "{}", kernels.isa());
            masked[at] = f32::MIN;
            assert_eq!(kernels.argmax(&masked), Largest::At(at), "{}", kernels.isa());
            masked[at] = f32::MAX;
            assert_eq!(kernels.argmax(&masked), Largest::At(at), "{}", kernels.isa());
        }
        assert_eq!(kernels.argmax(&[]), Largest::Nothing, "{}", kernels.isa());
    }
}

#[test]
fn softmax_and_logsumexp_agree_with_f64() {
    let mut rng = Rng(4);
    let inf = f32::INFINITY;
    for kernels in all_kernels() {
        for n in [1, 7, 16, 33, 49152] {
            let x: Vec<f32> = rng.vec(n).iter().map(|x| x * 20.0 + 300.0).collect();
            let max = x.iter().fold(f32::MIN, |m, &x| m.max(x));
            let sum: f64 = x.iter().map(|&x| f64::from(x - max).exp()).sum();
            let want = f64::from(max) + sum.ln();
            assert!(
                (f64::from(kernels.logsumexp(&x)) - want).abs() < 5e-5,
                "{} {n}",
                kernels.isa()
            );
            let mut p = x.clone();
            kernels.softmax(&mut p);
            for (p, &x) in p.iter().zip(&x) {
                let want = f64::from(x - max).exp() / sum;
                assert!(
                    (f64::from(*p) - want).abs() <= want * 1e-5 + 1e-38,
                    "{} {n}",
                    kernels.isa()
                );
            }
        }
        assert_eq!(kernels.logsumexp(&[-inf; 3]), -inf);
        assert_eq!(kernels.logsumexp(&[]), -inf);
        assert_eq!(kernels.logsumexp(&[1.0, inf]), inf);
        assert!(kernels.logsumexp(&[1.0, f32::NAN]).is_nan() && kernels.logsumexp(&[inf, f32::NAN]).is_nan());
        for at in [0, 15, 16, 40, 99] {
            let mut x = vec![-2f32; 100];
            x[at] = f32::NAN;
            assert!(kernels.logsumexp(&x).is_nan(), "{} NaN at {at}", kernels.isa());
        }
        let mut masked = [0.0, -inf, 0.0];
        kernels.softmax(&mut masked);
        assert_eq!(masked, [0.5, 0.0, 0.5], "{}", kernels.isa());
    }
}

#[test]
fn element_ops_cover_every_element() {
    let mut rng = Rng(5);
    for kernels in all_kernels() {
        for n in [0, 1, 16, 50] {
            let (x, y) = (rng.vec(n), rng.vec(n));
            let (mut sum, mut scaled, mut capped) = (x.clone(), x.clone(), x.clone());
            kernels.add(&mut sum, &y);
            kernels.scale(&mut scaled, 0.3);
            capped.iter_mut().for_each(|x| *x *= 90.0);
            let before = capped.clone();
            kernels.softcap(&mut capped, 30.0);
            for i in 0..n {
                assert_eq!(sum[i], x[i] + y[i], "{}", kernels.isa());
                assert_eq!(scaled[i], x[i] * 0.3, "{}", kernels.isa());
                let want = 30.0 * (f64::from(before[i]) / 30.0).tanh();
                assert!((f64::from(capped[i]) - want).abs() < 1e-5, "{} softcap", kernels.isa());
            }
        }
    }
}

#[test]
fn half_conversions_round_to_nearest_even_for_every_value() {
    let bits: Vec<u16> = (0..=u16::MAX).collect();
    let halves: Vec<f16> = bits.iter().map(|&b| f16::from_bits(b)).collect();
    let brains: Vec<bf16> = bits.iter().map(|&b| bf16::from_bits(b)).collect();
    // Every half, and the points between neighbours.
    let mut inputs: Vec<f32> = Vec::new();
    for &b in &bits {
        for low in [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
            inputs.push(f32::from_bits(u32::from(b) << 16 | low));
        }
    }
    inputs.push(65519.99);
    for kernels in all_kernels() {
        let mut wide = vec![0f32; bits.len()];
        kernels.f16_to_f32(&halves, &mut wide);
        for (w, h) in wide.iter().zip(&halves) {
            assert!(
                w.to_bits() == h.to_f32().to_bits() || (w.is_nan() && h.is_nan()),
                "{} {h}",
                kernels.isa()
            );
        }
        kernels.bf16_to_f32(&brains, &mut wide);
        for (w, h) in wide.iter().zip(&brains) {
            assert!(
                w.to_bits() == h.to_f32().to_bits() || (w.is_nan() && h.is_nan()),
                "{} {h}",
                kernels.isa()
            );
        }
        let mut half = vec![f16::ZERO; inputs.len()];
        kernels.f32_to_f16(&inputs, &mut half);
        let mut brain = vec![bf16::ZERO; inputs.len()];
        kernels.f32_to_bf16(&inputs, &mut brain);
        for (i, &x) in inputs.iter().enumerate() {
            let (h, b) = (f16::from_f32(x), bf16::from_f32(x));
            assert!(
                half[i].to_bits() == h.to_bits() || (half[i].is_nan() && x.is_nan()),
                "{} {x:e}",
                kernels.isa()
            );
            assert!(
                brain[i].to_bits() == b.to_bits() || (brain[i].is_nan() && x.is_nan()),
                "{} {x:e}",
                kernels.isa()
            );
        }
    }
}

/// Σ x·row, added to what was there: every kind of end, and rows enough for blocks of several vectors.
#[test]
fn products_with_a_few_rows_are_added_in_both_layouts() {
    for kernels in all_kernels() {
        let mut rng = Rng(5);
        for (k, n) in [
            (1, 1),
            (4, 7),
            (16, 4),
            (17, 9),
            (48, 3),
            (579, 5),
            (16, 64),
            (8, 83),
            (21, 150),
        ] {
            let (rows, x, before) = (rng.vec(n * k), rng.vec(k), rng.vec(n));
            let mut by_rows = before.clone();
            kernels.add_products(&rows, &x, 0.75, &mut by_rows);
            let mut columns = vec![f32::NAN; n * k];
            kernels.transpose(&rows, k, &mut columns);
            let mut by_columns = before.clone();
            kernels.add_columns(&columns, &x, 0.75, &mut by_columns);
            for i in 0..n {
                let product: f64 = (0..k).map(|j| f64::from(rows[i * k + j]) * f64::from(x[j])).sum();
                let want = f64::from(before[i]) + 0.75 * product;
                for (layout, out) in [("rows", by_rows[i]), ("columns", by_columns[i])] {
                    let error = (f64::from(out) - want).abs();
                    assert!(
                        error <= 1e-6 * (1.0 + k as f64).sqrt() * 4.0,
                        "{} {k} x {n} by {layout}: {out} not {want}",
                        kernels.isa()
                    );
                }
                for j in 0..k {
                    assert_eq!(columns[j * n + i], rows[i * k + j], "{} {k} x {n}", kernels.isa());
                }
            }
        }
    }
}

/// An output does not depend on its neighbours: batches and threads cut rows differently.
#[test]
fn a_column_sum_is_the_same_in_every_cut() {
    for kernels in all_kernels() {
        let mut rng = Rng(6);
        let (k, n) = (16, 101);
        let (rows, x, before) = (rng.vec(n * k), rng.vec(k), rng.vec(n));
        let added = |first: usize, end: usize| {
            let mut columns = vec![0.0; (end - first) * k];
            kernels.transpose(&rows[first * k..end * k], k, &mut columns);
            let mut out = before[first..end].to_vec();
            kernels.add_columns(&columns, &x, 0.3, &mut out);
            out
        };
        let whole = added(0, n);
        for (first, end) in [(0, 1), (3, 19), (16, 80), (37, 101), (100, 101)] {
            assert_eq!(
                added(first, end),
                whole[first..end],
                "{}: {first}..{end}",
                kernels.isa()
            );
        }
    }
}

/// Kernels use nothing of the contract's crate, so that the conversion stands here too; its own tests stand there.
#[test]
fn e4m3_is_the_contracts() {
    for code in 0..=0xFF_u8 {
        let (here, there) = (e4m3_to_f32(code), e4m3::to_f32(code));
        assert!(
            here.to_bits() == there.to_bits() || here.is_nan() && there.is_nan(),
            "code {code:#x}"
        );
    }
    for upper in 0..=u16::MAX {
        let value = f32::from_bits(u32::from(upper) << 16);
        assert_eq!(e4m3_from_f32(value), e4m3::from_f32(value), "{value}");
    }
}
