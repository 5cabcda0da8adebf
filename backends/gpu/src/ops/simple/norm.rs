//! `rms_norm` and `layer_norm`: which threads share a row follows from its width.

use halyard_kernels_gpu::NORM;
use halyard_platform_api::ops::{self, Operand};
use halyard_platform_api::{DType, Result};

use super::support::{Entries, Operands, act_name, blocks, not_zero};
use crate::encoding::{Arg, Encoding};
use crate::kernel::{Kernel, Preparation};
use crate::view::View;

/// Entry points, in the order of [`Norm::entries`].
const NAMES: [&str; 6] = [
    "norm_lanes_1",
    "norm_lanes_2",
    "norm_block_1",
    "norm_block_2",
    "norm_block_4",
    "norm_any",
];

/// How rows are shared out.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    /// Neighbours of a warp: entry point, how many.
    Lanes(usize, u32),
    /// A block: entry point, threads.
    Block(usize, u32),
    /// A block that goes over the row element by element.
    Any,
}

impl Shape {
    /// For rows of `vectors` 16-byte vectors.
    fn of(vectors: u32) -> Shape {
        let threads = |each: u32| vectors.div_ceil(each).next_multiple_of(32);
        match vectors {
            0 => Shape::Any,
            1..=32 => Shape::Lanes(0, vectors.next_power_of_two()),
            33..=64 => Shape::Lanes(1, 32),
            65..=256 => Shape::Block(2, threads(1)),
            257..=1024 => Shape::Block(3, threads(2)),
            1025..=2048 => Shape::Block(4, threads(4)),
            _ => Shape::Any,
        }
    }
}

/// The block whose threads hold a row of `vectors` 16-byte vectors: which of one, two and four vectors a thread, and
/// how many threads. `None`: the row is so narrow that a part of a warp holds it, or too wide.
pub(crate) fn block_of_row(vectors: u32) -> Option<(usize, u32)> {
    match Shape::of(vectors) {
        Shape::Block(entry, threads) => Some((entry - 2, threads)),
        _ => None,
    }
}

/// A norm.
pub(super) struct Norm {
    op: &'static str,
    documented: &'static [Operand],
    layer: bool,
    width: u32,
    eps: f32,
    weight_offset: f32,
    /// Groups with weights of their own; 0: all rows have the same.
    num_weights: u32,
    dtype: DType,
    num_sms: u32,
    pub(super) entries: Entries,
}

impl Norm {
    pub(super) fn rms(op: &ops::RmsNorm) -> Result<Norm> {
        not_zero("rms_norm", "width", op.width)?;
        let act = act_name("rms_norm", op.dtype)?;
        Ok(Norm {
            op: "rms_norm",
            documented: ops::RmsNorm::OPERANDS,
            layer: false,
            width: op.width,
            eps: op.eps,
            weight_offset: op.weight_offset,
            num_weights: 0,
            dtype: op.dtype,
            num_sms: 1,
            entries: Entries::new(NORM, &[("ACT", act), ("LAYER", "0")], &NAMES),
        })
    }

    pub(super) fn layer(op: &ops::LayerNorm) -> Result<Norm> {
        not_zero("layer_norm", "width", op.width)?;
        let act = act_name("layer_norm", op.dtype)?;
        Ok(Norm {
            op: "layer_norm",
            documented: ops::LayerNorm::OPERANDS,
            layer: true,
            width: op.width,
            eps: op.eps,
            weight_offset: 0.0,
            num_weights: op.num_weights,
            dtype: op.dtype,
            num_sms: 1,
            entries: Entries::new(NORM, &[("ACT", act), ("LAYER", "1")], &NAMES),
        })
    }
}

impl Kernel for Norm {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        self.num_sms = cx.facts().num_sms.max(1);
        self.entries.prepare(cx)
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let operands = Operands::new(self.op, self.documented, operands)?;
        let out_index = if self.layer { 3 } else { 2 };
        let ([outer, inner], x_strides) = operands.heads(0, self.dtype, self.width)?;
        let (out_shape, out_strides) = operands.heads(out_index, self.dtype, self.width)?;
        let rows = operands.total(outer, inner)?;
        operands.expect_rows(out_index, out_shape[0], outer)?;
        operands.expect_rows(out_index, out_shape[1], inner)?;
        if self.num_weights != 0 && inner != self.num_weights {
            let text = format!("{inner} groups of a token, {} weights", self.num_weights);
            return Err(operands.error(0, &text));
        }
        let vectors = |index| match self.num_weights {
            0 => operands.vector(index, DType::F32, Some(self.width)),
            rows => operands.vectors(index, rows, self.width),
        };
        let weight = vectors(1)?;
        let bias = if self.layer { vectors(2)? } else { 0 };
        let (x, out) = (operands.view(0).ptr, operands.view(out_index).ptr);

        let per_vector = 16 / self.dtype.bytes() as u32;
        let whole = |n: u64| n.is_multiple_of(u64::from(per_vector));
        let aligned = [x, out, weight].iter().all(|p| p.is_multiple_of(16))
            && x_strides.iter().chain(&out_strides).all(|s| whole(*s))
            && whole(u64::from(self.width));
        let shape = if aligned {
            Shape::of(self.width / per_vector)
        } else {
            Shape::Any
        };
        let mut args = [Arg::U32(0); 15];
        args[..14].copy_from_slice(&[
            Arg::Ptr(x),
            Arg::U64(x_strides[0]),
            Arg::U64(x_strides[1]),
            Arg::Ptr(weight),
            Arg::Ptr(bias),
            Arg::Ptr(out),
            Arg::U64(out_strides[0]),
            Arg::U64(out_strides[1]),
            Arg::U32(rows),
            Arg::U32(inner),
            Arg::U32(self.width),
            Arg::F32(self.eps),
            Arg::F32(self.weight_offset),
            Arg::U32(if self.num_weights == 0 { 0 } else { self.width }),
        ]);
        // As many blocks as run at once: each keeps its part of the weight and walks over rows.
        let (entry, threads, at_once, per_sm, count) = match shape {
            Shape::Lanes(entry, lanes) => {
                args[14] = Arg::U32(lanes);
                (entry, 128, 128 / lanes, 8, 15)
            }
            Shape::Block(entry, threads) => (entry, threads, 1, (1024 / threads).min(8), 14),
            Shape::Any => (5, 256, 1, 8, 14),
        };
        let grid = blocks(rows, at_once).min(self.num_sms.saturating_mul(per_sm));
        encoding.launch(self.entries.get(entry)?, [grid, 1, 1], threads, 0, &args[..count]);
        Ok(())
    }
}
