//! `rope`: every head of every token turns by its position's row of the table.

use halyard_kernels_cpu::RopeStyle;
use halyard_platform_api::{Result, ops};

use super::only_f32;
use crate::kernel::{Kernel, Worker};
use crate::view::View;

pub(crate) struct Rope {
    head_dim: usize,
    rotary_dim: usize,
    style: RopeStyle,
}

impl Rope {
    pub(crate) fn new(op: &ops::Rope) -> Result<Rope> {
        only_f32("rope", op.dtype)?;
        let style = match op.style {
            ops::RopeStyle::Neox => RopeStyle::Neox,
            ops::RopeStyle::Interleaved => RopeStyle::Interleaved,
        };
        Ok(Rope {
            head_dim: op.head_dim as usize,
            rotary_dim: op.rotary_dim as usize,
            style,
        })
    }
}

impl Kernel for Rope {
    fn rows(&self, operands: &[View]) -> Option<usize> {
        operands.last().map(View::len)
    }

    unsafe fn run(&self, _phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        let [positions, table, x] = operands else {
            unreachable!("rope has three operands")
        };
        let heads = x.shape[1];
        for row in worker.share_rows(x.len(), heads) {
            // SAFETY: heads are shared out; the table holds every position of the step.
            unsafe {
                let position = positions.vector()[row / heads] as usize;
                let cos_sin = table.f32s(position, 0, self.rotary_dim);
                worker
                    .kernels
                    .rope(x.f32s_mut(row / heads, row % heads, self.head_dim), cos_sin, self.style);
            }
        }
    }
}
