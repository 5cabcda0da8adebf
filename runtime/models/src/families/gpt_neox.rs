//! GPT-NeoX and Pythia: both parts of a layer over its input, each with a LayerNorm of its own; biases; an MLP without
//! a gate; a rope over a part of each head. Sources: `configuration_gpt_neox.py`, `modeling_gpt_neox.py` of
//! transformers.

use super::{Family, names};
use crate::config::huggingface::{Defaults, describe};
use crate::config::{JsonFields, ModelDescription, NormKind, NormPlacement};
use crate::error::Result;
use crate::weights::MlpLinear::{Down, Up};
use crate::weights::{Linear, NameTables, NameTemplate, Norm, PackedOrder, PackedTensor, Part, Role};

pub(super) static FAMILY: Family = Family {
    name: "gpt_neox",
    hf_architectures: &["GPTNeoXForCausalLM", "gpt_neox"],
    gguf_architectures: &[],
    describe_hf,
    describe_gguf: super::not_read,
    hf_names: NameTables {
        own: &[NAMES],
        packed: &[
            PackedTensor {
                name: "gpt_neox.layers.{l}.attention.query_key_value.weight",
                parts: names::QKV,
                order: PackedOrder::ByKvHead,
            },
            PackedTensor {
                name: "gpt_neox.layers.{l}.attention.query_key_value.bias",
                parts: names::QKV_BIASES,
                order: PackedOrder::ByKvHead,
            },
        ],
    },
    gguf_names: NameTables::own(&[names::GGUF]),
};

const NAMES: &[NameTemplate] = &[
    (Role::Embedding, "gpt_neox.embed_in.weight"),
    (
        Role::norm(0, Norm::Attention),
        "gpt_neox.layers.{l}.input_layernorm.weight",
    ),
    (
        Role::Layer(0, Part::NormBias(Norm::Attention)),
        "gpt_neox.layers.{l}.input_layernorm.bias",
    ),
    (
        Role::norm(0, Norm::Mlp),
        "gpt_neox.layers.{l}.post_attention_layernorm.weight",
    ),
    (
        Role::Layer(0, Part::NormBias(Norm::Mlp)),
        "gpt_neox.layers.{l}.post_attention_layernorm.bias",
    ),
    (Role::weight(0, Linear::O), "gpt_neox.layers.{l}.attention.dense.weight"),
    (Role::bias(0, Linear::O), "gpt_neox.layers.{l}.attention.dense.bias"),
    (
        Role::weight(0, Linear::Mlp(Up)),
        "gpt_neox.layers.{l}.mlp.dense_h_to_4h.weight",
    ),
    (
        Role::bias(0, Linear::Mlp(Up)),
        "gpt_neox.layers.{l}.mlp.dense_h_to_4h.bias",
    ),
    (
        Role::weight(0, Linear::Mlp(Down)),
        "gpt_neox.layers.{l}.mlp.dense_4h_to_h.weight",
    ),
    (
        Role::bias(0, Linear::Mlp(Down)),
        "gpt_neox.layers.{l}.mlp.dense_4h_to_h.bias",
    ),
    (Role::FinalNorm, "gpt_neox.final_layer_norm.weight"),
    (Role::FinalNormBias, "gpt_neox.final_layer_norm.bias"),
    (Role::LmHead, "embed_out.weight"),
];

const DEFAULTS: Defaults = Defaults {
    vocab_size: Some(50_432),
    num_heads: Some(64),
    activation: "gelu",
    partial_rotary_factor: 0.25,
    eps_field: "layer_norm_eps",
    eps: 1e-5,
    ..Defaults::LLAMA
};

fn describe_hf(config: &JsonFields) -> Result<ModelDescription> {
    let config = config.renamed(&[
        ("rotary_pct", "partial_rotary_factor"),
        ("rotary_emb_base", "rope_theta"),
    ]);
    let mut model = describe(&config, &DEFAULTS)?;
    let bias = config.bool("attention_bias")?.unwrap_or(true);
    for layer in &mut model.layers {
        (layer.mixer.qkv_bias, layer.mixer.o_bias) = (bias, bias);
    }
    for mlp in model.dense_mlps() {
        (mlp.is_gated, mlp.bias) = (false, true);
    }
    model.norm.kind = NormKind::Layer { bias: true };
    if config.bool("use_parallel_residual")?.unwrap_or(true) {
        model.norm.placement = NormPlacement::Parallel;
    }
    Ok(model)
}
