//! gpt-oss: sinks, a window on every other layer, YaRN, biases everywhere, experts with a bounded silu whose gates and
//! ups stand in turn, in MXFP4 or plain. Sources: `configuration_gpt_oss.py`, `modeling_gpt_oss.py` of transformers;
//! llama.cpp's `LLM_ARCH_OPENAI_MOE`.

use halyard_platform_api::ops::RopeStyle;

use super::{Family, mixtral, names};
use crate::config::gguf::GgufConfig;
use crate::config::huggingface::{Defaults, describe, sliding_layers};
use crate::config::{Activation, JsonFields, MlpDescription, ModelDescription, RopeScaling, YarnScaling};
use crate::error::Result;
use crate::weights::MlpLinear::{Down, Gate, Up};
use crate::weights::{Linear, NameTables, NameTemplate, Norm, PackedOrder, PackedTensor, Part, Role};

pub(super) static FAMILY: Family = Family {
    name: "gpt_oss",
    hf_architectures: &["GptOssForCausalLM", "gpt_oss"],
    gguf_architectures: &["gpt-oss"],
    describe_hf,
    describe_gguf,
    hf_names: NameTables {
        own: &[NAMES, names::PRE_NORM],
        packed: PACKED,
    },
    gguf_names: NameTables::own(&[GGUF, names::GGUF]),
};

const NAMES: &[NameTemplate] = &[
    (Role::Layer(0, Part::Sinks), "model.layers.{l}.self_attn.sinks"),
    (Role::weight(0, Linear::Router), "model.layers.{l}.mlp.router.weight"),
    (Role::bias(0, Linear::Router), "model.layers.{l}.mlp.router.bias"),
    (
        Role::bias(0, Linear::Expert(0, Down)),
        "model.layers.{l}.mlp.experts.down_proj_bias",
    ),
];

/// The norm before the MLP is called as others call the one after attention.
const GGUF: &[NameTemplate] = &[
    (Role::norm(0, Norm::Mlp), "blk.{l}.post_attention_norm.weight"),
    (Role::Layer(0, Part::Sinks), "blk.{l}.attn_sinks.weight"),
];

const GATE_AND_UP: &[Role] = &[
    Role::weight(0, Linear::Expert(0, Gate)),
    Role::weight(0, Linear::Expert(0, Up)),
];
const DOWN: &[Role] = &[Role::weight(0, Linear::Expert(0, Down))];

const PACKED: &[PackedTensor] = &[
    PackedTensor {
        name: "model.layers.{l}.mlp.experts.gate_up_proj_blocks",
        parts: GATE_AND_UP,
        order: PackedOrder::Alternating,
    },
    PackedTensor {
        name: "model.layers.{l}.mlp.experts.gate_up_proj",
        parts: GATE_AND_UP,
        order: PackedOrder::AlternatingTransposed,
    },
    PackedTensor {
        name: "model.layers.{l}.mlp.experts.gate_up_proj_bias",
        parts: &[
            Role::bias(0, Linear::Expert(0, Gate)),
            Role::bias(0, Linear::Expert(0, Up)),
        ],
        order: PackedOrder::Alternating,
    },
    PackedTensor {
        name: "model.layers.{l}.mlp.experts.down_proj_blocks",
        parts: DOWN,
        order: PackedOrder::Stacked,
    },
    PackedTensor {
        name: "model.layers.{l}.mlp.experts.down_proj",
        parts: DOWN,
        order: PackedOrder::Transposed,
    },
];

const DEFAULTS: Defaults = Defaults {
    vocab_size: Some(201_088),
    num_heads: Some(64),
    num_kv_heads: Some(8),
    head_dim: Some(64),
    max_position_embeddings: 131_072,
    rope_theta: 150_000.0,
    eps: 1e-5,
    ..Defaults::LLAMA
};
const WINDOW: usize = 128;
const LIMIT: f64 = 7.0;
const ALPHA: f64 = 1.702;

fn describe_hf(config: &JsonFields) -> Result<ModelDescription> {
    let mut model = describe(config, &DEFAULTS)?;
    if !config.is_written("rope_scaling") && !config.is_written("rope_parameters") {
        // What the configuration class assumes then.
        model.ropes[0].scaling = RopeScaling::Yarn(YarnScaling {
            factor: 32.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original_max_position_embeddings: 4096,
            attention_factor: YarnScaling::default_attention_factor(32.0),
            truncate: false,
        });
    }
    let bias = config.bool("attention_bias")?.unwrap_or(true);
    let sliding = sliding_layers(config, model.layers.len(), |layer| layer.is_multiple_of(2))?;
    let window = config.unsigned("sliding_window")?.unwrap_or(WINDOW);
    for (layer, slides) in model.layers.iter_mut().zip(sliding) {
        (layer.mixer.qkv_bias, layer.mixer.o_bias) = (bias, bias);
        layer.mixer.window = slides.then_some(window);
    }
    let or_default = |key: &str, default| Ok(config.unsigned(key)?.unwrap_or(default));
    let top_k = or_default("num_experts_per_tok", or_default("experts_per_token", 4)?)?;
    let number = |key: &str, default| Ok(config.float(key)?.unwrap_or(default) as f32);
    let activation = Activation::BoundedSilu {
        limit: number("swiglu_limit", LIMIT)?,
        alpha: number("swiglu_alpha", ALPHA)?,
        up_offset: 1.0,
    };
    place(&mut model, or_default("num_local_experts", 128)?, top_k, activation);
    Ok(model)
}

/// The converter takes gates and ups apart.
fn describe_gguf(config: &GgufConfig) -> Result<ModelDescription> {
    let mut model = config.describe(RopeStyle::Neox)?;
    let window = config.unsigned("attention.sliding_window")?.unwrap_or(WINDOW);
    for (i, layer) in model.layers.iter_mut().enumerate() {
        (layer.mixer.qkv_bias, layer.mixer.o_bias) = (true, true);
        layer.mixer.window = i.is_multiple_of(2).then_some(window);
        // The name that this is read from is the norm before the MLP here.
        layer.mixer.qk_norm = None;
    }
    let activation = Activation::BoundedSilu {
        limit: LIMIT as f32,
        alpha: ALPHA as f32,
        up_offset: 1.0,
    };
    let (num_experts, top_k) = (config.required("expert_count")?, config.required("expert_used_count")?);
    place(&mut model, num_experts, top_k, activation);
    if let Some(width) = config.unsigned("expert_feed_forward_length")? {
        for layer in &mut model.layers {
            if let MlpDescription::Experts(experts) = &mut layer.mlp {
                experts.intermediate_size = width;
            }
        }
    }
    Ok(model)
}

/// Sinks in every layer, and experts. A softmax over the chosen ones' logits is that over all, divided by its sum over
/// the chosen.
fn place(model: &mut ModelDescription, num_experts: usize, top_k: usize, activation: Activation) {
    mixtral::route(model, num_experts, top_k);
    for layer in &mut model.layers {
        layer.mixer.sinks = true;
        if let MlpDescription::Experts(experts) = &mut layer.mlp {
            (experts.activation, experts.bias) = (activation, true);
        }
    }
}
