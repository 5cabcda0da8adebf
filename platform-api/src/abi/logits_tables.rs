//! Structs and table of logits processors. The rules are those of [`super::tables`].

use std::ffi::c_void;

use super::macros::{abi_fixed_struct, abi_struct, abi_table};
use super::types::{AbiType, ErrorOut, Str};

/// A logits-processor plugin.
pub const KIND_LOGITS_PROCESSOR: u32 = 5;

/// The type of the function of `halyard_logits_model` that turns a text into token ids.
pub type EncodeFn = unsafe extern "C" fn(
    context: *mut c_void,
    text: Str,
    out: *mut u32,
    capacity: u32,
    num: *mut u32,
    err: *mut ErrorOut,
) -> u32;

/// The type of the function of `halyard_logits_model` that gives a token's bytes.
pub type TokenBytesFn = unsafe extern "C" fn(
    context: *mut c_void,
    token: u32,
    out: *mut u8,
    capacity: u32,
    num: *mut u32,
    err: *mut ErrorOut,
) -> u32;

// SAFETY: a nullable C function pointer; the header declares the name.
unsafe impl AbiType for Option<EncodeFn> {
    fn c_type() -> String {
        "halyard_encode_fn".to_string()
    }
}

// SAFETY: a nullable C function pointer; the header declares the name.
unsafe impl AbiType for Option<TokenBytesFn> {
    fn c_type() -> String {
        "halyard_token_bytes_fn".to_string()
    }
}

abi_struct! {
    /// The model of a logits processor. The struct is borrowed for the call; what it points to, its functions and their
    /// context are valid until the processor is dropped.
    pub struct LogitsModelWire = "halyard_logits_model" {
        /// Tokens of the vocabulary: ids are below. It may be larger than the tokenizer's.
        pub vocab_size: u32,
        /// The tokens that end a text.
        pub end_tokens: *const u32,
        /// Entries there.
        pub num_end_tokens: u32,
        /// Zero.
        pub reserved: u32,
        /// First argument of the functions.
        pub context: *mut c_void,
        /// Turns a text into token ids.
        pub encode: Option<EncodeFn>,
        /// Gives a token's bytes.
        pub token_bytes: Option<TokenBytesFn>,
    }
}

abi_struct! {
    /// A request. All that it points to is borrowed for the call.
    pub struct LogitsRequestWire = "halyard_logits_request" {
        /// Most tokens of each of its samples.
        pub max_tokens: u32,
        /// The request's id.
        pub id: Str,
        /// Token ids of its prompt.
        pub prompt: *const u32,
        /// Entries there.
        pub num_prompt: u64,
        /// Arguments for processors, one JSON object: the entries of the body's `vllm_xargs`, and the fields that
        /// `reads` names.
        pub args: Str,
    }
}

abi_fixed_struct! {
    /// What is added to a token's logit.
    pub struct LogitBias = "halyard_logit_bias" {
        /// The token.
        pub token: u32,
        /// Finite, from -1e9 to 1e9. Biases of one token add up.
        pub bias: f32,
    }
}

impl Default for LogitBias {
    fn default() -> LogitBias {
        LogitBias { token: 0, bias: 0.0 }
    }
}

abi_struct! {
    /// A row of logits before a token is chosen. The host sets everything but num_biases, which is 0; the processor
    /// clears bits, writes biases and says how many.
    pub struct LogitsRowWire = "halyard_logits_row" {
        /// Tokens of the vocabulary.
        pub vocab_size: u32,
        /// Which tokens may come: bit v mod 32 of word v/32 is set where token v may. It starts as the request's
        /// grammar and the processors before left it; a bit that is cleared stays so, whatever is written. At least one
        /// must stay set.
        pub mask: *mut u32,
        /// Room for biases.
        pub biases: *mut LogitBias,
        /// Entries there, HALYARD_MAX_LOGIT_BIASES less those that processors before gave.
        pub biases_capacity: u32,
        /// Entries written.
        pub num_biases: u32,
    }
}

abi_table! {
    /// A logits-processor plugin's root. Processors and requests are used by any thread, several at once; a sequence by
    /// one thread at a time. Every function but the drops may block, and no call is made on a thread that others wait
    /// for. The host drops sequences before their request, and requests before their processor.
    pub struct LogitsProcessorTable = "halyard_logits_processor_table",
    interface 35 "logits_processor" version 0 . 1 {
        /// Makes a processor for a model from a JSON object; `drop` releases it.
        required fn create(instance: *mut c_void, config: Str, model: *const LogitsModelWire, out: *mut *mut c_void,
            err: *mut ErrorOut) -> u32;
        /// Releases a processor.
        required fn drop(processor: *mut c_void) -> ();
        /// Looks at a request. `out`: the request's object, which `request_drop` releases; null: the processor takes no
        /// part in it. HALYARD_STATUS_INVALID_ARGUMENT and HALYARD_STATUS_DENIED refuse the request, with the words as
        /// the client's answer; any other error is the processor's failure.
        required fn open(processor: *mut c_void, request: *const LogitsRequestWire, out: *mut *mut c_void,
            err: *mut ErrorOut) -> u32;
        /// Ends a request.
        required fn request_drop(request: *mut c_void) -> ();
        /// Sample number `sample` of a request begins; `sequence_drop` releases its object.
        required fn sequence_create(request: *mut c_void, sample: u32, out: *mut *mut c_void,
            err: *mut ErrorOut) -> u32;
        /// Ends a sample, complete or not.
        required fn sequence_drop(sequence: *mut c_void) -> ();
        /// Before each token of a sample: takes the tokens that came since the last call, none at the first, and
        /// changes the row of the next one. An error ends the request with its words.
        required fn process(sequence: *mut c_void, tokens: *const u32, num_tokens: u32, row: *mut LogitsRowWire,
            err: *mut ErrorOut) -> u32;
        /// `out`: 1 where the processor reads a field of requests that is refused where none does, else 0.
        /// `thinking_token_budget` is the only such field. Asked once.
        optional ["it reads none"] fn reads(processor: *mut c_void, field: Str, out: *mut u32,
            err: *mut ErrorOut) -> u32;
    }
}
