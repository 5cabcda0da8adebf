//! Many tokens without a library: tiles in f32, or on the matrix units that the driver's kernel knows. Plain weights
//! are read as they lie, formats in blocks are unpacked in scratch first, some rows at a time.

use halyard_kernels_gpu::LINEAR_TILED;
use halyard_platform_api::ops;
use halyard_platform_api::{Error, Result};

use super::call::{Call, Path};
use super::layout::WeightLayout;
use super::quantized::Unpack;
use crate::driver::{DevicePtr, Function};
use crate::encoding::{Arg, Encoding};
use crate::kernel::Preparation;
use crate::ops::names::{epilogue_code, type_name};
use crate::policy::{Tile, Tiling};

/// Output rows of a block.
const TILE: u32 = 64;
/// Most scratch for unpacked weights.
const SCRATCH_BYTES: u64 = 64 << 20;

/// Compiled.
pub(super) struct Tiles {
    product: Function,
    tiles: [Tile; 2],
    num_sms: u32,
    unpack: Option<Unpack>,
    /// Rows of one launch.
    piece_rows: u32,
    n: u32,
    k: u32,
    act_bytes: u64,
    out_bytes: u64,
}

impl Tiles {
    /// Compiles the kernel for weights of [`WeightLayout::Plain`] or [`WeightLayout::Planes`].
    ///
    /// # Errors
    /// `Unsupported` where the driver's language lacks the kernel, or its matrix units are wrong.
    pub(super) fn prepare(
        cx: &Preparation<'_>,
        op: &ops::Linear,
        layout: WeightLayout,
        on_matrix_units: bool,
    ) -> Result<Tiles> {
        let (weight, unpack) = match layout {
            WeightLayout::Plain(dtype) => (dtype, None),
            WeightLayout::Planes(format) => (op.act, Some(Unpack::prepare(cx, op, format)?)),
            WeightLayout::Scaled => return Err(Error::unsupported("tiles of 8-bit floats")),
        };
        let tiling = match cx.policy().matrix_tiling(op.act, weight) {
            Some(tiling) if on_matrix_units => {
                cx.driver.self_test_matrix_units(op.act)?;
                tiling.clone()
            }
            _ => Tiling::plain("in f32"),
        };
        let mut defines = vec![
            ("ACT", type_name(op.act)),
            ("WEIGHT", type_name(weight)),
            ("OUT", type_name(op.out)),
            ("EPILOGUE", epilogue_code(op.epilogue)),
        ];
        defines.extend(tiling.define.as_ref().map(|(name, value)| (*name, value.as_str())));
        let product = cx.function(LINEAR_TILED, &defines, "linear_tiled", 0)?;
        let (n, act_bytes) = (op.out_features, op.act.bytes() as u64);
        let piece_rows = match unpack {
            Some(_) => piece_rows(n, u64::from(op.in_features) * act_bytes),
            None => n,
        };
        Ok(Tiles {
            product,
            num_sms: cx.facts().num_sms,
            tiles: tiling.tiles,
            unpack,
            piece_rows,
            n,
            k: op.in_features,
            act_bytes,
            out_bytes: op.out.bytes() as u64,
        })
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
        let tile = shape(self.tiles, rows, call.tokens, self.num_sms);
        let grid = [rows.div_ceil(TILE), call.tokens.div_ceil(tile.tokens), 1];
        encoding.launch(self.product, grid, tile.threads, 0, &args);
    }
}

impl Path for Tiles {
    fn scratch_bytes(&self) -> u64 {
        match self.unpack {
            Some(_) => u64::from(self.piece_rows) * u64::from(self.k) * self.act_bytes,
            None => 0,
        }
    }

    fn encode(&self, encoding: &mut Encoding, call: &Call) {
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
}

/// The larger shape where its blocks are as many as multiprocessors.
fn shape([small, large]: [Tile; 2], rows: u32, tokens: u32, num_sms: u32) -> Tile {
    let blocks = u64::from(rows.div_ceil(TILE)) * u64::from(tokens.div_ceil(large.tokens));
    match tokens > small.tokens && blocks >= u64::from(num_sms) {
        true => large,
        false => small,
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
    fn large_shapes_are_for_calls_that_fill_the_device() {
        let [small, large] = [(64, 128), (128, 256)].map(|(tokens, threads)| Tile { tokens, threads });
        let shape = |rows, tokens| shape([small, large], rows, tokens, 96);
        assert_eq!(shape(4096, 512), large);
        assert_eq!(shape(4096, 128), small, "64 blocks of 96");
        assert_eq!(shape(1 << 20, 64), small, "half of it would be padding");
    }

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
