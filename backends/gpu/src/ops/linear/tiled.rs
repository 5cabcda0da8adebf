//! Many tokens without matrix units and without a library: 64 by 64 tiles in f32. Plain weights are read as they are held, planes are unpacked in
//! scratch first, some rows at a time.

use halyard_kernels_gpu::LINEAR_TILED;
use halyard_platform_api::ops;
use halyard_platform_api::{Result, Status};

use super::quantized::Unpack;
use super::{Call, Held, epilogue_code, type_name};
use crate::driver::{DevicePtr, Function};
use crate::encoding::{Arg, Encoding};
use crate::kernel::Preparation;

/// Output rows, and tokens, of a block.
const TILE: u32 = 64;
const THREADS: u32 = 256;
/// Most scratch for unpacked weights.
const SCRATCH_BYTES: u64 = 64 << 20;

/// Compiled.
pub(super) struct Tiled {
    product: Function,
    unpack: Option<Unpack>,
    /// Rows of one launch.
    piece_rows: u32,
    n: u32,
    k: u32,
    act_bytes: u64,
    out_bytes: u64,
}

impl Tiled {
    /// `None` where calls of so many tokens do not come, or the driver's language lacks the kernel.
    pub(super) fn prepare(
        cx: &Preparation<'_>,
        op: &ops::Linear,
        held: Held,
        own_tokens: u32,
    ) -> Result<Option<Tiled>> {
        if op.max_tokens <= own_tokens {
            return Ok(None);
        }
        let (weight, unpack) = match held {
            Held::Plain(dtype) => (dtype, None),
            Held::Planes(format) => (op.act, Some(Unpack::prepare(cx, op, format)?)),
            // 8-bit floats have a plain kernel of their own.
            Held::Scaled => return Ok(None),
        };
        let defines = [
            ("ACT", type_name(op.act)),
            ("WEIGHT", type_name(weight)),
            ("OUT", type_name(op.out)),
            ("EPILOGUE", epilogue_code(op.epilogue)),
        ];
        let product = match cx.function(LINEAR_TILED, &defines, "linear_tiled", 0) {
            Ok(product) => product,
            Err(why) if why.status == Status::Unsupported => return Ok(None),
            Err(why) => return Err(why),
        };
        let (n, act_bytes) = (op.out_features, op.act.bytes() as u64);
        let piece_rows = match unpack {
            Some(_) => piece_rows(n, u64::from(op.in_features) * act_bytes),
            None => n,
        };
        Ok(Some(Tiled {
            product,
            unpack,
            piece_rows,
            n,
            k: op.in_features,
            act_bytes,
            out_bytes: op.out.bytes() as u64,
        }))
    }

    pub(super) fn scratch_bytes(&self) -> u64 {
        match self.unpack {
            Some(_) => u64::from(self.piece_rows) * u64::from(self.k) * self.act_bytes,
            None => 0,
        }
    }

    pub(super) fn encode(&self, encoding: &mut Encoding, call: &Call) {
        let mut first = 0;
        while first < self.n {
            let rows = self.piece_rows.min(self.n - first);
            let weight = match &self.unpack {
                Some(unpack) => {
                    unpack.encode(encoding, call.weight.ptr, Arg::Scratch(0), first, rows);
                    Arg::Scratch(0)
                }
                None => Arg::Ptr(call.weight.ptr),
            };
            self.launch(encoding, call, weight, first, rows);
            first += rows;
        }
    }

    /// Rows `first .. first + rows`, whose weights begin at `weight`.
    fn launch(&self, encoding: &mut Encoding, call: &Call, weight: Arg, first: u32, rows: u32) {
        let column = |ptr: DevicePtr, bytes: u64| match ptr {
            0 => Arg::Ptr(0),
            ptr => Arg::Ptr(ptr + u64::from(first) * bytes),
        };
        let args = [
            Arg::Ptr(call.x.ptr),
            weight,
            column(call.bias.ptr, 4),
            column(call.residual.ptr, self.out_bytes),
            column(call.out.ptr, self.out_bytes),
            Arg::U32(call.x.row_stride()),
            Arg::U32(call.residual.row_stride()),
            Arg::U32(call.out.row_stride()),
            Arg::U32(call.tokens),
            Arg::U32(rows),
            Arg::U32(self.k),
        ];
        let grid = [rows.div_ceil(TILE), call.tokens.div_ceil(TILE), 1];
        encoding.launch(self.product, grid, THREADS, 0, &args);
    }
}

/// Rows unpacked at a time: whole tiles, as many as scratch holds.
fn piece_rows(n: u32, row_bytes: u64) -> u32 {
    let most = (SCRATCH_BYTES / row_bytes.max(1) / u64::from(TILE)).clamp(1, u64::from(u32::MAX / TILE)) as u32 * TILE;
    n.min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_whole_tiles_within_scratch() {
        assert_eq!(piece_rows(100, 1152), 100);
        assert_eq!(piece_rows(49_152, 4096 * 4), 4096);
        // A row too wide for scratch still makes progress.
        assert_eq!(piece_rows(49_152, 1 << 40), 64);
        let rows = piece_rows(u32::MAX, 640);
        assert!(rows.is_multiple_of(TILE) && u64::from(rows) * 640 <= SCRATCH_BYTES);
    }
}
