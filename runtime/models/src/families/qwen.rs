//! Qwen 1: Qwen2's layers under other names, q, k and v packed with a bias. Source: `modeling_qwen.py` beside the
//! published files; its dynamic NTK and log-n factors act past `seq_length` alone, and longer sequences are not taken.

use super::{Family, names};
use crate::config::huggingface::{Defaults, describe};
use crate::config::{JsonFields, ModelDescription};
use crate::error::Result;
use crate::weights::MlpLinear::{Down, Gate, Up};
use crate::weights::{Linear, NameTables, NameTemplate, Norm, PackedOrder, PackedTensor, Role};

pub(super) static FAMILY: Family = Family {
    name: "qwen",
    hf_architectures: &["QWenLMHeadModel", "qwen"],
    gguf_architectures: &[],
    describe_hf,
    describe_gguf: super::not_read,
    hf_names: NameTables {
        own: &[NAMES],
        packed: &[
            PackedTensor {
                name: "transformer.h.{l}.attn.c_attn.weight",
                parts: names::QKV,
                order: PackedOrder::Stacked,
            },
            PackedTensor {
                name: "transformer.h.{l}.attn.c_attn.bias",
                parts: names::QKV_BIASES,
                order: PackedOrder::Stacked,
            },
        ],
    },
    gguf_names: NameTables::own(&[names::GGUF]),
};

const NAMES: &[NameTemplate] = &[
    (Role::Embedding, "transformer.wte.weight"),
    (Role::norm(0, Norm::Attention), "transformer.h.{l}.ln_1.weight"),
    (Role::weight(0, Linear::O), "transformer.h.{l}.attn.c_proj.weight"),
    (Role::norm(0, Norm::Mlp), "transformer.h.{l}.ln_2.weight"),
    // The second matrix goes through silu.
    (Role::weight(0, Linear::Mlp(Gate)), "transformer.h.{l}.mlp.w2.weight"),
    (Role::weight(0, Linear::Mlp(Up)), "transformer.h.{l}.mlp.w1.weight"),
    (
        Role::weight(0, Linear::Mlp(Down)),
        "transformer.h.{l}.mlp.c_proj.weight",
    ),
    (Role::FinalNorm, "transformer.ln_f.weight"),
    (Role::LmHead, "lm_head.weight"),
];

const DEFAULTS: Defaults = Defaults {
    num_heads: Some(32),
    max_position_embeddings: 8192,
    eps_field: "layer_norm_epsilon",
    ..Defaults::LLAMA
};

/// `intermediate_size` counts gate and up together, and `seq_length` is what the model was trained with.
fn describe_hf(config: &JsonFields) -> Result<ModelDescription> {
    let config = config.renamed(&[
        ("seq_length", "max_position_embeddings"),
        ("kv_channels", "head_dim"),
        ("rotary_emb_base", "rope_theta"),
    ]);
    let half = (
        "intermediate_size".to_owned(),
        (config.required_unsigned("intermediate_size")? / 2).into(),
    );
    let config = config.with(&[half].into_iter().collect());
    let mut model = describe(&config, &DEFAULTS)?;
    model.layers.iter_mut().for_each(|layer| layer.mixer.qkv_bias = true);
    Ok(model)
}
