//! Small batches over plain weights on matrix units: which block shape a matrix gets, and the launch. The kernel also
//! takes the norm before and the gating after.

use halyard_kernels_gpu::{LINEAR_ONCE, LINEAR_SMALL};
use halyard_platform_api::Result;
use halyard_platform_api::ops;

use super::dense_tiles::DenseTiles;
use super::fusion::{CARVEOUT_BYTES, Fusion, SmallBatchCall};
use super::layout::WeightLayout;
use crate::driver::{Facts, Function};
use crate::encoding::Encoding;
use crate::kernel::Preparation;
use crate::ops::names::{epilogue_code, type_name};
use crate::policy::Policy;

/// Token tiles of 8 that a block may take.
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
    /// Blocks of a multiprocessor.
    blocks: u32,
    /// A block for every tile of rows, all of whose weights are in flight at once.
    one_tile: bool,
}

/// The block shape for `n` weight rows of `k` values and tiles of 8·`tiles` tokens. What counts is bytes in flight on
/// every multiprocessor, and that a warp's share of the depth is a whole number of its loads in flight. Measured on an
/// H200 with the matrices of an 8B and a 135M model.
fn shape(n: u32, k: u32, tiles: u32, num_sms: u32) -> Shape {
    let chunks = k.div_ceil(32);
    let row_tiles = if n.div_ceil(16) > num_sms { 2 } else { 1 };
    if chunks <= 64 && n.div_ceil(16 * row_tiles) <= num_sms {
        // Everything at once: what counts is the time from the previous kernel's end to this one's.
        let warps = chunks.div_ceil(if chunks <= 24 { 3 } else { 4 });
        return Shape {
            warps,
            row_tiles,
            depth: chunks.div_ceil(warps),
            blocks: 1,
            one_tile: true,
        };
    }
    // Many short rows: smaller blocks of more rows, so that one can finish a tile while another loads.
    if chunks < 64 && n.div_ceil(16) >= 8 * num_sms {
        return Shape {
            warps: 8,
            row_tiles: 2,
            depth: if tiles == 1 { 4 } else { 2 },
            blocks: if tiles == 4 { 1 } else { 2 },
            one_tile: false,
        };
    }
    let warps = chunks.div_ceil(3).clamp(1, 16);
    // Long rows: activations are read half as often.
    let row_tiles = if chunks >= 256 { 2 } else { 1 };
    let most = match (tiles, row_tiles) {
        (1, 1) => 8,
        (1, _) | (2, 1) => 4,
        (2, _) => 2,
        _ => 3,
    };
    let share = chunks.div_ceil(warps);
    Shape {
        warps,
        row_tiles,
        depth: share.div_ceil(share.div_ceil(most)),
        blocks: if warps <= 8 && tiles < 4 { 2 } else { 1 },
        one_tile: false,
    }
}

/// Blocks for `tiles` of rows, where `most` run at a time: with `leave_room` no more than are needed for none to have
/// more tiles, if that leaves but a few multiprocessors free. A sum over ranks runs on those: on one with a block of a
/// product there is no room, so that either would wait for the other.
fn blocks_for(tiles: u32, most: u32, leave_room: bool) -> u32 {
    let even = tiles.div_ceil(tiles.div_ceil(most));
    match leave_room && u64::from(even) * 32 >= u64::from(most) * 31 {
        true => even,
        false => tiles.min(most),
    }
}

/// Rows of weights: with `gated`, a gate's and an up part's for each result.
fn weight_rows(op: &ops::Linear, gated: bool) -> u32 {
    op.out_features * if gated { 2 } else { 1 }
}

/// Most tokens for which it beats the library's product, which has the ops around it to launch separately. Measured on
/// an H200. By itself: a 135M model's layer at 32 tokens 17.2 µs against 19.3 for the products alone; its head, too,
/// wins up to 8 tokens. Where dense tiles are the other choice, [`DenseTiles::small_batches_to`] is the limit.
pub(super) fn most_tokens(op: &ops::Linear, gated: bool, facts: &Facts, policy: &Policy) -> u32 {
    match u64::from(weight_rows(op, gated)) * u64::from(op.in_features) {
        0..0x20_0000 => 32,
        size => DenseTiles::small_batches_to(op, WeightLayout::Plain(op.act), gated, facts, policy)
            .unwrap_or(if size < 0x1000_0000 { 16 } else { 8 }),
    }
}

/// Compiled for each number of token tiles.
pub(super) struct DenseSmallBatch {
    /// Ascending, at least one; the last takes more tokens than it has tiles for in several blocks.
    entries: Vec<Entry>,
    max_shared: u32,
    num_sms: u32,
    k: u32,
    gated: bool,
}

/// Floats of the sums and the squares, in bytes. Blocks that walk have two buffers of sums.
fn sums_bytes(shape: &Shape, tiles: u32) -> u32 {
    let buffers = if shape.one_tile { 1 } else { 2 };
    4 * 8 * tiles * shape.warps * (buffers * (16 * shape.row_tiles + 4) + 1)
}

/// One number of token tiles.
struct Entry {
    shape: Shape,
    tiles: u32,
    body: Body,
}

/// How its blocks meet the tokens.
enum Body {
    /// A block has one tile of rows.
    OneTile(Function),
    /// For every tile of rows that they walk over.
    Walk {
        /// Keeps them in shared memory.
        staged: Function,
        /// Reads them again; absent where they are normalised.
        direct: Option<Function>,
    },
}

impl Entry {
    fn sums_bytes(&self) -> u32 {
        sums_bytes(&self.shape, self.tiles)
    }

    /// Shared memory that keeps the tokens of a tile, too.
    fn staged_bytes(&self, tokens: u32, k: u32) -> u64 {
        let pitch = u64::from(k.next_multiple_of(64) + 32) * 2;
        u64::from(tokens.min(8 * self.tiles)) * pitch + u64::from(self.sums_bytes())
    }

    /// The kernel for so many tokens of `k` values, and its shared memory in bytes, of which a multiprocessor has
    /// `max_shared` for a block.
    fn kernel(&self, tokens: u32, k: u32, max_shared: u32) -> (Function, u32) {
        match self.body {
            Body::OneTile(function) => (function, self.sums_bytes()),
            Body::Walk { staged, direct } => {
                let bytes = self.staged_bytes(tokens, k);
                match direct {
                    // Keep tokens in shared memory if all blocks of a multiprocessor still fit, with what the device
                    // reserves.
                    Some(direct) if bytes + 1024 > u64::from(max_shared / self.shape.blocks) => {
                        (direct, self.sums_bytes())
                    }
                    _ => (staged, bytes as u32),
                }
            }
        }
    }
}

impl DenseSmallBatch {
    pub(super) fn prepare(cx: &Preparation<'_>, op: &ops::Linear, fusion: &Fusion) -> Result<DenseSmallBatch> {
        let facts = cx.facts();
        let gated = fusion.gate != "0";
        let rows = weight_rows(op, gated);
        let one = |tiles: u32| -> Result<Entry> {
            let shape = shape(rows, op.in_features, tiles, facts.num_sms);
            let [warps, row_tiles, depth, blocks, count] =
                [shape.warps, shape.row_tiles, shape.depth, shape.blocks, tiles].map(|v| v.to_string());
            let mut defines = vec![
                ("ACT", type_name(op.act)),
                ("OUT", type_name(op.out)),
                ("TILES", count.as_str()),
                ("WARPS", warps.as_str()),
                ("ROW_TILES", row_tiles.as_str()),
                ("DEPTH", depth.as_str()),
                ("EPILOGUE", epilogue_code(op.epilogue)),
                ("GATE", fusion.gate),
                ("NORM", if fusion.norm { "1" } else { "0" }),
            ];
            let (source, name) = if shape.one_tile {
                (LINEAR_ONCE, "linear_once")
            } else {
                defines.push(("MIN_BLOCKS", blocks.as_str()));
                (LINEAR_SMALL, "linear_small")
            };
            let function = |name| {
                let function = cx.function(source, &defines, name, facts.max_shared_bytes)?;
                cx.driver.prefer_shared(function, CARVEOUT_BYTES).map(|()| function)
            };
            let body = match function(name)? {
                one_tile if shape.one_tile => Body::OneTile(one_tile),
                staged => Body::Walk {
                    staged,
                    direct: (!fusion.norm).then(|| function("linear_direct")).transpose()?,
                },
            };
            Ok(Entry { shape, tiles, body })
        };
        let needed = most_tokens(op, gated, facts, cx.policy()).min(op.max_tokens);
        let tiles = TILES.into_iter().filter(|&t| t == 1 || 4 * t < needed);
        // More tokens a block than shared memory has sums for are taken in several blocks.
        let fits = |&t: &u32| {
            t == 1 || sums_bytes(&shape(rows, op.in_features, t, facts.num_sms), t) <= facts.max_shared_bytes
        };
        Ok(DenseSmallBatch {
            entries: tiles.filter(fits).map(one).collect::<Result<_>>()?,
            max_shared: facts.max_shared_bytes,
            num_sms: facts.num_sms,
            k: op.in_features,
            gated,
        })
    }

    /// Whether it computes calls of this many tokens: normalised ones must fit shared memory.
    pub(super) fn takes(&self, tokens: u32) -> bool {
        let entry = self.entry(tokens);
        match entry.body {
            Body::OneTile(_) | Body::Walk { direct: Some(_), .. } => true,
            Body::Walk { direct: None, .. } => entry.staged_bytes(tokens, self.k) <= u64::from(self.max_shared),
        }
    }

    fn entry(&self, tokens: u32) -> &Entry {
        let fitting = self.entries.iter().position(|entry| tokens <= 8 * entry.tiles);
        &self.entries[fitting.unwrap_or(self.entries.len() - 1)]
    }

    /// Appends the launch. Rows of x are 16-byte aligned.
    pub(super) fn encode(&self, encoding: &mut Encoding, call: &SmallBatchCall) {
        let tokens = call.out.len();
        let entry = self.entry(tokens);
        let Shape {
            warps,
            row_tiles,
            blocks,
            one_tile,
            ..
        } = entry.shape;
        let (function, shared) = entry.kernel(tokens, call.in_features, self.max_shared);
        let rows = if self.gated { 8 } else { 16 } * row_tiles;
        let tiles = call.out_features.div_ceil(rows);
        let grid = [
            if one_tile {
                tiles
            } else {
                blocks_for(tiles, self.num_sms.max(1) * blocks, encoding.has_ranks())
            },
            tokens.div_ceil(8 * entry.tiles),
            1,
        ];
        let args = call.args(&[], &[]);
        encoding.launch(function, grid, 32 * warps, shared, &args);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_measured_matrices_get_the_shapes_that_won() {
        let of = |n, k, tiles| {
            let shape = shape(n, k, tiles, 132);
            (shape.warps, shape.row_tiles, shape.depth, shape.blocks)
        };
        assert_eq!(of(6144, 4096, 1), (16, 1, 8, 1));
        assert_eq!(of(28_672, 4096, 1), (16, 1, 8, 1));
        assert_eq!(of(4096, 14_336, 1), (16, 2, 4, 1));
        assert_eq!(of(4096, 4096, 2), (16, 1, 4, 1));
        assert_eq!(of(4096, 14_336, 2), (16, 2, 2, 1));
        assert_eq!(of(960, 576, 1), (6, 1, 3, 1));
        assert_eq!(of(3072, 576, 1), (6, 2, 3, 1));
        assert_eq!(of(576, 1536, 1), (12, 1, 4, 1));
        assert!(shape(3072, 576, 1, 132).one_tile && !shape(49_152, 576, 1, 132).one_tile);
        assert_eq!(of(49_152, 576, 1), (8, 2, 4, 2));
    }

    #[test]
    fn blocks_leave_room_for_a_sum_where_no_block_gets_more_for_it() {
        // An 8B model's products on one of two ranks: gate and up, down, and qkv, whose blocks would halve.
        for (tiles, blocks) in [(1792, 128), (256, 128), (192, 132), (100, 100), (132, 132)] {
            assert_eq!(blocks_for(tiles, 132, true), blocks, "{tiles}");
            assert!(tiles.div_ceil(blocks) == tiles.div_ceil(132), "{tiles}");
            assert_eq!(blocks_for(tiles, 132, false), tiles.min(132));
        }
    }

    #[test]
    fn every_depth_gets_a_block() {
        for k in (8..20_000).step_by(8) {
            for tiles in TILES {
                for n in [16, 4096] {
                    let shape = shape(n, k, tiles, 132);
                    assert!((1..=16).contains(&shape.warps) && shape.depth >= 1, "{k}: {shape:?}");
                    // What is in flight at once covers the depth, and only a warp's last load may lie behind it.
                    assert!(!shape.one_tile || shape.warps * shape.depth * 32 >= k, "{k}: {shape:?}");
                    assert!(
                        !shape.one_tile || shape.warps * (shape.depth - 1) * 32 < k,
                        "{k}: {shape:?}"
                    );
                }
            }
        }
    }
}
