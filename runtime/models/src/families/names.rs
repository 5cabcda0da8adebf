//! The names of weights that families share. `{l}` stands for the layer, `{e}` for the expert.

use crate::weights::MlpLinear::{Down, Gate, Up};
use crate::weights::{Linear, NameTemplate, Norm, Role};

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
    (Role::FinalNorm, "output_norm.weight"),
    (Role::LmHead, "output.weight"),
];
