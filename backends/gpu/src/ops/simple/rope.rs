//! `rope`: rotation in place from a table.

use halyard_kernels_gpu::ROPE;
use halyard_platform_api::ops::{self, RopeStyle};
use halyard_platform_api::{DType, Error, Result};

use super::support::{Entries, Operands, act_name, blocks};
use crate::encoding::{Arg, Encoding};
use crate::kernel::{Kernel, Preparation};
use crate::view::View;

const THREADS: u32 = 128;

/// The op.
pub(super) struct Rope {
    spec: ops::Rope,
    pub(super) entries: Entries,
}

impl Rope {
    pub(super) fn new(op: &ops::Rope) -> Result<Rope> {
        let act = act_name("rope", op.dtype)?;
        if op.rotary_dim == 0 || !op.rotary_dim.is_multiple_of(2) || op.rotary_dim > op.head_dim {
            return Err(Error::unsupported(format!(
                "rope of {} of {} values: they turn in pairs, at least one and at most the whole head",
                op.rotary_dim, op.head_dim
            )));
        }
        let interleaved = match op.style {
            RopeStyle::Neox => "0",
            RopeStyle::Interleaved => "1",
        };
        Ok(Rope {
            spec: op.clone(),
            entries: Entries::new(
                ROPE,
                &[("ACT", act), ("INTERLEAVED", interleaved)],
                &["rope_vector", "rope_scalar"],
            ),
        })
    }
}

impl Kernel for Rope {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        self.entries.prepare(cx)
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let operands = Operands::new("rope", ops::Rope::OPERANDS, operands)?;
        let ([tokens, heads], strides) = operands.heads(2, self.spec.dtype, self.spec.head_dim)?;
        let positions = operands.vector(0, DType::I32, Some(tokens))?;
        let table = operands.rows(1, DType::F32, self.spec.rotary_dim)?;
        if !table.dense(self.spec.rotary_dim) {
            return Err(operands.error(1, "rows with gaps: the table must be contiguous"));
        }
        let x = operands.view(2).ptr;
        let half = self.spec.rotary_dim / 2;
        let per_vector = 16 / self.spec.dtype.bytes() as u32;
        // Halves are loaded apart, neighbours together.
        let pairs = match self.spec.style {
            RopeStyle::Neox => per_vector,
            RopeStyle::Interleaved => per_vector / 2,
        };
        let vector = half.is_multiple_of(pairs)
            && x.is_multiple_of(16)
            && strides.iter().all(|s| s.is_multiple_of(u64::from(per_vector)));
        let groups = if vector { half / pairs } else { half };
        let total = operands.total(operands.total(tokens, heads)?, groups)?;
        encoding.launch(
            self.entries.get(usize::from(!vector))?,
            [blocks(total, THREADS), 1, 1],
            THREADS,
            0,
            &[
                Arg::Ptr(positions),
                Arg::Ptr(table.ptr),
                Arg::U32(table.rows),
                Arg::Ptr(x),
                Arg::U64(strides[0]),
                Arg::U64(strides[1]),
                Arg::U32(heads),
                Arg::U32(half),
                Arg::U32(groups),
                Arg::U32(total),
            ],
        );
        Ok(())
    }
}
