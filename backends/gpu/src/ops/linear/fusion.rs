//! Ops that small-batch kernels fuse with the product: the norm before it and the gating after it, with their operands.

use crate::driver::DevicePtr;
use crate::encoding::Arg;
use crate::view::View;

/// Shared memory that a multiprocessor should set aside for it, bytes: enough for a few tokens of a long row. The rest
/// of the same memory is the first-level cache, which holds loads in flight. Without this setting a kernel keeps the
/// split of the kernel before it, which may have more shared memory (attention). An 8B model's decode step of one token
/// on an H200: 6.0 ms without it, 4.03 with it.
pub(super) const CARVEOUT_BYTES: u32 = 100 << 10;

/// The ops that are fused with the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fusion {
    /// x is normalised by its root mean square first.
    pub norm: bool,
    /// The activation's number where rows are gate and up parts of one result; "0" where not.
    pub gate: &'static str,
}

impl Fusion {
    /// A product only.
    pub(crate) const NONE: Fusion = Fusion { norm: false, gate: "0" };
}

/// One call. `out_features` counts output values: half the weight's rows where they are gated.
#[derive(Clone, Copy)]
pub(crate) struct SmallBatchCall {
    pub x: View,
    pub weight: DevicePtr,
    /// First row of the up part.
    pub weight_up: DevicePtr,
    /// Scales of the weight's rows, and of the up part's, where it has them.
    pub scale: DevicePtr,
    pub scale_up: DevicePtr,
    pub norm: DevicePtr,
    pub bias: DevicePtr,
    pub bias_up: DevicePtr,
    pub residual: View,
    pub out: View,
    pub in_features: u32,
    pub out_features: u32,
    /// Rows of the matrix, and the first one of the up part in its matrix: records are found by them.
    pub matrix_rows: u32,
    pub first_up: u32,
    pub norm_offset: f32,
    pub eps: f32,
}

impl SmallBatchCall {
    /// The operands as the kernels of small batches take them: `scales` behind the weights, `sizes` behind the extents.
    pub(super) fn args(&self, scales: &[Arg], sizes: &[Arg]) -> Vec<Arg> {
        let weights = [self.x.ptr, self.weight, self.weight_up].map(Arg::Ptr);
        let around = [self.norm, self.bias, self.bias_up, self.residual.ptr, self.out.ptr].map(Arg::Ptr);
        let strides = [&self.x, &self.residual, &self.out].map(|view| Arg::U32(view.row_stride()));
        let extents = [self.out.len(), self.out_features, self.in_features].map(Arg::U32);
        let norm = [self.norm_offset, self.eps].map(Arg::F32);
        [&weights[..], scales, &around, &strides, &extents, sizes, &norm].concat()
    }
}

impl SmallBatchCall {
    /// With every operand absent.
    pub(crate) fn new(in_features: u32, out_features: u32) -> SmallBatchCall {
        SmallBatchCall {
            x: View::NONE,
            weight: 0,
            weight_up: 0,
            scale: 0,
            scale_up: 0,
            norm: 0,
            bias: 0,
            bias_up: 0,
            residual: View::NONE,
            out: View::NONE,
            in_features,
            out_features,
            matrix_rows: out_features,
            first_up: 0,
            norm_offset: 0.0,
            eps: 0.0,
        }
    }
}
