//! DeepSeek's GGUF files: `deepseek2`, of V2 and V3 alike. Source: llama.cpp's `LLM_ARCH_DEEPSEEK2`.

use halyard_platform_api::ops::{RopeStyle, Scoring};

use super::deepseek_hf::{apply_latent, shared_expert};
use crate::config::gguf::GgufConfig;
use crate::config::{
    ExpertGroups, ExpertsMlp, LatentDescription, MlpDescription, ModelDescription, RopeScaling, YarnScaling, bad,
};
use crate::error::Result;

/// Both versions; the router's scores tell them apart.
pub(super) fn describe(config: &GgufConfig) -> Result<ModelDescription> {
    let either = |new: &str, old: &str| match config.unsigned(new)? {
        Some(length) => Ok(length),
        None => config.required(old),
    };
    let head = either("attention.key_length_mla", "attention.key_length")?;
    let value_dim = either("attention.value_length_mla", "attention.value_length")?;
    let rope_dim = config.required("rope.dimension_count")?;
    let mut model = config.describe_heads(RopeStyle::Interleaved, value_dim)?;
    let latent = LatentDescription {
        query_rank: config.unsigned("attention.q_lora_rank")?.filter(|&rank| rank > 0),
        latent_dim: config.required("attention.kv_lora_rank")?,
        nope_dim: head.saturating_sub(rope_dim),
        rope_dim,
        norm_eps: model.norm.eps,
    };
    // Of DeepSeek's checkpoints, `mscale` is `mscale_all_dim`: nothing of it is in the rope.
    let mut in_scores = 1.0;
    if let RopeScaling::Yarn(yarn) = &mut model.ropes[0].scaling {
        let log_multiplier = config.float("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0);
        in_scores = YarnScaling::magnitude(yarn.factor, 10.0 * log_multiplier);
        yarn.attention_factor = config.float("rope.scaling.attn_factor")?.unwrap_or(1.0);
    }
    apply_latent(&mut model, latent, value_dim, in_scores, RopeStyle::Interleaved);
    model.interleaved_heads = false;

    let width = config.required("expert_feed_forward_length")?;
    let scoring = match config.unsigned("expert_gating_func")?.unwrap_or(1) {
        1 => Scoring::Softmax,
        2 => Scoring::Sigmoid,
        other => {
            let limit = "1 (softmax) or 2 (sigmoid)".to_owned();
            return Err(bad(config.file.path(), "deepseek2.expert_gating_func", other, limit));
        }
    };
    let num_groups = config.unsigned("expert_group_count")?.unwrap_or(1);
    let choice_bias = scoring == Scoring::Sigmoid;
    let experts = ExpertsMlp {
        scoring,
        norm_topk: config.flag("expert_weights_norm")?.unwrap_or(false),
        factor: config
            .float("expert_weights_scale")?
            .filter(|&scale| scale != 0.0)
            .unwrap_or(1.0) as f32,
        shared: shared_expert(config.unsigned("expert_shared_count")?.unwrap_or(0), width),
        groups: (num_groups > 1).then_some(ExpertGroups {
            num_groups,
            top_groups: config.unsigned("expert_group_used_count")?.unwrap_or(1),
            best: if choice_bias { 2 } else { 1 },
        }),
        choice_bias,
        ..ExpertsMlp::softmax(
            config.required("expert_count")?,
            config.required("expert_used_count")?,
            width,
        )
    };
    let dense = config.unsigned("leading_dense_block_count")?.unwrap_or(0);
    let routed = model.layers.iter_mut().skip(dense);
    routed.for_each(|layer| layer.mlp = MlpDescription::Experts(experts));
    Ok(model)
}
