//! A planted fault: a device that computes one op wrongly in one output element. It exists to show that the suite turns
//! red.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use half::{bf16, f16};
use halyard_platform_api::{
    Access, AttentionRegistry, Buffer, BufferKind, ClaimReport, CommandBuffer, CommandId, Communicator,
    CommunicatorDesc, CommunicatorId, DType, Device, DeviceInfo, Encoder, EncoderMode, MemoryInfo, OpId, OpRegistry,
    OpSpec, OpSupport, PreparedOp, Program, Queue, QueueId, QueueKind, QueueWait, Result, StepWrite, Tensor, ops,
};

/// Wraps a device and overwrites the first element of `op`'s first output after every run of it (of a KV cache: the
/// first element of every page, as the layout is the backend's own). The device must have `copy`.
pub struct Faulty {
    inner: Arc<dyn Device>,
    op: String,
    faults: Arc<Faults>,
}

struct Faults {
    /// By code of a dtype: `copy`, and where its wrong value lies.
    wrong: HashMap<u32, (Arc<dyn PreparedOp>, Tensor)>,
    /// The wrong values.
    _values: Arc<dyn Buffer>,
    /// Output operand of each prepared op that is to fail.
    victims: Mutex<HashMap<OpId, usize>>,
}

impl Faulty {
    /// A fault in `op`.
    ///
    /// # Errors
    /// What the device says to a buffer, or to preparing `copy`.
    pub fn new(inner: Arc<dyn Device>, op: &str) -> Result<Self> {
        let values = [
            (DType::F32, 1000f32.to_bits()),
            (DType::F16, u32::from(f16::from_f32(1000.0).to_bits())),
            (DType::BF16, u32::from(bf16::from_f32(1000.0).to_bits())),
            (DType::I32, 123_456),
            (DType::I8, 77),
            (DType::U8, 0x6060_6060),
            (DType::F8E4M3, 0x7d),
        ];
        let buffer = inner.create_buffer(4 * values.len() as u64, BufferKind::Device)?;
        let mut wrong = HashMap::new();
        for (i, (dtype, bits)) in values.into_iter().enumerate() {
            let at = 4 * i as u64;
            buffer.write(at, &bits.to_le_bytes())?;
            let copy = inner.ops().prepare(&ops::Copy { dtype }.into())?;
            wrong.insert(dtype as u32, (copy, Tensor::contiguous(buffer.id(), at, dtype, &[1])));
        }
        let faults = Faults {
            wrong,
            _values: buffer,
            victims: Mutex::default(),
        };
        Ok(Faulty {
            inner,
            op: op.to_string(),
            faults: Arc::new(faults),
        })
    }
}

impl Device for Faulty {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn memory(&self) -> Result<MemoryInfo> {
        self.inner.memory()
    }

    fn create_buffer(&self, bytes: u64, kind: BufferKind) -> Result<Arc<dyn Buffer>> {
        self.inner.create_buffer(bytes, kind)
    }

    fn create_queue_for(&self, kind: QueueKind, step_bytes: u64) -> Result<Arc<dyn Queue>> {
        Ok(Arc::new(FaultyQueue {
            inner: self.inner.create_queue_for(kind, step_bytes)?,
            faults: Arc::clone(&self.faults),
        }))
    }

    fn ops(&self) -> &dyn OpRegistry {
        self
    }

    fn attention(&self) -> &dyn AttentionRegistry {
        self.inner.attention()
    }

    fn communicator_id(&self) -> Result<CommunicatorId> {
        self.inner.communicator_id()
    }

    fn create_communicator(&self, group: &CommunicatorDesc) -> Result<Arc<dyn Communicator>> {
        self.inner.create_communicator(group)
    }
}

impl OpRegistry for Faulty {
    fn support(&self, spec: &OpSpec) -> Result<OpSupport> {
        self.inner.ops().support(spec)
    }

    fn prepare(&self, spec: &OpSpec) -> Result<Arc<dyn PreparedOp>> {
        let op = self.inner.ops().prepare(spec)?;
        if spec.name() == self.op {
            let output = spec
                .operands()
                .iter()
                .position(|o| matches!(o.access, Access::Write | Access::Update));
            if let Some(output) = output {
                let mut victims = self.faults.victims.lock().unwrap_or_else(PoisonError::into_inner);
                victims.insert(op.id(), output);
            }
        }
        Ok(op)
    }

    fn claim(&self, program: &Program) -> Result<ClaimReport> {
        self.inner.ops().claim(program)
    }

    fn prepare_program(&self, program: &Program) -> Result<Arc<dyn PreparedOp>> {
        self.inner.ops().prepare_program(program)
    }
}

struct FaultyQueue {
    inner: Arc<dyn Queue>,
    faults: Arc<Faults>,
}

impl Queue for FaultyQueue {
    fn id(&self) -> QueueId {
        self.inner.id()
    }

    fn create_encoder(&self, mode: EncoderMode) -> Result<Box<dyn Encoder>> {
        Ok(Box::new(FaultyEncoder {
            inner: self.inner.create_encoder(mode)?,
            faults: Arc::clone(&self.faults),
        }))
    }

    fn submit(&self, commands: &[CommandId], waits: &[QueueWait]) -> Result<u64> {
        self.inner.submit(commands, waits)
    }

    fn completed(&self) -> u64 {
        self.inner.completed()
    }

    fn wait(&self, number: u64, timeout_ns: u64) -> Result<()> {
        self.inner.wait(number, timeout_ns)
    }

    fn write_step(&self, writes: &[StepWrite<'_>]) -> Result<()> {
        self.inner.write_step(writes)
    }

    fn reserve_scratch(&self, bytes: u64) -> Result<()> {
        self.inner.reserve_scratch(bytes)
    }
}

struct FaultyEncoder {
    inner: Box<dyn Encoder>,
    faults: Arc<Faults>,
}

impl Encoder for FaultyEncoder {
    fn encode(&mut self, op: OpId, operands: &[Tensor]) -> Result<()> {
        self.inner.encode(op, operands)?;
        let victims = self.faults.victims.lock().unwrap_or_else(PoisonError::into_inner);
        let output = victims.get(&op).copied();
        drop(victims);
        let Some(output) = output.map(|index| operands[index]) else {
            return Ok(());
        };
        let Some((copy, wrong)) = self.faults.wrong.get(&output.dtype) else {
            return Ok(());
        };
        let paged = output.dtype() == DType::U8 && output.rank == 2;
        let (wrong, element) = match paged {
            true => (wrong.view(0, &[output.shape[0], 4], &[0, 1]), output.columns(0, 4)),
            false => (*wrong, output.view(0, &[1], &[1])),
        };
        self.inner.encode(copy.id(), &[wrong, element])
    }

    fn finish(self: Box<Self>) -> Result<Arc<dyn CommandBuffer>> {
        self.inner.finish()
    }
}
