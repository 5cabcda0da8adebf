//! `lora_shrink` and `lora_expand`: tokens are shared out; each uses its own adapter's slice. Plain loops: speed is a later issue.

use half::{bf16, f16};
use halyard_platform_api::{DType, Error, Result, ops};

use super::only_f32;
use crate::kernel::{Kernel, Worker};
use crate::view::View;

fn check_weight(op: &str, dtype: DType) -> Result<()> {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => Ok(()),
        other => Err(Error::unsupported(format!(
            "{op} with weights in {other:?}: F32, F16 and BF16 only"
        ))),
    }
}

/// Σ x·w over contiguous weights of any float type.
unsafe fn dot(x: &[f32], dtype: DType, w: *const u8) -> f32 {
    // SAFETY: the caller has x.len() weights at `w`.
    unsafe {
        let each = x.iter().enumerate();
        match dtype {
            DType::F16 => each
                .map(|(i, v)| v * w.cast::<f16>().add(i).read_unaligned().to_f32())
                .sum(),
            DType::BF16 => each
                .map(|(i, v)| v * w.cast::<bf16>().add(i).read_unaligned().to_f32())
                .sum(),
            _ => each.map(|(i, v)| v * w.cast::<f32>().add(i).read_unaligned()).sum(),
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
        for t in worker.share(out.len()) {
            // SAFETY: tokens are shared out.
            unsafe {
                let out = out.f32s_mut(t, 0, self.rank);
                let slot = slots.vector()[t];
                out.fill(0.0);
                if slot < 0 {
                    continue;
                }
                let x = x.f32s(t, 0, self.k);
                for (r, out) in out.iter_mut().enumerate() {
                    *out = dot(x, self.weight, a.element_ptr(slot as usize, r));
                }
            }
        }
    }
}

pub(crate) struct Expand {
    n: usize,
    rank: usize,
    weight: DType,
}

impl Expand {
    pub(crate) fn new(op: &ops::LoraExpand) -> Result<Expand> {
        only_f32("lora_expand", op.out)?;
        check_weight("lora_expand", op.weight)?;
        Ok(Expand {
            n: op.out_features as usize,
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
        for t in worker.share(out.len()) {
            // SAFETY: tokens are shared out.
            unsafe {
                let slot = slots.vector()[t];
                if slot < 0 {
                    continue;
                }
                let scale = scales.f32s(slot as usize, 0, 1)[0];
                let x = x.f32s(t, 0, self.rank);
                for (n, out) in out.f32s_mut(t, 0, self.n).iter_mut().enumerate() {
                    *out += scale * dot(x, self.weight, b.element_ptr(slot as usize, n));
                }
            }
        }
    }
}
