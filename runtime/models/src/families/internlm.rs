//! InternLM 2, 2.5 and 3: Llama under other names, with q, k and v packed KV head by KV head (2), or with biases (3).
//! Sources: `modeling_internlm2.py`, `modeling_internlm3.py` beside the published files; llama.cpp's
//! `LLM_ARCH_INTERNLM2` (whose converter unpacks them).

use halyard_platform_api::ops::RopeStyle;

use super::{Family, names};
use crate::config::gguf::GgufConfig;
use crate::config::huggingface::{Defaults, describe};
use crate::config::{JsonFields, ModelDescription};
use crate::error::Result;
use crate::weights::MlpLinear::{Down, Gate, Up};
use crate::weights::{Linear, NameTables, NameTemplate, Norm, PackedOrder, PackedTensor, Role};

pub(super) static SECOND: Family = Family {
    name: "internlm2",
    hf_architectures: &["InternLM2ForCausalLM", "internlm2"],
    gguf_architectures: &["internlm2"],
    describe_hf: describe_second,
    describe_gguf,
    hf_names: NameTables {
        own: &[NAMES],
        packed: &[
            PackedTensor {
                name: "model.layers.{l}.attention.wqkv.weight",
                parts: names::QKV,
                order: PackedOrder::ByKvHead,
            },
            PackedTensor {
                name: "model.layers.{l}.attention.wqkv.bias",
                parts: names::QKV_BIASES,
                order: PackedOrder::ByKvHead,
            },
        ],
    },
    gguf_names: NameTables::own(&[names::GGUF]),
};

pub(super) static THIRD: Family = Family {
    name: "internlm3",
    hf_architectures: &["InternLM3ForCausalLM", "internlm3"],
    gguf_architectures: &[],
    describe_hf: describe_third,
    describe_gguf: super::not_read,
    hf_names: NameTables::own(&[names::PRE_NORM]),
    gguf_names: NameTables::own(&[names::GGUF]),
};

const NAMES: &[NameTemplate] = &[
    (Role::Embedding, "model.tok_embeddings.weight"),
    (Role::norm(0, Norm::Attention), "model.layers.{l}.attention_norm.weight"),
    (Role::weight(0, Linear::O), "model.layers.{l}.attention.wo.weight"),
    (Role::bias(0, Linear::O), "model.layers.{l}.attention.wo.bias"),
    (Role::norm(0, Norm::Mlp), "model.layers.{l}.ffn_norm.weight"),
    (
        Role::weight(0, Linear::Mlp(Gate)),
        "model.layers.{l}.feed_forward.w1.weight",
    ),
    (
        Role::weight(0, Linear::Mlp(Up)),
        "model.layers.{l}.feed_forward.w3.weight",
    ),
    (
        Role::weight(0, Linear::Mlp(Down)),
        "model.layers.{l}.feed_forward.w2.weight",
    ),
    (Role::FinalNorm, "model.norm.weight"),
    (Role::LmHead, "output.weight"),
];

fn describe_second(config: &JsonFields) -> Result<ModelDescription> {
    let mut model = describe(config, &Defaults::LLAMA)?;
    let bias = config.bool("bias")?.unwrap_or(false);
    for layer in &mut model.layers {
        (layer.mixer.qkv_bias, layer.mixer.o_bias) = (bias, bias);
    }
    Ok(model)
}

fn describe_third(config: &JsonFields) -> Result<ModelDescription> {
    let mut model = describe(config, &Defaults::LLAMA)?;
    let bias = config.bool("bias")?.unwrap_or(false);
    let qkv_bias = config.bool("qkv_bias")?.unwrap_or(false);
    for layer in &mut model.layers {
        (layer.mixer.qkv_bias, layer.mixer.o_bias) = (qkv_bias, bias);
    }
    model.dense_mlps().for_each(|mlp| mlp.bias = bias);
    Ok(model)
}

fn describe_gguf(config: &GgufConfig) -> Result<ModelDescription> {
    config.describe(RopeStyle::Interleaved)
}
