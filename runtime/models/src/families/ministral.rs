//! Ministral 8B: Mistral with windows on some layers. Sources: `configuration_ministral.py`, `modeling_ministral.py` of
//! transformers.

use super::{Family, names};
use crate::config::huggingface::{Defaults, describe, sliding_layers};
use crate::config::{JsonFields, ModelDescription};
use crate::error::Result;
use crate::weights::NameTables;

pub(super) static FAMILY: Family = Family {
    name: "ministral",
    hf_architectures: &["MinistralForCausalLM", "ministral"],
    gguf_architectures: &[],
    describe_hf,
    describe_gguf: super::not_read,
    hf_names: NameTables::own(&[names::PRE_NORM]),
    gguf_names: NameTables::own(&[names::GGUF]),
};

const DEFAULTS: Defaults = Defaults {
    num_heads: Some(32),
    num_kv_heads: Some(8),
    max_position_embeddings: 131_072,
    ..Defaults::LLAMA
};

fn describe_hf(config: &JsonFields) -> Result<ModelDescription> {
    let mut model = describe(config, &DEFAULTS)?;
    let window = match config.is_written("sliding_window") {
        true => config.unsigned("sliding_window")?,
        false => Some(4096),
    };
    let sliding = sliding_layers(config, model.layers.len(), |_| window.is_some())?;
    for (layer, slides) in model.layers.iter_mut().zip(sliding) {
        layer.mixer.window = window.filter(|_| slides);
    }
    Ok(model)
}
