//! Mixtral: Mistral with experts in place of every MLP. Sources: `configuration_mixtral.py`, `modeling_mixtral.py` of
//! transformers. GGUF files call it `llama` and have `expert_count`.

use super::{Family, names};
use crate::config::huggingface::{Defaults, describe};
use crate::config::{ExpertsMlp, JsonFields, MlpDescription, ModelDescription};
use crate::error::Result;
use crate::weights::MlpLinear::{Down, Gate, Up};
use crate::weights::{Linear, NameTables, NameTemplate, Role};

pub(super) static FAMILY: Family = Family {
    name: "mixtral",
    hf_architectures: &["MixtralForCausalLM", "mixtral"],
    gguf_architectures: &[],
    describe_hf,
    describe_gguf: super::not_read,
    hf_names: NameTables::own(&[NAMES, names::PRE_NORM]),
    gguf_names: NameTables::own(&[names::GGUF]),
};

const NAMES: &[NameTemplate] = &[
    (
        Role::weight(0, Linear::Router),
        "model.layers.{l}.block_sparse_moe.gate.weight",
    ),
    (
        Role::weight(0, Linear::Expert(0, Gate)),
        "model.layers.{l}.block_sparse_moe.experts.{e}.w1.weight",
    ),
    (
        Role::weight(0, Linear::Expert(0, Up)),
        "model.layers.{l}.block_sparse_moe.experts.{e}.w3.weight",
    ),
    (
        Role::weight(0, Linear::Expert(0, Down)),
        "model.layers.{l}.block_sparse_moe.experts.{e}.w2.weight",
    ),
];

const DEFAULTS: Defaults = Defaults {
    num_kv_heads: Some(8),
    max_position_embeddings: 131_072,
    rope_theta: 1_000_000.0,
    eps: 1e-5,
    ..Defaults::LLAMA
};

fn describe_hf(config: &JsonFields) -> Result<ModelDescription> {
    let mut model = describe(config, &DEFAULTS)?;
    let num_experts = config.unsigned("num_local_experts")?.unwrap_or(8);
    let top_k = config.unsigned("num_experts_per_tok")?.unwrap_or(2);
    let window = config.unsigned("sliding_window")?;
    model.layers.iter_mut().for_each(|layer| layer.mixer.window = window);
    route(&mut model, num_experts, top_k);
    Ok(model)
}

/// Every layer's MLP becomes one of `num_experts`; the chosen ones' weights sum to 1.
pub(super) fn route(model: &mut ModelDescription, num_experts: usize, top_k: usize) {
    for layer in &mut model.layers {
        if let MlpDescription::Dense(dense) = layer.mlp {
            layer.mlp = MlpDescription::Experts(ExpertsMlp {
                norm_topk: true,
                activation: dense.activation,
                ..ExpertsMlp::softmax(num_experts, top_k, dense.intermediate_size)
            });
        }
    }
}
