//! The device: its facts, its objects, and the registries.

use std::sync::{Arc, RwLock};

use halyard_kernels_cpu::Kernels;
use halyard_platform_api::ops::{Attention, LatentAttention};
use halyard_platform_api::{
    AttentionBackendInfo, AttentionPlan, AttentionRegistry, Buffer, BufferId, BufferKind, Capabilities, ClaimReport,
    Communicator, CommunicatorDesc, CommunicatorId, DType, DTypeSet, Device, DeviceInfo, Error, MemoryInfo, OpId,
    OpRegistry, OpSpec, OpSupport, PreparedInfo, PreparedOp, Program, Queue, QueueKind, Result, Slots, Status, Tensor,
    WeightRows,
};

use crate::communicator::{self, Member};
use crate::kernel::Kernel;
use crate::memory::{Allocation, Memory};
use crate::objects::Objects;
use crate::ops;
use crate::pool::Pool;
use crate::queue::{CpuQueue, read, write};

/// State that all objects of the device share.
pub(crate) struct Inner {
    pub objects: RwLock<Objects>,
    /// Of the live communicators, by their numbers.
    pub members: RwLock<Slots<Arc<Member>>>,
    pub memory: Memory,
    pub pool: Pool,
    pub threads: usize,
    pub kernels: &'static Kernels,
}

/// The opened CPU.
pub struct CpuDevice {
    pub(crate) inner: Arc<Inner>,
    info: DeviceInfo,
}

/// The device's facts with `threads` threads and these kernels.
pub(crate) fn info(threads: usize, kernels: &Kernels) -> DeviceInfo {
    let memory = Memory::new();
    let kv_dtypes = DTypeSet::of(&[DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::I8, DType::U4]);
    DeviceInfo {
        name: cpu_name(),
        detail: format!("{:?}, {threads} threads", kernels.isa()),
        total_memory_bytes: memory.total(),
        compute_dtypes: DTypeSet::of(&[DType::F32]),
        kv_dtypes,
        preferred_dtype: DType::F32,
        preferred_kv_dtype: DType::BF16,
        capabilities: Capabilities::BATCH_INVARIANT.with(Capabilities::COMMUNICATOR),
        async_depth: 0,
        max_buffer_bytes: memory.total(),
        max_binding_bytes: memory.total(),
        offset_alignment: 64,
        unified_memory: true,
        num_compute_units: threads as u32,
        preferred_block_size: 32,
        preferred_step_tokens: 1024,
        shape_buckets: Vec::new(),
    }
}

fn cpu_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    let name = line
        .and_then(|line| line.split_once(':'))
        .map(|(_, name)| name.trim().to_string());
    name.unwrap_or_else(|| std::env::consts::ARCH.to_string())
}

impl CpuDevice {
    pub(crate) fn open(threads: usize, kernels: &'static Kernels) -> Result<Arc<CpuDevice>> {
        let pool = Pool::new(threads).map_err(|e| {
            Error::new(
                Status::Internal,
                format!("cannot start {} worker threads: {e}", threads - 1),
            )
        })?;
        let inner = Inner {
            objects: RwLock::default(),
            members: RwLock::default(),
            memory: Memory::new(),
            pool,
            threads,
            kernels,
        };
        Ok(Arc::new(CpuDevice {
            inner: Arc::new(inner),
            info: info(threads, kernels),
        }))
    }
}

impl Device for CpuDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> Result<MemoryInfo> {
        Ok(self.inner.memory.info())
    }

    fn create_buffer(&self, bytes: u64, _kind: BufferKind) -> Result<Arc<dyn Buffer>> {
        if bytes == 0 || bytes > self.info.max_buffer_bytes {
            let limit = self.info.max_buffer_bytes;
            return Err(Error::invalid(format!(
                "a buffer of {bytes} bytes; it must have 1 to {limit}"
            )));
        }
        let allocation = Arc::new(self.inner.memory.allocate(bytes)?);
        let id = write(&self.inner.objects).buffers.insert(allocation.clone());
        Ok(Arc::new(CpuBuffer {
            inner: self.inner.clone(),
            allocation,
            id: BufferId(id),
        }))
    }

    fn create_queue_for(&self, kind: QueueKind, _step_bytes: u64) -> Result<Arc<dyn Queue>> {
        match kind {
            QueueKind::Compute => Ok(Arc::new(CpuQueue::new(self.inner.clone()))),
            QueueKind::Copy => Err(Error::unsupported(
                "host and device share one memory: there is no copy queue",
            )),
        }
    }

    fn ops(&self) -> &dyn OpRegistry {
        self
    }

    fn attention(&self) -> &dyn AttentionRegistry {
        self
    }

    fn communicator_id(&self) -> Result<CommunicatorId> {
        communicator::unique_id()
    }

    fn create_communicator(&self, group: &CommunicatorDesc) -> Result<Arc<dyn Communicator>> {
        communicator::join(self.inner.clone(), group)
    }
}

struct CpuBuffer {
    inner: Arc<Inner>,
    allocation: Arc<Allocation>,
    id: BufferId,
}

impl Buffer for CpuBuffer {
    fn id(&self) -> BufferId {
        self.id
    }

    fn bytes(&self) -> u64 {
        self.allocation.bytes() as u64
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let to = self.allocation.range(offset, bytes.len())?;
        // SAFETY: the range was checked; the contract leaves it to the caller that no submitted work uses it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let from = self.allocation.range(offset, out.len())?;
        // SAFETY: as for `write`.
        unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
        Ok(())
    }
}

impl Drop for CpuBuffer {
    fn drop(&mut self) {
        write(&self.inner.objects).buffers.remove(self.id.0);
    }
}

/// A prepared op.
pub(crate) struct CpuPrepared {
    inner: Arc<Inner>,
    kernel: Arc<dyn Kernel>,
    id: OpId,
}

impl CpuPrepared {
    pub(crate) fn register(inner: Arc<Inner>, kernel: Arc<dyn Kernel>) -> Arc<dyn PreparedOp> {
        let id = write(&inner.objects).ops.insert(kernel.clone());
        Arc::new(CpuPrepared {
            inner,
            kernel,
            id: OpId(id),
        })
    }
}

impl PreparedOp for CpuPrepared {
    fn id(&self) -> OpId {
        self.id
    }

    fn info(&self) -> PreparedInfo {
        PreparedInfo {
            scratch_bytes: self.kernel.scratch_bytes() as u64,
            recordable: true,
        }
    }

    fn packed_weight_bytes(&self, _node: u32) -> Result<u64> {
        self.kernel.packed_weight_bytes()
    }

    fn pack_weight(&self, _node: u32, rows: WeightRows<'_>, dst: &Tensor) -> Result<()> {
        self.kernel.pack_weight(&rows, dst, &read(&self.inner.objects))
    }

    fn pack_weight_from(&self, _node: u32, first_row: u32, num_rows: u32, src: &Tensor, dst: &Tensor) -> Result<()> {
        let objects = read(&self.inner.objects);
        let bytes = src.span_bytes() as usize;
        let from = objects.buffer(src.buffer_id())?.range(src.offset, bytes)?;
        // SAFETY: the range was checked; the submits that wrote it are done, and nothing writes it until this returns.
        let bytes = unsafe { std::slice::from_raw_parts(from, bytes) };
        let rows = WeightRows {
            first_row,
            num_rows,
            bytes,
        };
        self.kernel.pack_weight(&rows, dst, &objects)
    }
}

impl Drop for CpuPrepared {
    fn drop(&mut self) {
        write(&self.inner.objects).ops.remove(self.id.0);
    }
}

impl CpuDevice {
    /// The kernel of an op, or of a collective of one of the device's communicators.
    fn kernel(&self, spec: &OpSpec) -> Result<Arc<dyn Kernel>> {
        let OpSpec::Collective(op) = spec else {
            return ops::build(spec, self.inner.kernels.isa());
        };
        let number = op.communicator;
        let member = read(&self.inner.members).find(number).cloned();
        let member = member.ok_or_else(|| Error::invalid(format!("communicator {number:#x} is not alive")))?;
        member.collective(op.of_communicator())
    }
}

impl OpRegistry for CpuDevice {
    fn support(&self, spec: &OpSpec) -> Result<OpSupport> {
        self.kernel(spec)?;
        Ok(OpSupport {
            cost: 1.0,
            implementation: format!("{:?}", self.inner.kernels.isa()),
        })
    }

    fn prepare(&self, spec: &OpSpec) -> Result<Arc<dyn PreparedOp>> {
        Ok(CpuPrepared::register(self.inner.clone(), self.kernel(spec)?))
    }

    fn claim(&self, _program: &Program) -> Result<ClaimReport> {
        Ok(ClaimReport::nothing(
            "cpu: a command buffer already runs as one parallel region, so single ops cost a barrier each and no \
             launch",
        ))
    }
}

impl AttentionRegistry for CpuDevice {
    fn backends(&self) -> Vec<AttentionBackendInfo> {
        vec![AttentionBackendInfo {
            name: "paged".to_string(),
            priority: 0,
            block_sizes: Vec::new(),
        }]
    }

    fn support(&self, spec: &Attention) -> Result<()> {
        ops::attention_reasons(spec)
    }

    fn plan(&self, spec: &Attention) -> Result<AttentionPlan> {
        ops::attention_reasons(spec)?;
        Ok(AttentionPlan {
            block_bytes: ops::kv_layout(spec.kv, spec.block_size, spec.num_kv_heads, spec.head_dim)?.block_bytes()
                as u64,
            scratch_bytes: 0,
            record_decode: true,
            record_mixed_tokens: spec.max_tokens,
        })
    }

    fn support_latent(&self, spec: &LatentAttention) -> Result<()> {
        ops::latent_reasons(spec)
    }

    fn plan_latent(&self, spec: &LatentAttention) -> Result<AttentionPlan> {
        ops::latent_reasons(spec)?;
        let layout = ops::latent_layout(spec.kv, spec.block_size, spec.latent_dim, spec.rope_dim)?;
        Ok(AttentionPlan {
            block_bytes: layout.block_bytes() as u64,
            scratch_bytes: 0,
            record_decode: true,
            record_mixed_tokens: spec.max_tokens,
        })
    }
}
