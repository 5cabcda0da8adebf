//! The names of weights that families share. `{l}` stands for the layer, `{e}` for the expert.

use crate::weights::MlpLinear::{Down, Gate, Up};
use crate::weights::{Linear, NameTemplate, Norm, PackedOrder, PackedTensor, Part, Role};

/// Hugging Face's pre-norm decoders. A checkpoint may have another prefix in place of `model.`.
pub(super) const PRE_NORM: &[NameTemplate] = &[
    (Role::Embedding, "model.embed_tokens.weight"),
    (
        Role::norm(0, Norm::Attention),
        "model.layers.{l}.input_layernorm.weight",
    ),
    (Role::weight(0, Linear::Q), "model.layers.{l}.self_attn.q_proj.weight"),
    (Role::weight(0, Linear::K), "model.layers.{l}.self_attn.k_proj.weight"),
    (Role::weight(0, Linear::V), "model.layers.{l}.self_attn.v_proj.weight"),
    (Role::weight(0, Linear::O), "model.layers.{l}.self_attn.o_proj.weight"),
    (Role::bias(0, Linear::Q), "model.layers.{l}.self_attn.q_proj.bias"),
    (Role::bias(0, Linear::K), "model.layers.{l}.self_attn.k_proj.bias"),
    (Role::bias(0, Linear::V), "model.layers.{l}.self_attn.v_proj.bias"),
    (Role::bias(0, Linear::O), "model.layers.{l}.self_attn.o_proj.bias"),
    (Role::norm(0, Norm::Query), "model.layers.{l}.self_attn.q_norm.weight"),
    (Role::norm(0, Norm::Key), "model.layers.{l}.self_attn.k_norm.weight"),
    (
        Role::norm(0, Norm::Mlp),
        "model.layers.{l}.post_attention_layernorm.weight",
    ),
    (
        Role::weight(0, Linear::Mlp(Gate)),
        "model.layers.{l}.mlp.gate_proj.weight",
    ),
    (Role::weight(0, Linear::Mlp(Up)), "model.layers.{l}.mlp.up_proj.weight"),
    (
        Role::weight(0, Linear::Mlp(Down)),
        "model.layers.{l}.mlp.down_proj.weight",
    ),
    (Role::bias(0, Linear::Mlp(Gate)), "model.layers.{l}.mlp.gate_proj.bias"),
    (Role::bias(0, Linear::Mlp(Up)), "model.layers.{l}.mlp.up_proj.bias"),
    (Role::bias(0, Linear::Mlp(Down)), "model.layers.{l}.mlp.down_proj.bias"),
    (Role::FinalNorm, "model.norm.weight"),
    (Role::LmHead, "lm_head.weight"),
];

/// The biases of [`PRE_NORM`]'s norms, where they are LayerNorms.
pub(super) const NORM_BIASES: &[NameTemplate] = &[
    (
        Role::Layer(0, Part::NormBias(Norm::Attention)),
        "model.layers.{l}.input_layernorm.bias",
    ),
    (
        Role::Layer(0, Part::NormBias(Norm::Mlp)),
        "model.layers.{l}.post_attention_layernorm.bias",
    ),
    (Role::FinalNormBias, "model.norm.bias"),
];

/// Queries, keys and values.
pub(super) const QKV: &[Role] = &[
    Role::weight(0, Linear::Q),
    Role::weight(0, Linear::K),
    Role::weight(0, Linear::V),
];

/// Their biases.
pub(super) const QKV_BIASES: &[Role] = &[
    Role::bias(0, Linear::Q),
    Role::bias(0, Linear::K),
    Role::bias(0, Linear::V),
];

/// Gate and up of a dense MLP.
pub(super) const GATE_AND_UP: &[Role] = &[Role::weight(0, Linear::Mlp(Gate)), Role::weight(0, Linear::Mlp(Up))];

/// Them in Hugging Face's files.
pub(super) const GATE_UP: PackedTensor = PackedTensor {
    name: "model.layers.{l}.mlp.gate_up_proj.weight",
    parts: GATE_AND_UP,
    order: PackedOrder::Stacked,
};

/// GGUF files of every architecture: the tensor tables of llama.cpp's `llama-arch.cpp`. All experts of a layer are one
/// tensor.
pub(super) const GGUF: &[NameTemplate] = &[
    (Role::Embedding, "token_embd.weight"),
    (Role::norm(0, Norm::Attention), "blk.{l}.attn_norm.weight"),
    (Role::weight(0, Linear::Q), "blk.{l}.attn_q.weight"),
    (Role::weight(0, Linear::K), "blk.{l}.attn_k.weight"),
    (Role::weight(0, Linear::V), "blk.{l}.attn_v.weight"),
    (Role::weight(0, Linear::O), "blk.{l}.attn_output.weight"),
    (Role::bias(0, Linear::Q), "blk.{l}.attn_q.bias"),
    (Role::bias(0, Linear::K), "blk.{l}.attn_k.bias"),
    (Role::bias(0, Linear::V), "blk.{l}.attn_v.bias"),
    (Role::bias(0, Linear::O), "blk.{l}.attn_output.bias"),
    (Role::norm(0, Norm::Query), "blk.{l}.attn_q_norm.weight"),
    (Role::norm(0, Norm::Key), "blk.{l}.attn_k_norm.weight"),
    (Role::norm(0, Norm::PostAttention), "blk.{l}.post_attention_norm.weight"),
    (Role::norm(0, Norm::Mlp), "blk.{l}.ffn_norm.weight"),
    (Role::weight(0, Linear::Mlp(Gate)), "blk.{l}.ffn_gate.weight"),
    (Role::weight(0, Linear::Mlp(Up)), "blk.{l}.ffn_up.weight"),
    (Role::weight(0, Linear::Mlp(Down)), "blk.{l}.ffn_down.weight"),
    (Role::bias(0, Linear::Mlp(Gate)), "blk.{l}.ffn_gate.bias"),
    (Role::bias(0, Linear::Mlp(Up)), "blk.{l}.ffn_up.bias"),
    (Role::bias(0, Linear::Mlp(Down)), "blk.{l}.ffn_down.bias"),
    (Role::weight(0, Linear::Router), "blk.{l}.ffn_gate_inp.weight"),
    (Role::weight(0, Linear::Expert(0, Gate)), "blk.{l}.ffn_gate_exps.weight"),
    (Role::weight(0, Linear::Expert(0, Up)), "blk.{l}.ffn_up_exps.weight"),
    (Role::weight(0, Linear::Expert(0, Down)), "blk.{l}.ffn_down_exps.weight"),
    (Role::norm(0, Norm::PostMlp), "blk.{l}.post_ffw_norm.weight"),
    (
        Role::Layer(0, Part::NormBias(Norm::Attention)),
        "blk.{l}.attn_norm.bias",
    ),
    (Role::Layer(0, Part::NormBias(Norm::Mlp)), "blk.{l}.ffn_norm.bias"),
    (Role::weight(0, Linear::Shared(Gate)), "blk.{l}.ffn_gate_shexp.weight"),
    (Role::weight(0, Linear::Shared(Up)), "blk.{l}.ffn_up_shexp.weight"),
    (Role::weight(0, Linear::Shared(Down)), "blk.{l}.ffn_down_shexp.weight"),
    (
        Role::weight(0, Linear::SharedWeight),
        "blk.{l}.ffn_gate_inp_shexp.weight",
    ),
    (Role::bias(0, Linear::Router), "blk.{l}.ffn_gate_inp.bias"),
    (Role::bias(0, Linear::Expert(0, Gate)), "blk.{l}.ffn_gate_exps.bias"),
    (Role::bias(0, Linear::Expert(0, Up)), "blk.{l}.ffn_up_exps.bias"),
    (Role::bias(0, Linear::Expert(0, Down)), "blk.{l}.ffn_down_exps.bias"),
    (Role::Layer(0, Part::ChoiceBias), "blk.{l}.exp_probs_b.bias"),
    (Role::Layer(0, Part::Sinks), "blk.{l}.attn_sinks.weight"),
    (Role::norm(0, Norm::QueryHead(0)), "blk.{l}.attn_q_norm.weight"),
    (Role::norm(0, Norm::KeyHead(0)), "blk.{l}.attn_k_norm.weight"),
    (Role::FinalNorm, "output_norm.weight"),
    (Role::FinalNormBias, "output_norm.bias"),
    (Role::LmHead, "output.weight"),
];
