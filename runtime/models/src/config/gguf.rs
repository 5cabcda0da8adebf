//! The metadata that GGUF files of all decoder architectures share, read into a description. Keys:
//! docs/gguf.md of ggml and llama.cpp's `llama-arch.cpp`.
//!
//! Biases, q/k norms and a separate output matrix are not stated by metadata: the tensor table is.

use halyard_platform_api::ops::RopeStyle;

use super::description::{ModelDescription, NormDescription, NormKind, NormPlacement};
use super::layer::{Activation, AttentionDescription, DenseMlp, LayerDescription, MlpDescription, QkNorm};
use super::limits::{self, bad};
use super::rope::{LongScaling, RopeDescription, RopeScaling, YarnScaling};
use crate::error::{ModelError, Result};
use crate::gguf::{GgufArray, GgufFile, GgufValue};

/// Tokens that end a turn, in the vocabularies of the known families. Files often name only one
/// end-of-sequence token, while generation_config.json of the same model lists both.
const END_OF_TURN_TOKENS: [&str; 3] = ["<|im_end|>", "<|eot_id|>", "<end_of_turn>"];

/// Metadata of one architecture: keys are `{arch}.{name}`.
pub(crate) struct GgufConfig<'a> {
    pub file: &'a GgufFile,
    pub arch: &'a str,
}

impl<'a> GgufConfig<'a> {
    /// The configuration of `file`, whose architecture is looked up.
    pub(crate) fn new(file: &'a GgufFile) -> Result<Self> {
        let Some(arch) = file.string("general.architecture")? else {
            return Err(ModelError::MissingField {
                path: file.path().to_path_buf(),
                field: "general.architecture".into(),
            });
        };
        Ok(Self { file, arch })
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    pub(crate) fn unsigned(&self, name: &str) -> Result<Option<usize>> {
        Ok(self
            .file
            .unsigned(&self.key(name))?
            .map(|n| usize::try_from(n).unwrap_or(usize::MAX)))
    }

    pub(crate) fn required(&self, name: &str) -> Result<usize> {
        self.unsigned(name)?.ok_or_else(|| ModelError::MissingField {
            path: self.file.path().to_path_buf(),
            field: self.key(name),
        })
    }

    pub(crate) fn float(&self, name: &str) -> Result<Option<f64>> {
        self.file.float(&self.key(name))
    }

    /// Per-layer flags at `name`: one bool a layer, or a period (every n-th layer is false). `None` if absent.
    pub(crate) fn layer_pattern(&self, name: &str, num_layers: usize) -> Result<Option<Vec<bool>>> {
        let key = self.key(name);
        let value = self.file.value(&key);
        if let Some(GgufValue::Array(GgufArray::Bool(flags))) = value {
            if flags.len() != num_layers {
                let limit = format!("{num_layers} entries, one a layer");
                return Err(bad(self.file.path(), &key, format!("{} entries", flags.len()), limit));
            }
            return Ok(Some(flags.clone()));
        }
        let Some(period) = self.file.unsigned(&key)? else {
            return Ok(None);
        };
        let limit = "from 1 up".to_owned();
        let period = usize::try_from(period).ok().filter(|&p| p > 0);
        let period = period.ok_or_else(|| bad(self.file.path(), &key, "0", limit))?;
        Ok(Some((1..=num_layers).map(|i| !i.is_multiple_of(period)).collect()))
    }

    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>> {
        let key = self.key(name);
        match self.file.value(&key) {
            None => Ok(None),
            Some(GgufValue::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(bad(self.file.path(), &key, "another type", "a bool".to_owned())),
        }
    }

    /// Reads the common keys: pre-norm layers, full attention, one rope, silu, as Llama has it.
    pub(crate) fn describe(&self, style: RopeStyle) -> Result<ModelDescription> {
        let hidden_size = self.required("embedding_length")?;
        let num_heads = self.required("attention.head_count")?;
        let head_dim = match self.unsigned("attention.key_length")? {
            Some(length) => length,
            None => hidden_size.checked_div(num_heads).unwrap_or(0),
        };
        if let Some(length) = self.unsigned("attention.value_length")?.filter(|&l| l != head_dim) {
            let limit = format!("{head_dim}, as attention.key_length");
            return Err(bad(
                self.file.path(),
                &self.key("attention.value_length"),
                length,
                limit,
            ));
        }
        self.describe_heads(style, head_dim)
    }

    /// As [`GgufConfig::describe`], with heads of so many values, whatever the file says.
    pub(crate) fn describe_heads(&self, style: RopeStyle, head_dim: usize) -> Result<ModelDescription> {
        let hidden_size = self.required("embedding_length")?;
        let num_heads = self.required("attention.head_count")?;
        let num_layers = self.required("block_count")?;
        if num_layers > limits::LAYERS {
            let limit = format!("from 1 to {}", limits::LAYERS);
            return Err(bad(self.file.path(), &self.key("block_count"), num_layers, limit));
        }
        let has = |name: &str| self.file.tensor(name).is_some();
        let layer = LayerDescription {
            mixer: AttentionDescription {
                num_heads,
                num_kv_heads: self.unsigned("attention.head_count_kv")?.unwrap_or(num_heads),
                head_dim,
                window: None,
                rope: Some(0),
                query_rope: None,
                qkv_bias: has("blk.0.attn_q.bias"),
                o_bias: has("blk.0.attn_output.bias"),
                qk_norm: has("blk.0.attn_q_norm.weight").then_some(QkNorm::Heads),
                sinks: false,
                scale: (head_dim as f64).powf(-0.5) as f32,
                logit_softcap: self.float("attn_logit_softcapping")?.map(|cap| cap as f32),
                latent: None,
            },
            mlp: MlpDescription::Dense(DenseMlp {
                intermediate_size: self.required("feed_forward_length")?,
                activation: Activation::Silu,
                is_gated: true,
                bias: has("blk.0.ffn_gate.bias"),
            }),
        };
        Ok(ModelDescription {
            architecture: self.arch.to_owned(),
            vocab_size: self.vocab_size()?,
            hidden_size,
            norm: NormDescription {
                kind: NormKind::Rms,
                eps: self.float("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-5) as f32,
                weight_offset: 0.0,
                placement: NormPlacement::Pre,
            },
            layers: vec![layer; num_layers],
            ropes: vec![self.rope(style, head_dim)?],
            interleaved_heads: style == RopeStyle::Interleaved,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            logit_scale: 1.0,
            position_embedding: false,
            final_logit_softcap: self.float("final_logit_softcapping")?.map(|cap| cap as f32),
            tie_word_embeddings: !has("output.weight"),
            max_position_embeddings: self.required("context_length")?,
            bos_token_id: self.token_id("tokenizer.ggml.bos_token_id")?,
            eos_token_ids: self.eos_token_ids()?,
            checkpoint_dtype: None,
            kv_scales: Vec::new(),
            sorted: Vec::new(),
        })
    }

    /// LayerNorms with biases.
    pub(crate) fn apply_layer_norm(&self, model: &mut ModelDescription) -> Result<()> {
        model.norm.kind = NormKind::Layer { bias: true };
        if let Some(eps) = self.float("attention.layer_norm_epsilon")? {
            model.norm.eps = eps as f32;
        }
        Ok(())
    }

    fn vocab_size(&self) -> Result<usize> {
        if let Some(size) = self.unsigned("vocab_size")? {
            return Ok(size);
        }
        match self.file.value("tokenizer.ggml.tokens") {
            Some(GgufValue::Array(tokens)) => Ok(tokens.len()),
            _ => self.required("vocab_size"),
        }
    }

    fn token_id(&self, key: &str) -> Result<Option<u32>> {
        let id = self.file.unsigned(key)?.and_then(|id| u32::try_from(id).ok());
        Ok(id.filter(|&id| id != u32::MAX))
    }

    fn eos_token_ids(&self) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
            ids.extend(self.token_id(&format!("tokenizer.ggml.{key}"))?);
        }
        let is_chat_model = self.file.value("tokenizer.chat_template").is_some();
        if let (true, Some(GgufValue::Array(GgufArray::String(tokens)))) =
            (is_chat_model, self.file.value("tokenizer.ggml.tokens"))
        {
            let ends_turn = |t: &&str| END_OF_TURN_TOKENS.contains(t);
            let found = tokens
                .iter()
                .map(String::as_str)
                .enumerate()
                .filter(|(_, t)| ends_turn(t));
            ids.extend(found.map(|(id, _)| id as u32));
        }
        let mut seen = std::collections::HashSet::new();
        ids.retain(|id| seen.insert(*id));
        Ok(ids)
    }

    fn rope(&self, style: RopeStyle, head_dim: usize) -> Result<RopeDescription> {
        Ok(RopeDescription {
            theta: self.float("rope.freq_base")?.unwrap_or(10_000.0),
            rotary_dim: self.unsigned("rope.dimension_count")?.unwrap_or(head_dim),
            style,
            scaling: self.scaling()?,
            position_scale: None,
        })
    }

    fn scaling(&self) -> Result<RopeScaling> {
        if let Some(factors) = self.rope_factors("rope_freqs.weight")? {
            return Ok(RopeScaling::Factors(factors));
        }
        let long = self.rope_factors("rope_factors_long.weight")?;
        if let (Some(long_factors), Some(short_factors)) = (long, self.rope_factors("rope_factors_short.weight")?) {
            let original = match self.unsigned("rope.scaling.original_context_length")? {
                Some(length) => length,
                None => self.required("context_length")?,
            };
            return Ok(RopeScaling::Long(LongScaling {
                short_factors,
                long_factors,
                original_max_position_embeddings: original.clamp(1, limits::POSITIONS),
                attention_factor: self.float("rope.scaling.attn_factor")?.unwrap_or(1.0),
            }));
        }
        let key = self.key("rope.scaling.type");
        let factor = self.float("rope.scaling.factor")?;
        let kind = self.file.string(&key)?;
        match (kind.unwrap_or(if factor.is_some() { "linear" } else { "none" }), factor) {
            ("none", _) => Ok(RopeScaling::None),
            ("linear", factor) => Ok(RopeScaling::Linear {
                factor: factor.unwrap_or(1.0),
            }),
            ("yarn", factor) => {
                let factor = factor.unwrap_or(1.0);
                let attention = self.float("rope.scaling.attn_factor")?.unwrap_or(1.0);
                let original = match self.unsigned("rope.scaling.original_context_length")? {
                    Some(length) => length,
                    None => self.required("context_length")?,
                };
                Ok(RopeScaling::Yarn(YarnScaling {
                    factor,
                    beta_fast: self.float("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                    beta_slow: self.float("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                    original_max_position_embeddings: original.clamp(1, limits::POSITIONS),
                    attention_factor: attention * YarnScaling::default_attention_factor(factor),
                    truncate: true,
                }))
            }
            (other, _) => Err(ModelError::Unsupported {
                path: self.file.path().to_path_buf(),
                field: key,
                value: other.to_owned(),
                remedy: "known are none, linear and yarn".into(),
            }),
        }
    }

    /// Divisors of frequencies: `rope_freqs.weight` is how converters store Llama 3's scaling.
    fn rope_factors(&self, name: &str) -> Result<Option<Vec<f32>>> {
        let Some(tensor) = self.file.tensor(name) else {
            return Ok(None);
        };
        if tensor.tensor_type.name() != "F32" {
            return Err(ModelError::UnsupportedFormat {
                path: self.file.path().to_path_buf(),
                tensor: name.into(),
                found: tensor.tensor_type.name().into(),
                supported: "F32",
            });
        }
        let words = self.file.tensor_bytes(tensor).chunks_exact(4);
        Ok(Some(
            words.map(|w| f32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect(),
        ))
    }
}
