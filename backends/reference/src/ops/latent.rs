//! `head_linear`, and `latent_write` and `latent_attention` over paged latents, again in two independent ways: `direct`
//! materialises the scores, `online` never does.

use halyard_platform_api::ops::{HeadLinear, LatentAttention, LatentWrite};
use halyard_platform_api::weight_format::dequantise_row;
use halyard_platform_api::{DType, Error, Result};

use super::dot;
use crate::attention_registry::{LatentLayout, ONLINE};
use crate::element::{read_float, write_float};
use crate::operand::{Args, Operand};

pub(super) fn head_linear(op: &HeadLinear, args: &Args<'_>) -> Result<()> {
    let (heads, k, n) = (op.num_heads as usize, op.in_features as usize, op.out_features as usize);
    let x = args.typed(0, op.dtype, &[heads, k])?.floats();
    let weight = args.typed(1, DType::U8, &[])?;
    let out = args.typed(2, op.dtype, &[heads, n])?;
    let tokens = x.len() / (heads * k).max(1);
    args.expect_rows(2, tokens)?;
    let row_bytes = op.weight.row_bytes(k).unwrap_or(0);
    if weight.tensor.span_bytes() as usize != heads * n * row_bytes {
        let found = weight.tensor.span_bytes();
        let expected = format!("{heads} matrices of {n} rows of {row_bytes}");
        return Err(args.error(1, format!("{found} bytes, expected {expected}")));
    }
    let mut y = vec![0.0; tokens * heads * n];
    let mut row = vec![0.0; k];
    weight.with_raw(|bytes| {
        // Row h · n + column of the weight gives value `column` of head h.
        for (index, row_data) in bytes.chunks_exact(row_bytes.max(1)).enumerate() {
            dequantise_row(op.weight, row_data, &mut row);
            let head = index / n;
            for t in 0..tokens {
                y[t * heads * n + index] = dot(&x[(t * heads + head) * k..][..k], &row);
            }
        }
    });
    out.store_floats(&y);
    Ok(())
}

pub(super) fn latent_write(op: &LatentWrite, args: &Args<'_>) -> Result<()> {
    let layout = LatentLayout {
        backend: op.backend,
        dims: [op.latent_dim as usize, op.rope_dim as usize],
        block_size: op.block_size as usize,
        kv: op.kv,
    };
    let parts = [
        args.typed(0, op.act, &layout.dims[..1])?,
        args.typed(1, op.act, &layout.dims[1..])?,
    ];
    let slots = args.ints(2)?;
    args.expect_rows(0, slots.len())?;
    args.expect_rows(1, slots.len())?;
    let cache = args.typed(3, DType::U8, &[layout.block_bytes()])?;
    let num_slots = cache.dim(0) * layout.block_size;
    for (t, &slot) in slots.iter().enumerate() {
        if slot == -1 {
            continue;
        }
        if slot < 0 || slot as usize >= num_slots {
            return Err(args.error(2, format!("slot {slot} is outside the cache of {num_slots} slots")));
        }
        let (page, token) = (slot as usize / layout.block_size, slot as usize % layout.block_size);
        for (part, operand) in parts.iter().enumerate() {
            let values = operand.row(t as i32)?.floats();
            let mut bytes = vec![0; values.len() * op.kv.bytes()];
            for (value, bytes) in values.iter().zip(bytes.chunks_exact_mut(op.kv.bytes())) {
                write_float(op.kv, *value, bytes);
            }
            cache.write_raw(page * cache.row_stride() + layout.offset(part, token), &bytes)?;
        }
    }
    Ok(())
}

pub(super) fn latent_attention(op: &LatentAttention, args: &Args<'_>) -> Result<()> {
    let layout = LatentLayout {
        backend: op.backend,
        dims: [op.latent_dim as usize, op.rope_dim as usize],
        block_size: op.block_size as usize,
        kv: op.kv,
    };
    let [latent_dim, rope_dim] = layout.dims;
    let heads = op.num_heads as usize;
    let q_latent = args.typed(0, op.act, &[heads, latent_dim])?;
    let q_rope = args.typed(1, op.act, &[heads, rope_dim])?;
    let cache = args.typed(2, DType::U8, &[layout.block_bytes()])?;
    let block_table = args.typed(3, DType::I32, &[])?;
    let step_rows = args.ints(4)?;
    let starts = args.ints(5)?;
    let seq_lens = args.ints(6)?;
    let out = args.typed(7, op.act, &[heads, latent_dim])?;
    if starts.len() != step_rows.len() + 1 || seq_lens.len() != step_rows.len() {
        return Err(args.error(5, format!("{} entries for {} sequences", starts.len(), step_rows.len())));
    }
    for (s, &row) in step_rows.iter().enumerate() {
        let (start, end, seq_len) = (starts[s], starts[s + 1], seq_lens[s]);
        if row == -1 || start == end {
            continue;
        }
        if end < start || seq_len < end - start {
            return Err(args.error(6, format!("sequence {s}: {seq_len} keys for tokens {start} .. {end}")));
        }
        let pages = block_table.row(row)?.ints();
        let seen = Seen::read(&layout, cache, &pages, seq_len as usize)
            .map_err(|e| args.error(3, format!("sequence {s}, row {row}: {}", e.message)))?;
        for t in start..end {
            let count = (seq_len - end + t) as usize + 1;
            let (latents, ropes) = (q_latent.row(t)?.floats(), q_rope.row(t)?.floats());
            let mut result = Vec::with_capacity(latents.len());
            for (latent, rope) in latents.chunks_exact(latent_dim).zip(ropes.chunks_exact(rope_dim)) {
                let score = |j: usize| op.scale * (dot(latent, seen.latent(j)) + dot(rope, seen.key(j)));
                result.extend(match op.backend {
                    ONLINE => online(count, score, &seen),
                    _ => direct(count, score, &seen),
                });
            }
            out.row(t)?.store_floats(&result);
        }
    }
    Ok(())
}

/// The latents and keys of a sequence, in position order.
struct Seen {
    dims: [usize; 2],
    latents: Vec<f32>,
    keys: Vec<f32>,
}

impl Seen {
    fn read(layout: &LatentLayout, cache: &Operand, pages: &[i32], count: usize) -> Result<Seen> {
        let mut seen = Seen {
            dims: layout.dims,
            latents: Vec::new(),
            keys: Vec::new(),
        };
        for first in (0..count).step_by(layout.block_size) {
            let index = first / layout.block_size;
            let page = pages.get(index).copied().unwrap_or(-1);
            if page < 0 || page as usize >= cache.dim(0) {
                return Err(Error::invalid(format!(
                    "block {index} is page {page} of a cache of {} pages",
                    cache.dim(0)
                )));
            }
            let block = cache.raw(page as usize * cache.row_stride(), layout.block_bytes())?;
            for token in 0..layout.block_size.min(count - first) {
                for (part, values) in [&mut seen.latents, &mut seen.keys].into_iter().enumerate() {
                    let bytes = &block[layout.offset(part, token)..][..layout.part_bytes(part)];
                    values.extend(bytes.chunks_exact(layout.kv.bytes()).map(|b| read_float(layout.kv, b)));
                }
            }
        }
        Ok(seen)
    }

    fn latent(&self, j: usize) -> &[f32] {
        &self.latents[j * self.dims[0]..][..self.dims[0]]
    }

    fn key(&self, j: usize) -> &[f32] {
        &self.keys[j * self.dims[1]..][..self.dims[1]]
    }
}

/// All scores, then their softmax, then the weighted sum.
fn direct(count: usize, score: impl Fn(usize) -> f32, seen: &Seen) -> Vec<f32> {
    let scores: Vec<f32> = (0..count).map(score).collect();
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = scores.iter().map(|s| (s - max).exp()).collect();
    let total: f32 = weights.iter().sum();
    let mut out = vec![0.0; seen.dims[0]];
    for (j, weight) in weights.iter().enumerate() {
        for (o, v) in out.iter_mut().zip(seen.latent(j)) {
            *o += weight / total * v;
        }
    }
    out
}

/// One pass with a running maximum.
fn online(count: usize, score: impl Fn(usize) -> f32, seen: &Seen) -> Vec<f32> {
    let (mut max, mut total) = (f32::NEG_INFINITY, 0.0);
    let mut out = vec![0.0; seen.dims[0]];
    for j in 0..count {
        let score = score(j);
        let new_max = score.max(max);
        let (rescale, weight) = ((max - new_max).exp(), (score - new_max).exp());
        total = total * rescale + weight;
        for (o, v) in out.iter_mut().zip(seen.latent(j)) {
            *o = *o * rescale + weight * v;
        }
        max = new_max;
    }
    out.iter_mut().for_each(|o| *o /= total);
    out
}
