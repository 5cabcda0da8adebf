//! Collectives between real devices: sums of many sizes and places, recorded ones replayed and timed, and a rank that
//! never comes. What the engine's tensor parallelism rests on, without a model.

use std::sync::Arc;
use std::time::{Duration, Instant};

use halyard_conformance::check_collectives;
use halyard_platform_api::communicator::{Collective, CollectiveKind};
use halyard_platform_api::{
    Buffer, BufferKind, Capabilities, CommandBuffer, CommandId, Communicator, CommunicatorDesc, DType, Device,
    EncoderMode, Error, Node, PreparedOp, Program, Queue, QueueKind, Status, Tensor, TensorDecl, ops,
};

use crate::tensor_parallel::Outcome;

/// Elements of a sum: less than a vector, around one, a decode step's row, and around the limits between small sums and
/// large ones, in f32 and in 16 bits.
const ELEMENTS: [u32; 11] = [1, 7, 8, 4096, 4097, 65_539, 262_144, 262_145, 524_288, 524_289, 1 << 20];
/// Elements of the sums of a chain, one behind the other: each begins where the others do.
const CHAIN: [u32; 7] = [40_000, 8, 262_144, 4096, 9, 4096, 70_001];
/// How often a chain is replayed.
const CHAIN_REPLAYS: u32 = 6;
/// Sums of a recorded list: a model's of 32 layers.
const SUMS: u32 = 64;
/// Elements of recorded sums: rows of 4096 for 1, 8 and 64 tokens.
const ROWS: [u32; 3] = [4096, 8 * 4096, 64 * 4096];
/// Replays of a recorded list before its clock starts, and on the clock.
const REPLAYS: (u32, u32) = (10, 50);
const WAIT_NS: u64 = 30_000_000_000;
/// How long a rank waits before it gives the group up itself.
const PATIENCE_NS: u64 = 5_000_000_000;

/// A rank at work: its device, its end of the group, and a queue.
struct Rank<'a> {
    number: usize,
    size: usize,
    device: &'a dyn Device,
    group: Arc<dyn Communicator>,
    queue: Arc<dyn Queue>,
}

/// Commands, and the op in them.
struct List {
    _op: Arc<dyn PreparedOp>,
    commands: Arc<dyn CommandBuffer>,
}

impl List {
    fn id(&self) -> CommandId {
        self.commands.id()
    }
}

/// A fresh tensor's buffer, and the tensor.
type Held = (Arc<dyn Buffer>, Tensor);

/// Checks sums over 2, 4 and all of the devices, as far as there are so many. Nothing for a device without a
/// communicator.
pub fn check(devices: &[Arc<dyn Device>]) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    if !devices
        .iter()
        .all(|device| device.info().capabilities.has(Capabilities::COMMUNICATOR))
    {
        return outcomes;
    }
    let mut sizes = vec![2, 4, devices.len()];
    sizes.retain(|&size| size >= 2 && size <= devices.len());
    sizes.dedup();
    for size in sizes {
        let ranks = &devices[..size];
        if size == 2 {
            let basic = check_collectives(ranks).map(|()| "every kind".to_string());
            outcomes.push(("collectives 2".to_string(), basic));
        }
        for dtype in [DType::F32, DType::BF16] {
            let sums = on_ranks(ranks, |rank| sums(&rank, dtype));
            outcomes.push((format!("sums {size} {dtype:?}"), sums.map(|words| words[0].clone())));
        }
        outcomes.push((format!("sums {size} recorded"), recorded(ranks)));
        let chains = on_ranks(ranks, |rank| chained(&rank));
        outcomes.push((format!("sums {size} chained"), chains.map(|words| words[0].clone())));
        let nans = on_ranks(ranks, |rank| no_numbers(&rank));
        outcomes.push((format!("sums {size} of no numbers"), nans.map(|words| words[0].clone())));
        let joined = on_ranks(ranks, |rank| sum_and_norm(&rank));
        let joined = joined.map(|words| words[0].clone());
        outcomes.push((format!("sums {size} with a norm"), joined));
        outcomes.push((format!("lost rank of {size}"), lost(ranks)));
    }
    outcomes
}

fn on_ranks<R: Send>(
    devices: &[Arc<dyn Device>],
    work: impl Fn(Rank<'_>) -> Result<R, String> + Sync,
) -> Result<Vec<R>, String> {
    let id = devices[0].communicator_id().map_err(|e| e.to_string())?;
    let size = devices.len();
    let (work, id) = (&work, &id);
    let one = |number: usize| {
        let device = &*devices[number];
        let group = device
            .create_communicator(&CommunicatorDesc::new(id, number as u32, size as u32))
            .map_err(|e| e.to_string())?;
        let queue = device.create_queue(QueueKind::Compute).map_err(|e| e.to_string())?;
        work(Rank {
            number,
            size,
            device,
            group,
            queue,
        })
        .map_err(|error| format!("rank {number}: {error}"))
    };
    std::thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> = (0..size).map(|number| scope.spawn(move || one(number))).collect();
        let results: Vec<_> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a rank panicked".to_string())))
            .collect();
        results.into_iter().collect()
    })
}

impl Rank<'_> {
    /// `count` elements at `offset` elements of a fresh buffer.
    fn tensor(&self, dtype: DType, offset: u32, count: u32) -> Result<Held, String> {
        let bytes = u64::from(offset + count) * dtype.bytes() as u64;
        let buffer = self
            .device
            .create_buffer(bytes, BufferKind::Device)
            .map_err(|e| e.to_string())?;
        let at = u64::from(offset) * dtype.bytes() as u64;
        let tensor = Tensor::contiguous(buffer.id(), at, dtype, &[count]);
        Ok((buffer, tensor))
    }

    /// A list of `times` sums of one tensor into another.
    fn list(&self, dtype: DType, tensors: [Tensor; 2], times: u32, mode: EncoderMode) -> Result<List, String> {
        let spec = Collective {
            kind: CollectiveKind::AllReduce,
            dtype,
            peer: 0,
        };
        let op = self.group.prepare(&spec).map_err(|e| e.to_string())?;
        let mut encoder = self.queue.create_encoder(mode).map_err(|e| e.to_string())?;
        for _ in 0..times {
            encoder.encode(op.id(), &tensors).map_err(|e| e.to_string())?;
        }
        let commands = encoder.finish().map_err(|e| e.to_string())?;
        Ok(List { _op: op, commands })
    }

    /// Whether this platform sums in `dtype`.
    fn offers(&self, dtype: DType) -> Result<bool, String> {
        let spec = Collective {
            kind: CollectiveKind::AllReduce,
            dtype,
            peer: 0,
        };
        match self.group.prepare(&spec) {
            Ok(_) => Ok(true),
            Err(error) if error.status == Status::Unsupported => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }

    /// What a half-precision model's activations are summed in.
    fn activations(&self) -> Result<DType, String> {
        Ok(if self.offers(DType::BF16)? {
            DType::BF16
        } else {
            DType::F32
        })
    }

    fn run(&self, list: &List) -> Result<(), String> {
        let number = self.queue.submit(&[list.id()], &[]).map_err(|e| e.to_string())?;
        self.queue.wait(number, WAIT_NS).map_err(|e| e.to_string())
    }
}

/// Quarters, few enough for sums without rounding in any type and order.
fn quarters(rank: usize, i: u32) -> f32 {
    ((i as usize * 7 + rank * 5) % 23) as f32 * 0.25
}

/// Values whose sum depends on the order.
fn rough(rank: usize, i: u32) -> f32 {
    [1e8, 1.0, -1e8, 0.25][(rank + i as usize) % 4]
}

fn bytes_of(dtype: DType, values: impl Iterator<Item = f32>) -> Vec<u8> {
    let narrow = |value: f32| ((value.to_bits() >> 16) as u16).to_le_bytes().to_vec();
    values
        .flat_map(|value| match dtype {
            // Exact for quarters.
            DType::BF16 => narrow(value),
            _ => value.to_le_bytes().to_vec(),
        })
        .collect()
}

/// Sums of all sizes, apart and in place, at the start of a buffer and one element on.
fn sums(rank: &Rank<'_>, dtype: DType) -> Result<String, String> {
    if !rank.offers(dtype)? {
        return Ok("not offered".to_string());
    }
    let mut cases = 0;
    for count in ELEMENTS {
        // Long sums may go another way, which promises no order.
        let in_order = dtype == DType::F32 && count <= 4097;
        let value = if in_order { rough } else { quarters };
        let summed = |i| (1..rank.size).fold(value(0, i), |sum, r| sum + value(r, i));
        let expected = bytes_of(dtype, (0..count).map(summed));
        for (offset, in_place) in [(0, false), (0, true), (1, false), (1, true)] {
            let (from, input) = rank.tensor(dtype, offset, count)?;
            let (to, out) = match in_place {
                true => (from.clone(), input),
                false => rank.tensor(dtype, offset, count)?,
            };
            let given = bytes_of(dtype, (0..count).map(|i| value(rank.number, i)));
            from.write(input.offset, &given).map_err(|e| e.to_string())?;
            let list = rank.list(dtype, [input, out], 1, EncoderMode::OneShot)?;
            rank.run(&list)?;
            let mut found = vec![0; expected.len()];
            to.read(out.offset, &mut found).map_err(|e| e.to_string())?;
            if let Some(at) = (0..found.len()).find(|&at| found[at] != expected[at]) {
                let element = at / dtype.bytes();
                return Err(format!(
                    "{count} elements at {offset}, in place: {in_place}: element {element} differs from the sum in \
                     rank order"
                ));
            }
            cases += 1;
        }
    }
    Ok(format!("{cases} sums as in rank order"))
}

/// Sums in place over parts of one tensor, each over what the one before left, recorded and replayed. A rank that reads
/// what was sent for an earlier sum, or sends too early, shows: all values differ from sum to sum.
fn chained(rank: &Rank<'_>) -> Result<String, String> {
    // Each sum but the first multiplies by the number of ranks: exact for a power of two, and within range.
    if !rank.size.is_power_of_two() {
        return Ok(format!("not run with {} ranks", rank.size));
    }
    let dtype = rank.activations()?;
    let spec = Collective {
        kind: CollectiveKind::AllReduce,
        dtype,
        peer: 0,
    };
    let words = |error: Error| error.to_string();
    let op = rank.group.prepare(&spec).map_err(words)?;
    let most = CHAIN.into_iter().max().unwrap_or_default();
    let (buffer, whole) = rank.tensor(dtype, 0, most)?;
    let mut encoder = rank.queue.create_encoder(EncoderMode::Reusable).map_err(words)?;
    for count in CHAIN {
        let part = Tensor::contiguous(buffer.id(), whole.offset, dtype, &[count]);
        encoder.encode(op.id(), &[part, part]).map_err(words)?;
    }
    let commands = encoder.finish().map_err(words)?;
    for replay in 0..CHAIN_REPLAYS {
        let given = (0..most).map(|i| quarters(rank.number, i + replay));
        buffer.write(0, &bytes_of(dtype, given)).map_err(words)?;
        let number = rank.queue.submit(&[commands.id()], &[]).map_err(words)?;
        rank.queue.wait(number, WAIT_NS).map_err(words)?;
        let expected = (0..most).map(|i| {
            let sums = CHAIN.iter().filter(|&&count| i < count).count() as i32;
            let first: f32 = (0..rank.size).map(|r| quarters(r, i + replay)).sum();
            first * (rank.size as f32).powi(sums - 1)
        });
        let expected = bytes_of(dtype, expected);
        let mut found = vec![0; expected.len()];
        buffer.read(0, &mut found).map_err(words)?;
        if let Some(at) = (0..found.len()).find(|&at| found[at] != expected[at]) {
            let element = at / dtype.bytes();
            return Err(format!(
                "replay {replay}: element {element} is not what {} sums make",
                CHAIN.len()
            ));
        }
    }
    Ok(format!(
        "{CHAIN_REPLAYS} replays of {} sums, each of what the one before left",
        CHAIN.len()
    ))
}

/// Sums of which every bit is set, a NaN in every type: they end, and are none either.
fn no_numbers(rank: &Rank<'_>) -> Result<String, String> {
    const COUNT: u32 = 4097;
    let mut types = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        if !rank.offers(dtype)? {
            continue;
        }
        let (buffer, row) = rank.tensor(dtype, 0, COUNT)?;
        let bytes = COUNT as usize * dtype.bytes();
        buffer.write(0, &vec![0xff; bytes]).map_err(|e| e.to_string())?;
        let list = rank.list(dtype, [row, row], 1, EncoderMode::OneShot)?;
        rank.run(&list)?;
        let mut found = vec![0; bytes];
        buffer.read(0, &mut found).map_err(|e| e.to_string())?;
        let exponent = match dtype {
            DType::F16 => 0x7c00,
            _ => 0x7f80,
        };
        // The upper halves of f32 are bf16.
        let upper = found.chunks_exact(dtype.bytes()).map(|value| {
            let half = &value[dtype.bytes() - 2..];
            u32::from(u16::from_le_bytes([half[0], half[1]]))
        });
        if let Some(at) = upper.into_iter().position(|bits| bits & 0x7fff <= exponent) {
            return Err(format!("{dtype:?}: element {at} of a sum of NaNs is a number"));
        }
        types.push(format!("{dtype:?}"));
    }
    Ok(format!("NaN in {}", types.join(", ")))
}

/// A sum and the norm behind it as one region, where the platform claims it: bit by bit what the two ops give, for few
/// and many rows.
fn sum_and_norm(rank: &Rank<'_>) -> Result<String, String> {
    const WIDTHS: [u32; 3] = [576, 4096, 16_384];
    const ROWS: [u32; 5] = [1, 3, 16, 64, 200];
    let dtype = rank.activations()?;
    let words = |error: Error| error.to_string();
    let mut claimed = 0;
    for width in WIDTHS {
        let sum = ops::Collective {
            kind: CollectiveKind::AllReduce,
            dtype,
            peer: 0,
            communicator: rank.group.number(),
        };
        let norm = ops::RmsNorm {
            width,
            eps: 1e-5,
            weight_offset: 0.0,
            dtype,
        };
        // 0 the rows, 1 the norm's weight, 2 the result.
        let decl = |dtype, storage| TensorDecl::whole(dtype, false, storage);
        let program = Program {
            tensors: vec![decl(dtype, 0), decl(DType::F32, 1), decl(dtype, 2)],
            nodes: vec![Node::new(sum.clone(), [0, 0]), Node::new(norm.clone(), [0, 1, 2])],
        };
        let registry = rank.device.ops();
        if sum.communicator == 0 || registry.claim(&program).map_err(words)?.claims.len() != 1 {
            continue;
        }
        let region = registry.prepare_program(&program).map_err(words)?;
        let apart = [registry.prepare(&sum.into()), registry.prepare(&norm.into())];
        let [sum, norm] = apart.map(|op| op.map_err(words));
        let (sum, norm) = (sum?, norm?);
        for rows in ROWS {
            let count = rows * width;
            let given = bytes_of(dtype, (0..count).map(|i| quarters(rank.number, i)));
            let weights: Vec<u8> = (0..width)
                .flat_map(|i| (1.0 + (i % 7) as f32 / 64.0).to_le_bytes())
                .collect();
            let mut found: Vec<[Vec<u8>; 2]> = Vec::new();
            for together in [true, false] {
                let ((x_buffer, x), (out_buffer, out)) = (rank.tensor(dtype, 0, count)?, rank.tensor(dtype, 0, count)?);
                let (weight_buffer, weight) = rank.tensor(DType::F32, 0, width)?;
                x_buffer.write(0, &given).map_err(words)?;
                weight_buffer.write(0, &weights).map_err(words)?;
                let as_rows = |t: &Tensor| t.view(0, &[rows, width], &[width, 1]);
                let (x, out) = (as_rows(&x), as_rows(&out));
                let mut encoder = rank.queue.create_encoder(EncoderMode::OneShot).map_err(words)?;
                match together {
                    true => encoder.encode(region.id(), &[x, weight, out]).map_err(words)?,
                    false => {
                        encoder.encode(sum.id(), &[x, x]).map_err(words)?;
                        encoder.encode(norm.id(), &[x, weight, out]).map_err(words)?;
                    }
                }
                let commands = encoder.finish().map_err(words)?;
                let number = rank.queue.submit(&[commands.id()], &[]).map_err(words)?;
                rank.queue.wait(number, WAIT_NS).map_err(words)?;
                let read = |buffer: &Arc<dyn Buffer>| {
                    let mut bytes = vec![0; given.len()];
                    buffer.read(0, &mut bytes).map(|()| bytes).map_err(words)
                };
                found.push([read(&x_buffer)?, read(&out_buffer)?]);
            }
            if found[0] != found[1] {
                return Err(format!(
                    "{rows} rows of {width}: a region gives other bits than its two ops"
                ));
            }
            claimed += 1;
        }
    }
    Ok(format!("{claimed} regions give the bits of their ops"))
}

/// Recorded lists of sums, replayed: right after many, and how long one sum takes.
fn recorded(devices: &[Arc<dyn Device>]) -> Result<String, String> {
    let mut words = Vec::new();
    for count in ROWS {
        let times = on_ranks(devices, |rank| replay(&rank, count))?;
        let slowest = times.into_iter().max().unwrap_or_default();
        let micros = slowest.as_secs_f64() * 1e6 / f64::from(SUMS * REPLAYS.1);
        words.push(format!("{count} elements {micros:.2} us"));
    }
    Ok(format!(
        "a sum in half precision, or f32 where that is not offered: {}",
        words.join(", ")
    ))
}

fn replay(rank: &Rank<'_>, count: u32) -> Result<Duration, String> {
    let dtype = rank.activations()?;
    let ((from, input), (to, out)) = (rank.tensor(dtype, 0, count)?, rank.tensor(dtype, 0, count)?);
    let list = rank.list(dtype, [input, out], SUMS, EncoderMode::Reusable)?;
    let mut time = Duration::ZERO;
    for (replays, shift) in [(REPLAYS.0, 1), (REPLAYS.1, 2)] {
        let given = (0..count).map(|i| quarters(rank.number, i + shift));
        from.write(0, &bytes_of(dtype, given)).map_err(|e| e.to_string())?;
        let start = Instant::now();
        let mut last = 0;
        for _ in 0..replays {
            last = rank.queue.submit(&[list.id()], &[]).map_err(|e| e.to_string())?;
        }
        rank.queue.wait(last, WAIT_NS).map_err(|e| e.to_string())?;
        time = start.elapsed();
        let summed = |i| (0..rank.size).map(|r| quarters(r, i + shift)).sum();
        let mut found = vec![0; count as usize * dtype.bytes()];
        to.read(0, &mut found).map_err(|e| e.to_string())?;
        if found != bytes_of(dtype, (0..count).map(summed)) {
            return Err(format!("{count} elements: wrong after {replays} replays"));
        }
    }
    Ok(time)
}

/// The last rank leaves while the others sum: they end, one way or the other, and a rank that has left runs nothing.
fn lost(devices: &[Arc<dyn Device>]) -> Result<String, String> {
    let start = Instant::now();
    let words = on_ranks(devices, wait_in_vain)?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(format!("{seconds:.1} s; rank 0 got: {}", words[0]))
}

fn wait_in_vain(rank: Rank<'_>) -> Result<String, String> {
    let dtype = rank.activations()?;
    let ((_from, input), (_to, out)) = (rank.tensor(dtype, 0, 4096)?, rank.tensor(dtype, 0, 4096)?);
    let list = rank.list(dtype, [input, out], 1, EncoderMode::Reusable)?;
    rank.run(&list)?;
    let Rank {
        number,
        size,
        group,
        queue,
        ..
    } = rank;
    if number + 1 == size {
        std::thread::sleep(Duration::from_millis(300));
        drop(group);
        return match queue.submit(&[list.id()], &[]) {
            Ok(_) => Err("a recording was replayed after its rank had left".to_string()),
            Err(error) => Ok(error.to_string()),
        };
    }
    // A device that works at the submit says it there.
    let submitted = queue.submit(&[list.id()], &[]);
    let outcome = submitted.and_then(|number| queue.wait(number, PATIENCE_NS));
    // Before the queue goes, which waits for its work.
    drop(group);
    match outcome {
        Ok(()) => Err("a sum without one of its ranks went well".to_string()),
        Err(error) => Ok(error.to_string()),
    }
}
