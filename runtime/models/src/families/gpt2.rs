//! GPT-2: learned positions, LayerNorms, an MLP without a gate; matrices are stored transposed (`Conv1D`). Sources:
//! `configuration_gpt2.py`, `modeling_gpt2.py` of transformers.

use super::{Family, names};
use crate::config::huggingface::{Defaults, describe};
use crate::config::{JsonFields, ModelDescription, NormKind};
use crate::error::Result;
use crate::weights::MlpLinear::{Down, Up};
use crate::weights::{Linear, NameTables, NameTemplate, Norm, PackedOrder, PackedTensor, Part, Role};

pub(super) static FAMILY: Family = Family {
    name: "gpt2",
    hf_architectures: &["GPT2LMHeadModel", "gpt2"],
    gguf_architectures: &[],
    describe_hf,
    describe_gguf: super::not_read,
    hf_names: NameTables {
        own: &[NAMES],
        packed: &[
            PackedTensor {
                name: "transformer.h.{l}.attn.c_attn.weight",
                parts: names::QKV,
                order: PackedOrder::Transposed,
            },
            PackedTensor {
                name: "transformer.h.{l}.attn.c_attn.bias",
                parts: names::QKV_BIASES,
                order: PackedOrder::Stacked,
            },
            PackedTensor {
                name: "transformer.h.{l}.attn.c_proj.weight",
                parts: &[Role::weight(0, Linear::O)],
                order: PackedOrder::Transposed,
            },
            PackedTensor {
                name: "transformer.h.{l}.mlp.c_fc.weight",
                parts: &[Role::weight(0, Linear::Mlp(Up))],
                order: PackedOrder::Transposed,
            },
            PackedTensor {
                name: "transformer.h.{l}.mlp.c_proj.weight",
                parts: &[Role::weight(0, Linear::Mlp(Down))],
                order: PackedOrder::Transposed,
            },
        ],
    },
    gguf_names: NameTables::own(&[names::GGUF]),
};

const NAMES: &[NameTemplate] = &[
    (Role::Embedding, "transformer.wte.weight"),
    (Role::Positions, "transformer.wpe.weight"),
    (Role::norm(0, Norm::Attention), "transformer.h.{l}.ln_1.weight"),
    (
        Role::Layer(0, Part::NormBias(Norm::Attention)),
        "transformer.h.{l}.ln_1.bias",
    ),
    (Role::norm(0, Norm::Mlp), "transformer.h.{l}.ln_2.weight"),
    (Role::Layer(0, Part::NormBias(Norm::Mlp)), "transformer.h.{l}.ln_2.bias"),
    (Role::bias(0, Linear::O), "transformer.h.{l}.attn.c_proj.bias"),
    (Role::bias(0, Linear::Mlp(Up)), "transformer.h.{l}.mlp.c_fc.bias"),
    (Role::bias(0, Linear::Mlp(Down)), "transformer.h.{l}.mlp.c_proj.bias"),
    (Role::FinalNorm, "transformer.ln_f.weight"),
    (Role::FinalNormBias, "transformer.ln_f.bias"),
    (Role::LmHead, "lm_head.weight"),
];

const DEFAULTS: Defaults = Defaults {
    vocab_size: Some(50_257),
    num_heads: Some(12),
    max_position_embeddings: 1024,
    tie_word_embeddings: true,
    activation_field: "activation_function",
    activation: "gelu_new",
    eps_field: "layer_norm_epsilon",
    eps: 1e-5,
    ..Defaults::LLAMA
};

fn describe_hf(config: &JsonFields) -> Result<ModelDescription> {
    let hidden = config.unsigned("n_embd")?.unwrap_or(768);
    let config = config.renamed(&[
        ("n_embd", "hidden_size"),
        ("n_head", "num_attention_heads"),
        ("n_layer", "num_hidden_layers"),
        ("n_positions", "max_position_embeddings"),
        ("n_inner", "intermediate_size"),
    ]);
    let inner = match config.value("intermediate_size") {
        Some(_) => config.clone(),
        None => {
            let inner = ("intermediate_size".to_owned(), hidden.saturating_mul(4).into());
            config.clone().with(&[inner].into_iter().collect())
        }
    };
    let mut model = describe(&inner, &DEFAULTS)?;
    if config.bool("scale_attn_by_inverse_layer_idx")?.unwrap_or(false) {
        let remedy = "scores are scaled alike in all layers: serve a model without it";
        return Err(config.unsupported("scale_attn_by_inverse_layer_idx", "true", remedy));
    }
    let scaled = config.bool("scale_attn_weights")?.unwrap_or(true);
    for layer in &mut model.layers {
        (layer.mixer.qkv_bias, layer.mixer.o_bias) = (true, true);
        layer.mixer.rope = None;
        layer.mixer.scale = if scaled { layer.mixer.scale } else { 1.0 };
    }
    for mlp in model.dense_mlps() {
        (mlp.is_gated, mlp.bias) = (false, true);
    }
    model.ropes.clear();
    model.position_embedding = true;
    model.norm.kind = NormKind::Layer { bias: true };
    Ok(model)
}
