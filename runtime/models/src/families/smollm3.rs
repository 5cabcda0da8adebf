//! SmolLM3: Llama without rope in some layers. Sources: `configuration_smollm3.py`, `modeling_smollm3.py` of
//! transformers; llama.cpp's `LLM_ARCH_SMOLLM3`.

use serde_json::Value;

use super::{Family, llama, names};
use crate::config::gguf::GgufConfig;
use crate::config::huggingface::{Defaults, describe, sliding_layers};
use crate::config::{JsonFields, ModelDescription};
use crate::error::Result;
use crate::weights::NameTables;

pub(super) static FAMILY: Family = Family {
    name: "smollm3",
    hf_architectures: &["SmolLM3ForCausalLM", "smollm3"],
    gguf_architectures: &["smollm3"],
    describe_hf,
    describe_gguf,
    hf_names: NameTables::own(&[names::PRE_NORM]),
    gguf_names: NameTables::own(&[names::GGUF]),
};

const DEFAULTS: Defaults = Defaults {
    vocab_size: Some(128_256),
    num_heads: Some(16),
    num_kv_heads: Some(4),
    max_position_embeddings: 32_768,
    rope_theta: 2_000_000.0,
    tie_word_embeddings: true,
    ..Defaults::LLAMA
};
/// Every fourth layer has no rope.
const PATTERN: usize = 4;

fn describe_hf(config: &JsonFields) -> Result<ModelDescription> {
    let mut model = describe(config, &DEFAULTS)?;
    let bias = config.bool("attention_bias")?.unwrap_or(false);
    let num_layers = model.layers.len();
    let pattern = config.unsigned("no_rope_layer_interval")?.unwrap_or(PATTERN).max(1);
    let turns = config.unsigned_list("no_rope_layers")?;
    if let Some(list) = turns.as_ref().filter(|list| list.len() != num_layers) {
        let limit = format!("{num_layers} entries, one a layer");
        return Err(config.bad("no_rope_layers", &Value::from(list.clone()), &limit));
    }
    for (index, layer) in model.layers.iter_mut().enumerate() {
        (layer.mixer.qkv_bias, layer.mixer.o_bias) = (bias, bias);
        // The list says where rope is, in spite of its name.
        let turned = turns
            .as_ref()
            .map_or(!(index + 1).is_multiple_of(pattern), |list| list[index] != 0);
        layer.mixer.rope = turned.then_some(0);
    }
    let bias = config.bool("mlp_bias")?.unwrap_or(false);
    model.dense_mlps().for_each(|mlp| mlp.bias = bias);
    if config.bool("use_sliding_window")?.unwrap_or(false) {
        let window = config.unsigned("sliding_window")?;
        let sliding = sliding_layers(config, num_layers, |layer| !(layer + 1).is_multiple_of(pattern))?;
        for (layer, slides) in model.layers.iter_mut().zip(sliding) {
            layer.mixer.window = window.filter(|_| slides);
        }
    }
    Ok(model)
}

fn describe_gguf(config: &GgufConfig) -> Result<ModelDescription> {
    let mut model = llama::describe_gguf(config)?;
    for (index, layer) in model.layers.iter_mut().enumerate() {
        layer.mixer.rope = (!(index + 1).is_multiple_of(PATTERN)).then_some(0);
    }
    Ok(model)
}
