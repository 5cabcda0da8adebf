//! OLMo 2 and 3: norms behind each part instead of before it, and over all heads of q and of k together; OLMo 3 has a
//! window on three layers of four. Sources: `modeling_olmo2.py`, `modeling_olmo3.py` of transformers; llama.cpp's
//! `LLM_ARCH_OLMO2`.

use halyard_platform_api::ops::RopeStyle;

use super::{Family, names};
use crate::config::gguf::GgufConfig;
use crate::config::huggingface::{Defaults, describe, rope_from, sliding_layers};
use crate::config::{JsonFields, ModelDescription, NormPlacement, QkNorm};
use crate::error::Result;
use crate::weights::{NameTables, NameTemplate, Norm, Role};

pub(super) static FAMILY: Family = Family {
    name: "olmo2",
    hf_architectures: &["Olmo2ForCausalLM", "Olmo3ForCausalLM", "olmo2", "olmo3"],
    gguf_architectures: &["olmo2"],
    describe_hf,
    describe_gguf,
    hf_names: NameTables::own(&[POST_NORM, names::PRE_NORM]),
    gguf_names: NameTables::own(&[names::GGUF]),
};

/// The norms of models that have them behind each part alone.
pub(super) const POST_NORM: &[NameTemplate] = &[
    (
        Role::norm(0, Norm::PostAttention),
        "model.layers.{l}.post_attention_layernorm.weight",
    ),
    (
        Role::norm(0, Norm::PostMlp),
        "model.layers.{l}.post_feedforward_layernorm.weight",
    ),
];

const DEFAULTS: Defaults = Defaults {
    vocab_size: Some(50_304),
    num_heads: Some(32),
    eps: 1e-5,
    ..Defaults::LLAMA
};
const OLMO3_THETA: f64 = 500_000.0;

fn describe_hf(config: &JsonFields) -> Result<ModelDescription> {
    let mut model = describe(config, &DEFAULTS)?;
    let bias = config.bool("attention_bias")?.unwrap_or(false);
    for layer in &mut model.layers {
        (layer.mixer.qkv_bias, layer.mixer.o_bias) = (bias, bias);
    }
    normalise(&mut model);
    if model.architecture.eq_ignore_ascii_case("olmo3") || model.architecture.starts_with("Olmo3") {
        slide(config, &mut model)?;
    }
    Ok(model)
}

/// Windowed layers keep the plain rope; what stretches it is for the full ones.
fn slide(config: &JsonFields, model: &mut ModelDescription) -> Result<()> {
    let sliding = sliding_layers(config, model.layers.len(), |layer| !(layer + 1).is_multiple_of(4))?;
    let window = config.unsigned("sliding_window")?.unwrap_or(4096);
    let by_layer = config.object("rope_parameters")?;
    let (full, local) = match &by_layer {
        Some(ropes) if ropes.value("full_attention").is_some() => {
            (ropes.object("full_attention")?, ropes.object("sliding_attention")?)
        }
        Some(_) => (by_layer, None),
        None => (config.object("rope_scaling")?, None),
    };
    let theta = match &full {
        Some(full) => full.float("rope_theta")?,
        None => None,
    };
    let theta = theta.or(config.float("rope_theta")?).unwrap_or(OLMO3_THETA);
    let (positions, head_dim) = (model.max_position_embeddings, model.layers[0].mixer.head_dim);
    model.ropes = vec![
        rope_from(full.as_ref(), theta, None, head_dim, positions)?,
        rope_from(local.as_ref(), theta, None, head_dim, positions)?,
    ];
    for (layer, slides) in model.layers.iter_mut().zip(sliding) {
        layer.mixer.window = slides.then_some(window);
        layer.mixer.rope = Some(usize::from(slides));
    }
    Ok(())
}

/// Files with windows (`attention.sliding_window`) are OLMo 3's.
fn describe_gguf(config: &GgufConfig) -> Result<ModelDescription> {
    let mut model = config.describe(RopeStyle::Neox)?;
    normalise(&mut model);
    if let Some(window) = config
        .unsigned("attention.sliding_window")?
        .filter(|&window| window > 0)
    {
        let num_layers = model.layers.len();
        let pattern = config.layer_pattern("attention.sliding_window_pattern", num_layers)?;
        let plain = crate::config::RopeDescription {
            scaling: crate::config::RopeScaling::None,
            ..model.ropes[0].clone()
        };
        model.ropes.push(plain);
        for (index, layer) in model.layers.iter_mut().enumerate() {
            let slides = pattern
                .as_ref()
                .map_or(!(index + 1).is_multiple_of(4), |pattern| pattern[index]);
            layer.mixer.window = slides.then_some(window);
            layer.mixer.rope = Some(usize::from(slides));
        }
    }
    Ok(model)
}

fn normalise(model: &mut ModelDescription) {
    model.norm.placement = NormPlacement::Post;
    for layer in &mut model.layers {
        layer.mixer.qk_norm = Some(QkNorm::Whole);
    }
}
