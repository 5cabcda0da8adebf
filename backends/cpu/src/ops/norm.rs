//! `rms_norm` and `layer_norm`: rows are shared out; per-head norms count every head as a row.

use halyard_platform_api::{Result, ops};

use super::only_f32;
use crate::kernel::{Kernel, Worker};
use crate::view::View;

pub(crate) struct RmsNorm {
    width: usize,
    eps: f32,
    offset: f32,
}

impl RmsNorm {
    pub(crate) fn new(op: &ops::RmsNorm) -> Result<RmsNorm> {
        only_f32("rms_norm", op.dtype)?;
        Ok(RmsNorm {
            width: op.width as usize,
            eps: op.eps,
            offset: op.weight_offset,
        })
    }
}

impl Kernel for RmsNorm {
    fn rows(&self, operands: &[View]) -> Option<usize> {
        operands.last().map(View::len)
    }

    unsafe fn run(&self, _phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        let [x, weight, out] = operands else {
            unreachable!("rms_norm has three operands")
        };
        // [T, width] is one group a token, [T, G, width] has G.
        let (tokens, groups) = (x.len(), if x.rank == 3 { x.shape[1] } else { 1 });
        for row in worker.share_rows(tokens, groups) {
            let (t, g) = (row / groups, row % groups);
            // SAFETY: rows are shared out; x may be out itself, so the row is normalised from a copy then.
            unsafe {
                let weight = weight.f32s(0, 0, self.width);
                if x.ptr() == out.ptr() {
                    let copy = &mut worker.local[..self.width];
                    copy.copy_from_slice(x.f32s(t, g, self.width));
                    worker
                        .kernels
                        .rms_norm(copy, weight, self.offset, self.eps, out.f32s_mut(t, g, self.width));
                } else {
                    let x = x.f32s(t, g, self.width);
                    worker
                        .kernels
                        .rms_norm(x, weight, self.offset, self.eps, out.f32s_mut(t, g, self.width));
                }
            }
        }
    }
}

pub(crate) struct LayerNorm {
    width: usize,
    eps: f32,
    /// Each group of a token has a weight of its own.
    is_by_group: bool,
}

impl LayerNorm {
    pub(crate) fn new(op: &ops::LayerNorm) -> Result<LayerNorm> {
        only_f32("layer_norm", op.dtype)?;
        Ok(LayerNorm {
            width: op.width as usize,
            eps: op.eps,
            is_by_group: op.num_weights > 0,
        })
    }
}

impl Kernel for LayerNorm {
    fn rows(&self, operands: &[View]) -> Option<usize> {
        operands.last().map(View::len)
    }

    unsafe fn run(&self, _phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        let [x, weight, bias, out] = operands else {
            unreachable!("layer_norm has four operands")
        };
        // [T, width] is one group a token, [T, G, width] has G.
        let (tokens, groups) = (x.len(), if x.rank == 3 { x.shape[1] } else { 1 });
        for row in worker.share_rows(tokens, groups) {
            let (t, g) = (row / groups, row % groups);
            let own = if self.is_by_group { g } else { 0 };
            // SAFETY: rows are shared out; a copy allows x to be out itself.
            unsafe {
                let bias = (!bias.is_none()).then(|| bias.f32s(own, 0, self.width));
                let copy = &mut worker.local[..self.width];
                copy.copy_from_slice(x.f32s(t, g, self.width));
                let weight = weight.f32s(own, 0, self.width);
                worker
                    .kernels
                    .layer_norm(copy, weight, bias, self.eps, out.f32s_mut(t, g, self.width));
            }
        }
    }
}
