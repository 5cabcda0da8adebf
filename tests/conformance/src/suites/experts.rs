//! The experts of a layer as a program: every region that the device claims of it must give what its ops give on the
//! oracle. Whether a device claims it is its own affair.

use halyard_platform_api::ops::{Add, GeluKind, GeluMul, MoeCombine, MoeLinear, SiluMul};
use halyard_platform_api::{DType, Device, WeightFormat};

use super::composites::check;
use super::note;
use crate::Report;
use crate::case::{ABSENT, Arg, Case, Check, Contents};
use crate::cases::weight;
use crate::random::Random;
use crate::tolerance::Class;

/// Of weights of which a row may have any number of values, and of groups of up to 128.
const SMALL: [u32; 2] = [64, 96];
const WHOLE: [u32; 2] = [128, 256];
/// Of K-quants, whose blocks have 256 values.
const BLOCKS: [u32; 2] = [256, 512];
/// So many features that a backend whose blocks stay has several tiles for each, of the last one's only a part.
const WIDE: [u32; 2] = [64, 2824];
const WIDE_TOKENS: u32 = 399;

/// Layers of experts, with ever more choices an expert, and a rank that has the last two of three.
pub(super) fn run(device: &dyn Device, oracle: &dyn Device, seed: u64, report: &mut Report) {
    for (act, private, format) in [
        (DType::BF16, true, WeightFormat::BF16),
        (DType::F16, true, WeightFormat::F16),
        (DType::BF16, false, WeightFormat::BF16),
        (DType::F32, true, WeightFormat::F32),
        (DType::BF16, true, WeightFormat::Q4K),
        (DType::BF16, true, WeightFormat::U4G128),
        (DType::BF16, true, WeightFormat::F8G128),
        (DType::BF16, true, WeightFormat::E2M1G32),
        (DType::F16, true, WeightFormat::E2M1G16),
    ] {
        if !device.info().compute_dtypes.contains(act) {
            continue;
        }
        for (tokens, of_a_rank) in [
            (1, false),
            (1, true),
            (6, true),
            (16, false),
            (40, true),
            (100, false),
            (250, false),
            (250, true),
            (400, false),
            (400, true),
            (WIDE_TOKENS, false),
        ] {
            if tokens == WIDE_TOKENS && !(private && format == WeightFormat::BF16) {
                continue;
            }
            let case = layer(seed, act, private, format, tokens, of_a_rank);
            let outcome = check(device, oracle, &case, false);
            let between = if private { ", private between" } else { "" };
            let rank = if of_a_rank { " of a rank" } else { "" };
            let over = match format.block_values() > 1 {
                true => format!(" over {format:?}"),
                false => String::new(),
            };
            let name = format!("a layer{rank} in {act:?}{over}, {tokens} tokens{between}");
            note(report, "experts", &name, outcome);
        }
    }
}

/// gate and up → gating → down → combine → add, over chosen experts.
fn layer(seed: u64, act: DType, private: bool, format: WeightFormat, tokens: u32, of_a_rank: bool) -> Case {
    const EXPERTS: u32 = 3;
    const TOP_K: u32 = 2;
    let in_blocks = format.block_values() > 1;
    let [hidden_width, inner] = match format.block_values() {
        1 if tokens == WIDE_TOKENS => WIDE,
        1 => SMALL,
        256 => BLOCKS,
        _ => WHOLE,
    };
    let mut random = Random::of(seed, &format!("experts {act:?} {tokens}"));
    let (first_expert, here) = if of_a_rank { (1, EXPERTS - 1) } else { (0, EXPERTS) };
    let units = |random: &mut Random, dtype, shape: &[u32]| {
        let values = random.units(shape.iter().product::<u32>() as usize);
        Arg::floats(dtype, shape, &values)
    };
    let hidden = units(&mut random, act, &[tokens, hidden_width]);
    // Wide rows, and those of formats in blocks, whose minima add up, would make results of hundreds, of which 16-bit
    // types round whole numbers away between the ops.
    let scale = if in_blocks || inner > 1000 { 0.25 } else { 1.0 };
    let x: Vec<f32> = random
        .units((tokens * hidden_width) as usize)
        .iter()
        .map(|v| v * scale)
        .collect();
    let x = Arg::floats(act, &[tokens, 1, hidden_width], &x);
    let choices: Vec<i32> = (0..tokens as i32)
        .flat_map(|t| [t % 3, (t + 1 + t / 3 % 2) % 3])
        .collect();
    let weights = units(&mut random, DType::F32, &[tokens, TOP_K]);
    let mut matrix = |node: usize, rows: u32, width: u32| Arg {
        contents: Contents::Weight {
            node,
            rows: here * rows,
            bytes: weight(&mut random, format, here * rows, width),
        },
        ..Arg::bytes(DType::U8, &[0], Vec::new())
    };
    let (gate, up, down) = (
        matrix(0, inner, hidden_width),
        matrix(1, inner, hidden_width),
        matrix(3, hidden_width, inner),
    );
    let out = |shape: &[u32]| {
        let class = Class::Product {
            terms: inner as usize,
            act,
        };
        let mut arg = Arg::floats(act, shape, &vec![0.0; shape.iter().product::<u32>() as usize]).checked(class);
        if let Check::Near(tolerance, _) = &mut arg.check {
            // As in composites.rs: products of a gate and an up value, summed.
            tolerance.abs *= if act == DType::F32 { 10.0 } else { 30.0 };
        }
        arg
    };
    // Rows of choices, and the same memory as one row a token. Whoever reads a private value that it left unwritten
    // finds no number.
    let between = |shape: &[u32]| match private {
        true => {
            let values = vec![f32::NAN; shape.iter().product::<u32>() as usize];
            Arg {
                check: Check::Ignored,
                ..Arg::floats(act, shape, &values)
            }
        }
        false => out(shape),
    };
    let by_choice = [tokens, TOP_K, inner];
    let linear = |in_features, out_features| MoeLinear {
        in_features,
        out_features,
        num_experts: here,
        top_k: TOP_K,
        weight: format,
        dtype: act,
        max_tokens: tokens,
        first_expert,
        total_experts: if of_a_rank { EXPERTS } else { 0 },
        allow_quantized_act: false,
    };
    let gated = TOP_K * inner;
    let gating = match tokens {
        16 => GeluMul {
            width: gated,
            dtype: act,
            kind: GeluKind::Tanh,
        }
        .into(),
        // As gpt-oss has it, with a lower bound, so that values reach it.
        6 | 100 => SiluMul {
            limit: 2.0,
            alpha: 1.702,
            up_offset: 1.0,
            ..SiluMul::plain(gated, act)
        }
        .into(),
        _ => SiluMul::plain(gated, act).into(),
    };
    let slice = |of: usize| Arg::slice(act, &[tokens, gated], of, 0);
    Case {
        op: "experts",
        variant: String::new(),
        name: format!("experts, {tokens} tokens"),
        // 0 hidden, 1 x, 2 choices, 3 weights, 4 gate w, 5 up w, 6 down w, 7 gate, 8 up, 9 activated, 10 results,
        // 11 sum, 12 .. 14 the rows of 7, 8 and 9, 15 out
        args: vec![
            hidden,
            x,
            Arg::ints(&[tokens, TOP_K], &choices),
            weights,
            gate,
            up,
            down,
            between(&by_choice),
            between(&by_choice),
            between(&by_choice),
            between(&[tokens, TOP_K, hidden_width]),
            between(&[tokens, hidden_width]),
            slice(7),
            slice(8),
            slice(9),
            out(&[tokens, hidden_width]),
        ],
        nodes: vec![
            (linear(hidden_width, inner).into(), vec![1, 4, 2, 7, ABSENT]),
            (linear(hidden_width, inner).into(), vec![1, 5, 2, 8, ABSENT]),
            (gating, vec![12, 13, 14]),
            (linear(inner, hidden_width).into(), vec![9, 6, 2, 10, ABSENT]),
            (
                MoeCombine {
                    width: hidden_width,
                    top_k: TOP_K,
                    dtype: act,
                }
                .into(),
                vec![10, 3, 11],
            ),
            (
                Add {
                    width: hidden_width,
                    dtype: act,
                }
                .into(),
                vec![0, 11, 15],
            ),
        ],
    }
}
