//! Norms, `rope` and the elementwise ops, strided and in place.

use halyard_platform_api::ops::{
    Add, Gelu, GeluKind, GeluMul, LayerNorm, ReluSquared, RmsNorm, Rope, RopeStyle, Scale, SiluMul, Softcap,
};
use halyard_platform_api::{DType, OpSpec};

use super::FLOATS;
use crate::case::{Arg, Case};
use crate::random::Random;
use crate::tolerance::Class;

/// Rows, width, gap between rows.
const SHAPES: [(u32, u32, u32); 4] = [(1, 1, 0), (3, 37, 0), (5, 64, 7), (2, 1031, 1)];

/// The ops that have their cases here.
pub(super) const OPS: &[&str] = &[
    Add::NAME,
    Gelu::NAME,
    GeluMul::NAME,
    LayerNorm::NAME,
    ReluSquared::NAME,
    RmsNorm::NAME,
    Rope::NAME,
    Scale::NAME,
    SiluMul::NAME,
    Softcap::NAME,
];

pub(crate) fn cases(seed: u64) -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in FLOATS {
        for (rows, width, gap) in SHAPES {
            elementwise(seed, dtype, [rows, width, gap], &mut cases);
            norms(seed, dtype, [rows, width, gap], &mut cases);
        }
        head_norm(seed, dtype, &mut cases);
        if dtype != DType::F16 {
            gelu_tails(dtype, &mut cases);
        }
        rope(seed, dtype, &mut cases);
    }
    cases
}

/// Values from −6 to 6, where activations bend.
fn values(random: &mut Random, count: u32) -> Vec<f32> {
    random.units(count as usize).iter().map(|x| 6.0 * x).collect()
}

fn elementwise(seed: u64, dtype: DType, [rows, width, gap]: [u32; 3], cases: &mut Vec<Case>) {
    let name = format!("{rows} x {width}, gap {gap}");
    let [tanh, erf] = [GeluKind::Tanh, GeluKind::Erf];
    let plain = SiluMul::plain(width, dtype);
    let bounded = SiluMul {
        limit: 2.0,
        alpha: 1.702,
        up_offset: 1.0,
        ..plain
    };
    let ops: [(OpSpec, usize, Class, &str); 11] = [
        (plain.clone().into(), 2, Class::Transcendental, ""),
        (bounded.into(), 2, Class::Transcendental, " bounded"),
        (
            SiluMul { alpha: 0.5, ..plain }.into(),
            2,
            Class::Transcendental,
            " with a factor",
        ),
        (ReluSquared { width, dtype }.into(), 1, Class::Elementwise, ""),
        (
            GeluMul {
                width,
                dtype,
                kind: tanh,
            }
            .into(),
            2,
            Class::Transcendental,
            " tanh",
        ),
        (
            GeluMul {
                width,
                dtype,
                kind: erf,
            }
            .into(),
            2,
            Class::Transcendental,
            " erf",
        ),
        (
            Gelu {
                width,
                dtype,
                kind: tanh,
            }
            .into(),
            1,
            Class::Transcendental,
            " tanh",
        ),
        (
            Gelu {
                width,
                dtype,
                kind: erf,
            }
            .into(),
            1,
            Class::Transcendental,
            " erf",
        ),
        (Add { width, dtype }.into(), 2, Class::Elementwise, ""),
        (
            Scale {
                width,
                dtype,
                factor: -0.37,
            }
            .into(),
            1,
            Class::Elementwise,
            "",
        ),
        (Softcap { width, dtype, cap: 3.0 }.into(), 1, Class::Transcendental, ""),
    ];
    for (spec, inputs, class, kind) in ops {
        let random = &mut Random::of(seed, &format!("{} {dtype:?} {kind} {name}", spec.name()));
        let mut operands: Vec<_> = (0..inputs)
            .map(|_| Some(Arg::floats(dtype, &[rows, width], &values(random, rows * width)).strided(gap)))
            .collect();
        operands.push(Some(Arg::output(dtype, &[rows, width], class).strided(gap)));
        let case = Case::single(spec, &format!("{dtype:?}{kind}"), &name, operands);
        cases.push(case.clone().in_place(0, inputs));
        cases.push(case);
    }
}

/// gelu far below 0, where its factor is nearly 0: −5·Φ(−5) = −1.43e-6. A sum 1 + erf has none of its digits. f16 has
/// no numbers there.
fn gelu_tails(dtype: DType, cases: &mut Vec<Case>) {
    let x = [-3.0, -4.0, -4.5, -5.0, -5.25];
    let width = x.len() as u32;
    let input = |values: &[f32]| Some(Arg::floats(dtype, &[1, width], values));
    let out = Some(Arg::output(dtype, &[1, width], Class::Tail));
    for (kind, words) in [(GeluKind::Tanh, " tanh"), (GeluKind::Erf, " erf")] {
        let variant = format!("{dtype:?}{words}");
        let alone = Gelu { width, dtype, kind };
        cases.push(Case::single(
            alone,
            &variant,
            "far below 0",
            vec![input(&x), out.clone()],
        ));
        let times = GeluMul { width, dtype, kind };
        let operands = vec![input(&x), input(&[1.5; 5]), out.clone()];
        cases.push(Case::single(times, &variant, "far below 0", operands));
    }
}

fn norms(seed: u64, dtype: DType, [rows, width, gap]: [u32; 3], cases: &mut Vec<Case>) {
    let name = format!("{rows} x {width}, gap {gap}");
    let variant = format!("{dtype:?}");
    let random = &mut Random::of(seed, &format!("norms {variant} {name}"));
    let x = Arg::floats(dtype, &[rows, width], &values(random, rows * width)).strided(gap);
    let vector = |random: &mut Random| Arg::floats(DType::F32, &[width], &random.units(width as usize));
    let out = Arg::output(dtype, &[rows, width], Class::Norm).strided(gap);
    for weight_offset in [0.0, 1.0] {
        let spec = RmsNorm {
            width,
            eps: 1e-5,
            weight_offset,
            dtype,
        };
        let operands = vec![Some(x.clone()), Some(vector(random)), Some(out.clone())];
        let case = Case::single(spec, &variant, &format!("{name}, offset {weight_offset}"), operands);
        cases.push(case.clone().in_place(0, 2));
        cases.push(case);
    }
    // One value has no variance: its normalised value is rounding noise over √eps.
    if width == 1 {
        return;
    }
    for bias in [false, true] {
        let spec = LayerNorm {
            width,
            eps: 1e-5,
            dtype,
            num_weights: 0,
        };
        let bias_arg = bias.then(|| vector(random));
        let operands = vec![Some(x.clone()), Some(vector(random)), bias_arg, Some(out.clone())];
        cases.push(Case::single(spec, &variant, &format!("{name}, bias {bias}"), operands));
    }
}

/// The three-axis form: the heads of q as slices of a wider product.
fn head_norm(seed: u64, dtype: DType, cases: &mut Vec<Case>) {
    let (tokens, heads, width) = (4, 3, 40);
    let variant = format!("{dtype:?}");
    let random = &mut Random::of(seed, &format!("head_norm {variant}"));
    let x = values(random, tokens * heads * width);
    let operands = vec![
        Some(Arg::floats(dtype, &[tokens, heads, width], &x).strided(24)),
        Some(Arg::floats(DType::F32, &[width], &random.units(width as usize))),
        Some(Arg::output(dtype, &[tokens, heads, width], Class::Norm).strided(8)),
    ];
    let spec = RmsNorm {
        width,
        eps: 1e-6,
        weight_offset: 0.0,
        dtype,
    };
    let case = Case::single(spec, &variant, "per head, 4 x 3 x 40, strided", operands);
    cases.push(case.clone().in_place(0, 2));
    cases.push(case);
    // One weight for all heads, and one for each: in a part of a warp, in a block, unaligned.
    for (tokens, heads, width, own, bias) in [
        (4, 3, 40, false, true),
        (5, 3, 64, true, false),
        (3, 5, 64, true, true),
        (2, 4, 1024, true, true),
        (3, 2, 37, true, false),
    ] {
        let name = format!("per head, {tokens} x {heads} x {width}, own weights {own}, bias {bias}");
        let random = &mut Random::of(seed, &format!("layer norm {variant} {name}"));
        let weights: &[u32] = if own { &[heads, width] } else { &[width] };
        let floats = |random: &mut Random| {
            let count = weights.iter().product::<u32>();
            Arg::floats(DType::F32, weights, &random.units(count as usize))
        };
        let x = values(random, tokens * heads * width);
        let operands = vec![
            Some(Arg::floats(dtype, &[tokens, heads, width], &x).strided(24)),
            Some(floats(random)),
            bias.then(|| floats(random)),
            Some(Arg::output(dtype, &[tokens, heads, width], Class::Norm).strided(8)),
        ];
        let spec = LayerNorm {
            width,
            eps: 1e-5,
            dtype,
            num_weights: if own { heads } else { 0 },
        };
        let case = Case::single(spec, &variant, &name, operands);
        cases.push(case.clone().in_place(0, 3));
        cases.push(case);
    }
}

fn rope(seed: u64, dtype: DType, cases: &mut Vec<Case>) {
    for style in [RopeStyle::Neox, RopeStyle::Interleaved] {
        for (tokens, heads, head_dim, rotary_dim, gap) in [(1, 1, 64, 64, 0), (5, 3, 32, 32, 40), (3, 2, 80, 20, 0)] {
            let variant = format!("{dtype:?} {style:?}");
            let name = format!("{tokens} x {heads} x {head_dim}, rotary {rotary_dim}, gap {gap}");
            let random = &mut Random::of(seed, &format!("rope {variant} {name}"));
            let max_positions = 50;
            let half = rotary_dim / 2;
            let mut table = Vec::new();
            for position in 0..max_positions {
                let angle = |i: u32| position as f32 * 100f32.powf(-(i as f32) / half as f32);
                table.extend((0..half).map(|i| angle(i).cos()));
                table.extend((0..half).map(|i| angle(i).sin()));
            }
            let positions: Vec<i32> = (0..tokens).map(|_| random.below(max_positions) as i32).collect();
            let x = values(random, tokens * heads * head_dim);
            let operands = vec![
                Some(Arg::ints(&[tokens], &positions)),
                Some(Arg::floats(DType::F32, &[max_positions, rotary_dim], &table)),
                Some(
                    Arg::floats(dtype, &[tokens, heads, head_dim], &x)
                        .checked(Class::Product {
                            terms: 2,
                            act: DType::F32,
                        })
                        .strided(gap),
                ),
            ];
            let spec = Rope {
                head_dim,
                rotary_dim,
                style,
                dtype,
            };
            cases.push(Case::single(spec, &variant, &name, operands));
        }
    }
}
