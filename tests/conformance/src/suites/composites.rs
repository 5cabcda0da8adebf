//! Composites: a llama-like block as a program; every region that the device claims runs as one op and must give what
//! its parts give on the oracle. A device without the capability must claim nothing and say why.

use std::sync::Arc;

use halyard_platform_api::ops::{Add, Epilogue, Linear, RmsNorm, SiluMul};
use halyard_platform_api::{
    Capabilities, Claim, DType, Device, EncoderMode, Node, PreparedOp, Program, TensorDecl, WeightFormat,
};

use super::note;
use crate::Report;
use crate::case::{ABSENT, Arg, Case, Check, Contents};
use crate::cases::weight;
use crate::execute::{Failure, collect, compare, execute, operands, place_all, submit};
use crate::random::Random;
use crate::tolerance::Class;

/// Tokens, width and inner width of a block.
#[derive(Clone, Copy)]
struct Extents {
    tokens: u32,
    width: u32,
    inner: u32,
}

const SMALL: Extents = Extents {
    tokens: 5,
    width: 64,
    inner: 96,
};
/// Batches over matrices that fill a device, in tiles that are not whole: over a depth that cannot be shared out
/// evenly, and over a short one.
const LARGE: Extents = Extents {
    tokens: 40,
    width: 1096,
    inner: 1504,
};
const WIDE: Extents = Extents {
    tokens: 48,
    width: 264,
    inner: 9864,
};

pub(super) fn run(device: &dyn Device, oracle: &dyn Device, seed: u64, report: &mut Report) {
    for (format, act, private, extents) in [
        (WeightFormat::F32, DType::F32, false, SMALL),
        (WeightFormat::Q4_0, DType::F32, false, SMALL),
        // What lies between may stay unwritten: a backend then has most to gain, and to get wrong.
        (WeightFormat::BF16, DType::BF16, true, SMALL),
        (WeightFormat::BF16, DType::BF16, true, LARGE),
        (WeightFormat::BF16, DType::BF16, true, WIDE),
        (WeightFormat::BF16, DType::BF16, false, SMALL),
        (WeightFormat::F8E4M3, DType::F32, false, SMALL),
        (WeightFormat::F8E4M3, DType::BF16, true, SMALL),
    ] {
        if !device.info().compute_dtypes.contains(act) {
            continue;
        }
        let case = block(seed, format, act, private, extents);
        let outcome = check(device, oracle, &case, true);
        let between = if private { ", private between" } else { "" };
        let tokens = extents.tokens;
        let name = format!("claimed regions of a {format:?} x {act:?} block of {tokens} tokens{between}");
        note(report, "composites", &name, outcome);
    }
}

/// norm → gate and up → silu_mul → down + residual → add. With `private`, nobody looks at what lies between.
fn block(seed: u64, format: WeightFormat, act: DType, private: bool, extents: Extents) -> Case {
    let Extents { tokens, width, inner } = extents;
    let mut random = Random::of(seed, &format!("composite {format:?}"));
    let mut floats = |dtype, rows: u32, width: u32| {
        let values = random.units((rows * width) as usize);
        Arg::floats(dtype, &[rows, width], &values)
    };
    let hidden = floats(act, tokens, width);
    // Gate and up values as large in wide rows as in narrow ones.
    let scale = (SMALL.width as f32 / width as f32).sqrt();
    let norm: Vec<f32> = random.units(width as usize).iter().map(|v| v * scale).collect();
    let norm = Arg::floats(DType::F32, &[width], &norm);
    let mut random = Random::of(seed, &format!("composite weights {format:?}"));
    let mut matrix = |node: usize, rows: u32, width: u32| Arg {
        contents: Contents::Weight {
            node,
            rows,
            bytes: weight(&mut random, format, rows, width),
        },
        ..Arg::bytes(DType::U8, &[0], Vec::new())
    };
    let (gate, up, down) = (
        matrix(1, inner, width),
        matrix(2, inner, width),
        matrix(4, width, inner),
    );
    let class = Class::Product {
        terms: inner as usize,
        act,
    };
    let out = |width: u32| {
        let zeros = vec![0.0; (tokens * width) as usize];
        let mut arg = Arg::floats(act, &[tokens, width], &zeros).checked(class);
        if let Check::Near(tolerance, _) = &mut arg.check {
            // The last sum is over products of a gate and an up value, not over values up to 1: they reach tens. Half
            // types round them, or do not, at each of three steps before it.
            tolerance.abs *= if act == DType::F32 { 10.0 } else { 30.0 };
        }
        arg
    };
    let between = |width: u32| Arg {
        check: if private { Check::Ignored } else { out(width).check },
        ..out(width)
    };
    let linear = |in_features, out_features| Linear {
        in_features,
        out_features,
        weight: format,
        act,
        out: act,
        epilogue: Epilogue::None,
        max_tokens: tokens.max(8),
        allow_quantized_act: false,
    };
    Case {
        op: "composites",
        variant: String::new(),
        name: format!("{format:?}"),
        // 0 hidden, 1 norm, 2 gate w, 3 up w, 4 down w, 5 normed, 6 gate, 7 up, 8 product, 9 out, 10 twice
        args: vec![
            hidden,
            norm,
            gate,
            up,
            down,
            between(width),
            between(inner),
            between(inner),
            between(inner),
            out(width),
            out(width),
        ],
        nodes: vec![
            (
                RmsNorm {
                    width,
                    eps: 1e-5,
                    weight_offset: 0.0,
                    dtype: act,
                }
                .into(),
                vec![0, 1, 5],
            ),
            (linear(width, inner).into(), vec![5, 2, ABSENT, ABSENT, 6]),
            (linear(width, inner).into(), vec![5, 3, ABSENT, ABSENT, 7]),
            (SiluMul::plain(inner, act).into(), vec![6, 7, 8]),
            (linear(inner, width).into(), vec![8, 4, ABSENT, 0, 9]),
            (Add { width, dtype: act }.into(), vec![9, 9, 10]),
        ],
    }
}

/// A tensor as a program declares it. One whose contents nobody looks at afterwards is internal, with all its slices.
fn declared(case: &Case, index: u32) -> TensorDecl {
    let arg = &case.args[index as usize];
    let decl = |arg: &Arg, storage, first_column| TensorDecl {
        first_column,
        num_columns: arg.shape[1..].iter().product(),
        ..TensorDecl::whole(arg.dtype, matches!(arg.check, Check::Ignored), storage)
    };
    match arg.contents {
        Contents::Slice { of, first } => TensorDecl {
            internal: matches!(case.args[of].check, Check::Ignored),
            ..decl(arg, of as u32, first)
        },
        Contents::Bytes(_) => decl(arg, index, 0),
        _ => TensorDecl::whole(arg.dtype, false, index),
    }
}

/// Runs what is claimed of the case and compares with its parts. `must_claim`: a device that has the capability claims
/// something of this program.
pub(super) fn check(device: &dyn Device, oracle: &dyn Device, case: &Case, must_claim: bool) -> Result<(), String> {
    let program = Program {
        tensors: (0..case.args.len() as u32).map(|index| declared(case, index)).collect(),
        nodes: case
            .nodes
            .iter()
            .map(|(spec, operands)| Node::new(spec.clone(), operands.clone()))
            .collect(),
    };
    let report = device.ops().claim(&program).map_err(|e| e.to_string())?;
    let claimed: u32 = report.claims.iter().map(|c| c.count).sum();
    if (claimed as usize) < program.nodes.len() && report.left.trim().is_empty() {
        return Err("nodes are left without a reason".to_string());
    }
    if !device.info().capabilities.has(Capabilities::COMPOSITES) {
        return if report.claims.is_empty() {
            Ok(())
        } else {
            Err("claims without the capability".to_string())
        };
    }
    if report.claims.is_empty() && !must_claim {
        return Ok(());
    }
    if report.claims.is_empty() {
        return Err(format!(
            "the capability is claimed and nothing of a llama block: {}",
            report.left
        ));
    }
    let expected = execute(oracle, case, 0).map_err(words)?;
    let found = run_claims(device, case, &program, &report.claims, EncoderMode::OneShot).map_err(words)?;
    compare(case, &found, &expected)?;
    if device.info().capabilities.has(Capabilities::RECORDING) {
        let found = run_claims(device, case, &program, &report.claims, EncoderMode::Reusable).map_err(words)?;
        compare(case, &found, &expected).map_err(|why| format!("recorded: {why}"))?;
    }
    Ok(())
}

fn words(failure: Failure) -> String {
    match failure {
        Failure::Unsupported(why) | Failure::Broken(why) => why,
    }
}

/// Runs claims as one op each, and what lies between node by node.
fn run_claims(
    device: &dyn Device,
    case: &Case,
    program: &Program,
    claims: &[Claim],
    mode: EncoderMode,
) -> Result<Vec<Vec<u8>>, Failure> {
    let mut ops: Vec<(Arc<dyn PreparedOp>, Vec<u16>)> = Vec::new();
    let mut weights: Vec<(Arc<dyn PreparedOp>, u32)> = Vec::new();
    let mut next = 0;
    while next < program.nodes.len() {
        match claims.iter().find(|c| c.first as usize == next) {
            Some(claim) => {
                let (region, original) = program.region(next, claim.count as usize);
                let op = device.ops().prepare_program(&region)?;
                weights.extend((0..claim.count).map(|node| (op.clone(), node)));
                ops.push((op, original));
                next += claim.count as usize;
            }
            None => {
                let op = device.ops().prepare(&program.nodes[next].spec)?;
                weights.push((op.clone(), 0));
                ops.push((op, program.nodes[next].operands.clone()));
                next += 1;
            }
        }
    }
    let placed = place_all(device, case, 0, &weights)?;
    let encoded: Vec<_> = ops
        .into_iter()
        .map(|(op, indices)| (op, operands(&placed, &indices)))
        .collect();
    submit(device, &encoded, mode)?;
    collect(case, &placed)
}
