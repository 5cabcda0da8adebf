//! Gemma 2: Gemma with sandwich norms, a window on every other layer, and caps of scores and logits. Sources:
//! `configuration_gemma2.py`, `modeling_gemma2.py` of transformers; llama.cpp's `LLM_ARCH_GEMMA2`.

use halyard_platform_api::ops::RopeStyle;

use super::gemma::scale_embeddings;
use super::{Family, gemma, gemma3, names};
use crate::config::gguf::GgufConfig;
use crate::config::huggingface::{Defaults, describe, sliding_layers};
use crate::config::{JsonFields, ModelDescription, NormPlacement};
use crate::error::Result;
use crate::weights::NameTables;

pub(super) static FAMILY: Family = Family {
    name: "gemma2",
    hf_architectures: &["Gemma2ForCausalLM", "gemma2"],
    gguf_architectures: &["gemma2"],
    describe_hf,
    describe_gguf,
    hf_names: NameTables::own(&[gemma3::SANDWICH, names::PRE_NORM]),
    gguf_names: NameTables::own(&[names::GGUF]),
};

const DEFAULTS: Defaults = Defaults {
    num_heads: Some(8),
    num_kv_heads: Some(4),
    ..gemma::DEFAULTS
};
const WINDOW: usize = 4096;
/// Layers of the 27B model, the one whose score factor is not head_dim^−½ (llama.cpp, `LLM_TYPE_27B`).
const LAYERS_OF_27B: usize = 46;

fn describe_hf(config: &JsonFields) -> Result<ModelDescription> {
    let mut model = describe(config, &DEFAULTS)?;
    let bias = config.bool("attention_bias")?.unwrap_or(false);
    let sliding = sliding_layers(config, model.layers.len(), is_sliding)?;
    let window = config.unsigned("sliding_window")?.unwrap_or(WINDOW);
    let pre_attention = config.float("query_pre_attn_scalar")?.unwrap_or(256.0);
    let cap = |field: &str, default: f64| -> Result<Option<f32>> {
        Ok(match config.is_written(field) {
            true => config.float(field)?,
            false => Some(default),
        }
        .map(|cap| cap as f32))
    };
    let softcap = cap("attn_logit_softcapping", 50.0)?;
    model.final_logit_softcap = cap("final_logit_softcapping", 30.0)?;
    for (layer, slides) in model.layers.iter_mut().zip(sliding) {
        (layer.mixer.qkv_bias, layer.mixer.o_bias) = (bias, bias);
        layer.mixer.window = slides.then_some(window);
        layer.mixer.scale = pre_attention.powf(-0.5) as f32;
        layer.mixer.logit_softcap = softcap;
    }
    model.norm.weight_offset = 1.0;
    model.norm.placement = NormPlacement::Sandwich;
    scale_embeddings(&mut model);
    Ok(model)
}

/// The converter has added the 1 of the norms to their weights.
fn describe_gguf(config: &GgufConfig) -> Result<ModelDescription> {
    let mut model = config.describe(RopeStyle::Neox)?;
    let window = config.unsigned("attention.sliding_window")?.unwrap_or(WINDOW);
    let (hidden, num_layers) = (model.hidden_size, model.layers.len());
    for (index, layer) in model.layers.iter_mut().enumerate() {
        layer.mixer.window = is_sliding(index).then_some(window);
        layer.mixer.logit_softcap.get_or_insert(50.0);
        if num_layers == LAYERS_OF_27B {
            let pre_attention = hidden as f64 / layer.mixer.num_heads.max(1) as f64;
            layer.mixer.scale = pre_attention.powf(-0.5) as f32;
        }
    }
    model.final_logit_softcap.get_or_insert(30.0);
    model.norm.placement = NormPlacement::Sandwich;
    scale_embeddings(&mut model);
    Ok(model)
}

fn is_sliding(layer: usize) -> bool {
    layer.is_multiple_of(2)
}
