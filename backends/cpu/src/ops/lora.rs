//! `lora_shrink` and `lora_expand`: tokens that share an adapter read its weights once for all of them, in pieces that
//! stay in a core's cache. Shrink multiplies rows as they lie; expand, whose rows are as short as a rank, lays a piece
//! out as columns first.

use std::ops::Range;

use half::{bf16, f16};
use halyard_kernels_cpu::Kernels;
use halyard_platform_api::{DType, Error, Result, ops};

use super::only_f32;
use crate::kernel::{Kernel, Worker};
use crate::view::View;

/// Rows of shrink that are read for all tokens of an adapter before the next ones: with rows of 4096 values they stay
/// in a core's second cache.
const SHRINK_ROWS: usize = 32;
/// The same of expand: 4 KB at rank 16, 128 KB at rank 512.
const EXPAND_ROWS: usize = 64;

fn check_weight(op: &str, dtype: DType) -> Result<()> {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => Ok(()),
        other => Err(Error::unsupported(format!(
            "{op} with weights in {other:?}: F32, F16 and BF16 only"
        ))),
    }
}

/// Contiguous weights as f32: where they lie, or widened into `buffer`.
///
/// # Safety
/// `count` weights of `dtype` are at `w`, and no thread writes them meanwhile.
unsafe fn widened<'r>(
    dtype: DType,
    w: *const u8,
    count: usize,
    kernels: &Kernels,
    buffer: &'r mut Vec<f32>,
) -> &'r [f32] {
    // SAFETY: the caller has that many weights there; buffers are 64-byte aligned and rows whole numbers of weights.
    unsafe {
        match dtype {
            DType::F16 => {
                buffer.resize(count, 0.0);
                kernels.f16_to_f32(std::slice::from_raw_parts(w.cast::<f16>(), count), buffer);
            }
            DType::BF16 => {
                buffer.resize(count, 0.0);
                kernels.bf16_to_f32(std::slice::from_raw_parts(w.cast::<bf16>(), count), buffer);
            }
            _ => return std::slice::from_raw_parts(w.cast::<f32>(), count),
        }
    }
    buffer
}

/// A range of rows in pieces of at most `most` that stand one behind the other.
fn pieces(range: Range<usize>, weights: &View, width: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let (end, most) = (range.end, if weights.second_stride() == width { most } else { 1 });
    range.step_by(most).map(move |first| first..(first + most).min(end))
}

/// The slots that occur, each once, and calls `each` with it. Few adapters a step: a list is the set.
fn distinct(slots: &[i32], mut each: impl FnMut(i32)) {
    for (t, &slot) in slots.iter().enumerate() {
        if slot >= 0 && !slots[..t].contains(&slot) {
            each(slot);
        }
    }
}

pub(crate) struct Shrink {
    k: usize,
    rank: usize,
    weight: DType,
}

impl Shrink {
    pub(crate) fn new(op: &ops::LoraShrink) -> Result<Shrink> {
        only_f32("lora_shrink", op.act)?;
        check_weight("lora_shrink", op.weight)?;
        Ok(Shrink {
            k: op.in_features as usize,
            rank: op.max_rank as usize,
            weight: op.weight,
        })
    }
}

impl Kernel for Shrink {
    unsafe fn run(&self, _phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        let [x, a, slots, out] = operands else {
            unreachable!("lora_shrink has four operands")
        };
        let ranks = worker.share(self.rank);
        let mut buffer = Vec::new();
        // SAFETY: ranks are shared out, and with them the columns of `out` that this thread writes; a piece's rows are
        // contiguous.
        unsafe {
            let slots = slots.vector();
            for t in 0..slots.len() {
                out.f32s_mut(t, ranks.start, ranks.len()).fill(0.0);
            }
            distinct(slots, |slot| {
                for rows in pieces(ranks.clone(), a, self.k, SHRINK_ROWS) {
                    let first = a.element_ptr(slot as usize, rows.start);
                    let weights = widened(self.weight, first, rows.len() * self.k, worker.kernels, &mut buffer);
                    for t in (0..slots.len()).filter(|&t| slots[t] == slot) {
                        let (x, out) = (x.f32s(t, 0, self.k), out.f32s_mut(t, rows.start, rows.len()));
                        worker.kernels.add_products(weights, x, 1.0, out);
                    }
                }
            });
        }
    }
}

pub(crate) struct Expand {
    starts: Vec<u32>,
    rank: usize,
    weight: DType,
}

impl Expand {
    pub(crate) fn new(op: &ops::LoraExpand) -> Result<Expand> {
        only_f32("lora_expand", op.out)?;
        check_weight("lora_expand", op.weight)?;
        op.check_parts()?;
        Ok(Expand {
            starts: op.part_starts(),
            rank: op.max_rank as usize,
            weight: op.weight,
        })
    }
}

impl Kernel for Expand {
    unsafe fn run(&self, _phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        let [x, b, scales, slots, out] = operands else {
            unreachable!("lora_expand has five operands")
        };
        let features = worker.share(*self.starts.last().unwrap_or(&0) as usize);
        let (mut buffer, mut columns) = (Vec::new(), Vec::new());
        // SAFETY: features are shared out, and with them the columns of `out` that this thread writes; a piece's rows
        // are contiguous.
        unsafe {
            let slots = slots.vector();
            distinct(slots, |slot| {
                let scale = scales.f32s(slot as usize, 0, 1)[0];
                for (part, ends) in self.starts.windows(2).enumerate() {
                    let own = features.start.max(ends[0] as usize)..features.end.min(ends[1] as usize);
                    for rows in pieces(own, b, self.rank, EXPAND_ROWS) {
                        let first = b.element_ptr(slot as usize, rows.start);
                        let weights = widened(self.weight, first, rows.len() * self.rank, worker.kernels, &mut buffer);
                        columns.resize(weights.len(), 0.0);
                        worker.kernels.transpose(weights, self.rank, &mut columns);
                        for t in (0..slots.len()).filter(|&t| slots[t] == slot) {
                            let x = x.f32s(t, part * self.rank, self.rank);
                            let out = out.f32s_mut(t, rows.start, rows.len());
                            worker.kernels.add_columns(&columns, x, scale, out);
                        }
                    }
                }
            });
        }
    }
}
