//! Tokens rounded to 8-bit floats with a scale a token, so that 8-bit weights are multiplied as they lie. Only where
//! the op allows activations to be rounded. The kernel can also compute the norm before it.

use halyard_kernels_gpu::LINEAR_SCALED_TOKENS;
use halyard_platform_api::{DType, Result, ops};

use super::layout::WeightLayout;
use crate::driver::{DevicePtr, Function};
use crate::encoding::{Arg, Encoding};
use crate::kernel::Preparation;
use crate::ops::names::type_name;
use crate::view::View;

/// Threads of a block, and values that a thread keeps: that many eights, at most.
const THREADS: u32 = 256;
const MOST_KEPT: u32 = 8;

/// A norm by the root mean square: its weight, what is added to that, and epsilon.
#[derive(Clone, Copy)]
pub(super) struct Norm {
    pub(super) weight: DevicePtr,
    pub(super) offset: f32,
    pub(super) eps: f32,
}

/// Compiled.
pub(super) struct RoundTokens {
    function: Function,
    k: u32,
}

/// Whether a linear's tokens may be rounded, and its rows are multiples of 16 values.
pub(super) fn may_round(op: &ops::Linear) -> bool {
    op.allow_quantized_act && op.act != DType::F32 && op.in_features.is_multiple_of(16)
}

/// Whether the library multiplies a linear's tokens once they are rounded.
pub(super) fn takes(op: &ops::Linear, layout: WeightLayout) -> bool {
    layout == WeightLayout::Scaled && may_round(op)
}

/// Whether tokens of `k` values can be normed on the way.
pub(super) fn norms(k: u32) -> bool {
    k <= 8 * THREADS * MOST_KEPT
}

impl RoundTokens {
    /// Compiles the kernel for weights of a layout; with `normed` one for tokens to norm first, which it [`norms`].
    pub(super) fn prepare(
        cx: &Preparation<'_>,
        op: &ops::Linear,
        layout: WeightLayout,
        normed: bool,
    ) -> Result<RoundTokens> {
        let records = matches!(layout, WeightLayout::Planes(_));
        let kept = op.in_features.div_ceil(8 * THREADS).clamp(1, MOST_KEPT).to_string();
        let defines = [
            ("ACT", type_name(op.act)),
            ("KEPT", kept.as_str()),
            ("NORM", if normed { "1" } else { "0" }),
            ("RECORDS", if records { "1" } else { "0" }),
        ];
        Ok(RoundTokens {
            function: cx.function(LINEAR_SCALED_TOKENS, &defines, "scaled_tokens", 0)?,
            k: op.in_features,
        })
    }

    /// Rounds the rows of x, which are 16-byte aligned, to codes and scales at these offsets in scratch; the norm of
    /// one that was compiled for it is 16-byte aligned, too.
    pub(super) fn encode(&self, encoding: &mut Encoding, x: &View, norm: Option<Norm>, codes: u64, scales: u64) {
        let norm = norm.unwrap_or(Norm {
            weight: 0,
            offset: 0.0,
            eps: 0.0,
        });
        let args = [
            Arg::Ptr(x.ptr),
            Arg::U32(x.row_stride()),
            Arg::Scratch(codes),
            Arg::Scratch(scales),
            Arg::U32(self.k),
            Arg::Ptr(norm.weight),
            Arg::F32(norm.offset),
            Arg::F32(norm.eps),
        ];
        encoding.launch(self.function, [x.len(), 1, 1], THREADS, 0, &args);
    }
}
