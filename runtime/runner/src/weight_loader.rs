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

/// Bytes of rows made at a time.
const STAGING_BYTES: u64 = 64 << 20;
/// No piece takes this long.
const WAIT_NS: u64 = 120_000_000_000;
/// Rows that a thread packs from host memory at least: a multiple of every backend's panel so far, and few enough that
/// threads share the matrices of a small model evenly (576 rows: 320 and 256).
const ROWS_A_THREAD: u32 = 64;
/// Rows whose columns are copied out at a time: a few MiB.
const COLUMN_PIECE_ROWS: usize = 1024;
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
    progress: &'a mut dyn FnMut(u64),
    pub bytes: u64,
    pub elapsed: Duration,
}

impl<'a> WeightLoader<'a> {
    pub(crate) fn new(device: &'a dyn Device, queue: &'a dyn Queue, progress: &'a mut dyn FnMut(u64)) -> Self {
        WeightLoader {
            device,
            queue,
            staging: [None, None, None],
            can_fill: true,
            can_quantise: true,
            progress,
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
            let source = weights.tensor(part.role)?.in_format(part.format)?;
            if self.quantise(&source, part, target)? {
                self.elapsed += start.elapsed();
                return Ok(());
            }
            let columns = part.columns.start as usize..part.columns.end as usize;
            // Columns are copied out piece by piece, and so is what has to be changed; whole rows are taken where they
            // lie.
            let piece = match source.is_as_stored() && columns == (0..source.row_len()) {
                true => part.rows.len(),
                false => COLUMN_PIECE_ROWS,
            };
            for first in part.rows.clone().step_by(piece.max(1)) {
                let end = part.rows.end.min(first + piece as u32);
                let rows = source.submatrix(first as usize..end as usize, columns.clone());
                let target = Target {
                    first_row: target.first_row + first - part.rows.start,
                    ..target
                };
                self.pack_host(&rows, rows.len() / (end - first) as usize, target)?;
                self.count(rows.len() as u64);
            }
        }
        self.elapsed += start.elapsed();
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
        self.queue.reserve_scratch(scratch)?;
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

fn float_type(format: WeightFormat) -> Option<DType> {
    match format {
        WeightFormat::F32 => Some(DType::F32),
        WeightFormat::F16 => Some(DType::F16),
        WeightFormat::BF16 => Some(DType::BF16),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use halyard_models::weights::{self, MlpLinear};
    use halyard_models::{DummyWeights, LoadFormat, ModelFiles, Rounding, WeightQuantization};
    use halyard_platform_api::ops::{Epilogue, Linear};
    use halyard_platform_api::{Error, OpId, Platform, PreparedInfo, QueueKind};

    use super::*;

    /// An op of a platform whose table ends before `pack_weight_from`.
    struct HostOnly<'a>(&'a dyn PreparedOp);

    impl PreparedOp for HostOnly<'_> {
        fn id(&self) -> OpId {
            self.0.id()
        }

        fn info(&self) -> PreparedInfo {
            self.0.info()
        }

        fn packed_weight_bytes(&self, node: u32) -> Result<u64, Error> {
            self.0.packed_weight_bytes(node)
        }

        fn pack_weight(&self, node: u32, rows: WeightRows<'_>, dst: &Tensor) -> Result<(), Error> {
            self.0.pack_weight(node, rows, dst)
        }
    }

    fn dummy() -> ModelFiles {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models/llama");
        ModelFiles::open(&folder, LoadFormat::Dummy, DummyWeights::default()).expect("the fixture")
    }

    /// The packed weight as the device holds it, made by `load`.
    fn packed(device: &dyn Device, role: Role, load: impl Fn(&mut WeightLoader<'_>, &Weights, Target<'_>)) -> Vec<u8> {
        let files = dummy();
        let shape = files.weights.shape(role);
        let op = device.ops().prepare(
            &Linear {
                in_features: shape[1] as u32,
                out_features: shape[0] as u32,
                weight: WeightFormat::BF16,
                act: DType::F32,
                out: DType::F32,
                epilogue: Epilogue::None,
                max_tokens: 4,
                allow_quantized_act: false,
            }
            .into(),
        );
        let op = op.expect("prepared");
        let bytes = op.packed_weight_bytes(0).expect("a weight");
        let buffer = device.create_buffer(bytes, BufferKind::Device).expect("memory");
        let dst = Tensor::contiguous(buffer.id(), 0, DType::U8, &[bytes as u32]);
        let queue = device.create_queue(QueueKind::Compute).expect("a queue");
        let mut progress = |_| {};
        let mut loader = WeightLoader::new(device, &*queue, &mut progress);
        let target = Target {
            op: &*op,
            node: 0,
            first_row: 0,
            dst: &dst,
        };
        load(&mut loader, &files.weights, target);
        let mut out = vec![0; bytes as usize];
        buffer.read(0, &mut out).expect("read");
        out
    }

    #[test]
    fn the_device_makes_the_hosts_values() {
        let role = Role::weight(1, weights::Linear::Mlp(MlpLinear::Down));
        for device in [
            halyard_reference::ReferencePlatform::new().open(0),
            halyard_cpu::CpuPlatform::with_threads(2).open(0),
        ] {
            let device = device.expect("opens");
            let host = packed(&*device, role, |loader, weights, target| {
                let source = weights.tensor(role).expect("a matrix");
                loader
                    .pack_host(&source.bytes, source.row_bytes(), target)
                    .expect("packed");
            });
            let made = packed(&*device, role, |loader, weights, target| {
                let shape = weights.shape(role);
                let (rows, width) = (shape[0] as u32, shape[1] as u32);
                for rows in [0..3, 3..rows - 1, rows - 1..rows] {
                    let target = Target {
                        first_row: rows.start,
                        ..target
                    };
                    let part = Part {
                        role,
                        rows,
                        columns: 0..width,
                        format: weights.format(role).expect("a format"),
                    };
                    // The first part through an op that packs from host memory only.
                    let host_only = HostOnly(target.op);
                    let op: &dyn PreparedOp = if part.rows.start == 0 { &host_only } else { target.op };
                    let target = Target { op, ..target };
                    assert!(loader.fill(weights, &part, target).expect("filled"));
                }
                assert_eq!(loader.bytes, u64::from(rows) * u64::from(width) * 2);
            });
            assert!(host.iter().any(|&byte| byte != 0));
            assert_eq!(host, made);
        }
    }

    #[test]
    fn columns_are_those_of_the_whole_rows() {
        let device = halyard_reference::ReferencePlatform::new().open(0).expect("opens");
        let queue = device.create_queue(QueueKind::Compute).expect("a queue");
        let (files, role) = (dummy(), Role::weight(0, weights::Linear::O));
        let values = files.weights.dummy_values(role).expect("a dummy");
        let width = files.weights.shape(role)[1] as u32;
        let mut progress = |_| {};
        let mut loader = WeightLoader::new(&*device, &*queue, &mut progress);
        let rows = Rows {
            values: Values::Random(values),
            dtype: DType::BF16,
            width,
            first: 2,
            num_rows: 3,
            quantised: false,
        };
        let columns = 4..width / 2;
        let mut read = |rows: Rows<'_>| {
            let made = loader.make(rows, &columns).expect("made").expect("has the op");
            let mut bytes = vec![0; made.span_bytes() as usize];
            let buffer = loader.staging[2].as_ref().expect("staged");
            buffer.read(0, &mut bytes).expect("read");
            bytes
        };
        let expected = |weights: &Weights| {
            let source = weights.tensor(role).expect("a matrix");
            source.submatrix(2..5, 4..width as usize / 2).into_owned()
        };
        assert_eq!(read(rows), expected(&files.weights));
        // The same rows quantised on the device, and by the host.
        let stored = files.weights.tensor(role).expect("a matrix").bytes.into_owned();
        let quantised = Rows {
            quantised: true,
            ..rows
        };
        let mut files = files;
        files
            .quantise(WeightQuantization::Round(Rounding::Fp8))
            .expect("plain weights");
        assert_eq!(read(quantised), expected(&files.weights));
        let values = Values::Stored(&stored);
        assert_eq!(read(Rows { values, ..quantised }), expected(&files.weights));
    }

    #[test]
    fn what_a_device_cannot_quantise_the_host_does() {
        let role = Role::weight(1, weights::Linear::Mlp(MlpLinear::Up));
        let mut packed_rows = Vec::new();
        for device in [
            halyard_reference::ReferencePlatform::new().open(0),
            halyard_cpu::CpuPlatform::with_threads(2).open(0),
        ] {
            let device = device.expect("opens");
            let mut files = dummy();
            files
                .quantise(WeightQuantization::Round(Rounding::Fp8))
                .expect("plain weights");
            let shape = files.weights.shape(role);
            let op = Linear {
                in_features: shape[1] as u32,
                out_features: shape[0] as u32,
                weight: files.weights.format(role).expect("a format"),
                act: DType::F32,
                out: DType::F32,
                epilogue: Epilogue::None,
                max_tokens: 4,
                allow_quantized_act: false,
            };
            packed_rows.push(product(&*device, op, &files.weights, role));
        }
        let (exact, cpu) = (&packed_rows[0], &packed_rows[1]);
        assert!(exact.iter().any(|value| value.abs() > 0.01), "{exact:?}");
        assert!(exact.iter().zip(cpu).all(|(a, b)| (a - b).abs() < 1e-5));
    }

    /// The matrix times ones, packed as the loader does it.
    fn product(device: &dyn Device, op: Linear, weights: &Weights, role: Role) -> Vec<f32> {
        let (n, k) = (op.out_features, op.in_features);
        let prepared = device.ops().prepare(&op.into()).expect("prepared");
        let memory = |bytes: u64| device.create_buffer(bytes, BufferKind::Device).expect("memory");
        let bytes = prepared.packed_weight_bytes(0).expect("a weight");
        let (weight, x, out) = (memory(bytes), memory(4 * u64::from(k)), memory(4 * u64::from(n)));
        let queue = device.create_queue(QueueKind::Compute).expect("a queue");
        let mut progress = |_| {};
        let mut loader = WeightLoader::new(device, &*queue, &mut progress);
        let dst = Tensor::contiguous(weight.id(), 0, DType::U8, &[bytes as u32]);
        let target = Target {
            op: &*prepared,
            node: 0,
            first_row: 0,
            dst: &dst,
        };
        let part = Part {
            role,
            rows: 0..n,
            columns: 0..k,
            format: weights.format(role).expect("a format"),
        };
        loader.pack(weights, &part, target).expect("packed");
        x.write(0, &1f32.to_le_bytes().repeat(k as usize)).expect("written");
        let mut encoder = queue.create_encoder(EncoderMode::OneShot).expect("an encoder");
        let row = |buffer: &Arc<dyn Buffer>, width| Tensor::contiguous(buffer.id(), 0, DType::F32, &[1, width]);
        let operands = [row(&x, k), dst, Tensor::NONE, Tensor::NONE, row(&out, n)];
        encoder.encode(prepared.id(), &operands).expect("encoded");
        queue.reserve_scratch(prepared.info().scratch_bytes).expect("scratch");
        let commands = encoder.finish().expect("finished");
        let number = queue.submit(&[commands.id()], &[]).expect("submitted");
        queue.wait(number, WAIT_NS).expect("done");
        let mut values = vec![0; 4 * n as usize];
        out.read(0, &mut values).expect("read");
        values
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect()
    }
}
