//! Small batches over 8-bit weights on matrix units: every code is read once. The kernel takes the norm before and the
//! gating after along.

use halyard_kernels_gpu::LINEAR_SCALED_SMALL;
use halyard_platform_api::Result;
use halyard_platform_api::ops;

use super::dense_tiles::DenseTiles;
use super::fusion::{CARVEOUT_BYTES, Fusion, SmallBatchCall};
use super::layout::WeightLayout;
use crate::driver::{Facts, Function};
use crate::encoding::{Arg, Encoding};
use crate::kernel::Preparation;
use crate::ops::names::{epilogue_code, type_name};
use crate::policy::Policy;

/// Up to this many tokens codes are widened as they are multiplied, one block for all tokens.
const SCALED_TOKENS: u32 = 32;
/// The same where tokens may be rounded instead, which 8-bit products make worth while sooner.
const EXACT_TOKENS: u32 = 8;

/// Most tokens for which the kernel does better than what else there may be. Where dense tiles multiply rounded tokens
/// it never does: a step of an 8B model of one token on an H200 takes 2.63 ms with them, and 2.73 with this kernel; and
/// from 1 to 128 tokens a token's results do not depend on how many there are.
pub(super) fn most_tokens(op: &ops::Linear, gated: bool, facts: &Facts, policy: &Policy) -> u32 {
    match op.allow_quantized_act {
        true if DenseTiles::takes(op, WeightLayout::Scaled, gated, facts, policy) => 0,
        true => EXACT_TOKENS,
        false => SCALED_TOKENS,
    }
}

/// Tokens that a block may take, and the tiles of 8 that they are multiplied in. One token has a kernel of its own: it
/// needs little shared memory, so most of a multiprocessor's memory holds its loads. An 8B model's decode step on an
/// H200: 3.29 ms instead of 3.52.
const SIZES: [(u32, u32); 4] = [(1, 1), (8, 1), (16, 2), (32, 4)];
/// Shared memory for tokens: small enough that the blocks of a multiprocessor fit, with memory left for loads in
/// flight.
const STAGED_BYTES: u64 = 66 << 10;
const STAGED_BYTES_OF_EIGHT: u64 = 33 << 10;
/// Shared memory that a multiprocessor should set aside for blocks of up to eight tokens.
const CARVEOUT_BYTES_OF_EIGHT: u32 = 120 << 10;

/// How a block is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// Warps that share the depth.
    warps: u32,
    /// Tiles of 16 weight rows.
    row_tiles: u32,
    /// Chunks of 64 depths that a warp has in flight.
    depth: u32,
    /// Blocks of a multiprocessor.
    blocks: u32,
}

/// The block shape for rows of `k` values and tiles of 8·`tiles` tokens. Several tokens take two tiles of rows, so that
/// they are read half as often.
fn shape(k: u32, tiles: u32) -> Shape {
    let chunks = k.div_ceil(64);
    let warps = chunks.div_ceil(2).clamp(1, 8);
    let depth = chunks.div_ceil(warps);
    match tiles {
        1 => Shape {
            warps,
            row_tiles: 1,
            depth: depth.min(4),
            blocks: 3,
        },
        _ => Shape {
            warps,
            row_tiles: 2,
            depth: depth.min(2),
            blocks: 2,
        },
    }
}

impl Shape {
    /// Depths of one round of all warps.
    fn round(&self) -> u32 {
        64 * self.warps * self.depth
    }

    /// Rounds whose tokens are in shared memory together.
    fn slice_rounds(&self, tokens: u32, k: u32) -> u32 {
        let staged = if tokens <= 8 {
            STAGED_BYTES_OF_EIGHT
        } else {
            STAGED_BYTES
        };
        let fitting = staged / (2 * u64::from(tokens.max(1))) / u64::from(self.round());
        (fitting as u32).clamp(1, k.div_ceil(self.round()).max(1))
    }
}

/// One number of tokens a block.
struct Entry {
    shape: Shape,
    /// Most tokens of a block.
    most: u32,
    function: Function,
}

impl Entry {
    fn shared_bytes(&self, tokens: u32, k: u32) -> u32 {
        let Shape { warps, row_tiles, .. } = self.shape;
        let tokens = tokens.min(self.most);
        let slice = self.shape.slice_rounds(tokens, k) * self.shape.round();
        let pitch = k.next_multiple_of(64).min(slice) + 8;
        2 * tokens * pitch + 4 * self.most * warps * (16 * row_tiles + 5)
    }
}

/// The kernel, compiled for each number of tokens.
pub(super) struct ScaledSmallBatch {
    /// Ascending, at least one; the last takes more tokens than it has tiles for in several blocks.
    entries: Vec<Entry>,
    k: u32,
    gated: bool,
}

impl ScaledSmallBatch {
    pub(super) fn prepare(cx: &Preparation<'_>, op: &ops::Linear, fusion: &Fusion) -> Result<ScaledSmallBatch> {
        let one = |(most, tiles): (u32, u32)| -> Result<Entry> {
            let shape = shape(op.in_features, tiles);
            let [warps, row_tiles, depth, blocks, tiles, tokens] =
                [shape.warps, shape.row_tiles, shape.depth, shape.blocks, tiles, most].map(|v| v.to_string());
            let defines = [
                ("ACT", type_name(op.act)),
                ("OUT", type_name(op.out)),
                ("TILES", tiles.as_str()),
                ("MOST", tokens.as_str()),
                ("WARPS", warps.as_str()),
                ("ROW_TILES", row_tiles.as_str()),
                ("DEPTH", depth.as_str()),
                ("MIN_BLOCKS", blocks.as_str()),
                ("EPILOGUE", epilogue_code(op.epilogue)),
                ("GATE", fusion.gate),
                ("NORM", if fusion.norm { "1" } else { "0" }),
            ];
            let shared = cx.facts().max_shared_bytes;
            let function = cx.function(LINEAR_SCALED_SMALL, &defines, "linear_scaled_small", shared)?;
            match most {
                1 => cx.driver.prefer_shared(function, CARVEOUT_BYTES)?,
                8 => cx.driver.prefer_shared(function, CARVEOUT_BYTES_OF_EIGHT)?,
                _ => {}
            }
            Ok(Entry { shape, most, function })
        };
        let gated = fusion.gate != "0";
        // By itself it is also what is left where no product takes a call.
        let needed = match *fusion {
            Fusion::NONE => SCALED_TOKENS,
            _ => most_tokens(op, gated, cx.facts(), cx.policy()),
        };
        let needed = needed.min(op.max_tokens);
        let sizes = SIZES.into_iter().filter(|&(most, _)| most == 1 || most / 2 < needed);
        Ok(ScaledSmallBatch {
            entries: sizes.map(one).collect::<Result<_>>()?,
            k: op.in_features,
            gated,
        })
    }

    fn entry(&self, tokens: u32) -> &Entry {
        let fitting = self.entries.iter().position(|entry| tokens <= entry.most);
        &self.entries[fitting.unwrap_or(self.entries.len() - 1)]
    }

    /// Appends the launch. Rows of x are 16-byte aligned.
    pub(super) fn encode(&self, encoding: &mut Encoding, call: &SmallBatchCall) {
        let tokens = call.out.len();
        let entry = self.entry(tokens);
        let rows = if self.gated { 8 } else { 16 } * entry.shape.row_tiles;
        let grid = [tokens.div_ceil(entry.most), call.out_features.div_ceil(rows), 1];
        let rounds = entry.shape.slice_rounds(tokens.min(entry.most), self.k);
        let args = call.args(&[Arg::Ptr(call.scale), Arg::Ptr(call.scale_up)], &[Arg::U32(rounds)]);
        let shared = entry.shared_bytes(tokens, self.k);
        encoding.launch(entry.function, grid, 32 * entry.shape.warps, shared, &args);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_fit_shared_memory_and_slices_cover_the_depth() {
        for k in (16..20_000).step_by(16) {
            for (most, tiles) in SIZES {
                let shape = shape(k, tiles);
                for tokens in [1, most] {
                    let rounds = shape.slice_rounds(tokens, k);
                    let bytes = 2 * u64::from(tokens) * u64::from(rounds * shape.round());
                    assert!(rounds == 1 || bytes <= STAGED_BYTES, "{k} {tiles} {tokens}: {shape:?}");
                    assert!(bytes <= 2 * STAGED_BYTES, "{k} {tiles} {tokens}: {shape:?}");
                }
            }
        }
        // One token of an 8B model's longest rows is copied at once.
        assert_eq!(shape(14_336, 1).slice_rounds(1, 14_336), 7);
        // Eight tokens come in slices of one round.
        assert_eq!(shape(14_336, 1).slice_rounds(8, 14_336), 1);
    }
}
