//! Latent attention as ops (DeepSeek-AI 2024, arXiv 2405.04434), in its absorbed form: what makes keys of latents is
//! multiplied into the queries, and what makes values of latents is applied to the result. So attention reads latents
//! alone, one row a token for all heads.

use halyard_platform_api::ops::{HeadLinear, LatentAttention, LatentWrite};
use halyard_platform_api::{DType, OpSpec};

use super::builder::{Builder, Columns, Projection};
use super::slots::{LatentSlots, LayerSlots};
use super::{KvLayout, TensorRole};
use crate::config::LatentDescription;
use crate::error::Result;
use crate::weights::{Linear, Norm, Role};

/// A layer's columns of the slot for queries and latents, one behind the other. The turned parts are neighbours.
struct Parts {
    q_nope: Columns,
    q_rope: Columns,
    key: Columns,
    latent: Columns,
    query_low: Columns,
}

impl Parts {
    fn of(slot: Columns, heads: usize, latent: &LatentDescription) -> Parts {
        let mut end = 0;
        let mut next = |width: usize| {
            let column = end;
            end += width as u32;
            Columns {
                column,
                width: width as u32,
                ..slot
            }
        };
        Parts {
            q_nope: next(heads * latent.nope_dim),
            q_rope: next(heads * latent.rope_dim),
            key: next(latent.rope_dim),
            latent: next(latent.latent_dim),
            query_low: next(latent.query_rank.unwrap_or(0)),
        }
    }
}

impl Builder<'_> {
    /// The attention part of a layer with latents, up to the output projection.
    pub(super) fn latent_attention(
        &mut self,
        layer: usize,
        latent: LatentDescription,
        kv_layout: &KvLayout,
        slots: &LayerSlots,
        own: &LatentSlots,
    ) -> Result<()> {
        let (mixer, heads) = (self.model.layers[layer].mixer, self.local.layers[layer].num_heads);
        let parts = Parts::of(slots.qkv, heads, &latent);
        self.project_latents(layer, &latent, slots, &parts)?;
        if let Some(rope) = mixer.rope {
            // Queries and the key are next to each other with equal heads: one op turns both.
            let turned = Columns {
                width: parts.q_rope.width + parts.key.width,
                ..parts.q_rope
            };
            let turned = self.heads(turned, heads + 1);
            self.rope(layer, rope, turned);
        }
        let of_layer = |columns: Columns, width: usize| Columns {
            width: (heads * width) as u32,
            ..columns
        };
        let queries = of_layer(own.queries, latent.latent_dim);
        let sums = of_layer(own.sums, latent.latent_dim);
        self.head_linear(layer, Linear::KeyUp, [parts.q_nope, queries])?;

        let group = kv_layout.place(layer as u32).0;
        let cache = self.tensor(TensorRole::KvCache { layer: layer as u32 }, DType::U8);
        self.write_latents(&latent, group, &parts, cache);
        self.attend_latents(layer, &latent, group, [queries, parts.q_rope, sums], cache);
        let attended = self.attended(layer, &slots.feed);
        self.head_linear(layer, Linear::ValueUp, [sums, attended])
    }

    /// Queries, latents and keys from the hidden state.
    fn project_latents(
        &mut self,
        layer: usize,
        latent: &LatentDescription,
        slots: &LayerSlots,
        parts: &Parts,
    ) -> Result<()> {
        let linear = |linear| (Role::weight(layer, linear), None);
        let queries = [linear(Linear::QueryNope), linear(Linear::QueryRope)];
        let rest = [
            linear(Linear::KeyRope),
            linear(Linear::Latent),
            linear(Linear::QueryLow),
        ];
        let input = Self::read_by(self.model.norm.placement.is_before_attention(), &slots.feed);
        let input = self.columns(input);
        let queries_out = Columns {
            width: parts.q_nope.width + parts.q_rope.width,
            ..parts.q_nope
        };
        let rest_out = Columns {
            width: parts.key.width + parts.latent.width + parts.query_low.width,
            ..parts.key
        };
        let projection = |input, parts, out| Projection {
            input,
            parts,
            out,
            residual: None,
            out_dtype: self.options.act,
            max_rows: self.options.max_tokens,
        };
        if latent.query_rank.is_some() {
            let first = projection(input, &rest, rest_out);
            self.project(&first)?;
            let low = self.columns(parts.query_low);
            self.norm_latent(layer, Norm::QueryLow, parts.query_low, latent);
            let second = Projection {
                input: low,
                parts: &queries,
                out: queries_out,
                ..first
            };
            self.project(&second)?;
        } else {
            let all = [queries[0], queries[1], rest[0], rest[1]];
            let out = Columns {
                width: queries_out.width + rest_out.width,
                ..queries_out
            };
            let all = projection(input, &all, out);
            self.project(&all)?;
        }
        self.norm_latent(layer, Norm::Latent, parts.latent, latent);
        Ok(())
    }

    /// Rows normalised in place.
    fn norm_latent(&mut self, layer: usize, norm: Norm, columns: Columns, latent: &LatentDescription) {
        let weight = self.vector(&[Role::norm(layer, norm)]);
        let x = self.columns(columns);
        let offset = self.model.norm.weight_offset;
        self.rms_norm([x, weight, x], columns.width, offset, latent.norm_eps);
    }

    /// Each head by its own matrix.
    fn head_linear(&mut self, layer: usize, linear: Linear, [from, to]: [Columns; 2]) -> Result<()> {
        let (role, heads) = (Role::weight(layer, linear), self.local.layers[layer].num_heads);
        let spec = HeadLinear {
            num_heads: heads as u32,
            in_features: from.width / heads as u32,
            out_features: to.width / heads as u32,
            weight: self.format(role)?,
            dtype: self.options.act,
            max_tokens: self.options.max_tokens,
        };
        let operands = vec![self.heads(from, heads), self.matrix(&[role])?, self.heads(to, heads)];
        self.push(OpSpec::HeadLinear(spec), operands);
        Ok(())
    }

    fn write_latents(&mut self, latent: &LatentDescription, group: u32, parts: &Parts, cache: u16) {
        let options = self.options;
        let spec = LatentWrite {
            latent_dim: latent.latent_dim as u32,
            rope_dim: latent.rope_dim as u32,
            act: options.act,
            kv: options.kv,
            block_size: options.block_size,
            backend: options.attention_backend,
            max_tokens: options.max_tokens,
        };
        let operands = vec![
            self.columns(parts.latent),
            self.columns(parts.key),
            self.tensor(TensorRole::Slots { group }, DType::I32),
            cache,
        ];
        self.push(OpSpec::LatentWrite(spec), operands);
    }

    fn attend_latents(
        &mut self,
        layer: usize,
        latent: &LatentDescription,
        group: u32,
        [queries, q_rope, sums]: [Columns; 3],
        cache: u16,
    ) {
        let (options, heads) = (self.options, self.local.layers[layer].num_heads);
        let spec = LatentAttention {
            num_heads: heads as u32,
            latent_dim: latent.latent_dim as u32,
            rope_dim: latent.rope_dim as u32,
            scale: self.model.layers[layer].mixer.scale,
            act: options.act,
            kv: options.kv,
            block_size: options.block_size,
            backend: options.attention_backend,
            max_seqs: options.max_seqs,
            max_tokens: options.max_tokens,
            max_query_len: options.max_tokens.min(options.max_kv_len),
            max_kv_len: options.max_kv_len,
        };
        let operands = vec![
            self.heads(queries, heads),
            self.heads(q_rope, heads),
            cache,
            self.tensor(TensorRole::BlockTable { group }, DType::I32),
            self.tensor(TensorRole::StepRows, DType::I32),
            self.tensor(TensorRole::QueryStartLoc, DType::I32),
            self.tensor(TensorRole::SeqLens, DType::I32),
            self.heads(sums, heads),
        ];
        self.push(OpSpec::LatentAttention(spec), operands);
    }
}
