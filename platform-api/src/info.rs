//! What a device says of itself: facts the engine plans with. A capability is asked, an identity never.

use crate::dtype::DType;

/// A set of [`DType`]s as bits (bit = code).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DTypeSet(pub u64);

impl DTypeSet {
    /// The set of these types.
    pub const fn of(dtypes: &[DType]) -> DTypeSet {
        let mut bits = 0;
        let mut i = 0;
        while i < dtypes.len() {
            bits |= 1 << dtypes[i] as u32;
            i += 1;
        }
        DTypeSet(bits)
    }

    /// Whether `dtype` is in the set.
    pub const fn contains(self, dtype: DType) -> bool {
        self.0 & (1 << dtype as u32) != 0
    }

    /// The members, in code order.
    pub fn iter(self) -> impl Iterator<Item = DType> {
        (0..64)
            .filter(move |bit| self.0 >> bit & 1 == 1)
            .filter_map(|bit| DType::from_code(bit).ok())
    }
}

/// Claimed abilities as bits. Conformance exercises each claimed one; an unclaimed one must be refused with a reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// Reusable encoders are captured natively, so that padded bucketed steps pay.
    pub const RECORDING: Capabilities = Capabilities(1);
    /// Several queues run at the same time.
    pub const CONCURRENT_QUEUES: Capabilities = Capabilities(1 << 1);
    /// Results of a row do not depend on what else is in the batch, bit for bit.
    pub const BATCH_INVARIANT: Capabilities = Capabilities(1 << 2);
    /// Collectives between devices of this platform.
    pub const COMMUNICATOR: Capabilities = Capabilities(1 << 3);
    /// Claims composites.
    pub const COMPOSITES: Capabilities = Capabilities(1 << 4);

    /// Every named bit with its name.
    pub const NAMES: [(&'static str, Capabilities); 5] = [
        ("recording", Self::RECORDING),
        ("concurrent_queues", Self::CONCURRENT_QUEUES),
        ("batch_invariant", Self::BATCH_INVARIANT),
        ("communicator", Self::COMMUNICATOR),
        ("composites", Self::COMPOSITES),
    ];

    /// Both sets together.
    pub const fn with(self, other: Capabilities) -> Capabilities {
        Capabilities(self.0 | other.0)
    }

    /// Whether all of `other` is here.
    pub const fn has(self, other: Capabilities) -> bool {
        self.0 & other.0 == other.0
    }
}

/// What a device is and how it wants to be used.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceInfo {
    /// For people: the product's name.
    pub name: String,
    /// For people: driver, instruction set, anything that helps a bug report.
    pub detail: String,
    /// Memory for weights and KV in bytes.
    pub total_memory_bytes: u64,
    /// Activation types that the ops compute with; the first choice is `preferred_dtype`.
    pub compute_dtypes: DTypeSet,
    /// Types the KV cache can be held in.
    pub kv_dtypes: DTypeSet,
    /// Activation type to use when the operator names none.
    pub preferred_dtype: DType,
    /// KV type to use when the operator names none.
    pub preferred_kv_dtype: DType,
    /// Claimed abilities.
    pub capabilities: Capabilities,
    /// How many steps may be in flight beyond the one that the host waits for. 0: `submit` returns when the work is
    /// done.
    pub async_depth: u32,
    /// Largest single buffer in bytes.
    pub max_buffer_bytes: u64,
    /// Largest part of a buffer that one operand may span, in bytes.
    pub max_binding_bytes: u64,
    /// Required alignment, in bytes, of tensors that the host places in one buffer (a power of two). Row and column
    /// slices of a tensor are aligned to its elements only.
    pub offset_alignment: u32,
    /// Host and device share one memory.
    pub unified_memory: bool,
    /// Compute units (cores, multiprocessors).
    pub num_compute_units: u32,
    /// Tokens a KV block should hold when the operator names no size.
    pub preferred_block_size: u32,
    /// Token budget of a step when the operator names none.
    pub preferred_step_tokens: u32,
    /// Token counts that compiled or recorded steps come in; empty: any.
    pub shape_buckets: Vec<u32>,
}

/// Device memory now, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryInfo {
    /// All there is.
    pub total_bytes: u64,
    /// What a new buffer may still take.
    pub free_bytes: u64,
    /// What buffers of this device object hold.
    pub used_bytes: u64,
}
