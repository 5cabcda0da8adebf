//! Encoding and submitting: dead ids, order of step data, command buffers submitted again, objects dropped early.

use std::sync::Arc;

use halyard_platform_api::{
    BufferKind, DType, Device, EncoderMode, PreparedOp, QueueKind, Status, StepWrite, Tensor, ops,
};

use super::{Floats, bytes_of, expect_eq, note};
use crate::Report;
use crate::execute::WAIT_NS;

pub(super) fn run(device: &dyn Device, report: &mut Report) {
    note(report, "execution", "dead ids are refused by name", dead_ids(device));
    for mode in [EncoderMode::OneShot, EncoderMode::Reusable] {
        let what = format!("{mode:?}: each submit sees its own step data");
        note(report, "execution", &what, step_data(device, mode));
    }
    note(
        report,
        "execution",
        "objects dropped while work names them",
        dropped_early(device),
    );
    note(
        report,
        "execution",
        "submit numbers grow and can be waited for",
        numbers(device),
    );
    note(
        report,
        "execution",
        "step writes past a buffer are refused",
        bad_step_write(device),
    );
    note(
        report,
        "execution",
        "ops read what ops wrote to host-visible memory",
        host_visible(device),
    );
}

fn add(device: &dyn Device, width: u32) -> Result<Arc<dyn PreparedOp>, String> {
    device
        .ops()
        .prepare(
            &ops::Add {
                width,
                dtype: DType::F32,
            }
            .into(),
        )
        .map_err(|e| e.to_string())
}

fn dead_ids(device: &dyn Device) -> Result<(), String> {
    let values = Floats::new(device, &[1.0; 4])?;
    let op = add(device, 4)?;
    let queue = device.create_queue(QueueKind::Compute).map_err(|e| e.to_string())?;
    let dead_op = add(device, 8)?.id();
    let dead = device
        .create_buffer(64, BufferKind::Device)
        .map_err(|e| e.to_string())?
        .id();
    let dead = Tensor::contiguous(dead, 0, DType::F32, &[1, 4]);
    let live = values.tensor;
    for (id, operands) in [(dead_op, [live; 3]), (op.id(), [live, dead, live])] {
        let mut encoder = queue.create_encoder(EncoderMode::OneShot).map_err(|e| e.to_string())?;
        // A backend may find out at any of the three steps, but must not run it.
        let outcome = encoder
            .encode(id, &operands)
            .and_then(|()| encoder.finish())
            .and_then(|commands| {
                queue
                    .submit(&[commands.id()], &[])
                    .and_then(|number| queue.wait(number, WAIT_NS))
            });
        match outcome {
            Err(e) if e.status == Status::InvalidArgument && !e.message.is_empty() => {}
            other => return Err(format!("a dead id gave {other:?}")),
        }
    }
    Ok(())
}

/// acc += step, submitted three times without waiting, each after its own step write from memory that is overwritten at
/// once.
fn step_data(device: &dyn Device, mode: EncoderMode) -> Result<(), String> {
    let (acc, step) = (Floats::new(device, &[0.0; 5])?, Floats::new(device, &[0.0; 5])?);
    let op = add(device, 5)?;
    let queue = device.create_queue(QueueKind::Compute).map_err(|e| e.to_string())?;
    let encode = || {
        let mut encoder = queue.create_encoder(mode).map_err(|e| e.to_string())?;
        encoder
            .encode(op.id(), &[acc.tensor, step.tensor, acc.tensor])
            .map_err(|e| e.to_string())?;
        encoder.finish().map_err(|e| e.to_string())
    };
    // A one-shot encoder may start at once, so its step data comes first.
    let reused = match mode {
        EncoderMode::OneShot => None,
        EncoderMode::Reusable => match encode() {
            Ok(commands) => Some(commands),
            Err(why) if !why.is_empty() => return Ok(()),
            Err(why) => return Err(why),
        },
    };
    let mut last = 0;
    for value in [1.0f32, 10.0, 100.0] {
        let mut bytes = bytes_of(&[value; 5]);
        let write = StepWrite {
            buffer: step.buffer.id(),
            offset: 0,
            bytes: &bytes,
        };
        queue.write_step(&[write]).map_err(|e| e.to_string())?;
        bytes.fill(0x7F);
        let commands = match &reused {
            Some(commands) => Arc::clone(commands),
            None => encode()?,
        };
        last = queue.submit(&[commands.id()], &[]).map_err(|e| e.to_string())?;
    }
    queue.wait(last, WAIT_NS).map_err(|e| e.to_string())?;
    expect_eq("1 + 10 + 100", &acc.read()?, &vec![111.0; 5])
}

fn dropped_early(device: &dyn Device) -> Result<(), String> {
    let (a, out) = (Floats::new(device, &[2.0; 64])?, Floats::new(device, &[0.0; 64])?);
    let op = add(device, 64)?;
    let queue = device.create_queue(QueueKind::Compute).map_err(|e| e.to_string())?;
    let mut encoder = queue.create_encoder(EncoderMode::OneShot).map_err(|e| e.to_string())?;
    encoder
        .encode(op.id(), &[a.tensor, a.tensor, out.tensor])
        .map_err(|e| e.to_string())?;
    let commands = encoder.finish().map_err(|e| e.to_string())?;
    let number = queue.submit(&[commands.id()], &[]).map_err(|e| e.to_string())?;
    drop((commands, op, a));
    queue.wait(number, WAIT_NS).map_err(|e| e.to_string())?;
    expect_eq("the sum", &out.read()?, &vec![4.0; 64])
}

/// Two submits: the first writes host-visible memory, the second reads it.
fn host_visible(device: &dyn Device) -> Result<(), String> {
    let values = Floats::new(device, &[2.0; 64])?;
    let op = add(device, 64)?;
    let queue = device.create_queue(QueueKind::Compute).map_err(|e| e.to_string())?;
    let buffer = || {
        device
            .create_buffer(256, BufferKind::HostVisible)
            .map_err(|e| e.to_string())
    };
    let (first, second) = (buffer()?, buffer()?);
    let tensor = |id| Tensor::contiguous(id, 0, DType::F32, &values.tensor.shape[..2]);
    let (first_tensor, second_tensor) = (tensor(first.id()), tensor(second.id()));
    let mut last = 0;
    for (x, out) in [(values.tensor, first_tensor), (first_tensor, second_tensor)] {
        let mut encoder = queue.create_encoder(EncoderMode::OneShot).map_err(|e| e.to_string())?;
        encoder.encode(op.id(), &[x, x, out]).map_err(|e| e.to_string())?;
        let commands = encoder.finish().map_err(|e| e.to_string())?;
        last = queue.submit(&[commands.id()], &[]).map_err(|e| e.to_string())?;
    }
    queue.wait(last, WAIT_NS).map_err(|e| e.to_string())?;
    let mut bytes = vec![0; 256];
    second.read(0, &mut bytes).map_err(|e| e.to_string())?;
    expect_eq("twice the double", &bytes, &bytes_of(&[8.0; 64]))
}

fn numbers(device: &dyn Device) -> Result<(), String> {
    let queue = device.create_queue(QueueKind::Compute).map_err(|e| e.to_string())?;
    let first = queue.submit(&[], &[]).map_err(|e| e.to_string())?;
    let second = queue.submit(&[], &[]).map_err(|e| e.to_string())?;
    queue.wait(second, WAIT_NS).map_err(|e| e.to_string())?;
    let completed = queue.completed();
    if first >= 1 && second > first && completed >= second && completed != u64::MAX {
        Ok(())
    } else {
        Err(format!("numbers {first} and {second}, completed {completed}"))
    }
}

fn bad_step_write(device: &dyn Device) -> Result<(), String> {
    let queue = device.create_queue(QueueKind::Compute).map_err(|e| e.to_string())?;
    let buffer = device
        .create_buffer(16, BufferKind::Device)
        .map_err(|e| e.to_string())?;
    let outcome = queue.write_step(&[StepWrite {
        buffer: buffer.id(),
        offset: 8,
        bytes: &[1; 9],
    }]);
    match outcome {
        Err(e) if e.status == Status::InvalidArgument => Ok(()),
        other => Err(format!("9 bytes at 8 of 16: {other:?}")),
    }
}
