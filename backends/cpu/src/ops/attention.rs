//! `kv_write` and `attention` over the kernels' block layout. Work is shared out by (sequence, KV head, tile of
//! queries).

use halyard_kernels_cpu::{self as kernels, KvDtype, KvLayout};
use halyard_platform_api::{DType, Error, Result, ops};

use super::only_f32;
use crate::kernel::{Kernel, Worker};
use crate::view::View;

/// Queries of one piece of work.
const QUERY_TILE: usize = 16;

/// Layout of a block of one layer.
pub(crate) fn kv_layout(kv: DType, block_size: u32, num_kv_heads: u32, head_dim: u32) -> Result<KvLayout> {
    let dtype = match kv {
        DType::F32 => KvDtype::F32,
        DType::F16 => KvDtype::F16,
        DType::BF16 => KvDtype::Bf16,
        DType::F8E4M3 => KvDtype::E4m3,
        DType::I8 => KvDtype::I8,
        DType::U4 => KvDtype::U4,
        other => {
            return Err(Error::unsupported(format!(
                "a KV cache in {other:?}: this platform holds F32, F16, BF16, F8E4M3, I8 or U4"
            )));
        }
    };
    Ok(KvLayout {
        dtype,
        block_size: block_size as usize,
        num_kv_heads: num_kv_heads as usize,
        head_dim: head_dim as usize,
    })
}

/// All reasons why a spec does not run here.
pub(crate) fn reasons(spec: &ops::Attention) -> Result<()> {
    let mut reasons = Vec::new();
    if spec.backend != 0 {
        reasons.push(format!(
            "attention backend {}: this platform has one, index 0",
            spec.backend
        ));
    }
    reasons.extend(only_f32("attention", spec.act).err().map(|e| e.message));
    reasons.extend(kv_layout(spec.kv, 1, 1, 1).err().map(|e| e.message));
    if spec.num_kv_heads == 0 || !spec.num_heads.is_multiple_of(spec.num_kv_heads) {
        reasons.push(format!(
            "{} query heads are no multiple of {} KV heads",
            spec.num_heads, spec.num_kv_heads
        ));
    }
    if spec.block_size == 0 || spec.head_dim == 0 {
        reasons.push(format!(
            "block size {} and head dimension {} must not be 0",
            spec.block_size, spec.head_dim
        ));
    }
    reasons.extend(head_reason(spec.kv, spec.head_dim));
    if reasons.is_empty() {
        Ok(())
    } else {
        Err(Error::unsupported(reasons.join("\n")))
    }
}

/// Why heads of this size do not go into a cache of this type.
fn head_reason(kv: DType, head_dim: u32) -> Option<String> {
    let limit = match kv {
        DType::BF16 => kernels::MAX_BF16_HEAD_DIM,
        DType::U4 => kernels::MAX_U4_HEAD_DIM,
        _ => return None,
    };
    (head_dim as usize > limit).then(|| {
        format!("heads of {head_dim} elements over a KV cache in {kv:?}: the limit is {limit} (F32, F16, I8 have none)")
    })
}

pub(crate) struct KvWrite {
    layout: KvLayout,
}

impl KvWrite {
    pub(crate) fn new(op: &ops::KvWrite) -> Result<KvWrite> {
        only_f32("kv_write", op.act)?;
        if op.backend != 0 {
            return Err(Error::unsupported(format!(
                "attention backend {}: this platform has one, index 0",
                op.backend
            )));
        }
        if let Some(reason) = head_reason(op.kv, op.head_dim) {
            return Err(Error::unsupported(reason));
        }
        Ok(KvWrite {
            layout: kv_layout(op.kv, op.block_size, op.num_kv_heads, op.head_dim)?,
        })
    }
}

impl Kernel for KvWrite {
    fn rows(&self, operands: &[View]) -> Option<usize> {
        operands.first().map(View::len)
    }

    unsafe fn run(&self, _phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        let [k, v, slots, cache] = operands else {
            unreachable!("kv_write has four operands")
        };
        let (heads, dim) = (self.layout.num_kv_heads, self.layout.head_dim);
        let width = heads * dim;
        for t in worker.share_rows(k.len(), 1) {
            // SAFETY: slots of a step differ, so tokens are shared out; the slot lies inside the cache.
            unsafe {
                let slot = slots.vector()[t];
                if slot < 0 {
                    continue;
                }
                let (page, token) = (
                    slot as usize / self.layout.block_size,
                    slot as usize % self.layout.block_size,
                );
                let (k_row, v_row) = worker.local[..2 * width].split_at_mut(width);
                for head in 0..heads {
                    k_row[head * dim..(head + 1) * dim].copy_from_slice(k.f32s(t, head, dim));
                    v_row[head * dim..(head + 1) * dim].copy_from_slice(v.f32s(t, head, dim));
                }
                kernels::kv_write(&self.layout, cache.element_ptr(page, 0), token, k_row, v_row);
            }
        }
    }
}

pub(crate) struct Attention {
    layout: KvLayout,
    group: usize,
    scale: f32,
    window: Option<usize>,
    softcap: Option<f32>,
}

impl Attention {
    pub(crate) fn new(op: &ops::Attention) -> Result<Attention> {
        reasons(op)?;
        Ok(Attention {
            layout: kv_layout(op.kv, op.block_size, op.num_kv_heads, op.head_dim)?,
            group: (op.num_heads / op.num_kv_heads) as usize,
            scale: op.scale,
            window: (op.window > 0).then_some(op.window as usize),
            softcap: (op.softcap > 0.0).then_some(op.softcap),
        })
    }
}

impl Kernel for Attention {
    unsafe fn run(&self, _phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        let [q, cache, table, rows, starts, lens, sinks, out] = operands else {
            unreachable!("attention has eight operands")
        };
        // SAFETY: all are read but out, whose (query, head) parts are shared out.
        unsafe {
            let (rows, starts, lens) = (rows.vector(), starts.vector(), lens.vector());
            let kv_heads = self.layout.num_kv_heads;
            // All threads count the jobs alike, and each does its own.
            let jobs = (0..rows.len()).filter(|&s| rows[s] >= 0);
            let jobs = jobs
                .map(|s| kv_heads * ((starts[s + 1] - starts[s]) as usize).div_ceil(QUERY_TILE))
                .sum();
            let mut mine = worker.pieces(q.len(), jobs, 1).flatten();
            let (mut job, mut next) = (0, mine.next());
            for s in 0..rows.len() {
                let query_len = (starts[s + 1] - starts[s]) as usize;
                if rows[s] < 0 || query_len == 0 {
                    continue;
                }
                let blocks = table.i32s(rows[s] as usize, 0, table.shape[1]);
                for kv_head in 0..kv_heads {
                    for first in (0..query_len).step_by(QUERY_TILE) {
                        job += 1;
                        if next != Some(job - 1) {
                            continue;
                        }
                        next = mine.next();
                        let token = starts[s] as usize;
                        let head = kv_head * self.group;
                        let kv_len = lens[s] as usize;
                        let sinks = (!sinks.is_none()).then(|| sinks.f32s(0, head, self.group));
                        worker.kernels.attention(&kernels::Attention {
                            layout: self.layout,
                            pool: cache.ptr(),
                            block_stride: cache.row_stride(),
                            block_table: blocks,
                            kv_len,
                            kv_head,
                            group: self.group,
                            q: q.element_ptr(token, head).cast_const().cast(),
                            q_stride: q.row_stride(),
                            q_head_stride: q.second_stride(),
                            out: out.element_ptr(token, head).cast(),
                            out_stride: out.row_stride(),
                            out_head_stride: out.second_stride(),
                            queries: first..(first + QUERY_TILE).min(query_len),
                            first_position: kv_len - query_len,
                            scale: self.scale,
                            softcap: self.softcap,
                            causal: true,
                            window: self.window,
                            sinks,
                        });
                    }
                }
            }
        }
    }
}
