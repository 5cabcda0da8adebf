//! The description of a decoder-only transformer: numbers and choices, no code. A description that
//! exists has passed [`ModelDescription::check`], so that later code divides and indexes freely.

use std::path::Path;

use halyard_platform_api::DType;

use super::layer::{DenseMlp, LayerDescription, MlpDescription};
use super::limits::{self, bad, in_range};
use super::rope::RopeDescription;
use crate::error::Result;
use crate::weights::Input;

/// Where a layer's norms stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlacement {
    /// One before attention, one before the feed-forward part.
    Pre,
    /// Gemma: one before and one after each part; the one after comes before the residual addition.
    Sandwich,
    /// OLMo 2: one after each part, before the residual addition.
    Post,
    /// Command-R: one before attention; the feed-forward part reads its result too, so that both parts see the same.
    Shared,
    /// GPT-NeoX: one for each part, both over the layer's input.
    Parallel,
}

impl NormPlacement {
    /// There is a norm before attention.
    #[must_use]
    pub fn is_before_attention(self) -> bool {
        self != NormPlacement::Post
    }

    /// There is a norm before the feed-forward part.
    #[must_use]
    pub fn is_before_mlp(self) -> bool {
        matches!(
            self,
            NormPlacement::Pre | NormPlacement::Sandwich | NormPlacement::Parallel
        )
    }

    /// Each part's result is normalised.
    #[must_use]
    pub fn is_after(self) -> bool {
        matches!(self, NormPlacement::Sandwich | NormPlacement::Post)
    }

    /// The feed-forward part does not see attention's result.
    #[must_use]
    pub fn is_parallel(self) -> bool {
        matches!(self, NormPlacement::Shared | NormPlacement::Parallel)
    }
}

/// What a norm computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// x / √(mean(x²) + eps) · weight.
    Rms,
    /// (x − mean(x)) / √(var(x) + eps) · weight, and a bias where there is one.
    Layer {
        /// There is one.
        bias: bool,
    },
}

/// The norms of a model; those of queries and keys are RMS norms in every model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormDescription {
    /// What they compute.
    pub kind: NormKind,
    /// Added to the mean square, or to the variance.
    pub eps: f32,
    /// Added to the stored weight: 1 for Gemma's Hugging Face files; 0 elsewhere, in Gemma's GGUF files
    /// too (the converter has added it).
    pub weight_offset: f32,
    /// Where they stand.
    pub placement: NormPlacement,
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
    /// Norms.
    pub norm: NormDescription,
    /// One entry a layer.
    pub layers: Vec<LayerDescription>,
    /// The rotary embeddings in use: none, one, or one for full and one for sliding layers.
    pub ropes: Vec<RopeDescription>,
    /// The rows of q and k stand as llama.cpp's converter has permuted them: of each head, those of its two halves in
    /// turn.
    pub interleaved_heads: bool,
    /// Factor of the embeddings, not yet rounded to a dtype: see [`ModelDescription::embedding_scale_in`].
    pub embedding_scale: f32,
    /// Factor of each part's result before it is added to the residual stream (Granite).
    pub residual_scale: f32,
    /// Factor of the logits.
    pub logit_scale: f32,
    /// cap · tanh(logit / cap), where given.
    pub final_logit_softcap: Option<f32>,
    /// The embedding of a token's position is added to the token's (GPT-2): a table of `max_position_embeddings` rows.
    pub position_embedding: bool,
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
    /// One entry a layer where keys and values are held divided by scales (`Weights::use_kv_scales`); empty: as they
    /// are.
    pub kv_scales: Vec<KvScale>,
    /// Layers and inputs that are put in another order before their readers multiply them (`Weights::sort_columns`).
    pub sorted: Vec<(usize, Input)>,
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

    /// The dense MLPs of its layers.
    pub(crate) fn dense_mlps(&mut self) -> impl Iterator<Item = &mut DenseMlp> {
        self.layers.iter_mut().filter_map(|layer| match &mut layer.mlp {
            MlpDescription::Dense(dense) => Some(dense),
            MlpDescription::Experts(_) => None,
        })
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
    /// [`crate::ModelError::BadField`] for the first contradiction.
    pub fn check(self, path: &Path) -> Result<Self> {
        in_range(path, "vocab_size", self.vocab_size, limits::VOCAB_SIZE)?;
        in_range(path, "hidden_size", self.hidden_size, limits::WIDTH)?;
        in_range(path, "num_hidden_layers", self.layers.len(), limits::LAYERS)?;
        let positions = self.max_position_embeddings;
        in_range(path, "max_position_embeddings", positions, limits::POSITIONS)?;
        for layer in &self.layers {
            layer.check(path, self.hidden_size)?;
        }
        for (index, rope) in self.ropes.iter().enumerate() {
            let mixers = self.layers.iter().map(|layer| layer.mixer);
            let users = mixers.filter(|mixer| [mixer.rope, mixer.query_rope].contains(&Some(index)));
            let head_dim = users.map(|mixer| mixer.rope_dim()).min();
            rope.check(path, head_dim.unwrap_or(limits::HEAD_DIM))?;
        }
        self.check_numbers(path)?;
        self.check_layers_and_tokens(path)?;
        Ok(self)
    }

    fn check_numbers(&self, path: &Path) -> Result<()> {
        let of_layers = self.layers.iter().flat_map(|layer| {
            [
                ("attention scale", Some(layer.mixer.scale)),
                ("attn_logit_softcapping", layer.mixer.logit_softcap),
            ]
        });
        let positive = [
            ("rms_norm_eps", Some(self.norm.eps)),
            ("final_logit_softcapping", self.final_logit_softcap),
            ("embedding scale", Some(self.embedding_scale)),
            ("residual_multiplier", Some(self.residual_scale)),
            ("logit scale", Some(self.logit_scale)),
        ];
        for (field, value) in positive.into_iter().chain(of_layers) {
            if let Some(value) = value.filter(|v| !(v.is_finite() && *v > 0.0)) {
                return Err(bad(path, field, value, "a number above 0".into()));
            }
        }
        Ok(())
    }

    fn check_layers_and_tokens(&self, path: &Path) -> Result<()> {
        let first = self.layers[0].mixer;
        for mixer in self.layers.iter().map(|layer| layer.mixer) {
            for rope in [mixer.rope, mixer.query_rope].into_iter().flatten() {
                if rope >= self.ropes.len() {
                    let limit = format!("below {}", self.ropes.len());
                    return Err(bad(path, "rope of a layer", rope, limit));
                }
            }
            if mixer.latent.map(|latent| (latent.latent_dim, latent.rope_dim))
                != first.latent.map(|latent| (latent.latent_dim, latent.rope_dim))
            {
                let limit = "as in the first layer: all layers share KV pages of one size".to_owned();
                return Err(bad(path, "kv_lora_rank", "another in one layer", limit));
            }
            let (heads, dim) = (first.num_kv_heads, first.head_dim);
            if (mixer.num_kv_heads, mixer.head_dim) != (heads, dim) {
                let found = format!("{} of {} in one layer", mixer.num_kv_heads, mixer.head_dim);
                let limit = format!("{heads} of {dim} as in the first: all layers share KV pages of one size");
                return Err(bad(path, "num_key_value_heads", found, limit));
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
