//! Products of many tokens on cooperative matrices: an own kernel in the place where other platforms have the vendor's library.

use std::sync::Arc;

use halyard_gpu::{DevicePtr, Param, Product, ProductCall, ProductSpec, Stream};
use halyard_platform_api::{DType, Error, Result};

use crate::driver::stream;
use crate::physical::Physical;
use crate::pipelines::{FunctionCore, Pipelines};

/// Threads of a workgroup.
const THREADS: u32 = 256;
/// Sides of the tiles that a workgroup may compute, the largest first.
pub(crate) const TILES: [u32; 2] = [128, 64];

/// Tokens of a call for which weights are multiplied as they come, without tiles.
pub(crate) const FEW_TOKENS: u32 = 16;
/// Output rows of a workgroup then, and depths of a subgroup's step; matrices are whole multiples of both.
const FEW_ROWS: u32 = 16;
const FEW_DEPTHS: u32 = 64;

/// The name of a type in the kernel.
fn name(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F32 => Some("f32"),
        DType::F16 => Some("f16"),
        DType::BF16 => Some("bf16"),
        _ => None,
    }
}

/// Whether subgroups of 32 multiply matrices of a type.
pub(crate) fn multiplies(physical: &Physical, act: DType) -> bool {
    let there = match act {
        DType::F16 => physical.matrices.f16,
        DType::BF16 => physical.matrices.bf16,
        _ => false,
    };
    there && physical.counts_on_subgroups()
}

/// The kernel's definitions for `spec`, less the tile's.
///
/// # Errors
/// `Unsupported` with what is not offered.
pub(crate) fn definitions(physical: &Physical, spec: &ProductSpec) -> Result<[(&'static str, &'static str); 3]> {
    if !multiplies(physical, spec.act) {
        return Err(Error::unsupported(format!(
            "{} multiplies no {:?} matrices of 16 × 16 × 16 in subgroups of 32",
            physical.facts.name, spec.act
        )));
    }
    if spec.weight != spec.act {
        return Err(Error::unsupported(format!(
            "weights of {:?} with activations of {:?}: matrices of one type are multiplied",
            spec.weight, spec.act
        )));
    }
    let (Some(act), Some(out)) = (name(spec.act), name(spec.out)) else {
        return Err(Error::unsupported(format!(
            "products of {:?} to {:?}",
            spec.act, spec.out
        )));
    };
    let accumulate = if spec.accumulate { "1" } else { "0" };
    Ok([("ACT", act), ("OUT", out), ("ACCUMULATE", accumulate)])
}

/// Whether the kernel for few tokens takes such a matrix.
pub(crate) fn suits_few(in_features: u32, out_features: u32) -> bool {
    out_features.is_multiple_of(FEW_ROWS) && in_features.is_multiple_of(FEW_DEPTHS)
}

/// A product with a kernel for each tile.
#[derive(Clone)]
pub(crate) struct Matrices {
    pub(crate) pipelines: Arc<Pipelines>,
    /// In the order of [`TILES`].
    pub(crate) functions: [Arc<FunctionCore>; TILES.len()],
    /// For few tokens, where the matrix suits it.
    pub(crate) few: Option<Arc<FunctionCore>>,
    pub(crate) in_features: u32,
    pub(crate) out_features: u32,
    pub(crate) num_sms: u32,
}

impl Matrices {
    /// The largest tile that still gives every multiprocessor one.
    fn tile(&self, tokens: u32) -> usize {
        let enough = |side: u32| self.out_features.div_ceil(side) * tokens.div_ceil(side) >= self.num_sms;
        TILES.iter().position(|&side| enough(side)).unwrap_or(TILES.len() - 1)
    }
}

impl Product for Matrices {
    fn workspace_bytes(&self) -> u64 {
        0
    }

    unsafe fn run(&self, call: &ProductCall, _workspace: DevicePtr, on: Stream) -> Result<()> {
        let (function, grid) = match &self.few {
            Some(few) if call.tokens <= FEW_TOKENS => (few, [self.out_features / FEW_ROWS, 1, 1]),
            _ => {
                let tile = self.tile(call.tokens);
                let blocks = |n: u32| n.div_ceil(TILES[tile]);
                let grid = [blocks(self.out_features), blocks(call.tokens), 1];
                (&self.functions[tile], grid)
            }
        };
        let bound = self.pipelines.bound(function, THREADS, 0)?;
        let params = [
            Param::Ptr(call.x),
            Param::Ptr(call.weight),
            Param::Ptr(call.out),
            Param::Word(call.x_stride),
            Param::Word(call.out_stride),
            Param::Word(call.tokens),
            Param::Word(self.out_features),
            Param::Word(self.in_features),
        ];
        // SAFETY: a live stream.
        unsafe { stream(on) }.record(|recorder, memory| recorder.launch(memory, bound, grid, &params))
    }
}
