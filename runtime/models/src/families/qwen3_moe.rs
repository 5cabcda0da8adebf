//! Qwen3-MoE: Qwen3 with experts in place of most MLPs. Sources: `configuration_qwen3_moe.py` and
//! `modeling_qwen3_moe.py` of transformers; llama.cpp's `LLM_ARCH_QWEN3MOE`.

use halyard_platform_api::ops::RopeStyle;
use serde_json::Value;

use super::{Family, names, qwen3};
use crate::config::gguf::GgufConfig;
use crate::config::{DenseMlp, ExpertsMlp, JsonFields, MlpDescription, ModelDescription};
use crate::error::Result;
use crate::weights::MlpLinear::{Down, Gate, Up};
use crate::weights::{Linear, NameTables, NameTemplate, Role};

pub(super) static FAMILY: Family = Family {
    name: "qwen3_moe",
    hf_architectures: &["Qwen3MoeForCausalLM", "qwen3_moe"],
    gguf_architectures: &["qwen3moe"],
    describe_hf,
    describe_gguf,
    hf_names: NameTables::own(&[EXPERTS, names::PRE_NORM]),
    gguf_names: NameTables::own(&[names::GGUF]),
};

/// Router and experts as `mlp.gate` and `mlp.experts`.
pub(super) const EXPERTS: &[NameTemplate] = &[
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
    let experts = experts(config, [128, 8, 768])?;
    place(config, &mut model, experts)?;
    Ok(model)
}

/// The experts that a configuration describes; by default as many, as many a token, and as wide.
pub(super) fn experts(config: &JsonFields, [num_experts, top_k, width]: [usize; 3]) -> Result<ExpertsMlp> {
    let or_default = |key: &str, default| Ok(config.unsigned(key)?.unwrap_or(default));
    // transformers 5 writes the second name.
    let num_experts = or_default("num_experts", or_default("num_local_experts", num_experts)?)?;
    let top_k = or_default("num_experts_per_tok", top_k)?;
    Ok(ExpertsMlp {
        norm_topk: config.bool("norm_topk_prob")?.unwrap_or(false),
        ..ExpertsMlp::softmax(num_experts, top_k, or_default("moe_intermediate_size", width)?)
    })
}

/// Puts experts into the layers that have them: those at each `decoder_sparse_step` but `mlp_only_layers`; without
/// experts every layer is dense.
pub(super) fn place(config: &JsonFields, model: &mut ModelDescription, experts: ExpertsMlp) -> Result<()> {
    let dense_layers = config.unsigned_list("mlp_only_layers")?.unwrap_or_default();
    let step = config.unsigned("decoder_sparse_step")?.unwrap_or(1);
    if step == 0 {
        return Err(config.bad("decoder_sparse_step", &Value::from(step), "from 1"));
    }
    for (i, layer) in model.layers.iter_mut().enumerate() {
        if let MlpDescription::Dense(DenseMlp { activation, .. }) = layer.mlp
            && experts.num_experts > 0
            && (i + 1).is_multiple_of(step)
            && !dense_layers.contains(&i)
        {
            layer.mlp = MlpDescription::Experts(ExpertsMlp { activation, ..experts });
        }
    }
    Ok(())
}

/// Every layer has experts, and their weights sum to 1 (`build_moe_ffn` with `norm_w`).
fn describe_gguf(config: &GgufConfig) -> Result<ModelDescription> {
    let mut model = config.describe(RopeStyle::Neox)?;
    let (num_experts, top_k) = (config.required("expert_count")?, config.required("expert_used_count")?);
    let experts = ExpertsMlp {
        norm_topk: true,
        ..ExpertsMlp::softmax(num_experts, top_k, config.required("expert_feed_forward_length")?)
    };
    for layer in &mut model.layers {
        layer.mlp = MlpDescription::Experts(experts);
    }
    Ok(model)
}
