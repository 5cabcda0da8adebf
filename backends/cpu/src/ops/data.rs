//! Moving, rounding and pooling rows, and random values. Strided copies go element by element unless the inner axis is
//! contiguous.

use half::{bf16, f16};
use halyard_platform_api::ops::{self, PoolMode, QuantizeScheme};
use halyard_platform_api::{DType, Error, Result};

use super::only_f32;
use crate::kernel::{Kernel, Worker};
use crate::view::View;

/// Copies `width` elements of `bytes` each.
unsafe fn copy_row(from: &View, from_row: usize, to: &View, to_row: usize, width: usize, bytes: usize) {
    // SAFETY: the caller's promise: both rows hold `width` contiguous elements and do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(from.element_ptr(from_row, 0), to.element_ptr(to_row, 0), width * bytes) }
}

pub(crate) struct GatherRows {
    width: usize,
    bytes: usize,
}

impl GatherRows {
    pub(crate) fn new(op: &ops::GatherRows) -> GatherRows {
        GatherRows {
            width: op.width as usize,
            bytes: op.dtype.bytes(),
        }
    }
}

impl Kernel for GatherRows {
    unsafe fn run(&self, _phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        let [x, index, out] = operands else {
            unreachable!("gather_rows has three operands")
        };
        for i in worker.share(out.len()) {
            // SAFETY: output rows are shared out; x is another tensor.
            unsafe {
                let from = index.vector()[i];
                if from >= 0 {
                    copy_row(x, from as usize, out, i, self.width, self.bytes);
                }
            }
        }
    }
}

pub(crate) struct ScatterRows {
    width: usize,
    bytes: usize,
}

impl ScatterRows {
    pub(crate) fn new(op: &ops::ScatterRows) -> ScatterRows {
        ScatterRows {
            width: op.width as usize,
            bytes: op.dtype.bytes(),
        }
    }
}

impl Kernel for ScatterRows {
    unsafe fn run(&self, _phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        let [x, index, out] = operands else {
            unreachable!("scatter_rows has three operands")
        };
        for i in worker.share(x.len()) {
            // SAFETY: an index appears at most once, so input rows are shared out.
            unsafe {
                let to = index.vector()[i];
                if to >= 0 {
                    copy_row(x, i, out, to as usize, self.width, self.bytes);
                }
            }
        }
    }
}

pub(crate) struct QuantizeAct {
    width: usize,
    group: usize,
}

impl QuantizeAct {
    pub(crate) fn new(op: &ops::QuantizeAct) -> Result<QuantizeAct> {
        only_f32("quantize_act", op.dtype)?;
        let width = op.width as usize;
        let group = match op.scheme {
            QuantizeScheme::Int8Row => width,
            QuantizeScheme::Int8Block32 if width.is_multiple_of(32) => 32,
            QuantizeScheme::Int8Block32 => {
                return Err(Error::unsupported(format!(
                    "quantize_act: {width} values are no whole groups of 32"
                )));
            }
            QuantizeScheme::Fp8Row => {
                return Err(Error::unsupported(
                    "quantize_act to FP8: no product of this platform reads it",
                ));
            }
        };
        Ok(QuantizeAct { width, group })
    }
}

impl Kernel for QuantizeAct {
    unsafe fn run(&self, _phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        let [x, q, scales] = operands else {
            unreachable!("quantize_act has three operands")
        };
        for t in worker.share(x.len()) {
            // SAFETY: rows are shared out.
            unsafe {
                let x = x.f32s(t, 0, self.width);
                let q = std::slice::from_raw_parts_mut(q.element_ptr(t, 0).cast::<i8>(), self.width);
                let scales = scales.f32s_mut(t, 0, self.width / self.group);
                for (g, x) in x.chunks(self.group).enumerate() {
                    let largest = x.iter().fold(0f32, |m, v| m.max(v.abs()));
                    scales[g] = largest / 127.0;
                    for (q, v) in q[g * self.group..].iter_mut().zip(x) {
                        *q = if largest > 0.0 {
                            (v / scales[g]).round_ties_even().clamp(-127.0, 127.0) as i8
                        } else {
                            0
                        };
                    }
                }
            }
        }
    }
}

pub(crate) struct Pool {
    width: usize,
    mode: PoolMode,
    normalize: bool,
}

impl Pool {
    pub(crate) fn new(op: &ops::Pool) -> Result<Pool> {
        only_f32("pool", op.dtype)?;
        Ok(Pool {
            width: op.width as usize,
            mode: op.mode,
            normalize: op.normalize,
        })
    }
}

impl Kernel for Pool {
    unsafe fn run(&self, _phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        let [x, starts, out] = operands else {
            unreachable!("pool has three operands")
        };
        for s in worker.share(out.len()) {
            // SAFETY: sequences are shared out.
            unsafe {
                let tokens = starts.vector()[s] as usize..starts.vector()[s + 1] as usize;
                let out = out.f32s_mut(s, 0, self.width);
                out.fill(0.0);
                if tokens.is_empty() {
                    continue;
                }
                match self.mode {
                    PoolMode::Last => out.copy_from_slice(x.f32s(tokens.end - 1, 0, self.width)),
                    PoolMode::First => out.copy_from_slice(x.f32s(tokens.start, 0, self.width)),
                    PoolMode::Mean => {
                        let count = tokens.len() as f32;
                        tokens.for_each(|t| worker.kernels.add(out, x.f32s(t, 0, self.width)));
                        out.iter_mut().for_each(|v| *v /= count);
                    }
                }
                if self.normalize {
                    let norm = out.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt().max(1e-12);
                    out.iter_mut().for_each(|v| *v = (f64::from(*v) / norm) as f32);
                }
            }
        }
    }
}

pub(crate) struct Copy {
    bytes: usize,
}

impl Copy {
    pub(crate) fn new(op: &ops::Copy) -> Copy {
        Copy {
            bytes: op.dtype.bytes(),
        }
    }
}

/// Number of elements in one outermost entry.
fn inner_len(view: &View) -> usize {
    view.shape[1..].iter().product()
}

impl Kernel for Copy {
    unsafe fn run(&self, _phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        let [x, out] = operands else {
            unreachable!("copy has two operands")
        };
        for t in worker.share(out.len()) {
            // SAFETY: outermost entries are shared out.
            unsafe {
                if x.is_inner_contiguous(2) && out.is_inner_contiguous(2) && out.shape[2] == 1 {
                    std::ptr::copy(x.element_ptr(t, 0), out.element_ptr(t, 0), out.shape[1] * self.bytes);
                    continue;
                }
                for i in 0..inner_len(out) {
                    std::ptr::copy(x.nth(t, i), out.nth(t, i), self.bytes);
                }
            }
        }
    }
}

pub(crate) struct FillRandom {
    dtype: DType,
    key: [u32; 2],
    scale: f32,
    first: u64,
}

impl FillRandom {
    pub(crate) fn new(op: &ops::FillRandom) -> Result<FillRandom> {
        if !matches!(op.dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Err(Error::unsupported(format!(
                "fill_random of {:?}: F32, F16 and BF16 only",
                op.dtype
            )));
        }
        Ok(FillRandom {
            dtype: op.dtype,
            key: [op.seed_low, op.seed_high],
            scale: op.scale,
            first: u64::from(op.first),
        })
    }
}

impl Kernel for FillRandom {
    unsafe fn run(&self, _phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        let [out] = operands else {
            unreachable!("fill_random has one operand")
        };
        let total = out.shape.iter().product::<usize>();
        let bytes = self.dtype.bytes();
        for quad in worker.share(total.div_ceil(4)) {
            let counter = self.first / 4 + quad as u64;
            let words = super::sampling::philox([counter as u32, (counter >> 32) as u32, 0, 0], self.key);
            for (i, word) in words.into_iter().enumerate().take(total - quad * 4) {
                let u = (word >> 8) as f32;
                let value = (u / 8_388_608.0 - 1.0) * self.scale;
                // SAFETY: out is contiguous, and groups of four are shared out.
                unsafe { store(self.dtype, out.ptr().add((quad * 4 + i) * bytes), value) };
            }
        }
    }
}

unsafe fn store(dtype: DType, at: *mut u8, value: f32) {
    // SAFETY: the caller has memory for an element of `dtype` there.
    unsafe {
        match dtype {
            DType::F16 => at.cast::<f16>().write_unaligned(f16::from_f32(value)),
            DType::BF16 => at.cast::<bf16>().write_unaligned(bf16::from_f32(value)),
            _ => at.cast::<f32>().write_unaligned(value),
        }
    }
}
