//! `silu_mul`, `gelu_mul`, `gelu`, `relu_squared`, `add`, `scale`, `softcap`: one kernel shape over one or two inputs.

use halyard_kernels_gpu::POINTWISE;
use halyard_platform_api::ops::{self, GeluKind, Operand};
use halyard_platform_api::{DType, Error, Result};

use super::support::{Entries, Operands, Rows, act_name, blocks, not_zero};
use crate::encoding::{Arg, Encoding};
use crate::kernel::{Kernel, Preparation};
use crate::view::View;

const THREADS: u32 = 256;
/// Groups of a thread (UNROLL in the kernel file).
const UNROLL: u32 = 2;

/// An elementwise op.
pub(super) struct Pointwise {
    op: &'static str,
    documented: &'static [Operand],
    width: u32,
    dtype: DType,
    parameters: [f32; 3],
    pub(super) entries: Entries,
}

pub(super) fn silu_mul(op: &ops::SiluMul) -> Result<Pointwise> {
    if op.is_plain() {
        let names = ["silu_mul_vector", "silu_mul_scalar"];
        return Pointwise::new("silu_mul", ops::SiluMul::OPERANDS, op.width, op.dtype, 0.0, names);
    }
    let limit = if op.limit == 0.0 { f32::INFINITY } else { op.limit };
    let alpha = if op.alpha == 0.0 { 1.0 } else { op.alpha };
    let names = ["bounded_silu_mul_vector", "bounded_silu_mul_scalar"];
    let plain = Pointwise::new("silu_mul", ops::SiluMul::OPERANDS, op.width, op.dtype, 0.0, names)?;
    Ok(Pointwise {
        parameters: [limit, alpha, op.up_offset],
        ..plain
    })
}

pub(super) fn gelu_mul(op: &ops::GeluMul) -> Result<Pointwise> {
    let names = match op.kind {
        GeluKind::Tanh => ["gelu_tanh_mul_vector", "gelu_tanh_mul_scalar"],
        GeluKind::Erf => ["gelu_erf_mul_vector", "gelu_erf_mul_scalar"],
    };
    Pointwise::new("gelu_mul", ops::GeluMul::OPERANDS, op.width, op.dtype, 0.0, names)
}

pub(super) fn gelu(op: &ops::Gelu) -> Result<Pointwise> {
    let names = match op.kind {
        GeluKind::Tanh => ["gelu_tanh_vector", "gelu_tanh_scalar"],
        GeluKind::Erf => ["gelu_erf_vector", "gelu_erf_scalar"],
    };
    Pointwise::new("gelu", ops::Gelu::OPERANDS, op.width, op.dtype, 0.0, names)
}

pub(super) fn relu_squared(op: &ops::ReluSquared) -> Result<Pointwise> {
    let names = ["relu_squared_vector", "relu_squared_scalar"];
    Pointwise::new(
        "relu_squared",
        ops::ReluSquared::OPERANDS,
        op.width,
        op.dtype,
        0.0,
        names,
    )
}

pub(super) fn add(op: &ops::Add) -> Result<Pointwise> {
    let names = ["add_vector", "add_scalar"];
    Pointwise::new("add", ops::Add::OPERANDS, op.width, op.dtype, 0.0, names)
}

pub(super) fn scale(op: &ops::Scale) -> Result<Pointwise> {
    let names = ["scale_vector", "scale_scalar"];
    Pointwise::new("scale", ops::Scale::OPERANDS, op.width, op.dtype, op.factor, names)
}

pub(super) fn softcap(op: &ops::Softcap) -> Result<Pointwise> {
    if op.cap.is_nan() || op.cap <= 0.0 {
        return Err(Error::unsupported(format!(
            "softcap with cap {}: it must be above 0",
            op.cap
        )));
    }
    let names = ["softcap_vector", "softcap_scalar"];
    Pointwise::new("softcap", ops::Softcap::OPERANDS, op.width, op.dtype, op.cap, names)
}

impl Pointwise {
    fn new(
        op: &'static str,
        documented: &'static [Operand],
        width: u32,
        dtype: DType,
        parameter: f32,
        names: [&'static str; 2],
    ) -> Result<Pointwise> {
        not_zero(op, "width", width)?;
        Ok(Pointwise {
            op,
            documented,
            width,
            dtype,
            parameters: [parameter, 0.0, 0.0],
            entries: Entries::new(POINTWISE, &[("ACT", act_name(op, dtype)?)], &names),
        })
    }
}

impl Kernel for Pointwise {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        self.entries.prepare(cx)
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let operands = Operands::new(self.op, self.documented, operands)?;
        let inputs = self.documented.len() - 1;
        let rows = |index| operands.rows(index, self.dtype, self.width);
        let (a, out) = (rows(0)?, rows(inputs)?);
        let b = if inputs == 2 { rows(1)? } else { a };
        operands.expect_rows(inputs - 1, b.rows, a.rows)?;
        operands.expect_rows(inputs, out.rows, a.rows)?;

        let per_vector = 16 / self.dtype.bytes() as u32;
        let all = |test: &dyn Fn(&Rows) -> bool| test(&a) && test(&b) && test(&out);
        // Rows without gaps are one long row.
        let dense = all(&|r| r.dense(self.width));
        let elements = operands.total(a.rows, self.width).ok().filter(|_| dense);
        let (rows, width) = elements.map_or((a.rows, self.width), |n| (1, n));
        let vector = width.is_multiple_of(per_vector)
            && if elements.is_some() {
                all(&|r| r.ptr.is_multiple_of(16))
            } else {
                all(&|r| r.aligned(16))
            };
        let groups = if vector { width / per_vector } else { width };
        let total = operands.total(rows, groups)?;
        let ([a, a_stride], [b, b_stride], [out, out_stride]) = (a.args(), b.args(), out.args());
        let [first, second, third] = self.parameters.map(Arg::F32);
        encoding.launch(
            self.entries.get(usize::from(!vector))?,
            [blocks(total, THREADS * UNROLL), 1, 1],
            THREADS,
            0,
            &[
                a,
                a_stride,
                b,
                b_stride,
                out,
                out_stride,
                Arg::U32(groups),
                Arg::U32(total),
                first,
                second,
                third,
            ],
        );
        Ok(())
    }
}
