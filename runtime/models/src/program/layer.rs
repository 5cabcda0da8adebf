//! One decoder layer as ops: norm, qkv, rope, cache, attention, output; norm, gate and up, down. All
//! differences between architectures are read from the description.

use halyard_platform_api::ops::{Add, Attention, GeluKind, GeluMul, KvWrite, Rope, SiluMul};
use halyard_platform_api::program::ABSENT;
use halyard_platform_api::{DType, OpSpec};

use super::builder::{Builder, Columns, Projection};
use super::{KvLayout, Rows, TensorRole};
use crate::config::{Activation, NormPlacement};
use crate::error::Result;
use crate::weights::{LayerWeight, Role};

/// Activation memory of what follows attention in a layer.
pub(super) struct FeedSlots {
    hidden: Columns,
    attended: Columns,
    normed: Columns,
    gate_up: Columns,
    activated: Columns,
    /// A part's result before it joins the residual stream; sandwich layers only.
    branch: Option<Columns>,
    max_rows: u32,
}

/// Activation memory that every layer uses again.
pub(super) struct LayerSlots {
    qkv: Columns,
    pub feed: FeedSlots,
}

impl Builder<'_> {
    /// The residual stream and attention's output, in this order: what a layer's second half takes over from its first.
    pub(super) fn stream_slots(&mut self, rows: Rows) -> [Columns; 2] {
        let act = self.options.act;
        [self.model.hidden_size, self.local.q_size()].map(|width| self.slot(width, act, rows))
    }

    pub(super) fn layer_slots(&mut self, streams: [Columns; 2]) -> LayerSlots {
        let width = self.local.q_size() + 2 * self.local.kv_size();
        LayerSlots {
            qkv: self.slot(width, self.options.act, Rows::Tokens),
            feed: self.feed_slots(streams, Rows::Tokens),
        }
    }

    pub(super) fn feed_slots(&mut self, [hidden, attended]: [Columns; 2], rows: Rows) -> FeedSlots {
        let (model, intermediate, act) = (self.model, self.local.intermediate_size, self.options.act);
        let max_rows = match rows {
            Rows::Tokens => self.options.max_tokens,
            Rows::Logits => self.options.max_logits_rows,
        };
        let mut slot = |width| self.slot(width, act, rows);
        FeedSlots {
            hidden,
            attended,
            normed: slot(model.hidden_size),
            gate_up: slot(2 * intermediate),
            activated: slot(intermediate),
            branch: (model.norm.placement == NormPlacement::Sandwich).then(|| slot(model.hidden_size)),
            max_rows,
        }
    }

    /// A layer's first half: what attention makes of the residual stream, before its output projection.
    pub(super) fn attention_half(&mut self, layer: usize, kv_layout: &KvLayout, slots: &LayerSlots) -> Result<()> {
        let width = self.model.hidden_size;
        let (hidden, normed) = (self.columns(slots.feed.hidden), self.columns(slots.feed.normed));
        self.norm(hidden, Role::Layer(layer, LayerWeight::AttentionNorm), normed, width);
        self.attention(layer, kv_layout, slots)
    }

    /// A layer's second half: each row by itself, from attention's result on.
    pub(super) fn feed_half(&mut self, layer: usize, slots: &FeedSlots) -> Result<()> {
        let width = self.model.hidden_size;
        let bias = self.model.attention.o_bias.then_some(LayerWeight::OBias);
        let weights = (LayerWeight::OProj, bias, LayerWeight::PostAttentionNorm);
        self.output(layer, slots, slots.attended, weights)?;

        let (hidden, normed) = (self.columns(slots.hidden), self.columns(slots.normed));
        self.norm(hidden, Role::Layer(layer, LayerWeight::MlpNorm), normed, width);
        self.gate_up(layer, slots)?;
        let bias = self.model.mlp.bias.then_some(LayerWeight::DownBias);
        let weights = (LayerWeight::DownProj, bias, LayerWeight::PostMlpNorm);
        self.output(layer, slots, slots.activated, weights)
    }

    /// The attention part up to the output projection.
    fn attention(&mut self, layer: usize, kv_layout: &KvLayout, slots: &LayerSlots) -> Result<()> {
        let (model, local) = (self.model, self.local);
        let role = |weight| Role::Layer(layer, weight);
        let bias = |weight| model.attention.qkv_bias.then_some(role(weight));
        let input = self.columns(slots.feed.normed);
        self.project(&Projection {
            input,
            parts: &[
                (role(LayerWeight::QProj), bias(LayerWeight::QBias)),
                (role(LayerWeight::KProj), bias(LayerWeight::KBias)),
                (role(LayerWeight::VProj), bias(LayerWeight::VBias)),
            ],
            out: slots.qkv,
            residual: None,
            out_dtype: self.options.act,
            max_rows: self.options.max_tokens,
        })?;
        let (q_size, kv_size) = (local.q_size() as u32, local.kv_size() as u32);
        let part = |column, width| Columns {
            column,
            width,
            ..slots.qkv
        };
        let q = self.heads(part(0, q_size), local.num_heads);
        let k = self.heads(part(q_size, kv_size), local.num_kv_heads);
        let v = self.heads(part(q_size + kv_size, kv_size), local.num_kv_heads);
        if model.attention.qk_norm {
            self.norm(q, role(LayerWeight::QNorm), q, model.head_dim);
            self.norm(k, role(LayerWeight::KNorm), k, model.head_dim);
        }
        // q and k stand side by side with equal heads: one op turns both.
        let qk = self.heads(part(0, q_size + kv_size), local.num_heads + local.num_kv_heads);
        self.rope(layer, qk);
        let group = kv_layout.place(layer as u32).0;
        self.kv_write(layer, group, k, v);
        self.attend(layer, group, q, slots.feed.attended);
        Ok(())
    }

    fn rope(&mut self, layer: usize, x: u16) {
        let index = self.model.layers[layer].rope;
        let rope = &self.model.ropes[index];
        let spec = Rope {
            head_dim: self.model.head_dim as u32,
            rotary_dim: rope.rotary_dim as u32,
            style: rope.style,
            dtype: self.options.act,
        };
        let positions = self.tensor(TensorRole::Positions, DType::I32);
        let table = self.tensor(TensorRole::RopeTable { index: index as u32 }, DType::F32);
        self.push(OpSpec::Rope(spec), vec![positions, table, x]);
    }

    fn kv_write(&mut self, layer: usize, group: u32, k: u16, v: u16) {
        let spec = KvWrite {
            num_kv_heads: self.local.num_kv_heads as u32,
            head_dim: self.model.head_dim as u32,
            act: self.options.act,
            kv: self.options.kv,
            block_size: self.options.block_size,
            backend: self.options.attention_backend,
            max_tokens: self.options.max_tokens,
        };
        let slots = self.tensor(TensorRole::Slots { group }, DType::I32);
        let cache = self.tensor(TensorRole::KvCache { layer: layer as u32 }, DType::U8);
        self.push(OpSpec::KvWrite(spec), vec![k, v, slots, cache]);
    }

    fn attend(&mut self, layer: usize, group: u32, q: u16, attended: Columns) {
        let (model, options) = (self.model, self.options);
        let spec = Attention {
            num_heads: self.local.num_heads as u32,
            num_kv_heads: self.local.num_kv_heads as u32,
            head_dim: model.head_dim as u32,
            scale: model.attention.scale,
            window: model.layers[layer].window.unwrap_or(0) as u32,
            softcap: model.attention.logit_softcap.unwrap_or(0.0),
            has_sinks: false,
            act: options.act,
            kv: options.kv,
            block_size: options.block_size,
            backend: options.attention_backend,
            max_seqs: options.max_seqs,
            max_tokens: options.max_tokens,
            max_query_len: options.max_tokens.min(options.max_kv_len),
            max_kv_len: options.max_kv_len,
        };
        let cache = self.tensor(TensorRole::KvCache { layer: layer as u32 }, DType::U8);
        let block_table = self.tensor(TensorRole::BlockTable { group }, DType::I32);
        let step_rows = self.tensor(TensorRole::StepRows, DType::I32);
        let query_start_loc = self.tensor(TensorRole::QueryStartLoc, DType::I32);
        let seq_lens = self.tensor(TensorRole::SeqLens, DType::I32);
        let out = self.heads(attended, self.local.num_heads);
        let operands = vec![q, cache, block_table, step_rows, query_start_loc, seq_lens, ABSENT, out];
        self.push(OpSpec::Attention(spec), operands);
    }

    /// The feed-forward part up to the down projection.
    fn gate_up(&mut self, layer: usize, slots: &FeedSlots) -> Result<()> {
        let (model, act) = (self.model, self.options.act);
        let role = |weight| Role::Layer(layer, weight);
        let bias = |weight| model.mlp.bias.then_some(role(weight));
        let input = self.columns(slots.normed);
        self.project(&Projection {
            input,
            parts: &[
                (role(LayerWeight::GateProj), bias(LayerWeight::GateBias)),
                (role(LayerWeight::UpProj), bias(LayerWeight::UpBias)),
            ],
            out: slots.gate_up,
            residual: None,
            out_dtype: act,
            max_rows: slots.max_rows,
        })?;
        let width = self.local.intermediate_size as u32;
        let half = |column| Columns {
            column,
            width,
            ..slots.gate_up
        };
        let (gate, up) = (self.columns(half(0)), self.columns(half(width)));
        let spec = match model.mlp.activation {
            Activation::Silu => OpSpec::SiluMul(SiluMul { width, dtype: act }),
            Activation::GeluTanh => OpSpec::GeluMul(GeluMul {
                width,
                dtype: act,
                kind: GeluKind::Tanh,
            }),
        };
        let out = self.columns(slots.activated);
        self.push(spec, vec![gate, up, out]);
        Ok(())
    }

    /// Adds a part's projected result to the residual stream, normalised first in sandwich layers.
    fn output(
        &mut self,
        layer: usize,
        slots: &FeedSlots,
        input: Columns,
        (weight, bias, post_norm): (LayerWeight, Option<LayerWeight>, LayerWeight),
    ) -> Result<()> {
        let (width, act) = (self.model.hidden_size, self.options.act);
        let part = (Role::Layer(layer, weight), bias.map(|bias| Role::Layer(layer, bias)));
        let hidden = self.columns(slots.hidden);
        let input = self.columns(input);
        self.project_sum(&Projection {
            input,
            parts: &[part],
            out: slots.branch.unwrap_or(slots.hidden),
            residual: if slots.branch.is_some() { None } else { Some(hidden) },
            out_dtype: act,
            max_rows: slots.max_rows,
        })?;
        if let Some(branch) = slots.branch {
            let branch = self.columns(branch);
            self.norm(branch, Role::Layer(layer, post_norm), branch, width);
            let add = Add {
                width: width as u32,
                dtype: act,
            };
            self.push(OpSpec::Add(add), vec![hidden, branch, hidden]);
        }
        Ok(())
    }
}
