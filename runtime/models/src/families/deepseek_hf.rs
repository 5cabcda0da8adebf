//! DeepSeek's `config.json`. V2's router takes a softmax, V3's sigmoids with a bias for choosing. Sources:
//! `configuration_deepseek_v2.py`, `modeling_deepseek_v2.py` and those of `deepseek_v3` of transformers.

use halyard_platform_api::ops::{RopeStyle, Scoring};

use crate::config::huggingface::{Defaults, describe, rope_parameters};
use crate::config::{
    ExpertGroups, ExpertsMlp, JsonFields, LatentDescription, MlpDescription, ModelDescription, RopeScaling,
    SharedExpert, YarnScaling,
};
use crate::error::Result;

const V2_DEFAULTS: Defaults = Defaults {
    vocab_size: Some(102_400),
    num_heads: Some(32),
    ..Defaults::LLAMA
};

const V3_DEFAULTS: Defaults = Defaults {
    vocab_size: Some(129_280),
    num_heads: Some(128),
    max_position_embeddings: 4096,
    ..Defaults::LLAMA
};

/// The eps of the norms inside attention in transformers, whatever the model's is.
const LATENT_NORM_EPS: f32 = 1e-6;

/// DeepSeek V2, V2-Lite, Coder-V2.
pub(super) fn describe_v2(config: &JsonFields) -> Result<ModelDescription> {
    let mut model = describe_latent(config, &V2_DEFAULTS)?;
    expect(config, "scoring_func", "softmax")?;
    if config.bool("norm_topk_prob")? == Some(true) {
        let remedy = "implementations differ on it for DeepSeek V2, whose checkpoints have false: set it to false";
        return Err(config.unsupported("norm_topk_prob", "true", remedy));
    }
    let groups = match config.string("topk_method")?.unwrap_or("greedy") {
        "greedy" => None,
        "group_limited_greedy" => Some(ExpertGroups {
            num_groups: config.required_unsigned("n_group")?,
            top_groups: config.required_unsigned("topk_group")?,
            best: 1,
        }),
        other => {
            let remedy = "known for DeepSeek V2 are greedy and group_limited_greedy";
            return Err(config.unsupported("topk_method", other, remedy));
        }
    };
    let experts = ExpertsMlp {
        factor: config.float("routed_scaling_factor")?.unwrap_or(1.0) as f32,
        groups,
        ..experts(config, [64, 2, 1407], None)?
    };
    place(config, &mut model, experts, 0)?;
    Ok(model)
}

/// DeepSeek V3 and R1. Layers for drafts (`num_nextn_predict_layers`) stand behind the model's and are not read.
pub(super) fn describe_v3(config: &JsonFields) -> Result<ModelDescription> {
    let mut model = describe_latent(config, &V3_DEFAULTS)?;
    expect(config, "scoring_func", "sigmoid")?;
    expect(config, "topk_method", "noaux_tc")?;
    let groups = ExpertGroups {
        num_groups: config.unsigned("n_group")?.unwrap_or(8),
        top_groups: config.unsigned("topk_group")?.unwrap_or(4),
        best: 2,
    };
    let experts = ExpertsMlp {
        scoring: Scoring::Sigmoid,
        norm_topk: config.bool("norm_topk_prob")?.unwrap_or(true),
        factor: config.float("routed_scaling_factor")?.unwrap_or(2.5) as f32,
        groups: (groups.num_groups != 1 || groups.top_groups != 1).then_some(groups),
        choice_bias: true,
        ..experts(config, [256, 1, 2048], Some(8))?
    };
    place(config, &mut model, experts, 3)?;
    Ok(model)
}

/// Refuses a field that says something else than the implementation that is followed.
fn expect(config: &JsonFields, field: &str, known: &str) -> Result<()> {
    match config.string(field)? {
        Some(other) if other != known => {
            Err(config.unsupported(field, other, &format!("known for this architecture is {known}")))
        }
        _ => Ok(()),
    }
}

/// A model with latent attention in every layer; the MLPs are dense still.
fn describe_latent(config: &JsonFields, defaults: &Defaults) -> Result<ModelDescription> {
    for field in ["attention_bias", "mlp_bias"] {
        if config.bool(field)? == Some(true) {
            return Err(config.unsupported(field, "true", "DeepSeek's linears have no biases here"));
        }
    }
    let mut model = describe(config, defaults)?;
    let or_default = |key: &str, default| Ok(config.unsigned(key)?.unwrap_or(default));
    // Written as null, it means that queries are made of the hidden state.
    let query_rank = match config.is_written("q_lora_rank") {
        true => config.unsigned("q_lora_rank")?,
        false => Some(1536),
    };
    let latent = LatentDescription {
        query_rank,
        latent_dim: or_default("kv_lora_rank", 512)?,
        nope_dim: or_default("qk_nope_head_dim", 128)?,
        rope_dim: or_default("qk_rope_head_dim", 64)?,
        norm_eps: LATENT_NORM_EPS,
    };
    let parameters = rope_parameters(config)?;
    let in_scores = match parameters
        .as_ref()
        .map(|p| (p.float("mscale_all_dim"), p.float("factor")))
    {
        Some((all_dim, factor)) if matches!(model.ropes[0].scaling, RopeScaling::Yarn(_)) => {
            YarnScaling::magnitude(factor?.unwrap_or(1.0), all_dim?.unwrap_or(0.0))
        }
        _ => 1.0,
    };
    let style = match config.bool("rope_interleave")?.unwrap_or(true) {
        true => RopeStyle::Interleaved,
        false => RopeStyle::Neox,
    };
    apply_latent(&mut model, latent, or_default("v_head_dim", 128)?, in_scores, style);
    Ok(model)
}

/// The experts but for their router; by default as many, shared ones, and as wide.
fn experts(config: &JsonFields, [count, shared, width]: [usize; 3], top_k: Option<usize>) -> Result<ExpertsMlp> {
    let or_default = |key: &str, default| Ok(config.unsigned(key)?.unwrap_or(default));
    let width = or_default("moe_intermediate_size", width)?;
    let shared = match config.is_written("n_shared_experts") {
        true => config.unsigned("n_shared_experts")?.unwrap_or(0),
        false => shared,
    };
    let top_k = match top_k {
        Some(default) => or_default("num_experts_per_tok", default)?,
        None => config.required_unsigned("num_experts_per_tok")?,
    };
    Ok(ExpertsMlp {
        shared: shared_expert(shared, width),
        ..ExpertsMlp::softmax(or_default("n_routed_experts", count)?, top_k, width)
    })
}

/// Gives the experts to all layers but the first ones.
fn place(config: &JsonFields, model: &mut ModelDescription, experts: ExpertsMlp, dense: usize) -> Result<()> {
    if let Some(other) = config.unsigned("moe_layer_freq")?.filter(|&frequency| frequency != 1) {
        return Err(config.unsupported("moe_layer_freq", other.to_string(), "known is 1"));
    }
    let dense = config.unsigned("first_k_dense_replace")?.unwrap_or(dense);
    let routed = model.layers.iter_mut().skip(dense);
    routed.for_each(|layer| layer.mlp = MlpDescription::Experts(experts));
    Ok(())
}

/// Gives latent attention to every layer. `in_scores` is YaRN's factor of queries and keys that is not in the rope.
pub(super) fn apply_latent(
    model: &mut ModelDescription,
    latent: LatentDescription,
    value_dim: usize,
    in_scores: f64,
    style: RopeStyle,
) {
    let head = latent.nope_dim.saturating_add(latent.rope_dim) as f64;
    for layer in &mut model.layers {
        layer.mixer.latent = Some(latent);
        (layer.mixer.num_kv_heads, layer.mixer.head_dim) = (1, value_dim);
        layer.mixer.scale = (head.powf(-0.5) * in_scores * in_scores) as f32;
    }
    (model.ropes[0].rotary_dim, model.ropes[0].style) = (latent.rope_dim, style);
}

/// So many shared experts as one.
pub(super) fn shared_expert(count: usize, width: usize) -> Option<SharedExpert> {
    (count > 0).then_some(SharedExpert {
        intermediate_size: width.saturating_mul(count),
        is_weighted: false,
    })
}
