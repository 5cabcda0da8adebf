//! DeepSeek V2 and V3, and the names of their weights: latent attention, dense layers before layers with experts in
//! groups and shared experts. Sources: `modeling_deepseek_v2.py` and `modeling_deepseek_v3.py` of transformers;
//! llama.cpp's `LLM_ARCH_DEEPSEEK2`. What their files say of the model: `deepseek_hf`, `deepseek_gguf`.

use super::{Family, deepseek_gguf, deepseek_hf, glm4_moe, names, qwen3_moe};
use crate::weights::{Linear, NameTables, NameTemplate, Norm, PackedOrder, PackedTensor, Role};

pub(super) static SECOND: Family = Family {
    name: "deepseek_v2",
    hf_architectures: &["DeepseekV2ForCausalLM", "deepseek_v2"],
    gguf_architectures: &["deepseek2"],
    describe_hf: deepseek_hf::describe_v2,
    describe_gguf: deepseek_gguf::describe,
    hf_names: HF_NAMES,
    gguf_names: NameTables {
        own: &[GGUF, names::GGUF],
        packed: &[
            queries("blk.{l}.attn_q_b.weight"),
            queries("blk.{l}.attn_q.weight"),
            latents("blk.{l}.attn_kv_a_mqa.weight"),
            keys_and_values("blk.{l}.attn_kv_b.weight"),
        ],
    },
};

pub(super) static THIRD: Family = Family {
    name: "deepseek_v3",
    hf_architectures: &["DeepseekV3ForCausalLM", "deepseek_v3"],
    gguf_architectures: &[],
    describe_hf: deepseek_hf::describe_v3,
    describe_gguf: super::not_read,
    hf_names: HF_NAMES,
    gguf_names: NameTables::own(&[]),
};

const HF_NAMES: NameTables = NameTables {
    own: &[NAMES, glm4_moe::NAMES, qwen3_moe::EXPERTS, names::PRE_NORM],
    packed: &[
        queries("model.layers.{l}.self_attn.q_b_proj.weight"),
        queries("model.layers.{l}.self_attn.q_proj.weight"),
        latents("model.layers.{l}.self_attn.kv_a_proj_with_mqa.weight"),
        keys_and_values("model.layers.{l}.self_attn.kv_b_proj.weight"),
    ],
};

const NAMES: &[NameTemplate] = &[
    (
        Role::weight(0, Linear::QueryLow),
        "model.layers.{l}.self_attn.q_a_proj.weight",
    ),
    (
        Role::norm(0, Norm::QueryLow),
        "model.layers.{l}.self_attn.q_a_layernorm.weight",
    ),
    (
        Role::norm(0, Norm::Latent),
        "model.layers.{l}.self_attn.kv_a_layernorm.weight",
    ),
];

/// Converters since 2025 take kv_b apart as it is needed here; what older ones leave whole is in `packed`.
const GGUF: &[NameTemplate] = &[
    (Role::weight(0, Linear::QueryLow), "blk.{l}.attn_q_a.weight"),
    (Role::norm(0, Norm::QueryLow), "blk.{l}.attn_q_a_norm.weight"),
    (Role::norm(0, Norm::Latent), "blk.{l}.attn_kv_a_norm.weight"),
    (Role::weight(0, Linear::KeyUp), "blk.{l}.attn_k_b.weight"),
    (Role::weight(0, Linear::ValueUp), "blk.{l}.attn_v_b.weight"),
];

const fn queries(name: &'static str) -> PackedTensor {
    const PARTS: &[Role] = &[Role::weight(0, Linear::QueryNope), Role::weight(0, Linear::QueryRope)];
    PackedTensor {
        name,
        parts: PARTS,
        order: PackedOrder::ByHead,
    }
}

const fn latents(name: &'static str) -> PackedTensor {
    const PARTS: &[Role] = &[Role::weight(0, Linear::Latent), Role::weight(0, Linear::KeyRope)];
    PackedTensor {
        name,
        parts: PARTS,
        order: PackedOrder::Stacked,
    }
}

const fn keys_and_values(name: &'static str) -> PackedTensor {
    const PARTS: &[Role] = &[Role::weight(0, Linear::KeyUp), Role::weight(0, Linear::ValueUp)];
    PackedTensor {
        name,
        parts: PARTS,
        order: PackedOrder::ByHeadFirstTransposed,
    }
}
