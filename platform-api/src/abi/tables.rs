//! The structs and function tables that cross, and the lists of them.
//!
//! Unless a function says otherwise: any thread may call it, it returns a [`crate::Status`] code, on anything but Ok it
//! fills `err` (nullable), outputs are written only on Ok, and inputs are borrowed for the call. Handles are the
//! plugin's pointers, released by the function named with them. `u8` pointers with a length are bytes or UTF-8.

use std::ffi::c_void;

use super::layout::{AbiLayout, AbiTable, StructLayout, TableLayout};
use super::macros::{abi_fixed_struct, abi_struct, abi_table};
use super::request_tables as request;
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

abi_struct! {
    /// What the host offers a plugin; valid for the process's life.
    pub struct Host = "halyard_host" {
        /// ABI major version.
        pub abi_major: u32,
        /// Lowest ABI minor version the host accepts.
        pub abi_minor_min: u32,
        /// Highest ABI minor version the host knows.
        pub abi_minor_max: u32,
        /// Passed back to the functions below.
        pub context: *mut c_void,
        /// Name of the host program.
        pub name: Str,
        /// Its version.
        pub version: Str,
        /// Logs `text` at `level` (1 error, 2 warn, 3 info, 4 debug, 5 trace) under `target`. Null: no log.
        pub log: Option<LogFn>,
    }
}

abi_struct! {
    /// What the entry function answers.
    pub struct Plugin = "halyard_plugin" {
        /// ABI major version.
        pub abi_major: u32,
        /// ABI minor version the plugin was built with.
        pub abi_minor: u32,
        /// One of the `KIND_` constants.
        pub kind: u32,
        /// Passed to `find_interface` and to the root table.
        pub instance: *mut c_void,
        /// Name, as in the manifest; valid for the process's life.
        pub name: Str,
        /// Version; valid for the process's life.
        pub version: Str,
        /// Finds an interface's table. Required.
        pub find_interface: Option<InterfaceFn>,
    }
}

/// The type of the entry symbol.
pub type EntryFn = unsafe extern "C" fn(host: *const Host, out: *mut Plugin, err: *mut ErrorOut) -> u32;

abi_struct! {
    /// [`crate::DeviceInfo`] on the wire. Texts are valid while the instance lives.
    pub struct DeviceInfoWire = "halyard_device_info" {
        /// Steps in flight beyond the one that the host waits for.
        pub async_depth: u32,
        /// Name.
        pub name: Str,
        /// Detail.
        pub detail: Str,
        /// Total memory in bytes.
        pub total_memory_bytes: u64,
        /// Bits by dtype code.
        pub compute_dtypes: u64,
        /// Bits by dtype code.
        pub kv_dtypes: u64,
        /// Capability bits.
        pub capabilities: u64,
        /// Largest buffer in bytes.
        pub max_buffer_bytes: u64,
        /// Largest operand span in bytes.
        pub max_binding_bytes: u64,
        /// Dtype code.
        pub preferred_dtype: u32,
        /// Dtype code.
        pub preferred_kv_dtype: u32,
        /// Bytes.
        pub offset_alignment: u32,
        /// 0 or 1.
        pub unified_memory: u32,
        /// Compute units.
        pub num_compute_units: u32,
        /// Tokens.
        pub preferred_block_size: u32,
        /// Tokens.
        pub preferred_step_tokens: u32,
        /// Entries at `shape_buckets`.
        pub num_shape_buckets: u32,
        /// Token counts; valid while the instance lives.
        pub shape_buckets: *const u32,
    }
}

abi_struct! {
    /// [`crate::OpenOptions`] on the wire.
    pub struct OpenDescWire = "halyard_open_desc" {
        /// Index of the device, below `num_devices`.
        pub index: u32,
        /// The operator's options: a line `key=value` each, keys of `a-z 0-9 _ -`, each once. An unknown key is
        /// InvalidArgument.
        pub options: Str,
        /// Folder for what can be made again (compiled kernels, tuned choices); empty: the platform's own choice.
        pub cache_dir: Str,
    }
}

abi_struct! {
    /// What a buffer is created with.
    pub struct BufferDescWire = "halyard_buffer_desc" {
        /// 0 device, 1 host-visible.
        pub kind: u32,
        /// Size in bytes, at least 1.
        pub bytes: u64,
        /// None are defined: an unknown bit is Unsupported.
        pub flags: u64,
    }
}

abi_struct! {
    /// What a queue is created with.
    pub struct QueueDescWire = "halyard_queue_desc" {
        /// 0 compute, 1 copy.
        pub kind: u32,
        /// Most bytes of one step's writes; 0: 1 MiB.
        pub step_bytes: u64,
        /// None are defined: an unknown bit is Unsupported.
        pub flags: u64,
    }
}

abi_struct! {
    /// What an encoder is created with.
    pub struct EncoderDescWire = "halyard_encoder_desc" {
        /// 0 one-shot, 1 reusable.
        pub mode: u32,
        /// None are defined: an unknown bit is Unsupported.
        pub flags: u64,
    }
}

abi_struct! {
    /// [`crate::CommunicatorDesc`] on the wire.
    pub struct CommunicatorDescWire = "halyard_communicator_desc" {
        /// This rank.
        pub rank: u32,
        /// Number of ranks.
        pub size: u32,
        /// Bytes at `id`.
        pub id_len: u32,
        /// What `unique_id` of one rank gave, the same for all.
        pub id: *const u8,
        /// How long to wait for the other ranks, nanoseconds; 0: as long as the platform thinks right.
        pub timeout_ns: u64,
    }
}

abi_struct! {
    /// Rows of a node's weight that are packed.
    pub struct WeightRowsWire = "halyard_weight_rows" {
        /// The node; 0 for a single op.
        pub node: u32,
        /// Which part of the weight these are rows of. 0: the rows of its format, and the only one that a format of
        /// this contract has. An unknown part is Unsupported.
        pub part: u32,
        /// First row.
        pub first_row: u32,
        /// Number of rows.
        pub num_rows: u32,
        /// Zero.
        pub reserved: u32,
        /// The rows in the weight's format, for `pack_weight`; null for `pack_weight_from`.
        pub bytes: *const u8,
        /// Bytes there.
        pub len: u64,
    }
}

abi_struct! {
    /// [`crate::MemoryInfo`] on the wire.
    pub struct MemoryInfoWire = "halyard_memory_info" {
        /// Zero.
        pub reserved: u32,
        /// All, in bytes.
        pub total_bytes: u64,
        /// Free, in bytes.
        pub free_bytes: u64,
        /// Held by this device object, in bytes.
        pub used_bytes: u64,
    }
}

abi_fixed_struct! {
    /// [`crate::QueueWait`] on the wire.
    pub struct QueueWaitWire = "halyard_queue_wait" {
        /// Queue id.
        pub queue: u64,
        /// Submit number.
        pub number: u64,
    }
}

abi_struct! {
    /// [`crate::StepWrite`] on the wire.
    pub struct StepWriteWire = "halyard_step_write" {
        /// Zero.
        pub reserved: u32,
        /// Buffer id.
        pub buffer: u64,
        /// Byte offset.
        pub offset: u64,
        /// Bytes.
        pub bytes: *const u8,
        /// Number of bytes.
        pub len: u64,
    }
}

abi_struct! {
    /// An op descriptor on the wire.
    pub struct OpSpecWire = "halyard_op_spec" {
        /// Catalogue code; 0x80000000: a vendor op, by name; above: experiments.
        pub code: u32,
        /// Of a catalogue op 1 for ever: what means something else has another code. Of a vendor op the vendor's.
        pub version: u32,
        /// Zero.
        pub reserved: u32,
        /// Op name.
        pub name: Str,
        /// The descriptor struct (starts with its size).
        pub descriptor: *const u8,
        /// Its bytes.
        pub descriptor_len: u64,
    }
}

abi_struct! {
    /// [`crate::OpSupport`] on the wire.
    pub struct OpSupportWire = "halyard_op_support" {
        /// Relative cost.
        pub cost: f32,
        /// Caller's buffer for the implementation's name.
        pub implementation: *mut u8,
        /// Its capacity in bytes.
        pub implementation_capacity: u32,
        /// Bytes written.
        pub implementation_len: u32,
    }
}

abi_struct! {
    /// A prepared op's handle, id and needs.
    pub struct PreparedWire = "halyard_prepared" {
        /// 0 or 1.
        pub recordable: u32,
        /// Handle, released by `prepared_drop`.
        pub handle: *mut c_void,
        /// Id to encode.
        pub id: u64,
        /// Scratch in bytes.
        pub scratch_bytes: u64,
    }
}

abi_struct! {
    /// A node of a program.
    pub struct NodeWire = "halyard_node" {
        /// Entries at `operands` and at `access`.
        pub num_operands: u32,
        /// The op.
        pub spec: *const OpSpecWire,
        /// Tensor indices; 0xFFFF: absent.
        pub operands: *const u16,
        /// How the op uses each of them: 0 constant, 1 read, 2 written whole, 3 read and written or written in part. An
        /// unknown code is to be read as 3.
        pub access: *const u8,
    }
}

abi_struct! {
    /// A tensor of a program.
    pub struct TensorDeclWire = "halyard_tensor_decl" {
        /// Dtype code.
        pub dtype: u32,
        /// 0 or 1.
        pub internal: u32,
        /// Shared-memory number.
        pub storage: u32,
        /// First column in the shared memory's rows.
        pub first_column: u32,
        /// Columns; 0: not said.
        pub num_columns: u32,
    }
}

abi_struct! {
    /// A program.
    pub struct ProgramWire = "halyard_program" {
        /// Entries at `nodes`.
        pub num_nodes: u32,
        /// Nodes.
        pub nodes: *const NodeWire,
        /// Bytes between nodes.
        pub node_stride: u32,
        /// Entries at `tensors`.
        pub num_tensors: u32,
        /// Tensors.
        pub tensors: *const TensorDeclWire,
        /// Bytes between tensors.
        pub tensor_stride: u32,
        /// Zero.
        pub reserved: u32,
    }
}

abi_struct! {
    /// A claim report: the callee fills the caller's arrays and states the full counts; with a count above the capacity
    /// the caller asks again.
    pub struct ClaimReportWire = "halyard_claim_report" {
        /// Claims there are.
        pub num_claims: u32,
        /// Pairs (first, count).
        pub claims: *mut u32,
        /// Capacity in pairs.
        pub claims_capacity: u32,
        /// Capacity at `left` in bytes.
        pub left_capacity: u32,
        /// Reasons.
        pub left: *mut u8,
        /// Bytes there are.
        pub left_len: u32,
        /// Zero.
        pub reserved: u32,
    }
}

abi_struct! {
    /// [`crate::AttentionBackendInfo`] on the wire; texts and arrays are valid while the device lives.
    pub struct AttentionBackendWire = "halyard_attention_backend" {
        /// Priority.
        pub priority: i32,
        /// Name.
        pub name: Str,
        /// Block sizes.
        pub block_sizes: *const u32,
        /// Entries.
        pub num_block_sizes: u32,
        /// Zero.
        pub reserved: u32,
    }
}

abi_struct! {
    /// [`crate::AttentionPlan`] on the wire.
    pub struct AttentionPlanWire = "halyard_attention_plan" {
        /// 0 or 1.
        pub record_decode: u32,
        /// Bytes of a block of one layer.
        pub block_bytes: u64,
        /// Scratch in bytes.
        pub scratch_bytes: u64,
        /// Tokens; 0: none.
        pub record_mixed_tokens: u32,
        /// Zero.
        pub reserved: u32,
    }
}

abi_struct! {
    /// [`crate::Collective`] on the wire.
    pub struct CollectiveWire = "halyard_collective" {
        /// Kind code.
        pub kind: u32,
        /// Dtype code.
        pub dtype: u32,
        /// Peer rank.
        pub peer: u32,
    }
}

abi_table! {
    /// A platform's root.
    pub struct PlatformTable = "halyard_platform_table", interface 1 "platform" version 0 . 2 {
        /// Number of devices; 0 is an error (`Unavailable`) with the reason.
        required fn num_devices(instance: *mut c_void, out: *mut u32, err: *mut ErrorOut) -> u32;
        /// Facts of device `index`.
        required fn device_info(instance: *mut c_void, index: u32, out: *mut DeviceInfoWire, err: *mut ErrorOut) -> u32;
        /// Opens a device; `device.close` releases it. May block for seconds.
        required fn open(instance: *mut c_void, desc: *const OpenDescWire, out: *mut *mut c_void,
            err: *mut ErrorOut) -> u32;
    }
}

abi_table! {
    /// An open device, its memory, queues and command encoding.
    pub struct DeviceTable = "halyard_device_table", interface 2 "device" version 0 . 2 {
        /// Releases a device after every object of it was released.
        required fn close(device: *mut c_void) -> ();
        /// Facts.
        required fn info(device: *mut c_void, out: *mut DeviceInfoWire, err: *mut ErrorOut) -> u32;
        /// Memory now.
        required fn memory(device: *mut c_void, out: *mut MemoryInfoWire, err: *mut ErrorOut) -> u32;
        /// Allocates zeroed bytes; `buffer_drop` releases the handle, `id` is for tensors.
        required fn buffer_create(device: *mut c_void, desc: *const BufferDescWire, handle: *mut *mut c_void,
            id: *mut u64, err: *mut ErrorOut) -> u32;
        /// Releases a buffer, deferred until submitted work that names it is done.
        required fn buffer_drop(buffer: *mut c_void) -> ();
        /// Copies host bytes in; blocks until they are taken.
        required fn buffer_write(buffer: *mut c_void, offset: u64, bytes: *const u8, len: u64,
            err: *mut ErrorOut) -> u32;
        /// Copies bytes out.
        required fn buffer_read(buffer: *mut c_void, offset: u64, out: *mut u8, len: u64, err: *mut ErrorOut) -> u32;
        /// Creates a queue; `queue_drop` releases the handle, `id` is for waits.
        required fn queue_create(device: *mut c_void, desc: *const QueueDescWire, handle: *mut *mut c_void,
            id: *mut u64, err: *mut ErrorOut) -> u32;
        /// Releases a queue after its work.
        required fn queue_drop(queue: *mut c_void) -> ();
        /// Submits `num` command ids after `num_waits` waits.
        required fn submit(queue: *mut c_void, commands: *const u64, num: u32, waits: *const QueueWaitWire,
            num_waits: u32, number: *mut u64, err: *mut ErrorOut) -> u32;
        /// The highest number whose work is done; 2⁶⁴−1 after a failure, which `wait` tells. Never blocks: a memory
        /// load.
        required fn completed(queue: *mut c_void) -> u64;
        /// Blocks until `number` is done.
        required fn wait(queue: *mut c_void, number: u64, timeout_ns: u64, err: *mut ErrorOut) -> u32;
        /// Copies step data, effective in queue order; `stride` bytes between entries.
        required fn write_step(queue: *mut c_void, writes: *const StepWriteWire, num: u32, stride: u32,
            err: *mut ErrorOut) -> u32;
        /// Grows the scratch arena.
        required fn reserve_scratch(queue: *mut c_void, bytes: u64, err: *mut ErrorOut) -> u32;
        /// Starts encoding for a queue. Ends with `encoder_finish` or `encoder_drop`. A one-shot encoder may start its
        /// work at once: until it is submitted the host does nothing else on that queue.
        required fn encoder_create(queue: *mut c_void, desc: *const EncoderDescWire, out: *mut *mut c_void,
            err: *mut ErrorOut) -> u32;
        /// Abandons an encoder.
        required fn encoder_drop(encoder: *mut c_void) -> ();
        /// Appends op `op` over `num` operands. One thread at a time. The hot path: no allocation in the caller or the
        /// shim.
        required fn encode(encoder: *mut c_void, op: u64, operands: *const Tensor, num: u32, err: *mut ErrorOut) -> u32;
        /// Seals and consumes the encoder (also on failure); `command_drop` releases the handle, `id` is for `submit`.
        required fn encoder_finish(encoder: *mut c_void, handle: *mut *mut c_void, id: *mut u64,
            err: *mut ErrorOut) -> u32;
        /// Releases a command buffer, deferred until submitted work is done.
        required fn command_drop(command: *mut c_void) -> ();
    }
}

abi_table! {
    /// Ops of a device.
    pub struct OpsTable = "halyard_ops_table", interface 3 "ops" version 0 . 3 {
        /// Whether `spec` runs; `Unsupported` with the reason.
        required fn support(device: *mut c_void, spec: *const OpSpecWire, out: *mut OpSupportWire,
            err: *mut ErrorOut) -> u32;
        /// Prepares `spec`. Load time.
        required fn prepare(device: *mut c_void, spec: *const OpSpecWire, out: *mut PreparedWire,
            err: *mut ErrorOut) -> u32;
        /// Releases a prepared op, deferred until submitted work is done.
        required fn prepared_drop(prepared: *mut c_void) -> ();
        /// Bytes of node `node`'s packed weight.
        required fn packed_weight_bytes(prepared: *mut c_void, node: u32, out: *mut u64, err: *mut ErrorOut) -> u32;
        /// Packs rows of a weight from host memory into `dst`. Load time; blocks.
        required fn pack_weight(prepared: *mut c_void, rows: *const WeightRowsWire, dst: *const Tensor,
            err: *mut ErrorOut) -> u32;
        /// Which regions of a program the backend wants whole.
        optional ["no region is claimed; every op runs by itself"] fn claim(device: *mut c_void,
            program: *const ProgramWire, out: *mut ClaimReportWire, err: *mut ErrorOut) -> u32;
        /// Prepares a claimed region as one op.
        optional ["no region is claimed; every op runs by itself"] fn prepare_program(device: *mut c_void,
            program: *const ProgramWire, out: *mut PreparedWire, err: *mut ErrorOut) -> u32;
        /// Packs rows of a weight from device memory `src` (U8, one axis) into `dst`. Load time; blocks.
        optional ["the host reads the rows back and calls pack_weight"] fn pack_weight_from(prepared: *mut c_void,
            rows: *const WeightRowsWire, src: *const Tensor, dst: *const Tensor, err: *mut ErrorOut) -> u32;
    }
}

abi_table! {
    /// Attention backends of a device. Specs are op specs with the attention code.
    pub struct AttentionTable = "halyard_attention_table", interface 4 "attention" version 0 . 1 {
        /// Number of backends; 0: no attention.
        required fn num_backends(device: *mut c_void, out: *mut u32, err: *mut ErrorOut) -> u32;
        /// Facts of backend `index`.
        required fn backend_info(device: *mut c_void, index: u32, out: *mut AttentionBackendWire,
            err: *mut ErrorOut) -> u32;
        /// Whether the spec's backend runs it; `Unsupported` with all reasons, one a line.
        required fn support(device: *mut c_void, spec: *const OpSpecWire, err: *mut ErrorOut) -> u32;
        /// Plan for the spec and its bounds.
        required fn plan(device: *mut c_void, spec: *const OpSpecWire, out: *mut AttentionPlanWire,
            err: *mut ErrorOut) -> u32;
    }
}

abi_table! {
    /// Collectives. A platform without the interface has one rank.
    pub struct CommunicatorTable = "halyard_communicator_table", interface 5 "communicator" version 0 . 2 {
        /// A fresh group id: sets `len` to its bytes, at most 16384, and writes them to `out` when they are at most
        /// `capacity`; otherwise writes nothing there and is called again.
        required fn unique_id(device: *mut c_void, out: *mut u8, capacity: u32, len: *mut u32,
            err: *mut ErrorOut) -> u32;
        /// Joins; blocks until all ranks have. `drop` releases the handle; `id` is the number by which an op names the
        /// communicator, 0 where none does.
        required fn create(device: *mut c_void, desc: *const CommunicatorDescWire, handle: *mut *mut c_void,
            id: *mut u64, err: *mut ErrorOut) -> u32;
        /// Leaves: unfinished collectives are given up, and those of other ranks fail instead of waiting. Ops prepared
        /// of it may live on.
        required fn drop(communicator: *mut c_void) -> ();
        /// Prepares a collective; released by `ops.prepared_drop`.
        required fn prepare(communicator: *mut c_void, spec: *const CollectiveWire, out: *mut PreparedWire,
            err: *mut ErrorOut) -> u32;
    }
}

abi_fixed_struct! {
    /// A record of a batch: its kind and where it lies.
    pub struct RecordRef = "halyard_record_ref" {
        /// [`crate::hooks::StatRecord::KINDS`]; a reader skips kinds that it does not know.
        pub kind: u32,
        /// Zero.
        pub reserved: u32,
        /// The record of that kind, which starts with its size; valid during the call.
        pub body: *const c_void,
    }
}

abi_struct! {
    /// [`crate::hooks::Batch`] on the wire.
    pub struct BatchWire = "halyard_record_batch" {
        /// Entries at `records`.
        pub num_records: u32,
        /// The records, in the order in which they happened; valid during the call.
        pub records: *const RecordRef,
        /// Time that the host gives the call, nanoseconds.
        pub deadline_ns: u64,
        /// Records of this logger lost since the server's start.
        pub num_dropped: u64,
    }
}

abi_table! {
    /// A stat-logger plugin's root. A logger is used by one thread at a time. Interface 32, of version 0.1, had a slot
    /// for each of two records; a plugin that only has that one is refused.
    pub struct StatLoggerTable = "halyard_stat_logger_table", interface 40 "stat_logger" version 0 . 2 {
        /// Makes a logger from a JSON object; `drop` releases it.
        required fn create(instance: *mut c_void, config: Str, out: *mut *mut c_void, err: *mut ErrorOut) -> u32;
        /// Releases a logger.
        required fn drop(logger: *mut c_void) -> ();
        /// Takes records. May block, until the batch's deadline.
        required fn log_batch(logger: *mut c_void, batch: *const BatchWire, err: *mut ErrorOut) -> u32;
        /// Writes out what is held back. May block for `deadline_ns` nanoseconds.
        optional ["nothing is held back"] fn flush(logger: *mut c_void, deadline_ns: u64, err: *mut ErrorOut) -> u32;
        /// OpenMetrics text for `GET /metrics`, without `# EOF`: sets `len` to its bytes and writes them to `buffer`
        /// when they are at most `capacity`; otherwise writes nothing there and is called again. A length of 0: nothing
        /// to show.
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
    ];
    all.extend(crate::hooks::record_layouts());
    all.extend([RecordRef::fixed_layout(), BatchWire::layout()]);
    all.extend(crate::ops::wire_layouts());
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
    ]
}

/// Named numbers of the header.
pub fn constants() -> Vec<(String, u32)> {
    let mut all = vec![
        ("HALYARD_ABI_MAJOR".to_string(), ABI_MAJOR),
        ("HALYARD_ABI_MINOR".to_string(), ABI_MINOR),
        ("HALYARD_KIND_PLATFORM".to_string(), KIND_PLATFORM),
        ("HALYARD_KIND_STAT_LOGGER".to_string(), KIND_STAT_LOGGER),
        ("HALYARD_KIND_IO_PROCESSOR".to_string(), request::KIND_IO_PROCESSOR),
        ("HALYARD_KIND_LORA_RESOLVER".to_string(), request::KIND_LORA_RESOLVER),
    ];
    all.extend(
        crate::hooks::StatRecord::KINDS
            .iter()
            .map(|(name, code)| (format!("HALYARD_RECORD_{}", name.to_uppercase()), *code)),
    );
    all.extend(crate::Status::ALL.map(|s| (format!("HALYARD_STATUS_{}", screaming(&format!("{s:?}"))), s as u32)));
    all.extend(
        tables()
            .iter()
            .map(|t| (format!("HALYARD_INTERFACE_{}", t.interface.to_uppercase()), t.id)),
    );
    all.extend(
        crate::OpSpec::CODES
            .iter()
            .map(|(name, code)| (format!("HALYARD_OP_{}", name.to_uppercase()), *code)),
    );
    all.push(("HALYARD_OP_VENDOR".to_string(), crate::ops::VendorOp::CODE));
    let enums: [(&str, &[(&str, u32)]); 9] = [
        ("DTYPE", crate::DType::CODES),
        ("WEIGHT", crate::WeightFormat::CODES),
        ("EPILOGUE", crate::ops::Epilogue::CODES),
        ("ROPE_STYLE", crate::ops::RopeStyle::CODES),
        ("GELU_KIND", crate::ops::GeluKind::CODES),
        ("QUANTIZE_SCHEME", crate::ops::QuantizeScheme::CODES),
        ("POOL_MODE", crate::ops::PoolMode::CODES),
        ("SCORING", crate::ops::Scoring::CODES),
        ("COLLECTIVE", crate::communicator::CollectiveKind::CODES),
    ];
    for (prefix, codes) in enums {
        // Types and formats are written as they are named; the rest are CamelCase words.
        let as_named = matches!(prefix, "DTYPE" | "WEIGHT");
        all.extend(codes.iter().map(|(name, code)| {
            let name = if as_named { name.to_uppercase() } else { screaming(name) };
            (format!("HALYARD_{prefix}_{name}"), *code)
        }));
    }
    all.extend(
        crate::Capabilities::NAMES
            .iter()
            .map(|(name, bit)| (format!("HALYARD_CAPABILITY_{}", name.to_uppercase()), bit.0 as u32)),
    );
    let io_actions = crate::io_processor::IoAction::CODES.iter();
    all.extend(io_actions.map(|(name, code)| (format!("HALYARD_IO_{}", screaming(name)), *code)));
    all
}

fn screaming(camel: &str) -> String {
    let mut out = String::new();
    for (i, c) in camel.chars().enumerate() {
        if i > 0 && c.is_uppercase() {
            out.push('_');
        }
        out.extend(c.to_uppercase());
    }
    out
}
