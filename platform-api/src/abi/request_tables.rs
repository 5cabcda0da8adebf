//! Structs and tables of the hooks that stand in a request's way: IO processors and LoRA resolvers. The rules are those
//! of [`super::tables`].

use std::ffi::c_void;

use super::macros::{abi_struct, abi_table};
use super::types::{ErrorOut, Str};

/// An IO-processor plugin.
pub const KIND_IO_PROCESSOR: u32 = 3;
/// A LoRA-resolver plugin.
pub const KIND_LORA_RESOLVER: u32 = 4;

abi_struct! {
    /// A request as it came. All texts are borrowed for the call.
    pub struct IoRequestWire = "halyard_io_request" {
        /// Zero.
        pub reserved: u32,
        /// Route, such as `/v1/chat/completions`.
        pub route: Str,
        /// The request's id.
        pub id: Str,
        /// One JSON object.
        pub body: Str,
        /// Most bytes of a rewritten body, and of all output texts of the request together.
        pub max_bytes: u64,
    }
}

abi_struct! {
    /// The decision about a request.
    pub struct IoVerdictWire = "halyard_io_verdict" {
        /// One of HALYARD_IO_.
        pub action: u32,
        /// HTTP status of a refusal, 400 to 499.
        pub http_status: u32,
        /// 1 when the request's output texts are to be pushed, else 0.
        pub wants_outputs: u32,
        /// The new body or the refusal's reason; the request's memory, valid until the next call with it or its drop.
        pub text: Str,
    }
}

abi_table! {
    /// An IO-processor plugin's root. A processor is used by any thread, several at once; a request by one thread at a
    /// time. Every function but the drops may block; the host calls none on a thread of its own that others wait for.
    pub struct IoProcessorTable = "halyard_io_processor_table", interface 33 "io_processor" version 0 . 1 {
        /// Makes a processor from a JSON object; `drop` releases it.
        required fn create(instance: *mut c_void, config: Str, out: *mut *mut c_void, err: *mut ErrorOut) -> u32;
        /// Releases a processor. Its requests may live on.
        required fn drop(processor: *mut c_void) -> ();
        /// Looks at a request. Writes the request object, which the host releases with `request_drop` whatever the
        /// verdict, and the verdict.
        required fn open(processor: *mut c_void, request: *const IoRequestWire, out: *mut *mut c_void,
            verdict: *mut IoVerdictWire, err: *mut ErrorOut) -> u32;
        /// Ends a request, complete or not.
        required fn request_drop(request: *mut c_void) -> ();
        /// The next piece of a choice's text. `out`: what may be shown by now; the request's memory, valid until the
        /// next call with it or its drop.
        optional ["output texts pass unchanged"] fn push(request: *mut c_void, choice: u32, text: Str, out: *mut Str,
            err: *mut ErrorOut) -> u32;
        /// A choice's text is complete. `out`: what was held back, valid as that of `push`.
        optional ["nothing is held back"] fn finish(request: *mut c_void, choice: u32, out: *mut Str,
            err: *mut ErrorOut) -> u32;
    }
}

abi_struct! {
    /// A question. All texts are borrowed for the call.
    pub struct LoraQueryWire = "halyard_lora_query" {
        /// Milliseconds after which nobody waits for the answer.
        pub timeout_ms: u32,
        /// The adapter's name, as the client sent it.
        pub name: Str,
        /// Name of the base model as it is served.
        pub base_model: Str,
    }
}

abi_struct! {
    /// A resolver's answer. The host sets path and path_capacity; the resolver writes no further than that.
    pub struct LoraAnswerWire = "halyard_lora_answer" {
        /// 1 when there is such an adapter, else 0.
        pub found: u32,
        /// Receives the folder's absolute path, not terminated.
        pub path: *mut u8,
        /// Bytes at `path`.
        pub path_capacity: u32,
        /// Bytes of the path; a longer one than path_capacity is HALYARD_STATUS_INVALID_ARGUMENT.
        pub path_len: u32,
    }
}

abi_table! {
    /// A LoRA-resolver plugin's root. A resolver is used by any thread, several at once.
    pub struct LoraResolverTable = "halyard_lora_resolver_table", interface 34 "lora_resolver" version 0 . 1 {
        /// Makes a resolver from a JSON object; `drop` releases it.
        required fn create(instance: *mut c_void, config: Str, out: *mut *mut c_void, err: *mut ErrorOut) -> u32;
        /// Releases a resolver.
        required fn drop(resolver: *mut c_void) -> ();
        /// Where the adapter of a name is. May block. HALYARD_STATUS_INVALID_ARGUMENT and HALYARD_STATUS_DENIED: the
        /// name is not allowed; other errors: not answerable now. After either the next resolver is asked.
        required fn resolve(resolver: *mut c_void, query: *const LoraQueryWire, out: *mut LoraAnswerWire,
            err: *mut ErrorOut) -> u32;
    }
}
