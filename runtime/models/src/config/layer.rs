//! The description of one decoder layer: a mixer, which looks at other tokens, and an MLP, which looks at one.

use std::path::Path;

use halyard_platform_api::ops::Scoring;

use super::limits::{self, bad, in_range};
use crate::error::Result;

/// One layer. Layers of a model may differ in everything that stands here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerDescription {
    /// The mixer of tokens. Attention is the only kind so far.
    pub mixer: AttentionDescription,
    /// The MLP after it, which computes each token alone.
    pub mlp: MlpDescription,
}

/// Attention over keys and values of earlier tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionDescription {
    /// Query heads.
    pub num_heads: usize,
    /// KV heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Values of a head.
    pub head_dim: usize,
    /// A query sees this many positions, itself included; `None`: all before it.
    pub window: Option<usize>,
    /// Index into [`super::ModelDescription::ropes`]; `None`: queries and keys are not turned.
    pub rope: Option<usize>,
    /// q, k and v projections have biases.
    pub qkv_bias: bool,
    /// The output projection has a bias.
    pub o_bias: bool,
    /// RMS norms of q and k, before rope.
    pub qk_norm: Option<QkNorm>,
    /// Factor of the scores.
    pub scale: f32,
    /// cap · tanh(score / cap), where given.
    pub logit_softcap: Option<f32>,
}

/// What an RMS norm of queries or keys normalises together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Each head by itself.
    Heads,
    /// All heads of a token.
    Whole,
}

/// The nonlinearity of an MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x / (1 + e^−x).
    Silu,
    /// Gelu by its tanh approximation.
    GeluTanh,
    /// Gelu by the error function.
    GeluErf,
}

/// An MLP, or several of which each token takes some.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MlpDescription {
    /// One MLP for all tokens.
    Dense(DenseMlp),
    /// A router chooses experts for each token.
    Experts(ExpertsMlp),
}

/// down(activation(gate(x)) · up(x)), or down(activation(up(x))) without a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseMlp {
    /// Rows of gate and up.
    pub intermediate_size: usize,
    /// Of the gate, or of up without one.
    pub activation: Activation,
    /// There is a gate.
    pub is_gated: bool,
    /// gate, up and down projections have biases.
    pub bias: bool,
}

/// Σ weight(e) · expert(e)(x) over the chosen experts; each expert is a gated MLP without biases.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertsMlp {
    /// Experts of the layer.
    pub num_experts: usize,
    /// Experts of a token.
    pub top_k: usize,
    /// Scores from the router's logits.
    pub scoring: Scoring,
    /// The weights of a token's experts are their scores divided by the sum of these.
    pub norm_topk: bool,
    /// Factor of the weights.
    pub factor: f32,
    /// Rows of one expert's gate and up.
    pub intermediate_size: usize,
    /// Of the gates.
    pub activation: Activation,
    /// The expert that every token takes besides.
    pub shared: Option<SharedExpert>,
}

/// A gated MLP without biases, added to the sum of the chosen experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExpert {
    /// Rows of gate and up.
    pub intermediate_size: usize,
    /// Its result is multiplied by the sigmoid of a linear with one output (Qwen2-MoE).
    pub is_weighted: bool,
}

impl AttentionDescription {
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

    fn check(&self, path: &Path) -> Result<()> {
        in_range(path, "num_attention_heads", self.num_heads, limits::HEADS)?;
        in_range(path, "num_key_value_heads", self.num_kv_heads, limits::HEADS)?;
        in_range(path, "head_dim", self.head_dim, limits::HEAD_DIM)?;
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
        if let Some(window) = self.window {
            in_range(path, "sliding_window", window, limits::POSITIONS)?;
        }
        Ok(())
    }
}

impl MlpDescription {
    /// Rows of gate and up, of one expert where there are experts.
    #[must_use]
    pub fn intermediate_size(&self) -> usize {
        match self {
            MlpDescription::Dense(dense) => dense.intermediate_size,
            MlpDescription::Experts(experts) => experts.intermediate_size,
        }
    }

    /// Gates and ups that a token computes: 1 in a dense layer.
    #[must_use]
    pub fn choices(&self) -> usize {
        match self {
            MlpDescription::Dense(_) => 1,
            MlpDescription::Experts(experts) => experts.top_k,
        }
    }

    /// The expert that every token takes.
    #[must_use]
    pub fn shared(&self) -> Option<SharedExpert> {
        match self {
            MlpDescription::Dense(_) => None,
            MlpDescription::Experts(experts) => experts.shared,
        }
    }

    /// Experts; 0 in a dense layer.
    #[must_use]
    pub fn num_experts(&self) -> usize {
        match self {
            MlpDescription::Dense(_) => 0,
            MlpDescription::Experts(experts) => experts.num_experts,
        }
    }

    fn check(&self, path: &Path, hidden_size: usize) -> Result<()> {
        let experts = match self {
            MlpDescription::Dense(dense) => {
                if !dense.is_gated && dense.activation == Activation::Silu {
                    let limit = "a gelu in an MLP without a gate".into();
                    return Err(bad(path, "hidden_act", "silu", limit));
                }
                return in_range(path, "intermediate_size", dense.intermediate_size, limits::WIDTH);
            }
            MlpDescription::Experts(experts) => experts,
        };
        in_range(path, "moe_intermediate_size", experts.intermediate_size, limits::WIDTH)?;
        in_range(path, "num_experts", experts.num_experts, limits::EXPERTS)?;
        in_range(path, "num_experts_per_tok", experts.top_k, experts.num_experts)?;
        if let Some(shared) = experts.shared {
            let field = "shared_expert_intermediate_size";
            in_range(path, field, shared.intermediate_size, limits::WIDTH)?;
        }
        let widest = experts.intermediate_size.max(hidden_size);
        if experts.top_k * widest > limits::WIDTH {
            let limit = format!("at most {} for rows of {widest} values", limits::WIDTH / widest);
            return Err(bad(path, "num_experts_per_tok", experts.top_k, limit));
        }
        Ok(())
    }
}

impl LayerDescription {
    pub(super) fn check(&self, path: &Path, hidden_size: usize) -> Result<()> {
        self.mlp.check(path, hidden_size)?;
        self.mixer.check(path)
    }
}
