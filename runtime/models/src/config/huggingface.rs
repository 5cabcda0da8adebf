//! The fields that Hugging Face `config.json` files share, read into a description. What a family adds
//! or defaults differently stands in its own file. Defaults: transformers `configuration_*.py`.

use halyard_platform_api::DType;
use halyard_platform_api::ops::RopeStyle;
use serde_json::Value;

use super::description::{ModelDescription, NormDescription, NormKind, NormPlacement};
use super::fields::JsonFields;
use super::layer::{Activation, AttentionDescription, DenseMlp, LayerDescription, MlpDescription};
use super::limits;
use super::rope::{LongScaling, RopeDescription, RopeScaling, YarnScaling};
use crate::error::Result;

/// What a family's configuration class assumes for fields that a file leaves out. `None`: must be there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Defaults {
    pub vocab_size: Option<usize>,
    pub num_heads: Option<usize>,
    /// `None`: as many as query heads.
    pub num_kv_heads: Option<usize>,
    /// `None`: hidden_size / num_attention_heads.
    pub head_dim: Option<usize>,
    pub max_position_embeddings: usize,
    pub rope_theta: f64,
    pub tie_word_embeddings: bool,
    pub activation_field: &'static str,
    pub activation: &'static str,
    pub eps_field: &'static str,
    pub eps: f64,
    /// Part of a head that turns.
    pub partial_rotary_factor: f64,
}

impl Defaults {
    pub(crate) const LLAMA: Defaults = Defaults {
        vocab_size: None,
        num_heads: None,
        num_kv_heads: None,
        head_dim: None,
        max_position_embeddings: 2048,
        rope_theta: 10_000.0,
        tie_word_embeddings: false,
        activation_field: "hidden_act",
        activation: "silu",
        eps_field: "rms_norm_eps",
        eps: 1e-6,
        partial_rotary_factor: 1.0,
    };
}

/// Reads the common fields: pre-norm layers, full attention, one rope, no biases, as Llama has it.
pub(crate) fn describe(config: &JsonFields, defaults: &Defaults) -> Result<ModelDescription> {
    super::Quantization::read(config)?;
    let or_default = |key: &str, default: Option<usize>| match config.unsigned(key)? {
        Some(value) => Ok(value),
        None => default.ok_or_else(|| config.missing(key)),
    };
    let hidden_size = config.required_unsigned("hidden_size")?;
    let num_heads = or_default("num_attention_heads", defaults.num_heads)?;
    let derived_head_dim = || hidden_size.checked_div(num_heads).unwrap_or(0);
    let head_dim = config
        .unsigned("head_dim")?
        .or(defaults.head_dim)
        .unwrap_or_else(derived_head_dim);
    let num_layers = config.required_unsigned("num_hidden_layers")?;
    if num_layers > limits::LAYERS {
        let limit = format!("from 1 to {}", limits::LAYERS);
        return Err(config.bad("num_hidden_layers", &Value::from(num_layers), &limit));
    }
    let max_position_embeddings = or_default("max_position_embeddings", Some(defaults.max_position_embeddings))?;
    let rope = rope(config, defaults, head_dim, max_position_embeddings)?;
    let layer = LayerDescription {
        mixer: AttentionDescription {
            num_heads,
            num_kv_heads: or_default("num_key_value_heads", defaults.num_kv_heads.or(Some(num_heads)))?,
            head_dim,
            window: None,
            rope: Some(0),
            query_rope: None,
            qkv_bias: false,
            o_bias: false,
            qk_norm: None,
            sinks: false,
            scale: (head_dim as f64).powf(-0.5) as f32,
            logit_softcap: None,
            latent: None,
        },
        mlp: MlpDescription::Dense(DenseMlp {
            intermediate_size: config.required_unsigned("intermediate_size")?,
            activation: activation(config, defaults)?,
            is_gated: true,
            bias: false,
        }),
    };
    Ok(ModelDescription {
        architecture: architecture(config)?.unwrap_or_default().to_owned(),
        vocab_size: or_default("vocab_size", defaults.vocab_size)?,
        hidden_size,
        norm: NormDescription {
            kind: NormKind::Rms,
            eps: config.float(defaults.eps_field)?.unwrap_or(defaults.eps) as f32,
            weight_offset: 0.0,
            placement: NormPlacement::Pre,
        },
        layers: vec![layer; num_layers],
        ropes: vec![rope],
        interleaved_heads: false,
        embedding_scale: 1.0,
        residual_scale: 1.0,
        logit_scale: 1.0,
        final_logit_softcap: None,
        position_embedding: false,
        tie_word_embeddings: config
            .bool("tie_word_embeddings")?
            .unwrap_or(defaults.tie_word_embeddings),
        max_position_embeddings,
        bos_token_id: config.token_ids("bos_token_id")?.and_then(|ids| ids.first().copied()),
        eos_token_ids: config.token_ids("eos_token_id")?.unwrap_or_default(),
        checkpoint_dtype: checkpoint_dtype(config)?,
        kv_scales: Vec::new(),
        sorted: Vec::new(),
    })
}

/// The architecture that a configuration names: `architectures[0]`, else `model_type`.
pub(crate) fn architecture(config: &JsonFields) -> Result<Option<&str>> {
    let named = config
        .strings("architectures")?
        .and_then(|names| names.first().copied());
    Ok(match named {
        Some(name) => Some(name),
        None => config.string("model_type")?,
    })
}

fn checkpoint_dtype(config: &JsonFields) -> Result<Option<DType>> {
    let name = match config.string("dtype")? {
        Some(name) => Some(name),
        None => config.string("torch_dtype")?,
    };
    Ok(match name {
        Some("bfloat16") => Some(DType::BF16),
        Some("float16") => Some(DType::F16),
        Some("float32") => Some(DType::F32),
        _ => None,
    })
}

fn activation(config: &JsonFields, defaults: &Defaults) -> Result<Activation> {
    let field = defaults.activation_field;
    match config.string(field)?.unwrap_or(defaults.activation) {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => Ok(Activation::GeluTanh),
        "gelu" => Ok(Activation::GeluErf),
        "relu2" => Ok(Activation::ReluSquared),
        other => Err(config.unsupported(field, other, "known are silu, gelu, gelu_pytorch_tanh and relu2")),
    }
}

/// The rope of a model with one: `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling`.
fn rope(config: &JsonFields, defaults: &Defaults, head_dim: usize, positions: usize) -> Result<RopeDescription> {
    let theta = config.float("rope_theta")?.unwrap_or(defaults.rope_theta);
    let parameters = rope_parameters(config)?;
    // Phi-3 has it beside the object.
    const ORIGINAL: &str = "original_max_position_embeddings";
    let parameters = match (parameters, config.value(ORIGINAL)) {
        (Some(own), Some(original)) if !own.is_written(ORIGINAL) => {
            let beside = [(ORIGINAL.to_owned(), original.clone())];
            Some(own.with(&beside.into_iter().collect()))
        }
        (own, _) => own,
    };
    let partial = config.float("partial_rotary_factor")?;
    let partial = partial.unwrap_or(defaults.partial_rotary_factor);
    rope_from(parameters.as_ref(), theta, Some(partial), head_dim, positions)
}

/// The parameters of the rope that all layers have, or full ones.
pub(crate) fn rope_parameters(config: &JsonFields) -> Result<Option<JsonFields>> {
    Ok(match config.object("rope_scaling")? {
        Some(scaling) => Some(scaling),
        None => config
            .object("rope_parameters")?
            .filter(|p| p.value("full_attention").is_none()),
    })
}

/// A rope from its parameter object, if there is one.
pub(crate) fn rope_from(
    parameters: Option<&JsonFields>,
    default_theta: f64,
    partial: Option<f64>,
    head_dim: usize,
    positions: usize,
) -> Result<RopeDescription> {
    let mut rope = RopeDescription {
        theta: default_theta,
        rotary_dim: (head_dim as f64 * partial.unwrap_or(1.0)) as usize,
        style: RopeStyle::Neox,
        scaling: RopeScaling::None,
        position_scale: None,
    };
    if let Some(parameters) = parameters {
        rope.theta = parameters.float("rope_theta")?.unwrap_or(default_theta);
        let partial = parameters.float("partial_rotary_factor")?.or(partial).unwrap_or(1.0);
        rope.rotary_dim = (head_dim as f64 * partial) as usize;
        rope.scaling = scaling(parameters, positions)?;
    }
    Ok(rope)
}

fn scaling(parameters: &JsonFields, positions: usize) -> Result<RopeScaling> {
    let kind_field = if parameters.value("rope_type").is_some() {
        "rope_type"
    } else {
        "type"
    };
    let factor = || parameters.required_float("factor");
    let original = || {
        let value = parameters
            .unsigned("original_max_position_embeddings")?
            .unwrap_or(positions);
        match value {
            1..=limits::POSITIONS => Ok(value),
            _ => {
                let limit = format!("from 1 to {}", limits::POSITIONS);
                Err(parameters.bad("original_max_position_embeddings", &Value::from(value), &limit))
            }
        }
    };
    match parameters.string(kind_field)?.unwrap_or("default") {
        // Dynamic NTK changes nothing up to max_position_embeddings, and longer sequences are not taken.
        "default" | "dynamic" | "mrope" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: factor()? }),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor: factor()?,
            low_freq_factor: parameters.required_float("low_freq_factor")?,
            high_freq_factor: parameters.required_float("high_freq_factor")?,
            original_max_position_embeddings: original()?,
        }),
        "yarn" => {
            let factor = factor()?;
            Ok(RopeScaling::Yarn(YarnScaling {
                factor,
                beta_fast: parameters.float("beta_fast")?.unwrap_or(32.0),
                beta_slow: parameters.float("beta_slow")?.unwrap_or(1.0),
                original_max_position_embeddings: original()?,
                attention_factor: yarn_attention_factor(parameters, factor)?,
                truncate: parameters.bool("truncate")?.unwrap_or(true),
            }))
        }
        "longrope" | "su" => Ok(RopeScaling::Long(long_scaling(parameters, original()?, positions)?)),
        other => {
            let remedy = "known are default, linear, dynamic, llama3, yarn and longrope";
            Err(parameters.unsupported(kind_field, other, remedy))
        }
    }
}

/// `original_max_position_embeddings` stands beside `rope_scaling` in Phi-3's files, and [`describe`] has put it in.
fn long_scaling(parameters: &JsonFields, original: usize, positions: usize) -> Result<LongScaling> {
    let factors = |key: &str| -> Result<Vec<f32>> {
        let list = parameters.floats(key)?.ok_or_else(|| parameters.missing(key))?;
        Ok(list.into_iter().map(|factor| factor as f32).collect())
    };
    let extension = match parameters.float("factor")? {
        Some(factor) => factor,
        None => positions as f64 / original as f64,
    };
    let attention_factor = match parameters.float("attention_factor")? {
        Some(factor) => factor,
        None if extension <= 1.0 => 1.0,
        None => (1.0 + extension.ln() / (original as f64).ln()).sqrt(),
    };
    Ok(LongScaling {
        short_factors: factors("short_factor")?,
        long_factors: factors("long_factor")?,
        original_max_position_embeddings: original,
        attention_factor,
    })
}

fn yarn_attention_factor(parameters: &JsonFields, factor: f64) -> Result<f64> {
    if let Some(given) = parameters.float("attention_factor")? {
        return Ok(given);
    }
    let (mscale, all_dim) = (parameters.float("mscale")?, parameters.float("mscale_all_dim")?);
    Ok(match (mscale, all_dim) {
        (Some(m), Some(all)) if m != 0.0 && all != 0.0 => {
            YarnScaling::magnitude(factor, m) / YarnScaling::magnitude(factor, all)
        }
        _ => YarnScaling::default_attention_factor(factor),
    })
}

/// Which layers slide, from `layer_types` if it is written, else from `slides(layer index)`.
pub(crate) fn sliding_layers(
    config: &JsonFields,
    num_layers: usize,
    slides: impl Fn(usize) -> bool,
) -> Result<Vec<bool>> {
    let Some(types) = config.strings("layer_types")? else {
        return Ok((0..num_layers).map(slides).collect());
    };
    if types.len() != num_layers {
        let limit = format!("{num_layers} entries, one a layer");
        return Err(config.bad("layer_types", &Value::from(types), &limit));
    }
    let one = |name: &&str| match *name {
        "sliding_attention" => Ok(true),
        "full_attention" => Ok(false),
        other => Err(config.unsupported("layer_types", other, "known are full_attention and sliding_attention")),
    };
    types.iter().map(one).collect()
}

/// The positions that scaling reaches beyond `max_position_embeddings` (the rule of vLLM's
/// `_get_and_verify_max_len`: YaRN multiplies the original length, linear scaling the configured one).
pub(crate) fn extended_positions(rope: &RopeDescription, positions: usize) -> usize {
    let (original, factor) = match &rope.scaling {
        RopeScaling::Linear { factor } => (positions, *factor),
        RopeScaling::Yarn(yarn) => (yarn.original_max_position_embeddings, yarn.factor),
        _ => return positions,
    };
    // A factor below 1 is refused when the description is checked, by its own name.
    if factor >= 1.0 {
        (original as f64 * factor) as usize
    } else {
        positions
    }
}
