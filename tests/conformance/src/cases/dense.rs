//! `embedding`, `linear`, `lora_shrink`, `lora_expand`, `moe_route`, `moe_linear`, `moe_combine`.

use halyard_platform_api::ops::{
    Embedding, Epilogue, Linear, LoraExpand, LoraShrink, MoeCombine, MoeLinear, MoeRoute, Scoring,
};
use halyard_platform_api::{DType, WeightFormat};

use super::{FLOATS, weight};
use crate::case::{Arg, Case};
use crate::random::Random;
use crate::tolerance::Class;

/// The ops that have their cases here.
pub(super) const OPS: &[&str] = &[
    Embedding::NAME,
    Linear::NAME,
    LoraExpand::NAME,
    LoraShrink::NAME,
    MoeCombine::NAME,
    MoeLinear::NAME,
    MoeRoute::NAME,
];

pub(crate) fn cases(seed: u64) -> Vec<Case> {
    let mut cases = Vec::new();
    for format in WeightFormat::ALL {
        // Groups of 64 are between those of 32 and of 128, which run in every type.
        use WeightFormat::{F8B128, F8G64, I8G64, U4G64};
        let is_between = matches!(format, U4G64 | I8G64 | F8G64);
        let runs = |dtype: &DType| match format {
            // As rows of F8G128, but for what a platform makes of blocks.
            F8B128 => *dtype == DType::BF16,
            _ => !is_between || *dtype == DType::F32,
        };
        for dtype in FLOATS.into_iter().filter(runs) {
            embedding(seed, format, dtype, &mut cases);
            linear(seed, format, dtype, &mut cases);
            moe_linear(seed, format, dtype, &mut cases);
            moe_linear_of_a_rank(seed, format, dtype, &mut cases);
        }
    }
    for dtype in FLOATS {
        epilogues(seed, dtype, &mut cases);
        lora(seed, dtype, &mut cases);
        moe_combine(seed, dtype, &mut cases);
    }
    moe_route(seed, &mut cases);
    cases
}

/// A width that a format can hold: odd where it may be.
pub(super) fn odd_width(format: WeightFormat) -> u32 {
    match format.block_values() {
        1 => 37,
        16 | 32 => 96,
        block => block as u32 * 2,
    }
}

fn embedding(seed: u64, format: WeightFormat, out: DType, cases: &mut Vec<Case>) {
    let variant = format!("{format:?} -> {out:?}");
    for (width, scale) in [(odd_width(format), 1.0), (256, 22.6)] {
        let name = format!("width {width} scale {scale}");
        let random = &mut Random::of(seed, &format!("embedding {variant} {name}"));
        let rows = 11;
        let ids = [3, -1, 10, 0, 3];
        let spec = Embedding {
            num_rows: rows,
            width,
            weight: format,
            out,
            scale,
            max_tokens: 5,
        };
        let operands = vec![
            Some(Arg::ints(&[5], &ids)),
            Some(Arg::weight(format, rows, width, weight(random, format, rows, width))),
            Some(Arg::output(out, &[5, width], Class::Elementwise)),
        ];
        cases.push(Case::single(spec, &variant, &name, operands));
    }
}

fn linear(seed: u64, format: WeightFormat, act: DType, cases: &mut Vec<Case>) {
    let variant = format!("{format:?} x {act:?}");
    let wide = match format.block_values() {
        256 => 512,
        128 => 384,
        _ => 320,
    };
    // Tokens, inputs, outputs, bias, residual, gap between rows.
    let shapes = [
        (1, odd_width(format), 19, false, false, 0),
        (3, odd_width(format), 1, true, false, 5),
        (7, wide, 33, false, true, 0),
        (17, wide, 64, true, true, 3),
        // More than own kernels take, in rows at multiples of 16 bytes: what a vendor's library takes.
        (33, wide, 64, true, false, 0),
    ];
    // Batches, for platforms that take them another way than few tokens: by the format that has most ways.
    let batches = [
        (40, 320, 200, true, false, 0),
        (70, 1024, 33, false, true, 8),
        (130, 128, 140, true, true, 0),
        (520, 96, 64, true, false, 0),
        (48, 256, 160, false, true, 0),
    ];
    let batches = batches.iter().filter(|_| format == WeightFormat::F8E4M3);
    // Matrices that fill a device, in tiles that are not whole: over a depth that cannot be shared out evenly, and over
    // a short one.
    let large = [
        (40, 1096, 3000, true, true, 8),
        (64, 1088, 2984, false, false, 0),
        (64, 264, 9992, true, true, 0),
        // Smaller ones, which fill it in smaller tiles.
        (40, 592, 968, true, true, 8),
        (33, 1544, 584, false, true, 0),
        (64, 2056, 2056, true, false, 0),
        // More tokens over the least of them.
        (70, 1544, 584, false, true, 8),
        (128, 592, 968, true, true, 0),
        (200, 592, 968, false, false, 8),
        (256, 1032, 1536, true, true, 0),
    ];
    // The same in bytes; over 8-bit weights few tokens take such ways, too.
    let large_in_bytes = [
        (40, 2064, 3000, true, true, 0),
        (5, 2192, 2984, false, true, 0),
        (64, 528, 9992, true, false, 0),
        (100, 2064, 2984, false, true, 0),
    ];
    let large_in_groups = [
        (40, 2176, 3000, true, true, 0),
        (1, 2176, 2984, false, true, 0),
        (64, 640, 9992, true, false, 0),
        (100, 2176, 2984, false, true, 0),
        (200, 2176, 2984, true, true, 0),
        // More than own kernels take, in whole steps of four tokens and not.
        (515, 640, 1040, true, true, 0),
        (516, 640, 528, false, true, 0),
        // Whole blocks of 128 rows, of a whole multiple of four groups and not.
        (515, 640, 1024, true, true, 0),
        (520, 512, 384, false, false, 0),
    ];
    let large: &[_] = match (format, act) {
        (WeightFormat::BF16, DType::BF16) => &large,
        (WeightFormat::F8E4M3, DType::BF16) => &large_in_bytes,
        (WeightFormat::F8G128 | WeightFormat::F8B128, DType::BF16) => &large_in_groups,
        _ => &[],
    };
    // More blocks than a row has threads, for products in blocks; exact sums of so many terms err by their order.
    const LONG: u32 = 1280;
    let long = [(1, LONG, 9, false, false, 0), (2, LONG, 5, false, false, 0)];
    let long = long.iter().filter(|_| format.block_values() > 1);
    for &(tokens, k, n, bias, residual, gap) in shapes.iter().chain(long).chain(batches).chain(large) {
        let name = format!("{tokens} x {k} -> {n}, bias {bias}, residual {residual}, gap {gap}");
        let random = &mut Random::of(seed, &format!("linear {variant} {name}"));
        let spec = Linear {
            in_features: k,
            out_features: n,
            weight: format,
            act,
            out: act,
            epilogue: Epilogue::None,
            max_tokens: tokens,
            allow_quantized_act: false,
        };
        let class = product_class(format, act, k, false);
        if k != LONG {
            let case = linear_case(random, &spec, tokens, (bias, residual, gap), class, &variant, &name);
            cases.push(case.clone());
            if residual {
                cases.push(case.in_place(3, 4));
            }
        }
        if gap == 0 {
            let spec = Linear {
                allow_quantized_act: true,
                ..spec
            };
            let class = product_class(format, act, k, true);
            let variant = format!("{variant}, quantized act allowed");
            let case = linear_case(random, &spec, tokens, (bias, residual, gap), class, &variant, &name);
            cases.push(case.clone());
            if residual {
                cases.push(case.in_place(3, 4));
            }
        }
    }
}

/// How near a product of `terms` terms is to the oracle's.
fn product_class(format: WeightFormat, act: DType, terms: u32, may_round: bool) -> Class {
    let terms = terms as usize;
    use WeightFormat::{F8B128, F8E4M3, F8G32, F8G64, F8G128};
    match (may_round, format) {
        (false, _) => Class::Product { terms, act },
        (true, F8E4M3 | F8G32 | F8G64 | F8G128 | F8B128) => Class::RoundedProduct { terms },
        (true, _) => Class::QuantizedProduct { terms },
    }
}

fn linear_case(
    random: &mut Random,
    spec: &Linear,
    tokens: u32,
    (bias, residual, gap): (bool, bool, u32),
    class: Class,
    variant: &str,
    name: &str,
) -> Case {
    let (k, n) = (spec.in_features, spec.out_features);
    let x = random.units((tokens * k) as usize);
    let operands = vec![
        Some(Arg::floats(spec.act, &[tokens, k], &x).strided(gap)),
        Some(Arg::weight(spec.weight, n, k, weight(random, spec.weight, n, k))),
        bias.then(|| Arg::floats(DType::F32, &[n], &random.units(n as usize))),
        residual.then(|| Arg::floats(spec.out, &[tokens, n], &random.units((tokens * n) as usize)).strided(gap)),
        Some(Arg::output(spec.out, &[tokens, n], class).strided(gap)),
    ];
    Case::single(spec.clone(), variant, name, operands)
}

fn epilogues(seed: u64, act: DType, cases: &mut Vec<Case>) {
    for epilogue in [Epilogue::Silu, Epilogue::GeluTanh, Epilogue::GeluErf] {
        for (out, format) in [(act, WeightFormat::BF16), (DType::F32, WeightFormat::Q8_0)] {
            let variant = format!("{format:?} x {act:?} -> {out:?} {epilogue:?}");
            let random = &mut Random::of(seed, &format!("linear {variant}"));
            let spec = Linear {
                in_features: 64,
                out_features: 21,
                weight: format,
                act,
                out,
                epilogue,
                max_tokens: 4,
                allow_quantized_act: false,
            };
            let class = Class::Product { terms: 64, act };
            // A residual that is the output must still be there when the activation has run, on one row as on several.
            for tokens in [4, 1] {
                let name = format!("{tokens} x 64 -> 21");
                let case = linear_case(random, &spec, tokens, (true, true, 0), class, &variant, &name);
                cases.push(case.clone());
                cases.push(case.in_place(3, 4));
            }
        }
    }
}

fn lora(seed: u64, act: DType, cases: &mut Vec<Case>) {
    // A few tokens, and a batch of them; extents that suit nothing, and such as matrix units take. Last: where the
    // second and the third part begin.
    for (tokens, k, n, rank, parts) in [
        (5, 45, 27, 6, (11, 20)),
        (37, 45, 27, 6, (11, 20)),
        (37, 320, 288, 32, (96, 160)),
    ] {
        for weight in [act, DType::F32] {
            let variant = format!("{act:?} x {weight:?}");
            let random = &mut Random::of(seed, &format!("lora {variant} {tokens} {k}"));
            let units = |random: &mut Random, dtype: DType, shape: &[u32]| {
                Arg::floats(dtype, shape, &random.units(shape.iter().product::<u32>() as usize))
            };
            // Neighbours with one adapter, with others and with none.
            let num_slots = 3;
            let slot_of: Vec<i32> = (0..tokens as usize)
                .map(|t| [2, -1, 0, 0, 2, 1, 1, 1, 1][t % 9])
                .collect();
            let slots = Arg::ints(&[tokens], &slot_of);
            let shrink = LoraShrink {
                in_features: k,
                max_rank: rank,
                num_slots,
                act,
                weight,
                max_tokens: tokens,
            };
            let class = Class::Product { terms: k as usize, act };
            let operands = vec![
                Some(units(random, act, &[tokens, k]).strided(if k == 45 { 3 } else { 8 })),
                Some(units(random, weight, &[num_slots, rank, k])),
                Some(slots.clone()),
                Some(Arg::output(DType::F32, &[tokens, rank], class)),
            ];
            let name = format!("{tokens} tokens, {k} -> {rank}");
            cases.push(Case::single(shrink, &variant, &name, operands));
            // One part, and three of other widths over neighbouring columns of x.
            for (second_part, third_part) in [(0, 0), parts] {
                let expand = LoraExpand {
                    out_features: n,
                    max_rank: rank,
                    num_slots,
                    weight,
                    out: act,
                    max_tokens: tokens,
                    second_part,
                    third_part,
                };
                let count = expand.part_starts().len() as u32 - 1;
                let class = Class::Product {
                    terms: rank as usize,
                    act,
                };
                let operands = vec![
                    Some(units(random, DType::F32, &[tokens, count * rank])),
                    Some(units(random, weight, &[num_slots, n, rank])),
                    Some(Arg::floats(DType::F32, &[num_slots], &[0.5, 1.0, 2.0])),
                    Some(slots.clone()),
                    Some(
                        units(random, act, &[tokens, n])
                            .checked(class)
                            .strided(if k == 45 { 3 } else { 8 }),
                    ),
                ];
                let name = format!("{tokens} tokens, {rank} -> {n} in {count} parts");
                cases.push(Case::single(expand, &variant, &name, operands));
            }
        }
    }
}

fn moe_route(seed: u64, cases: &mut Vec<Case>) {
    for scoring in [Scoring::Softmax, Scoring::Sigmoid] {
        for normalize in [false, true] {
            let variant = format!("{scoring:?}, normalize {normalize}");
            let random = &mut Random::of(seed, &format!("moe_route {variant}"));
            let (tokens, num_experts, top_k) = (5, 9, 3);
            let spec = MoeRoute {
                num_experts,
                top_k,
                scoring,
                normalize,
                factor: 1.5,
                num_groups: 0,
                top_groups: 0,
                group_best: 0,
            };
            let mut logits: Vec<f32> = random
                .units((tokens * num_experts) as usize)
                .iter()
                .map(|x| 4.0 * x)
                .collect();
            // Ties go to the lower index.
            logits[9 + 2] = 5.0;
            logits[9 + 7] = 5.0;
            let operands = vec![
                Some(Arg::floats(DType::F32, &[tokens, num_experts], &logits)),
                Some(Arg::output(DType::I32, &[tokens, top_k], Class::Exact)),
                Some(Arg::output(DType::F32, &[tokens, top_k], Class::Transcendental)),
                None,
            ];
            cases.push(Case::single(spec, &variant, "5 tokens, 3 of 9, a tie", operands));
        }
    }
    // Groups by their best and by their two best, more of them than lanes of a warp, and ties of groups.
    for (experts, top_k, groups, best, bias) in [
        (9, 3, [0, 0], 0, true),
        (24, 3, [4, 2], 1, false),
        (256, 8, [8, 4], 2, true),
        (80, 4, [40, 7], 2, true),
    ] {
        for scoring in [Scoring::Softmax, Scoring::Sigmoid] {
            let variant = format!("{scoring:?}, groups {groups:?} by {best}, bias {bias}");
            let random = &mut Random::of(seed, &format!("moe_route {variant}"));
            let tokens = 6;
            let [num_groups, top_groups] = groups;
            let spec = MoeRoute {
                num_experts: experts,
                top_k,
                scoring,
                normalize: bias,
                factor: 2.5,
                num_groups,
                top_groups,
                group_best: best,
            };
            let mut logits: Vec<f32> = random
                .units((tokens * experts) as usize)
                .iter()
                .map(|x| 4.0 * x)
                .collect();
            logits[..experts as usize].fill(0.5);
            let biases: Vec<f32> = random.units(experts as usize).iter().map(|x| 0.5 * x).collect();
            let operands = vec![
                Some(Arg::floats(DType::F32, &[tokens, experts], &logits)),
                Some(Arg::output(DType::I32, &[tokens, top_k], Class::Exact)),
                Some(Arg::output(DType::F32, &[tokens, top_k], Class::Transcendental)),
                bias.then(|| Arg::floats(DType::F32, &[experts], &biases)),
            ];
            cases.push(Case::single(
                spec,
                &variant,
                &format!("6 tokens, {top_k} of {experts}"),
                operands,
            ));
        }
    }
}

/// Those of one case of `moe_linear`: 46 tiles of 256 rows. They take their time, so that it runs once.
const MANY_FEATURES: u32 = 11_528;

fn moe_linear(seed: u64, format: WeightFormat, dtype: DType, cases: &mut Vec<Case>) {
    let variant = format!("{format:?} x {dtype:?}");
    // A few tokens; and so many that each expert has more than a tile of them, which a backend may sort by expert.
    let few = odd_width(format);
    let many = if format.block_values() == 1 { 40 } else { few };
    let mut shapes = vec![
        (4, 1, few, 13, false),
        (4, 2, few, 13, true),
        (150, 1, many, 70, true),
        (150, 2, many, 70, false),
        (1, 1, few, 13, true),
    ];
    if matches!(format, WeightFormat::F32 | WeightFormat::F16 | WeightFormat::BF16) {
        // Rows at multiples of 16 bytes, as matrix units want them, with ever more choices an expert.
        shapes.extend([
            (1, 1, 136, 24, false),
            (7, 1, 72, 24, true),
            (15, 2, 200, 72, false),
            (40, 1, 136, 200, true),
            (100, 2, 200, 136, true),
            (250, 1, 72, 136, false),
        ]);
    }
    if (format, dtype) == (WeightFormat::BF16, DType::BF16) {
        // More tiles than a backend whose blocks stay has blocks, and a part of one last.
        shapes.push((181, 1, 72, MANY_FEATURES, true));
    }
    // Formats in blocks differ in how a value is read: shapes with many tokens, which take the time, run with one
    // format of each kind of codes.
    use WeightFormat::{E2M1G16, E2M1G32, F8G128, I8G32, Nf4G64, Q4K, Q5_0, Q6K, U4G128};
    if format.block_values() > 1 {
        // Eights of rows, which a backend may keep together, and inputs of odd places.
        shapes.extend([(1, 1, few, 24, true), (4, 2, few, 40, false)]);
    }
    if format.is_canonical() && format.block_values() == 16 {
        shapes.push((4, 1, 48, 24, true));
    }
    let is_one_of_a_kind = matches!(format, U4G128 | I8G32 | E2M1G16 | E2M1G32 | Nf4G64 | F8G128);
    // The same with ever more choices an expert, and a depth of several groups that is no whole number of them. In f32
    // a depth of few groups: a minimum summed by itself cancels most of the codes' sum, and what is left has the error
    // of both; of GGUF's formats with minima none, as even one block cancels too much.
    let shallow = if format.block_values() == 256 { 256 } else { few };
    let deep = match dtype {
        DType::F32 => shallow,
        _ if format.block_values() == 256 => 768,
        _ if format.block_values() == 128 => 640,
        _ => 672,
    };
    if is_one_of_a_kind && format != Nf4G64 {
        shapes.extend([
            (15, 2, deep, 72, true),
            (40, 1, deep, 264, true),
            (100, 2, deep, 136, false),
            (250, 1, few, 136, true),
        ]);
    }
    if matches!(format, Q5_0 | Q6K) || (format == Q4K && dtype != DType::F32) {
        shapes.extend([(15, 2, deep, 72, true), (100, 2, shallow, 136, false)]);
    }
    if matches!(format, U4G128 | E2M1G32 | Q6K) || (format == Q4K && dtype != DType::F32) {
        // More than two tiles of tokens an expert.
        shapes.push((400, 1, shallow, 40, true));
    }
    let all = !format.is_canonical() || (is_one_of_a_kind && dtype != DType::F16);
    for (tokens, inputs, k, n, bias) in shapes.into_iter().filter(|shape| all || shape.0 <= 4) {
        let name = format!("{tokens} x {inputs} x {k} -> {n}, bias {bias}");
        let random = &mut Random::of(seed, &format!("moe_linear {variant} {name}"));
        let (num_experts, top_k) = (3, 2);
        let choices: Vec<i32> = if tokens <= 4 {
            vec![2, 0, 1, 2, 0, 1, 2, 1][..2 * tokens as usize].to_vec()
        } else {
            // Expert 1 is chosen by most.
            (0..tokens as i32)
                .flat_map(|t| [1 - t % 8 / 7, 2 * (t % 3 / 2)])
                .collect()
        };
        let spec = MoeLinear {
            in_features: k,
            out_features: n,
            num_experts,
            top_k,
            weight: format,
            dtype,
            max_tokens: tokens,
            first_expert: 0,
            total_experts: 0,
            allow_quantized_act: false,
        };
        let operands = moe_linear_operands(&spec, inputs, &choices, bias, random);
        let rounded = MoeLinear {
            allow_quantized_act: true,
            ..spec.clone()
        };
        cases.push(Case::single(spec, &variant, &name, operands));
        if n == MANY_FEATURES {
            continue;
        }
        let operands = moe_linear_operands(&rounded, inputs, &choices, bias, random);
        let variant = format!("{variant}, quantized act allowed");
        cases.push(Case::single(rounded, &variant, &name, operands));
    }
}

/// `inputs`: rows of a token, one or one for each choice.
fn moe_linear_operands(
    spec: &MoeLinear,
    inputs: u32,
    choices: &[i32],
    bias: bool,
    random: &mut Random,
) -> Vec<Option<Arg>> {
    let (tokens, experts) = (spec.max_tokens, spec.num_experts);
    let (k, n) = (spec.in_features, spec.out_features);
    let class = product_class(spec.weight, spec.dtype, k, spec.allow_quantized_act);
    let rows = experts * n;
    let x = [tokens, inputs, k];
    vec![
        Some(Arg::floats(
            spec.dtype,
            &x,
            &random.units((tokens * inputs * k) as usize),
        )),
        Some(Arg::weight(spec.weight, rows, k, weight(random, spec.weight, rows, k))),
        Some(Arg::ints(&[tokens, spec.top_k], choices)),
        Some(Arg::output(spec.dtype, &[tokens, spec.top_k, n], class)),
        bias.then(|| Arg::floats(DType::F32, &[experts, n], &random.units(rows as usize))),
    ]
}

/// Ranks of expert parallelism: the first two of five experts, the middle two, the last; tokens that chose none here.
fn moe_linear_of_a_rank(seed: u64, format: WeightFormat, dtype: DType, cases: &mut Vec<Case>) {
    let variant = format!("{format:?} x {dtype:?}, a rank");
    let k = if format.block_values() == 1 {
        40
    } else {
        odd_width(format)
    };
    let shapes = [(0, 2, 6, 1), (2, 2, 6, 2), (4, 1, 1, 1), (1, 1, 1, 1), (2, 2, 250, 1)];
    // How a value is read, `moe_linear` checks; whose tokens are sorted, one plain format and one in blocks show.
    let has_many = matches!(format, WeightFormat::BF16 | WeightFormat::Q4_1 | WeightFormat::U4G128);
    for (first_expert, num_experts, tokens, inputs) in
        shapes.into_iter().filter(|&(.., tokens, _)| has_many || tokens < 250)
    {
        let name = format!("{num_experts} of 5 from {first_expert}, {tokens} x {inputs} x {k}");
        let random = &mut Random::of(seed, &format!("moe_linear {variant} {name}"));
        // Of formats in blocks whole eights, as a backend may keep such rows together.
        let (top_k, n) = (2, if format.block_values() == 1 { 21 } else { 24 });
        // Each pair of experts; the first token's are experts 0 and 4.
        let choices: Vec<i32> = (0..tokens as i32)
            .flat_map(|t| [t % 5, (t + 4 - t / 5 % 4) % 5])
            .collect();
        let spec = MoeLinear {
            in_features: k,
            out_features: n,
            num_experts,
            top_k,
            weight: format,
            dtype,
            max_tokens: tokens,
            first_expert,
            total_experts: 5,
            allow_quantized_act: false,
        };
        let operands = moe_linear_operands(&spec, inputs, &choices, true, random);
        cases.push(Case::single(spec, &variant, &name, operands));
    }
}

fn moe_combine(seed: u64, dtype: DType, cases: &mut Vec<Case>) {
    let variant = format!("{dtype:?}");
    let random = &mut Random::of(seed, &format!("moe_combine {variant}"));
    let (tokens, top_k, width) = (3, 4, 37);
    let class = Class::Product {
        terms: top_k as usize,
        act: dtype,
    };
    let operands = vec![
        Some(Arg::floats(
            dtype,
            &[tokens, top_k, width],
            &random.units((tokens * top_k * width) as usize),
        )),
        Some(Arg::floats(
            DType::F32,
            &[tokens, top_k],
            &random.units((tokens * top_k) as usize),
        )),
        Some(Arg::output(dtype, &[tokens, width], class)),
    ];
    cases.push(Case::single(
        MoeCombine { width, top_k, dtype },
        &variant,
        "3 x 4 x 37",
        operands,
    ));
}
