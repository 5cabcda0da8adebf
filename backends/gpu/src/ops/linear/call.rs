//! One call of a linear, and the trait of a path that computes it.

use halyard_platform_api::{Error, Result};

use crate::driver::DevicePtr;
use crate::encoding::{Arg, Encoding};
use crate::view::View;

/// A way to compute calls, prepared for one linear.
pub(super) trait Path: Send + Sync {
    /// Whether it takes operands that lie so.
    fn takes(&self, call: &Call) -> bool {
        let _ = call;
        true
    }

    /// Scratch while it runs, bytes.
    fn scratch_bytes(&self) -> u64 {
        0
    }

    /// Appends the launches of a call that it takes.
    fn encode(&self, encoding: &mut Encoding, call: &Call);
}

/// The kernels of a weight layout: a path for every call, and packing.
pub(super) trait LayoutKernels: Path {
    /// Appends what brings canonical rows at `from` into the layout at `dst`.
    fn pack(&self, encoding: &mut Encoding, from: DevicePtr, dst: DevicePtr, first_row: u32, rows: u32);
}

/// One call, its operands by name.
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub x: View,
    pub weight: View,
    pub bias: View,
    pub residual: View,
    pub out: View,
    pub tokens: u32,
}

impl Call {
    /// # Errors
    /// `InvalidArgument` for another number of operands; `Unsupported` for gaps between neighbours.
    pub(super) fn of(operands: &[View]) -> Result<Call> {
        let &[x, weight, bias, residual, out] = operands else {
            return Err(Error::invalid(format!(
                "linear has 5 operands, found {}",
                operands.len()
            )));
        };
        for (name, view) in [("x", x), ("bias", bias), ("residual", residual), ("out", out)] {
            if !view.is_none() && !view.is_inner_contiguous() {
                return Err(Error::unsupported(format!(
                    "linear: neighbours of {name} are {} values apart; make its innermost axis contiguous",
                    view.strides[view.rank as usize - 1]
                )));
            }
        }
        let tokens = out.len();
        Ok(Call {
            x,
            weight,
            bias,
            residual,
            out,
            tokens,
        })
    }

    /// Tokens `first .. first + count`.
    pub(super) fn rows(&self, first: u32, count: u32) -> Call {
        Call {
            x: rows(&self.x, first, count),
            residual: rows(&self.residual, first, count),
            out: rows(&self.out, first, count),
            tokens: count,
            ..*self
        }
    }

    /// Whether the residual is the output itself.
    pub(super) fn in_place(&self) -> bool {
        !self.residual.is_none()
            && self.residual.ptr == self.out.ptr
            && (self.tokens == 1 || self.residual.row_stride() == self.out.row_stride())
    }

    /// The parameters that the plain kernels share.
    pub(super) fn args(&self, n: u32, k: u32) -> [Arg; 11] {
        self.args_from(Arg::Ptr(self.x.ptr), n, k)
    }

    /// The same with the tokens elsewhere.
    pub(super) fn args_from(&self, x: Arg, n: u32, k: u32) -> [Arg; 11] {
        [
            x,
            Arg::Ptr(self.weight.ptr),
            Arg::Ptr(self.bias.ptr),
            Arg::Ptr(self.residual.ptr),
            Arg::Ptr(self.out.ptr),
            Arg::U32(self.x.row_stride()),
            Arg::U32(self.residual.row_stride()),
            Arg::U32(self.out.row_stride()),
            Arg::U32(self.tokens),
            Arg::U32(n),
            Arg::U32(k),
        ]
    }
}

/// Rows `first .. first + count` of an operand; the absent one stays absent.
pub(super) fn rows(view: &View, first: u32, count: u32) -> View {
    if view.is_none() {
        return *view;
    }
    let mut part = *view;
    part.shape[0] = count;
    part.ptr += u64::from(first) * u64::from(view.row_stride()) * view.dtype.bytes() as u64;
    part
}

/// Whether rows start at multiples of `bytes`.
pub(crate) fn rows_aligned(view: &View, bytes: u64) -> bool {
    let pitch = u64::from(view.row_stride()) * view.dtype.bytes() as u64;
    view.ptr.is_multiple_of(bytes) && (view.len() <= 1 || pitch.is_multiple_of(bytes))
}
