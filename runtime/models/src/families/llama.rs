//! Llama 1 to 3, Mistral, SmolLM2 and everything else that calls itself Llama: pre-norm, gated silu. GGUF files call
//! Mixtral so, too.

use halyard_platform_api::ops::RopeStyle;

use super::{Family, mixtral, names};
use crate::config::gguf::GgufConfig;
use crate::config::huggingface::{Defaults, describe, extended_positions};
use crate::config::{JsonFields, ModelDescription};
use crate::error::Result;
use crate::weights::NameTables;

pub(super) static FAMILY: Family = Family {
    name: "llama",
    hf_architectures: &["LlamaForCausalLM", "MistralForCausalLM", "llama", "mistral"],
    gguf_architectures: &["llama"],
    describe_hf,
    describe_gguf,
    hf_names: NameTables::own(&[names::PRE_NORM]),
    gguf_names: NameTables::own(&[names::GGUF]),
};

/// MistralConfig: the one default in which it differs in shape, and a window that is there unless nulled.
const MISTRAL: Defaults = Defaults {
    num_kv_heads: Some(8),
    max_position_embeddings: 131_072,
    ..Defaults::LLAMA
};
const MISTRAL_WINDOW: usize = 4096;

fn describe_hf(config: &JsonFields) -> Result<ModelDescription> {
    let is_mistral = config.string("model_type")? == Some("mistral");
    let mut model = describe(config, if is_mistral { &MISTRAL } else { &Defaults::LLAMA })?;
    if is_mistral {
        let written = config.is_written("sliding_window");
        let window = if written {
            config.unsigned("sliding_window")?
        } else {
            Some(MISTRAL_WINDOW)
        };
        for layer in &mut model.layers {
            layer.mixer.window = window;
        }
    } else {
        let bias = config.bool("attention_bias")?.unwrap_or(false);
        for layer in &mut model.layers {
            (layer.mixer.qkv_bias, layer.mixer.o_bias) = (bias, bias);
        }
        let bias = config.bool("mlp_bias")?.unwrap_or(false);
        model.dense_mlps().for_each(|mlp| mlp.bias = bias);
    }
    model.max_position_embeddings = extended_positions(&model.ropes[0], model.max_position_embeddings);
    Ok(model)
}

/// llama.cpp's converter permutes the rows of q and k (and their biases) so that pairs stand side by
/// side. Interleaved rope on them gives the same scores, for every weight format and without copying
/// a row; the permutation is the same in q and k, so their products do not change. With `expert_count` it is Mixtral.
pub(super) fn describe_gguf(config: &GgufConfig) -> Result<ModelDescription> {
    let mut model = config.describe(RopeStyle::Interleaved)?;
    if let Some(num_experts) = config.unsigned("expert_count")?.filter(|&count| count > 0) {
        mixtral::route(&mut model, num_experts, config.required("expert_used_count")?);
    }
    Ok(model)
}
