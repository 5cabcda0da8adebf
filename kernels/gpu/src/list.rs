//! The list of kernel files: what each holds, which languages have it, and why the others do not.

use crate::{Language, Source};

/// A kernel file's text in one language.
macro_rules! text {
    (Cuda, $name:literal) => {
        include_str!(concat!("../cuda/ops/", $name, ".cu"))
    };
    (Glsl, $name:literal) => {
        include_str!(concat!("../glsl/ops/", $name, ".comp"))
    };
    (OpenCl, $name:literal) => {
        include_str!(concat!("../opencl/ops/", $name, ".cl"))
    };
}

macro_rules! sources {
    ($($constant:ident = $name:literal, $about:literal: $($language:ident)* $(, $lacking:literal)?;)*) => {
        $(
            #[doc = $about]
            pub const $constant: Source = Source {
                name: $name,
                texts: {
                    let mut texts = [None; 3];
                    $(texts[Language::$language as usize] = Some(text!($language, $name));)*
                    texts
                },
                lacking: concat!($($lacking)?),
            };
        )*
        /// Every file.
        pub const SOURCES: &[Source] = &[$($constant),*];
    };
}

sources! {
    ALL_REDUCE = "all_reduce", "The sum over ranks whose memory all reach.":
        Cuda, "platforms of the others have no communicator";
    ARGMAX = "argmax", "`argmax`.": Cuda Glsl OpenCl;
    ATTENTION_DECODE = "attention_decode", "Split-KV attention of few query tokens a sequence.":
        Cuda, "it keeps a ring of asynchronous copies in flight; attention_plain decodes in the others";
    ATTENTION_PLAIN = "attention_plain", "Attention of any shape, without matrix units.": Cuda Glsl OpenCl;
    ATTENTION_PREFILL = "attention_prefill", "Attention of prompt chunks on Hopper's matrix units.":
        Cuda, "instructions of one vendor's hardware";
    ATTENTION_PREFILL_MMA = "attention_prefill_mma",
        "Attention of prompt chunks on the matrix units of sm_80 and newer.":
        Cuda, "instructions of one vendor's hardware";
    ATTENTION_TILES = "attention_tiles",
        "Attention of prompt chunks on matrix units: CDNA's (HIP), cooperative matrices (GLSL), DPAS (OpenCL).":
        Cuda Glsl OpenCl;
    COPY = "copy", "`copy`, `fill_random`.": Cuda Glsl OpenCl;
    EMBEDDING = "embedding", "`embedding` of every weight format.": Cuda Glsl OpenCl;
    FIND_COMMON = "find_common", "Which sequences of a batch have pages in common, for attention_decode.":
        Cuda, "attention_decode is CUDA's";
    KV_WRITE = "kv_write",
        "Keys and values into their blocks, with rotation and per-head norms where a composite asks for them.":
        Cuda Glsl OpenCl;
    LATENT = "latent", "`latent_write` and `latent_attention`.": Cuda Glsl OpenCl;
    LATENT_DECODE = "latent_decode",
        "`latent_attention` of few rows a sequence, on the matrix units of sm_80 and newer.":
        Cuda, "it is written for mma.sync";
    LATENT_JOIN = "latent_join", "The end of it where several blocks have divided a sequence's keys.":
        Cuda, "the kernels before it are CUDA's";
    LATENT_TILES = "latent_tiles", "`latent_attention` of many rows a sequence, on the same matrix units and Hopper's.":
        Cuda, "it is written for mma.sync and wgmma";
    LINEAR_DOTS = "linear_dots", "`linear` of GGUF formats and rounded tokens, by integer dot products.":
        Glsl OpenCl, "drivers of CUDA and HIP do not round activations for such formats";
    LINEAR_GROUPS_HOPPER = "linear_groups_hopper",
        "`linear` of a batch of tokens over canonical groups on Hopper's matrix units, without unpacking.":
        Cuda, "instructions of one vendor's hardware";
    LINEAR_GROUPS_SMALL = "linear_groups_small",
        "`linear` of few tokens over canonical groups, with norm, bias, residual and gating fused.":
        Cuda, "it is written for mma.sync, as fused regions are CUDA's";
    LINEAR_GROUPS_TILE = "linear_groups_tile", "The same of a batch of tokens, on any matrix units.":
        Cuda, "it is written for mma.sync; the others unpack first";
    LINEAR_HOPPER = "linear_hopper",
        "`linear` of some hundred tokens over plain and 8-bit weights on Hopper, with bias, residual and gating fused.":
        Cuda, "instructions of one vendor's hardware";
    LINEAR_ONCE = "linear_once",
        "`linear` of few tokens by a small matrix that is in flight whole, with norm, bias, residual and gating fused.":
        Cuda, "fused regions are CUDA's and HIP's";
    LINEAR_PLAIN = "linear_plain", "`linear` of any type and format, without matrix units.": Cuda Glsl OpenCl;
    LINEAR_QUANTIZED = "linear_quantized", "`linear` of GGUF formats, and their unpacking.": Cuda Glsl OpenCl;
    LINEAR_SCALED = "linear_scaled",
        "`linear` over 8-bit weights with a scale a row: packing, unpacking and the plain product.":
        Cuda Glsl OpenCl;
    LINEAR_SCALED_SMALL = "linear_scaled_small",
        "The same of few tokens, with norm, bias, residual and gating fused.":
        Cuda, "fused regions are CUDA's and HIP's";
    LINEAR_SCALED_TILE = "linear_scaled_tile", "The same of a batch of tokens, without unpacking.":
        Cuda, "it is written for mma.sync; the others unpack first";
    LINEAR_SCALED_TOKENS = "linear_scaled_tokens",
        "Tokens normed and rounded to 8-bit floats, for a product with 8-bit weights.":
        Cuda, "the others have no such product";
    LINEAR_SMALL = "linear_small", "`linear` of few tokens, with norm, bias, residual and gating fused.":
        Cuda, "fused regions are CUDA's and HIP's";
    LINEAR_TILED = "linear_tiled", "`linear` of many tokens in tiles.": Cuda Glsl OpenCl;
    LOGITS = "logits", "`logits_process`.": Cuda Glsl OpenCl;
    LOGPROBS = "logprobs", "`top_logprobs`.": Cuda Glsl OpenCl;
    LORA = "lora", "`lora_shrink` and `lora_expand`.": Cuda Glsl OpenCl;
    LORA_MATRIX = "lora_matrix", "The same of a batch of tokens, on matrix units.":
        Cuda, "it is written for mma.sync";
    MOE = "moe", "`moe_route`, `moe_linear`, `moe_combine`, `head_linear`.": Cuda Glsl OpenCl;
    MOE_FEW = "moe_few", "`moe_linear` of few tokens an expert, with gating fused.":
        Cuda, "it is written for mma.sync";
    MOE_GROUPED = "moe_grouped", "`moe_linear` of many tokens, expert by expert.":
        Cuda, "it is written for mma.sync";
    MOE_GROUPS_FEW = "moe_groups_few", "`moe_few` over records.": Cuda, "it is written for mma.sync";
    MOE_GROUPS_HOPPER = "moe_groups_hopper", "`moe_tile` over records.":
        Cuda, "instructions of one vendor's hardware";
    MOE_LIST = "moe_list", "A step's choices by expert, and the sum of experts' results with the addition behind it.":
        Cuda, "the others have no products that need it";
    MOE_MANY = "moe_many", "`moe_tile` of so many tokens that two blocks take the same rows.":
        Cuda, "instructions of one vendor's hardware";
    MOE_TILE = "moe_tile", "`moe_linear` of many tokens an expert on Hopper's matrix units, with gating fused.":
        Cuda, "instructions of one vendor's hardware";
    MOE_UNPACK = "moe_unpack", "Chosen experts' matrices from records to plain values.":
        Cuda, "the others have no products that need it";
    NORM = "norm", "`rms_norm` and `layer_norm`.": Cuda Glsl OpenCl;
    POINTWISE = "pointwise", "Elementwise ops.": Cuda Glsl OpenCl;
    PRODUCT = "product", "Products of 16-bit matrices on cooperative matrices of a subgroup.":
        Glsl, "CUDA and HIP have a library for it, OpenCL has linear_tiled";
    PRODUCT_WIDE = "product_wide", "The same on cooperative matrices of a workgroup.":
        Glsl, "CUDA and HIP have a library for it, OpenCL has linear_tiled";
    ROPE = "rope", "`rope`.": Cuda Glsl OpenCl;
    ROWS = "rows", "`gather_rows`, `scatter_rows`, `quantize_act`, `pool`.": Cuda Glsl OpenCl;
    SAMPLE = "sample", "`sample`.": Cuda Glsl OpenCl;
    STEP = "step", "`prepare_inputs`, `slot_mapping`, `update_rows`.": Cuda Glsl OpenCl;
    STEP_WRITE = "step_write", "The scatter of step data from pinned memory.":
        Cuda, "drivers of the others record copies";
}
