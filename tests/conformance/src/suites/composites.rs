//! Composites: a llama-like block as a program; every region that the device claims runs as one op and must give what its
//! parts give on the oracle. A device without the capability must claim nothing and say why.

use std::sync::Arc;

use halyard_platform_api::ops::{Add, Epilogue, Linear, RmsNorm, SiluMul};
use halyard_platform_api::{Capabilities, Claim, DType, Device, Node, PreparedOp, Program, TensorDecl, WeightFormat};

use super::note;
use crate::Report;
use crate::case::{ABSENT, Arg, Case, Check, Contents};
use crate::cases::weight;
use crate::execute::{Failure, collect, compare, execute, operands, place_all, submit};
use crate::random::Random;
use crate::tolerance::{Class, tolerance};

const TOKENS: u32 = 5;
const WIDTH: u32 = 64;
const INNER: u32 = 96;

pub(super) fn run(device: &dyn Device, oracle: &dyn Device, seed: u64, report: &mut Report) {
    for format in [WeightFormat::F32, WeightFormat::Q4_0] {
        let case = block(seed, format);
        let outcome = check(device, oracle, &case);
        note(
            report,
            "composites",
            &format!("claimed regions of a {format:?} block"),
            outcome,
        );
    }
}

/// norm → gate and up → silu_mul → down + residual → add.
fn block(seed: u64, format: WeightFormat) -> Case {
    let mut random = Random::of(seed, &format!("composite {format:?}"));
    let mut floats =
        |rows: u32, width: u32| Arg::floats(DType::F32, &[rows, width], &random.units((rows * width) as usize));
    let (hidden, norm) = (floats(TOKENS, WIDTH), floats(1, WIDTH));
    let norm = Arg {
        shape: vec![WIDTH],
        ..norm
    };
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
        matrix(1, INNER, WIDTH),
        matrix(2, INNER, WIDTH),
        matrix(4, WIDTH, INNER),
    );
    let out = |width: u32| Arg {
        check: Check::Near(
            tolerance(
                Class::Product {
                    terms: INNER as usize,
                    act: DType::F32,
                },
                DType::F32,
            ),
            None,
        ),
        ..Arg::floats(DType::F32, &[TOKENS, width], &vec![0.0; (TOKENS * width) as usize])
    };
    let linear = |in_features, out_features| Linear {
        in_features,
        out_features,
        weight: format,
        act: DType::F32,
        out: DType::F32,
        epilogue: Epilogue::None,
        max_tokens: 8,
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
            out(WIDTH),
            out(INNER),
            out(INNER),
            out(INNER),
            out(WIDTH),
            out(WIDTH),
        ],
        nodes: vec![
            (
                RmsNorm {
                    width: WIDTH,
                    eps: 1e-5,
                    weight_offset: 0.0,
                    dtype: DType::F32,
                }
                .into(),
                vec![0, 1, 5],
            ),
            (linear(WIDTH, INNER).into(), vec![5, 2, ABSENT, ABSENT, 6]),
            (linear(WIDTH, INNER).into(), vec![5, 3, ABSENT, ABSENT, 7]),
            (
                SiluMul {
                    width: INNER,
                    dtype: DType::F32,
                }
                .into(),
                vec![6, 7, 8],
            ),
            (linear(INNER, WIDTH).into(), vec![8, 4, ABSENT, 0, 9]),
            (
                Add {
                    width: WIDTH,
                    dtype: DType::F32,
                }
                .into(),
                vec![9, 9, 10],
            ),
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

pub(super) fn check(device: &dyn Device, oracle: &dyn Device, case: &Case) -> Result<(), String> {
    let program = Program {
        tensors: (0..case.args.len() as u32).map(|index| declared(case, index)).collect(),
        nodes: case
            .nodes
            .iter()
            .map(|(spec, operands)| Node {
                spec: spec.clone(),
                operands: operands.clone(),
            })
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
    if report.claims.is_empty() {
        return Err(format!(
            "the capability is claimed and nothing of a llama block: {}",
            report.left
        ));
    }
    let found = run_claims(device, case, &program, &report.claims).map_err(words)?;
    let expected = execute(oracle, case, 0).map_err(words)?;
    compare(case, &found, &expected).map(|_| ())
}

fn words(failure: Failure) -> String {
    match failure {
        Failure::Unsupported(why) | Failure::Broken(why) => why,
    }
}

/// Runs claims as one op each, and what lies between node by node.
fn run_claims(device: &dyn Device, case: &Case, program: &Program, claims: &[Claim]) -> Result<Vec<Vec<u8>>, Failure> {
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
    submit(device, &encoded)?;
    collect(case, &placed)
}
