//! `kv_write` and `attention` over paged KV, in two independent ways: `direct` materialises the scores, `online` never
//! does.

use halyard_platform_api::ops::{Attention, KvWrite};
use halyard_platform_api::{DType, Result};

use super::dot;
use crate::attention_registry::{KvLayout, ONLINE};
use crate::held;
use crate::operand::{Args, Operand};

pub(super) fn kv_write(op: &KvWrite, args: &Args<'_>) -> Result<()> {
    let layout = KvLayout {
        backend: op.backend,
        num_kv_heads: op.num_kv_heads as usize,
        head_dim: op.head_dim as usize,
        block_size: op.block_size as usize,
        kv: op.kv,
    };
    let shape = [layout.num_kv_heads, layout.head_dim];
    let parts = [args.typed(0, op.act, &shape)?, args.typed(1, op.act, &shape)?];
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
            for (head, values) in values.chunks_exact(layout.head_dim).enumerate() {
                let at = page * cache.row_stride() + layout.offset(part, token, head);
                cache.write_raw(at, &held::encode(layout.kv, values, part == 0))?;
            }
        }
    }
    Ok(())
}

pub(super) fn attention(op: &Attention, args: &Args<'_>) -> Result<()> {
    let layout = KvLayout {
        backend: op.backend,
        num_kv_heads: op.num_kv_heads as usize,
        head_dim: op.head_dim as usize,
        block_size: op.block_size as usize,
        kv: op.kv,
    };
    let shape = [op.num_heads as usize, layout.head_dim];
    let q = args.typed(0, op.act, &shape)?;
    let cache = args.typed(1, DType::U8, &[layout.block_bytes()])?;
    let block_table = args.typed(2, DType::I32, &[])?;
    let step_rows = args.ints(3)?;
    let starts = args.ints(4)?;
    let seq_lens = args.ints(5)?;
    let sinks = match op.has_sinks {
        true => Some(args.typed(6, DType::F32, &[op.num_heads as usize])?.floats()),
        false => None,
    };
    let out = args.typed(7, op.act, &shape)?;
    if starts.len() != step_rows.len() + 1 || seq_lens.len() != step_rows.len() {
        return Err(args.error(4, format!("{} entries for {} sequences", starts.len(), step_rows.len())));
    }
    for (s, &row) in step_rows.iter().enumerate() {
        let (start, end, seq_len) = (starts[s], starts[s + 1], seq_lens[s]);
        if row == -1 || start == end {
            continue;
        }
        if end < start || seq_len < end - start {
            return Err(args.error(5, format!("sequence {s}: {seq_len} keys for tokens {start} .. {end}")));
        }
        let pages = block_table.row(row)?.ints();
        for t in start..end {
            let position = (seq_len - end + t) as usize;
            let keys = Keys::read(op, &layout, cache, &pages, position)
                .map_err(|e| args.error(2, format!("sequence {s}, row {row}: {}", e.message)))?;
            let q = q.row(t)?.floats();
            let mut result = Vec::with_capacity(q.len());
            for (head, q) in q.chunks_exact(layout.head_dim).enumerate() {
                let kv_head = head / (op.num_heads / op.num_kv_heads) as usize;
                let sink = sinks.as_ref().map(|sinks| sinks[head]);
                result.extend(match op.backend {
                    ONLINE => online(op, q, &keys, kv_head, sink),
                    _ => direct(op, q, &keys, kv_head, sink),
                });
            }
            out.row(t)?.store_floats(&result);
        }
    }
    Ok(())
}

/// The keys and values that one token sees, in position order: \[position, kv_head, head_dim\].
struct Keys {
    count: usize,
    num_kv_heads: usize,
    head_dim: usize,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Keys {
    fn read(op: &Attention, layout: &KvLayout, cache: &Operand, pages: &[i32], position: usize) -> Result<Keys> {
        let window = op.window as usize;
        let first = match window {
            0 => 0,
            _ => (position + 1).saturating_sub(window),
        };
        let mut keys = Keys {
            count: position + 1 - first,
            num_kv_heads: layout.num_kv_heads,
            head_dim: layout.head_dim,
            k: Vec::new(),
            v: Vec::new(),
        };
        let mut held = usize::MAX;
        let mut block = Vec::new();
        for j in first..=position {
            let index = j / layout.block_size;
            if index != held {
                block = read_block(layout, cache, pages, index)?;
                held = index;
            }
            for (part, values) in [&mut keys.k, &mut keys.v].into_iter().enumerate() {
                for head in 0..layout.num_kv_heads {
                    let at = layout.offset(part, j % layout.block_size, head);
                    let bytes = &block[at..at + layout.head_bytes()];
                    values.extend(held::decode(layout.kv, bytes, layout.head_dim, part == 0));
                }
            }
        }
        Ok(keys)
    }

    fn k(&self, j: usize, kv_head: usize) -> &[f32] {
        &self.k[(j * self.num_kv_heads + kv_head) * self.head_dim..][..self.head_dim]
    }

    fn v(&self, j: usize, kv_head: usize) -> &[f32] {
        &self.v[(j * self.num_kv_heads + kv_head) * self.head_dim..][..self.head_dim]
    }
}

fn read_block(layout: &KvLayout, cache: &Operand, pages: &[i32], index: usize) -> Result<Vec<u8>> {
    let page = pages.get(index).copied().unwrap_or(-1);
    if page < 0 || page as usize >= cache.dim(0) {
        return Err(halyard_platform_api::Error::invalid(format!(
            "block {index} is page {page} of a cache of {} pages",
            cache.dim(0)
        )));
    }
    cache.raw(page as usize * cache.row_stride(), layout.block_bytes())
}

fn score(op: &Attention, q: &[f32], k: &[f32]) -> f32 {
    let score = op.scale * dot(q, k);
    if op.softcap == 0.0 {
        score
    } else {
        op.softcap * (score / op.softcap).tanh()
    }
}

/// All scores, then their softmax, then the weighted sum.
fn direct(op: &Attention, q: &[f32], keys: &Keys, kv_head: usize, sink: Option<f32>) -> Vec<f32> {
    let scores: Vec<f32> = (0..keys.count).map(|j| score(op, q, keys.k(j, kv_head))).collect();
    let max = scores.iter().copied().chain(sink).fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = scores.iter().map(|s| (s - max).exp()).collect();
    let total = weights.iter().sum::<f32>() + sink.map_or(0.0, |s| (s - max).exp());
    let mut out = vec![0.0; q.len()];
    for (j, weight) in weights.iter().enumerate() {
        for (o, v) in out.iter_mut().zip(keys.v(j, kv_head)) {
            *o += weight / total * v;
        }
    }
    out
}

/// One pass with a running maximum (Milakov, Gimelshein 2018, arXiv 1805.02867). A sink is where the pass starts.
fn online(op: &Attention, q: &[f32], keys: &Keys, kv_head: usize, sink: Option<f32>) -> Vec<f32> {
    let mut max = sink.unwrap_or(f32::NEG_INFINITY);
    let mut total = if sink.is_some() { 1.0 } else { 0.0 };
    let mut out = vec![0.0; q.len()];
    for j in 0..keys.count {
        let score = score(op, q, keys.k(j, kv_head));
        let new_max = score.max(max);
        let (rescale, weight) = ((max - new_max).exp(), (score - new_max).exp());
        total = total * rescale + weight;
        for (o, v) in out.iter_mut().zip(keys.v(j, kv_head)) {
            *o = *o * rescale + weight * v;
        }
        max = new_max;
    }
    out.iter_mut().for_each(|o| *o /= total);
    out
}
