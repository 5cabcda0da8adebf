//! Few tokens on matrix units: which block shape a matrix gets, and the launch. One kernel also takes the norm before and the gating after.

use halyard_kernels_gpu::LINEAR_SMALL;
use halyard_platform_api::ops;
use halyard_platform_api::{DType, Result};

use super::{epilogue_code, type_name};
use crate::driver::{DevicePtr, Function};
use crate::encoding::{Arg, Encoding};
use crate::kernel::Preparation;
use crate::view::View;

/// Token tiles of 8 that an entry point takes.
const TILES: [u32; 3] = [1, 2, 4];

/// How a block is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// Warps that share the depth.
    warps: u32,
    /// Tiles of 16 weight rows.
    row_tiles: u32,
    /// Chunks of 32 depths that a warp has in flight.
    depth: u32,
    /// Blocks that a multiprocessor should hold.
    min_blocks: u32,
}

/// What is computed around the product.
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

/// Whether the kernel takes such a linear at all.
pub(crate) fn fits(op: &ops::Linear, weight: DType) -> bool {
    weight == op.act && op.act != DType::F32 && op.in_features.is_multiple_of(8)
}

/// The block shape for a matrix, by what was measured on an H200: enough bytes in flight on every multiprocessor, and blocks for all of them.
fn shape(op: &ops::Linear, tiles: u32) -> Shape {
    let chunks = op.in_features.div_ceil(32);
    let warps = if chunks >= 64 { 8 } else { 4 };
    let depth = if tiles == 1 { 4 } else { 2 };
    Shape {
        warps,
        row_tiles: 1,
        depth,
        min_blocks: if tiles == 4 { 1 } else { 2 },
    }
}

/// Compiled for each number of token tiles.
pub(crate) struct Small {
    functions: [(Function, Shape); 3],
    gated: bool,
}

/// One call. `out_features` counts output values: half the weight's rows where they are gated.
#[derive(Clone, Copy)]
pub(crate) struct SmallCall {
    pub x: View,
    pub weight: DevicePtr,
    /// First row of the up part.
    pub weight_up: DevicePtr,
    pub norm: DevicePtr,
    pub bias: DevicePtr,
    pub bias_up: DevicePtr,
    pub residual: View,
    pub out: View,
    pub in_features: u32,
    pub out_features: u32,
    pub norm_offset: f32,
    pub eps: f32,
}

impl SmallCall {
    /// With every operand absent.
    pub(crate) fn new(in_features: u32, out_features: u32) -> SmallCall {
        SmallCall {
            x: View::NONE,
            weight: 0,
            weight_up: 0,
            norm: 0,
            bias: 0,
            bias_up: 0,
            residual: View::NONE,
            out: View::NONE,
            in_features,
            out_features,
            norm_offset: 0.0,
            eps: 0.0,
        }
    }
}

impl Small {
    pub(crate) fn prepare(cx: &Preparation<'_>, op: &ops::Linear, fusion: &Fusion) -> Result<Small> {
        let one = |tiles: u32| -> Result<(Function, Shape)> {
            let shape = shape(op, tiles);
            let [warps, row_tiles, depth, min_blocks] =
                [shape.warps, shape.row_tiles, shape.depth, shape.min_blocks].map(|v| v.to_string());
            let defines = [
                ("ACT", type_name(op.act)),
                ("OUT", type_name(op.out)),
                ("WARPS", warps.as_str()),
                ("ROW_TILES", row_tiles.as_str()),
                ("DEPTH", depth.as_str()),
                ("MIN_BLOCKS", min_blocks.as_str()),
                ("EPILOGUE", epilogue_code(op.epilogue)),
                ("GATE", fusion.gate),
                ("NORM", if fusion.norm { "1" } else { "0" }),
            ];
            let name = format!("linear_small_{tiles}");
            let function = cx.function(LINEAR_SMALL, &defines, &name, shared_bytes(shape, tiles))?;
            Ok((function, shape))
        };
        Ok(Small {
            functions: [one(TILES[0])?, one(TILES[1])?, one(TILES[2])?],
            gated: fusion.gate != "0",
        })
    }

    /// Up to this many tokens it beats the library.
    pub(crate) fn max_tokens(&self) -> u32 {
        16
    }

    /// Appends the launch. Rows of x are 16-byte aligned.
    pub(crate) fn encode(&self, encoding: &mut Encoding, call: &SmallCall) {
        let tokens = call.out.len();
        let at = TILES.iter().position(|&t| tokens <= 8 * t).unwrap_or(TILES.len() - 1);
        let (function, shape) = self.functions[at];
        let rows = if self.gated { 8 } else { 16 } * shape.row_tiles;
        let grid = [call.out_features.div_ceil(rows), tokens.div_ceil(8 * TILES[at]), 1];
        let args = [
            Arg::Ptr(call.x.ptr),
            Arg::Ptr(call.weight),
            Arg::Ptr(call.weight_up),
            Arg::Ptr(call.norm),
            Arg::Ptr(call.bias),
            Arg::Ptr(call.bias_up),
            Arg::Ptr(call.residual.ptr),
            Arg::Ptr(call.out.ptr),
            Arg::U32(call.x.row_stride()),
            Arg::U32(call.residual.row_stride()),
            Arg::U32(call.out.row_stride()),
            Arg::U32(tokens),
            Arg::U32(call.out_features),
            Arg::U32(call.in_features),
            Arg::F32(call.norm_offset),
            Arg::F32(call.eps),
        ];
        encoding.launch(function, grid, 32 * shape.warps, shared_bytes(shape, TILES[at]), &args);
    }
}

/// The sums of every warp, padded, and the squares of every token.
fn shared_bytes(shape: Shape, tiles: u32) -> u32 {
    4 * shape.warps * 8 * tiles * (16 * shape.row_tiles + 5)
}
