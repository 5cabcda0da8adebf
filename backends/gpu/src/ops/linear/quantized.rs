//! Formats in blocks, GGUF's and canonical ones: their planes or records (layout.rs), packed and unpacked on the
//! device, and the product that reads them as they are.

use halyard_kernels_gpu::LINEAR_QUANTIZED;
use halyard_platform_api::ops;
use halyard_platform_api::{DType, Result, WeightFormat};

use super::call::{Call, LayoutKernels, Path, rows_aligned};
use super::layout::{GROUP, RECORD_ROWS};
use super::plain::TOKENS;
use crate::driver::{DevicePtr, Function};
use crate::encoding::{Arg, Encoding};
use crate::kernel::Preparation;
use crate::ops::formats::code;
use crate::ops::names::{epilogue_code, type_name};

/// Warps of a matrix block, and floats that one of them leaves for a token.
const WARPS: u32 = 8;
const COLUMN: u32 = 20;

/// Whether records are multiplied on matrix units: codes are numbers that 16-bit types hold, but for NF4 and FP4.
fn on_matrix_units(cx: &Preparation<'_>, op: &ops::Linear) -> bool {
    let exact = !matches!(op.weight, WeightFormat::Nf4G64 | WeightFormat::Fp4G64);
    cx.facts().matrix_units && op.act != DType::F32 && exact
}

/// Packing of rows into planes or records.
#[derive(Clone, Copy)]
pub(crate) struct Pack {
    function: Function,
    n: u32,
    k: u32,
}

impl Pack {
    /// Compiles it for a matrix of n rows of k values, as experts' are: all their rows together.
    ///
    /// # Errors
    /// Errors of the compiler.
    pub(crate) fn prepare(cx: &Preparation<'_>, act: &str, format: WeightFormat, n: u32, k: u32) -> Result<Pack> {
        let defines = [
            ("FORMAT", code(format)),
            ("ACT", act),
            ("OUT", act),
            ("MATRIX", "1"),
            ("EPILOGUE", "0"),
        ];
        Ok(Pack {
            function: cx.function(LINEAR_QUANTIZED, &defines, "quantized_pack", 0)?,
            n,
            k,
        })
    }

    /// Appends what brings rows at `from` to their places in `dst`.
    pub(crate) fn encode(self, encoding: &mut Encoding, from: DevicePtr, dst: DevicePtr, first_row: u32, rows: u32) {
        let chunks = u64::from(rows) * 4 * u64::from(self.k).div_ceil(GROUP);
        let args = [
            Arg::Ptr(from),
            Arg::Ptr(dst),
            Arg::U32(self.n),
            Arg::U32(self.k),
            Arg::U32(first_row),
            Arg::U32(rows),
        ];
        encoding.launch(self.function, [chunks.div_ceil(256) as u32, 1, 1], 256, 0, &args);
    }
}

/// Compiled.
pub(super) struct Quantized {
    pack: Pack,
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
        let code = code(format);
        let half = on_matrix_units(cx, op);
        let defines = [
            ("FORMAT", code),
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
            pack: Pack {
                function: function("quantized_pack", 0)?,
                n: op.out_features,
                k: op.in_features,
            },
            plain: function("linear_quantized_plain", 0)?,
            block: cx.policy().plain_block,
            matrix,
            n: op.out_features,
            k: op.in_features,
        })
    }
}

impl Path for Quantized {
    fn encode(&self, encoding: &mut Encoding, call: &Call) {
        let args = call.args(self.n, self.k);
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
}

impl LayoutKernels for Quantized {
    /// Rows to planes or records.
    fn pack(&self, encoding: &mut Encoding, from: DevicePtr, dst: DevicePtr, first_row: u32, rows: u32) {
        self.pack.encode(encoding, from, dst, first_row, rows);
    }
}

fn shared_bytes(tiles: u32) -> u32 {
    WARPS * 8 * tiles * COLUMN * 4
}

/// Planes or records to row-major values of the activations' type.
pub(super) struct Unpack {
    function: Function,
    records: bool,
    n: u32,
    k: u32,
}

impl Unpack {
    pub(super) fn prepare(cx: &Preparation<'_>, op: &ops::Linear, format: WeightFormat) -> Result<Unpack> {
        let code = code(format);
        let defines = [
            ("FORMAT", code),
            ("ACT", type_name(op.act)),
            ("OUT", type_name(op.out)),
            ("MATRIX", if on_matrix_units(cx, op) { "1" } else { "0" }),
            ("EPILOGUE", epilogue_code(op.epilogue)),
        ];
        Ok(Unpack {
            function: cx.function(LINEAR_QUANTIZED, &defines, "quantized_unpack", 0)?,
            records: cx.policy().records,
            n: op.out_features,
            k: op.in_features,
        })
    }

    pub(super) fn encode(&self, encoding: &mut Encoding, weight: DevicePtr, to: Arg, first_row: u32, rows: u32) {
        // Threads a row of a group: of planes one for eight values, of records one for 32; a record's rows together.
        let (first, end) = (u64::from(first_row), u64::from(first_row) + u64::from(rows));
        let threads = match self.records {
            true => 4 * (end.next_multiple_of(RECORD_ROWS) - first / RECORD_ROWS * RECORD_ROWS),
            false => 16 * (end - first),
        };
        let parts = threads * u64::from(self.k).div_ceil(GROUP);
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
