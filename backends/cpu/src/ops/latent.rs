//! `head_linear`, and `latent_write` and `latent_attention` over the kernels' block layout. Attention is shared out by
//! (sequence, tile of queries, heads): each piece reads a row of the cache once for all of its heads.

use std::cell::RefCell;

use halyard_kernels_cpu::{
    self as kernels, ActMode, HeadRows, LINEAR_SCRATCH, LatentLayout, act_bytes, num_act_parts, num_panels,
};
use halyard_platform_api::{DType, Error, Result, Tensor, WeightRows, ops};

use super::attention::kv_layout;
use super::forms::Form;
use super::linear::PackedWeight;
use super::only_f32;
use crate::kernel::{Kernel, Worker};
use crate::objects::Objects;
use crate::view::View;

/// Rows (query × head) of one piece of attention: their queries and sums stay in a core's second cache beside a tile
/// of keys.
const ROWS: usize = 64;

/// Fewest heads of a piece where there are too few pieces for the threads: a tile of keys is made for every piece.
const LEAST_HEADS: usize = 4;

thread_local! {
    /// What attention over latents needs besides its operands.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

pub(crate) struct HeadLinear {
    heads: usize,
    max_tokens: usize,
    weight: PackedWeight,
}

impl HeadLinear {
    pub(crate) fn new(op: &ops::HeadLinear) -> Result<HeadLinear> {
        only_f32("head_linear", op.dtype)?;
        let form = Form::of("head_linear", op.weight, op.in_features)?;
        let (n, k, heads) = (op.out_features as usize, op.in_features as usize, op.num_heads as usize);
        Ok(HeadLinear {
            heads,
            max_tokens: op.max_tokens as usize,
            weight: PackedWeight::new(form, n, k, heads),
        })
    }
}

impl Kernel for HeadLinear {
    fn phases(&self) -> usize {
        2
    }

    fn scratch_bytes(&self) -> usize {
        self.heads * act_bytes(ActMode::F32, self.max_tokens, self.weight.k)
    }

    unsafe fn run(&self, phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        let [x, weight, out] = operands else {
            unreachable!("head_linear has three operands")
        };
        let (tokens, n, k) = (out.len(), self.weight.n, self.weight.k);
        if tokens == 0 {
            return;
        }
        let act_bytes = act_bytes(ActMode::F32, tokens, k);
        if phase == 0 {
            for head in worker.share(self.heads) {
                let parts = 0..num_act_parts(ActMode::F32, tokens);
                // SAFETY: x holds `tokens` rows of each head; heads are shared out, and so is their scratch.
                unsafe {
                    let (from, to) = (x.element_ptr(0, head), worker.shared.add(head * act_bytes));
                    let from = from.cast_const().cast();
                    worker
                        .kernels
                        .prepare_act(ActMode::F32, from, x.row_stride(), tokens, k, parts, to);
                }
            }
            return;
        }
        for head in worker.pieces(tokens, self.heads, 1).flatten() {
            let matrix = self.weight.matrix_bytes();
            // SAFETY: packed by `pack_weight`, laid out in phase 0; heads are shared out.
            unsafe {
                let act = std::slice::from_raw_parts(worker.shared.add(head * act_bytes), act_bytes);
                worker.kernels.linear(kernels::Linear {
                    format: self.weight.format,
                    mode: ActMode::F32,
                    n,
                    k,
                    tokens,
                    weight: &weight.all()[head * matrix..][..matrix],
                    act,
                    panels: 0..num_panels(n),
                    out: out.element_ptr(0, head).cast(),
                    out_stride: out.row_stride(),
                    bias: None,
                    accumulate: false,
                    scratch: &mut worker.local[..LINEAR_SCRATCH],
                });
            }
        }
    }

    fn packed_weight_bytes(&self) -> Result<u64> {
        Ok(self.weight.bytes() as u64)
    }

    fn pack_weight(&self, rows: &WeightRows<'_>, dst: &Tensor, objects: &Objects) -> Result<()> {
        self.weight.pack(rows, dst, objects)
    }
}

/// Layout of a block of one layer.
///
/// # Errors
/// `Unsupported` for a type that no cache is held in here.
pub(crate) fn latent_layout(kv: DType, block_size: u32, latent_dim: u32, rope_dim: u32) -> Result<LatentLayout> {
    let dtype = kv_layout(kv, 1, 1, 1)?.dtype;
    if dtype.is_coded() {
        return Err(Error::unsupported(format!(
            "latents in {kv:?}: this platform holds them in F32, F16, BF16 or F8E4M3"
        )));
    }
    Ok(LatentLayout {
        dtype,
        block_size: block_size as usize,
        latent_dim: latent_dim as usize,
        rope_dim: rope_dim as usize,
    })
}

/// All reasons why a spec does not run here.
pub(crate) fn reasons(spec: &ops::LatentAttention) -> Result<()> {
    let mut reasons = Vec::new();
    if spec.backend != 0 {
        reasons.push(format!(
            "attention backend {}: this platform has one, index 0",
            spec.backend
        ));
    }
    reasons.extend(only_f32("latent_attention", spec.act).err().map(|e| e.message));
    reasons.extend(latent_layout(spec.kv, 1, 1, 1).err().map(|e| e.message));
    let sizes = [spec.num_heads, spec.block_size, spec.latent_dim, spec.rope_dim];
    if sizes.contains(&0) {
        reasons.push(format!(
            "{} heads, block size {}, latents of {} and keys of {} must not be 0",
            spec.num_heads, spec.block_size, spec.latent_dim, spec.rope_dim
        ));
    }
    if reasons.is_empty() {
        Ok(())
    } else {
        Err(Error::unsupported(reasons.join("\n")))
    }
}

pub(crate) struct LatentWrite {
    layout: LatentLayout,
}

impl LatentWrite {
    pub(crate) fn new(op: &ops::LatentWrite) -> Result<LatentWrite> {
        only_f32("latent_write", op.act)?;
        if op.backend != 0 || op.block_size == 0 {
            return Err(Error::unsupported(format!(
                "attention backend {} with blocks of {}: this platform has one backend, index 0, and blocks have a \
                 size",
                op.backend, op.block_size
            )));
        }
        Ok(LatentWrite {
            layout: latent_layout(op.kv, op.block_size, op.latent_dim, op.rope_dim)?,
        })
    }
}

impl Kernel for LatentWrite {
    fn rows(&self, operands: &[View]) -> Option<usize> {
        operands.first().map(View::len)
    }

    unsafe fn run(&self, _phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        let [latent, key, slots, cache] = operands else {
            unreachable!("latent_write has four operands")
        };
        let layout = &self.layout;
        for t in worker.share_rows(latent.len(), 1) {
            // SAFETY: slots of a step differ, so tokens are shared out; the slot lies inside the cache.
            unsafe {
                let slot = slots.vector()[t];
                if slot < 0 {
                    continue;
                }
                let (page, token) = (slot as usize / layout.block_size, slot as usize % layout.block_size);
                let latent = latent.f32s(t, 0, layout.latent_dim);
                let key = key.f32s(t, 0, layout.rope_dim);
                kernels::latent_write(layout, cache.element_ptr(page, 0), token, latent, key);
            }
        }
    }
}

pub(crate) struct LatentAttention {
    layout: LatentLayout,
    heads: usize,
    scale: f32,
}

impl LatentAttention {
    pub(crate) fn new(op: &ops::LatentAttention) -> Result<LatentAttention> {
        reasons(op)?;
        Ok(LatentAttention {
            layout: latent_layout(op.kv, op.block_size, op.latent_dim, op.rope_dim)?,
            heads: op.num_heads as usize,
            scale: op.scale,
        })
    }

    /// Heads of a piece, with so many sequences in the step on so many threads: few enough that all threads have one.
    fn heads_of_piece(&self, seqs: usize, threads: usize) -> usize {
        let pieces_of_seq = threads.div_ceil(seqs.max(1));
        self.heads.div_ceil(pieces_of_seq).clamp(LEAST_HEADS, ROWS)
    }
}

impl Kernel for LatentAttention {
    unsafe fn run(&self, _phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        let [q_latent, q_rope, cache, table, rows, starts, lens, out] = operands else {
            unreachable!("latent_attention has eight operands")
        };
        // SAFETY: all are read but out, whose (query, head) parts are shared out.
        unsafe {
            let (rows, starts, lens) = (rows.vector(), starts.vector(), lens.vector());
            let per_piece = self.heads_of_piece(rows.len(), worker.size);
            let pieces = self.heads.div_ceil(per_piece);
            let queries_of_piece = ROWS.div_ceil(per_piece);
            // All threads count the jobs alike, and each does its own.
            let jobs = (0..rows.len()).filter(|&s| rows[s] >= 0);
            let jobs = jobs
                .map(|s| pieces * ((starts[s + 1] - starts[s]) as usize).div_ceil(queries_of_piece))
                .sum();
            let mut mine = worker.pieces(out.len(), jobs, 1).flatten();
            let (mut job, mut next) = (0, mine.next());
            for s in 0..rows.len() {
                let query_len = (starts[s + 1] - starts[s]) as usize;
                if rows[s] < 0 || query_len == 0 {
                    continue;
                }
                let blocks = table.i32s(rows[s] as usize, 0, table.shape[1]);
                for first in (0..query_len).step_by(queries_of_piece) {
                    for head in (0..self.heads).step_by(per_piece) {
                        job += 1;
                        if next != Some(job - 1) {
                            continue;
                        }
                        next = mine.next();
                        let token = starts[s] as usize;
                        let queries = first..(first + queries_of_piece).min(query_len);
                        let heads = head..(head + per_piece).min(self.heads);
                        SCRATCH.with_borrow_mut(|scratch| {
                            let needed = self.layout.scratch(queries.len() * heads.len());
                            scratch.resize(scratch.len().max(needed), 0.0);
                            worker.kernels.latent_attention(kernels::LatentAttention {
                                layout: self.layout,
                                pool: cache.ptr(),
                                block_stride: cache.row_stride(),
                                block_table: blocks,
                                q_latent: head_rows(q_latent, token),
                                q_rope: head_rows(q_rope, token),
                                out: HeadRows {
                                    first: out.element_ptr(token, 0).cast(),
                                    stride: out.row_stride(),
                                    head_stride: out.second_stride(),
                                },
                                queries,
                                heads,
                                first_position: lens[s] as usize - query_len,
                                scale: self.scale,
                                scratch,
                            });
                        });
                    }
                }
            }
        }
    }
}

fn head_rows(view: &View, token: usize) -> HeadRows<*const f32> {
    HeadRows {
        first: view.element_ptr(token, 0).cast_const().cast(),
        stride: view.row_stride(),
        head_stride: view.second_stride(),
    }
}
