//! Batches of tokens over 8-bit weights: codes are widened between shared memory and matrix units, so that nothing is
//! unpacked. Matrices of few tiles are shared out by depth, and the parts' sums meet in scratch.

use halyard_kernels_gpu::LINEAR_SCALED_TILE;
use halyard_platform_api::Result;
use halyard_platform_api::ops;

use super::call::{Call, Path, rows_aligned};
use super::layout::scales_at;
use crate::driver::{Facts, Function};
use crate::encoding::{Arg, Encoding};
use crate::kernel::Preparation;
use crate::ops::names::{epilogue_code, type_name};

/// Up to this many tokens the codes' smaller size outweighs what the library's product computes faster.
pub(super) const MAX_TOKENS: u32 = 512;
/// Weight rows of a block, and depths of a piece.
const ROWS: u32 = 128;
const DEPTH: u32 = 64;
/// Tokens of a block, pieces in flight, blocks of a multiprocessor.
const FORMS: [(u32, u32, u32); 2] = [(64, 5, 2), (128, 4, 1)];
/// Most parts of a depth, and pieces that a part has at least.
const MAX_SPLITS: u32 = 8;
const MIN_PIECES: u32 = 4;

/// Compiled for one number of tokens a block.
struct Entry {
    tokens: u32,
    shared: u32,
    product: Function,
    finish: Function,
}

/// Prepared.
pub(super) struct ScaledTiles {
    entries: Vec<Entry>,
    n: u32,
    k: u32,
    num_sms: u32,
    max_tokens: u32,
}

/// How the pieces of a depth are shared out where there are so many tiles and the device runs `at_once` blocks: pieces
/// of a part, at least `least`, and parts.
pub(super) fn share_out(tiles: u32, pieces: u32, least: u32, at_once: u32) -> (u32, u32) {
    let wanted = (at_once / tiles.max(1)).min(pieces / least).clamp(1, MAX_SPLITS);
    let of_part = pieces.div_ceil(wanted);
    (of_part, pieces.div_ceil(of_part))
}

/// How a matrix is shared out: depths of a part, and parts.
fn splits(n: u32, k: u32, tokens: u32, block_tokens: u32, num_sms: u32) -> (u32, u32) {
    let tiles = n.div_ceil(ROWS) * tokens.div_ceil(block_tokens);
    let (of_part, parts) = share_out(tiles, k / DEPTH, MIN_PIECES, 2 * num_sms);
    (of_part * DEPTH, parts)
}

/// The forms for which a block has the shared memory.
fn fitting(facts: &Facts) -> impl Iterator<Item = (u32, u32, u32)> {
    let most = facts.max_shared_bytes;
    FORMS
        .into_iter()
        .filter(move |(tokens, stages, _)| stages * (ROWS * DEPTH + 2 * DEPTH * tokens) <= most)
}

/// Whether the kernel takes such a linear on a device.
pub(super) fn takes(op: &ops::Linear, facts: &Facts) -> bool {
    op.in_features.is_multiple_of(DEPTH) && fitting(facts).next().is_some()
}

impl ScaledTiles {
    /// Compiles the kernel for a linear that it [`takes`].
    pub(super) fn prepare(cx: &Preparation<'_>, op: &ops::Linear) -> Result<ScaledTiles> {
        let one = |(tokens, stages, blocks): (u32, u32, u32)| -> Result<Entry> {
            let shared = (stages * (ROWS * DEPTH + 2 * DEPTH * tokens)).max(4 * tokens * (ROWS + 4));
            let names = [tokens, stages, blocks].map(|v| v.to_string());
            let defines = [
                ("ACT", type_name(op.act)),
                ("OUT", type_name(op.out)),
                ("TOKENS", names[0].as_str()),
                ("STAGES", names[1].as_str()),
                ("MIN_BLOCKS", names[2].as_str()),
                ("EPILOGUE", epilogue_code(op.epilogue)),
            ];
            Ok(Entry {
                tokens,
                shared,
                product: cx.function(LINEAR_SCALED_TILE, &defines, "linear_scaled_tile", shared)?,
                finish: cx.function(LINEAR_SCALED_TILE, &defines, "scaled_finish", 0)?,
            })
        };
        Ok(ScaledTiles {
            entries: fitting(cx.facts()).map(one).collect::<Result<_>>()?,
            n: op.out_features,
            k: op.in_features,
            num_sms: cx.facts().num_sms,
            max_tokens: op.max_tokens.min(MAX_TOKENS),
        })
    }

    fn entry(&self, tokens: u32) -> &Entry {
        let fitting = self.entries.iter().position(|entry| tokens <= entry.tokens);
        &self.entries[fitting.unwrap_or(self.entries.len() - 1)]
    }

    fn partial_bytes(&self, tokens: u32) -> u64 {
        let (_, parts) = splits(self.n, self.k, tokens, self.entry(tokens).tokens, self.num_sms);
        match parts {
            1 => 0,
            _ => 4 * u64::from(parts) * u64::from(tokens) * u64::from(self.n),
        }
    }
}

impl Path for ScaledTiles {
    fn takes(&self, call: &Call) -> bool {
        rows_aligned(&call.x, 16)
    }

    fn scratch_bytes(&self) -> u64 {
        (1..=self.max_tokens)
            .map(|tokens| self.partial_bytes(tokens))
            .max()
            .unwrap_or(0)
    }

    fn encode(&self, encoding: &mut Encoding, call: &Call) {
        let (n, k, tokens) = (self.n, self.k, call.tokens);
        let entry = self.entry(tokens);
        let (depth, parts) = splits(n, k, tokens, entry.tokens, self.num_sms);
        let partials = if parts == 1 { Arg::Ptr(0) } else { Arg::Scratch(0) };
        let scales = Arg::Ptr(call.weight.ptr + scales_at(u64::from(n), u64::from(k)));
        let (bias, residual, out) = (
            Arg::Ptr(call.bias.ptr),
            Arg::Ptr(call.residual.ptr),
            Arg::Ptr(call.out.ptr),
        );
        let strides = [Arg::U32(call.residual.row_stride()), Arg::U32(call.out.row_stride())];
        let args = [
            Arg::Ptr(call.x.ptr),
            Arg::Ptr(call.weight.ptr),
            scales,
            bias,
            residual,
            out,
            partials,
            Arg::U32(call.x.row_stride()),
            strides[0],
            strides[1],
            Arg::U32(tokens),
            Arg::U32(n),
            Arg::U32(k),
            Arg::U32(depth),
        ];
        let grid = [n.div_ceil(ROWS), tokens.div_ceil(entry.tokens), parts];
        encoding.launch(entry.product, grid, 256, entry.shared, &args);
        if parts > 1 {
            let sizes = [tokens, n, parts].map(Arg::U32);
            let args = [
                partials, scales, bias, residual, out, strides[0], strides[1], sizes[0], sizes[1], sizes[2],
            ];
            encoding.launch(entry.finish, [n.div_ceil(256), tokens, 1], 256, 0, &args);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_depth_and_fill_the_device() {
        for (n, k) in [
            (4096, 4096),
            (6144, 4096),
            (28_672, 4096),
            (4096, 14_336),
            (64, 64),
            (576, 1536),
        ] {
            for tokens in [33, 64, 65, 512] {
                for block in [64, 128] {
                    let (depth, parts) = splits(n, k, tokens, block, 132);
                    assert!(depth.is_multiple_of(64) && depth * parts >= k && depth * (parts - 1) < k);
                    assert!((1..=MAX_SPLITS).contains(&parts), "{n} {k} {tokens}");
                    assert!(parts == 1 || depth >= MIN_PIECES * DEPTH, "{n} {k} {tokens}: {depth}");
                }
            }
        }
        assert_eq!(splits(4096, 4096, 64, 64, 132), (512, 8));
        assert_eq!(splits(28_672, 4096, 64, 64, 132), (4096, 1));
    }
}
