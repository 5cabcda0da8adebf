//! `lora_shrink` and `lora_expand`: tokens that share an adapter read its weights once for all of them, in pieces that stay in a core's cache.

use half::{bf16, f16};
use halyard_platform_api::{DType, Error, Result, ops};

use super::only_f32;
use crate::kernel::{Kernel, Worker};
use crate::view::View;

/// Partial sums of a product: as many as one vector register of the widest sets holds, so that the compiler keeps them there.
const LANES: usize = 16;

fn check_weight(op: &str, dtype: DType) -> Result<()> {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => Ok(()),
        other => Err(Error::unsupported(format!(
            "{op} with weights in {other:?}: F32, F16 and BF16 only"
        ))),
    }
}

/// A row of weights as f32: where it lies, or widened into `room`.
///
/// # Safety
/// `width` weights of `dtype` stand at `w`, which nobody writes meanwhile.
unsafe fn widened(dtype: DType, w: *const u8, width: usize, room: &mut Vec<f32>) -> &[f32] {
    room.clear();
    // SAFETY: the caller has that many weights there; buffers are 64-byte aligned and rows whole numbers of weights.
    unsafe {
        match dtype {
            DType::F16 => {
                let row = std::slice::from_raw_parts(w.cast::<f16>(), width);
                room.extend(row.iter().map(|w| w.to_f32()));
            }
            DType::BF16 => {
                let row = std::slice::from_raw_parts(w.cast::<bf16>(), width);
                room.extend(row.iter().map(|w| w.to_f32()));
            }
            _ => return std::slice::from_raw_parts(w.cast::<f32>(), width),
        }
    }
    room
}

/// Σ x·w, in `LANES` sums of its own each.
fn dot(x: &[f32], w: &[f32]) -> f32 {
    let mut sums = [0f32; LANES];
    let (xs, ws) = (x.chunks_exact(LANES), w.chunks_exact(LANES));
    let rest: f32 = xs.remainder().iter().zip(ws.remainder()).map(|(x, w)| x * w).sum();
    for (x, w) in xs.zip(ws) {
        for ((sum, x), w) in sums.iter_mut().zip(x).zip(w) {
            *sum += x * w;
        }
    }
    sums.iter().sum::<f32>() + rest
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
        let mut room = Vec::new();
        // SAFETY: ranks are shared out, and with them the columns of `out` that this thread writes.
        unsafe {
            let slots = slots.vector();
            for (t, &slot) in slots.iter().enumerate() {
                if slot < 0 {
                    out.f32s_mut(t, ranks.start, ranks.len()).fill(0.0);
                }
            }
            distinct(slots, |slot| {
                for r in ranks.clone() {
                    let row = widened(self.weight, a.element_ptr(slot as usize, r), self.k, &mut room);
                    for t in (0..slots.len()).filter(|&t| slots[t] == slot) {
                        out.f32s_mut(t, r, 1)[0] = dot(x.f32s(t, 0, self.k), row);
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
        let mut room = Vec::new();
        // SAFETY: features are shared out, and with them the columns of `out` that this thread writes.
        unsafe {
            let slots = slots.vector();
            distinct(slots, |slot| {
                let scale = scales.f32s(slot as usize, 0, 1)[0];
                for n in features.clone() {
                    let part = self.starts[1..].iter().filter(|&&start| start as usize <= n).count();
                    let row = widened(self.weight, b.element_ptr(slot as usize, n), self.rank, &mut room);
                    for t in (0..slots.len()).filter(|&t| slots[t] == slot) {
                        out.f32s_mut(t, n, 1)[0] += scale * dot(x.f32s(t, part * self.rank, self.rank), row);
                    }
                }
            });
        }
    }
}
