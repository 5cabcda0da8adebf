//! Composites: a llama-like block as a program; every region that the device claims runs as one op and must give what
//! its parts give on the oracle. A device without the capability must claim nothing and say why.

use std::sync::Arc;

use halyard_platform_api::ops::{Add, Epilogue, Linear, RmsNorm, SiluMul};
use halyard_platform_api::{
    Capabilities, Claim, DType, Device, EncoderMode, Node, OpSpec, PreparedOp, Program, TensorDecl, WeightFormat,
};

use super::note;
use crate::case::{ABSENT, Arg, Case, Check, Contents};
use crate::cases::weight;
use crate::execute::{Failure, collect, compare, execute, operands, place_all, submit};
use crate::random::Random;
use crate::tolerance::Class;
use crate::{Options, Report};

/// A llama-like block: norm → gate and up → silu_mul → down + residual → add.
#[derive(Clone, Copy)]
struct Block {
    format: WeightFormat,
    act: DType,
    tokens: u32,
    width: u32,
    inner: u32,
    /// Nobody looks at what lies between; it may stay unwritten: a backend then has most to gain, and to get wrong.
    private: bool,
    /// Gate and up are one matrix.
    merged: bool,
    /// Activations may be rounded.
    rounded: bool,
}

const SMALL: Block = Block {
    format: WeightFormat::BF16,
    act: DType::BF16,
    tokens: 5,
    width: 64,
    inner: 96,
    private: true,
    merged: false,
    rounded: false,
};
/// Batches over matrices that fill a device, in tiles that are not whole: over a depth that cannot be shared out
/// evenly, and over a short one.
const LARGE: Block = Block {
    tokens: 40,
    width: 1096,
    inner: 1504,
    ..SMALL
};
const WIDE: Block = Block {
    tokens: 48,
    width: 264,
    inner: 9864,
    ..SMALL
};
/// The same over weights of 8 bits.
const LARGE_IN_BYTES: Block = Block {
    format: WeightFormat::F8E4M3,
    width: 2064,
    rounded: true,
    ..LARGE
};
const WIDE_IN_BYTES: Block = Block {
    format: WeightFormat::F8E4M3,
    width: 528,
    inner: 9872,
    rounded: true,
    ..WIDE
};

/// Whose weights have this format, under small activations of this type that everybody may look at.
fn looked_at(format: WeightFormat, act: DType) -> Block {
    Block {
        format,
        act,
        private: false,
        ..SMALL
    }
}

/// The same with a scale for every 128 weights.
fn in_groups(block: Block) -> Block {
    Block {
        format: WeightFormat::F8G128,
        ..block
    }
}

pub(super) fn run(device: &dyn Device, oracle: &dyn Device, options: &Options, report: &mut Report) {
    for block in [
        looked_at(WeightFormat::F32, DType::F32),
        looked_at(WeightFormat::Q4_0, DType::F32),
        SMALL,
        LARGE,
        WIDE,
        looked_at(WeightFormat::BF16, DType::BF16),
        looked_at(WeightFormat::F8E4M3, DType::F32),
        Block {
            format: WeightFormat::F8E4M3,
            ..SMALL
        },
        Block {
            width: 584,
            inner: 1544,
            ..LARGE
        },
        Block {
            width: 584,
            inner: 776,
            tokens: 50,
            ..LARGE
        },
        Block {
            width: 584,
            inner: 1544,
            tokens: 100,
            ..LARGE
        },
        Block {
            width: 584,
            inner: 776,
            tokens: 200,
            ..LARGE
        },
        LARGE_IN_BYTES,
        WIDE_IN_BYTES,
        Block {
            merged: true,
            tokens: 100,
            ..LARGE_IN_BYTES
        },
        Block {
            width: 2176,
            inner: 1536,
            ..in_groups(LARGE_IN_BYTES)
        },
        Block {
            width: 640,
            inner: 9984,
            merged: true,
            ..in_groups(WIDE_IN_BYTES)
        },
    ] {
        if device.info().compute_dtypes.contains(block.act) && options.wants_row("composites", &block.name()) {
            let outcome = check(device, oracle, &block.case(options.seed), true);
            note(report, "composites", &block.name(), outcome);
        }
    }
}

impl Block {
    fn name(&self) -> String {
        let Block {
            format, act, tokens, ..
        } = self;
        let said = [
            (self.private, ", private between"),
            (self.merged, ", gate and up in one"),
            (self.rounded, ", quantized act allowed"),
        ];
        let said: String = said.iter().filter(|(is, _)| *is).map(|(_, text)| *text).collect();
        format!("claimed regions of a {format:?} x {act:?} block of {tokens} tokens{said}")
    }

    /// An output of the tokens.
    fn out(&self, width: u32) -> Arg {
        let (act, terms) = (self.act, self.inner as usize);
        // The last sum is over products of a gate and an up value, not over values up to 1: they reach tens. Half types
        // round them, or do not, at each of three steps before it. Where activations may be rounded, weights are 8-bit
        // floats, which are smaller here: their root mean square is 0.3 with a scale a row and 0.15 with scales of
        // groups, that of the products 1.7 and 0.27. The factors were found with NumPy: of 200,000 results rounded
        // there the worst is at 0.70 of the bound with a scale a row, and at 0.53 with scales of groups.
        let (class, more) = match (self.rounded, act) {
            (true, _) if self.format == WeightFormat::F8E4M3 => (Class::RoundedProduct { terms }, 6.0),
            (true, _) => (Class::RoundedProduct { terms }, 0.4),
            (false, DType::F32) => (Class::Product { terms, act }, 10.0),
            (false, _) => (Class::Product { terms, act }, 30.0),
        };
        let zeros = vec![0.0; (self.tokens * width) as usize];
        let mut arg = Arg::floats(act, &[self.tokens, width], &zeros).checked(class);
        if let Check::Near(tolerance, _) = &mut arg.check {
            tolerance.abs *= more;
        }
        arg
    }

    /// The same added to itself: it errs by twice as much.
    fn twice(&self, width: u32) -> Arg {
        let mut arg = self.out(width);
        if let (true, Check::Near(tolerance, _)) = (self.rounded, &mut arg.check) {
            tolerance.abs *= 2.0;
        }
        arg
    }

    /// What lies between.
    fn between(&self, width: u32) -> Arg {
        let out = self.out(width);
        match self.private {
            true => Arg {
                check: Check::Ignored,
                ..out
            },
            false => out,
        }
    }

    fn linear(&self, in_features: u32, out_features: u32) -> OpSpec {
        Linear {
            in_features,
            out_features,
            weight: self.format,
            act: self.act,
            out: self.act,
            epilogue: Epilogue::None,
            max_tokens: self.tokens.max(8),
            allow_quantized_act: self.rounded,
        }
        .into()
    }

    fn case(&self, seed: u64) -> Case {
        let Block {
            format,
            act,
            tokens,
            width,
            inner,
            ..
        } = *self;
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
        let rms_norm = RmsNorm {
            width,
            eps: 1e-5,
            weight_offset: 0.0,
            dtype: act,
        };
        let half = |first| Arg::slice(act, &[tokens, inner], 5, first);
        // 0 hidden, 1 norm, 2 and 3 weights, 4 normed, 5 gate (or gate and up), 6 gate's half or up, 7 up's half or
        // up's weight, 8 product, 9 out, 10 twice
        let (projections, weights, parts, [gate, up]) = match self.merged {
            true => (
                vec![(self.linear(width, 2 * inner), vec![4, 2, ABSENT, ABSENT, 5])],
                [matrix(1, 2 * inner, width), matrix(3, width, inner)],
                [self.between(2 * inner), half(0), half(inner)],
                [6, 7],
            ),
            false => {
                let (gate, up, down) = (
                    matrix(1, inner, width),
                    matrix(2, inner, width),
                    matrix(4, width, inner),
                );
                (
                    vec![
                        (self.linear(width, inner), vec![4, 2, ABSENT, ABSENT, 5]),
                        (self.linear(width, inner), vec![4, 7, ABSENT, ABSENT, 6]),
                    ],
                    [gate, down],
                    [self.between(inner), self.between(inner), up],
                    [5, 6],
                )
            }
        };
        let ends = [
            (SiluMul::plain(inner, act).into(), vec![gate, up, 8]),
            (self.linear(inner, width), vec![8, 3, ABSENT, 0, 9]),
            (Add { width, dtype: act }.into(), vec![9, 9, 10]),
        ];
        Case {
            op: "composites",
            variant: String::new(),
            name: format!("{format:?}"),
            args: [hidden, norm]
                .into_iter()
                .chain(weights)
                .chain([self.between(width)])
                .chain(parts)
                .chain([self.between(inner), self.out(width), self.twice(width)])
                .collect(),
            nodes: [(rms_norm.into(), vec![0, 1, 4])]
                .into_iter()
                .chain(projections)
                .chain(ends)
                .collect(),
        }
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
