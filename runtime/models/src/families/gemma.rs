//! Gemma 1: Llama with norms whose weights are around 0, gelu and scaled embeddings. Sources:
//! `configuration_gemma.py`, `modeling_gemma.py` of transformers; llama.cpp's `LLM_ARCH_GEMMA`.

use halyard_platform_api::ops::RopeStyle;

use super::{Family, names};
use crate::config::gguf::GgufConfig;
use crate::config::huggingface::{Defaults, describe};
use crate::config::{Activation, JsonFields, ModelDescription};
use crate::error::Result;
use crate::weights::NameTables;

pub(super) static FAMILY: Family = Family {
    name: "gemma",
    hf_architectures: &["GemmaForCausalLM", "gemma"],
    gguf_architectures: &["gemma"],
    describe_hf,
    describe_gguf,
    hf_names: NameTables::own(&[names::PRE_NORM]),
    gguf_names: NameTables::own(&[names::GGUF]),
};

pub(super) const DEFAULTS: Defaults = Defaults {
    vocab_size: Some(256_000),
    num_heads: Some(16),
    num_kv_heads: Some(16),
    head_dim: Some(256),
    max_position_embeddings: 8192,
    tie_word_embeddings: true,
    activation_field: "hidden_activation",
    activation: "gelu_pytorch_tanh",
    ..Defaults::LLAMA
};

/// `hidden_act` of published files says gelu; the models were trained with the tanh form, which every reader takes.
fn describe_hf(config: &JsonFields) -> Result<ModelDescription> {
    let mut model = describe(config, &DEFAULTS)?;
    let bias = config.bool("attention_bias")?.unwrap_or(false);
    for layer in &mut model.layers {
        (layer.mixer.qkv_bias, layer.mixer.o_bias) = (bias, bias);
    }
    model.norm.weight_offset = 1.0;
    scale_embeddings(&mut model);
    Ok(model)
}

/// The converter has added the 1 of the norms to their weights.
fn describe_gguf(config: &GgufConfig) -> Result<ModelDescription> {
    let mut model = config.describe(RopeStyle::Neox)?;
    scale_embeddings(&mut model);
    Ok(model)
}

/// What all Gemmas share.
pub(super) fn scale_embeddings(model: &mut ModelDescription) {
    model.dense_mlps().for_each(|mlp| mlp.activation = Activation::GeluTanh);
    model.embedding_scale = (model.hidden_size as f64).sqrt() as f32;
}
