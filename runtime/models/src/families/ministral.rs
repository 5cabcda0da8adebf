//! Ministral 8B: Mistral with windows on some layers. Ministral 3: Mistral whose queries are scaled by position.
//! Sources: `configuration_ministral.py`, `modeling_ministral.py`, `modeling_ministral3.py` of transformers.

use super::{Family, names};
use crate::config::huggingface::{Defaults, describe, sliding_layers};
use crate::config::{JsonFields, ModelDescription, PositionScale, RopeDescription};
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

pub(super) static THIRD: Family = Family {
    name: "ministral3",
    hf_architectures: &["Ministral3ForCausalLM", "ministral3"],
    gguf_architectures: &[],
    describe_hf: describe_third,
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

/// Ministral3Config: full attention unless a window is written. The factor of queries is a rope of their own, as
/// a factor of cosines and sines is one of what they turn.
fn describe_third(config: &JsonFields) -> Result<ModelDescription> {
    let mut model = describe(config, &DEFAULTS)?;
    let window = config.unsigned("sliding_window")?;
    let parameters = config.object("rope_parameters")?;
    let beta = match &parameters {
        Some(parameters) => parameters.float("llama_4_scaling_beta")?.unwrap_or(0.0),
        None => 0.0,
    };
    let query_rope = (beta != 0.0).then_some(model.ropes.len());
    if let Some(parameters) = parameters.filter(|_| query_rope.is_some()) {
        let length = parameters.required_unsigned("original_max_position_embeddings")?;
        model.ropes.push(RopeDescription {
            position_scale: Some(PositionScale { beta, length }),
            ..model.ropes[0].clone()
        });
    }
    for layer in &mut model.layers {
        layer.mixer.window = window;
        layer.mixer.query_rope = query_rope;
    }
    Ok(model)
}
