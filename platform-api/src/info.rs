//! What a device says of itself: facts the engine plans with. A capability is asked, an identity never.

use crate::abi::Doc;
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

/// Claimed abilities as bits. An unclaimed one must be refused with a reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(pub u64);

/// Defines the bits, each with its number and its name for people.
macro_rules! capabilities {
    ($( $(#[doc = $doc:literal])* $name:ident = $bit:literal $word:literal ; )*) => {
        impl Capabilities {
            $( $(#[doc = $doc])* pub const $name: Capabilities = Capabilities(1 << $bit); )*

            /// Every named bit with its name.
            pub const NAMES: &'static [(&'static str, Capabilities)] = &[ $( ($word, Capabilities::$name) ),* ];

            /// What each is, in the order of `NAMES`.
            pub const DOCS: &'static [Doc] = &[ $( &[ $( $doc ),* ] ),* ];
        }
    };
}

capabilities! {
    /// Reusable encoders are captured natively, so that padded steps of a recorded size pay.
    RECORDING = 0 "recording";
    /// Several queues run at the same time.
    CONCURRENT_QUEUES = 1 "concurrent_queues";
    /// Results of a row do not depend on what else is in the batch, bit for bit.
    BATCH_INVARIANT = 2 "batch_invariant";
    /// Collectives between devices of this platform.
    COMMUNICATOR = 3 "communicator";
    /// Claims regions of programs.
    COMPOSITES = 4 "composites";
}

impl Capabilities {
    /// The vendors' own bits, which this contract never gives a meaning.
    pub const VENDORS: Capabilities = Capabilities(0xFFFF << 48);

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
    /// slices of a tensor are aligned to its elements only: a tensor's offset is always a multiple of its element's
    /// size.
    pub offset_alignment: u32,
    /// Host and device share one memory.
    pub unified_memory: bool,
    /// Compute units (cores, multiprocessors).
    pub num_compute_units: u32,
    /// Tokens a KV block should hold when the operator names no size.
    pub preferred_block_size: u32,
    /// Token budget of a step when the operator names none.
    pub preferred_step_tokens: u32,
    /// Numbers of sequences that recorded decode steps come in, which are padded up to the next one; empty: the host
    /// chooses. Steps with prompts come in any size.
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
