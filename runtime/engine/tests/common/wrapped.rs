//! A device with one thing changed: what it says of itself, what its communicator gives, or when its queue fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use halyard_platform_api::{
    AttentionRegistry, Buffer, BufferKind, Capabilities, Collective, CollectiveKind, CommandId, Communicator,
    CommunicatorDesc, CommunicatorId, DType, DTypeSet, Device, DeviceInfo, Encoder, EncoderMode, Error, MemoryInfo,
    OpRegistry, OpSpec, OpSupport, PreparedOp, Queue, QueueId, QueueKind, QueueWait, Result, Status, StepWrite,
    WeightFormat, ops::Copy,
};

/// The change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// It claims no communicator.
    NoCommunicator,
    /// It holds keys and values in f32 alone, as a plugin that knows no other types.
    HoldsFloats,
    /// Sums over ranks are left out.
    SkipsAllReduce,
    /// This submit and all later ones fail.
    FailsAtSubmit(u64),
    /// This submit panics.
    PanicsAtSubmit(u64),
    /// Its memory.
    HasMemory(MemoryInfo),
    /// It has no op of this name.
    Lacks(&'static str),
    /// It reads weights in none of these formats.
    LacksFormats(&'static [WeightFormat]),
    /// It reads `moe_linear` as it was before ranks had some of the experts.
    WholeExperts,
}

/// `inner` with `change`.
pub fn wrapped(inner: Arc<dyn Device>, change: Change) -> Arc<dyn Device> {
    let mut info = inner.info().clone();
    if change == Change::NoCommunicator {
        info.capabilities = Capabilities(info.capabilities.0 & !Capabilities::COMMUNICATOR.0);
    }
    if change == Change::HoldsFloats {
        info.kv_dtypes = DTypeSet::of(&[DType::F32]);
        info.preferred_kv_dtype = DType::F32;
    }
    Arc::new(Wrapped { inner, info, change })
}

struct Wrapped {
    inner: Arc<dyn Device>,
    info: DeviceInfo,
    change: Change,
}

impl Device for Wrapped {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> Result<MemoryInfo> {
        match self.change {
            Change::HasMemory(memory) => Ok(memory),
            _ => self.inner.memory(),
        }
    }

    fn create_buffer(&self, bytes: u64, kind: BufferKind) -> Result<Arc<dyn Buffer>> {
        self.inner.create_buffer(bytes, kind)
    }

    fn create_queue_for(&self, kind: QueueKind, step_bytes: u64) -> Result<Arc<dyn Queue>> {
        Ok(Arc::new(WrappedQueue {
            inner: self.inner.create_queue_for(kind, step_bytes)?,
            change: self.change,
            submits: AtomicU64::new(0),
        }))
    }

    fn ops(&self) -> &dyn OpRegistry {
        match self.change {
            Change::Lacks(_) | Change::LacksFormats(_) | Change::WholeExperts => self,
            _ => self.inner.ops(),
        }
    }

    fn attention(&self) -> &dyn AttentionRegistry {
        self.inner.attention()
    }

    fn communicator_id(&self) -> Result<CommunicatorId> {
        self.inner.communicator_id()
    }

    fn create_communicator(&self, group: &CommunicatorDesc) -> Result<Arc<dyn Communicator>> {
        let inner = self.inner.create_communicator(group)?;
        if self.change != Change::SkipsAllReduce {
            return Ok(inner);
        }
        let device = self.inner.clone();
        Ok(Arc::new(Skipping { inner, device }))
    }
}

impl OpRegistry for Wrapped {
    fn support(&self, spec: &OpSpec) -> Result<OpSupport> {
        match self.change {
            Change::Lacks(op) if spec.name() == op => Err(Error::unsupported(format!("there is no {op} here"))),
            Change::LacksFormats(formats) if weight_of(spec).is_some_and(|format| formats.contains(&format)) => {
                Err(Error::unsupported("it was taken away"))
            }
            Change::WholeExperts if matches!(spec, OpSpec::MoeLinear(op) if op.total_experts != 0) => {
                Err(Error::unsupported("bytes past the descriptor are not 0"))
            }
            _ => self.inner.ops().support(spec),
        }
    }

    fn prepare(&self, spec: &OpSpec) -> Result<Arc<dyn PreparedOp>> {
        self.support(spec)?;
        self.inner.ops().prepare(spec)
    }
}

/// The format of the weights that an op reads.
fn weight_of(spec: &OpSpec) -> Option<WeightFormat> {
    match spec {
        OpSpec::Embedding(op) => Some(op.weight),
        OpSpec::Linear(op) => Some(op.weight),
        OpSpec::MoeLinear(op) => Some(op.weight),
        OpSpec::HeadLinear(op) => Some(op.weight),
        _ => None,
    }
}

struct Skipping {
    inner: Arc<dyn Communicator>,
    device: Arc<dyn Device>,
}

impl Communicator for Skipping {
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    fn size(&self) -> u32 {
        self.inner.size()
    }

    fn prepare(&self, spec: &Collective) -> Result<Arc<dyn PreparedOp>> {
        match spec.kind {
            CollectiveKind::AllReduce => self.device.ops().prepare(&Copy { dtype: DType::F32 }.into()),
            _ => self.inner.prepare(spec),
        }
    }
}

struct WrappedQueue {
    inner: Arc<dyn Queue>,
    change: Change,
    submits: AtomicU64,
}

impl Queue for WrappedQueue {
    fn id(&self) -> QueueId {
        self.inner.id()
    }

    fn create_encoder(&self, mode: EncoderMode) -> Result<Box<dyn Encoder>> {
        self.inner.create_encoder(mode)
    }

    fn submit(&self, commands: &[CommandId], waits: &[QueueWait]) -> Result<u64> {
        let count = self.submits.fetch_add(1, Ordering::Relaxed) + 1;
        match self.change {
            Change::FailsAtSubmit(at) if count >= at => {
                Err(Error::new(Status::DeviceLost, "the device fell off the bus"))
            }
            Change::PanicsAtSubmit(at) if count >= at => panic!("planted"),
            _ => self.inner.submit(commands, waits),
        }
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
