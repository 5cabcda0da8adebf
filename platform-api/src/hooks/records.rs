//! The records that stat loggers receive: flat, one type a kind, each field with its unit. The same lines give the Rust
//! type, the wire struct, the C header and the layout file.
//!
//! Times that are points are nanoseconds since the Unix epoch and end in `unix_ns`; durations are nanoseconds and end
//! in `_ns`. Counts that are not called totals are of the event, not since the start. An empty text means that there is
//! none.

use std::sync::Arc;

use crate::abi::{Str, U64s, abi_struct};

/// A field of a record: what crosses the boundary for it.
pub trait RecordField: Sized {
    /// Its form on the wire.
    type Wire: Copy;
    /// To the wire; borrows from `self`.
    fn to_wire(&self) -> Self::Wire;
    /// A copy of what crossed.
    ///
    /// # Safety
    /// Pointers in `wire` are null or valid for the length beside them.
    unsafe fn from_wire(wire: Self::Wire) -> Self;
}

macro_rules! plain_fields {
    ($($ty:ty),*) => { $(
        impl RecordField for $ty {
            type Wire = $ty;
            fn to_wire(&self) -> $ty { *self }
            unsafe fn from_wire(wire: $ty) -> $ty { wire }
        }
    )* };
}
plain_fields!(u32, i32, u64, f64);

impl RecordField for Arc<str> {
    type Wire = Str;

    fn to_wire(&self) -> Str {
        Str::new(self)
    }

    unsafe fn from_wire(wire: Str) -> Self {
        // SAFETY: as the caller promises.
        unsafe { wire.to_text() }.into()
    }
}

impl RecordField for Arc<[u64]> {
    type Wire = U64s;

    fn to_wire(&self) -> U64s {
        U64s::new(self)
    }

    unsafe fn from_wire(wire: U64s) -> Self {
        // SAFETY: as the caller promises.
        unsafe { wire.to_vec() }.into()
    }
}

/// A record in Rust, where texts and lists are shared (cloning allocates nothing), and its twin on the wire, which
/// borrows them. What was added after records had gone out stands under `appended`.
macro_rules! record {
    ($(#[doc = $doc:literal])* pub struct $name:ident, wire $wire:ident = $cname:literal {
        $( $(#[doc = $fdoc:literal])* pub $field:ident : $ty:ty ),* $(,)?
    } $( appended {
        $( $(#[doc = $adoc:literal])* pub $afield:ident : $aty:ty ),* $(,)?
    } )? ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $name {
            $( $(#[doc = $fdoc])* pub $field: $ty, )*
            $( $( $(#[doc = $adoc])* pub $afield: $aty, )* )?
        }

        abi_struct! {
            $(#[doc = $doc])*
            /// Texts and lists are valid during the call.
            pub struct $wire = $cname { $( $(#[doc = $fdoc])* pub $field: <$ty as RecordField>::Wire, )* }
            $( appended { $( $(#[doc = $adoc])* pub $afield: <$aty as RecordField>::Wire; )* } )?
        }

        impl $name {
            /// The wire form; texts and lists are borrowed from `self`.
            pub fn to_wire(&self) -> $wire {
                let mut wire = $wire::zeroed();
                $( wire.$field = self.$field.to_wire(); )*
                $( $( wire.$afield = self.$afield.to_wire(); )* )?
                wire
            }

            /// A copy of what crossed.
            ///
            /// # Safety
            /// Pointers in `wire` are null or valid for the length beside them.
            pub unsafe fn from_wire(wire: &$wire) -> Self {
                // SAFETY: as the caller promises.
                unsafe {
                    $name {
                        $( $field: RecordField::from_wire(wire.$field), )*
                        $( $( $afield: RecordField::from_wire(wire.$afield), )* )?
                    }
                }
            }
        }
    };
}

record! {
    /// The engine has loaded its model and takes requests. The first record of every logger.
    pub struct StartRecord, wire StartWire = "halyard_start_record" {
        /// Which engine of the server, from 0.
        pub engine_index: u32,
        /// Devices that share the model's layers.
        pub tensor_parallel_size: u32,
        /// Context of the model in tokens.
        pub max_model_len: u32,
        /// Most sequences in one step.
        pub max_num_seqs: u32,
        /// Most tokens in one step.
        pub max_num_batched_tokens: u32,
        /// Tokens of a KV block.
        pub block_size: u32,
        /// KV blocks.
        pub num_blocks: u32,
        /// 1: equal prefixes share KV blocks.
        pub prefix_caching: u32,
        /// LoRA adapters that fit on the device at once; 0: LoRA is off.
        pub max_loras: u32,
        /// When the engine was ready, nanoseconds since the Unix epoch.
        pub unix_ns: u64,
        /// Bytes of the model's weights on the devices.
        pub weight_bytes: u64,
        /// Bytes of the KV cache on the devices.
        pub kv_cache_bytes: u64,
        /// Name of the model as clients ask for it.
        pub model: Arc<str>,
        /// Where it was loaded from.
        pub model_root: Arc<str>,
        /// Its architecture.
        pub architecture: Arc<str>,
        /// Number type of activations, such as `bf16`.
        pub dtype: Arc<str>,
        /// Number type of the KV cache.
        pub kv_cache_dtype: Arc<str>,
        /// Platform with its version, such as `cpu 0.1.0`.
        pub platform: Arc<str>,
        /// The device's name; of several, their number and the first one's.
        pub device: Arc<str>,
        /// Version of Halyard.
        pub version: Arc<str>,
    }
}

record! {
    /// How many requests run and wait. After each step, and whenever that changes while no step runs.
    pub struct SchedulerRecord, wire SchedulerWire = "halyard_scheduler_record" {
        /// Sequences that own a device row.
        pub num_running: u32,
        /// Sequences that wait for one.
        pub num_waiting: u32,
        /// Sequences preempted since the last scheduler record.
        pub num_preempted: u32,
        /// Steps since the start.
        pub step_index: u64,
        /// When, nanoseconds since the Unix epoch.
        pub unix_ns: u64,
    }
}

record! {
    /// What one engine step did.
    pub struct IterationRecord, wire IterationWire = "halyard_iteration_record" {
        /// Sequences that computed tokens in it.
        pub num_seqs: u32,
        /// Sequences that got a device row since the last step ended, for the first time or again.
        pub num_admitted: u32,
        /// 1: it was replayed from a recording.
        pub replayed: u32,
        /// Steps since the start, this one included.
        pub step_index: u64,
        /// Its end, nanoseconds since the Unix epoch.
        pub unix_ns: u64,
        /// From planning to results, nanoseconds.
        pub step_ns: u64,
        /// Prompt tokens computed.
        pub prompt_tokens: u64,
        /// Prompt tokens that these took from the prefix cache at their first admission.
        pub cached_tokens: u64,
        /// Tokens generated.
        pub generation_tokens: u64,
        /// Of each sequence whose first token came: from its arrival to that token, nanoseconds.
        pub first_token_ns: Arc<[u64]>,
        /// Times between two successive tokens of a sequence, nanoseconds, each once.
        pub inter_token_ns: Arc<[u64]>,
        /// How many tokens of the step had the time at the same place in `inter_token_ns`; equally long.
        pub inter_token_counts: Arc<[u64]>,
    } appended {
        /// Of `cached_tokens`, those whose KV blocks came from host memory.
        pub external_tokens: u64,
    }
}

record! {
    /// The end of a sequence: one sample of a request.
    pub struct FinishedRecord, wire FinishedWire = "halyard_finished_record" {
        /// Why: 0 stop (end token or stop string), 1 length, 2 abort, 3 error.
        pub reason: u32,
        /// Which of the request's samples, from 0.
        pub sample_index: u32,
        /// Samples of the request (`n`).
        pub num_samples: u32,
        /// 1: the last of the request's samples to end.
        pub ends_request: u32,
        /// How often it was preempted.
        pub num_preemptions: u32,
        /// Number of its LoRA adapter; 0: none.
        pub lora_id: u32,
        /// Its priority; lower is served earlier.
        pub priority: i32,
        /// The engine's number of the sequence.
        pub sequence: u64,
        /// Its end, nanoseconds since the Unix epoch.
        pub unix_ns: u64,
        /// Its arrival, nanoseconds since the Unix epoch.
        pub arrival_unix_ns: u64,
        /// Prompt tokens.
        pub prompt_tokens: u64,
        /// Of these, taken from the prefix cache.
        pub cached_tokens: u64,
        /// Tokens generated.
        pub generation_tokens: u64,
        /// Most tokens that any ended sample of the request generated, this one included.
        pub max_sample_tokens: u64,
        /// Most tokens that the request asked for (`max_tokens`); 0: it did not say.
        pub max_tokens: u64,
        /// Arrival to first admission, nanoseconds; to the end when it was never admitted.
        pub queue_ns: u64,
        /// First admission to first token, nanoseconds; 0 when none came.
        pub prefill_ns: u64,
        /// First token to last token, nanoseconds.
        pub decode_ns: u64,
        /// Arrival to first token, nanoseconds; 0 when none came.
        pub first_token_ns: u64,
        /// Mean time between its tokens, nanoseconds; 0 with fewer than two.
        pub inter_token_ns: u64,
        /// Longest time between two of its tokens, nanoseconds; 0 with fewer than two.
        pub max_inter_token_ns: u64,
        /// Arrival to end, nanoseconds.
        pub total_ns: u64,
        /// The request's id, as in the answer and the log.
        pub request_id: Arc<str>,
        /// Name of its LoRA adapter; empty: none.
        pub lora_name: Arc<str>,
        /// The client's `traceparent` header (W3C Trace Context); empty: none.
        pub trace_parent: Arc<str>,
        /// The stop string, or what an abort or error said; empty otherwise.
        pub detail: Arc<str>,
    } appended {
        /// The request's sampling temperature; 0: greedy.
        pub temperature: f64,
        /// The request's `top_p`, above 0 to 1; 0: the host does not tell it, nor the temperature.
        pub top_p: f64,
        /// The client's `tracestate` header, which goes with `trace_parent`; empty: none.
        pub trace_state: Arc<str>,
    }
}

record! {
    /// The KV cache. After each step that changed something here.
    pub struct CacheRecord, wire CacheWire = "halyard_cache_record" {
        /// KV blocks in use.
        pub used_blocks: u32,
        /// KV blocks.
        pub total_blocks: u32,
        /// Tokens of a KV block.
        pub block_size: u32,
        /// When, nanoseconds since the Unix epoch.
        pub unix_ns: u64,
        /// `used_blocks` of `total_blocks`, 0 to 1.
        pub usage: f64,
        /// Prompt tokens looked up in the prefix cache since the last cache record.
        pub prefix_queries: u64,
        /// Of these, found, on the device.
        pub prefix_hits: u64,
    } appended {
        /// Prompt tokens looked up in host memory since the last cache record: those that were not found on the device.
        /// 0 without a second tier in host memory, as all fields from here on.
        pub external_queries: u64,
        /// Of these, found.
        pub external_hits: u64,
        /// KV blocks copied to host memory since the last cache record.
        pub store_blocks: u64,
        /// KV blocks copied from host memory since the last cache record.
        pub load_blocks: u64,
        /// KV blocks that host memory lost to others since the last cache record.
        pub evicted_blocks: u64,
        /// Bytes of `store_blocks`, over all devices of the model.
        pub store_bytes: u64,
        /// Bytes of `load_blocks`, over all devices of the model.
        pub load_bytes: u64,
        /// Share of the KV blocks of host memory that hold something, 0 to 1.
        pub external_usage: f64,
    }
}

record! {
    /// How one LoRA adapter stands. When something of it changed.
    pub struct LoraRecord, wire LoraWire = "halyard_lora_record" {
        /// Its number, at least 1.
        pub lora_id: u32,
        /// Its rank.
        pub rank: u32,
        /// Sequences that run with it.
        pub num_running: u32,
        /// Sequences that wait and want it.
        pub num_waiting: u32,
        /// Where its weights are: 0 unloaded, 1 disk, 2 host memory, 3 device memory.
        pub residency: u32,
        /// When, nanoseconds since the Unix epoch.
        pub unix_ns: u64,
        /// Bytes of its weights.
        pub weight_bytes: u64,
        /// How long all its reads from disk and copies to the device took together, nanoseconds.
        pub load_ns: u64,
        /// Copies to the device since the start.
        pub loads_total: u64,
        /// Sequences since the start that found it on the device.
        pub hits_total: u64,
        /// Sequences since the start that wanted it.
        pub requests_total: u64,
        /// Reads of its files since the start.
        pub disk_reads_total: u64,
        /// Name.
        pub name: Arc<str>,
        /// Folder that it was loaded from.
        pub path: Arc<str>,
    }
}

record! {
    /// A request that the engine did not take.
    pub struct RejectedRecord, wire RejectedWire = "halyard_rejected_record" {
        /// Why: 0 queue full, 1 shutting down, 2 engine dead, 3 prompt empty or too long, 4 parameter out of bounds, 5
        /// adapter.
        pub reason: u32,
        /// When, nanoseconds since the Unix epoch.
        pub unix_ns: u64,
        /// Prompt tokens.
        pub prompt_tokens: u64,
        /// The request's id.
        pub request_id: Arc<str>,
        /// What it was told.
        pub detail: Arc<str>,
    }
}

record! {
    /// The engine has ended; no records follow.
    pub struct ShutdownRecord, wire ShutdownWire = "halyard_shutdown_record" {
        /// Why: 0 it was asked to, 1 it failed.
        pub reason: u32,
        /// When, nanoseconds since the Unix epoch.
        pub unix_ns: u64,
        /// Steps since the start.
        pub steps_total: u64,
        /// What ended it.
        pub detail: Arc<str>,
    }
}

/// The kinds, once: variant, wire code, record, wire struct. Calls back `$then` with them.
macro_rules! record_kinds {
    ($then:ident) => {
        $then! {
            Start = 1, StartRecord, StartWire;
            Scheduler = 2, SchedulerRecord, SchedulerWire;
            Iteration = 3, IterationRecord, IterationWire;
            Finished = 4, FinishedRecord, FinishedWire;
            Cache = 5, CacheRecord, CacheWire;
            Lora = 6, LoraRecord, LoraWire;
            Rejected = 7, RejectedRecord, RejectedWire;
            Shutdown = 8, ShutdownRecord, ShutdownWire;
        }
    };
}
pub(crate) use record_kinds;

macro_rules! stat_record {
    ($( $kind:ident = $code:literal, $record:ident, $wire:ident; )*) => {
        /// A record for a stat logger.
        #[derive(Clone, Debug, PartialEq)]
        pub enum StatRecord { $( #[doc = concat!("See [`", stringify!($record), "`].")] $kind($record), )* }

        impl StatRecord {
            /// Every kind's name and wire code.
            pub const KINDS: &'static [(&'static str, u32)] = &[ $( (stringify!($kind), $code), )* ];

            /// Wire code of its kind.
            pub fn kind(&self) -> u32 {
                match self { $( StatRecord::$kind(_) => $code, )* }
            }
        }
    };
}
record_kinds!(stat_record);
