//! What docs/abi.md rules of objects, queues and encoders, where backends once differed: what a command buffer keeps
//! alive, what a refused call leaves behind, what waits say, and how far a recording can be relied on.

use std::sync::Arc;

use halyard_platform_api::{
    BufferKind, Capabilities, CommandBuffer, DType, Device, EncoderMode, Error, MAX_STEP_WRITE_BYTES, PreparedOp,
    Queue, QueueKind, QueueWait, Status, StepWrite, Tensor, WeightFormat, WeightRows, ops,
};

use super::{Floats, bytes_of, expect_eq, note};
use crate::Report;
use crate::execute::WAIT_NS;

type Outcome = Result<(), String>;
/// A rule in words, and what looks whether it holds.
type Rule = (&'static str, fn(&dyn Device) -> Outcome);

pub(super) fn run(device: &dyn Device, report: &mut Report) {
    let rules: [Rule; 14] = [
        ("a command buffer keeps alive what it names", keeps_alive),
        ("a one-shot command buffer is submitted once", submitted_once),
        ("a command buffer goes to the queue it was encoded for", of_one_queue),
        ("a refused op is not encoded, and the encoder goes on", refused_op),
        ("a wait for a submit that was not made is refused", wait_for_nothing),
        ("queues wait for each other", cross_wait),
        ("any thread may wait", wait_elsewhere),
        ("recordings survive a larger scratch arena", larger_scratch),
        ("equal specs prepared twice live apart", prepared_twice),
        ("a refused step write changes nothing", refused_step_write),
        ("a step writes as many bytes as its queue was made for", large_step),
        ("rows of a weight may be packed again", packed_again),
        ("copy queues copy", copy_queue),
        ("what says that it records can record `add`", records),
    ];
    for (name, rule) in rules {
        note(report, "rules", name, rule(device));
    }
}

fn text(error: Error) -> String {
    error.to_string()
}

/// Whether a call was refused as a mistake of the caller, with words.
fn refused<T>(name: &str, outcome: Result<T, Error>) -> Outcome {
    match outcome {
        Err(e) if e.status == Status::InvalidArgument && !e.message.is_empty() => Ok(()),
        Err(e) => Err(format!("{name}: {e}, expected InvalidArgument with words")),
        Ok(_) => Err(format!("{name}: it was taken")),
    }
}

/// `acc += step` over four floats.
struct Sum {
    op: Arc<dyn PreparedOp>,
    acc: Floats,
    step: Floats,
}

impl Sum {
    fn new(device: &dyn Device) -> Result<Sum, String> {
        Ok(Sum {
            op: prepare(device)?,
            acc: Floats::new(device, &[0.0; 4])?,
            step: Floats::new(device, &[1.0; 4])?,
        })
    }

    fn operands(&self) -> [Tensor; 3] {
        [self.acc.tensor, self.step.tensor, self.acc.tensor]
    }

    fn encode(&self, queue: &dyn Queue, mode: EncoderMode) -> Result<Arc<dyn CommandBuffer>, Error> {
        let mut encoder = queue.create_encoder(mode)?;
        encoder.encode(self.op.id(), &self.operands())?;
        encoder.finish()
    }

    fn is(&self, expected: f32) -> Outcome {
        expect_eq("the sum", &self.acc.read()?, &vec![expected; 4])
    }
}

fn prepare(device: &dyn Device) -> Result<Arc<dyn PreparedOp>, String> {
    let add = ops::Add {
        width: 4,
        dtype: DType::F32,
    };
    device.ops().prepare(&add.into()).map_err(text)
}

fn compute(device: &dyn Device) -> Result<Arc<dyn Queue>, String> {
    device.create_queue(QueueKind::Compute).map_err(text)
}

/// Submits and waits.
fn finish(queue: &dyn Queue, commands: &Arc<dyn CommandBuffer>) -> Outcome {
    let number = queue.submit(&[commands.id()], &[]).map_err(text)?;
    queue.wait(number, WAIT_NS).map_err(text)
}

/// A reusable command buffer of `sum`; `None` where the device has none, with its reason.
fn recorded(sum: &Sum, queue: &dyn Queue) -> Result<Option<Arc<dyn CommandBuffer>>, String> {
    match sum.encode(queue, EncoderMode::Reusable) {
        Ok(commands) => Ok(Some(commands)),
        Err(e) if e.status == Status::Unsupported && !e.message.is_empty() => Ok(None),
        Err(e) => Err(text(e)),
    }
}

fn keeps_alive(device: &dyn Device) -> Outcome {
    let queue = compute(device)?;
    for mode in [EncoderMode::OneShot, EncoderMode::Reusable] {
        let sum = Sum::new(device)?;
        let commands = match mode {
            EncoderMode::OneShot => Some(sum.encode(&*queue, mode).map_err(text)?),
            EncoderMode::Reusable => recorded(&sum, &*queue)?,
        };
        let Some(commands) = commands else { continue };
        let Sum { op, acc, step } = sum;
        drop((op, step));
        finish(&*queue, &commands).map_err(|e| format!("{mode:?}: {e}"))?;
        expect_eq(&format!("{mode:?}: the sum"), &acc.read()?, &vec![1.0; 4])?;
    }
    Ok(())
}

fn submitted_once(device: &dyn Device) -> Outcome {
    let (queue, sum) = (compute(device)?, Sum::new(device)?);
    let commands = sum.encode(&*queue, EncoderMode::OneShot).map_err(text)?;
    finish(&*queue, &commands)?;
    refused("the second submit", queue.submit(&[commands.id()], &[]))?;
    // The queue goes on.
    let commands = sum.encode(&*queue, EncoderMode::OneShot).map_err(text)?;
    finish(&*queue, &commands)?;
    sum.is(2.0)
}

fn of_one_queue(device: &dyn Device) -> Outcome {
    let (here, there, sum) = (compute(device)?, compute(device)?, Sum::new(device)?);
    let foreign = sum.encode(&*there, EncoderMode::OneShot).map_err(text)?;
    let own = sum.encode(&*here, EncoderMode::OneShot).map_err(text)?;
    refused("a submit to another queue", here.submit(&[own.id(), foreign.id()], &[]))?;
    // It ran nothing, and neither of them counts as submitted.
    finish(&*there, &foreign)?;
    finish(&*here, &own)?;
    sum.is(2.0)
}

/// Bytes of a step that are more than those of a queue that was made without a wish.
const LARGE_STEP: usize = MAX_STEP_WRITE_BYTES + 4096;

fn large_step(device: &dyn Device) -> Outcome {
    let queue = device
        .create_queue_for(QueueKind::Compute, LARGE_STEP as u64)
        .map_err(text)?;
    let buffer = device
        .create_buffer(LARGE_STEP as u64, BufferKind::Device)
        .map_err(text)?;
    let bytes: Vec<u8> = (0..LARGE_STEP).map(|i| (i % 251) as u8).collect();
    let write = StepWrite {
        buffer: buffer.id(),
        offset: 0,
        bytes: &bytes,
    };
    queue.write_step(&[write]).map_err(text)?;
    let number = queue.submit(&[], &[]).map_err(text)?;
    queue.wait(number, WAIT_NS).map_err(text)?;
    let mut found = vec![0; LARGE_STEP];
    buffer.read(0, &mut found).map_err(text)?;
    match found == bytes {
        true => Ok(()),
        false => Err("other bytes arrived".to_string()),
    }
}

fn refused_op(device: &dyn Device) -> Outcome {
    let (queue, sum) = (compute(device)?, Sum::new(device)?);
    let [a, b, out] = sum.operands();
    let past_the_end = Tensor { offset: 1 << 40, ..b };
    let mut wrong_rank = b;
    wrong_rank.rank = 5;
    let mut encoder = queue.create_encoder(EncoderMode::OneShot).map_err(text)?;
    encoder.encode(sum.op.id(), &[a, b, out]).map_err(text)?;
    refused(
        "bytes past the buffer",
        encoder.encode(sum.op.id(), &[a, past_the_end, out]),
    )?;
    refused("a rank of 5", encoder.encode(sum.op.id(), &[a, wrong_rank, out]))?;
    let unknown = encoder.encode(sum.op.id(), &[a, Tensor { dtype: 4000, ..b }, out]);
    match unknown {
        Err(e) if matches!(e.status, Status::InvalidArgument | Status::Unsupported) && !e.message.is_empty() => {}
        other => return Err(format!("a type of code 4000: {other:?}")),
    }
    encoder.encode(sum.op.id(), &[a, b, out]).map_err(text)?;
    let commands = encoder.finish().map_err(text)?;
    finish(&*queue, &commands)?;
    sum.is(2.0)
}

fn wait_for_nothing(device: &dyn Device) -> Outcome {
    let queue = compute(device)?;
    let last = queue.submit(&[], &[]).map_err(text)?;
    refused("the host's wait", queue.wait(last + 1, 0))?;
    queue.wait(last, u64::MAX).map_err(text)?;
    // What is done is done, whatever the time.
    queue.wait(last, 0).map_err(text)?;
    let beyond = QueueWait {
        queue: queue.id(),
        number: last + 5,
    };
    refused("a submit's wait", queue.submit(&[], &[beyond]))?;
    let next = queue.submit(&[], &[]).map_err(text)?;
    queue.wait(next, WAIT_NS).map_err(text)
}

fn cross_wait(device: &dyn Device) -> Outcome {
    let first = compute(device)?;
    let second = match device.create_queue(QueueKind::Compute) {
        Ok(queue) => queue,
        Err(_) if !device.info().capabilities.has(Capabilities::CONCURRENT_QUEUES) => return Ok(()),
        Err(e) => return Err(format!("it says that queues run side by side: {e}")),
    };
    let sum = Sum::new(device)?;
    let mut expected = 0.0;
    let mut last: Option<(Arc<dyn Queue>, u64)> = None;
    for turn in 0..6 {
        let queue = if turn % 2 == 0 { &first } else { &second };
        let waits: Vec<QueueWait> = last
            .iter()
            .map(|(other, number)| QueueWait {
                queue: other.id(),
                number: *number,
            })
            .collect();
        let commands = sum.encode(&**queue, EncoderMode::OneShot).map_err(text)?;
        let number = queue.submit(&[commands.id()], &waits).map_err(text)?;
        last = Some((queue.clone(), number));
        expected += 1.0;
    }
    if let Some((queue, number)) = last {
        queue.wait(number, WAIT_NS).map_err(text)?;
    }
    sum.is(expected)
}

fn wait_elsewhere(device: &dyn Device) -> Outcome {
    let (queue, sum) = (compute(device)?, Sum::new(device)?);
    for _ in 0..4 {
        let commands = sum.encode(&*queue, EncoderMode::OneShot).map_err(text)?;
        let number = queue.submit(&[commands.id()], &[]).map_err(text)?;
        let other = queue.clone();
        let waited = std::thread::spawn(move || {
            other.wait(number, WAIT_NS)?;
            Ok::<_, Error>(other.completed())
        });
        let completed = waited
            .join()
            .map_err(|_| "the waiting thread panicked")?
            .map_err(text)?;
        if completed < number || completed == u64::MAX {
            return Err(format!("submit {number} is done, completed says {completed}"));
        }
    }
    sum.is(4.0)
}

fn larger_scratch(device: &dyn Device) -> Outcome {
    let (queue, sum) = (compute(device)?, Sum::new(device)?);
    let Some(commands) = recorded(&sum, &*queue)? else {
        return Ok(());
    };
    finish(&*queue, &commands)?;
    queue.reserve_scratch(9 << 20).map_err(text)?;
    finish(&*queue, &commands)?;
    sum.is(2.0)
}

fn prepared_twice(device: &dyn Device) -> Outcome {
    let (queue, sum) = (compute(device)?, Sum::new(device)?);
    let other = prepare(device)?;
    drop(other);
    let commands = sum.encode(&*queue, EncoderMode::OneShot).map_err(text)?;
    finish(&*queue, &commands)?;
    sum.is(1.0)
}

fn refused_step_write(device: &dyn Device) -> Outcome {
    let (queue, values) = (compute(device)?, Floats::new(device, &[3.0; 4])?);
    let (good, bad) = (bytes_of(&[7.0; 4]), [0; 9]);
    let write = |offset, bytes| StepWrite {
        buffer: values.buffer.id(),
        offset,
        bytes,
    };
    refused(
        "9 bytes at 8 of 16",
        queue.write_step(&[write(0, &good), write(8, &bad)]),
    )?;
    let number = queue.submit(&[], &[]).map_err(text)?;
    queue.wait(number, WAIT_NS).map_err(text)?;
    expect_eq("the buffer", &values.read()?, &vec![3.0; 4])
}

/// The identity, packed over a weight of sevens.
fn packed_again(device: &dyn Device) -> Outcome {
    let linear = ops::Linear {
        in_features: 32,
        out_features: 32,
        weight: WeightFormat::F32,
        act: DType::F32,
        out: DType::F32,
        epilogue: ops::Epilogue::None,
        max_tokens: 1,
        allow_quantized_act: false,
    };
    let op = match device.ops().prepare(&linear.into()) {
        Ok(op) => op,
        Err(e) if e.status == Status::Unsupported && !e.message.is_empty() => return Ok(()),
        Err(e) => return Err(text(e)),
    };
    let bytes = op.packed_weight_bytes(0).map_err(text)?;
    let buffer = device.create_buffer(bytes, BufferKind::Device).map_err(text)?;
    let weight = Tensor::opaque(buffer.id(), 0, bytes);
    let identity: Vec<f32> = (0..32 * 32).map(|i| if i % 33 == 0 { 1.0 } else { 0.0 }).collect();
    for values in [vec![7.0; 32 * 32], identity] {
        let rows = WeightRows {
            first_row: 0,
            num_rows: 32,
            bytes: &bytes_of(&values),
        };
        op.pack_weight(0, rows, &weight).map_err(text)?;
    }
    let x: Vec<f32> = (0..32).map(|i| i as f32).collect();
    let (from, to) = (Floats::new(device, &x)?, Floats::new(device, &[0.0; 32])?);
    let queue = compute(device)?;
    queue.reserve_scratch(op.info().scratch_bytes).map_err(text)?;
    let mut encoder = queue.create_encoder(EncoderMode::OneShot).map_err(text)?;
    let operands = [from.tensor, weight, Tensor::NONE, Tensor::NONE, to.tensor];
    encoder.encode(op.id(), &operands).map_err(text)?;
    let commands = encoder.finish().map_err(text)?;
    finish(&*queue, &commands)?;
    expect_eq("x times the identity", &to.read()?, &x)
}

fn copy_queue(device: &dyn Device) -> Outcome {
    let queue = match device.create_queue(QueueKind::Copy) {
        Ok(queue) => queue,
        Err(e) if e.status == Status::Unsupported && !e.message.is_empty() => return Ok(()),
        Err(e) => return Err(text(e)),
    };
    let copy = ops::Copy { dtype: DType::F32 };
    let op = device.ops().prepare(&copy.into()).map_err(text)?;
    let (from, to) = (Floats::new(device, &[5.0; 4])?, Floats::new(device, &[0.0; 4])?);
    let mut encoder = queue.create_encoder(EncoderMode::OneShot).map_err(text)?;
    encoder.encode(op.id(), &[from.tensor, to.tensor]).map_err(text)?;
    let commands = encoder.finish().map_err(text)?;
    finish(&*queue, &commands)?;
    expect_eq("the copy", &to.read()?, &vec![5.0; 4])
}

fn records(device: &dyn Device) -> Outcome {
    if !device.info().capabilities.has(Capabilities::RECORDING) {
        return Ok(());
    }
    let (queue, sum) = (compute(device)?, Sum::new(device)?);
    if !sum.op.info().recordable {
        return Err("it claims recordings, and `add` cannot be recorded".to_string());
    }
    let commands = sum.encode(&*queue, EncoderMode::Reusable).map_err(text)?;
    finish(&*queue, &commands)?;
    finish(&*queue, &commands)?;
    sum.is(2.0)
}
