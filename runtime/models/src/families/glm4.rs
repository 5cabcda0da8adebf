//! GLM-4 (9B of 2024 and 0414): a rope over half of each head with neighbours as pairs, gate and up packed; 0414 has
//! sandwich norms. Sources: `configuration_glm4.py`, `modeling_glm.py`, `modeling_glm4.py` of transformers; llama.cpp's
//! `LLM_ARCH_GLM4`.

use halyard_platform_api::ops::RopeStyle;

use super::{Family, names};
use crate::config::gguf::GgufConfig;
use crate::config::huggingface::{Defaults, describe};
use crate::config::{JsonFields, ModelDescription, NormPlacement};
use crate::error::Result;
use crate::weights::{NameTables, NameTemplate, Norm, PackedOrder, PackedTensor, Role};

pub(super) static FAMILY: Family = Family {
    name: "glm4",
    hf_architectures: &["Glm4ForCausalLM", "GlmForCausalLM", "glm4", "glm"],
    gguf_architectures: &["glm4"],
    describe_hf,
    describe_gguf,
    hf_names: NameTables {
        own: &[NAMES, names::PRE_NORM],
        packed: &[names::GATE_UP],
    },
    gguf_names: NameTables {
        own: &[names::GGUF],
        packed: &[PackedTensor {
            name: "blk.{l}.ffn_up.weight",
            parts: names::GATE_AND_UP,
            order: PackedOrder::Stacked,
        }],
    },
};

const NAMES: &[NameTemplate] = &[
    (
        Role::norm(0, Norm::PostAttention),
        "model.layers.{l}.post_self_attn_layernorm.weight",
    ),
    (
        Role::norm(0, Norm::PostMlp),
        "model.layers.{l}.post_mlp_layernorm.weight",
    ),
];

const DEFAULTS: Defaults = Defaults {
    vocab_size: Some(151_552),
    num_heads: Some(32),
    num_kv_heads: Some(2),
    head_dim: Some(128),
    max_position_embeddings: 131_072,
    partial_rotary_factor: 0.5,
    eps: 0.000_000_156_25,
    ..Defaults::LLAMA
};

fn describe_hf(config: &JsonFields) -> Result<ModelDescription> {
    let mut model = describe(config, &DEFAULTS)?;
    let bias = config.bool("attention_bias")?.unwrap_or(true);
    model.layers.iter_mut().for_each(|layer| layer.mixer.qkv_bias = bias);
    model.ropes[0].style = RopeStyle::Interleaved;
    if matches!(model.architecture.as_str(), "Glm4ForCausalLM" | "glm4") {
        model.norm.placement = NormPlacement::Sandwich;
    }
    Ok(model)
}

fn describe_gguf(config: &GgufConfig) -> Result<ModelDescription> {
    let mut model = config.describe(RopeStyle::Interleaved)?;
    model.interleaved_heads = false;
    if config.file.tensor("blk.0.post_attention_norm.weight").is_some() {
        model.norm.placement = NormPlacement::Sandwich;
    }
    Ok(model)
}
