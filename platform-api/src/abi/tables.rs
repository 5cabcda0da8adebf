//! The function tables that cross, and the lists of what crosses. Doc comments cross into the C header.
//!
//! Unless a function says otherwise: any thread may call it, several at once; it may block; it returns a
//! [`crate::Status`] code, on anything but Ok it fills `err` (nullable), outputs are written only on Ok, and inputs are
//! borrowed for the call. Handles are the plugin's pointers, released by the function named with them. `u8` pointers
//! with a length are bytes or UTF-8.

use std::ffi::c_void;

use super::layout::{AbiLayout, AbiTable, StructLayout, TableLayout};
use super::logits_tables as logits;
use super::macros::{abi_fixed_struct, abi_struct, abi_table};
use super::request_tables as request;
pub use super::structs::*;
use super::types::{ErrorOut, Str};
pub use super::types::{InterfaceFn, LogFn};
use crate::ops::SamplingRow;
use crate::tensor::Tensor;

/// ABI major version: both sides must have the same.
pub const ABI_MAJOR: u32 = 0;
/// ABI minor version of this description; in major 0 it counts what a decision record reset.
pub const ABI_MINOR: u32 = 2;
/// Lowest minor version that this host still loads.
pub const ABI_MINOR_MIN: u32 = 2;

/// Plugin kinds.
pub const KIND_PLATFORM: u32 = 1;
/// A stat-logger plugin.
pub const KIND_STAT_LOGGER: u32 = 2;

/// The type of the entry symbol.
pub type EntryFn = unsafe extern "C" fn(host: *const Host, out: *mut Plugin, err: *mut ErrorOut) -> u32;

abi_table! {
    /// A platform's root: which devices there are. Its functions are called at start.
    pub struct PlatformTable = "halyard_platform_table", interface 1 "platform" version 0 . 2 {
        /// Number of devices, 1 to HALYARD_MAX_DEVICES. None: HALYARD_STATUS_UNAVAILABLE with the reason (no driver, no
        /// device, too old).
        required fn num_devices(instance: *mut c_void, out: *mut u32, err: *mut ErrorOut) -> u32;
        /// Facts of device `index`. HALYARD_STATUS_NOT_FOUND past the end.
        required fn device_info(instance: *mut c_void, index: u32, out: *mut DeviceInfoWire, err: *mut ErrorOut) -> u32;
        /// Opens a device; `close` of the device interface releases it. May block for seconds.
        /// HALYARD_STATUS_NOT_FOUND past the end; HALYARD_STATUS_INVALID_ARGUMENT for an option that the platform does
        /// not know or cannot take, which the text names.
        required fn open(instance: *mut c_void, desc: *const OpenDescWire, out: *mut *mut c_void,
            err: *mut ErrorOut) -> u32;
    }
}

abi_table! {
    /// An open device, its memory, queues and commands.
    ///
    /// Work is encoded, sealed and submitted: `encoder_create`, `encode`, `encoder_finish`, `submit`. What is submitted
    /// to a queue runs in order. Buffers, ops, queues and command buffers have a handle, by which the host releases
    /// them, and an id, by which commands and waits name them.
    ///
    /// Anything may be released while a command buffer or submitted work names it: these keep what they need. Before
    /// the host closes a device it has released all that it got from it.
    ///
    /// One thread at a time calls `submit`, `write_step`, `reserve_scratch` and `encoder_create` of one queue, and one
    /// at a time uses one encoder; `completed` and `wait` come from any.
    pub struct DeviceTable = "halyard_device_table", interface 2 "device" version 0 . 2 {
        /// Releases the device, after everything that was created on it.
        required fn close(device: *mut c_void) -> ();
        /// Facts, constant while the device is open. Does not block.
        required fn info(device: *mut c_void, out: *mut DeviceInfoWire, err: *mut ErrorOut) -> u32;
        /// Memory now.
        required fn memory(device: *mut c_void, out: *mut MemoryInfoWire, err: *mut ErrorOut) -> u32;
        /// Allocates memory: zeroed, aligned to 64 bytes and to offset_alignment. `buffer_drop` releases the handle;
        /// the id, not 0, is for tensors and step writes. HALYARD_STATUS_OUT_OF_MEMORY says how much was asked and was
        /// free.
        required fn buffer_create(device: *mut c_void, desc: *const BufferDescWire, handle: *mut *mut c_void,
            id: *mut u64, err: *mut ErrorOut) -> u32;
        /// Releases a buffer. Its memory is given back when no command buffer and no submitted work names it any more.
        required fn buffer_drop(buffer: *mut c_void) -> ();
        /// Copies host bytes in and blocks until they are taken. For load time: a step uses `write_step`. No submitted
        /// work uses the range meanwhile.
        required fn buffer_write(buffer: *mut c_void, offset: u64, bytes: *const u8, len: u64,
            err: *mut ErrorOut) -> u32;
        /// Copies bytes out, as done submits left them. Of a host-visible buffer a plain read of memory, which does not
        /// block; of a device buffer a copy, which may.
        required fn buffer_read(buffer: *mut c_void, offset: u64, out: *mut u8, len: u64, err: *mut ErrorOut) -> u32;
        /// Creates an in-order queue; `queue_drop` releases the handle, the id is for waits. Every device has compute
        /// queues; HALYARD_STATUS_UNSUPPORTED for a kind that it does not have.
        required fn queue_create(device: *mut c_void, desc: *const QueueDescWire, handle: *mut *mut c_void,
            id: *mut u64, err: *mut ErrorOut) -> u32;
        /// Releases a queue once its work is done; may block until then.
        required fn queue_drop(queue: *mut c_void) -> ();
        /// Submits `num` command buffers in order, after what `waits` name, and gives the submit's number: the first is
        /// at least 1, and each is above the one before it. `num` may be 0. A one-shot command buffer is submitted
        /// once. It does not wait for the work where async_depth is above 0; where it is 0 the work is done when it
        /// returns, and it may return the work's failure itself.
        ///
        /// A submit that fails uses no number. One that is refused with HALYARD_STATUS_INVALID_ARGUMENT (an id that is
        /// not alive, a command buffer of another queue, a one-shot one for the second time, a wait for what was not
        /// submitted) or HALYARD_STATUS_OUT_OF_MEMORY has run nothing, and the queue goes on. Any other failure ends
        /// the queue: `submit` and `wait` tell it from then on, and so do submits of other queues that wait for it.
        required fn submit(queue: *mut c_void, commands: *const u64, num: u32, waits: *const QueueWaitWire,
            num_waits: u32, number: *mut u64, err: *mut ErrorOut) -> u32;
        /// The highest number whose work is done, 0 before the first; 2⁶⁴−1 after a failure, which `wait` tells. Never
        /// blocks: a load from memory.
        required fn completed(queue: *mut c_void) -> u64;
        /// Blocks until submit `number` is done or `timeout_ns` nanoseconds have passed: 0 only looks, 2⁶⁴−1 waits for
        /// ever. HALYARD_STATUS_TIMEOUT leaves the work going on; HALYARD_STATUS_INVALID_ARGUMENT for a number above
        /// the last submit's. On a queue that has failed: that failure, whatever the number.
        required fn wait(queue: *mut c_void, number: u64, timeout_ns: u64, err: *mut ErrorOut) -> u32;
        /// Writes a step's data in queue order: later submits see it, earlier ones do not. Entries lie `stride` bytes
        /// apart. The bytes are copied at the call, so the host uses its memory again at once. May block while earlier
        /// steps' data takes up the room. HALYARD_STATUS_INVALID_ARGUMENT (past a buffer's end) has written nothing.
        /// More bytes than the queue was created for may be refused in the same way.
        required fn write_step(queue: *mut c_void, writes: *const StepWriteWire, num: u32, stride: u32,
            err: *mut ErrorOut) -> u32;
        /// Makes the queue's scratch at least `bytes`: the most that an op or program of its needs. May block and may
        /// move it; sealed command buffers stay valid. Not calling it is no error: `submit` then does the same.
        required fn reserve_scratch(queue: *mut c_void, bytes: u64, err: *mut ErrorOut) -> u32;
        /// Starts encoding for a queue; the result is submitted there and nowhere else. Ends with `encoder_finish` or
        /// `encoder_drop`. A one-shot encoder may start its work at once: from here to its submit the host encodes,
        /// writes and submits nothing else on that queue. HALYARD_STATUS_UNSUPPORTED for reusable ones where command
        /// buffers cannot be submitted twice.
        required fn encoder_create(queue: *mut c_void, desc: *const EncoderDescWire, out: *mut *mut c_void,
            err: *mut ErrorOut) -> u32;
        /// Abandons an encoder. Work that it has started goes on.
        required fn encoder_drop(encoder: *mut c_void) -> ();
        /// Appends the op with id `op`, over `num` operands in its order; of a prepared program these are its tensors
        /// by index. It sees what earlier ops of the encoder wrote. A missing trailing operand is absent. What it names
        /// stays alive in the command buffer. Never blocks, and allocates no device memory.
        ///
        /// An id that is not alive, a tensor past its buffer's end or of a rank outside 1 to 4 is
        /// HALYARD_STATUS_INVALID_ARGUMENT, a dtype or an operand that is not known HALYARD_STATUS_UNSUPPORTED. An op
        /// that fails is not appended, and the encoder goes on.
        required fn encode(encoder: *mut c_void, op: u64, operands: *const Tensor, num: u32, err: *mut ErrorOut) -> u32;
        /// Seals what was encoded and consumes the encoder, also on failure. `command_drop` releases the handle; the id
        /// is for `submit`. What goes wrong here (a capture, for example) is this command buffer's matter: the queue
        /// goes on.
        required fn encoder_finish(encoder: *mut c_void, handle: *mut *mut c_void, id: *mut u64,
            err: *mut ErrorOut) -> u32;
        /// Releases a command buffer. Submitted work goes on.
        required fn command_drop(command: *mut c_void) -> ();
    }
}

abi_table! {
    /// The ops of a device. These functions are called at load time.
    pub struct OpsTable = "halyard_ops_table", interface 3 "ops" version 0 . 4 {
        /// Whether `spec` runs here; HALYARD_STATUS_UNSUPPORTED with the reason. Compiles nothing.
        required fn support(device: *mut c_void, spec: *const OpSpecWire, out: *mut OpSupportWire,
            err: *mut ErrorOut) -> u32;
        /// Makes an op ready; `prepared_drop` releases its handle. May compile, tune and block for long.
        required fn prepare(device: *mut c_void, spec: *const OpSpecWire, out: *mut PreparedWire,
            err: *mut ErrorOut) -> u32;
        /// Releases a prepared op or collective. Command buffers that name it stay as they are.
        required fn prepared_drop(prepared: *mut c_void) -> ();
        /// Bytes of the packed weight of node `node` (0 for a single op). HALYARD_STATUS_INVALID_ARGUMENT for a node
        /// without one.
        required fn packed_weight_bytes(prepared: *mut c_void, node: u32, out: *mut u64, err: *mut ErrorOut) -> u32;
        /// Packs rows of a weight from host memory into `dst`, a U8 tensor of packed_weight_bytes; the bytes are free
        /// again when it returns. Rows come in one or several calls. They may come again, while nothing that runs reads
        /// `dst`. What `dst` then holds is the plugin's own.
        required fn pack_weight(prepared: *mut c_void, rows: *const WeightRowsWire, dst: *const Tensor,
            err: *mut ErrorOut) -> u32;
        /// Which regions of a program the plugin wants to run as one op. HALYARD_STATUS_UNSUPPORTED: none, with the
        /// reason.
        optional ["no region is claimed; every op runs by itself"] fn claim(device: *mut c_void,
            program: *const ProgramWire, out: *mut ClaimReportWire, err: *mut ErrorOut) -> u32;
        /// Makes a claimed region ready as one op, whose operands are the program's tensors by index. As `prepare`
        /// otherwise.
        optional ["no region is claimed; every op runs by itself"] fn prepare_program(device: *mut c_void,
            program: *const ProgramWire, out: *mut PreparedWire, err: *mut ErrorOut) -> u32;
        /// `pack_weight` of rows in device memory: `src` is a U8 tensor of one axis, aligned to offset_alignment, that
        /// done submits wrote. It may be overwritten when this returns.
        optional ["the host reads the rows back and calls pack_weight"] fn pack_weight_from(prepared: *mut c_void,
            rows: *const WeightRowsWire, src: *const Tensor, dst: *const Tensor, err: *mut ErrorOut) -> u32;
    }
}

abi_table! {
    /// The attention backends of a device, which own what is inside a KV block. A spec is that of the op `attention`,
    /// whose `backend` is an index here; a spec of another op is HALYARD_STATUS_UNSUPPORTED. Called at load time.
    pub struct AttentionTable = "halyard_attention_table", interface 4 "attention" version 0 . 1 {
        /// Number of backends, at most HALYARD_MAX_ATTENTION_BACKENDS; 0: there is no attention.
        required fn num_backends(device: *mut c_void, out: *mut u32, err: *mut ErrorOut) -> u32;
        /// Facts of backend `index`.
        required fn backend_info(device: *mut c_void, index: u32, out: *mut AttentionBackendWire,
            err: *mut ErrorOut) -> u32;
        /// Whether the spec's backend runs it; HALYARD_STATUS_UNSUPPORTED with all reasons, one a line.
        required fn support(device: *mut c_void, spec: *const OpSpecWire, err: *mut ErrorOut) -> u32;
        /// What the spec's backend needs for it and its bounds.
        required fn plan(device: *mut c_void, spec: *const OpSpecWire, out: *mut AttentionPlanWire,
            err: *mut ErrorOut) -> u32;
    }
}

abi_table! {
    /// Collectives between devices. A platform without this interface has one rank.
    pub struct CommunicatorTable = "halyard_communicator_table", interface 5 "communicator" version 0 . 2 {
        /// A fresh group id: sets `len` to its bytes, 1 to HALYARD_MAX_COMMUNICATOR_ID_BYTES, and writes them to `out`
        /// when they are at most `capacity`; otherwise writes nothing there and is called again.
        required fn unique_id(device: *mut c_void, out: *mut u8, capacity: u32, len: *mut u32,
            err: *mut ErrorOut) -> u32;
        /// Joins a group and blocks until all ranks have, or HALYARD_STATUS_TIMEOUT. `drop` releases the handle; the id
        /// is the number by which an op names the communicator, 0 where none does.
        required fn create(device: *mut c_void, desc: *const CommunicatorDescWire, handle: *mut *mut c_void,
            id: *mut u64, err: *mut ErrorOut) -> u32;
        /// Leaves: unfinished collectives are given up, and those of other ranks fail instead of waiting, where the
        /// platform can tell. Ops prepared of it may live on.
        required fn drop(communicator: *mut c_void) -> ();
        /// Makes a collective ready; `prepared_drop` of the ops interface releases it. Every rank prepares and encodes
        /// the same ones in the same order.
        required fn prepare(communicator: *mut c_void, spec: *const CollectiveWire, out: *mut PreparedWire,
            err: *mut ErrorOut) -> u32;
    }
}

abi_fixed_struct! {
    /// A record of a batch: its kind and where it lies. A reader skips kinds that it does not know.
    pub struct RecordRef = "halyard_record_ref" {
        /// One of HALYARD_RECORD_.
        pub kind: u32,
        /// Zero.
        pub reserved: u32,
        /// The record of that kind, which starts with its size; valid during the call.
        pub body: *const c_void,
    }
}

abi_struct! {
    /// What a stat logger is handed at once.
    pub struct BatchWire = "halyard_record_batch" {
        /// Entries at records, at most HALYARD_MAX_BATCH_RECORDS.
        pub num_records: u32,
        /// The records, in the order in which they happened; valid during the call.
        pub records: *const RecordRef,
        /// Time that the host gives the call, nanoseconds.
        pub deadline_ns: u64,
        /// Records of this logger lost since the server's start: its queue was full, or it was in quarantine.
        pub num_dropped: u64,
    }
}

abi_table! {
    /// A stat-logger plugin's root. A logger is used by one thread at a time, never the engine's. Interface 32, of
    /// version 0.1, had a slot for each of two records; a plugin that only has that one is refused.
    pub struct StatLoggerTable = "halyard_stat_logger_table", interface 40 "stat_logger" version 0 . 2 {
        /// Makes a logger from a JSON object, `{}` when the operator gave none; `drop` releases it.
        /// HALYARD_STATUS_INVALID_ARGUMENT names the key.
        required fn create(instance: *mut c_void, config: Str, out: *mut *mut c_void, err: *mut ErrorOut) -> u32;
        /// Releases a logger.
        required fn drop(logger: *mut c_void) -> ();
        /// Takes records. May block, until the batch's deadline: a logger that takes longer is quarantined. The first
        /// record of every logger is the start record. A batch that fails counts as lost and is not given again.
        required fn log_batch(logger: *mut c_void, batch: *const BatchWire, err: *mut ErrorOut) -> u32;
        /// Writes out what is held back. May block for `deadline_ns` nanoseconds. Called about once a second after
        /// records came, and at the end.
        optional ["nothing is held back"] fn flush(logger: *mut c_void, deadline_ns: u64, err: *mut ErrorOut) -> u32;
        /// OpenMetrics text for `GET /metrics`, without `# EOF`: sets `len` to its bytes and writes them to `buffer`
        /// when they are at most `capacity`; otherwise writes nothing there and is called again. A length of 0: nothing
        /// to show. Must be quick: a scrape waits for it.
        optional ["nothing is shown"] fn expose(logger: *mut c_void, buffer: *mut u8, capacity: u64, len: *mut u64,
            err: *mut ErrorOut) -> u32;
    }
}

/// Every struct that crosses, in header order.
pub fn structs() -> Vec<StructLayout> {
    let mut all = vec![
        ErrorOut::layout(),
        Tensor::fixed_layout(),
        SamplingRow::fixed_layout(),
        Host::layout(),
        Plugin::layout(),
        OpenDescWire::layout(),
        BufferDescWire::layout(),
        QueueDescWire::layout(),
        EncoderDescWire::layout(),
        CommunicatorDescWire::layout(),
        WeightRowsWire::layout(),
        DeviceInfoWire::layout(),
        MemoryInfoWire::layout(),
        QueueWaitWire::fixed_layout(),
        StepWriteWire::layout(),
        OpSpecWire::layout(),
        OpSupportWire::layout(),
        PreparedWire::layout(),
        NodeWire::layout(),
        TensorDeclWire::layout(),
        ProgramWire::layout(),
        ClaimReportWire::layout(),
        AttentionBackendWire::layout(),
        AttentionPlanWire::layout(),
        CollectiveWire::layout(),
        request::IoRequestWire::layout(),
        request::IoVerdictWire::layout(),
        request::LoraQueryWire::layout(),
        request::LoraAnswerWire::layout(),
        logits::LogitsModelWire::layout(),
        logits::LogitsRequestWire::layout(),
        logits::LogitBias::fixed_layout(),
        logits::LogitsRowWire::layout(),
    ];
    all.extend(crate::hooks::record_layouts());
    all.extend([RecordRef::fixed_layout(), BatchWire::layout()]);
    all.extend(crate::ops::layouts().into_iter().map(|op| op.descriptor));
    all
}

/// Every table, in header order.
pub fn tables() -> Vec<TableLayout> {
    vec![
        PlatformTable::table_layout(),
        DeviceTable::table_layout(),
        OpsTable::table_layout(),
        AttentionTable::table_layout(),
        CommunicatorTable::table_layout(),
        StatLoggerTable::table_layout(),
        request::IoProcessorTable::table_layout(),
        request::LoraResolverTable::table_layout(),
        logits::LogitsProcessorTable::table_layout(),
    ]
}
