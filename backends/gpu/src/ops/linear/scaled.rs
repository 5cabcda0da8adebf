//! 8-bit weights with a scale a row (layout in scaled.cuh): packing and unpacking on the device, and the plain product.

use halyard_kernels_gpu::LINEAR_SCALED;
use halyard_platform_api::Result;
use halyard_platform_api::ops;

use super::call::{Call, LayoutKernels, Path};
use crate::driver::{DevicePtr, Function};
use crate::encoding::{Arg, Encoding};
use crate::kernel::Preparation;
use crate::ops::names::{epilogue_code, type_name};

/// Compiled.
pub(super) struct Scaled {
    pack: Function,
    plain: Function,
    n: u32,
    k: u32,
}

fn defines<'a>(op: &ops::Linear) -> [(&'a str, &'a str); 3] {
    [
        ("ACT", type_name(op.act)),
        ("OUT", type_name(op.out)),
        ("EPILOGUE", epilogue_code(op.epilogue)),
    ]
}

impl Scaled {
    pub(super) fn prepare(cx: &Preparation<'_>, op: &ops::Linear) -> Result<Scaled> {
        let function = |name| cx.function(LINEAR_SCALED, &defines(op), name, 0);
        Ok(Scaled {
            pack: function("scaled_pack")?,
            plain: function("linear_scaled_plain")?,
            n: op.out_features,
            k: op.in_features,
        })
    }
}

impl Path for Scaled {
    fn encode(&self, encoding: &mut Encoding, call: &Call) {
        let grid = [self.n.div_ceil(8), call.tokens.div_ceil(8), 1];
        encoding.launch(self.plain, grid, 256, 0, &call.args(self.n, self.k));
    }
}

impl LayoutKernels for Scaled {
    /// Canonical rows to codes and scales.
    fn pack(&self, encoding: &mut Encoding, from: DevicePtr, dst: DevicePtr, first_row: u32, rows: u32) {
        let args = [
            Arg::Ptr(from),
            Arg::Ptr(dst),
            Arg::U32(self.n),
            Arg::U32(self.k),
            Arg::U32(first_row),
        ];
        encoding.launch(self.pack, [rows, 1, 1], 128, 0, &args);
    }
}

/// Codes to row-major values of the activations' type.
pub(super) struct UnpackScaled {
    function: Function,
    n: u32,
    k: u32,
}

impl UnpackScaled {
    pub(super) fn prepare(cx: &Preparation<'_>, op: &ops::Linear) -> Result<UnpackScaled> {
        Ok(UnpackScaled {
            function: cx.function(LINEAR_SCALED, &defines(op), "scaled_unpack", 0)?,
            n: op.out_features,
            k: op.in_features,
        })
    }

    /// The rows' values; k is a multiple of 4.
    pub(super) fn encode(&self, encoding: &mut Encoding, weight: DevicePtr, to: Arg, first_row: u32, rows: u32) {
        let words = u64::from(rows) * u64::from(self.k / 4);
        let args = [
            Arg::Ptr(weight),
            to,
            Arg::U32(self.n),
            Arg::U32(self.k),
            Arg::U32(first_row),
            Arg::U32(rows),
        ];
        encoding.launch(self.function, [words.div_ceil(256) as u32, 1, 1], 256, 0, &args);
    }
}
