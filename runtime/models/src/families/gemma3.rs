//! Gemma 3, text part: sandwich norms with weights around 0, q/k norms, five sliding layers to one full
//! layer, two ropes, scaled embeddings, tied output. Sources: `configuration_gemma3.py`,
//! `modeling_gemma3.py` of transformers; llama.cpp's `LLM_ARCH_GEMMA3`.

use halyard_platform_api::ops::RopeStyle;

use super::gemma::scale_embeddings;
use super::{Family, names};
use crate::config::gguf::GgufConfig;
use crate::config::huggingface::{Defaults, architecture, describe, rope_from, sliding_layers};
use crate::config::{JsonFields, ModelDescription, NormPlacement, QkNorm, RopeDescription, RopeScaling};
use crate::error::Result;
use crate::weights::{NameTables, NameTemplate, Norm, Role};

pub(super) static FAMILY: Family = Family {
    name: "gemma3",
    hf_architectures: &[
        "Gemma3ForCausalLM",
        "Gemma3ForConditionalGeneration",
        "gemma3_text",
        "gemma3",
    ],
    gguf_architectures: &["gemma3"],
    describe_hf,
    describe_gguf,
    hf_names: NameTables::own(&[SANDWICH, names::PRE_NORM]),
    gguf_names: NameTables::own(&[names::GGUF]),
};

/// The norms of Gemma 2 and 3 that others do not have or call otherwise.
pub(super) const SANDWICH: &[NameTemplate] = &[
    (
        Role::norm(0, Norm::PostAttention),
        "model.layers.{l}.post_attention_layernorm.weight",
    ),
    (
        Role::norm(0, Norm::Mlp),
        "model.layers.{l}.pre_feedforward_layernorm.weight",
    ),
    (
        Role::norm(0, Norm::PostMlp),
        "model.layers.{l}.post_feedforward_layernorm.weight",
    ),
];

/// Gemma3TextConfig; published files leave most of these out.
const DEFAULTS: Defaults = Defaults {
    vocab_size: Some(262_208),
    num_heads: Some(8),
    num_kv_heads: Some(4),
    head_dim: Some(256),
    max_position_embeddings: 131_072,
    rope_theta: GLOBAL_THETA,
    tie_word_embeddings: true,
    activation_field: "hidden_activation",
    activation: "gelu_pytorch_tanh",
    ..Defaults::LLAMA
};
const GLOBAL_THETA: f64 = 1_000_000.0;
const LOCAL_THETA: f64 = 10_000.0;
/// Every sixth layer is a full one.
const PATTERN: usize = 6;
/// Layers of the 27B model, the one whose score factor is not head_dim^−½ (llama.cpp, `LLM_TYPE_27B`).
const LAYERS_OF_27B: usize = 62;

fn describe_hf(config: &JsonFields) -> Result<ModelDescription> {
    let text = config.object("text_config")?;
    let text = text.as_ref().unwrap_or(config);
    let mut model = describe(text, &DEFAULTS)?;
    model.architecture = architecture(config)?.unwrap_or_default().to_owned();
    if text.bool("use_bidirectional_attention")?.unwrap_or(false) {
        let remedy = "only causal models are served";
        return Err(text.unsupported("use_bidirectional_attention", "true", remedy));
    }
    let by_layer = text.object("rope_parameters")?;
    let (global, local) = match &by_layer {
        Some(ropes) => (ropes.object("full_attention")?, ropes.object("sliding_attention")?),
        None => (text.object("rope_scaling")?, None),
    };
    let positions = model.max_position_embeddings;
    let head_dim = model.layers.first().map_or(0, |layer| layer.mixer.head_dim);
    let global_theta = text.float("rope_theta")?.unwrap_or(GLOBAL_THETA);
    let local_theta = text.float("rope_local_base_freq")?.unwrap_or(LOCAL_THETA);
    model.ropes = vec![
        rope_from(global.as_ref(), global_theta, None, head_dim, positions)?,
        rope_from(local.as_ref(), local_theta, None, head_dim, positions)?,
    ];
    let pattern = text.unsigned("sliding_window_pattern")?.unwrap_or(PATTERN).max(1);
    let slides = |layer: usize| !(layer + 1).is_multiple_of(pattern);
    let sliding = sliding_layers(text, model.layers.len(), slides)?;
    apply_window(&mut model, &sliding, text.unsigned("sliding_window")?.unwrap_or(4096));
    let bias = text.bool("attention_bias")?.unwrap_or(false);
    let pre_attention = text.float("query_pre_attn_scalar")?.unwrap_or(256.0);
    let softcap = text.float("attn_logit_softcapping")?.map(|cap| cap as f32);
    for layer in &mut model.layers {
        (layer.mixer.qkv_bias, layer.mixer.o_bias) = (bias, bias);
        layer.mixer.scale = pre_attention.powf(-0.5) as f32;
        layer.mixer.logit_softcap = softcap;
    }
    model.final_logit_softcap = text.float("final_logit_softcapping")?.map(|cap| cap as f32);
    model.norm.weight_offset = 1.0;
    apply_shape(&mut model);
    if model.bos_token_id.is_none() {
        model.bos_token_id = config.token_ids("bos_token_id")?.and_then(|ids| ids.first().copied());
    }
    if model.eos_token_ids.is_empty() {
        model.eos_token_ids = config.token_ids("eos_token_id")?.unwrap_or_else(|| vec![1]);
    }
    Ok(model)
}

/// The converter has added the 1 of the norms to their weights, so their offset is 0 here.
fn describe_gguf(config: &GgufConfig) -> Result<ModelDescription> {
    let mut model = config.describe(RopeStyle::Neox)?;
    let num_layers = model.layers.len();
    let sliding = match config.layer_pattern("attention.sliding_window_pattern", num_layers)? {
        Some(pattern) => pattern,
        None => (1..=num_layers).map(|i| !i.is_multiple_of(PATTERN)).collect(),
    };
    if config.float("rope.freq_base")?.is_none() {
        model.ropes[0].theta = GLOBAL_THETA;
    }
    model.ropes.push(RopeDescription {
        theta: config.float("rope.freq_base_swa")?.unwrap_or(LOCAL_THETA),
        scaling: RopeScaling::None,
        ..model.ropes[0].clone()
    });
    let window = config.unsigned("attention.sliding_window")?.unwrap_or(1024);
    apply_window(&mut model, &sliding, window);
    if num_layers == LAYERS_OF_27B {
        for layer in &mut model.layers {
            let pre_attention = model.hidden_size as f64 / layer.mixer.num_heads.max(1) as f64;
            layer.mixer.scale = pre_attention.powf(-0.5) as f32;
        }
    }
    apply_shape(&mut model);
    Ok(model)
}

fn apply_window(model: &mut ModelDescription, sliding: &[bool], window: usize) {
    for (layer, &slides) in model.layers.iter_mut().zip(sliding) {
        layer.mixer.window = slides.then_some(window);
        layer.mixer.rope = Some(usize::from(slides));
    }
}

fn apply_shape(model: &mut ModelDescription) {
    model.norm.placement = NormPlacement::Sandwich;
    for layer in &mut model.layers {
        layer.mixer.qk_norm = Some(QkNorm::Heads);
    }
    scale_embeddings(model);
}
