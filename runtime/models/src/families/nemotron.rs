//! Nemotron dense (Nemotron 3 and 4, Minitron): LayerNorms whose weights have 1 added, an MLP without a gate and with a
//! squared relu, a rope over half of each head. Sources: `configuration_nemotron.py`, `modeling_nemotron.py` of
//! transformers; llama.cpp's `LLM_ARCH_NEMOTRON`.

use halyard_platform_api::ops::RopeStyle;

use super::{Family, names};
use crate::config::gguf::GgufConfig;
use crate::config::huggingface::{Defaults, describe};
use crate::config::{Activation, JsonFields, ModelDescription, NormKind};
use crate::error::Result;
use crate::weights::NameTables;

pub(super) static FAMILY: Family = Family {
    name: "nemotron",
    hf_architectures: &["NemotronForCausalLM", "nemotron"],
    gguf_architectures: &["nemotron"],
    describe_hf,
    describe_gguf,
    hf_names: NameTables::own(&[names::NORM_BIASES, names::PRE_NORM]),
    gguf_names: NameTables::own(&[names::GGUF]),
};

const DEFAULTS: Defaults = Defaults {
    vocab_size: Some(256_000),
    num_heads: Some(48),
    max_position_embeddings: 4096,
    activation: "relu2",
    eps_field: "norm_eps",
    eps: 1e-5,
    partial_rotary_factor: 0.5,
    ..Defaults::LLAMA
};

fn describe_hf(config: &JsonFields) -> Result<ModelDescription> {
    let mut model = describe(config, &DEFAULTS)?;
    let bias = config.bool("attention_bias")?.unwrap_or(false);
    for layer in &mut model.layers {
        (layer.mixer.qkv_bias, layer.mixer.o_bias) = (bias, bias);
    }
    let bias = config.bool("mlp_bias")?.unwrap_or(false);
    for mlp in model.dense_mlps() {
        (mlp.is_gated, mlp.bias) = (false, bias);
    }
    model.norm.kind = NormKind::Layer { bias: true };
    model.norm.weight_offset = 1.0;
    Ok(model)
}

/// The converter adds 1 to the norms' weights.
fn describe_gguf(config: &GgufConfig) -> Result<ModelDescription> {
    let mut model = config.describe(RopeStyle::Neox)?;
    config.apply_layer_norm(&mut model)?;
    for mlp in model.dense_mlps() {
        (mlp.is_gated, mlp.activation) = (false, Activation::ReluSquared);
    }
    Ok(model)
}
