//! Command-R and R+ (Cohere) and Command-R7B, A (Cohere 2): one LayerNorm for both parts of a layer, neighbours as rope
//! pairs, scaled logits; Cohere 2 has a window and rope on three layers of four, and neither on the fourth. Sources:
//! `modeling_cohere.py`, `modeling_cohere2.py` of transformers; llama.cpp's `LLM_ARCH_COMMAND_R`, `LLM_ARCH_COHERE2`.

use halyard_platform_api::ops::RopeStyle;

use super::{Family, names};
use crate::config::gguf::GgufConfig;
use crate::config::huggingface::{Defaults, describe, sliding_layers};
use crate::config::{JsonFields, ModelDescription, NormKind, NormPlacement, QkNorm};
use crate::error::Result;
use crate::weights::{NameTables, NameTemplate, Norm, Role};

pub(super) static FAMILY: Family = Family {
    name: "cohere",
    hf_architectures: &["CohereForCausalLM", "Cohere2ForCausalLM", "cohere", "cohere2"],
    gguf_architectures: &["command-r", "cohere2"],
    describe_hf,
    describe_gguf,
    hf_names: NameTables::own(&[HEAD_NORMS, names::PRE_NORM]),
    gguf_names: NameTables::own(&[names::GGUF]),
};

/// Command-R+: all heads' weights in one tensor.
const HEAD_NORMS: &[NameTemplate] = &[
    (
        Role::norm(0, Norm::QueryHead(0)),
        "model.layers.{l}.self_attn.q_norm.weight",
    ),
    (
        Role::norm(0, Norm::KeyHead(0)),
        "model.layers.{l}.self_attn.k_norm.weight",
    ),
];

const COHERE: Defaults = Defaults {
    vocab_size: Some(256_000),
    num_heads: Some(64),
    max_position_embeddings: 8192,
    rope_theta: 500_000.0,
    tie_word_embeddings: true,
    eps_field: "layer_norm_eps",
    eps: 1e-5,
    ..Defaults::LLAMA
};
const COHERE2: Defaults = Defaults {
    head_dim: Some(128),
    rope_theta: 10_000.0,
    ..COHERE
};
const LOGIT_SCALE: f64 = 0.0625;
const PATTERN: usize = 4;

fn describe_hf(config: &JsonFields) -> Result<ModelDescription> {
    let second = config.string("model_type")? == Some("cohere2");
    let mut model = describe(config, if second { &COHERE2 } else { &COHERE })?;
    let has_norms = config.bool("use_qk_norm")?.unwrap_or(false);
    let bias = config.bool("attention_bias")?.unwrap_or(false);
    for layer in &mut model.layers {
        (layer.mixer.qkv_bias, layer.mixer.o_bias) = (bias, bias);
        layer.mixer.qk_norm = has_norms.then_some(QkNorm::OwnWeights);
    }
    model.logit_scale = config.float("logit_scale")?.unwrap_or(LOGIT_SCALE) as f32;
    model.ropes[0].style = RopeStyle::Interleaved;
    share_norm(&mut model);
    if second {
        let pattern = config.unsigned("sliding_window_pattern")?.unwrap_or(PATTERN).max(1);
        let sliding = sliding_layers(config, model.layers.len(), |layer| !(layer + 1).is_multiple_of(pattern))?;
        slide(&mut model, &sliding, config.unsigned("sliding_window")?.unwrap_or(4096));
    }
    Ok(model)
}

fn describe_gguf(config: &GgufConfig) -> Result<ModelDescription> {
    let mut model = config.describe(RopeStyle::Interleaved)?;
    model.interleaved_heads = false;
    if let Some(eps) = config.float("attention.layer_norm_epsilon")? {
        model.norm.eps = eps as f32;
    }
    model.logit_scale = config.float("logit_scale")?.unwrap_or(LOGIT_SCALE) as f32;
    share_norm(&mut model);
    for layer in &mut model.layers {
        layer.mixer.qk_norm = layer.mixer.qk_norm.map(|_| QkNorm::OwnWeights);
    }
    if let Some(window) = config
        .unsigned("attention.sliding_window")?
        .filter(|&window| window > 0)
    {
        let sliding: Vec<bool> = (1..=model.layers.len()).map(|i| !i.is_multiple_of(PATTERN)).collect();
        slide(&mut model, &sliding, window);
    }
    Ok(model)
}

fn share_norm(model: &mut ModelDescription) {
    model.norm.kind = NormKind::Layer { bias: false };
    model.norm.placement = NormPlacement::Shared;
}

fn slide(model: &mut ModelDescription, sliding: &[bool], window: usize) {
    for (layer, &slides) in model.layers.iter_mut().zip(sliding) {
        layer.mixer.window = slides.then_some(window);
        layer.mixer.rope = slides.then_some(0);
    }
}
