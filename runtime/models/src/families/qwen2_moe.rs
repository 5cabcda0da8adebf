//! Qwen1.5-MoE and Qwen2-MoE: Qwen2 with experts, one more for every token, weighed by its own sigmoid. Sources:
//! `configuration_qwen2_moe.py`, `modeling_qwen2_moe.py` of transformers; llama.cpp's `LLM_ARCH_QWEN2MOE`.

use halyard_platform_api::ops::RopeStyle;

use super::{Family, mixtral, names, qwen2, qwen3_moe};
use crate::config::gguf::GgufConfig;
use crate::config::huggingface::describe;
use crate::config::{ExpertsMlp, JsonFields, MlpDescription, ModelDescription, SharedExpert};
use crate::error::Result;
use crate::weights::MlpLinear::{Down, Gate, Up};
use crate::weights::{Linear, NameTables, NameTemplate, Role};

pub(super) static FAMILY: Family = Family {
    name: "qwen2_moe",
    hf_architectures: &["Qwen2MoeForCausalLM", "qwen2_moe"],
    gguf_architectures: &["qwen2moe"],
    describe_hf,
    describe_gguf,
    hf_names: NameTables::own(&[NAMES, qwen3_moe::EXPERTS, names::PRE_NORM]),
    gguf_names: NameTables::own(&[names::GGUF]),
};

const NAMES: &[NameTemplate] = &[
    (
        Role::weight(0, Linear::Shared(Gate)),
        "model.layers.{l}.mlp.shared_expert.gate_proj.weight",
    ),
    (
        Role::weight(0, Linear::Shared(Up)),
        "model.layers.{l}.mlp.shared_expert.up_proj.weight",
    ),
    (
        Role::weight(0, Linear::Shared(Down)),
        "model.layers.{l}.mlp.shared_expert.down_proj.weight",
    ),
    (
        Role::weight(0, Linear::SharedWeight),
        "model.layers.{l}.mlp.shared_expert_gate.weight",
    ),
];

fn describe_hf(config: &JsonFields) -> Result<ModelDescription> {
    let mut model = describe(config, &qwen2::DEFAULTS)?;
    let bias = config.bool("qkv_bias")?.unwrap_or(true);
    model.layers.iter_mut().for_each(|layer| layer.mixer.qkv_bias = bias);
    qwen2::apply_window(config, &mut model)?;
    let or_default = |key: &str, default| Ok(config.unsigned(key)?.unwrap_or(default));
    let experts = ExpertsMlp {
        shared: Some(SharedExpert {
            intermediate_size: or_default("shared_expert_intermediate_size", 5632)?,
            is_weighted: true,
        }),
        ..qwen3_moe::experts(config, [60, 4, 1408])?
    };
    qwen3_moe::place(config, &mut model, experts)?;
    Ok(model)
}

/// Every layer has experts.
fn describe_gguf(config: &GgufConfig) -> Result<ModelDescription> {
    let mut model = config.describe(RopeStyle::Neox)?;
    let width = config.required("expert_feed_forward_length")?;
    let shared = config.required("expert_shared_feed_forward_length")?;
    let (num_experts, top_k) = (config.required("expert_count")?, config.required("expert_used_count")?);
    mixtral::route(&mut model, num_experts, top_k);
    for layer in &mut model.layers {
        if let MlpDescription::Experts(experts) = &mut layer.mlp {
            (experts.norm_topk, experts.intermediate_size) = (false, width);
            experts.shared = Some(SharedExpert {
                intermediate_size: shared,
                is_weighted: true,
            });
        }
    }
    Ok(model)
}
