//! What the kernel files of a language share, by the name that `#include` gives.

macro_rules! headers {
    ($constant:ident = $folder:literal: $($name:literal)*) => {
        pub(crate) const $constant: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../", $folder, "/include/", $name)))),*];
    };
}

headers! { CUDA = "cuda":
    "common.cuh" "hip.cuh" "hip_language.cuh" "act_norm.cuh" "attention_once.cuh" "attention_tile.cuh" "few_tokens.cuh"
    "kv.cuh" "kv_stream.cuh" "mfma.cuh" "mma.cuh" "lora.cuh" "vector.cuh" "activate.cuh" "quantized.cuh" "scaled.cuh"
    "weights.cuh" "hopper.cuh" "prefill.cuh" "peers.cuh" "logits.cuh" "blocks.cuh" "eights.cuh" "widen.cuh"
}
headers! { GLSL = "glsl":
    "activate.glsl" "blocks.glsl" "common.glsl" "functions.glsl" "kv.glsl" "lanes.glsl" "logits.glsl" "planes.glsl"
    "rows.glsl" "vector.glsl"
}
headers! { OPENCL = "opencl":
    "common.h" "activate.h" "blocks.h" "kv.h" "logits.h" "matrix.h" "product.h" "quantized.h"
}
