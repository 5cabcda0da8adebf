//! Phi-3, 3.5 and 4: Llama with packed projections, and LongRoPE or a rope over a part of each head in some. Sources:
//! `configuration_phi3.py`, `modeling_phi3.py` of transformers; llama.cpp's `LLM_ARCH_PHI3`.

use halyard_platform_api::ops::RopeStyle;

use super::{Family, names};
use crate::config::gguf::GgufConfig;
use crate::config::huggingface::{Defaults, describe};
use crate::config::{JsonFields, ModelDescription};
use crate::error::Result;
use crate::weights::{NameTables, PackedOrder, PackedTensor};

pub(super) static FAMILY: Family = Family {
    name: "phi3",
    hf_architectures: &["Phi3ForCausalLM", "phi3"],
    gguf_architectures: &["phi3"],
    describe_hf,
    describe_gguf,
    hf_names: NameTables {
        own: &[names::PRE_NORM],
        packed: &[
            PackedTensor {
                name: "model.layers.{l}.self_attn.qkv_proj.weight",
                parts: names::QKV,
                order: PackedOrder::Stacked,
            },
            names::GATE_UP,
        ],
    },
    gguf_names: NameTables {
        own: &[names::GGUF],
        packed: &[
            PackedTensor {
                name: "blk.{l}.attn_qkv.weight",
                parts: names::QKV,
                order: PackedOrder::Stacked,
            },
            PackedTensor {
                name: "blk.{l}.ffn_up.weight",
                parts: names::GATE_AND_UP,
                order: PackedOrder::Stacked,
            },
        ],
    },
};

const DEFAULTS: Defaults = Defaults {
    vocab_size: Some(32_064),
    num_heads: Some(32),
    max_position_embeddings: 4096,
    eps: 1e-5,
    ..Defaults::LLAMA
};

fn describe_hf(config: &JsonFields) -> Result<ModelDescription> {
    let mut model = describe(config, &DEFAULTS)?;
    let window = config.unsigned("sliding_window")?;
    model.layers.iter_mut().for_each(|layer| layer.mixer.window = window);
    Ok(model)
}

fn describe_gguf(config: &GgufConfig) -> Result<ModelDescription> {
    let mut model = config.describe(RopeStyle::Neox)?;
    let window = config
        .unsigned("attention.sliding_window")?
        .filter(|&window| window > 0);
    model.layers.iter_mut().for_each(|layer| layer.mixer.window = window);
    Ok(model)
}
