//! Qwen3-MoE: Qwen3 with experts in place of most MLPs. Sources: `configuration_qwen3_moe.py` and
//! `modeling_qwen3_moe.py` of transformers; llama.cpp's `LLM_ARCH_QWEN3MOE`.

use halyard_platform_api::ops::{RopeStyle, Scoring};
use serde_json::Value;

use super::{Family, names, qwen3};
use crate::config::gguf::GgufConfig;
use crate::config::{Activation, DenseMlp, ExpertsMlp, JsonFields, MlpDescription, ModelDescription};
use crate::error::Result;
use crate::weights::MlpLinear::{Down, Gate, Up};
use crate::weights::{Linear, NameTemplate, Role};

pub(super) static FAMILY: Family = Family {
    name: "qwen3_moe",
    hf_architectures: &["Qwen3MoeForCausalLM", "qwen3_moe"],
    gguf_architectures: &["qwen3moe"],
    describe_hf,
    describe_gguf,
    hf_names: &[NAMES, names::PRE_NORM],
    gguf_names: &[names::GGUF],
};

const NAMES: &[NameTemplate] = &[
    (Role::weight(0, Linear::Router), "model.layers.{l}.mlp.gate.weight"),
    (
        Role::weight(0, Linear::Expert(0, Gate)),
        "model.layers.{l}.mlp.experts.{e}.gate_proj.weight",
    ),
    (
        Role::weight(0, Linear::Expert(0, Up)),
        "model.layers.{l}.mlp.experts.{e}.up_proj.weight",
    ),
    (
        Role::weight(0, Linear::Expert(0, Down)),
        "model.layers.{l}.mlp.experts.{e}.down_proj.weight",
    ),
];

fn describe_hf(config: &JsonFields) -> Result<ModelDescription> {
    let mut model = qwen3::describe_hf(config)?;
    // One window for all layers, unlike Qwen3's.
    if config.bool("use_sliding_window")?.unwrap_or(false) {
        let window = match config.is_written("sliding_window") {
            true => config.unsigned("sliding_window")?,
            false => Some(4096),
        };
        model.layers.iter_mut().for_each(|layer| layer.mixer.window = window);
    }
    let or_default = |key: &str, default| Ok(config.unsigned(key)?.unwrap_or(default));
    // transformers 5 writes the second name.
    let num_experts = or_default("num_experts", or_default("num_local_experts", 128)?)?;
    let experts = ExpertsMlp {
        num_experts,
        top_k: or_default("num_experts_per_tok", 8)?,
        scoring: Scoring::Softmax,
        norm_topk: config.bool("norm_topk_prob")?.unwrap_or(false),
        intermediate_size: or_default("moe_intermediate_size", 768)?,
        activation: Activation::Silu,
    };
    let dense_layers = config.unsigned_list("mlp_only_layers")?.unwrap_or_default();
    let step = or_default("decoder_sparse_step", 1)?;
    if step == 0 {
        return Err(config.bad("decoder_sparse_step", &Value::from(step), "from 1"));
    }
    // Without experts every layer is dense.
    for (i, layer) in model.layers.iter_mut().enumerate() {
        if let MlpDescription::Dense(DenseMlp { activation, .. }) = layer.mlp
            && experts.num_experts > 0
            && (i + 1).is_multiple_of(step)
            && !dense_layers.contains(&i)
        {
            layer.mlp = MlpDescription::Experts(ExpertsMlp { activation, ..experts });
        }
    }
    Ok(model)
}

/// Every layer has experts, and their weights sum to 1 (`build_moe_ffn` with `norm_w`).
fn describe_gguf(config: &GgufConfig) -> Result<ModelDescription> {
    let mut model = config.describe(RopeStyle::Neox)?;
    let experts = ExpertsMlp {
        num_experts: config.required("expert_count")?,
        top_k: config.required("expert_used_count")?,
        scoring: Scoring::Softmax,
        norm_topk: true,
        intermediate_size: config.required("expert_feed_forward_length")?,
        activation: Activation::Silu,
    };
    for layer in &mut model.layers {
        layer.mlp = MlpDescription::Experts(experts);
    }
    Ok(model)
}
