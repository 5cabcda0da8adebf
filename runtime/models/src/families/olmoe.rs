//! OLMoE: experts in every layer, norms over all heads of q and of k together. Sources: `configuration_olmoe.py`,
//! `modeling_olmoe.py` of transformers; llama.cpp's `LLM_ARCH_OLMOE`.

use halyard_platform_api::ops::RopeStyle;

use super::{Family, mixtral, names, qwen3_moe};
use crate::config::gguf::GgufConfig;
use crate::config::huggingface::{Defaults, describe};
use crate::config::{JsonFields, MlpDescription, ModelDescription, QkNorm};
use crate::error::Result;
use crate::weights::NameTables;

pub(super) static FAMILY: Family = Family {
    name: "olmoe",
    hf_architectures: &["OlmoeForCausalLM", "olmoe"],
    gguf_architectures: &["olmoe"],
    describe_hf,
    describe_gguf,
    hf_names: NameTables::own(&[qwen3_moe::EXPERTS, names::PRE_NORM]),
    gguf_names: NameTables::own(&[names::GGUF]),
};

const DEFAULTS: Defaults = Defaults {
    vocab_size: Some(50_304),
    num_heads: Some(16),
    max_position_embeddings: 4096,
    eps: 1e-5,
    ..Defaults::LLAMA
};

fn describe_hf(config: &JsonFields) -> Result<ModelDescription> {
    let mut model = describe(config, &DEFAULTS)?;
    if let Some(clip) = config.float("clip_qkv")? {
        let remedy = "queries, keys and values are not clipped here: serve a model without it";
        return Err(config.unsupported("clip_qkv", clip.to_string(), remedy));
    }
    let bias = config.bool("attention_bias")?.unwrap_or(false);
    let num_experts = config.unsigned("num_experts")?.unwrap_or(64);
    let top_k = config.unsigned("num_experts_per_tok")?.unwrap_or(8);
    route(
        &mut model,
        num_experts,
        top_k,
        config.bool("norm_topk_prob")?.unwrap_or(false),
    );
    for layer in &mut model.layers {
        (layer.mixer.qkv_bias, layer.mixer.o_bias) = (bias, bias);
    }
    Ok(model)
}

fn describe_gguf(config: &GgufConfig) -> Result<ModelDescription> {
    let mut model = config.describe(RopeStyle::Neox)?;
    let (num_experts, top_k) = (config.required("expert_count")?, config.required("expert_used_count")?);
    route(&mut model, num_experts, top_k, false);
    Ok(model)
}

fn route(model: &mut ModelDescription, num_experts: usize, top_k: usize, norm_topk: bool) {
    mixtral::route(model, num_experts, top_k);
    for layer in &mut model.layers {
        layer.mixer.qk_norm = Some(QkNorm::Whole);
        if let MlpDescription::Experts(experts) = &mut layer.mlp {
            experts.norm_topk = norm_topk;
        }
    }
}
