//! Elementwise ops: one kernel type over a row function.

use std::sync::Arc;

use halyard_kernels_cpu::{Activation, Kernels};
use halyard_platform_api::ops::{self, GeluKind};
use halyard_platform_api::{DType, Result};

use super::only_f32;
use crate::kernel::{Kernel, Worker};
use crate::view::View;

/// out = f(inputs), row by row.
struct Rows<F> {
    width: usize,
    f: F,
}

type RowFn = fn(&Kernels, &[&[f32]], &mut [f32], Param);

/// Parameters of a row function besides its inputs.
#[derive(Clone, Copy)]
struct Param {
    activation: Activation,
    number: f32,
    /// Of `silu_mul`: its factor in the exponent and what is added to up.
    alpha: f32,
    up_offset: f32,
}

/// Elements of one call, so that a long row needs no long copy.
const PIECE: usize = 1024;

impl Kernel for Rows<(RowFn, Param)> {
    fn rows(&self, operands: &[View]) -> Option<usize> {
        operands.last().map(View::len)
    }

    unsafe fn run(&self, _phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        let [inputs @ .., out] = operands else {
            unreachable!("an elementwise op has an output")
        };
        let (f, param) = self.f;
        let in_place = inputs.iter().any(|input| input.overlaps(out));
        let pieces = self.width.div_ceil(PIECE);
        for job in worker.share_rows(out.len(), pieces) {
            let (t, from) = (job / pieces, job % pieces * PIECE);
            let width = PIECE.min(self.width - from);
            // SAFETY: pieces are shared out; inputs that may be the output itself are copied.
            unsafe {
                let part = |i: usize| inputs[i].f32s_at(t, from, width);
                let to = out.f32s_at_mut(t, from, width);
                if !in_place {
                    match inputs.len() {
                        1 => f(worker.kernels, &[part(0)], to, param),
                        _ => f(worker.kernels, &[part(0), part(1)], to, param),
                    }
                    continue;
                }
                let (copies, _) = worker.local.split_at_mut(2 * PIECE);
                let (a, b) = copies.split_at_mut(PIECE);
                for (i, copy) in (0..inputs.len()).zip([&mut *a, &mut *b]) {
                    copy[..width].copy_from_slice(part(i));
                }
                f(worker.kernels, &[&a[..width], &b[..width]], to, param);
            }
        }
    }
}

fn rows(op: &str, width: u32, dtype: DType, f: RowFn, param: Param) -> Result<Arc<dyn Kernel>> {
    only_f32(op, dtype)?;
    Ok(Arc::new(Rows {
        width: width as usize,
        f: (f, param),
    }))
}

fn param(activation: Activation, number: f32) -> Param {
    Param {
        activation,
        number,
        alpha: 1.0,
        up_offset: 0.0,
    }
}

fn gelu_of(kind: GeluKind) -> Activation {
    match kind {
        GeluKind::Tanh => Activation::GeluTanh,
        GeluKind::Erf => Activation::GeluErf,
    }
}

fn activate_mul(k: &Kernels, x: &[&[f32]], out: &mut [f32], p: Param) {
    k.activate_mul(p.activation, x[0], x[1], out);
}

/// g·σ(α·g)·u as silu(α·g)·(u / α), with g and u bounded.
fn bounded_silu_mul(k: &Kernels, x: &[&[f32]], out: &mut [f32], p: Param) {
    let limit = if p.number == 0.0 { f32::INFINITY } else { p.number };
    let (mut gate, mut up) = ([0.0; PIECE], [0.0; PIECE]);
    let (gate, up) = (&mut gate[..out.len()], &mut up[..out.len()]);
    for (to, &value) in gate.iter_mut().zip(x[0]) {
        // A comparison, so that NaN stays NaN.
        *to = p.alpha * if value > limit { limit } else { value };
    }
    for (to, &value) in up.iter_mut().zip(x[1]) {
        *to = (value.clamp(-limit, limit) + p.up_offset) / p.alpha;
    }
    k.activate_mul(Activation::Silu, gate, up, out);
}

pub(crate) fn silu_mul(op: &ops::SiluMul) -> Result<Arc<dyn Kernel>> {
    if op.is_plain() {
        let param = param(Activation::Silu, 0.0);
        return rows("silu_mul", op.width, op.dtype, activate_mul, param);
    }
    let param = Param {
        alpha: if op.alpha == 0.0 { 1.0 } else { op.alpha },
        up_offset: op.up_offset,
        ..param(Activation::Silu, op.limit)
    };
    rows("silu_mul", op.width, op.dtype, bounded_silu_mul, param)
}

pub(crate) fn relu_squared(op: &ops::ReluSquared) -> Result<Arc<dyn Kernel>> {
    let f: RowFn = |k, x, out, p| k.activate_mul(p.activation, x[0], x[0], out);
    rows("relu_squared", op.width, op.dtype, f, param(Activation::Relu, 0.0))
}

pub(crate) fn gelu_mul(op: &ops::GeluMul) -> Result<Arc<dyn Kernel>> {
    rows(
        "gelu_mul",
        op.width,
        op.dtype,
        activate_mul,
        param(gelu_of(op.kind), 0.0),
    )
}

pub(crate) fn gelu(op: &ops::Gelu) -> Result<Arc<dyn Kernel>> {
    let f: RowFn = |k, x, out, p| k.activate(p.activation, x[0], out);
    rows("gelu", op.width, op.dtype, f, param(gelu_of(op.kind), 0.0))
}

pub(crate) fn add(op: &ops::Add) -> Result<Arc<dyn Kernel>> {
    let f: RowFn = |k, x, out, _| {
        out.copy_from_slice(x[0]);
        k.add(out, x[1]);
    };
    rows("add", op.width, op.dtype, f, param(Activation::Silu, 0.0))
}

pub(crate) fn scale(op: &ops::Scale) -> Result<Arc<dyn Kernel>> {
    let f: RowFn = |k, x, out, p| {
        out.copy_from_slice(x[0]);
        k.scale(out, p.number);
    };
    rows("scale", op.width, op.dtype, f, param(Activation::Silu, op.factor))
}

pub(crate) fn softcap(op: &ops::Softcap) -> Result<Arc<dyn Kernel>> {
    let f: RowFn = |k, x, out, p| {
        out.copy_from_slice(x[0]);
        k.softcap(out, p.number);
    };
    rows("softcap", op.width, op.dtype, f, param(Activation::Silu, op.cap))
}
