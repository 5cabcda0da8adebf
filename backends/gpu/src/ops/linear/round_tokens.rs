//! Tokens rounded to 8-bit floats with a scale a token, so that the library multiplies 8-bit weights as they lie.
//! Only where the op allows activations to be rounded.

use halyard_kernels_gpu::LINEAR_SCALED_TOKENS;
use halyard_platform_api::{DType, Result, ops};

use super::layout::WeightLayout;
use crate::driver::Function;
use crate::encoding::{Arg, Encoding};
use crate::kernel::Preparation;
use crate::ops::names::type_name;
use crate::view::View;

/// Compiled.
pub(super) struct RoundTokens {
    function: Function,
    k: u32,
}

/// Whether a linear's tokens may be rounded, and its rows are long enough multiples for the library.
pub(super) fn takes(op: &ops::Linear, layout: WeightLayout) -> bool {
    layout == WeightLayout::Scaled
        && op.allow_quantized_act
        && op.act != DType::F32
        && op.in_features.is_multiple_of(16)
}

impl RoundTokens {
    pub(super) fn prepare(cx: &Preparation<'_>, op: &ops::Linear) -> Result<RoundTokens> {
        Ok(RoundTokens {
            function: cx.function(LINEAR_SCALED_TOKENS, &[("ACT", type_name(op.act))], "scaled_tokens", 0)?,
            k: op.in_features,
        })
    }

    /// Bytes of a token's codes and its scale.
    pub(super) fn token_bytes(&self) -> u64 {
        u64::from(self.k) + 4
    }

    /// Rounds the rows of x, which are 16-byte aligned, to codes and scales at these offsets in scratch.
    pub(super) fn encode(&self, encoding: &mut Encoding, x: &View, codes: u64, scales: u64) {
        let args = [
            Arg::Ptr(x.ptr),
            Arg::U32(x.row_stride()),
            Arg::Scratch(codes),
            Arg::Scratch(scales),
            Arg::U32(self.k),
        ];
        encoding.launch(self.function, [x.len(), 1, 1], 256, 0, &args);
    }
}
