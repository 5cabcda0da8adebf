//! The description of a decoder-only transformer: numbers and choices, no code. A description that
//! exists has passed [`ModelDescription::check`], so that later code divides and indexes freely.

use std::path::Path;

use halyard_platform_api::DType;

use super::rope::RopeDescription;
use crate::error::{ModelError, Result};

/// Largest values that are taken for real. Above them a file is damaged, and sizes computed from it
/// could overflow or exhaust memory before anything else notices.
pub(crate) mod limits {
    /// Tokens of a vocabulary.
    pub const VOCAB_SIZE: usize = 1 << 22;
    /// Width of the residual stream and of the feed-forward layer.
    pub const WIDTH: usize = 1 << 20;
    /// Layers.
    pub const LAYERS: usize = 2048;
    /// Heads of a layer.
    pub const HEADS: usize = 8192;
    /// Values of a head.
    pub const HEAD_DIM: usize = 4096;
    /// Positions.
    pub const POSITIONS: usize = 1 << 27;
}

/// Where a layer's norms stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlacement {
    /// One before attention, one before the feed-forward part.
    Pre,
    /// Gemma: one before and one after each part; the one after comes before the residual addition.
    Sandwich,
}

/// The RMS norms of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormDescription {
    /// Added to the mean square.
    pub eps: f32,
    /// Added to the stored weight: 1 for Gemma's Hugging Face files; 0 elsewhere, in Gemma's GGUF files
    /// too (the converter has added it).
    pub weight_offset: f32,
    /// Where they stand.
    pub placement: NormPlacement,
}

/// The attention part of every layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionDescription {
    /// q, k and v projections have biases.
    pub qkv_bias: bool,
    /// The output projection has a bias.
    pub o_bias: bool,
    /// RMS norms over each head of q and k, before rope.
    pub qk_norm: bool,
    /// Factor of the scores.
    pub scale: f32,
    /// cap · tanh(score / cap), where given.
    pub logit_softcap: Option<f32>,
}

/// The nonlinearity of the feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x / (1 + e^−x).
    Silu,
    /// Gelu by its tanh approximation.
    GeluTanh,
}

/// The gated feed-forward part of every layer: down(activation(gate(x)) · up(x)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MlpDescription {
    /// Of the gate.
    pub activation: Activation,
    /// gate, up and down projections have biases.
    pub bias: bool,
}

/// What differs between layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerDescription {
    /// A query sees this many positions, itself included; `None`: all before it.
    pub window: Option<usize>,
    /// Index into [`ModelDescription::ropes`].
    pub rope: usize,
}

/// A decoder-only transformer.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelDescription {
    /// The name in the file (`LlamaForCausalLM`, or GGUF's `llama`).
    pub architecture: String,
    /// Rows of the embedding and of the logits.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Query heads of a layer.
    pub num_heads: usize,
    /// KV heads of a layer; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Values of a head.
    pub head_dim: usize,
    /// Width of the feed-forward part.
    pub intermediate_size: usize,
    /// Norms.
    pub norm: NormDescription,
    /// Attention.
    pub attention: AttentionDescription,
    /// Feed-forward.
    pub mlp: MlpDescription,
    /// One entry a layer.
    pub layers: Vec<LayerDescription>,
    /// The position embeddings in use: one, or one for full and one for sliding layers.
    pub ropes: Vec<RopeDescription>,
    /// Factor of the embeddings, not yet rounded to a dtype: see [`ModelDescription::embedding_scale_in`].
    pub embedding_scale: f32,
    /// cap · tanh(logit / cap), where given.
    pub final_logit_softcap: Option<f32>,
    /// The output projection is the embedding table.
    pub tie_word_embeddings: bool,
    /// Longest sequence in tokens, rope scaling included.
    pub max_position_embeddings: usize,
    /// Beginning-of-sequence token.
    pub bos_token_id: Option<u32>,
    /// Tokens that end a sequence, without duplicates.
    pub eos_token_ids: Vec<u32>,
    /// Float type that the checkpoint was made in, where the configuration says so.
    pub checkpoint_dtype: Option<DType>,
    /// One entry a layer where keys and values are held divided by scales (`Weights::use_kv_scales`); empty: as they are.
    pub kv_scales: Vec<KvScale>,
}

/// What a layer's keys and values are divided by before they are rounded to 8 bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvScale {
    /// Of keys; finite and above 0.
    pub key: f32,
    /// Of values; finite and above 0.
    pub value: f32,
}

impl ModelDescription {
    /// Number of layers.
    #[must_use]
    pub fn num_layers(&self) -> usize {
        self.layers.len()
    }

    /// Values of all query heads together.
    #[must_use]
    pub fn q_size(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Values of all key (or value) heads together.
    #[must_use]
    pub fn kv_size(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    /// The embedding factor as a model computing in `dtype` has it: Hugging Face rounds it to the type
    /// of the activations (`Gemma3TextScaledWordEmbedding`).
    #[must_use]
    pub fn embedding_scale_in(&self, dtype: DType) -> f32 {
        match dtype {
            DType::BF16 => half::bf16::from_f32(self.embedding_scale).to_f32(),
            DType::F16 => half::f16::from_f32(self.embedding_scale).to_f32(),
            _ => self.embedding_scale,
        }
    }

    /// Checks what no single field shows; `path` is the file to blame.
    ///
    /// # Errors
    /// [`ModelError::BadField`] for the first contradiction.
    pub fn check(self, path: &Path) -> Result<Self> {
        let sizes = [
            ("vocab_size", self.vocab_size, limits::VOCAB_SIZE),
            ("hidden_size", self.hidden_size, limits::WIDTH),
            ("intermediate_size", self.intermediate_size, limits::WIDTH),
            ("num_hidden_layers", self.layers.len(), limits::LAYERS),
            ("num_attention_heads", self.num_heads, limits::HEADS),
            ("num_key_value_heads", self.num_kv_heads, limits::HEADS),
            ("head_dim", self.head_dim, limits::HEAD_DIM),
            (
                "max_position_embeddings",
                self.max_position_embeddings,
                limits::POSITIONS,
            ),
        ];
        for (field, value, most) in sizes {
            if value == 0 || value > most {
                return Err(bad(path, field, value, format!("from 1 to {most}")));
            }
        }
        if !self.num_heads.is_multiple_of(self.num_kv_heads) {
            let limit = format!("a divisor of num_attention_heads, {}", self.num_heads);
            return Err(bad(path, "num_key_value_heads", self.num_kv_heads, limit));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(bad(path, "head_dim", self.head_dim, "even".into()));
        }
        if self.q_size() > limits::WIDTH {
            let limit = format!("at most {} together with head_dim", limits::WIDTH);
            return Err(bad(path, "num_attention_heads", self.num_heads, limit));
        }
        for rope in &self.ropes {
            rope.check(path, self.head_dim)?;
        }
        self.check_numbers(path)?;
        self.check_layers_and_tokens(path)?;
        Ok(self)
    }

    fn check_numbers(&self, path: &Path) -> Result<()> {
        let positive = [
            ("rms_norm_eps", Some(self.norm.eps)),
            ("attention scale", Some(self.attention.scale)),
            ("attn_logit_softcapping", self.attention.logit_softcap),
            ("final_logit_softcapping", self.final_logit_softcap),
            ("embedding scale", Some(self.embedding_scale)),
        ];
        for (field, value) in positive {
            if let Some(value) = value.filter(|v| !(v.is_finite() && *v > 0.0)) {
                return Err(bad(path, field, value, "a number above 0".into()));
            }
        }
        Ok(())
    }

    fn check_layers_and_tokens(&self, path: &Path) -> Result<()> {
        for layer in &self.layers {
            if let Some(window) = layer.window.filter(|w| !(1..=limits::POSITIONS).contains(w)) {
                let limit = format!("from 1 to {}", limits::POSITIONS);
                return Err(bad(path, "sliding_window", window, limit));
            }
            if layer.rope >= self.ropes.len() {
                let limit = format!("below {}", self.ropes.len());
                return Err(bad(path, "rope of a layer", layer.rope, limit));
            }
        }
        let ids = self.bos_token_id.iter().map(|id| ("bos_token_id", id));
        for (field, &id) in ids.chain(self.eos_token_ids.iter().map(|id| ("eos_token_id", id))) {
            if id as usize >= self.vocab_size {
                let limit = format!("below vocab_size, {}", self.vocab_size);
                return Err(bad(path, field, id, limit));
            }
        }
        Ok(())
    }
}

pub(crate) fn bad(path: &Path, field: &str, value: impl ToString, limit: String) -> ModelError {
    ModelError::BadField {
        path: path.to_path_buf(),
        field: field.to_owned(),
        value: value.to_string(),
        limit,
    }
}
