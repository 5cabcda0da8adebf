//! Brings weights onto the device: rows of files from host memory; dummy weights are made on the device, where they are
//! packed. Owns the staging memory and the count of bytes and time.
//!
//! A dummy matrix is the op `fill_random` over its rows, run on the device and packed from there; where the platform
//! lacks the op the host makes the same values. Rows that are quantised on the way go through the op `quantize_act`, on
//! the device or here likewise.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use halyard_models::{DummyValues, Role, WeightTensor, Weights};
use halyard_platform_api::ops::{Copy, FillRandom, QuantizeAct, QuantizeScheme};
use halyard_platform_api::{
    Buffer, BufferKind, DType, Device, EncoderMode, OpSpec, PreparedOp, Queue, Status, Tensor, WeightFormat, WeightRows,
};

use crate::error::RunnerError;
use crate::read_ahead::ReadAhead;

/// Bytes of rows made at a time.
const STAGING_BYTES: u64 = 64 << 20;
/// No piece takes this long.
const WAIT_NS: u64 = 120_000_000_000;
/// Rows that a thread packs from host memory at least: a multiple of every backend's panel so far, and few enough that
/// threads share the matrices of a small model evenly (576 rows: 320 and 256).
const ROWS_A_THREAD: u32 = 64;
/// Rows of which some columns, or which in another form, are made at a time: some MiB, and enough for many threads.
const PIECE_ROWS: usize = 2048;
/// Rows of them that are worth a thread.
const CHANGED_ROWS_A_THREAD: usize = 32;
/// Bytes of whole rows that are packed at a time.
const WHOLE_PIECE_BYTES: usize = 64 << 20;
/// Bytes of the scale behind a row of 8-bit floats.
const SCALE_BYTES: u32 = WeightFormat::F8E4M3.row_tail_bytes() as u32;
/// Threads that pack from host memory.
const MAX_THREADS: usize = 8;

/// Rows and columns of a stored matrix.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub role: Role,
    pub rows: Range<u32>,
    pub columns: Range<u32>,
    /// The format that it is packed in.
    pub format: WeightFormat,
}

/// Where rows go: node `node` of `op`, from row `first_row` on.
#[derive(Clone, Copy)]
pub(crate) struct Target<'t> {
    pub op: &'t dyn PreparedOp,
    pub node: u32,
    pub first_row: u32,
    pub dst: &'t Tensor,
}

/// Packs weights and counts them.
pub(crate) struct WeightLoader<'a> {
    device: &'a dyn Device,
    queue: &'a dyn Queue,
    /// Whole rows, their 8-bit values, and some columns of either.
    staging: [Option<Arc<dyn Buffer>>; 3],
    can_fill: bool,
    can_quantise: bool,
    /// Scratch that the queue has for it.
    scratch: u64,
    progress: &'a mut dyn FnMut(u64),
    ahead: Option<&'a ReadAhead<'a>>,
    pub bytes: u64,
    pub elapsed: Duration,
}

impl<'a> WeightLoader<'a> {
    /// `ahead` hears of each matrix that was packed.
    pub(crate) fn new(
        device: &'a dyn Device,
        queue: &'a dyn Queue,
        progress: &'a mut dyn FnMut(u64),
        ahead: Option<&'a ReadAhead<'a>>,
    ) -> Self {
        WeightLoader {
            device,
            queue,
            staging: [None, None, None],
            can_fill: true,
            can_quantise: true,
            scratch: 0,
            progress,
            ahead,
            bytes: 0,
            elapsed: Duration::ZERO,
        }
    }

    /// Packs a part of a stored matrix, or makes it.
    ///
    /// # Errors
    /// Errors of files and device.
    pub(crate) fn pack(&mut self, weights: &Weights, part: &Part, target: Target<'_>) -> Result<(), RunnerError> {
        let start = Instant::now();
        if !self.fill(weights, part, target)? {
            self.pack_stored(weights, part, target)?;
        }
        if let Some(ahead) = self.ahead {
            ahead.used_one();
        }
        self.elapsed += start.elapsed();
        Ok(())
    }

    fn pack_stored(&mut self, weights: &Weights, part: &Part, target: Target<'_>) -> Result<(), RunnerError> {
        let source = weights.tensor(part.role)?.in_format(part.format)?;
        if self.quantise(&source, part, target)? {
            return Ok(());
        }
        let columns = part.columns.start as usize..part.columns.end as usize;
        // Columns are copied out piece by piece, and so is what has to be changed; whole rows are taken where they lie,
        // in pieces too, as platforms copy them, and progress is seen between them.
        let as_stored = source.is_as_stored() && columns == (0..source.row_len());
        let piece = match as_stored {
            true => whole_rows(source.row_bytes()),
            false => PIECE_ROWS,
        };
        for first in part.rows.clone().step_by(piece) {
            let end = part.rows.end.min(first + piece as u32);
            let range = first as usize..end as usize;
            let rows = match as_stored {
                true => source.submatrix(range, columns.clone()),
                false => changed_rows(&source, range, &columns)?.into(),
            };
            let target = Target {
                first_row: target.first_row + first - part.rows.start,
                ..target
            };
            self.pack_host(&rows, rows.len() / (end - first) as usize, target)?;
            self.count(rows.len() as u64);
        }
        Ok(())
    }

    fn count(&mut self, bytes: u64) {
        self.bytes += bytes;
        (self.progress)(bytes);
    }

    /// Rows from host memory; by several threads where the host does the packing.
    fn pack_host(&self, bytes: &[u8], row_bytes: usize, target: Target<'_>) -> Result<(), RunnerError> {
        let num_rows = (bytes.len() / row_bytes.max(1)) as u32;
        let threads = match self.device.info().unified_memory {
            true => std::thread::available_parallelism().map_or(1, |n| n.get().min(MAX_THREADS)),
            false => 1,
        };
        let piece = (num_rows / threads as u32).max(1).next_multiple_of(ROWS_A_THREAD);
        let pack = |first: u32, bytes: &[u8]| {
            let rows = WeightRows {
                first_row: target.first_row + first,
                num_rows: (bytes.len() / row_bytes.max(1)) as u32,
                bytes,
            };
            target.op.pack_weight(target.node, rows, target.dst)
        };
        if num_rows <= piece {
            return Ok(pack(0, bytes)?);
        }
        // This thread packs the first piece: a model has hundreds of matrices, and each thread takes time to start.
        let (here, rest) = bytes.split_at(piece as usize * row_bytes);
        let pieces = (piece..num_rows)
            .step_by(piece as usize)
            .zip(rest.chunks(piece as usize * row_bytes));
        std::thread::scope(|scope| {
            let running: Vec<_> = pieces
                .map(|(first, bytes)| scope.spawn(move || pack(first, bytes)))
                .collect();
            let of_here = pack(0, here);
            let ended = running.into_iter().map(|thread| {
                let panicked = |_| RunnerError::Thread("a thread that packs weights panicked".to_string());
                Ok(thread.join().map_err(panicked)??)
            });
            let of_others: Result<(), RunnerError> = ended.collect();
            of_here?;
            of_others
        })
    }

    /// Makes the rows of a dummy matrix on the device and packs them there. False: this is no such matrix, or the
    /// platform cannot.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn fill(&mut self, weights: &Weights, part: &Part, target: Target<'_>) -> Result<bool, RunnerError> {
        let Some(values) = weights.dummy_values(part.role).filter(|_| self.can_fill) else {
            return Ok(false);
        };
        let Some(dtype) = weights.dummy_format(part.role).and_then(float_type) else {
            return Ok(false);
        };
        let quantised = part.format == WeightFormat::F8E4M3;
        if !quantised && !part.format.is_plain() {
            return Ok(false);
        }
        let shape = weights.shape(part.role);
        let (all_rows, width) = (shape[0] as u64, shape[shape.len() - 1] as u64);
        // Groups of four values share a counter, and the op counts elements in 32 bits.
        if !width.is_multiple_of(4) || all_rows * width > u64::from(u32::MAX) || (quantised && !self.can_quantise) {
            return Ok(false);
        }
        let rows = Rows {
            values: Values::Random(values),
            dtype,
            width: width as u32,
            first: 0,
            num_rows: 0,
            quantised,
        };
        let made = self.pack_rows(rows, part, target)?;
        self.can_fill &= made;
        Ok(made)
    }

    /// Quantises rows of a file on the device and packs them there. False: nothing is to be quantised, or the host
    /// must.
    fn quantise(&mut self, source: &WeightTensor<'_>, part: &Part, target: Target<'_>) -> Result<bool, RunnerError> {
        let Some((format, bytes)) = source.unquantised().filter(|_| self.can_quantise) else {
            return Ok(false);
        };
        let width = source.row_len() as u32;
        let Some(dtype) = float_type(format) else {
            return Ok(false);
        };
        let rows = Rows {
            values: Values::Stored(bytes),
            dtype,
            width,
            first: 0,
            num_rows: 0,
            quantised: true,
        };
        let made = self.pack_rows(rows, part, target)?;
        self.can_quantise &= made;
        Ok(made)
    }

    /// Makes the rows of a part, some at a time, and packs them. False: the platform lacks an op for it.
    fn pack_rows(&mut self, rows: Rows<'_>, part: &Part, target: Target<'_>) -> Result<bool, RunnerError> {
        let row_bytes = u64::from(rows.width) * rows.dtype.bytes() as u64;
        // Scales are aligned to their size.
        let whole_words = [rows.width, part.columns.len() as u32]
            .iter()
            .all(|n| n.is_multiple_of(4));
        if row_bytes == 0 || row_bytes > STAGING_BYTES || (rows.quantised && !whole_words) {
            return Ok(false);
        }
        let piece = (STAGING_BYTES / row_bytes) as u32;
        for first in part.rows.clone().step_by(piece as usize) {
            let num_rows = piece.min(part.rows.end - first);
            let some = Rows {
                first,
                num_rows,
                ..rows
            };
            let Some(src) = self.make(some, &part.columns)? else {
                return Ok(false);
            };
            let target = Target {
                first_row: target.first_row + first - part.rows.start,
                ..target
            };
            self.pack_made(&src, num_rows, target)?;
            self.count(src.span_bytes());
        }
        Ok(true)
    }

    /// An op of the platform; `None` where it has none.
    fn op(&self, spec: OpSpec) -> Result<Option<Arc<dyn PreparedOp>>, RunnerError> {
        match self.device.ops().prepare(&spec) {
            Ok(op) => Ok(Some(op)),
            Err(error) if error.status == Status::Unsupported => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Brings rows to staging memory as they are packed, and gives the bytes of `columns`. `None`: the platform lacks
    /// an op for it.
    fn make(&mut self, rows: Rows<'_>, columns: &Range<u32>) -> Result<Option<Tensor>, RunnerError> {
        let Rows {
            dtype, width, num_rows, ..
        } = rows;
        let mut encoder = self.queue.create_encoder(EncoderMode::OneShot)?;
        let mut ops = Vec::new();
        let row_bytes = width * dtype.bytes() as u32;
        let whole = self.stage(0, num_rows * row_bytes)?;
        let whole = Tensor::contiguous(whole.buffer_id(), 0, dtype, &[num_rows, width]);
        match rows.values {
            Values::Random(values) => {
                let spec = FillRandom {
                    dtype,
                    seed_low: values.seed_low,
                    seed_high: values.seed_high,
                    scale: DummyValues::SCALE,
                    first: rows.first * width,
                };
                let Some(fill) = self.op(spec.into())? else {
                    return Ok(None);
                };
                encoder.encode(fill.id(), &[whole.view(0, &[num_rows * width], &[1])])?;
                ops.push(fill);
            }
            Values::Stored(bytes) => {
                let at = |row: u32| row as usize * row_bytes as usize;
                if let Some(buffer) = &self.staging[0] {
                    buffer.write(0, &bytes[at(rows.first)..at(rows.first + num_rows)])?;
                }
            }
        }
        let (mut made, mut values, mut scales) = (whole, whole, None);
        if rows.quantised {
            let spec = QuantizeAct {
                width,
                dtype,
                scheme: QuantizeScheme::Fp8Row,
            };
            let Some(quantise) = self.op(spec.into())? else {
                return Ok(None);
            };
            made = self.stage(1, num_rows * rows.held_bytes(width))?;
            (values, scales) = rows.held(made, width);
            encoder.encode(quantise.id(), &[whole, values, scales.unwrap_or(Tensor::NONE)])?;
            ops.push(quantise);
        }
        if columns.len() < width as usize {
            let count = columns.len() as u32;
            let wanted = values.columns(columns.start, count);
            made = self.stage(2, num_rows * rows.held_bytes(count))?;
            let (part, scale_part) = rows.held(made, count);
            let mut copies = vec![(wanted, part)];
            copies.extend(scales.zip(scale_part));
            for (from, to) in copies {
                let copy = self.device.ops().prepare(&Copy { dtype: from.dtype() }.into())?;
                encoder.encode(copy.id(), &[from, to])?;
                ops.push(copy);
            }
        }
        let scratch = ops.iter().map(|op| op.info().scratch_bytes).max().unwrap_or(0);
        // Platforms take it for the end of loading and give back what uploads need: not for each matrix.
        if scratch > self.scratch {
            self.queue.reserve_scratch(scratch)?;
            self.scratch = scratch;
        }
        let commands = encoder.finish()?;
        let number = self.queue.submit(&[commands.id()], &[])?;
        self.queue.wait(number, WAIT_NS)?;
        let bytes = made.span_bytes() as u32;
        let id = made.buffer_id();
        Ok(Some(Tensor::contiguous(id, 0, DType::U8, &[bytes])))
    }

    /// Packs rows that lie in staging memory; through the host where the platform packs from there only.
    fn pack_made(&self, src: &Tensor, num_rows: u32, target: Target<'_>) -> Result<(), RunnerError> {
        let Target {
            op,
            node,
            first_row,
            dst,
        } = target;
        match op.pack_weight_from(node, first_row, num_rows, src, dst) {
            Err(error) if error.status == Status::Unsupported => {}
            outcome => return Ok(outcome?),
        }
        let mut bytes = vec![0; src.span_bytes() as usize];
        let mut staging = self.staging.iter().flatten();
        if let Some(buffer) = staging.find(|buffer| buffer.id() == src.buffer_id()) {
            buffer.read(src.offset, &mut bytes)?;
        }
        let rows = WeightRows {
            first_row,
            num_rows,
            bytes: &bytes,
        };
        Ok(op.pack_weight(node, rows, dst)?)
    }

    /// Staging memory of some bytes, grown where it is too small.
    fn stage(&mut self, index: usize, bytes: u32) -> Result<Tensor, RunnerError> {
        let known = self.staging[index].take();
        let buffer = match known.filter(|buffer| buffer.bytes() >= u64::from(bytes)) {
            Some(buffer) => buffer,
            None => self.device.create_buffer(bytes.into(), BufferKind::Device)?,
        };
        let tensor = Tensor::contiguous(buffer.id(), 0, DType::U8, &[bytes]);
        self.staging[index] = Some(buffer);
        Ok(tensor)
    }
}

/// Rows of which something is changed on the way: by several threads, each some neighbours.
///
/// # Errors
/// A thread that panicked.
fn changed_rows(source: &WeightTensor<'_>, rows: Range<usize>, columns: &Range<usize>) -> Result<Vec<u8>, RunnerError> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let of_thread = rows.len().div_ceil(threads).max(CHANGED_ROWS_A_THREAD);
    let make = |first: usize| {
        let rows = first..rows.end.min(first + of_thread);
        source.submatrix(rows, columns.clone()).into_owned()
    };
    std::thread::scope(|scope| {
        let make = &make;
        let later = rows.clone().step_by(of_thread).skip(1);
        let running: Vec<_> = later.map(|first| scope.spawn(move || make(first))).collect();
        let mut bytes = make(rows.start);
        for thread in running {
            let panicked = |_| RunnerError::Thread("a thread that makes rows panicked".to_string());
            bytes.extend(thread.join().map_err(panicked)?);
        }
        Ok(bytes)
    })
}

/// Where rows come from.
#[derive(Clone, Copy)]
enum Values<'b> {
    Random(DummyValues),
    /// All rows of the matrix, in host memory.
    Stored(&'b [u8]),
}

/// Rows to make.
#[derive(Clone, Copy)]
struct Rows<'b> {
    values: Values<'b>,
    dtype: DType,
    width: u32,
    first: u32,
    num_rows: u32,
    /// They are packed as 8-bit floats.
    quantised: bool,
}

impl Rows<'_> {
    /// Bytes of a canonical row of `width` values.
    fn held_bytes(&self, width: u32) -> u32 {
        match self.quantised {
            true => width + SCALE_BYTES,
            false => width * self.dtype.bytes() as u32,
        }
    }

    /// Canonical rows in `memory`, as values \[rows, width\] and, where they have them, scales \[rows, 1\]: `width` is
    /// a multiple of 4 then.
    fn held(&self, memory: Tensor, width: u32) -> (Tensor, Option<Tensor>) {
        let (rows, pitch) = (self.num_rows, width + SCALE_BYTES);
        if !self.quantised {
            let values = Tensor::contiguous(memory.buffer_id(), 0, self.dtype, &[rows, width]);
            return (values, None);
        }
        let codes = Tensor {
            dtype: DType::F8E4M3 as u32,
            ..memory.view(0, &[rows, width], &[pitch, 1])
        };
        let scales = Tensor {
            dtype: DType::F32 as u32,
            ..memory.view(u64::from(width), &[rows, 1], &[pitch / 4, 1])
        };
        (codes, Some(scales))
    }
}

/// Whole rows that are packed at a time: a multiple of [`PIECE_ROWS`], and so of every backend's panel so far.
fn whole_rows(row_bytes: usize) -> usize {
    (WHOLE_PIECE_BYTES / row_bytes.max(1) / PIECE_ROWS).max(1) * PIECE_ROWS
}

fn float_type(format: WeightFormat) -> Option<DType> {
    match format {
        WeightFormat::F32 => Some(DType::F32),
        WeightFormat::F16 => Some(DType::F16),
        WeightFormat::BF16 => Some(DType::BF16),
        _ => None,
    }
}

#[cfg(test)]
#[path = "weight_loader/tests.rs"]
mod tests;
