//! Granite, GraniteMoE and GraniteMoEShared: Llama with factors of the embeddings, the scores, each part's result and
//! the logits. Sources: `configuration_granite.py`, `modeling_granite.py`, `modeling_granitemoe.py`,
//! `modeling_granitemoeshared.py` of transformers; llama.cpp's `LLM_ARCH_GRANITE`, `LLM_ARCH_GRANITE_MOE`.

use super::{Family, llama, mixtral, names};
use crate::config::gguf::GgufConfig;
use crate::config::huggingface::{Defaults, describe};
use crate::config::{JsonFields, MlpDescription, ModelDescription, SharedExpert};
use crate::error::Result;
use crate::weights::MlpLinear::{Down, Gate, Up};
use crate::weights::{Linear, NameTables, NameTemplate, PackedOrder, PackedTensor, Role};

pub(super) static DENSE: Family = Family {
    name: "granite",
    hf_architectures: &["GraniteForCausalLM", "granite"],
    gguf_architectures: &["granite"],
    describe_hf,
    describe_gguf,
    hf_names: NameTables::own(&[names::PRE_NORM]),
    gguf_names: NameTables::own(&[names::GGUF]),
};

pub(super) static EXPERTS: Family = Family {
    name: "granitemoe",
    hf_architectures: &[
        "GraniteMoeForCausalLM",
        "GraniteMoeSharedForCausalLM",
        "granitemoe",
        "granitemoeshared",
    ],
    gguf_architectures: &["granitemoe"],
    describe_hf: describe_experts,
    describe_gguf,
    hf_names: NameTables {
        own: &[NAMES, names::PRE_NORM],
        packed: &[
            PackedTensor {
                name: "model.layers.{l}.block_sparse_moe.input_linear.weight",
                parts: &[
                    Role::weight(0, Linear::Expert(0, Gate)),
                    Role::weight(0, Linear::Expert(0, Up)),
                ],
                order: PackedOrder::Stacked,
            },
            PackedTensor {
                name: "model.layers.{l}.shared_mlp.input_linear.weight",
                parts: &[
                    Role::weight(0, Linear::Shared(Gate)),
                    Role::weight(0, Linear::Shared(Up)),
                ],
                order: PackedOrder::Stacked,
            },
        ],
    },
    gguf_names: NameTables::own(&[names::GGUF]),
};

const NAMES: &[NameTemplate] = &[
    (
        Role::weight(0, Linear::Router),
        "model.layers.{l}.block_sparse_moe.router.layer.weight",
    ),
    (
        Role::weight(0, Linear::Expert(0, Down)),
        "model.layers.{l}.block_sparse_moe.output_linear.weight",
    ),
    (
        Role::weight(0, Linear::Shared(Down)),
        "model.layers.{l}.shared_mlp.output_linear.weight",
    ),
];

const DEFAULTS: Defaults = Defaults {
    vocab_size: Some(32_000),
    ..Defaults::LLAMA
};

fn describe_hf(config: &JsonFields) -> Result<ModelDescription> {
    let mut model = describe(config, &DEFAULTS)?;
    let factor = |field: &str| Ok(config.float(field)?.unwrap_or(1.0) as f32);
    let bias = config.bool("attention_bias")?.unwrap_or(false);
    let scale = factor("attention_multiplier")?;
    for layer in &mut model.layers {
        (layer.mixer.qkv_bias, layer.mixer.o_bias) = (bias, bias);
        layer.mixer.scale = scale;
    }
    let bias = config.bool("mlp_bias")?.unwrap_or(false);
    model.dense_mlps().for_each(|mlp| mlp.bias = bias);
    model.embedding_scale = factor("embedding_multiplier")?;
    model.residual_scale = factor("residual_multiplier")?;
    model.logit_scale = 1.0 / factor("logits_scaling")?;
    Ok(model)
}

/// A softmax over the chosen experts' logits is the softmax over all, divided by its sum over the chosen.
fn describe_experts(config: &JsonFields) -> Result<ModelDescription> {
    let mut model = describe_hf(config)?;
    let num_experts = config.unsigned("num_local_experts")?.unwrap_or(8);
    let top_k = config.unsigned("num_experts_per_tok")?.unwrap_or(2);
    let shared = config.unsigned("shared_intermediate_size")?.unwrap_or(0);
    mixtral::route(&mut model, num_experts, top_k);
    for layer in &mut model.layers {
        if let MlpDescription::Experts(experts) = &mut layer.mlp {
            experts.shared = (shared > 0).then_some(SharedExpert {
                intermediate_size: shared,
                is_weighted: false,
            });
        }
    }
    Ok(model)
}

/// With `expert_count` it is GraniteMoE; the converter permutes rows of q and k as Llama's does.
fn describe_gguf(config: &GgufConfig) -> Result<ModelDescription> {
    let mut model = llama::describe_gguf(config)?;
    let factor = |key: &str| Ok(config.float(key)?.filter(|&factor| factor != 0.0).map(|f| f as f32));
    if let Some(scale) = factor("attention.scale")? {
        model.layers.iter_mut().for_each(|layer| layer.mixer.scale = scale);
    }
    model.embedding_scale = factor("embedding_scale")?.unwrap_or(1.0);
    model.residual_scale = factor("residual_scale")?.unwrap_or(1.0);
    model.logit_scale = 1.0 / factor("logit_scale")?.unwrap_or(1.0);
    Ok(model)
}
