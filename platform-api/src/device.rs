//! The objects: platform, device, buffer, queue, encoder, command buffer, op registry, prepared op.
//!
//! One execution model, known from Vulkan and WebGPU: encode → finish → submit. Ids ([`BufferId`], [`OpId`],
//! [`CommandId`]) are numbers that a backend gave out and checks; they die with the object that owns them. Dropping an
//! object while submitted work names it is allowed: the backend defers the release until that work is done.
//!
//! Threads: every method may be called from any thread unless it says otherwise; an [`Encoder`] belongs to one at a
//! time.

use std::sync::Arc;

use crate::abi::coded_enum;
use crate::attention::{AttentionRegistry, NoAttention};
use crate::communicator::{Communicator, CommunicatorDesc, CommunicatorId};
use crate::info::{DeviceInfo, MemoryInfo};
use crate::open::OpenOptions;
use crate::ops::OpSpec;
use crate::prepared::{OpId, PreparedOp};
use crate::program::{ClaimReport, Program};
use crate::status::{Error, Result};
use crate::tensor::{BufferId, Tensor};

/// A plugin's root: what devices it sees, and opening one.
pub trait Platform: Send + Sync {
    /// The devices, in index order.
    ///
    /// # Errors
    /// `Unavailable` with the reason (no driver, no device, too old) when there are none: never an empty list.
    fn devices(&self) -> Result<Vec<DeviceInfo>>;

    /// Opens a device. May block for seconds.
    ///
    /// # Errors
    /// `NotFound` past the end; `InvalidArgument` for an option that the platform does not know or cannot take, named
    /// ([`OpenOptions::check`]); `DeviceLost` or `Unavailable` from the driver.
    fn open_with(&self, options: &OpenOptions) -> Result<Arc<dyn Device>>;

    /// Opens device `index` without options.
    ///
    /// # Errors
    /// As [`Platform::open_with`].
    fn open(&self, index: u32) -> Result<Arc<dyn Device>> {
        self.open_with(&OpenOptions::of(index))
    }
}

/// An open device.
pub trait Device: Send + Sync {
    /// Facts, constant while the device is open.
    fn info(&self) -> &DeviceInfo;

    /// Memory now.
    ///
    /// # Errors
    /// `DeviceLost`.
    fn memory(&self) -> Result<MemoryInfo>;

    /// Allocates `bytes` (zero-filled, aligned to at least 64 and `offset_alignment`).
    ///
    /// # Errors
    /// `OutOfMemory` with the arithmetic; `InvalidArgument` for 0 or above `max_buffer_bytes`.
    fn create_buffer(&self, bytes: u64, kind: BufferKind) -> Result<Arc<dyn Buffer>>;

    /// Creates a queue whose steps write at most `step_bytes` each (0: [`MAX_STEP_WRITE_BYTES`]).
    ///
    /// # Errors
    /// `Unsupported` where the device has no queue of that kind; a compute queue always exists. `OutOfMemory`.
    fn create_queue_for(&self, kind: QueueKind, step_bytes: u64) -> Result<Arc<dyn Queue>>;

    /// Creates a queue whose steps write at most [`MAX_STEP_WRITE_BYTES`] each.
    ///
    /// # Errors
    /// As [`Device::create_queue_for`].
    fn create_queue(&self, kind: QueueKind) -> Result<Arc<dyn Queue>> {
        self.create_queue_for(kind, 0)
    }

    /// The ops.
    fn ops(&self) -> &dyn OpRegistry;

    /// The attention backends; a platform without attention has none.
    fn attention(&self) -> &dyn AttentionRegistry {
        &NoAttention
    }

    /// A fresh id that all ranks of a new communicator share.
    ///
    /// # Errors
    /// `Unsupported` without the communicator capability.
    fn communicator_id(&self) -> Result<CommunicatorId> {
        Err(Error::unsupported("this platform has no communicator"))
    }

    /// Joins a communicator; blocks until all ranks have joined with the same id.
    ///
    /// # Errors
    /// `Unsupported` without the capability; `Timeout` when a rank does not come in time.
    fn create_communicator(&self, group: &CommunicatorDesc) -> Result<Arc<dyn Communicator>> {
        let _ = group;
        Err(Error::unsupported("this platform has no communicator"))
    }
}

coded_enum! {
    /// Where a buffer lives.
    pub enum BufferKind {
        /// Device memory: weights, KV, activations, row state.
        Device = 0,
        /// Memory that ops read and write and the host reads without a copy command: what a done submit wrote is there
        /// for a plain read, which does not block. The result ring; KV blocks in host memory.
        HostVisible = 1,
    }
}

/// Device memory, freed when dropped (after the work that names it).
pub trait Buffer: Send + Sync {
    /// The id that tensors name.
    fn id(&self) -> BufferId;

    /// Size in bytes.
    fn bytes(&self) -> u64;

    /// Copies host bytes in, blocking until they have been taken. For load time; a step uses [`Queue::write_step`].
    /// The caller makes sure that no submitted work reads the range.
    ///
    /// # Errors
    /// `InvalidArgument` past the end; `DeviceLost`.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Copies bytes out. For a host-visible buffer this is a plain memory read of what completed submits wrote; for a
    /// device buffer it may block for a copy.
    ///
    /// # Errors
    /// `InvalidArgument` past the end; `DeviceLost`.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()>;
}

coded_enum! {
    /// What a queue is for.
    pub enum QueueKind {
        /// Runs any op.
        Compute = 0,
        /// Copies only, beside compute (offload, uploads).
        Copy = 1,
    }
}

/// A queue's number on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct QueueId(pub u64);

/// A wait on the device for another queue's progress.
#[derive(Clone, Copy, Debug)]
pub struct QueueWait {
    /// The other queue.
    pub queue: QueueId,
    /// Its submit number to wait for.
    pub number: u64,
}

/// One piece of step data: `bytes` for `buffer` at byte `offset`.
#[derive(Clone, Copy, Debug)]
pub struct StepWrite<'a> {
    /// Destination.
    pub buffer: BufferId,
    /// First byte.
    pub offset: u64,
    /// What to write; copied at the call.
    pub bytes: &'a [u8],
}

impl StepWrite<'_> {
    /// Nothing, to nowhere.
    pub const EMPTY: StepWrite<'static> = StepWrite {
        buffer: BufferId(0),
        offset: 0,
        bytes: &[],
    };
}

/// Bytes that one [`Queue::write_step`] may carry on every queue that was created without a number of its own.
pub const MAX_STEP_WRITE_BYTES: usize = 1 << 20;

/// An in-order queue. One thread at a time creates encoders, submits, writes and reserves; any may ask for progress and
/// wait.
pub trait Queue: Send + Sync {
    /// The id that other queues wait with.
    fn id(&self) -> QueueId;

    /// Starts encoding for this queue: what it seals is submitted here and nowhere else. A one-shot encoder may start
    /// its work at once, so between this call and the submit nothing else is encoded for, written to or submitted on
    /// this queue; work that has begun goes on when the encoder or its command buffer is dropped.
    ///
    /// # Errors
    /// `Unsupported` for [`EncoderMode::Reusable`] where command buffers cannot be submitted twice.
    fn create_encoder(&self, mode: EncoderMode) -> Result<Box<dyn Encoder>>;

    /// Submits command buffers in order, after `waits`, and returns this submit's number (from 1, only growing).
    /// A one-shot command buffer is submitted once. With `async_depth` 0 the work is done when this returns, and this
    /// may return its failure itself. A submit that fails uses no number.
    ///
    /// # Errors
    /// `DeviceLost`; `InvalidArgument`, with nothing run, for an id that is not alive, a command buffer of another
    /// queue, a one-shot one for the second time, and a wait for what was not submitted; the failure of a queue that is
    /// waited for, or of an earlier submit here. Failures of the work itself come from [`Queue::wait`].
    /// [`SubmitMark`](crate::SubmitMark) keeps the rules of command buffers.
    fn submit(&self, commands: &[CommandId], waits: &[QueueWait]) -> Result<u64>;

    /// The highest number whose work is done: a memory load. `u64::MAX` after a failure, which [`Queue::wait`] tells.
    fn completed(&self) -> u64;

    /// Blocks until `number` is done or `timeout_ns` has passed (0: only looks; `u64::MAX`: for ever).
    ///
    /// # Errors
    /// `Timeout`; `InvalidArgument` for a number above the last submit's; on a queue that has failed its failure,
    /// whatever the number.
    fn wait(&self, number: u64, timeout_ns: u64) -> Result<()>;

    /// Takes effect in queue order: later submits see it, earlier ones do not. The bytes are copied at the call into a
    /// ring that the backend owns, so the caller may reuse its memory at once. May block while the ring is full.
    ///
    /// # Errors
    /// `InvalidArgument`, with nothing written, past a buffer's end. More bytes than the queue was created for may be
    /// refused in the same way.
    fn write_step(&self, writes: &[StepWrite<'_>]) -> Result<()>;

    /// Makes the scratch arena at least `bytes`: the largest `scratch_bytes` of the ops that this queue will run.
    /// Sealed command buffers stay valid.
    ///
    /// # Errors
    /// `OutOfMemory`.
    fn reserve_scratch(&self, bytes: u64) -> Result<()>;
}

coded_enum! {
    /// How often the result of an encoder is submitted.
    pub enum EncoderMode {
        /// Once; the backend may start the work while encoding.
        OneShot = 0,
        /// Many times, with other bytes in the same buffers.
        Reusable = 1,
    }
}

/// A command buffer's number on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct CommandId(pub u64);

/// Collects ops. Must not allocate device memory, wait or read back.
pub trait Encoder: Send {
    /// Appends `op` over `operands`, in the order the op documents ([`OpSpec::operands`]; a prepared program: its
    /// tensors by index). An op may read what an earlier one wrote. An op that fails is not appended, and the encoder
    /// goes on.
    ///
    /// # Errors
    /// `InvalidArgument` for an id that is not alive, named, and for a tensor past its buffer's end or of a rank
    /// outside 1 to 4; `Unsupported` for an unknown type; `DeviceLost`.
    fn encode(&mut self, op: OpId, operands: &[Tensor]) -> Result<()>;

    /// Seals the commands.
    ///
    /// # Errors
    /// What encoding or capturing met.
    fn finish(self: Box<Self>) -> Result<Arc<dyn CommandBuffer>>;
}

/// Sealed commands.
pub trait CommandBuffer: Send + Sync {
    /// The id to submit.
    fn id(&self) -> CommandId;
}

/// Whether and how well a spec is supported.
#[derive(Clone, Debug, PartialEq)]
pub struct OpSupport {
    /// Relative cost, 1.0 = the backend's natural path; a higher one says that a rewrite is worth looking for.
    pub cost: f32,
    /// For people: which implementation would run.
    pub implementation: String,
}

/// The ops of a device.
pub trait OpRegistry: Send + Sync {
    /// Whether `spec` runs here.
    ///
    /// # Errors
    /// `Unsupported` with the reason.
    fn support(&self, spec: &OpSpec) -> Result<OpSupport>;

    /// Prepares `spec`. Equal specs may share one op. For load time, from several threads at once. It may compile and
    /// tune.
    ///
    /// # Errors
    /// `Unsupported` as [`OpRegistry::support`]; `OutOfMemory`.
    fn prepare(&self, spec: &OpSpec) -> Result<Arc<dyn PreparedOp>>;

    /// Which contiguous regions of `program` this backend wants to run as one, and why it leaves the rest.
    ///
    /// # Errors
    /// `InvalidArgument` for a malformed program.
    fn claim(&self, program: &Program) -> Result<ClaimReport> {
        let _ = program;
        Ok(ClaimReport::nothing("this platform claims no composites"))
    }

    /// Prepares a whole program (a claimed region) as one op; its operands are the program's tensors by index.
    ///
    /// # Errors
    /// `Unsupported` for a region that [`OpRegistry::claim`] does not claim whole.
    fn prepare_program(&self, program: &Program) -> Result<Arc<dyn PreparedOp>> {
        let _ = program;
        Err(Error::unsupported("this platform claims no composites"))
    }
}
