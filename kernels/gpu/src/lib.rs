//! The GPU kernels as text: one source for every GPU that speaks CUDA C++ or HIP, compiled at run time for the device at hand. One op a file in
//! `ops/`, what they share in `include/`. Holds text only: no compiler, no driver, no launch.
//!
//! A file is specialised by `-D` definitions that its first comment lists; its entry points are `extern "C"`. Every kernel calls
//! `wait_for_previous()` before it touches memory that earlier work writes, because launches overlap with the end of their predecessor.

/// A kernel file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// File name without extension.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

/// Headers by the name that `#include` gives, with their text.
pub const HEADERS: &[(&str, &str)] = &[
    ("common.cuh", include_str!("../include/common.cuh")),
    ("hip.cuh", include_str!("../include/hip.cuh")),
    ("hip_language.cuh", include_str!("../include/hip_language.cuh")),
    ("act_norm.cuh", include_str!("../include/act_norm.cuh")),
    ("attention_once.cuh", include_str!("../include/attention_once.cuh")),
    ("attention_tile.cuh", include_str!("../include/attention_tile.cuh")),
    ("few_tokens.cuh", include_str!("../include/few_tokens.cuh")),
    ("kv.cuh", include_str!("../include/kv.cuh")),
    ("kv_stream.cuh", include_str!("../include/kv_stream.cuh")),
    ("mfma.cuh", include_str!("../include/mfma.cuh")),
    ("mma.cuh", include_str!("../include/mma.cuh")),
    ("lora.cuh", include_str!("../include/lora.cuh")),
    ("vector.cuh", include_str!("../include/vector.cuh")),
    ("activate.cuh", include_str!("../include/activate.cuh")),
    ("quantized.cuh", include_str!("../include/quantized.cuh")),
    ("scaled.cuh", include_str!("../include/scaled.cuh")),
    ("weights.cuh", include_str!("../include/weights.cuh")),
    ("hopper.cuh", include_str!("../include/hopper.cuh")),
    ("prefill.cuh", include_str!("../include/prefill.cuh")),
    ("peers.cuh", include_str!("../include/peers.cuh")),
    ("logits.cuh", include_str!("../include/logits.cuh")),
    ("blocks.cuh", include_str!("../include/blocks.cuh")),
    ("eights.cuh", include_str!("../include/eights.cuh")),
    ("widen.cuh", include_str!("../include/widen.cuh")),
];

macro_rules! sources {
    ($($constant:ident = $name:literal: $about:literal,)*) => {
        $(
            #[doc = $about]
            pub const $constant: Source = Source { name: $name, text: include_str!(concat!("../ops/", $name, ".cu")) };
        )*
        /// Every file.
        pub const SOURCES: &[Source] = &[$($constant),*];
    };
}

sources! {
    ALL_REDUCE = "all_reduce": "The sum over ranks whose memory all reach.",
    ATTENTION_DECODE = "attention_decode": "Split-KV attention of few query tokens a sequence.",
    ATTENTION_PLAIN = "attention_plain": "Attention of any shape, without matrix units.",
    ATTENTION_PREFILL = "attention_prefill": "Attention of prompt chunks on Hopper's matrix units.",
    ATTENTION_PREFILL_MMA = "attention_prefill_mma": "Attention of prompt chunks on the matrix units of sm_80 and newer.",
    ATTENTION_TILES = "attention_tiles": "Attention of prompt chunks on the matrix units of CDNA.",
    KV_WRITE = "kv_write": "Keys and values into their blocks, with rotation and per-head norms where a composite asks for them.",
    COPY = "copy": "`copy`, `fill`, `fill_random`, `cast`, `copy_blocks`.",
    EMBEDDING = "embedding": "`embedding` of every weight format.",
    LINEAR_PLAIN = "linear_plain": "`linear` of any type and format, without matrix units.",
    LINEAR_ONCE = "linear_once": "`linear` of few tokens by a small matrix that is in flight whole, with norm, bias, residual and gating fused.",
    LINEAR_SMALL = "linear_small": "`linear` of few tokens, with norm, bias, residual and gating fused.",
    LINEAR_QUANTIZED = "linear_quantized": "`linear` of GGUF formats, and their unpacking.",
    LINEAR_TILED = "linear_tiled": "`linear` of many tokens, without matrix units.",
    LINEAR_SCALED = "linear_scaled": "`linear` over 8-bit weights with a scale a row: packing, unpacking and the plain product.",
    LINEAR_SCALED_SMALL = "linear_scaled_small": "The same of few tokens, with norm, bias, residual and gating fused.",
    LINEAR_SCALED_TILE = "linear_scaled_tile": "The same of a batch of tokens, without unpacking.",
    LINEAR_SCALED_TOKENS = "linear_scaled_tokens": "Tokens rounded to 8-bit floats for a library's product with 8-bit weights.",
    LORA = "lora": "`lora_shrink` and `lora_expand`.",
    LORA_MATRIX = "lora_matrix": "The same of a batch of tokens, on matrix units.",
    MOE = "moe": "`moe_route`, `moe_linear`, `moe_combine`.",
    MOE_GROUPED = "moe_grouped": "`moe_linear` of many tokens, expert by expert.",
    NORM = "norm": "`rms_norm` and `layer_norm`.",
    POINTWISE = "pointwise": "Elementwise ops.",
    ROPE = "rope": "`rope`.",
    ROWS = "rows": "`gather_rows`, `scatter_rows`, `quantize_act`, `pool`.",
    STEP = "step": "`prepare_inputs`, `slot_mapping`, `update_rows`.",
    STEP_WRITE = "step_write": "The scatter of step data from pinned memory.",
    LOGITS = "logits": "`logits_process`.",
    ARGMAX = "argmax": "`argmax`.",
    SAMPLE = "sample": "`sample`.",
    LOGPROBS = "logprobs": "`top_logprobs`.",
}
