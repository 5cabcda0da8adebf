//! The device: its facts, its objects, and the registries.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use halyard_platform_api::ops::{Attention, LatentAttention};
use halyard_platform_api::{
    Access, AttentionBackendInfo, AttentionPlan, AttentionRegistry, Buffer, BufferId, BufferKind, Capabilities,
    ClaimReport, Communicator, CommunicatorDesc, CommunicatorId, DType, DTypeSet, Device, DeviceInfo, Error,
    MemoryInfo, OpId, OpRegistry, OpSpec, OpSupport, PreparedInfo, PreparedOp, Program, Queue, QueueKind, Result,
    Status, Tensor, WeightRows, log,
};

use crate::communicator::GpuCommunicator;
use crate::driver::{Driver, Facts, Group};
use crate::kernel::{Kernel, Preparation, RowSource};
use crate::memory::{Allocation, Memory};
use crate::modules::Modules;
use crate::objects::{Objects, Registered, SharedKernel, read, write};
use crate::ops::{self, CollectiveKernel};
use crate::queue::{GpuQueue, QueueCore};
use crate::ranks;
use crate::upload::Uploads;
use crate::view::View;

/// State that all objects of the device share.
pub(crate) struct Inner {
    pub(crate) objects: RwLock<Objects>,
    pub(crate) uploads: Arc<Uploads>,
    pub(crate) modules: Modules,
    pub(crate) memory: Memory,
    queues: Mutex<HashMap<u64, Arc<QueueCore>>>,
    next_queue: AtomicU64,
    pub(crate) driver: Arc<dyn Driver>,
}

impl Inner {
    /// The live queues by id.
    pub(crate) fn queues(&self) -> MutexGuard<'_, HashMap<u64, Arc<QueueCore>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open GPU.
pub struct GpuDevice {
    inner: Arc<Inner>,
    info: DeviceInfo,
}

/// What a KV cache holds where kernels are CUDA C++: codes too, with a scale for each token and head.
pub const KV_DTYPES_WITH_CODES: DTypeSet =
    DTypeSet::of(&[DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::I8, DType::U4]);

/// The facts of a device.
pub fn device_info(facts: &Facts) -> DeviceInfo {
    let floats = DTypeSet::of(&[DType::F32, DType::F16, DType::BF16]);
    DeviceInfo {
        name: facts.name.clone(),
        detail: facts.detail.clone(),
        total_memory_bytes: facts.total_memory_bytes,
        compute_dtypes: floats,
        kv_dtypes: DTypeSet::of(&[DType::F32, DType::F16, DType::BF16, DType::F8E4M3]),
        preferred_dtype: DType::BF16,
        preferred_kv_dtype: DType::BF16,
        capabilities: Capabilities::RECORDING
            .with(Capabilities::CONCURRENT_QUEUES)
            .with(Capabilities::COMMUNICATOR)
            .with(Capabilities::COMPOSITES),
        async_depth: 2,
        max_buffer_bytes: facts.total_memory_bytes,
        max_binding_bytes: facts.total_memory_bytes,
        offset_alignment: 256,
        unified_memory: false,
        num_compute_units: facts.num_sms,
        preferred_block_size: 64,
        preferred_step_tokens: 8192,
        shape_buckets: Vec::new(),
    }
}

/// The error of a device that a platform does not have: `loader` shows the first `count`, and `hint` says what has a
/// say in that.
pub fn no_such_device(index: u32, loader: &str, count: usize, hint: &str) -> Error {
    let devices = match count {
        0 => "no device".to_string(),
        1 => "device 0 only".to_string(),
        _ => format!("devices 0 to {}", count - 1),
    };
    Error::new(
        Status::NotFound,
        format!("device {index}: {loader} shows {devices}; {hint}"),
    )
}

impl GpuDevice {
    /// Opens the device behind `driver`, which says `info` of itself (from [`device_info`], less what it lacks), with
    /// its compiled kernels.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn open(driver: Arc<dyn Driver>, info: DeviceInfo, modules: Modules) -> Result<Arc<GpuDevice>> {
        log::debug("gpu", &format!("{}: {}", info.name, driver.policy()));
        let inner = Inner {
            objects: RwLock::default(),
            uploads: Arc::new(Uploads::new(driver.clone())?),
            modules,
            memory: Memory::new(info.total_memory_bytes),
            queues: Mutex::default(),
            next_queue: AtomicU64::new(1),
            driver,
        };
        Ok(Arc::new(GpuDevice {
            inner: Arc::new(inner),
            info,
        }))
    }
}

/// Prepares a kernel that uses its operands like this, and gives it an id.
pub(crate) fn register(
    inner: &Arc<Inner>,
    mut kernel: Box<dyn Kernel>,
    access: Vec<Access>,
) -> Result<Arc<dyn PreparedOp>> {
    kernel.prepare(&Preparation {
        driver: &inner.driver,
        modules: &inner.modules,
    })?;
    let kernel: SharedKernel = Arc::from(kernel);
    let scratch_bytes = kernel.scratch_bytes();
    let id = write(&inner.objects).ops.insert(Registered {
        kernel: kernel.clone(),
        access,
        scratch_bytes,
    });
    Ok(Arc::new(Prepared {
        inner: inner.clone(),
        kernel,
        id: OpId(id),
        scratch_bytes,
    }))
}

impl Device for GpuDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> Result<MemoryInfo> {
        self.inner.memory.info(&*self.inner.driver)
    }

    fn create_buffer(&self, bytes: u64, kind: BufferKind) -> Result<Arc<dyn Buffer>> {
        if bytes == 0 || bytes > self.info.max_buffer_bytes {
            let limit = self.info.max_buffer_bytes;
            return Err(Error::invalid(format!(
                "a buffer of {bytes} bytes; it must have 1 to {limit}"
            )));
        }
        let inner = &self.inner;
        let allocation = match kind {
            BufferKind::Device => inner.memory.device(&inner.driver, &inner.uploads, bytes)?,
            BufferKind::HostVisible => inner.memory.host_visible(&inner.driver, &inner.uploads, bytes)?,
        };
        let allocation = Arc::new(allocation);
        let id = write(&inner.objects).buffers.insert(allocation.clone());
        Ok(Arc::new(GpuBuffer {
            inner: inner.clone(),
            allocation,
            id: BufferId(id),
        }))
    }

    fn create_queue_for(&self, _kind: QueueKind, step_bytes: u64) -> Result<Arc<dyn Queue>> {
        // A stream copies and computes alike.
        let id = self.inner.next_queue.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(GpuQueue::new(self.inner.clone(), id, step_bytes)?))
    }

    fn ops(&self) -> &dyn OpRegistry {
        self
    }

    fn attention(&self) -> &dyn AttentionRegistry {
        self
    }

    fn communicator_id(&self) -> Result<CommunicatorId> {
        ranks::unique_id(&*self.inner.driver)
    }

    fn create_communicator(&self, group: &CommunicatorDesc) -> Result<Arc<dyn Communicator>> {
        let (rank, size) = (group.rank, group.size);
        if size == 0 || rank >= size {
            return Err(Error::invalid(format!(
                "rank {rank} of a group of {size}; ranks are 0 to size − 1"
            )));
        }
        let group = ranks::join(&self.inner.driver, group)?;
        Ok(Arc::new(GpuCommunicator::new(self.inner.clone(), group)))
    }
}

struct GpuBuffer {
    inner: Arc<Inner>,
    allocation: Arc<Allocation>,
    id: BufferId,
}

impl Buffer for GpuBuffer {
    fn id(&self) -> BufferId {
        self.id
    }

    fn bytes(&self) -> u64 {
        self.allocation.bytes()
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.allocation.check(offset, bytes.len() as u64)?;
        match self.allocation.host() {
            // SAFETY: the range was checked; the contract leaves it to the caller that no submitted work uses it.
            Some(host) => unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), host.add(offset as usize), bytes.len());
                Ok(())
            },
            None if bytes.is_empty() => Ok(()),
            None => self.inner.uploads.write(self.allocation.ptr() + offset, bytes),
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.allocation.check(offset, out.len() as u64)?;
        match self.allocation.host() {
            // SAFETY: as for `write`.
            Some(host) => unsafe {
                std::ptr::copy_nonoverlapping(host.add(offset as usize), out.as_mut_ptr(), out.len());
                Ok(())
            },
            None if out.is_empty() => Ok(()),
            None => self.inner.uploads.read(self.allocation.ptr() + offset, out),
        }
    }
}

impl Drop for GpuBuffer {
    fn drop(&mut self) {
        let allocation = write(&self.inner.objects).buffers.remove(self.id.0);
        // Outside the lock: this may be the last holder, and freeing takes a while.
        drop(allocation);
    }
}

/// A registered op.
struct Prepared {
    inner: Arc<Inner>,
    kernel: SharedKernel,
    id: OpId,
    scratch_bytes: u64,
}

impl PreparedOp for Prepared {
    fn id(&self) -> OpId {
        self.id
    }

    fn info(&self) -> PreparedInfo {
        PreparedInfo {
            scratch_bytes: self.scratch_bytes,
            recordable: true,
        }
    }

    fn packed_weight_bytes(&self, node: u32) -> Result<u64> {
        self.kernel.packed_weight_bytes(node)
    }

    fn pack_weight(&self, node: u32, rows: WeightRows<'_>, dst: &Tensor) -> Result<()> {
        self.pack(node, rows.first_row, rows.num_rows, RowSource::Host(rows.bytes), dst)
    }

    fn pack_weight_from(&self, node: u32, first_row: u32, num_rows: u32, src: &Tensor, dst: &Tensor) -> Result<()> {
        let (source, _held) = self.hold(src)?;
        if source.is_none() {
            return Err(Error::invalid(format!(
                "node {node}: the tensor that holds its rows is absent"
            )));
        }
        self.pack(
            node,
            first_row,
            num_rows,
            RowSource::Device(source.ptr, src.span_bytes()),
            dst,
        )?;
        self.inner.uploads.wait()
    }
}

impl Prepared {
    /// A tensor's address, and a reference that keeps its memory while work is enqueued. A dropped buffer's memory
    /// waits by itself for work under way.
    fn hold(&self, tensor: &Tensor) -> Result<(View, Option<Arc<Allocation>>)> {
        let objects = read(&self.inner.objects);
        let (view, allocation) = objects.resolve(tensor)?;
        Ok((view, allocation.cloned()))
    }

    fn pack(&self, node: u32, first_row: u32, num_rows: u32, source: RowSource<'_>, dst: &Tensor) -> Result<()> {
        let needed = self.kernel.packed_weight_bytes(node)?;
        if dst.span_bytes() < needed {
            return Err(Error::invalid(format!(
                "node {node}'s packed weight has {needed} bytes, the tensor given for it {}",
                dst.span_bytes()
            )));
        }
        let (view, _held) = self.hold(dst)?;
        self.inner.uploads.pack(|packer| {
            self.kernel
                .pack_weight(packer, node, first_row, num_rows, source, view.ptr)
        })
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        let kernel = write(&self.inner.objects).ops.remove(self.id.0);
        drop(kernel);
    }
}

impl GpuDevice {
    /// The group of a live communicator.
    fn group(&self, number: u64) -> Result<Arc<dyn Group>> {
        read(&self.inner.objects).group(number).cloned()
    }

    /// Refuses a KV cache of a type that the device's kernels do not know.
    fn known_kv(&self, kv: DType) -> Result<()> {
        let known = self.info.kv_dtypes;
        if known.contains(kv) {
            return Ok(());
        }
        let names: Vec<String> = known.iter().map(|dtype| format!("{dtype:?}")).collect();
        Err(Error::unsupported(format!(
            "a KV cache in {kv:?}: this platform holds {}",
            names.join(", ")
        )))
    }

    /// The kernel of an op, not prepared yet.
    fn kernel(&self, spec: &OpSpec) -> Result<Box<dyn Kernel>> {
        match spec {
            OpSpec::KvWrite(op) => self.known_kv(op.kv)?,
            OpSpec::Attention(op) => self.known_kv(op.kv)?,
            _ => {}
        }
        match spec {
            OpSpec::Collective(op) => {
                let kernel = CollectiveKernel::new(&self.group(op.communicator)?, op.of_communicator())?;
                Ok(Box::new(kernel))
            }
            _ => ops::build(spec),
        }
    }
}

impl OpRegistry for GpuDevice {
    fn support(&self, spec: &OpSpec) -> Result<OpSupport> {
        let kernel = self.kernel(spec)?;
        let driver = &self.inner.driver;
        if let Some(source) = kernel.needs() {
            driver.kernel_text(source)?;
        }
        Ok(OpSupport {
            cost: 1.0,
            implementation: kernel.implementation(driver.facts(), driver.policy()),
        })
    }

    fn prepare(&self, spec: &OpSpec) -> Result<Arc<dyn PreparedOp>> {
        let access = spec.operands().iter().map(|operand| operand.access).collect();
        register(&self.inner, self.kernel(spec)?, access)
    }

    fn claim(&self, program: &Program) -> Result<ClaimReport> {
        program.validate()?;
        ops::claim(program, self.inner.driver.facts())
    }

    fn prepare_program(&self, program: &Program) -> Result<Arc<dyn PreparedOp>> {
        program.validate()?;
        let kernel = ops::build_program(program, &|number| self.group(number))?;
        register(&self.inner, kernel, program.tensor_access())
    }
}

/// The one attention backend.
fn known_backend(backend: u32) -> Result<()> {
    if backend == 0 {
        return Ok(());
    }
    let message = format!("attention backend {backend}: this platform has one, index 0");
    Err(Error::new(Status::NotFound, message))
}

impl AttentionRegistry for GpuDevice {
    fn backends(&self) -> Vec<AttentionBackendInfo> {
        vec![AttentionBackendInfo {
            name: "paged".to_string(),
            priority: 0,
            block_sizes: ops::BLOCK_SIZES.to_vec(),
        }]
    }

    fn support(&self, spec: &Attention) -> Result<()> {
        known_backend(spec.backend)?;
        self.known_kv(spec.kv)?;
        ops::attention_reasons(spec)
    }

    fn plan(&self, spec: &Attention) -> Result<AttentionPlan> {
        known_backend(spec.backend)?;
        self.known_kv(spec.kv)?;
        ops::attention_plan(spec)
    }

    fn support_latent(&self, spec: &LatentAttention) -> Result<()> {
        known_backend(spec.backend)?;
        ops::latent_reasons(spec)
    }

    fn plan_latent(&self, spec: &LatentAttention) -> Result<AttentionPlan> {
        known_backend(spec.backend)?;
        ops::latent_plan(spec)
    }
}
