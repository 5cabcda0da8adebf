//! Behaviour beyond single ops: memory, ids, step data and reuse of command buffers, composites against their parts,
//! collectives.

mod attention_layer;
mod collectives;
mod composites;
mod execution;
mod experts;
mod first_half;
mod invariance;
mod memory;
mod rules;

use std::sync::Arc;

use halyard_platform_api::{Buffer, BufferKind, DType, Device, Tensor};

use crate::{Options, Report};

pub use collectives::check_collectives;

/// Runs every suite that needs one device.
pub(crate) fn run(device: &Arc<dyn Device>, oracle: &Arc<dyn Device>, options: &Options, report: &mut Report) {
    let wanted = |suite: &str| options.wants_part(suite) && options.only_op.as_ref().is_none_or(|only| only == suite);
    if wanted("memory") {
        memory::run(&**device, report);
    }
    if wanted("execution") {
        execution::run(&**device, report);
    }
    if wanted("rules") {
        rules::run(&**device, report);
    }
    if wanted("composites") {
        composites::run(&**device, &**oracle, options, report);
        attention_layer::run(&**device, &**oracle, options, report);
        first_half::run(&**device, &**oracle, options, report);
    }
    if wanted("experts") {
        experts::run(&**device, &**oracle, options.seed, report);
    }
    if wanted("invariance") {
        invariance::run(&**device, options.seed, report);
    }
}

/// Notes the outcome of a check.
fn note(report: &mut Report, suite: &str, name: &str, outcome: Result<(), String>) {
    let row = report.row(suite, name);
    row.cases += 1;
    match outcome {
        Ok(()) => row.passed += 1,
        Err(why) => row.failures.push(why),
    }
    report.row_ends();
}

/// f32 values in a buffer of their own.
struct Floats {
    buffer: Arc<dyn Buffer>,
    tensor: Tensor,
}

impl Floats {
    fn new(device: &dyn Device, values: &[f32]) -> Result<Floats, String> {
        let buffer = device
            .create_buffer(4 * values.len() as u64, BufferKind::Device)
            .map_err(|e| e.to_string())?;
        let tensor = Tensor::contiguous(buffer.id(), 0, DType::F32, &[1, values.len() as u32]);
        buffer.write(0, &bytes_of(values)).map_err(|e| e.to_string())?;
        Ok(Floats { buffer, tensor })
    }

    fn read(&self) -> Result<Vec<f32>, String> {
        let mut bytes = vec![0; self.buffer.bytes() as usize];
        self.buffer.read(0, &mut bytes).map_err(|e| e.to_string())?;
        Ok(bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect())
    }
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn expect_eq<T: PartialEq + std::fmt::Debug>(name: &str, found: &T, expected: &T) -> Result<(), String> {
    if found == expected {
        Ok(())
    } else {
        Err(format!("{name}: {found:?}, expected {expected:?}"))
    }
}
