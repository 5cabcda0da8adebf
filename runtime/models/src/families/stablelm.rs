//! StableLM 2 and StableLM 3B: LayerNorms with biases, a rope over a quarter of each head. Sources:
//! `configuration_stablelm.py`, `modeling_stablelm.py` of transformers; llama.cpp's `LLM_ARCH_STABLELM`.

use halyard_platform_api::ops::RopeStyle;

use super::{Family, names};
use crate::config::gguf::GgufConfig;
use crate::config::huggingface::{Defaults, describe};
use crate::config::{JsonFields, ModelDescription, NormKind, NormPlacement};
use crate::error::{ModelError, Result};
use crate::weights::NameTables;

pub(super) static FAMILY: Family = Family {
    name: "stablelm",
    hf_architectures: &["StableLmForCausalLM", "stablelm"],
    gguf_architectures: &["stablelm"],
    describe_hf,
    describe_gguf,
    hf_names: NameTables::own(&[names::NORM_BIASES, names::PRE_NORM]),
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
const HEAD_NORMS: &str = "norms of queries and keys with weights of their own for each head are not here yet";

fn describe_hf(config: &JsonFields) -> Result<ModelDescription> {
    let mut model = describe(config, &DEFAULTS)?;
    if config.bool("qk_layernorm")?.unwrap_or(false) {
        return Err(config.unsupported("qk_layernorm", "true", HEAD_NORMS));
    }
    let bias = config.bool("use_qkv_bias")?.unwrap_or(false);
    model.layers.iter_mut().for_each(|layer| layer.mixer.qkv_bias = bias);
    model.norm.kind = NormKind::Layer { bias: true };
    if config.bool("use_parallel_residual")?.unwrap_or(false) {
        model.norm.placement = NormPlacement::Shared;
    }
    Ok(model)
}

fn describe_gguf(config: &GgufConfig) -> Result<ModelDescription> {
    let mut model = config.describe(RopeStyle::Neox)?;
    if config.file.tensor("blk.0.attn_q_norm.weight").is_some() {
        return Err(ModelError::Unsupported {
            path: config.file.path().to_path_buf(),
            field: "blk.0.attn_q_norm.weight".into(),
            value: "qk_layernorm".into(),
            remedy: HEAD_NORMS.into(),
        });
    }
    config.apply_layer_norm(&mut model)?;
    if config.file.tensor("blk.0.ffn_norm.weight").is_none() {
        model.norm.placement = NormPlacement::Shared;
    }
    Ok(model)
}
