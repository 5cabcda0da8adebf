//! One decoder layer as ops: norm, qkv, rope, cache, attention, output; norm and MLP ([`super::mlp`]). All differences
//! between architectures are read from the description.

use halyard_platform_api::ops::{Add, Attention, KvWrite, Rope};
use halyard_platform_api::program::ABSENT;
use halyard_platform_api::{DType, OpSpec};

use super::builder::{Builder, Columns, Projection};
use super::slots::{FeedSlots, LayerSlots};
use super::{KvLayout, Rows, TensorRole};
use crate::config::{NormPlacement, QkNorm};
use crate::error::Result;
use crate::weights::{Linear, Norm, Part, Role};

impl Builder<'_> {
    /// A layer's first half: what attention makes of the residual stream, before its output projection.
    pub(super) fn attention_half(&mut self, layer: usize, kv_layout: &KvLayout, slots: &LayerSlots) -> Result<()> {
        if self.model.norm.placement.is_before_attention() {
            self.norm_stream(&slots.feed, Role::norm(layer, Norm::Attention));
        }
        match (self.model.layers[layer].mixer.latent, &slots.latent) {
            (Some(latent), Some(own)) => self.latent_attention(layer, latent, kv_layout, slots, own),
            _ => self.attention(layer, kv_layout, slots),
        }
    }

    /// A layer's second half: each row by itself, from attention's result on.
    pub(super) fn feed_half(&mut self, layer: usize, slots: &FeedSlots) -> Result<()> {
        let placement = self.model.norm.placement;
        let (bias, attended) = (self.model.layers[layer].mixer.o_bias, self.attended(layer, slots));
        // Parallel parts both see what the layer began with.
        match placement {
            NormPlacement::Parallel => self.norm_stream(slots, Role::norm(layer, Norm::Mlp)),
            // The first half has left it, but for rows that were gathered since.
            NormPlacement::Shared if slots.rows == Rows::Logits => {
                self.norm_stream(slots, Role::norm(layer, Norm::Attention));
            }
            _ => {}
        }
        self.output(layer, slots, attended, (Linear::O, bias), Norm::PostAttention)?;
        if placement.is_before_mlp() && !placement.is_parallel() {
            self.norm_stream(slots, Role::norm(layer, Norm::Mlp));
        }
        self.mlp(layer, slots)
    }

    /// The residual stream normalised.
    fn norm_stream(&mut self, slots: &FeedSlots, norm: Role) {
        let (hidden, normed) = (self.columns(slots.hidden), self.columns(slots.normed));
        self.norm(hidden, norm, normed, self.model.hidden_size);
    }

    /// What attention reads, and what the MLP reads.
    pub(super) fn read_by(is_normed: bool, slots: &FeedSlots) -> Columns {
        if is_normed { slots.normed } else { slots.hidden }
    }

    /// What the MLP reads.
    pub(super) fn mlp_input(&self, slots: &FeedSlots) -> Columns {
        let placement = self.model.norm.placement;
        Self::read_by(placement.is_before_mlp() || placement.is_parallel(), slots)
    }

    /// A layer's columns of attention's result.
    pub(super) fn attended(&self, layer: usize, slots: &FeedSlots) -> Columns {
        Columns {
            width: self.local.layers[layer].q_size() as u32,
            ..slots.attended
        }
    }

    /// The attention part up to the output projection.
    fn attention(&mut self, layer: usize, kv_layout: &KvLayout, slots: &LayerSlots) -> Result<()> {
        let (mixer, local) = (self.model.layers[layer].mixer, self.local.layers[layer]);
        let (q_size, kv_size) = (local.q_size() as u32, local.kv_size() as u32);
        let part = |column, width| Columns {
            column,
            width,
            ..slots.qkv
        };
        let linear = |linear| {
            let bias = mixer.qkv_bias.then_some(Role::bias(layer, linear));
            (Role::weight(layer, linear), bias)
        };
        let input = Self::read_by(self.model.norm.placement.is_before_attention(), &slots.feed);
        let input = self.columns(input);
        self.project(&Projection {
            input,
            parts: &[linear(Linear::Q), linear(Linear::K), linear(Linear::V)],
            out: part(0, q_size + 2 * kv_size),
            residual: None,
            out_dtype: self.options.act,
            max_rows: self.options.max_tokens,
        })?;
        let [q, k] = [(0, q_size, local.num_heads), (q_size, kv_size, local.num_kv_heads)];
        let normed = [(Norm::Query, q), (Norm::Key, k)];
        let [q, k] = [q, k].map(|(column, width, heads)| self.heads(part(column, width), heads));
        let v = self.heads(part(q_size + kv_size, kv_size), local.num_kv_heads);
        for (norm, (column, width, heads)) in normed {
            let (heads, width) = match mixer.qk_norm {
                None => continue,
                Some(QkNorm::Heads) => (self.heads(part(column, width), heads), mixer.head_dim),
                Some(QkNorm::Whole) => (self.columns(part(column, width)), width as usize),
                Some(QkNorm::OwnWeights) => {
                    let heads = self.heads(part(column, width), heads);
                    self.norm_of_heads(layer, norm, heads);
                    continue;
                }
            };
            self.norm(heads, Role::norm(layer, norm), heads, width);
        }
        match (mixer.rope, mixer.query_rope) {
            (None, _) => {}
            (Some(rope), None) => {
                // q and k are next to each other with equal heads: one op rotates both.
                let qk = self.heads(part(0, q_size + kv_size), local.num_heads + local.num_kv_heads);
                self.rope(layer, rope, qk);
            }
            (Some(rope), Some(query_rope)) => {
                self.rope(layer, query_rope, q);
                self.rope(layer, rope, k);
            }
        }
        let group = kv_layout.place(layer as u32).0;
        self.kv_write(layer, group, k, v);
        let attended = self.attended(layer, &slots.feed);
        self.attend(layer, group, q, attended);
        Ok(())
    }

    pub(super) fn rope(&mut self, layer: usize, index: usize, x: u16) {
        let rope = &self.model.ropes[index];
        let spec = Rope {
            head_dim: self.model.layers[layer].mixer.rope_dim() as u32,
            rotary_dim: rope.rotary_dim as u32,
            style: rope.style,
            dtype: self.options.act,
        };
        let positions = self.tensor(TensorRole::Positions, DType::I32);
        let table = self.tensor(TensorRole::RopeTable { index: index as u32 }, DType::F32);
        self.push(OpSpec::Rope(spec), vec![positions, table, x]);
    }

    fn kv_write(&mut self, layer: usize, group: u32, k: u16, v: u16) {
        let local = self.local.layers[layer];
        let spec = KvWrite {
            num_kv_heads: local.num_kv_heads as u32,
            head_dim: local.head_dim as u32,
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
        let (mixer, local, options) = (self.model.layers[layer].mixer, self.local.layers[layer], self.options);
        let spec = Attention {
            num_heads: local.num_heads as u32,
            num_kv_heads: local.num_kv_heads as u32,
            head_dim: local.head_dim as u32,
            scale: mixer.scale,
            window: mixer.window.unwrap_or(0) as u32,
            softcap: mixer.logit_softcap.unwrap_or(0.0),
            has_sinks: mixer.sinks,
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
        let out = self.heads(attended, local.num_heads);
        let sinks = match mixer.sinks {
            true => self.vector(&[Role::Layer(layer, Part::Sinks)]),
            false => ABSENT,
        };
        let operands = vec![q, cache, block_table, step_rows, query_start_loc, seq_lens, sinks, out];
        self.push(OpSpec::Attention(spec), operands);
    }

    /// Adds a part's projected result to the residual stream: [`Builder::join`].
    pub(super) fn output(
        &mut self,
        layer: usize,
        slots: &FeedSlots,
        input: Columns,
        (linear, has_bias): (Linear, bool),
        post_norm: Norm,
    ) -> Result<()> {
        let part = (
            Role::weight(layer, linear),
            has_bias.then_some(Role::bias(layer, linear)),
        );
        let branch = slots.branch.filter(|_| self.changes_parts());
        let hidden = self.columns(slots.hidden);
        let input = self.columns(input);
        self.project_sum(&Projection {
            input,
            parts: &[part],
            out: branch.unwrap_or(slots.hidden),
            residual: if branch.is_some() { None } else { Some(hidden) },
            out_dtype: self.options.act,
            max_rows: slots.max_rows,
        })?;
        if let Some(branch) = branch {
            self.join(layer, slots, branch, post_norm);
        }
        Ok(())
    }

    /// Adds a branch to the residual stream, normalised or scaled first where the model says so.
    pub(super) fn join(&mut self, layer: usize, slots: &FeedSlots, branch: Columns, post_norm: Norm) {
        let (width, dtype) = (self.model.hidden_size, self.options.act);
        let (hidden, branch) = (self.columns(slots.hidden), self.columns(branch));
        if self.model.norm.placement.is_after() {
            self.norm(branch, Role::norm(layer, post_norm), branch, width);
        }
        if self.model.residual_scale != 1.0 {
            self.scale(branch, width as u32, dtype, self.model.residual_scale);
        }
        let add = Add {
            width: width as u32,
            dtype,
        };
        self.push(OpSpec::Add(add), vec![hidden, branch, hidden]);
    }
}
