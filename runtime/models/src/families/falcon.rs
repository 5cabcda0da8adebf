//! Falcon 7B, 40B, 180B and Falcon 2: both parts of a layer over its input, q, k and v in one tensor KV head by KV
//! head, an MLP without a gate. Sources: `configuration_falcon.py`, `modeling_falcon.py` of transformers.

use super::{Family, names};
use crate::config::huggingface::{Defaults, describe};
use crate::config::{JsonFields, ModelDescription, NormKind, NormPlacement};
use crate::error::Result;
use crate::weights::MlpLinear::{Down, Up};
use crate::weights::{Linear, NameTables, NameTemplate, Norm, PackedOrder, PackedTensor, Part, Role};

/// One norm for both parts (7B), or one behind the other.
pub(super) static FAMILY: Family = Family {
    name: "falcon",
    hf_architectures: &["FalconForCausalLM", "falcon"],
    gguf_architectures: &[],
    describe_hf,
    describe_gguf: super::not_read,
    hf_names: NameTables {
        own: &[NAMES],
        packed: PACKED,
    },
    gguf_names: NameTables::own(&[names::GGUF]),
};

const PACKED: &[PackedTensor] = &[
    PackedTensor {
        name: "transformer.h.{l}.self_attention.query_key_value.weight",
        parts: names::QKV,
        order: PackedOrder::ByKvHead,
    },
    PackedTensor {
        name: "transformer.h.{l}.self_attention.query_key_value.bias",
        parts: names::QKV_BIASES,
        order: PackedOrder::ByKvHead,
    },
];

const NAMES: &[NameTemplate] = &[
    (Role::Embedding, "transformer.word_embeddings.weight"),
    (
        Role::norm(0, Norm::Attention),
        "transformer.h.{l}.input_layernorm.weight",
    ),
    (Role::norm(0, Norm::Attention), "transformer.h.{l}.ln_attn.weight"),
    (
        Role::Layer(0, Part::NormBias(Norm::Attention)),
        "transformer.h.{l}.input_layernorm.bias",
    ),
    (
        Role::Layer(0, Part::NormBias(Norm::Attention)),
        "transformer.h.{l}.ln_attn.bias",
    ),
    (
        Role::norm(0, Norm::Mlp),
        "transformer.h.{l}.post_attention_layernorm.weight",
    ),
    (Role::norm(0, Norm::Mlp), "transformer.h.{l}.ln_mlp.weight"),
    (
        Role::Layer(0, Part::NormBias(Norm::Mlp)),
        "transformer.h.{l}.post_attention_layernorm.bias",
    ),
    (
        Role::Layer(0, Part::NormBias(Norm::Mlp)),
        "transformer.h.{l}.ln_mlp.bias",
    ),
    (
        Role::weight(0, Linear::O),
        "transformer.h.{l}.self_attention.dense.weight",
    ),
    (Role::bias(0, Linear::O), "transformer.h.{l}.self_attention.dense.bias"),
    (
        Role::weight(0, Linear::Mlp(Up)),
        "transformer.h.{l}.mlp.dense_h_to_4h.weight",
    ),
    (
        Role::bias(0, Linear::Mlp(Up)),
        "transformer.h.{l}.mlp.dense_h_to_4h.bias",
    ),
    (
        Role::weight(0, Linear::Mlp(Down)),
        "transformer.h.{l}.mlp.dense_4h_to_h.weight",
    ),
    (
        Role::bias(0, Linear::Mlp(Down)),
        "transformer.h.{l}.mlp.dense_4h_to_h.bias",
    ),
    (Role::FinalNorm, "transformer.ln_f.weight"),
    (Role::FinalNormBias, "transformer.ln_f.bias"),
    (Role::LmHead, "lm_head.weight"),
];

const DEFAULTS: Defaults = Defaults {
    vocab_size: Some(65_024),
    num_heads: Some(71),
    tie_word_embeddings: true,
    activation_field: "activation",
    activation: "gelu",
    eps_field: "layer_norm_epsilon",
    eps: 1e-5,
    ..Defaults::LLAMA
};

fn describe_hf(config: &JsonFields) -> Result<ModelDescription> {
    if config.bool("alibi")?.unwrap_or(false) {
        let remedy = "positions by ALiBi are not here: serve a model with rope";
        return Err(config.unsupported("alibi", "true", remedy));
    }
    let is = |field: &str, default| Ok(config.bool(field)?.unwrap_or(default));
    let (is_new, one_kv_head) = (is("new_decoder_architecture", false)?, is("multi_query", true)?);
    let config = config.renamed(&[
        ("n_head", "num_attention_heads"),
        ("n_layer", "num_hidden_layers"),
        ("n_head_kv", "num_kv_heads"),
        ("ffn_hidden_size", "intermediate_size"),
    ]);
    let heads = config.unsigned("num_attention_heads")?.unwrap_or(71);
    let kv_heads = match (is_new, one_kv_head) {
        (true, _) => config.unsigned("num_kv_heads")?.unwrap_or(heads),
        (false, true) => 1,
        (false, false) => heads,
    };
    let hidden = config.required_unsigned("hidden_size")?;
    let inner = config
        .unsigned("intermediate_size")?
        .unwrap_or(hidden.saturating_mul(4));
    let fields = [("num_key_value_heads", kv_heads), ("intermediate_size", inner)];
    let fields = fields.map(|(key, value)| (key.to_owned(), value.into()));
    let config = config.with(&fields.into_iter().collect());
    let mut model = describe(&config, &DEFAULTS)?;
    let bias = config.bool("bias")?.unwrap_or(false);
    for layer in &mut model.layers {
        (layer.mixer.qkv_bias, layer.mixer.o_bias) = (bias, bias);
    }
    for mlp in model.dense_mlps() {
        (mlp.is_gated, mlp.bias) = (false, bias);
    }
    model.norm.kind = NormKind::Layer { bias: true };
    let norms = config.unsigned("num_ln_in_parallel_attn")?;
    let is_parallel = config.bool("parallel_attn")?.unwrap_or(true);
    model.norm.placement = match (is_new, is_parallel) {
        (true, _) if norms != Some(1) => NormPlacement::Parallel,
        (true, _) | (false, true) => NormPlacement::Shared,
        (false, false) => NormPlacement::Pre,
    };
    Ok(model)
}
