//! Qwen2 and Qwen2.5: Llama with biases on q, k and v, and a window on the upper layers if switched on.

use halyard_platform_api::ops::RopeStyle;

use super::{Family, names};
use crate::config::gguf::GgufConfig;
use crate::config::huggingface::{Defaults, describe, extended_positions, sliding_layers};
use crate::config::{JsonFields, ModelDescription};
use crate::error::Result;
use crate::weights::NameTables;

pub(super) static FAMILY: Family = Family {
    name: "qwen2",
    hf_architectures: &["Qwen2ForCausalLM", "qwen2"],
    gguf_architectures: &["qwen2"],
    describe_hf,
    describe_gguf,
    hf_names: NameTables::own(&[names::PRE_NORM]),
    gguf_names: NameTables::own(&[names::GGUF]),
};

pub(super) const DEFAULTS: Defaults = Defaults {
    max_position_embeddings: 32_768,
    ..Defaults::LLAMA
};

fn describe_hf(config: &JsonFields) -> Result<ModelDescription> {
    let mut model = describe(config, &DEFAULTS)?;
    for layer in &mut model.layers {
        layer.mixer.qkv_bias = true;
    }
    apply_window(config, &mut model)?;
    Ok(model)
}

fn describe_gguf(config: &GgufConfig) -> Result<ModelDescription> {
    config.describe(RopeStyle::Neox)
}

/// The window and context rules that Qwen2 and Qwen3 share.
pub(super) fn apply_window(config: &JsonFields, model: &mut ModelDescription) -> Result<()> {
    model.max_position_embeddings = extended_positions(&model.ropes[0], model.max_position_embeddings);
    if !config.bool("use_sliding_window")?.unwrap_or(false) {
        return Ok(());
    }
    let written = config.is_written("sliding_window");
    let window = if written {
        config.unsigned("sliding_window")?
    } else {
        Some(4096)
    };
    let first_sliding = config.unsigned("max_window_layers")?.unwrap_or(28);
    let sliding = sliding_layers(config, model.layers.len(), |layer| layer >= first_sliding)?;
    for (layer, slides) in model.layers.iter_mut().zip(sliding) {
        layer.mixer.window = if slides { window } else { None };
    }
    Ok(())
}
