//! StarCoder2: LayerNorms, biases everywhere, an MLP without a gate, a window on every layer. Sources:
//! `configuration_starcoder2.py`, `modeling_starcoder2.py` of transformers; llama.cpp's `LLM_ARCH_STARCODER2`.

use halyard_platform_api::ops::RopeStyle;

use super::{Family, names};
use crate::config::gguf::GgufConfig;
use crate::config::huggingface::{Defaults, describe};
use crate::config::{Activation, JsonFields, ModelDescription, NormKind};
use crate::error::Result;
use crate::weights::MlpLinear::{Down, Up};
use crate::weights::{Linear, NameTables, NameTemplate, Role};

pub(super) static FAMILY: Family = Family {
    name: "starcoder2",
    hf_architectures: &["Starcoder2ForCausalLM", "starcoder2"],
    gguf_architectures: &["starcoder2"],
    describe_hf,
    describe_gguf,
    hf_names: NameTables::own(&[NAMES, names::NORM_BIASES, names::PRE_NORM]),
    gguf_names: NameTables::own(&[names::GGUF]),
};

const NAMES: &[NameTemplate] = &[
    (Role::weight(0, Linear::Mlp(Up)), "model.layers.{l}.mlp.c_fc.weight"),
    (Role::bias(0, Linear::Mlp(Up)), "model.layers.{l}.mlp.c_fc.bias"),
    (Role::weight(0, Linear::Mlp(Down)), "model.layers.{l}.mlp.c_proj.weight"),
    (Role::bias(0, Linear::Mlp(Down)), "model.layers.{l}.mlp.c_proj.bias"),
];

const DEFAULTS: Defaults = Defaults {
    vocab_size: Some(49_152),
    num_heads: Some(24),
    num_kv_heads: Some(2),
    max_position_embeddings: 4096,
    tie_word_embeddings: true,
    activation: "gelu_pytorch_tanh",
    eps_field: "norm_epsilon",
    eps: 1e-5,
    ..Defaults::LLAMA
};

fn describe_hf(config: &JsonFields) -> Result<ModelDescription> {
    let mut model = describe(config, &DEFAULTS)?;
    let bias = config.bool("use_bias")?.unwrap_or(true);
    let window = config.unsigned("sliding_window")?;
    for layer in &mut model.layers {
        (layer.mixer.qkv_bias, layer.mixer.o_bias) = (bias, bias);
        layer.mixer.window = window;
    }
    for mlp in model.dense_mlps() {
        (mlp.is_gated, mlp.bias) = (false, bias);
    }
    model.norm.kind = NormKind::Layer { bias: true };
    Ok(model)
}

fn describe_gguf(config: &GgufConfig) -> Result<ModelDescription> {
    let mut model = config.describe(RopeStyle::Neox)?;
    config.apply_layer_norm(&mut model)?;
    let bias = config.file.tensor("blk.0.ffn_up.bias").is_some();
    for mlp in model.dense_mlps() {
        (mlp.is_gated, mlp.bias, mlp.activation) = (false, bias, Activation::GeluTanh);
    }
    Ok(model)
}
