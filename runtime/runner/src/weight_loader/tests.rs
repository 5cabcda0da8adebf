//! Progress, pieces and bounds of packing.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use halyard_models::weights::{self, MlpLinear};
use halyard_models::{DummyWeights, LoadFormat, ModelFiles, Rounding, WeightQuantization};
use halyard_platform_api::ops::{Epilogue, Linear};
use halyard_platform_api::{
    CommandId, Encoder, Error, OpId, Platform, PreparedInfo, QueueId, QueueKind, QueueWait, StepWrite,
};

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

/// A queue whose scratch may only grow: platforms take each call for the end of loading.
struct Growing<'a> {
    inner: &'a dyn Queue,
    scratch: AtomicU64,
}

impl Queue for Growing<'_> {
    fn id(&self) -> QueueId {
        self.inner.id()
    }

    fn create_encoder(&self, mode: EncoderMode) -> Result<Box<dyn Encoder>, Error> {
        self.inner.create_encoder(mode)
    }

    fn submit(&self, commands: &[CommandId], waits: &[QueueWait]) -> Result<u64, Error> {
        self.inner.submit(commands, waits)
    }

    fn completed(&self) -> u64 {
        self.inner.completed()
    }

    fn wait(&self, number: u64, timeout_ns: u64) -> Result<(), Error> {
        self.inner.wait(number, timeout_ns)
    }

    fn write_step(&self, writes: &[StepWrite<'_>]) -> Result<(), Error> {
        self.inner.write_step(writes)
    }

    fn reserve_scratch(&self, bytes: u64) -> Result<(), Error> {
        let before = self.scratch.swap(bytes, Ordering::Relaxed);
        assert!(bytes > before, "{bytes} bytes of scratch where {before} are there");
        self.inner.reserve_scratch(bytes)
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
    let queue = Growing {
        inner: &*queue,
        scratch: AtomicU64::new(0),
    };
    let mut progress = |_| {};
    let mut loader = WeightLoader::new(device, &queue, &mut progress, None);
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
    let mut loader = WeightLoader::new(&*device, &*queue, &mut progress, None);
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
    let mut loader = WeightLoader::new(device, &*queue, &mut progress, None);
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
