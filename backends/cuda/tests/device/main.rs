//! Tests of an asynchronous device that go beyond conformance: replays, the ring and ordering under load, and their
//! cost. Every test needs a GPU and says so where there is none.

mod faults;
mod ranks;

use std::sync::Arc;
use std::time::Instant;

use halyard_cuda::CudaPlatform;
use halyard_platform_api::communicator::{Collective, CollectiveKind};
use halyard_platform_api::ops::{Add, Copy, Epilogue, Linear};
use halyard_platform_api::{
    Buffer, BufferKind, CommandBuffer, CommunicatorDesc, DType, Device, EncoderMode, Platform, PreparedOp, Queue,
    QueueKind, QueueWait, Status, StepWrite, Tensor, WeightFormat, WeightRows,
};

const WAIT_NS: u64 = 20_000_000_000;

/// The first device; `None`, and a line that says why, where there is none.
fn device() -> Option<Arc<dyn Device>> {
    match CudaPlatform.devices() {
        Ok(_) => Some(CudaPlatform.open(0).expect("the device opens")),
        Err(e) => {
            assert_eq!(e.status, Status::Unavailable, "{e}");
            println!("skipped: {}", e.message);
            None
        }
    }
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn floats_of(buffer: &dyn Buffer) -> Vec<f32> {
    let mut bytes = vec![0; buffer.bytes() as usize];
    buffer.read(0, &mut bytes).expect("in range");
    bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

/// A buffer of floats and its tensor of one row.
fn floats(device: &dyn Device, values: &[f32]) -> (Arc<dyn Buffer>, Tensor) {
    let buffer = device
        .create_buffer(values.len() as u64 * 4, BufferKind::Device)
        .expect("memory");
    buffer.write(0, &bytes_of(values)).expect("in range");
    let tensor = Tensor::contiguous(buffer.id(), 0, DType::F32, &[1, values.len() as u32]);
    (buffer, tensor)
}

fn add(device: &dyn Device, width: u32) -> Arc<dyn PreparedOp> {
    let spec = Add {
        width,
        dtype: DType::F32,
    };
    device.ops().prepare(&spec.into()).expect("add is there")
}

fn encode(
    queue: &dyn Queue,
    mode: EncoderMode,
    commands: &[(&Arc<dyn PreparedOp>, Vec<Tensor>)],
) -> Arc<dyn CommandBuffer> {
    let mut encoder = queue.create_encoder(mode).expect("an encoder");
    for (op, operands) in commands {
        encoder.encode(op.id(), operands).expect("live ids");
    }
    encoder.finish().expect("a list")
}

#[test]
fn ten_thousand_replays_take_no_memory_and_miss_none() {
    let Some(device) = device() else { return };
    let (sum, total) = floats(&*device, &[0.0; 64]);
    let (_one, one) = floats(&*device, &[1.0; 64]);
    let op = add(&*device, 64);
    // A chain of launches that overlap as far as they may: each adds one.
    let chain: Vec<_> = (0..20).map(|_| (&op, vec![total, one, total])).collect();
    let queue = device.create_queue(QueueKind::Compute).expect("a queue");
    let list = encode(&*queue, EncoderMode::Reusable, &chain);
    let mut free = 0;
    let mut last = 0;
    for i in 0..10_000 {
        last = queue.submit(&[list.id()], &[]).expect("submits");
        if i % 64 == 0 {
            queue.wait(last, WAIT_NS).expect("done");
        }
        if i == 100 {
            free = device.memory().expect("known").free_bytes;
        }
    }
    queue.wait(last, WAIT_NS).expect("done");
    assert_eq!(device.memory().expect("known").free_bytes, free);
    assert_eq!(floats_of(&*sum), vec![200_000.0; 64]);
}

/// One queue is busy for a millisecond, the other takes its result: only a wait on the device makes that whole.
#[test]
fn a_queue_that_waits_for_another_sees_all_of_its_work() {
    let Some(device) = device() else { return };
    const WIDTH: usize = 1 << 20;
    let op = add(&*device, WIDTH as u32);
    let queues: Vec<Arc<dyn Queue>> = (0..2)
        .map(|_| device.create_queue(QueueKind::Compute).expect("a queue"))
        .collect();
    let values: Vec<f32> = (0..WIDTH).map(|i| (i % 1000) as f32).collect();
    let (_step, step) = floats(&*device, &values);
    let (_zero, zero) = floats(&*device, &vec![0.0; WIDTH]);
    let results: Vec<Vec<f32>> = [EncoderMode::OneShot, EncoderMode::Reusable]
        .into_iter()
        .map(|mode| {
            let (_sum, total) = floats(&*device, &values);
            let (taken, out) = floats(&*device, &vec![0.0; WIDTH]);
            let work: Vec<_> = (0..300).map(|_| (&op, vec![total, step, total])).collect();
            let work = encode(&*queues[0], mode, &work);
            let take = encode(&*queues[1], mode, &[(&op, vec![total, zero, out])]);
            let number = queues[0].submit(&[work.id()], &[]).expect("submits");
            let wait = QueueWait {
                queue: queues[0].id(),
                number,
            };
            let number = queues[1].submit(&[take.id()], &[wait]).expect("submits");
            queues[1].wait(number, WAIT_NS).expect("done");
            assert!(queues[0].completed() >= wait.number, "the other's work is over too");
            floats_of(&*taken)
        })
        .collect();
    assert!(results[0] == results[1], "recordings differ from one-shots");
    let differs = (0..WIDTH).find(|&i| results[0][i] != values[i] * 301.0);
    assert_eq!(differs, None);
}

#[test]
fn a_wait_for_work_never_submitted_is_refused() {
    let Some(device) = device() else { return };
    let (a, b) = (
        device.create_queue(QueueKind::Compute).expect("a queue"),
        device.create_queue(QueueKind::Copy).expect("a queue"),
    );
    let wait = QueueWait {
        queue: a.id(),
        number: 3,
    };
    let error = b.submit(&[], &[wait]).expect_err("nothing to wait for");
    assert_eq!(error.status, Status::InvalidArgument);
    assert_eq!(a.wait(1, 0).expect_err("never made").status, Status::InvalidArgument);
    assert_eq!(b.submit(&[], &[]), Ok(1), "the queue still works");
}

#[test]
fn step_writes_of_any_size_and_alignment_arrive_in_order() {
    let Some(device) = device() else { return };
    let queue = device.create_queue_for(QueueKind::Compute, 16 << 20).expect("a queue");
    const SIZE: usize = 5 << 20;
    let mut expected = vec![0u8; SIZE];
    let buffer = device.create_buffer(SIZE as u64, BufferKind::Device).expect("memory");
    let mut state = 12345u64;
    let mut random = |below: usize| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    // Small ones by the dozen, then more than a slot of the ring, then the same places twice in one call.
    for round in 0..60 {
        let largest = [40, 70_000, 3 << 20][round % 3];
        let pieces: Vec<(usize, Vec<u8>)> = (0..random(40) + 1)
            .map(|_| {
                let len =
                    random(largest.min(if round % 3 == 2 { 1 << 18 } else { largest })) + usize::from(round % 5 != 0);
                let at = random(SIZE - len);
                (at, (0..len).map(|_| random(256) as u8).collect())
            })
            .collect();
        let mut writes: Vec<StepWrite<'_>> = pieces
            .iter()
            .map(|(at, bytes)| StepWrite {
                buffer: buffer.id(),
                offset: *at as u64,
                bytes,
            })
            .collect();
        let big: Vec<u8> = (0..largest).map(|i| (i * 7 + round) as u8).collect();
        writes.push(StepWrite {
            buffer: buffer.id(),
            offset: 3,
            bytes: &big,
        });
        queue.write_step(&writes).expect("taken");
        for write in &writes {
            expected[write.offset as usize..][..write.bytes.len()].copy_from_slice(write.bytes);
        }
    }
    let number = queue.submit(&[], &[]).expect("submits");
    queue.wait(number, WAIT_NS).expect("done");
    let mut found = vec![0; SIZE];
    buffer.read(0, &mut found).expect("in range");
    let differs = (0..SIZE).find(|&i| found[i] != expected[i]);
    assert_eq!(differs, None);
}

#[test]
fn more_memory_than_there_is_gives_the_arithmetic_and_leaves_the_device_usable() {
    let Some(device) = device() else { return };
    let total = device.info().total_memory_bytes;
    let error = device
        .create_buffer(total, BufferKind::Device)
        .err()
        .expect("the driver itself takes some");
    assert_eq!(error.status, Status::OutOfMemory, "{error}");
    assert!(
        error.message.contains(&total.to_string()) && error.message.contains("free"),
        "{error}"
    );
    println!("{error}");
    let used = device.memory().expect("known").used_bytes;
    let queue = device.create_queue(QueueKind::Compute).expect("a queue");
    let error = queue.reserve_scratch(total).expect_err("too much");
    assert_eq!(error.status, Status::OutOfMemory, "{error}");
    assert_eq!(queue.submit(&[], &[]), Ok(1));
    assert_eq!(device.memory().expect("known").used_bytes, used);
}

/// A group of one rank: what can be asked of the library on one device.
#[test]
fn collectives_of_one_rank_copy_and_can_be_recorded() {
    let Some(device) = device() else { return };
    let id = device.communicator_id().expect("the library is there");
    let group = device
        .create_communicator(&CommunicatorDesc::new(&id, 0, 1))
        .expect("one rank");
    let again = device
        .create_communicator(&CommunicatorDesc::new(&id, 0, 1))
        .err()
        .expect("joined already");
    assert_eq!(again.status, Status::InvalidArgument);
    let queue = device.create_queue(QueueKind::Compute).expect("a queue");
    let values: Vec<f32> = (0..96).map(|i| i as f32 - 7.5).collect();
    for kind in [
        CollectiveKind::AllReduce,
        CollectiveKind::AllGather,
        CollectiveKind::ReduceScatter,
        CollectiveKind::AllToAll,
        CollectiveKind::Broadcast,
    ] {
        let spec = Collective {
            kind,
            dtype: DType::F32,
            peer: 0,
        };
        let op = group.prepare(&spec).expect("prepares");
        for mode in [EncoderMode::OneShot, EncoderMode::Reusable] {
            let (_from, input) = floats(&*device, &values);
            let (to, out) = floats(&*device, &[0.0; 96]);
            let list = encode(&*queue, mode, &[(&op, vec![input, out])]);
            let number = queue.submit(&[list.id()], &[]).expect("submits");
            queue.wait(number, WAIT_NS).expect("done");
            assert_eq!(floats_of(&*to), values, "{kind:?} {mode:?}");
        }
    }
    let (_short, short) = floats(&*device, &[0.0; 8]);
    let op = group
        .prepare(&Collective {
            kind: CollectiveKind::AllReduce,
            dtype: DType::F32,
            peer: 0,
        })
        .expect("prepares");
    let mut encoder = queue.create_encoder(EncoderMode::OneShot).expect("an encoder");
    let (_whole, whole) = floats(&*device, &values);
    let error = encoder.encode(op.id(), &[whole, short]).expect_err("sizes differ");
    assert_eq!(error.status, Status::InvalidArgument);
    assert!(error.message.contains("96 elements in, 8 out"), "{error}");
}

/// Products in every type over odd strides, against the sum by hand.
#[test]
fn linear_of_many_tokens_is_right() {
    let Some(device) = device() else { return };
    let queue = device.create_queue(QueueKind::Compute).expect("a queue");
    // The last one's weight is still on its way when the product is submitted.
    for (in_features, out_features, tokens) in [
        (256u32, 192u32, 300u32),
        (1000, 24, 77),
        (72, 136, 513),
        (4096, 16384, 80),
    ] {
        let spec = Linear {
            in_features,
            out_features,
            weight: WeightFormat::BF16,
            act: DType::BF16,
            out: DType::F32,
            epilogue: Epilogue::None,
            max_tokens: 600,
            allow_quantized_act: false,
        };
        let op = device.ops().prepare(&spec.clone().into()).expect("linear is there");
        // Small whole numbers are exact in bf16, and so are their sums in f32.
        let value = |i: usize| ((i * 37 + i / 11) % 17) as f32 - 8.0;
        let bf16 = |v: f32| ((v.to_bits() >> 16) as u16).to_le_bytes();
        let (k, n, t) = (in_features as usize, out_features as usize, tokens as usize);
        let weight: Vec<u8> = (0..n * k).flat_map(|i| bf16(value(i))).collect();
        let x: Vec<u8> = (0..t * k).flat_map(|i| bf16(value(i + 5))).collect();
        let packed_bytes = op.packed_weight_bytes(0).expect("a weight");
        let packed = device.create_buffer(packed_bytes, BufferKind::Device).expect("memory");
        let dst = Tensor::contiguous(packed.id(), 0, DType::U8, &[packed_bytes as u32]);
        let rows = WeightRows {
            first_row: 0,
            num_rows: out_features,
            bytes: &weight,
        };
        let input = device
            .create_buffer(x.len() as u64, BufferKind::Device)
            .expect("memory");
        input.write(0, &x).expect("in range");
        let input = (
            Tensor::contiguous(input.id(), 0, DType::BF16, &[tokens, in_features]),
            input,
        );
        let (out, _) = floats(&*device, &vec![f32::NAN; t * n]);
        let out_tensor = Tensor::contiguous(out.id(), 0, DType::F32, &[tokens, out_features]);
        queue.reserve_scratch(op.info().scratch_bytes).expect("memory");
        op.pack_weight(0, rows, &dst).expect("packs");
        let mut results = Vec::new();
        for mode in [EncoderMode::OneShot, EncoderMode::Reusable] {
            let list = encode(
                &*queue,
                mode,
                &[(&op, vec![input.0, dst, Tensor::NONE, Tensor::NONE, out_tensor])],
            );
            let number = queue.submit(&[list.id()], &[]).expect("submits");
            queue.wait(number, WAIT_NS).expect("done");
            results.push(floats_of(&*out));
        }
        assert_eq!(results[0], results[1]);
        for (row, column) in [(0, 0), (t - 1, n - 1), (t / 2, n / 3), (1, n - 1)] {
            let sum: f32 = (0..k).map(|i| value(row * k + i + 5) * value(column * k + i)).sum();
            assert_eq!(results[0][row * n + column], sum, "{spec:?} row {row} column {column}");
        }
    }
}

/// Costs, printed: `cargo test -p halyard-backend-cuda --test device costs -- --nocapture`.
#[test]
fn costs() {
    let Some(device) = device() else { return };
    let queue = device.create_queue(QueueKind::Compute).expect("a queue");
    let (_sum, total) = floats(&*device, &[0.0; 64]);
    let (step_buffer, one) = floats(&*device, &[1.0; 64]);
    let op = add(&*device, 64);
    for (name, mode, launches) in [
        ("recording of 1 launch", EncoderMode::Reusable, 1),
        ("recording of 150 launches", EncoderMode::Reusable, 150),
        ("one-shot of 150 launches", EncoderMode::OneShot, 150),
    ] {
        let chain: Vec<_> = (0..launches).map(|_| (&op, vec![total, one, total])).collect();
        let list = encode(&*queue, mode, &chain);
        let again = |n: u32| {
            let start = Instant::now();
            let mut host = 0.0;
            for _ in 0..n {
                let call = Instant::now();
                // A one-shot list may be submitted once by contract; this backend does not mind.
                let number = queue.submit(&[list.id()], &[]).expect("submits");
                host += call.elapsed().as_secs_f64();
                queue.wait(number, WAIT_NS).expect("done");
            }
            (start.elapsed().as_secs_f64() / f64::from(n), host / f64::from(n))
        };
        again(20);
        let (turn, host) = again(200);
        println!(
            "{name}: submit to done {:.1} us, of that the call {:.1} us",
            turn * 1e6,
            host * 1e6
        );
    }
    for bytes in [256usize, 16 << 10, 1 << 20] {
        let target = device.create_buffer(1 << 20, BufferKind::Device).expect("memory");
        let data = vec![7u8; bytes];
        let mut best = (f64::MAX, f64::MAX);
        for _ in 0..50 {
            let start = Instant::now();
            let write = StepWrite {
                buffer: target.id(),
                offset: 0,
                bytes: &data,
            };
            queue.write_step(&[write]).expect("taken");
            let call = start.elapsed().as_secs_f64();
            let number = queue.submit(&[], &[]).expect("submits");
            queue.wait(number, WAIT_NS).expect("done");
            best = (best.0.min(call), best.1.min(start.elapsed().as_secs_f64()));
        }
        println!(
            "step write of {bytes} bytes: call {:.1} us, arrived after {:.1} us",
            best.0 * 1e6,
            best.1 * 1e6
        );
    }
    drop(step_buffer);
    let size = 1usize << 30;
    let buffer = device.create_buffer(size as u64, BufferKind::Device).expect("memory");
    let data = vec![3u8; size];
    for _ in 0..3 {
        let start = Instant::now();
        buffer.write(0, &data).expect("in range");
        let rate = size as f64 / start.elapsed().as_secs_f64() / 1e9;
        println!("upload of 1 GiB from pageable memory: {rate:.1} GB/s");
    }
    let copy = Copy { dtype: DType::F32 };
    let start = Instant::now();
    device.ops().prepare(&copy.into()).expect("copy is there");
    println!("preparing an op: {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    product_rate(&*device, &*queue, 8192, 4096, 6144);
    product_rate(&*device, &*queue, 8192, 4096, 28672);
    product_rate(&*device, &*queue, 256, 4096, 28672);
}

/// Time of preparing a linear, and its rate.
fn product_rate(device: &dyn Device, queue: &dyn Queue, tokens: u32, in_features: u32, out_features: u32) {
    let spec = Linear {
        in_features,
        out_features,
        weight: WeightFormat::BF16,
        act: DType::BF16,
        out: DType::BF16,
        epilogue: Epilogue::None,
        max_tokens: 8192,
        allow_quantized_act: false,
    };
    let start = Instant::now();
    let op = device.ops().prepare(&spec.into()).expect("linear is there");
    let prepared = start.elapsed().as_secs_f64();
    queue.reserve_scratch(op.info().scratch_bytes).expect("memory");
    // Between -1 and 1, never the zeros that run faster.
    let random = |count: usize| -> Vec<u8> {
        let mut state = 7u32;
        let mut next = || {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            let value = (state >> 8) as f32 / (1 << 23) as f32 - 1.0;
            ((value.to_bits() >> 16) as u16).to_le_bytes()
        };
        (0..count).flat_map(|_| next()).collect()
    };
    let matrix = |rows: u32, width: u32| {
        let bytes = random(rows as usize * width as usize);
        let buffer = device
            .create_buffer(bytes.len() as u64, BufferKind::Device)
            .expect("memory");
        buffer.write(0, &bytes).expect("in range");
        (
            Tensor::contiguous(buffer.id(), 0, DType::BF16, &[rows, width]),
            buffer,
            bytes,
        )
    };
    let (x, _x, _) = matrix(tokens, in_features);
    let (out, _out, _) = matrix(tokens, out_features);
    let (_, packed, rows) = matrix(out_features, in_features);
    assert_eq!(op.packed_weight_bytes(0), Ok(packed.bytes()), "plain rows");
    let dst = Tensor::contiguous(packed.id(), 0, DType::U8, &[packed.bytes() as u32]);
    let rows = WeightRows {
        first_row: 0,
        num_rows: out_features,
        bytes: &rows,
    };
    op.pack_weight(0, rows, &dst).expect("packs");
    let calls: Vec<_> = (0..20)
        .map(|_| (&op, vec![x, dst, Tensor::NONE, Tensor::NONE, out]))
        .collect();
    let list = encode(queue, EncoderMode::Reusable, &calls);
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        let number = queue.submit(&[list.id()], &[]).expect("submits");
        queue.wait(number, WAIT_NS).expect("done");
        best = best.min(start.elapsed().as_secs_f64() / 20.0);
    }
    let flops = 2.0 * f64::from(tokens) * f64::from(in_features) * f64::from(out_features);
    println!(
        "linear {in_features} to {out_features}, {tokens} tokens: prepared in {:.0} ms, {:.1} us, {:.0} TFLOP/s",
        prepared * 1e3,
        best * 1e6,
        flops / best / 1e12
    );
}
