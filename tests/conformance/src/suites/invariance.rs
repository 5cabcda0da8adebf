//! Batch invariance, where it is claimed: a row's result is the same, bit for bit, alone and among others.

use halyard_platform_api::ops::{Epilogue, Linear, RmsNorm};
use halyard_platform_api::{Capabilities, DType, Device, OpSpec, WeightFormat};

use super::note;
use crate::Report;
use crate::case::{ABSENT, Arg, Case, Check, Contents};
use crate::cases::weight;
use crate::execute::{Failure, execute};
use crate::random::Random;
use crate::tolerance::{Class, tolerance};

const WIDTH: u32 = 96;
const ROWS: u32 = 33;
/// Rows of the batch; odd, and more than one tile of any backend so far.
const TOKENS: u32 = 29;

pub(super) fn run(device: &dyn Device, seed: u64, report: &mut Report) {
    if !device.info().capabilities.has(Capabilities::BATCH_INVARIANT) {
        return;
    }
    for format in [
        WeightFormat::F32,
        WeightFormat::BF16,
        WeightFormat::Q4_0,
        WeightFormat::Q8_0,
        WeightFormat::F8E4M3,
    ] {
        for allow_quantized_act in [false, true] {
            let op = Linear {
                in_features: WIDTH,
                out_features: ROWS,
                weight: format,
                act: DType::F32,
                out: DType::F32,
                epilogue: Epilogue::None,
                max_tokens: TOKENS,
                allow_quantized_act,
            };
            let what = format!("linear {format:?}, quantized act {allow_quantized_act}");
            note_or_skip(report, &what, check(device, seed, op.into(), Some(format)));
        }
    }
    let norm = RmsNorm {
        width: WIDTH,
        eps: 1e-6,
        weight_offset: 0.0,
        dtype: DType::F32,
    };
    note_or_skip(report, "rms_norm", check(device, seed, norm.into(), None));
}

/// Notes the outcome; an op that the device does not run is none.
fn note_or_skip(report: &mut Report, what: &str, outcome: Result<(), Failure>) {
    match outcome {
        Ok(()) => note(report, "batch invariance", what, Ok(())),
        Err(Failure::Broken(why)) => note(report, "batch invariance", what, Err(why)),
        Err(Failure::Unsupported(why)) => report.row("batch invariance", what).unsupported = Some(why),
    }
}

/// Compares every row of a batch with the row alone.
fn check(device: &dyn Device, seed: u64, spec: OpSpec, format: Option<WeightFormat>) -> Result<(), Failure> {
    let mut random = Random::of(seed, &format!("invariance {format:?}"));
    let x = random.units((TOKENS * WIDTH) as usize);
    let second = match format {
        Some(format) => Arg {
            contents: Contents::Weight {
                node: 0,
                rows: ROWS,
                bytes: weight(&mut random, format, ROWS, WIDTH),
            },
            ..Arg::bytes(DType::U8, &[0], Vec::new())
        },
        None => Arg::floats(DType::F32, &[WIDTH], &random.units(WIDTH as usize)),
    };
    let out_width = if format.is_some() { ROWS } else { WIDTH };
    let run = |x: &[f32]| {
        let tokens = x.len() as u32 / WIDTH;
        let out = Arg {
            check: Check::Near(tolerance(Class::Exact, DType::F32), None),
            ..Arg::floats(
                DType::F32,
                &[tokens, out_width],
                &vec![0.0; (tokens * out_width) as usize],
            )
        };
        let operands = if format.is_some() {
            vec![0, 1, ABSENT, ABSENT, 2]
        } else {
            vec![0, 1, 2]
        };
        let case = Case {
            op: "batch invariance",
            variant: String::new(),
            name: String::new(),
            args: vec![Arg::floats(DType::F32, &[tokens, WIDTH], x), second.clone(), out],
            nodes: vec![(spec.clone(), operands)],
        };
        execute(device, &case, 0).map(|mut tensors| tensors.remove(2))
    };
    let together = run(&x)?;
    let row_bytes = 4 * out_width as usize;
    for (row, x) in x.chunks_exact(WIDTH as usize).enumerate() {
        if run(x)? != together[row * row_bytes..(row + 1) * row_bytes] {
            let why = format!("row {row} of {TOKENS} differs from the same row alone");
            return Err(Failure::Broken(why));
        }
    }
    Ok(())
}
