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
    /// The rope of queries where it is another one, of the same style and width; an index as `rope`.
    pub query_rope: Option<usize>,
    /// q, k and v projections have biases.
    pub qkv_bias: bool,
    /// The output projection has a bias.
    pub o_bias: bool,
    /// Norms of q and k, before rope.
    pub qk_norm: Option<QkNorm>,
    /// Each query head has a sink: a score that takes part in the softmax and has no value (gpt-oss).
    pub sinks: bool,
    /// Factor of the scores.
    pub scale: f32,
    /// cap · tanh(score / cap), where given.
    pub logit_softcap: Option<f32>,
    /// Keys and values are made of one latent a token; then `num_kv_heads` is 1 and `head_dim` a value's.
    pub latent: Option<LatentDescription>,
}

/// Latent attention (DeepSeek V2 and V3). A token leaves a latent, of which each head's key and value are linear
/// functions, and a short key for all heads, which alone is turned by the position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentDescription {
    /// Values of what queries are made of; `None`: of the hidden state.
    pub query_rank: Option<usize>,
    /// Values of a latent.
    pub latent_dim: usize,
    /// Values of a head's query and key that are not turned.
    pub nope_dim: usize,
    /// Values that are.
    pub rope_dim: usize,
    /// Added to the mean square by the norms of latents and of what queries are made of.
    pub norm_eps: f32,
}

impl LatentDescription {
    fn check(&self, path: &Path, mixer: &AttentionDescription) -> Result<()> {
        for (field, value, most) in [
            ("q_lora_rank", self.query_rank.unwrap_or(1), limits::WIDTH),
            ("kv_lora_rank", self.latent_dim, limits::WIDTH),
            ("qk_nope_head_dim", self.nope_dim, limits::HEAD_DIM),
            ("qk_rope_head_dim", self.rope_dim, limits::HEAD_DIM),
        ] {
            in_range(path, field, value, most)?;
        }
        if !(self.norm_eps.is_finite() && self.norm_eps > 0.0) {
            return Err(bad(
                path,
                "eps of the latents' norm",
                self.norm_eps,
                "a number above 0".into(),
            ));
        }
        let widest = self.latent_dim.max(self.nope_dim + self.rope_dim + mixer.head_dim);
        if mixer.num_heads * widest > limits::WIDTH {
            let limit = format!("at most {} for heads of {widest} values", limits::WIDTH / widest);
            return Err(bad(path, "num_attention_heads", mixer.num_heads, limit));
        }
        let plain = mixer.window.is_none()
            && mixer.qk_norm.is_none()
            && mixer.logit_softcap.is_none()
            && !(mixer.sinks || mixer.qkv_bias);
        match plain && mixer.num_kv_heads == 1 {
            true => Ok(()),
            false => {
                let limit = "without windows, sinks, caps, biases and norms of queries and keys".to_owned();
                Err(bad(path, "latent attention", "more than latents", limit))
            }
        }
    }
}

/// What a norm of queries or keys normalises together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Each head by itself, by an RMS norm with one weight for all.
    Heads,
    /// All heads of a token, by an RMS norm.
    Whole,
    /// Each head by itself, by a LayerNorm without a bias and with a weight of its own (Command-R+, StableLM 2 12B).
    OwnWeights,
}

/// The nonlinearity of an MLP.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// x / (1 + e^−x).
    Silu,
    /// gate / (1 + e^(−alpha·gate)) · (up + up_offset), with gate at most `limit` and up at most that on both sides
    /// (gpt-oss).
    BoundedSilu {
        /// Above 0.
        limit: f32,
        /// Above 0.
        alpha: f32,
        /// Any finite number.
        up_offset: f32,
    },
    /// max(x, 0)², in MLPs without a gate (Nemotron).
    ReluSquared,
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
#[derive(Clone, Copy, Debug, PartialEq)]
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

/// Σ weight(e) · expert(e)(x) over the chosen experts; each expert is a gated MLP.
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
    /// Only experts of some groups may be chosen.
    pub groups: Option<ExpertGroups>,
    /// Each expert has a number that is added to its score for choosing, and not for weighing.
    pub choice_bias: bool,
    /// The router and the experts' projections have biases.
    pub bias: bool,
}

/// Which groups of equally many experts a token's experts may come from (DeepSeek V2 and V3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Groups of the layer.
    pub num_groups: usize,
    /// Groups that a token takes.
    pub top_groups: usize,
    /// Scores of a group whose sum says how good it is: its so many best.
    pub best: usize,
}

impl ExpertsMlp {
    /// Experts with silu by a softmax over all, whose weights are not divided by their sum; nothing besides.
    #[must_use]
    pub fn softmax(num_experts: usize, top_k: usize, intermediate_size: usize) -> ExpertsMlp {
        ExpertsMlp {
            num_experts,
            top_k,
            scoring: Scoring::Softmax,
            norm_topk: false,
            factor: 1.0,
            intermediate_size,
            activation: Activation::Silu,
            shared: None,
            groups: None,
            choice_bias: false,
            bias: false,
        }
    }

    fn check_groups(&self, path: &Path) -> Result<()> {
        let Some(groups) = self.groups else {
            return Ok(());
        };
        in_range(path, "n_group", groups.num_groups, self.num_experts)?;
        if !self.num_experts.is_multiple_of(groups.num_groups) {
            let limit = format!("a divisor of the number of experts, {}", self.num_experts);
            return Err(bad(path, "n_group", groups.num_groups, limit));
        }
        let each = self.num_experts / groups.num_groups;
        if groups.best > each {
            let limit = format!(
                "at most {}, as a group is judged by its {} best of {} experts in all",
                self.num_experts / groups.best,
                groups.best,
                self.num_experts
            );
            return Err(bad(path, "n_group", groups.num_groups, limit));
        }
        if groups.top_groups == 0 || groups.top_groups > groups.num_groups {
            let limit = format!("from 1 to n_group, {}", groups.num_groups);
            return Err(bad(path, "topk_group", groups.top_groups, limit));
        }
        if self.top_k > groups.top_groups * each {
            let limit = format!(
                "from 1 to {}, as a token takes experts from topk_group, {}, of the groups of {each} experts",
                groups.top_groups * each,
                groups.top_groups
            );
            return Err(bad(path, "num_experts_per_tok", self.top_k, limit));
        }
        Ok(())
    }
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
    /// Values of a head that rope may turn.
    #[must_use]
    pub fn rope_dim(&self) -> usize {
        self.latent.map_or(self.head_dim, |latent| latent.rope_dim)
    }

    /// Values of all query heads together, and of the result; of latent attention, of the result alone.
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
        match self.latent {
            Some(latent) => latent.check(path, self),
            None => Ok(()),
        }
    }
}

impl Activation {
    fn check(self, path: &Path) -> Result<()> {
        let Activation::BoundedSilu {
            limit,
            alpha,
            up_offset,
        } = self
        else {
            return Ok(());
        };
        for (field, value) in [("swiglu_limit", limit), ("swiglu_alpha", alpha)] {
            if !(value.is_finite() && value > 0.0) {
                return Err(bad(path, field, value, "a number above 0".into()));
            }
        }
        match up_offset.is_finite() {
            true => Ok(()),
            false => Err(bad(path, "offset of up", up_offset, "a finite number".into())),
        }
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
        match self {
            MlpDescription::Dense(dense) => dense.activation.check(path)?,
            MlpDescription::Experts(experts) => experts.activation.check(path)?,
        }
        let experts = match self {
            MlpDescription::Dense(dense) => {
                let fits = match dense.activation {
                    Activation::Silu | Activation::BoundedSilu { .. } => dense.is_gated,
                    Activation::ReluSquared => !dense.is_gated,
                    Activation::GeluTanh | Activation::GeluErf => true,
                };
                if !fits {
                    let found = format!("{:?}", dense.activation);
                    let limit = "a silu or a gelu with a gate, a gelu or relu2 without one".into();
                    return Err(bad(path, "hidden_act", found, limit));
                }
                return in_range(path, "intermediate_size", dense.intermediate_size, limits::WIDTH);
            }
            MlpDescription::Experts(experts) => experts,
        };
        in_range(path, "moe_intermediate_size", experts.intermediate_size, limits::WIDTH)?;
        in_range(path, "num_experts", experts.num_experts, limits::EXPERTS)?;
        if experts.top_k == 0 || experts.top_k > experts.num_experts {
            let limit = format!("from 1 to {}, the number of experts", experts.num_experts);
            return Err(bad(path, "num_experts_per_tok", experts.top_k, limit));
        }
        experts.check_groups(path)?;
        if experts.activation == Activation::ReluSquared {
            return Err(bad(
                path,
                "hidden_act",
                "relu2",
                "a silu or a gelu, as experts have gates".into(),
            ));
        }
        if !experts.factor.is_finite() {
            return Err(bad(
                path,
                "routed_scaling_factor",
                experts.factor,
                "a finite number".into(),
            ));
        }
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
