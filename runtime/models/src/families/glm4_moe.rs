//! GLM-4.5 to 4.7: GLM-4 with norms of q and k, halves as rope pairs, and DeepSeek V3's router: sigmoid scores, a bias
//! for choosing, groups. Sources: `configuration_glm4_moe.py`, `modeling_glm4_moe.py` of transformers.

use halyard_platform_api::ops::Scoring;

use super::deepseek_hf::shared_expert;
use super::{Family, names, qwen3_moe};
use crate::config::huggingface::{Defaults, describe};
use crate::config::{ExpertGroups, ExpertsMlp, JsonFields, MlpDescription, ModelDescription, QkNorm};
use crate::error::Result;
use crate::weights::MlpLinear::{Down, Gate, Up};
use crate::weights::{Linear, NameTables, NameTemplate, Part, Role};

pub(super) static FAMILY: Family = Family {
    name: "glm4_moe",
    hf_architectures: &["Glm4MoeForCausalLM", "glm4_moe"],
    gguf_architectures: &[],
    describe_hf,
    describe_gguf: super::not_read,
    hf_names: NameTables::own(&[NAMES, qwen3_moe::EXPERTS, names::PRE_NORM]),
    gguf_names: NameTables::own(&[names::GGUF]),
};

/// The bias for choosing, and the shared expert.
pub(super) const NAMES: &[NameTemplate] = &[
    (
        Role::Layer(0, Part::ChoiceBias),
        "model.layers.{l}.mlp.gate.e_score_correction_bias",
    ),
    (
        Role::weight(0, Linear::Shared(Gate)),
        "model.layers.{l}.mlp.shared_experts.gate_proj.weight",
    ),
    (
        Role::weight(0, Linear::Shared(Up)),
        "model.layers.{l}.mlp.shared_experts.up_proj.weight",
    ),
    (
        Role::weight(0, Linear::Shared(Down)),
        "model.layers.{l}.mlp.shared_experts.down_proj.weight",
    ),
];

const DEFAULTS: Defaults = Defaults {
    vocab_size: Some(151_552),
    num_heads: Some(96),
    num_kv_heads: Some(8),
    max_position_embeddings: 131_072,
    partial_rotary_factor: 0.5,
    eps: 1e-5,
    ..Defaults::LLAMA
};

/// Layers for drafts (`num_nextn_predict_layers`) stand behind the model's and are not read.
fn describe_hf(config: &JsonFields) -> Result<ModelDescription> {
    let mut model = describe(config, &DEFAULTS)?;
    let bias = config.bool("attention_bias")?.unwrap_or(false);
    let has_norms = config.bool("use_qk_norm")?.unwrap_or(false);
    for layer in &mut model.layers {
        layer.mixer.qkv_bias = bias;
        layer.mixer.qk_norm = has_norms.then_some(QkNorm::Heads);
    }
    let or_default = |key: &str, default| Ok(config.unsigned(key)?.unwrap_or(default));
    let width = or_default("moe_intermediate_size", 1408)?;
    let shared = or_default("n_shared_experts", 1)?;
    let experts = ExpertsMlp {
        scoring: Scoring::Sigmoid,
        norm_topk: config.bool("norm_topk_prob")?.unwrap_or(true),
        factor: config.float("routed_scaling_factor")?.unwrap_or(1.0) as f32,
        shared: shared_expert(shared, width),
        groups: groups(config)?,
        choice_bias: true,
        ..ExpertsMlp::softmax(
            or_default("n_routed_experts", 128)?,
            or_default("num_experts_per_tok", 8)?,
            width,
        )
    };
    let dense = or_default("first_k_dense_replace", 1)?;
    model
        .layers
        .iter_mut()
        .skip(dense)
        .for_each(|layer| layer.mlp = MlpDescription::Experts(experts));
    Ok(model)
}

/// `n_group` and `topk_group`, each group judged by its two best; `None` where all are taken.
fn groups(config: &JsonFields) -> Result<Option<ExpertGroups>> {
    let num_groups = config.unsigned("n_group")?.unwrap_or(1);
    let top_groups = config.unsigned("topk_group")?.unwrap_or(1);
    let groups = ExpertGroups {
        num_groups,
        top_groups,
        best: 2,
    };
    Ok((num_groups > 1 || top_groups != 1).then_some(groups))
}
