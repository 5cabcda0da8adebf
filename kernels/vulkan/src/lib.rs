//! The Vulkan kernels as text: GLSL, compiled to SPIR-V by whoever holds a compiler. One op a file in `ops/`, under the name that the op's
//! file has in kernels/gpu; what they share in `include/`. Holds text only: no compiler, no driver, no launch.
//!
//! Entry points, definitions, parameters and launch sizes are those of kernels/gpu. GLSL has one `main`: the definition `ENTRY_<name>` says
//! which entry point it is. Parameters are push constants in their order, each at its natural alignment; where they take more than 128 bytes
//! the only push constant is the address of such a block. Specialisation constants: 0 is the workgroup's size, 1 the 32-bit words of shared
//! memory that the launch asks for (at least 1). With `SUBGROUP` defined (32 or 64; 8 on processors) the kernel needs full subgroups of that size;
//! without it, it runs on subgroups of any size. `product`, `product_wide` and `attention_tiles`, on cooperative matrices, and
//! `linear_dots`, on integer dot products, are this language's own: the first two are what other platforms have a library for.

/// Headers by the name that `#include` gives, with their text.
pub const HEADERS: &[(&str, &str)] = &[
    ("activate.glsl", include_str!("../include/activate.glsl")),
    ("blocks.glsl", include_str!("../include/blocks.glsl")),
    ("common.glsl", include_str!("../include/common.glsl")),
    ("functions.glsl", include_str!("../include/functions.glsl")),
    ("kv.glsl", include_str!("../include/kv.glsl")),
    ("lanes.glsl", include_str!("../include/lanes.glsl")),
    ("logits.glsl", include_str!("../include/logits.glsl")),
    ("planes.glsl", include_str!("../include/planes.glsl")),
    ("rows.glsl", include_str!("../include/rows.glsl")),
    ("vector.glsl", include_str!("../include/vector.glsl")),
];

macro_rules! files {
    ($($name:literal,)*) => {
        /// Every kernel file by its name without extension, with its text.
        pub const FILES: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../ops/", $name, ".comp")))),*
        ];
    };
}

files! {
    "argmax",
    "attention_plain",
    "attention_tiles",
    "copy",
    "embedding",
    "kv_write",
    "linear_dots",
    "linear_plain",
    "linear_quantized",
    "linear_scaled",
    "linear_tiled",
    "logits",
    "logprobs",
    "lora",
    "moe",
    "norm",
    "pointwise",
    "product",
    "product_wide",
    "rope",
    "rows",
    "sample",
    "step",
}

/// The text of a kernel file; `None` where this language lacks it.
pub fn text(name: &str) -> Option<&'static str> {
    FILES.iter().find(|(file, _)| *file == name).map(|(_, text)| *text)
}
