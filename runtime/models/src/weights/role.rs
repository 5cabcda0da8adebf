//! The places that weights have in a decoder, their shapes, and their names in files.
//! GGUF names: the tensor tables of llama.cpp's `llama-arch.cpp`; the same for every family.

use crate::config::{ModelDescription, NormPlacement};
use crate::families::Family;

/// A weight of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LayerWeight {
    /// Norm before attention, `[hidden_size]`.
    AttentionNorm,
    /// Query projection, `[num_heads · head_dim, hidden_size]`.
    QProj,
    /// Key projection, `[num_kv_heads · head_dim, hidden_size]`.
    KProj,
    /// Value projection, `[num_kv_heads · head_dim, hidden_size]`.
    VProj,
    /// Output projection, `[hidden_size, num_heads · head_dim]`.
    OProj,
    /// Bias of `QProj`, `[num_heads · head_dim]`.
    QBias,
    /// Bias of `KProj`, `[num_kv_heads · head_dim]`.
    KBias,
    /// Bias of `VProj`, `[num_kv_heads · head_dim]`.
    VBias,
    /// Bias of `OProj`, `[hidden_size]`.
    OBias,
    /// Norm of each query head, `[head_dim]`.
    QNorm,
    /// Norm of each key head, `[head_dim]`.
    KNorm,
    /// Norm of the attention part's result (sandwich), `[hidden_size]`.
    PostAttentionNorm,
    /// Norm before the feed-forward part, `[hidden_size]`.
    MlpNorm,
    /// Gate projection, `[intermediate_size, hidden_size]`.
    GateProj,
    /// Up projection, `[intermediate_size, hidden_size]`.
    UpProj,
    /// Down projection, `[hidden_size, intermediate_size]`.
    DownProj,
    /// Bias of `GateProj`, `[intermediate_size]`.
    GateBias,
    /// Bias of `UpProj`, `[intermediate_size]`.
    UpBias,
    /// Bias of `DownProj`, `[hidden_size]`.
    DownBias,
    /// Norm of the feed-forward part's result (sandwich), `[hidden_size]`.
    PostMlpNorm,
}

/// A weight of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Token embedding, `[vocab_size, hidden_size]`.
    Embedding,
    /// A weight of the layer with this index.
    Layer(usize, LayerWeight),
    /// Norm after the last layer, `[hidden_size]`.
    FinalNorm,
    /// Output projection, `[vocab_size, hidden_size]`.
    LmHead,
}

impl LayerWeight {
    /// The weights that each layer of a model has, in the order of use.
    #[must_use]
    pub fn of(model: &ModelDescription) -> Vec<LayerWeight> {
        use LayerWeight::{
            AttentionNorm, DownBias, DownProj, GateBias, GateProj, KBias, KNorm, KProj, MlpNorm, OBias, OProj,
            PostAttentionNorm, PostMlpNorm, QBias, QNorm, QProj, UpBias, UpProj, VBias, VProj,
        };
        let sandwich = model.norm.placement == NormPlacement::Sandwich;
        let parts: [(bool, &[LayerWeight]); 10] = [
            (true, &[AttentionNorm, QProj, KProj, VProj]),
            (model.attention.qkv_bias, &[QBias, KBias, VBias]),
            (model.attention.qk_norm, &[QNorm, KNorm]),
            (true, &[OProj]),
            (model.attention.o_bias, &[OBias]),
            (sandwich, &[PostAttentionNorm]),
            (true, &[MlpNorm, GateProj, UpProj]),
            (model.mlp.bias, &[GateBias, UpBias, DownBias]),
            (true, &[DownProj]),
            (sandwich, &[PostMlpNorm]),
        ];
        parts
            .iter()
            .filter(|(present, _)| *present)
            .flat_map(|(_, weights)| *weights)
            .copied()
            .collect()
    }

    /// Whether it is a vector that scales a norm.
    #[must_use]
    pub fn is_norm(self) -> bool {
        matches!(
            self,
            Self::AttentionNorm
                | Self::QNorm
                | Self::KNorm
                | Self::PostAttentionNorm
                | Self::MlpNorm
                | Self::PostMlpNorm
        )
    }

    fn shape(self, model: &ModelDescription) -> Vec<usize> {
        let (hidden, intermediate) = (model.hidden_size, model.intermediate_size);
        let (q, kv) = (model.q_size(), model.kv_size());
        match self {
            Self::QProj => vec![q, hidden],
            Self::KProj | Self::VProj => vec![kv, hidden],
            Self::OProj => vec![hidden, q],
            Self::GateProj | Self::UpProj => vec![intermediate, hidden],
            Self::DownProj => vec![hidden, intermediate],
            Self::QBias => vec![q],
            Self::KBias | Self::VBias => vec![kv],
            Self::GateBias | Self::UpBias => vec![intermediate],
            Self::QNorm | Self::KNorm => vec![model.head_dim],
            Self::AttentionNorm
            | Self::PostAttentionNorm
            | Self::MlpNorm
            | Self::PostMlpNorm
            | Self::OBias
            | Self::DownBias => vec![hidden],
        }
    }

    fn gguf_name(self) -> &'static str {
        match self {
            Self::AttentionNorm => "attn_norm.weight",
            Self::QProj => "attn_q.weight",
            Self::KProj => "attn_k.weight",
            Self::VProj => "attn_v.weight",
            Self::OProj => "attn_output.weight",
            Self::QBias => "attn_q.bias",
            Self::KBias => "attn_k.bias",
            Self::VBias => "attn_v.bias",
            Self::OBias => "attn_output.bias",
            Self::QNorm => "attn_q_norm.weight",
            Self::KNorm => "attn_k_norm.weight",
            Self::PostAttentionNorm => "post_attention_norm.weight",
            Self::MlpNorm => "ffn_norm.weight",
            Self::GateProj => "ffn_gate.weight",
            Self::UpProj => "ffn_up.weight",
            Self::DownProj => "ffn_down.weight",
            Self::GateBias => "ffn_gate.bias",
            Self::UpBias => "ffn_up.bias",
            Self::DownBias => "ffn_down.bias",
            Self::PostMlpNorm => "post_ffw_norm.weight",
        }
    }
}

impl Role {
    /// Every weight of a model, in the order of use. The output projection is listed for tied models too.
    #[must_use]
    pub fn all(model: &ModelDescription) -> Vec<Role> {
        let of_layer = LayerWeight::of(model);
        let layers = (0..model.num_layers()).flat_map(|i| of_layer.iter().map(move |&w| Role::Layer(i, w)));
        std::iter::once(Role::Embedding)
            .chain(layers)
            .chain([Role::FinalNorm, Role::LmHead])
            .collect()
    }

    /// The shape that the description implies.
    #[must_use]
    pub fn shape(self, model: &ModelDescription) -> Vec<usize> {
        match self {
            Role::Embedding | Role::LmHead => vec![model.vocab_size, model.hidden_size],
            Role::FinalNorm => vec![model.hidden_size],
            Role::Layer(_, weight) => weight.shape(model),
        }
    }

    /// Whether it is a vector that scales a norm.
    #[must_use]
    pub fn is_norm(self) -> bool {
        match self {
            Role::FinalNorm => true,
            Role::Layer(_, weight) => weight.is_norm(),
            Role::Embedding | Role::LmHead => false,
        }
    }

    pub(super) fn gguf_name(self) -> String {
        match self {
            Role::Embedding => "token_embd.weight".into(),
            Role::FinalNorm => "output_norm.weight".into(),
            Role::LmHead => "output.weight".into(),
            Role::Layer(i, weight) => format!("blk.{i}.{}", weight.gguf_name()),
        }
    }

    /// `prefix` stands before the decoder's names; the output projection stands beside the decoder.
    pub(super) fn hf_name(self, family: &Family, prefix: &str) -> String {
        match self {
            Role::Embedding => format!("{prefix}embed_tokens.weight"),
            Role::FinalNorm => format!("{prefix}norm.weight"),
            Role::LmHead if prefix == "language_model.model." => "language_model.lm_head.weight".into(),
            Role::LmHead => "lm_head.weight".into(),
            Role::Layer(i, weight) => {
                format!("{prefix}layers.{i}.{}", (family.hf_layer_weight)(weight))
            }
        }
    }
}
