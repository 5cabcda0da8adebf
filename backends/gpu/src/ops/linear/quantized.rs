//! GGUF formats: their planes (layout in quantized.cuh), packed and unpacked on the device, and the product that reads them as they are.

use halyard_kernels_gpu::LINEAR_QUANTIZED;
use halyard_platform_api::ops;
use halyard_platform_api::{DType, Result, WeightFormat};

use super::plain::{TOKENS, product_args};
use super::{Call, epilogue_code, rows_aligned, type_name};
use crate::driver::{DevicePtr, Function};
use crate::encoding::{Arg, Encoding};
use crate::kernel::Preparation;

/// Values of a group: four chunks of 32.
pub(super) const GROUP: u64 = 128;
/// Warps of a matrix block, and floats that one of them leaves for a token.
const WARPS: u32 = 8;
const COLUMN: u32 = 20;

/// Bytes a group of each plane, and whether there is a word for every two groups: quants, high bits, scales.
const fn planes(format: WeightFormat) -> ([u64; 3], bool) {
    match format {
        WeightFormat::Q4_1 => ([64, 0, 16], false),
        WeightFormat::Q5_0 => ([64, 16, 8], false),
        WeightFormat::Q8_0 => ([128, 0, 8], false),
        WeightFormat::Q4K => ([64, 0, 8], true),
        WeightFormat::Q6K => ([64, 32, 8], true),
        _ => ([64, 0, 8], false),
    }
}

/// Bytes of a matrix of n rows of k values; the kernel computes the same.
pub(super) fn packed_bytes(format: WeightFormat, n: u64, k: u64) -> u64 {
    let groups = n * k.div_ceil(GROUP);
    let (bytes, blocks) = planes(format);
    let planes: u64 = bytes.iter().map(|b| (groups * b).next_multiple_of(256)).sum();
    planes + if blocks { groups * 2 } else { 0 }
}

/// The number of a format in the kernels.
pub(super) fn format_code(format: WeightFormat) -> String {
    (format as u32).to_string()
}

/// Whether planes are multiplied on matrix units.
fn on_matrix_units(cx: &Preparation<'_>, op: &ops::Linear) -> bool {
    cx.facts().matrix_units && op.act != DType::F32
}

/// Compiled.
pub(super) struct Quantized {
    pack: Function,
    plain: Function,
    /// Output rows, and threads, of a block of it.
    block: (u32, u32),
    /// For 8 and for 16 tokens a block; 16-bit activations on matrix units only.
    matrix: Option<[Function; 2]>,
    n: u32,
    k: u32,
}

impl Quantized {
    pub(super) fn prepare(cx: &Preparation<'_>, op: &ops::Linear, format: WeightFormat) -> Result<Quantized> {
        let code = format_code(format);
        let half = on_matrix_units(cx, op);
        let defines = [
            ("FORMAT", code.as_str()),
            ("ACT", type_name(op.act)),
            ("OUT", type_name(op.out)),
            ("MATRIX", if half { "1" } else { "0" }),
            ("EPILOGUE", epilogue_code(op.epilogue)),
        ];
        let function = |name: &str, shared| cx.function(LINEAR_QUANTIZED, &defines, name, shared);
        let matrix = if half {
            Some([
                function("linear_quantized_1", shared_bytes(1))?,
                function("linear_quantized_2", shared_bytes(2))?,
            ])
        } else {
            None
        };
        Ok(Quantized {
            pack: function("quantized_pack", 0)?,
            plain: function("linear_quantized_plain", 0)?,
            block: cx.driver.plain_rows(),
            matrix,
            n: op.out_features,
            k: op.in_features,
        })
    }

    pub(super) fn encode(&self, encoding: &mut Encoding, call: &Call) {
        let args = product_args(call, self.n, self.k);
        match self.matrix {
            Some(matrix) if rows_aligned(&call.x, 8) => {
                let tiles = if call.tokens <= 8 { 1 } else { 2 };
                let grid = [self.n.div_ceil(16), call.tokens.div_ceil(8 * tiles), 1];
                let function = matrix[tiles as usize - 1];
                encoding.launch(function, grid, 32 * WARPS, shared_bytes(tiles), &args);
            }
            _ => {
                let (rows, threads) = self.block;
                let grid = [self.n.div_ceil(rows), call.tokens.div_ceil(TOKENS), 1];
                encoding.launch(self.plain, grid, threads, 0, &args);
            }
        }
    }

    /// Canonical rows to planes.
    pub(super) fn pack(&self, encoding: &mut Encoding, from: DevicePtr, dst: DevicePtr, first_row: u32, rows: u32) {
        let chunks = u64::from(rows) * 4 * u64::from(self.k).div_ceil(GROUP);
        let args = [
            Arg::Ptr(from),
            Arg::Ptr(dst),
            Arg::U32(self.n),
            Arg::U32(self.k),
            Arg::U32(first_row),
            Arg::U32(rows),
        ];
        encoding.launch(self.pack, [chunks.div_ceil(256) as u32, 1, 1], 256, 0, &args);
    }
}

fn shared_bytes(tiles: u32) -> u32 {
    WARPS * 8 * tiles * COLUMN * 4
}

/// Planes to row-major values of the activations' type.
pub(super) struct Unpack {
    function: Function,
    n: u32,
    k: u32,
}

impl Unpack {
    pub(super) fn prepare(cx: &Preparation<'_>, op: &ops::Linear, format: WeightFormat) -> Result<Unpack> {
        let code = format_code(format);
        let defines = [
            ("FORMAT", code.as_str()),
            ("ACT", type_name(op.act)),
            ("OUT", type_name(op.out)),
            ("MATRIX", if on_matrix_units(cx, op) { "1" } else { "0" }),
            ("EPILOGUE", epilogue_code(op.epilogue)),
        ];
        Ok(Unpack {
            function: cx.function(LINEAR_QUANTIZED, &defines, "quantized_unpack", 0)?,
            n: op.out_features,
            k: op.in_features,
        })
    }

    pub(super) fn encode(&self, encoding: &mut Encoding, weight: DevicePtr, to: Arg, first_row: u32, rows: u32) {
        let parts = u64::from(rows) * 16 * u64::from(self.k).div_ceil(GROUP);
        let args = [
            Arg::Ptr(weight),
            to,
            Arg::U32(self.n),
            Arg::U32(self.k),
            Arg::U32(first_row),
            Arg::U32(rows),
        ];
        encoding.launch(self.function, [parts.div_ceil(256) as u32, 1, 1], 256, 0, &args);
    }
}
