//! The structs that a platform's tables take and give. The rules are those of [`super::tables`]. Doc comments cross
//! into the C header: they say "bytes", "elements" and "tokens", and name functions and fields as C spells them.

use std::ffi::c_void;

use super::macros::{abi_fixed_struct, abi_struct};
use super::types::{InterfaceFn, LogFn, Str};

abi_struct! {
    /// What the host offers a plugin. It informs: fields past those that are known are ignored. Valid for the life of
    /// the process.
    pub struct Host = "halyard_host" {
        /// ABI major version.
        pub abi_major: u32,
        /// Lowest ABI minor version that the host accepts.
        pub abi_minor_min: u32,
        /// Highest ABI minor version that the host knows.
        pub abi_minor_max: u32,
        /// The first argument of the functions below.
        pub context: *mut c_void,
        /// Name of the host program.
        pub name: Str,
        /// Its version.
        pub version: Str,
        /// Logs a text; null: there is no log.
        pub log: Option<LogFn>,
    }
}

abi_struct! {
    /// What the entry function answers. It informs, as the host's offer does.
    pub struct Plugin = "halyard_plugin" {
        /// ABI major version.
        pub abi_major: u32,
        /// The ABI minor version that the plugin chose from the host's range.
        pub abi_minor: u32,
        /// One of HALYARD_KIND_, as in the manifest.
        pub kind: u32,
        /// The first argument of find_interface and of the functions of the platform's or hook's root table. It is
        /// never released.
        pub instance: *mut c_void,
        /// Name, as in the manifest; valid for the life of the process.
        pub name: Str,
        /// Version; valid for the life of the process.
        pub version: Str,
        /// Finds the table of an interface. Never null.
        pub find_interface: Option<InterfaceFn>,
    }
}

abi_struct! {
    /// What a device is and how it wants to be used. Texts and lists are the plugin's: those that `device_info` of the
    /// platform gave are valid for the life of the process, those of `info` while the device is open.
    pub struct DeviceInfoWire = "halyard_device_info" {
        /// How many steps may be in flight beyond the one that the host waits for. 0: `submit` returns when its work is
        /// done.
        pub async_depth: u32,
        /// For people: the product's name.
        pub name: Str,
        /// For people: driver, instruction set, what helps a bug report.
        pub detail: Str,
        /// Memory for weights and KV, in bytes.
        pub total_memory_bytes: u64,
        /// Activation types that the ops compute with: bit n is the dtype with code n.
        pub compute_dtypes: u64,
        /// Types that the KV cache can be held in: bit n is the dtype with code n.
        pub kv_dtypes: u64,
        /// HALYARD_CAPABILITY_ bits. The host ignores those that it does not know.
        pub capabilities: u64,
        /// Largest buffer in bytes.
        pub max_buffer_bytes: u64,
        /// Largest part of a buffer that one operand may span, in bytes.
        pub max_binding_bytes: u64,
        /// Activation type to use when the operator names none; one of compute_dtypes.
        pub preferred_dtype: u32,
        /// KV type to use when the operator names none; one of kv_dtypes, on a platform without attention too.
        pub preferred_kv_dtype: u32,
        /// Alignment in bytes of tensors that the host places in one buffer; a power of two. Row and column slices of a
        /// tensor are aligned to its elements only.
        pub offset_alignment: u32,
        /// 1: host and device share one memory; else 0.
        pub unified_memory: u32,
        /// Compute units (cores, multiprocessors); for people and logs.
        pub num_compute_units: u32,
        /// Tokens that a KV block should hold when the operator names no size.
        pub preferred_block_size: u32,
        /// Tokens of a step when the operator names no budget.
        pub preferred_step_tokens: u32,
        /// Entries at shape_buckets, at most HALYARD_MAX_LIST.
        pub num_shape_buckets: u32,
        /// Numbers of sequences that recorded decode steps come in, which are padded up to the next one. None: the host
        /// chooses. Steps with prompts come in any size.
        pub shape_buckets: *const u32,
    }
}

abi_struct! {
    /// What a device is opened with.
    pub struct OpenDescWire = "halyard_open_desc" {
        /// Index of the device, below what `num_devices` said.
        pub index: u32,
        /// The operator's options: a line `key=value` each, each key once, keys of `a-z 0-9 _ -`; at most
        /// HALYARD_MAX_OPTION_BYTES in all. A key that the platform does not know is InvalidArgument.
        pub options: Str,
        /// Folder for what can be made again (compiled kernels, tuned choices); empty: the platform's own choice.
        pub cache_dir: Str,
    }
}

abi_struct! {
    /// What a buffer is created with.
    pub struct BufferDescWire = "halyard_buffer_desc" {
        /// One of HALYARD_BUFFER_.
        pub kind: u32,
        /// Size in bytes, 1 to max_buffer_bytes.
        pub bytes: u64,
        /// No flag is defined: a bit that is set is Unsupported.
        pub flags: u64,
    }
}

abi_struct! {
    /// What a queue is created with.
    pub struct QueueDescWire = "halyard_queue_desc" {
        /// One of HALYARD_QUEUE_.
        pub kind: u32,
        /// Most bytes of one `write_step`; 0: HALYARD_MAX_STEP_WRITE_BYTES.
        pub step_bytes: u64,
        /// No flag is defined: a bit that is set is Unsupported.
        pub flags: u64,
    }
}

abi_struct! {
    /// What an encoder is created with.
    pub struct EncoderDescWire = "halyard_encoder_desc" {
        /// One of HALYARD_ENCODER_.
        pub mode: u32,
        /// No flag is defined: a bit that is set is Unsupported.
        pub flags: u64,
    }
}

abi_struct! {
    /// What a rank joins a communicator with.
    pub struct CommunicatorDescWire = "halyard_communicator_desc" {
        /// This rank, below size.
        pub rank: u32,
        /// Number of ranks.
        pub size: u32,
        /// Bytes at id, 1 to HALYARD_MAX_COMMUNICATOR_ID_BYTES.
        pub id_len: u32,
        /// What `unique_id` of one rank gave, the same for all.
        pub id: *const u8,
        /// How long to wait for the other ranks, in nanoseconds; 0: as long as the platform thinks right.
        pub timeout_ns: u64,
    }
}

abi_struct! {
    /// Rows of a node's weight that are packed.
    pub struct WeightRowsWire = "halyard_weight_rows" {
        /// Index of the node in the prepared program; 0 for a single op.
        pub node: u32,
        /// Which part of the weight these are rows of. 0: the rows of its format, and the only one that a format of
        /// this contract has. An unknown part is Unsupported.
        pub part: u32,
        /// First of the weight's rows.
        pub first_row: u32,
        /// Number of rows.
        pub num_rows: u32,
        /// Zero.
        pub reserved: u32,
        /// The rows in the weight's format, one behind the other, for `pack_weight`; null for `pack_weight_from`.
        pub bytes: *const u8,
        /// Bytes there.
        pub len: u64,
    }
}

abi_struct! {
    /// Device memory now.
    pub struct MemoryInfoWire = "halyard_memory_info" {
        /// Zero.
        pub reserved: u32,
        /// All there is, in bytes.
        pub total_bytes: u64,
        /// What new buffers may still take, in bytes.
        pub free_bytes: u64,
        /// What buffers of this device hold, in bytes.
        pub used_bytes: u64,
    }
}

abi_fixed_struct! {
    /// A wait, on the device, for another queue's progress.
    pub struct QueueWaitWire = "halyard_queue_wait" {
        /// Id of the other queue.
        pub queue: u64,
        /// Its submit number. One that was not submitted yet is InvalidArgument: submit there first.
        pub number: u64,
    }
}

abi_struct! {
    /// One piece of a step's data.
    pub struct StepWriteWire = "halyard_step_write" {
        /// Zero.
        pub reserved: u32,
        /// Id of the buffer to write to.
        pub buffer: u64,
        /// Its first byte to write.
        pub offset: u64,
        /// What to write.
        pub bytes: *const u8,
        /// Bytes there.
        pub len: u64,
    }
}

abi_struct! {
    /// An op with its descriptor.
    pub struct OpSpecWire = "halyard_op_spec" {
        /// One of HALYARD_OP_; HALYARD_OP_VENDOR: a vendor's op, known by its name; above: experiments.
        pub code: u32,
        /// Of a catalogue op 1 for ever: what means something else has another code. Of a vendor op the vendor's.
        pub version: u32,
        /// Zero.
        pub reserved: u32,
        /// Name; for people, except of a vendor op.
        pub name: Str,
        /// The op's descriptor struct, which starts with its size.
        pub descriptor: *const u8,
        /// Its bytes, at most HALYARD_MAX_STRUCT_BYTES: the same number as the size that it starts with.
        pub descriptor_len: u64,
    }
}

abi_struct! {
    /// That an op is supported, and how. The host sets implementation and its capacity; a name that does not fit is cut
    /// between characters.
    pub struct OpSupportWire = "halyard_op_support" {
        /// Relative cost. 1: the backend's natural path; more: another way to say the same is worth looking for.
        pub cost: f32,
        /// Receives the name of the implementation, for people.
        pub implementation: *mut u8,
        /// Bytes there.
        pub implementation_capacity: u32,
        /// Bytes written.
        pub implementation_len: u32,
    }
}

abi_struct! {
    /// A prepared op. Equal specs may be prepared several times: each handle is released once, ids may be equal, and an
    /// id lives as long as one of its handles.
    pub struct PreparedWire = "halyard_prepared" {
        /// 1: it may be encoded into a reusable command buffer; else 0.
        pub recordable: u32,
        /// Handle, released by `prepared_drop`.
        pub handle: *mut c_void,
        /// Id to encode. Ops and collectives of a device share one space of ids.
        pub id: u64,
        /// Bytes that it needs of the queue's scratch while it runs.
        pub scratch_bytes: u64,
    }
}

abi_struct! {
    /// An op of a program. In a program what is not known here makes a node unknown: it is claimed around.
    pub struct NodeWire = "halyard_node" {
        /// Entries at operands and at access.
        pub num_operands: u32,
        /// The op.
        pub spec: *const OpSpecWire,
        /// Index of a tensor for each operand, in the op's order; HALYARD_ABSENT: absent.
        pub operands: *const u16,
        /// How the op uses each of them: HALYARD_ACCESS_. An unknown code is to be read as HALYARD_ACCESS_UPDATE.
        pub access: *const u8,
    }
}

abi_struct! {
    /// A tensor of a program. Shapes come when the prepared program is encoded; a program fixes types and roles.
    pub struct TensorDeclWire = "halyard_tensor_decl" {
        /// Dtype code.
        pub dtype: u32,
        /// 1: nobody outside the program reads it afterwards, so its memory may stay unwritten; else 0.
        pub internal: u32,
        /// Tensors with the same number share memory (q, k and v are slices of one product); others never overlap.
        pub storage: u32,
        /// First of its columns in each row of the shared memory, in elements.
        pub first_column: u32,
        /// How many columns; 0: not said, it may overlap all that shares its memory.
        pub num_columns: u32,
    }
}

abi_struct! {
    /// A list of ops over numbered tensors. The order of the nodes is the order of execution.
    pub struct ProgramWire = "halyard_program" {
        /// Entries at nodes, at most HALYARD_MAX_PROGRAM_ENTRIES.
        pub num_nodes: u32,
        /// The ops, node_stride bytes apart.
        pub nodes: *const NodeWire,
        /// Bytes from one node to the next.
        pub node_stride: u32,
        /// Entries at tensors, at most HALYARD_MAX_PROGRAM_ENTRIES.
        pub num_tensors: u32,
        /// The tensors, tensor_stride bytes apart.
        pub tensors: *const TensorDeclWire,
        /// Bytes from one tensor to the next.
        pub tensor_stride: u32,
        /// Zero.
        pub reserved: u32,
    }
}

abi_struct! {
    /// Which regions of a program are claimed. The host sets claims, left and their capacities; the callee fills them
    /// as far as they go and states the full counts. With a count above its capacity the host asks again.
    pub struct ClaimReportWire = "halyard_claim_report" {
        /// How many claims there are.
        pub num_claims: u32,
        /// Pairs: first node, number of nodes (at least 2). Ascending, and none overlaps another.
        pub claims: *mut u32,
        /// Capacity at claims, in pairs.
        pub claims_capacity: u32,
        /// Capacity at left, in bytes.
        pub left_capacity: u32,
        /// Why the rest is left, in words: one reason a line.
        pub left: *mut u8,
        /// How many bytes of reasons there are.
        pub left_len: u32,
        /// Zero.
        pub reserved: u32,
    }
}

abi_struct! {
    /// An attention backend. Texts and lists are the plugin's and valid while the device is open.
    pub struct AttentionBackendWire = "halyard_attention_backend" {
        /// The host takes the highest that supports the spec, unless the operator names one.
        pub priority: i32,
        /// Name, for `--attention-backend`.
        pub name: Str,
        /// Block sizes that it takes, in tokens. None: any multiple of 8.
        pub block_sizes: *const u32,
        /// Entries there, at most HALYARD_MAX_LIST.
        pub num_block_sizes: u32,
        /// Zero.
        pub reserved: u32,
    }
}

abi_struct! {
    /// What an attention backend needs for a spec and its bounds.
    pub struct AttentionPlanWire = "halyard_attention_plan" {
        /// 1: decode steps can be recorded; else 0.
        pub record_decode: u32,
        /// Bytes of one KV block of one layer: keys and values of block_size tokens.
        pub block_bytes: u64,
        /// Bytes of scratch at the bounds, as the prepared op says, too.
        pub scratch_bytes: u64,
        /// Steps with prompts of up to this many tokens can be recorded; 0: none.
        pub record_mixed_tokens: u32,
        /// Zero.
        pub reserved: u32,
    }
}

abi_struct! {
    /// A collective. Its operands are an input (read) and out (written), contiguous, of its dtype.
    pub struct CollectiveWire = "halyard_collective" {
        /// One of HALYARD_COLLECTIVE_KIND_.
        pub kind: u32,
        /// Dtype code.
        pub dtype: u32,
        /// The other rank, where the kind names one.
        pub peer: u32,
    }
}
