//! Running a case on a device, and comparing two runs. Every tensor lies between guard bytes, and every gap is filled
//! with them: a write outside an operand, or into an input, is a failure of its own.

use std::sync::Arc;

use halyard_platform_api::{
    Buffer, BufferKind, DType, Device, EncoderMode, Error, OpSpec, PreparedOp, QueueKind, Status, Tensor, WeightRows,
};

use crate::case::{ABSENT, Arg, Case, Check, Contents, to_floats};
use crate::tolerance::Tolerance;

const GUARD: u8 = 0xA5;
const GUARD_BYTES: u64 = 256;

/// Why a case has no result.
pub(crate) enum Failure {
    /// The device says no, and why.
    Unsupported(String),
    /// Something is wrong.
    Broken(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error.status {
            Status::Unsupported if !error.message.trim().is_empty() => Failure::Unsupported(error.message),
            Status::Unsupported => Failure::Broken("unsupported without a reason".to_string()),
            _ => Failure::Broken(error.to_string()),
        }
    }
}

pub(crate) fn broken(context: &str) -> impl Fn(Error) -> Failure + '_ {
    move |error| Failure::Broken(format!("{context}: {error}"))
}

/// A tensor in device memory.
pub(crate) struct Placed {
    buffer: Arc<dyn Buffer>,
    pub(crate) tensor: Tensor,
    uploaded: Vec<u8>,
}

/// The case's ops prepared on a device and its tensors placed.
pub(crate) struct Ready {
    pub(crate) ops: Vec<Arc<dyn PreparedOp>>,
    pub(crate) placed: Vec<Placed>,
}

/// Prepares ops and places tensors. Attention ops use `backend` of the device.
pub(crate) fn ready(device: &dyn Device, case: &Case, backend: u32) -> Result<Ready, Failure> {
    let mut ops = Vec::new();
    for (spec, _) in &case.nodes {
        let spec = with_backend(spec, backend);
        let supported = device.ops().support(&spec);
        let prepared = device.ops().prepare(&spec);
        if supported.is_ok() != prepared.is_ok() {
            return Err(Failure::Broken(format!(
                "support says {:?}, prepare {:?}",
                supported.err(),
                prepared.err()
            )));
        }
        ops.push(prepared?);
    }
    let weights: Vec<_> = (0..ops.len()).map(|node| (Arc::clone(&ops[node]), 0)).collect();
    let placed = place_all(device, case, backend, &weights)?;
    Ok(Ready { ops, placed })
}

/// Places all tensors; `weights` says which op packs node `i`'s weight, as which of its nodes.
pub(crate) fn place_all(
    device: &dyn Device,
    case: &Case,
    backend: u32,
    weights: &[(Arc<dyn PreparedOp>, u32)],
) -> Result<Vec<Placed>, Failure> {
    let mut placed: Vec<Placed> = Vec::new();
    for arg in &case.args {
        let next = match arg.contents {
            Contents::Slice { of, first } => placed[of].slice(arg, first),
            _ => place(device, arg, backend, weights)?,
        };
        placed.push(next);
    }
    Ok(placed)
}

fn with_backend(spec: &OpSpec, index: u32) -> OpSpec {
    let mut spec = spec.clone();
    match &mut spec {
        OpSpec::Attention(op) => op.backend = index,
        OpSpec::KvWrite(op) => op.backend = index,
        OpSpec::LatentAttention(op) => op.backend = index,
        OpSpec::LatentWrite(op) => op.backend = index,
        _ => {}
    }
    spec
}

fn place(
    device: &dyn Device,
    arg: &Arg,
    backend: u32,
    weights: &[(Arc<dyn PreparedOp>, u32)],
) -> Result<Placed, Failure> {
    match &arg.contents {
        Contents::Bytes(bytes) => place_bytes(device, arg, bytes),
        Contents::Weight { node, rows, bytes } => {
            let (op, inner) = &weights[*node];
            place_weight(device, &**op, *inner, *rows, bytes)
        }
        Contents::Cache { pages, spec } => {
            let plan = match with_backend(spec, backend) {
                OpSpec::Attention(spec) => device.attention().plan(&spec)?,
                OpSpec::LatentAttention(spec) => device.attention().plan_latent(&spec)?,
                _ => return Err(Failure::Broken("the cache's spec is no attention".to_string())),
            };
            let block_bytes = plan.block_bytes as u32;
            let bytes = vec![0xFF; *pages as usize * block_bytes as usize];
            // Pages may lie apart: by enough for the next to be aligned.
            let align = device.info().offset_alignment.max(1);
            let gap = match pages % 2 {
                0 => 0,
                _ => (block_bytes + 1).next_multiple_of(align) - block_bytes,
            };
            let arg = Arg::bytes(DType::U8, &[*pages, block_bytes], bytes.clone()).strided(gap);
            place_bytes(device, &arg, &bytes)
        }
        Contents::Slice { of, .. } => Err(Failure::Broken(format!(
            "a slice of tensor {of} has no memory of its own"
        ))),
    }
}

fn place_bytes(device: &dyn Device, arg: &Arg, bytes: &[u8]) -> Result<Placed, Failure> {
    let guard = GUARD_BYTES.max(u64::from(device.info().offset_alignment));
    let strides = arg.strides();
    let tensor = Tensor::contiguous(halyard_platform_api::BufferId(1), guard, arg.dtype, &arg.shape);
    let mut tensor = tensor.view(0, &arg.shape, &strides);
    let uploaded = image(&tensor, guard, bytes);
    let buffer = device
        .create_buffer(uploaded.len() as u64, BufferKind::Device)
        .map_err(broken("create_buffer"))?;
    buffer.write(0, &uploaded).map_err(broken("write"))?;
    tensor.buffer = buffer.id().0;
    Ok(Placed {
        buffer,
        tensor,
        uploaded,
    })
}

/// A tensor's elements between guard bytes.
fn image(tensor: &Tensor, guard: u64, bytes: &[u8]) -> Vec<u8> {
    let mut image = vec![GUARD; (guard + tensor.span_bytes() + guard) as usize];
    let size = tensor.dtype().bytes();
    for (at, element) in offsets(tensor).zip(bytes.chunks_exact(size)) {
        image[at..at + size].copy_from_slice(element);
    }
    image
}

impl Placed {
    /// A part of its rows, seen in the shape of `arg`.
    fn slice(&self, arg: &Arg, first: u32) -> Placed {
        let mut strides = arg.strides();
        strides[0] = self.tensor.strides[0];
        Placed {
            buffer: self.buffer.clone(),
            tensor: self.tensor.view(u64::from(first), &arg.shape, &strides),
            uploaded: Vec::new(),
        }
    }

    /// Gives the tensor another case's contents; an opaque one gets its own again. Weights stay.
    pub(crate) fn refill(&mut self, arg: &Arg) -> Result<(), Failure> {
        match &arg.contents {
            Contents::Weight { .. } | Contents::Slice { .. } => return Ok(()),
            Contents::Bytes(bytes) => self.uploaded = image(&self.tensor, self.tensor.offset, bytes),
            Contents::Cache { .. } => {}
        }
        self.buffer.write(0, &self.uploaded).map_err(broken("write"))
    }
}

/// Packs in three pieces out of order, as merged matrices come; one of them from device memory where the op takes that.
fn place_weight(
    device: &dyn Device,
    op: &dyn PreparedOp,
    node: u32,
    rows: u32,
    bytes: &[u8],
) -> Result<Placed, Failure> {
    let packed = op.packed_weight_bytes(node).map_err(broken("packed_weight_bytes"))?;
    let buffer = device
        .create_buffer(packed.max(1), BufferKind::Device)
        .map_err(broken("create_buffer"))?;
    let tensor = Tensor::contiguous(buffer.id(), 0, DType::U8, &[packed as u32]);
    let row_bytes = bytes.len() / rows as usize;
    let (one, two) = (rows / 3, rows - rows / 4);
    for (first, end) in [(one, two), (0, one), (two, rows)] {
        let part = WeightRows {
            first_row: first,
            num_rows: end - first,
            bytes: &bytes[first as usize * row_bytes..end as usize * row_bytes],
        };
        let on_device = first == 0 && part.num_rows > 0 && pack_on_device(device, op, node, part, &tensor)?;
        if part.num_rows > 0 && !on_device {
            op.pack_weight(node, part, &tensor).map_err(broken("pack_weight"))?;
        }
    }
    Ok(Placed {
        buffer,
        tensor,
        uploaded: Vec::new(),
    })
}

/// Packs rows from device memory. False: the op packs from host memory only.
fn pack_on_device(
    device: &dyn Device,
    op: &dyn PreparedOp,
    node: u32,
    rows: WeightRows<'_>,
    dst: &Tensor,
) -> Result<bool, Failure> {
    let buffer = device
        .create_buffer(rows.bytes.len() as u64, BufferKind::Device)
        .map_err(broken("create_buffer"))?;
    buffer.write(0, rows.bytes).map_err(broken("write"))?;
    let src = Tensor::contiguous(buffer.id(), 0, DType::U8, &[rows.bytes.len() as u32]);
    match op.pack_weight_from(node, rows.first_row, rows.num_rows, &src, dst) {
        Ok(()) => Ok(true),
        Err(error) if error.status == Status::Unsupported && !error.message.is_empty() => Ok(false),
        Err(error) => Err(broken("pack_weight_from")(error)),
    }
}

/// First bytes of all elements in row-major order.
fn offsets(tensor: &Tensor) -> impl Iterator<Item = usize> + use<> {
    let tensor = *tensor;
    let size = tensor.dtype().bytes() as u64;
    (0..tensor.elements()).map(move |mut index| {
        let mut elements = 0;
        for axis in (0..tensor.rank as usize).rev() {
            let extent = u64::from(tensor.shape[axis]);
            elements += index % extent * u64::from(tensor.strides[axis]);
            index /= extent;
        }
        (tensor.offset + elements * size) as usize
    })
}

/// The operand tensors of a node.
pub(crate) fn operands(placed: &[Placed], indices: &[u16]) -> Vec<Tensor> {
    let tensor = |&index: &u16| match index {
        ABSENT => Tensor::NONE,
        index => placed[usize::from(index)].tensor,
    };
    indices.iter().map(tensor).collect()
}

/// Encodes, submits, waits.
pub(crate) fn submit(
    device: &dyn Device,
    ops: &[(Arc<dyn PreparedOp>, Vec<Tensor>)],
    mode: EncoderMode,
) -> Result<(), Failure> {
    let queue = device
        .create_queue(QueueKind::Compute)
        .map_err(broken("create_queue"))?;
    let mut encoder = queue.create_encoder(mode).map_err(broken("create_encoder"))?;
    let scratch = ops.iter().map(|(op, _)| op.info().scratch_bytes).max().unwrap_or(0);
    queue.reserve_scratch(scratch).map_err(broken("reserve_scratch"))?;
    for (op, operands) in ops {
        encoder.encode(op.id(), operands).map_err(broken("encode"))?;
    }
    let commands = encoder.finish().map_err(broken("finish"))?;
    let number = queue.submit(&[commands.id()], &[]).map_err(broken("submit"))?;
    queue.wait(number, WAIT_NS).map_err(broken("wait"))
}

/// No case takes a minute.
pub(crate) const WAIT_NS: u64 = 60_000_000_000;

/// Runs a case; gives each tensor's elements afterwards (empty where they are not compared).
pub(crate) fn execute(device: &dyn Device, case: &Case, backend: u32) -> Result<Vec<Vec<u8>>, Failure> {
    let Ready { ops, placed } = ready(device, case, backend)?;
    let encoded: Vec<_> = ops
        .into_iter()
        .zip(&case.nodes)
        .map(|(op, (_, indices))| (op, operands(&placed, indices)))
        .collect();
    submit(device, &encoded, EncoderMode::OneShot)?;
    collect(case, &placed)
}

/// Reads the tensors back and checks what must not have changed.
pub(crate) fn collect(case: &Case, placed: &[Placed]) -> Result<Vec<Vec<u8>>, Failure> {
    case.args
        .iter()
        .zip(placed)
        .enumerate()
        .map(|(index, (arg, placed))| {
            // What lies in a cache's pages is the device's own, and what lies between them is not.
            let is_cache = matches!(arg.contents, Contents::Cache { .. });
            let is_compared = !matches!(arg.check, Check::Ignored) && matches!(arg.contents, Contents::Bytes(_));
            if !is_cache && !is_compared {
                return Ok(Vec::new());
            }
            let mut after = vec![0; placed.uploaded.len()];
            placed.buffer.read(0, &mut after).map_err(broken("read"))?;
            let size = arg.dtype.bytes();
            let mut elements = Vec::with_capacity(placed.tensor.elements() as usize * size);
            let mut outside = after.clone();
            let mut before = placed.uploaded.clone();
            for at in offsets(&placed.tensor) {
                elements.extend_from_slice(&after[at..at + size]);
                if !matches!(arg.check, Check::Unchanged) {
                    outside[at..at + size].fill(GUARD);
                    before[at..at + size].fill(GUARD);
                }
            }
            match outside.iter().zip(&before).position(|(a, b)| a != b) {
                None if is_cache => Ok(Vec::new()),
                None => Ok(elements),
                Some(at) => Err(Failure::Broken(format!(
                    "tensor {index} ({:?} {:?}): byte {at} of its buffer changed, which is an input or outside of it",
                    arg.dtype, arg.shape
                ))),
            }
        })
        .collect()
}

/// Compares two runs; the largest error as a part of the tolerance, or what differs.
pub(crate) fn compare(case: &Case, found: &[Vec<u8>], expected: &[Vec<u8>]) -> Result<f32, String> {
    let mut worst = 0f32;
    for (index, arg) in case.args.iter().enumerate() {
        let Check::Near(tolerance, rows) = &arg.check else {
            continue;
        };
        let row_elements: u32 = arg.shape[1..].iter().product();
        let counts = |element: usize| {
            let row = element as u32 / row_elements.max(1);
            rows.as_ref().is_none_or(|rows| rows.contains(&row))
        };
        let ratio = compare_elements(arg, &found[index], &expected[index], *tolerance, counts)
            .map_err(|e| format!("tensor {index}: {e}"))?;
        worst = worst.max(ratio);
    }
    Ok(worst)
}

fn compare_elements(
    arg: &Arg,
    found: &[u8],
    expected: &[u8],
    tolerance: Tolerance,
    counts: impl Fn(usize) -> bool,
) -> Result<f32, String> {
    let size = arg.dtype.bytes();
    let (f, e) = (to_floats(arg.dtype, found), to_floats(arg.dtype, expected));
    let mut worst = 0f32;
    for (i, (a, b)) in found.chunks_exact(size).zip(expected.chunks_exact(size)).enumerate() {
        if a == b || !counts(i) {
            continue;
        }
        let exact = tolerance.abs == 0.0 && tolerance.rel == 0.0;
        let (x, y) = match exact {
            true => (f32::NAN, f32::NAN),
            false => (f[i], e[i]),
        };
        if !exact && x.is_nan() && y.is_nan() {
            continue;
        }
        let limit = tolerance.abs + tolerance.rel * y.abs();
        let error = if x == y { 0.0 } else { (x - y).abs() };
        // A NaN on either side, and every difference of an exact output, fails here.
        if error.is_nan() || error > limit {
            return Err(format!(
                "element {i} of {:?} {:?} is {:?}, expected {:?} (tolerance {:e} + {:e} of it: {})",
                arg.dtype,
                arg.shape,
                Shown(arg.dtype, a),
                Shown(arg.dtype, b),
                tolerance.abs,
                tolerance.rel,
                tolerance.reason
            ));
        }
        worst = worst.max(error / limit);
    }
    Ok(worst)
}

/// An element for a person.
struct Shown<'a>(DType, &'a [u8]);

impl std::fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.0, self.1) {
            (DType::I32, &[a, b, c, d]) => write!(f, "{}", i32::from_le_bytes([a, b, c, d])),
            (DType::F32 | DType::F16 | DType::BF16, bytes) => match to_floats(self.0, bytes).as_slice() {
                [value] => write!(f, "{value}"),
                _ => write!(f, "{bytes:02x?}"),
            },
            (_, bytes) => write!(f, "{bytes:02x?}"),
        }
    }
}
