//! The headers of each language, by their `#include` name; the last three are shared by all languages.

macro_rules! headers {
    ($constant:ident = $folder:literal: $($name:literal)*) => {
        pub(crate) const $constant: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../", $folder, "/include/", $name))),)*
              ("block_values.h", include_str!("../shared/block_values.h")),
              ("groups.h", include_str!("../shared/groups.h")),
              ("formulas.h", include_str!("../shared/formulas.h"))];
    };
}

headers! { CUDA = "cuda":
    "act_norm.cuh" "activate.cuh" "attention_once.cuh" "attention_tile.cuh" "blocks.cuh" "code_tiles.cuh" "common.cuh"
    "common_keys.cuh" "copies.cuh" "decode_items.cuh" "eights.cuh" "expert_list.cuh" "few_choices.cuh" "few_tokens.cuh"
    "groups_hopper.cuh" "groups_product.cuh" "groups_tile.cuh" "hip.cuh" "hip_language.cuh" "hopper.cuh" "kv.cuh"
    "kv_codes.cuh" "kv_stream.cuh" "latent_work.cuh" "logits.cuh" "lora.cuh" "mfma.cuh" "mma.cuh" "peers.cuh"
    "prefill.cuh" "quantized.cuh" "records.cuh" "scaled.cuh" "teams.cuh" "vector.cuh" "warp_tiles.cuh" "weights.cuh"
    "widen.cuh"
}
headers! { GLSL = "glsl":
    "activate.glsl" "blocks.glsl" "common.glsl" "functions.glsl" "kv.glsl" "lanes.glsl" "logits.glsl" "planes.glsl"
    "rows.glsl" "vector.glsl"
}
headers! { OPENCL = "opencl":
    "common.h" "activate.h" "blocks.h" "kv.h" "logits.h" "matrix.h" "product.h" "quantized.h"
}
