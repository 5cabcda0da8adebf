//! Qwen3 (dense): Qwen2 with norms over each head of q and k instead of biases, and a stated head_dim.

use halyard_platform_api::ops::RopeStyle;

use super::{Family, names, qwen2};
use crate::config::gguf::GgufConfig;
use crate::config::huggingface::{Defaults, describe};
use crate::config::{JsonFields, ModelDescription, QkNorm};
use crate::error::Result;
use crate::weights::NameTables;

pub(super) static FAMILY: Family = Family {
    name: "qwen3",
    hf_architectures: &["Qwen3ForCausalLM", "qwen3"],
    gguf_architectures: &["qwen3"],
    describe_hf,
    describe_gguf,
    hf_names: NameTables::own(&[names::PRE_NORM]),
    gguf_names: NameTables::own(&[names::GGUF]),
};

const DEFAULTS: Defaults = Defaults {
    head_dim: Some(128),
    ..qwen2::DEFAULTS
};

pub(super) fn describe_hf(config: &JsonFields) -> Result<ModelDescription> {
    let mut model = describe(config, &DEFAULTS)?;
    let bias = config.bool("attention_bias")?.unwrap_or(false);
    for layer in &mut model.layers {
        (layer.mixer.qkv_bias, layer.mixer.o_bias) = (bias, bias);
        layer.mixer.qk_norm = Some(QkNorm::Heads);
    }
    qwen2::apply_window(config, &mut model)?;
    Ok(model)
}

fn describe_gguf(config: &GgufConfig) -> Result<ModelDescription> {
    config.describe(RopeStyle::Neox)
}
