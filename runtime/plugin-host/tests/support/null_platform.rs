//! A platform in Rust that computes nothing: it notes what happens to its objects, and panics where a test tells it to.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use halyard_platform_api::abi::tables;
use halyard_platform_api::ops::Attention;
use halyard_platform_api::{
    AttentionBackendInfo, AttentionPlan, AttentionRegistry, Buffer, BufferId, BufferKind, Capabilities, Claim,
    ClaimReport, Collective, CommandBuffer, CommandId, Communicator, CommunicatorDesc, CommunicatorId, DType, DTypeSet,
    Device, DeviceInfo, Encoder, EncoderMode, Error, MemoryInfo, OpId, OpRegistry, OpSpec, OpSupport, OpenOptions,
    Platform, PreparedInfo, PreparedOp, Program, Queue, QueueId, QueueKind, QueueWait, Result, Status, StepWrite,
    Tensor, WeightRows,
};

/// The next question for memory panics.
pub static MEMORY_PANICS: AtomicBool = AtomicBool::new(false);
/// Encoding an op of this id panics.
pub const PANICKING_OP: OpId = OpId(13);
/// Encoding an op of this id fails with a long text.
pub const FAILING_OP: OpId = OpId(14);

static EVENTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The events since the last call.
pub fn events() -> Vec<String> {
    std::mem::take(&mut *EVENTS.lock().unwrap_or_else(PoisonError::into_inner))
}

fn note(event: String) {
    EVENTS.lock().unwrap_or_else(PoisonError::into_inner).push(event);
}

/// Notes its end.
struct Noted(&'static str);

impl Drop for Noted {
    fn drop(&mut self) {
        note(format!("{} dropped", self.0));
    }
}

halyard_platform_api::export_platform! {
    name: "null",
    version: "0.0.1",
    priority: -1,
    about: "computes nothing",
    cpu_features: "",
    platform: NullPlatform,
}

/// The manifest's ABI, for a test that holds it to the constants.
pub fn abi() -> String {
    format!("{}.{}", tables::ABI_MAJOR, tables::ABI_MINOR)
}

pub struct NullPlatform;

pub fn device_info() -> DeviceInfo {
    DeviceInfo {
        name: "Null".to_string(),
        detail: "for tests".to_string(),
        total_memory_bytes: 1000,
        compute_dtypes: DTypeSet::of(&[DType::F32]),
        kv_dtypes: DTypeSet::of(&[DType::F32, DType::F16]),
        preferred_dtype: DType::F32,
        preferred_kv_dtype: DType::F16,
        capabilities: Capabilities::COMPOSITES,
        async_depth: 1,
        max_buffer_bytes: 500,
        max_binding_bytes: 500,
        offset_alignment: 64,
        unified_memory: true,
        num_compute_units: 2,
        preferred_block_size: 16,
        preferred_step_tokens: 64,
        shape_buckets: vec![1, 8],
    }
}

impl Platform for NullPlatform {
    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        Ok(vec![device_info(), device_info()])
    }

    fn open_with(&self, options: &OpenOptions) -> Result<Arc<dyn Device>> {
        options.check(&["color"])?;
        if let Some(color) = options.get("color") {
            note(format!("opened in {color}, cache {:?}", options.cache_dir));
        }
        let index = options.index;
        assert!(index != 9, "index nine is cursed");
        if index > 1 {
            return Err(Error::new(Status::NotFound, format!("device {index} of 2")));
        }
        halyard_platform_api::log::info("null", "device opened");
        Ok(Arc::new(NullDevice {
            info: device_info(),
            _end: Noted("device"),
        }))
    }
}

struct NullDevice {
    info: DeviceInfo,
    _end: Noted,
}

impl Device for NullDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn memory(&self) -> Result<MemoryInfo> {
        assert!(!MEMORY_PANICS.swap(false, Ordering::Relaxed), "memory went wrong");
        Ok(MemoryInfo {
            total_bytes: 1000,
            free_bytes: 600,
            used_bytes: 400,
        })
    }
    fn create_buffer(&self, bytes: u64, kind: BufferKind) -> Result<Arc<dyn Buffer>> {
        note(format!("buffer of {bytes} {kind:?}"));
        Ok(Arc::new(NullBuffer {
            bytes: Mutex::new(vec![0; bytes as usize]),
            _end: Noted("buffer"),
        }))
    }
    fn create_queue_for(&self, kind: QueueKind, step_bytes: u64) -> Result<Arc<dyn Queue>> {
        if step_bytes > 0 {
            note(format!("queue for {step_bytes} bytes a step"));
        }
        match kind {
            QueueKind::Compute => Ok(Arc::new(NullQueue {
                submitted: AtomicU64::new(0),
                _end: Noted("queue"),
            })),
            QueueKind::Copy => Err(Error::unsupported("no copy queue")),
        }
    }
    fn ops(&self) -> &dyn OpRegistry {
        self
    }
    fn attention(&self) -> &dyn AttentionRegistry {
        self
    }
    fn communicator_id(&self) -> Result<CommunicatorId> {
        CommunicatorId::new([7; 256])
    }
    fn create_communicator(&self, group: &CommunicatorDesc) -> Result<Arc<dyn Communicator>> {
        let CommunicatorDesc {
            id,
            rank,
            size,
            timeout_ns,
        } = group.clone();
        let bytes = id.bytes().len();
        note(format!(
            "joined an id of {bytes} bytes as {rank} of {size} within {timeout_ns}"
        ));
        Ok(Arc::new(NullCommunicator {
            rank,
            size,
            _end: Noted("communicator"),
        }))
    }
}

impl OpRegistry for NullDevice {
    fn support(&self, spec: &OpSpec) -> Result<OpSupport> {
        match spec {
            OpSpec::Add(_) => Err(Error::unsupported("cannot add")),
            other => Ok(OpSupport {
                cost: 1.5,
                implementation: format!("{} by doing nothing", other.name()),
            }),
        }
    }
    fn prepare(&self, spec: &OpSpec) -> Result<Arc<dyn PreparedOp>> {
        note(format!("prepared {spec:?}"));
        Ok(Arc::new(NullOp { _end: Noted("op") }))
    }
    fn claim(&self, program: &Program) -> Result<ClaimReport> {
        // More bytes than the host reserves at first, so that it has to ask again.
        let claims = (0..program.nodes.len() as u32 / 2)
            .map(|i| Claim { first: 2 * i, count: 2 })
            .collect();
        Ok(ClaimReport {
            claims,
            left: "é".repeat(program.nodes.len() * 30),
        })
    }
    fn prepare_program(&self, program: &Program) -> Result<Arc<dyn PreparedOp>> {
        note(format!("prepared {} nodes", program.nodes.len()));
        Ok(Arc::new(NullOp { _end: Noted("op") }))
    }
}

impl AttentionRegistry for NullDevice {
    fn backends(&self) -> Vec<AttentionBackendInfo> {
        vec![
            AttentionBackendInfo {
                name: "first".to_string(),
                priority: 2,
                block_sizes: vec![8, 16],
            },
            AttentionBackendInfo {
                name: "second".to_string(),
                priority: -2,
                block_sizes: Vec::new(),
            },
        ]
    }
    fn support(&self, spec: &Attention) -> Result<()> {
        match spec.backend {
            0 => Ok(()),
            _ => Err(Error::unsupported("reason one\nreason two")),
        }
    }
    fn plan(&self, spec: &Attention) -> Result<AttentionPlan> {
        Ok(AttentionPlan {
            block_bytes: u64::from(spec.head_dim),
            scratch_bytes: 2,
            record_decode: true,
            record_mixed_tokens: 3,
        })
    }
}

struct NullBuffer {
    bytes: Mutex<Vec<u8>>,
    _end: Noted,
}

impl Buffer for NullBuffer {
    fn id(&self) -> BufferId {
        BufferId(5)
    }
    fn bytes(&self) -> u64 {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let at = offset as usize;
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let at = offset as usize;
        out.copy_from_slice(&self.bytes.lock().unwrap_or_else(PoisonError::into_inner)[at..at + out.len()]);
        Ok(())
    }
}

struct NullQueue {
    submitted: AtomicU64,
    _end: Noted,
}

impl Queue for NullQueue {
    fn id(&self) -> QueueId {
        QueueId(21)
    }
    fn create_encoder(&self, mode: EncoderMode) -> Result<Box<dyn Encoder>> {
        Ok(Box::new(NullEncoder {
            mode,
            ops: 0,
            operands: 0,
            _end: Noted("encoder"),
        }))
    }
    fn submit(&self, commands: &[CommandId], waits: &[QueueWait]) -> Result<u64> {
        let waits: Vec<(u64, u64)> = waits.iter().map(|w| (w.queue.0, w.number)).collect();
        note(format!("submitted {commands:?} after {waits:?}"));
        Ok(self.submitted.fetch_add(1, Ordering::Relaxed) + 1)
    }
    fn completed(&self) -> u64 {
        self.submitted.load(Ordering::Relaxed)
    }
    fn wait(&self, number: u64, timeout_ns: u64) -> Result<()> {
        assert!(number != 666, "waited for the beast");
        if number > self.completed() {
            return Err(Error::new(
                Status::Timeout,
                format!("{number} not done after {timeout_ns} ns"),
            ));
        }
        Ok(())
    }
    fn write_step(&self, writes: &[StepWrite<'_>]) -> Result<()> {
        for write in writes {
            note(format!(
                "step write {} +{} {:?}",
                write.buffer.0, write.offset, write.bytes
            ));
        }
        Ok(())
    }
    fn reserve_scratch(&self, bytes: u64) -> Result<()> {
        Err(Error::out_of_memory(format!("{bytes} of 0 bytes")))
    }
}

struct NullEncoder {
    mode: EncoderMode,
    ops: u64,
    operands: usize,
    _end: Noted,
}

impl Encoder for NullEncoder {
    fn encode(&mut self, op: OpId, operands: &[Tensor]) -> Result<()> {
        if op == PANICKING_OP {
            panic!("encoding op {} went wrong", op.0);
        }
        if op == FAILING_OP {
            return Err(Error {
                status: Status::DeviceLost,
                vendor_code: -5,
                message: "long ".repeat(2000),
            });
        }
        self.ops += 1;
        self.operands += operands.len();
        Ok(())
    }
    fn finish(self: Box<Self>) -> Result<Arc<dyn CommandBuffer>> {
        note(format!(
            "finished {:?} {} ops {} operands",
            self.mode, self.ops, self.operands
        ));
        Ok(Arc::new(NullCommand { _end: Noted("command") }))
    }
}

struct NullCommand {
    _end: Noted,
}

impl CommandBuffer for NullCommand {
    fn id(&self) -> CommandId {
        CommandId(31)
    }
}

struct NullOp {
    _end: Noted,
}

impl PreparedOp for NullOp {
    fn id(&self) -> OpId {
        OpId(41)
    }
    fn info(&self) -> PreparedInfo {
        PreparedInfo {
            scratch_bytes: 77,
            recordable: true,
        }
    }
    fn packed_weight_bytes(&self, node: u32) -> Result<u64> {
        Ok(100 + u64::from(node))
    }
    fn pack_weight_from(&self, node: u32, first_row: u32, num_rows: u32, src: &Tensor, dst: &Tensor) -> Result<()> {
        note(format!(
            "packed {node}: {first_row}+{num_rows} from {} to {}",
            src.offset, dst.offset
        ));
        Ok(())
    }

    fn pack_weight(&self, node: u32, rows: WeightRows<'_>, dst: &Tensor) -> Result<()> {
        note(format!(
            "packed {node}: {}+{} {} bytes to {}",
            rows.first_row,
            rows.num_rows,
            rows.bytes.len(),
            dst.offset
        ));
        Ok(())
    }
}

struct NullCommunicator {
    rank: u32,
    size: u32,
    _end: Noted,
}

impl Communicator for NullCommunicator {
    fn rank(&self) -> u32 {
        self.rank
    }
    fn size(&self) -> u32 {
        self.size
    }
    fn prepare(&self, spec: &Collective) -> Result<Arc<dyn PreparedOp>> {
        note(format!("prepared {spec:?}"));
        Ok(Arc::new(NullOp { _end: Noted("op") }))
    }
}
