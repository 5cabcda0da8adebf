//! `gather_rows`, `scatter_rows`, `quantize_act`, `pool`.

use halyard_kernels_gpu::ROWS;
use halyard_platform_api::ops::{self, Operand, QuantizeScheme};
use halyard_platform_api::{DType, Error, Result};

use super::support::{Entries, Operands, act_name, blocks, not_zero};
use crate::encoding::{Arg, Encoding};
use crate::kernel::{Kernel, Preparation};
use crate::view::View;

/// Bytes of the units that rows move in, in the order of their entry points.
const UNITS: [u64; 3] = [16, 4, 1];
const MOVE_THREADS: u32 = 128;
const THREADS: u32 = 256;

/// `gather_rows` or `scatter_rows`.
pub(super) struct MoveRows {
    op: &'static str,
    documented: &'static [Operand],
    width: u32,
    dtype: DType,
    scatter: bool,
    pub(super) entries: Entries,
}

impl MoveRows {
    fn new(
        op: &'static str,
        documented: &'static [Operand],
        width: u32,
        dtype: DType,
        scatter: bool,
    ) -> Result<MoveRows> {
        not_zero(op, "width", width)?;
        if u64::from(width) * dtype.bytes() as u64 > u64::from(u32::MAX) {
            return Err(Error::unsupported(format!(
                "{op} of {width} {dtype:?} values: a row must be below 4 GiB"
            )));
        }
        Ok(MoveRows {
            op,
            documented,
            width,
            dtype,
            scatter,
            entries: Entries::new(ROWS, &[], &["move_rows_16", "move_rows_4", "move_rows_1"]),
        })
    }

    pub(super) fn gather(op: &ops::GatherRows) -> Result<MoveRows> {
        MoveRows::new("gather_rows", ops::GatherRows::OPERANDS, op.width, op.dtype, false)
    }

    pub(super) fn scatter(op: &ops::ScatterRows) -> Result<MoveRows> {
        MoveRows::new("scatter_rows", ops::ScatterRows::OPERANDS, op.width, op.dtype, true)
    }
}

impl Kernel for MoveRows {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        self.entries.prepare(cx)
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let operands = Operands::new(self.op, self.documented, operands)?;
        let x = operands.rows(0, self.dtype, self.width)?;
        let out = operands.rows(2, self.dtype, self.width)?;
        let index = operands.vector(1, DType::I32, None)?;
        let count = operands.view(1).len();
        let (listed, named) = if self.scatter { ((0, x), out) } else { ((2, out), x) };
        operands.expect_rows(listed.0, listed.1.rows, count)?;
        let bytes = u64::from(self.width) * x.element;
        let fits = |unit: u64| bytes.is_multiple_of(unit) && x.aligned(unit) && out.aligned(unit);
        let unit = UNITS.iter().position(|unit| fits(*unit)).unwrap_or(UNITS.len() - 1);
        let units = (bytes / UNITS[unit]) as u32;
        // A pitch that is no whole number of units belongs to a single row, where it does not matter.
        let pitch = |stride: u64| Arg::U64(stride * x.element / UNITS[unit]);
        let total = operands.total(count, units)?;
        encoding.launch(
            self.entries.get(unit)?,
            [blocks(total, MOVE_THREADS), 1, 1],
            MOVE_THREADS,
            0,
            &[
                Arg::Ptr(x.ptr),
                pitch(x.stride),
                Arg::Ptr(index),
                Arg::Ptr(out.ptr),
                pitch(out.stride),
                Arg::U32(count),
                Arg::U32(units),
                Arg::U32(named.rows),
                Arg::U32(u32::from(self.scatter)),
            ],
        );
        Ok(())
    }
}

/// `quantize_act`.
pub(super) struct QuantizeAct {
    spec: ops::QuantizeAct,
    pub(super) entries: Entries,
}

impl QuantizeAct {
    pub(super) fn new(op: &ops::QuantizeAct) -> Result<QuantizeAct> {
        not_zero("quantize_act", "width", op.width)?;
        let act = act_name("quantize_act", op.dtype)?;
        let names = match op.scheme {
            QuantizeScheme::Int8Row => ["quantize_int8_vector", "quantize_int8_scalar"],
            QuantizeScheme::Fp8Row => ["quantize_fp8_vector", "quantize_fp8_scalar"],
            QuantizeScheme::Int8Block32 if op.width.is_multiple_of(32) => {
                ["quantize_block32_vector", "quantize_block32_scalar"]
            }
            QuantizeScheme::Int8Block32 => {
                return Err(Error::unsupported(format!(
                    "quantize_act: {} values are no whole groups of 32",
                    op.width
                )));
            }
        };
        Ok(QuantizeAct {
            spec: op.clone(),
            entries: Entries::new(ROWS, &[("ACT", act)], &names),
        })
    }
}

impl Kernel for QuantizeAct {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        self.entries.prepare(cx)
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let operands = Operands::new("quantize_act", ops::QuantizeAct::OPERANDS, operands)?;
        let width = self.spec.width;
        let (q_dtype, groups) = match self.spec.scheme {
            QuantizeScheme::Int8Row => (DType::I8, 1),
            QuantizeScheme::Int8Block32 => (DType::I8, width / 32),
            QuantizeScheme::Fp8Row => (DType::F8E4M3, 1),
        };
        let x = operands.rows(0, self.spec.dtype, width)?;
        let q = operands.rows(1, q_dtype, width)?;
        let scales = operands.rows(2, DType::F32, groups)?;
        operands.expect_rows(1, q.rows, x.rows)?;
        operands.expect_rows(2, scales.rows, x.rows)?;
        let per_vector = 16 / x.element as u32;
        let vector = width.is_multiple_of(per_vector) && x.aligned(16) && q.aligned(u64::from(per_vector));
        let function = self.entries.get(usize::from(!vector))?;
        let ([x_ptr, x_stride], [q, q_stride], [scales, scale_stride]) = (x.args(), q.args(), scales.args());
        if self.spec.scheme == QuantizeScheme::Int8Block32 {
            let each = if vector { width / per_vector } else { width };
            let total = operands.total(x.rows, each)?;
            let (each, grid) = (Arg::U32(each), [blocks(total, THREADS), 1, 1]);
            let args = [
                x_ptr,
                x_stride,
                q,
                q_stride,
                scales,
                scale_stride,
                each,
                Arg::U32(total),
            ];
            encoding.launch(function, grid, THREADS, 0, &args);
        } else {
            let args = [x_ptr, x_stride, q, q_stride, scales, scale_stride, Arg::U32(width)];
            encoding.launch(function, [x.rows, 1, 1], THREADS, 0, &args);
        }
        Ok(())
    }
}

/// `pool`.
pub(super) struct Pool {
    spec: ops::Pool,
    pub(super) entries: Entries,
}

impl Pool {
    pub(super) fn new(op: &ops::Pool) -> Result<Pool> {
        not_zero("pool", "width", op.width)?;
        // The second grid axis is that short.
        let most = 65535 * 32;
        if op.width > most {
            return Err(Error::unsupported(format!(
                "pool of {} values a row: at most {most}",
                op.width
            )));
        }
        let act = act_name("pool", op.dtype)?;
        Ok(Pool {
            spec: op.clone(),
            entries: Entries::new(ROWS, &[("ACT", act)], &["pool_rows", "pool_normalize"]),
        })
    }
}

impl Kernel for Pool {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        self.entries.prepare(cx)
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let operands = Operands::new("pool", ops::Pool::OPERANDS, operands)?;
        let width = self.spec.width;
        let x = operands.rows(0, self.spec.dtype, width)?;
        let out = operands.rows(2, DType::F32, width)?;
        let starts = operands.vector(1, DType::I32, None)?;
        let seqs = operands.view(1).len().saturating_sub(1);
        operands.expect_rows(2, out.rows, seqs)?;
        let ([x_ptr, x_stride], [out, out_stride]) = (x.args(), out.args());
        encoding.launch(
            self.entries.get(0)?,
            [seqs, blocks(width, 32), 1],
            THREADS,
            0,
            &[
                x_ptr,
                x_stride,
                Arg::U32(x.rows),
                Arg::Ptr(starts),
                out,
                out_stride,
                Arg::U32(width),
                Arg::U32(self.spec.mode as u32),
            ],
        );
        if self.spec.normalize {
            encoding.launch(
                self.entries.get(1)?,
                [seqs, 1, 1],
                THREADS,
                0,
                &[out, out_stride, Arg::U32(width)],
            );
        }
        Ok(())
    }
}
