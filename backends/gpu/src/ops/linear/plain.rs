//! The plain kernel: any type, size and stride, in f32. Also rounds weights to the activations' type at load.

use halyard_kernels_gpu::{LINEAR_PLAIN, Source};
use halyard_platform_api::ops;
use halyard_platform_api::{DType, Result, WeightFormat};

use super::call::{Call, LayoutKernels, Path};
use crate::driver::{DevicePtr, Function};
use crate::encoding::{Arg, Encoding};
use crate::kernel::Preparation;
use crate::ops::names::{epilogue_code, type_name};
use crate::view::View;

/// Tokens of a block.
pub(super) const TOKENS: u32 = 8;

/// Compiled.
pub(super) struct Plain {
    product: Function,
    /// Output rows, and threads, of a block of it.
    block: (u32, u32),
    convert: Option<Function>,
    n: u32,
    k: u32,
    bytes: u64,
}

impl Plain {
    pub(super) fn prepare(cx: &Preparation<'_>, op: &ops::Linear, weight: DType) -> Result<Plain> {
        let canonical = match op.weight {
            WeightFormat::F16 => DType::F16,
            WeightFormat::BF16 => DType::BF16,
            _ => DType::F32,
        };
        let convert = (canonical != weight)
            .then(|| convert_function(cx, canonical, weight))
            .transpose()?;
        let defines = [
            ("ACT", type_name(op.act)),
            ("WEIGHT", type_name(weight)),
            ("OUT", type_name(op.out)),
            ("EPILOGUE", epilogue_code(op.epilogue)),
        ];
        Ok(Plain {
            product: cx.function(LINEAR_PLAIN, &defines, "linear_plain", 0)?,
            block: cx.policy().plain_block,
            convert,
            n: op.out_features,
            k: op.in_features,
            bytes: weight.bytes() as u64,
        })
    }
}

impl Path for Plain {
    fn encode(&self, encoding: &mut Encoding, call: &Call) {
        let (rows, threads) = self.block;
        let grid = [self.n.div_ceil(rows), call.tokens.div_ceil(TOKENS), 1];
        encoding.launch(self.product, grid, threads, 0, &call.args(self.n, self.k));
    }
}

impl LayoutKernels for Plain {
    /// Rounds rows to the type that they have on the device.
    fn pack(&self, encoding: &mut Encoding, from: DevicePtr, dst: DevicePtr, first_row: u32, rows: u32) {
        let row_bytes = u64::from(self.k) * self.bytes;
        let (to, count) = (
            dst + u64::from(first_row) * row_bytes,
            u64::from(rows) * u64::from(self.k),
        );
        if let Some(convert) = self.convert {
            encode_convert(encoding, convert, from, Arg::Ptr(to), count);
        }
    }
}

/// Rounds or widens weights of one type to another.
pub(super) fn convert_function(cx: &Preparation<'_>, from: DType, to: DType) -> Result<Function> {
    let defines = [
        ("ACT", type_name(to)),
        ("WEIGHT", type_name(from)),
        ("OUT", type_name(to)),
        ("EPILOGUE", "0"),
    ];
    cx.function(LINEAR_PLAIN, &defines, "convert_weights", 0)
}

/// Appends a conversion of `count` values.
pub(super) fn encode_convert(encoding: &mut Encoding, function: Function, from: DevicePtr, to: Arg, count: u64) {
    let grid = [count.div_ceil(1024) as u32, 1, 1];
    encoding.launch(function, grid, 256, 0, &[Arg::Ptr(from), to, Arg::U64(count)]);
}

/// Tokens of a block of linear_finish.
const FINISH_TOKENS: u32 = 8;

/// What precedes or follows a library product: out = epilogue(product + bias) + residual.
pub(super) struct Finish {
    function: Function,
    n: u32,
}

impl Finish {
    const SOURCE: Source = LINEAR_PLAIN;

    pub(super) fn prepare(cx: &Preparation<'_>, op: &ops::Linear) -> Result<Finish> {
        let defines = [
            ("ACT", type_name(op.act)),
            ("WEIGHT", type_name(op.act)),
            ("OUT", type_name(op.out)),
            ("EPILOGUE", epilogue_code(op.epilogue)),
        ];
        Ok(Finish {
            function: cx.function(Self::SOURCE, &defines, "linear_finish", 0)?,
            n: op.out_features,
        })
    }

    /// `product` is f32 rows of n values, or null.
    pub(super) fn encode(&self, encoding: &mut Encoding, product: Arg, bias: DevicePtr, residual: &View, out: &View) {
        let args = [
            product,
            Arg::Ptr(bias),
            Arg::Ptr(residual.ptr),
            Arg::Ptr(out.ptr),
            Arg::U32(self.n),
            Arg::U32(residual.row_stride()),
            Arg::U32(out.row_stride()),
            Arg::U32(self.n),
            Arg::U32(out.len()),
        ];
        let grid = [self.n.div_ceil(256), out.len().div_ceil(FINISH_TOKENS), 1];
        encoding.launch(self.function, grid, 256, 0, &args);
    }
}
