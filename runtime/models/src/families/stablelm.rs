//! StableLM 2 and StableLM 3B: LayerNorms with biases, a rope over a quarter of each head. Sources:
//! `configuration_stablelm.py`, `modeling_stablelm.py` of transformers; llama.cpp's `LLM_ARCH_STABLELM`.

use halyard_platform_api::ops::RopeStyle;

use super::{Family, names};
use crate::config::gguf::GgufConfig;
use crate::config::huggingface::{Defaults, describe};
use crate::config::{JsonFields, ModelDescription, NormKind, NormPlacement, QkNorm};
use crate::error::Result;
use crate::weights::{NameTables, NameTemplate, Norm, Role};

pub(super) static FAMILY: Family = Family {
    name: "stablelm",
    hf_architectures: &["StableLmForCausalLM", "stablelm"],
    gguf_architectures: &["stablelm"],
    describe_hf,
    describe_gguf,
    hf_names: NameTables::own(&[HEAD_NORMS, names::NORM_BIASES, names::PRE_NORM]),
    gguf_names: NameTables::own(&[names::GGUF]),
};

const DEFAULTS: Defaults = Defaults {
    vocab_size: Some(50_304),
    num_heads: Some(32),
    max_position_embeddings: 4096,
    partial_rotary_factor: 0.25,
    eps_field: "layer_norm_eps",
    eps: 1e-5,
    ..Defaults::LLAMA
};

/// StableLM 2 12B: a tensor for each head.
const HEAD_NORMS: &[NameTemplate] = &[
    (
        Role::norm(0, Norm::QueryHead(0)),
        "model.layers.{l}.self_attn.q_layernorm.norms.{e}.weight",
    ),
    (
        Role::norm(0, Norm::KeyHead(0)),
        "model.layers.{l}.self_attn.k_layernorm.norms.{e}.weight",
    ),
];

fn describe_hf(config: &JsonFields) -> Result<ModelDescription> {
    let mut model = describe(config, &DEFAULTS)?;
    let has_norms = config.bool("qk_layernorm")?.unwrap_or(false);
    let bias = config.bool("use_qkv_bias")?.unwrap_or(false);
    for layer in &mut model.layers {
        layer.mixer.qkv_bias = bias;
        layer.mixer.qk_norm = has_norms.then_some(QkNorm::OwnWeights);
    }
    model.norm.kind = NormKind::Layer { bias: true };
    if config.bool("use_parallel_residual")?.unwrap_or(false) {
        model.norm.placement = NormPlacement::Shared;
    }
    Ok(model)
}

fn describe_gguf(config: &GgufConfig) -> Result<ModelDescription> {
    let mut model = config.describe(RopeStyle::Neox)?;
    for layer in &mut model.layers {
        layer.mixer.qk_norm = layer.mixer.qk_norm.map(|_| QkNorm::OwnWeights);
    }
    config.apply_layer_norm(&mut model)?;
    if config.file.tensor("blk.0.ffn_norm.weight").is_none() {
        model.norm.placement = NormPlacement::Shared;
    }
    Ok(model)
}
