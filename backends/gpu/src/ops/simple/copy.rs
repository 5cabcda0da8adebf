//! `copy` and `fill_random`. The tensors of a copy become as few axes as their strides allow, three at most, and their
//! elements the widest units that addresses and strides allow.

use halyard_kernels_gpu::COPY;
use halyard_platform_api::ops;
use halyard_platform_api::{DType, Error, Result};

use super::support::{Entries, Operands, act_name, blocks};
use crate::encoding::{Arg, Encoding};
use crate::kernel::{Kernel, Preparation};
use crate::view::View;

const THREADS: u32 = 256;
/// Units of a thread (UNROLL in the kernel file).
const UNROLL: u32 = 4;
/// Bytes of the units that the kernels move, in the order of their entry points.
const UNITS: [u64; 5] = [16, 8, 4, 2, 1];

/// Up to three axes over one or two tensors, in units.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Axes<const N: usize> {
    /// Index in [`UNITS`].
    unit: usize,
    /// Extents, outermost first.
    shape: [u32; 3],
    /// Distances of each tensor, in units.
    strides: [[u64; 3]; N],
}

impl<const N: usize> Axes<N> {
    /// Of tensors of one shape and type; `None` where more than three axes stay, or an extent passes 32 bits.
    fn of(views: [&View; N]) -> Option<Axes<N>> {
        let element = views[0].dtype.bytes() as u64;
        // Extent and strides, without axes of one element; neighbours that follow each other become one.
        let mut axes = [(1u64, [1u64; N]); 4];
        let mut count = 0;
        for axis in 0..views[0].rank as usize {
            let extent = u64::from(views[0].shape[axis]);
            let strides = views.map(|v| u64::from(v.strides[axis]));
            if extent == 1 {
                continue;
            }
            if count > 0 && (0..N).all(|i| axes[count - 1].1[i] == extent * strides[i]) {
                axes[count - 1] = (axes[count - 1].0 * extent, strides);
            } else {
                axes[count] = (extent, strides);
                count += 1;
            }
        }
        // One element is an axis too.
        let count = count.max(1);
        let (outer, inner) = axes[..count].split_at(count - 1);
        let (inner, inner_strides) = inner[0];
        let dense = inner_strides.iter().all(|s| *s == 1);
        let fits = |unit: u64| {
            (inner * element).is_multiple_of(unit)
                && views.iter().all(|v| v.ptr.is_multiple_of(unit))
                && outer
                    .iter()
                    .all(|(_, strides)| strides.iter().all(|s| (s * element).is_multiple_of(unit)))
        };
        let unit = match dense {
            true => UNITS.iter().position(|unit| fits(*unit))?,
            false => UNITS.iter().position(|unit| *unit == element)?,
        };
        let mut found = Axes {
            unit,
            shape: [1; 3],
            strides: [[0; 3]; N],
        };
        for (axis, (extent, strides)) in axes[..count].iter().enumerate() {
            let to = (axis + 3).checked_sub(count)?;
            let last = dense && axis + 1 == count;
            let extent = if last { extent * element / UNITS[unit] } else { *extent };
            found.shape[to] = u32::try_from(extent).ok()?;
            for (tensor, stride) in strides.iter().enumerate() {
                found.strides[tensor][to] = if last { 1 } else { stride * element / UNITS[unit] };
            }
        }
        Some(found)
    }

    fn or_error(found: Option<Axes<N>>, operands: &Operands<'_>, index: usize) -> Result<Axes<N>> {
        found.ok_or_else(|| {
            let view = operands.view(index);
            let rank = (view.rank as usize).min(4);
            operands.error(
                index,
                &format!(
                    "{:?} with strides {:?}: up to three axes after merging, each below 2^32 elements",
                    &view.shape[..rank],
                    &view.strides[..rank]
                ),
            )
        })
    }

    /// Number of units.
    fn total(&self, operands: &Operands<'_>) -> Result<u32> {
        operands.total(operands.total(self.shape[0], self.shape[1])?, self.shape[2])
    }

    /// Strides of a tensor as parameters.
    fn args(&self, tensor: usize) -> [Arg; 3] {
        self.strides[tensor].map(Arg::U64)
    }
}

/// `copy`.
pub(super) struct Copy {
    dtype: DType,
    pub(super) entries: Entries,
}

impl Copy {
    pub(super) fn new(op: &ops::Copy) -> Result<Copy> {
        let names = ["copy_16", "copy_8", "copy_4", "copy_2", "copy_1"];
        Ok(Copy {
            dtype: op.dtype,
            entries: Entries::new(COPY, &[], &names),
        })
    }
}

impl Kernel for Copy {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        self.entries.prepare(cx)
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let operands = Operands::new("copy", ops::Copy::OPERANDS, operands)?;
        let (x, out) = (
            operands.typed(0, self.dtype, None)?,
            operands.typed(1, self.dtype, None)?,
        );
        let dims = |v: &View| (v.rank, v.shape);
        if dims(x) != dims(out) {
            let rank = x.rank as usize;
            return Err(operands.error(1, &format!("another shape than x, {:?}", &x.shape[..rank])));
        }
        if x.is_empty() {
            return Ok(());
        }
        let axes = Axes::or_error(Axes::of([x, out]), &operands, 0)?;
        let total = axes.total(&operands)?;
        let ([f0, f1, f2], [t0, t1, t2]) = (axes.args(0), axes.args(1));
        encoding.launch(
            self.entries.get(axes.unit)?,
            [blocks(total, THREADS * UNROLL), 1, 1],
            THREADS,
            0,
            &[
                Arg::Ptr(x.ptr),
                f0,
                f1,
                f2,
                Arg::Ptr(out.ptr),
                t0,
                t1,
                t2,
                Arg::U32(axes.shape[1]),
                Arg::U32(axes.shape[2]),
                Arg::U32(total),
            ],
        );
        Ok(())
    }
}

/// `fill_random`.
pub(super) struct FillRandom {
    spec: ops::FillRandom,
    num_sms: u32,
    pub(super) entries: Entries,
}

impl FillRandom {
    pub(super) fn new(op: &ops::FillRandom) -> Result<FillRandom> {
        let act = act_name("fill_random", op.dtype)?;
        if !op.first.is_multiple_of(4) {
            return Err(Error::unsupported(format!(
                "fill_random from element {}: the first must be a multiple of 4, as four elements share a block of \
                 the generator",
                op.first
            )));
        }
        Ok(FillRandom {
            spec: op.clone(),
            num_sms: 1,
            entries: Entries::new(COPY, &[("ACT", act)], &["fill_random_vector", "fill_random_scalar"]),
        })
    }
}

impl Kernel for FillRandom {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        self.num_sms = cx.facts().num_sms.max(1);
        self.entries.prepare(cx)
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let operands = Operands::new("fill_random", ops::FillRandom::OPERANDS, operands)?;
        let out = operands.typed(0, self.spec.dtype, None)?;
        if out.is_empty() {
            return Ok(());
        }
        let mut count = 1u64;
        for axis in (0..out.rank as usize).rev() {
            if out.shape[axis] > 1 && u64::from(out.strides[axis]) != count {
                return Err(operands.error(0, "rows with gaps: it must be contiguous"));
            }
            count = count.saturating_mul(u64::from(out.shape[axis]));
        }
        let groups = count.div_ceil(16 / out.dtype.bytes() as u64);
        let resident = self.num_sms.saturating_mul(8);
        let grid = groups.div_ceil(u64::from(THREADS)).min(u64::from(resident)) as u32;
        encoding.launch(
            self.entries.get(usize::from(!out.ptr.is_multiple_of(16)))?,
            [grid, 1, 1],
            THREADS,
            0,
            &[
                Arg::Ptr(out.ptr),
                Arg::U64(count),
                Arg::U32(self.spec.first / 4),
                Arg::U32(self.spec.seed_low),
                Arg::U32(self.spec.seed_high),
                Arg::F32(self.spec.scale),
            ],
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(ptr: u64, dtype: DType, shape: &[u32], strides: &[u32]) -> View {
        let mut view = View {
            ptr,
            shape: [1; 4],
            strides: [1; 4],
            dtype,
            rank: shape.len() as u32,
        };
        view.shape[..shape.len()].copy_from_slice(shape);
        view.strides[..strides.len()].copy_from_slice(strides);
        view
    }

    #[test]
    fn contiguous_tensors_become_one_axis_of_16_byte_units() {
        let x = view(256, DType::BF16, &[3, 4, 8], &[32, 8, 1]);
        let axes = Axes::of([&x]).expect("three axes");
        assert_eq!((axes.unit, axes.shape), (0, [1, 1, 12]));
        assert_eq!(axes.strides[0][2], 1);
    }

    #[test]
    fn a_gap_keeps_an_axis_and_narrows_the_unit_to_what_both_allow() {
        let x = view(256, DType::BF16, &[3, 8], &[12, 1]);
        let out = view(512, DType::BF16, &[3, 8], &[8, 1]);
        let axes = Axes::of([&x, &out]).expect("two axes");
        assert_eq!((UNITS[axes.unit], axes.shape), (8, [1, 3, 2]));
        assert_eq!((axes.strides[0], axes.strides[1]), ([0, 3, 1], [0, 2, 1]));
    }

    #[test]
    fn an_odd_address_and_a_strided_inner_axis_move_elements() {
        let x = view(258, DType::BF16, &[8], &[1]);
        assert_eq!(Axes::of([&x]).map(|a| UNITS[a.unit]), Some(2));
        let x = view(256, DType::F32, &[5, 8], &[20, 2]);
        let axes = Axes::of([&x]).expect("two axes");
        assert_eq!((UNITS[axes.unit], axes.shape), (4, [1, 5, 8]));
        assert_eq!(axes.strides[0], [0, 20, 2]);
        let x = view(256, DType::F32, &[2, 3, 4], &[64, 20, 2]);
        let axes = Axes::of([&x]).expect("three strided axes");
        assert_eq!((axes.shape, axes.strides[0]), ([2, 3, 4], [64, 20, 2]));
        let x = view(256, DType::F32, &[2, 2, 3, 4], &[200, 64, 20, 2]);
        assert!(Axes::of([&x]).is_none(), "four strided axes");
        let x = view(258, DType::BF16, &[1], &[1]);
        let axes = Axes::of([&x]).expect("one element");
        assert_eq!((UNITS[axes.unit], axes.shape), (2, [1, 1, 1]));
    }
}
