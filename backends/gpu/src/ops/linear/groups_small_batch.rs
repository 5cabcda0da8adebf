//! Small batches over records on matrix units: every code is read once, through rings in shared memory. The kernel
//! takes the norm before and the gating after along.

use halyard_kernels_gpu::LINEAR_GROUPS_SMALL;
use halyard_platform_api::ops;
use halyard_platform_api::{Result, WeightFormat};

use super::fusion::{Fusion, SmallBatchCall};
use super::layout::{GROUP, has_bytes, has_minima, row_bytes, run_values};
use crate::driver::Function;
use crate::encoding::{Arg, Encoding};
use crate::kernel::Preparation;
use crate::ops::formats::code;
use crate::ops::names::{epilogue_code, type_name};

/// Up to this many tokens it beats tiles, where all of them fit shared memory: 8B's products on an H200, 16 tokens,
/// 12.3, 10.0 and 40.6 µs against 16.3, 11.1 and 46.4; streamed ones 43.6 against 26.0.
const STAGED_TOKENS: u32 = 16;
/// The longest rows of which that many fit, and tokens of longer ones.
const STAGED_DEPTH: u32 = 5120;
const STREAMED_TOKENS: u32 = 8;

/// Most tokens for which the kernel does better than what else there is.
pub(super) fn most_tokens(op: &ops::Linear) -> u32 {
    match is_staged(op) {
        true => STAGED_TOKENS,
        false => STREAMED_TOKENS,
    }
}

/// Whether all of that many tokens fit a block's shared memory.
pub(super) fn is_staged(op: &ops::Linear) -> bool {
    op.in_features <= STAGED_DEPTH
}

/// Tokens that a block may take, and the tiles of 8 that they are multiplied in.
const SIZES: [(u32, u32); 3] = [(1, 1), (8, 1), (16, 2)];
/// Weight rows of a tile.
const ROWS: u32 = 16;
/// Shared memory that a multiprocessor keeps of each block.
const RESERVED_BYTES: u32 = 1 << 10;
/// Shared memory that a multiprocessor should set aside: all of it, as what is in flight is there.
const CARVEOUT_BYTES: u32 = 228 << 10;

/// How a block is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// Warps that share the depth.
    warps: u32,
    /// Groups of 128 depths that a warp asks for at a time.
    span: u32,
    /// Spans of a warp's ring.
    stages: u32,
    /// Blocks of a multiprocessor.
    blocks: u32,
    /// Tokens come with each span, as all of them do not fit; without a norm only.
    streamed: bool,
}

/// What a span, a token and a block's sums take of shared memory.
#[derive(Clone, Copy)]
struct Sizes {
    format: WeightFormat,
    k: u32,
    most: u32,
    tiles: u32,
    /// Tiles of rows a multiprocessor, rounded up.
    rounds: u32,
}

/// Up to this many tiles a multiprocessor, several tokens take spans of one group.
const FEW_ROUNDS: u32 = 4;

impl Sizes {
    fn groups(&self) -> u32 {
        self.k.div_ceil(GROUP as u32)
    }

    /// Bytes of a block's shared memory for some tokens.
    fn shared_bytes(&self, shape: Shape, tokens: u32) -> u32 {
        let streamed_bytes = if shape.streamed { self.tiles * 2048 } else { 0 };
        let rings = shape.warps * shape.stages * shape.span * (ROWS * row_bytes(self.format) + streamed_bytes);
        // Buffers of a tile's sums, with two barriers each.
        let buffers = if self.most == 1 { 4 } else { 2 };
        let barriers = (8 * (shape.warps * shape.stages + 2 * buffers)).next_multiple_of(16);
        let rings = rings + barriers;
        let sums = 4 * (20 * buffers + 1) * shape.warps * self.most;
        if shape.streamed {
            return rings + sums;
        }
        let runs = GROUP as u32 / run_values(self.format);
        let totals = match has_minima(self.format) {
            true => 4 * runs * self.groups() * self.most,
            false => 0,
        };
        rings + sums + totals + 2 * tokens.min(self.most) * (GROUP as u32 * self.groups() + 32)
    }

    /// The shape of blocks: the first that fits. One token leaves room for two blocks a multiprocessor; several tokens
    /// take the memory of one. One block of one token, with the other half left to the next kernel's, is faster where
    /// it stands alone and slower in a layer (decision 0077's note).
    fn shape(&self, norm: bool, max_shared: u32) -> Option<Shape> {
        let groups = self.groups();
        let narrow = if has_bytes(self.format) { 2 } else { 1 };
        let (warps, span) = match (self.most, groups) {
            (1, 32..) => (8, 4 / narrow),
            // 8B's products of 4096 inputs, 8 tokens, on an H200: 6144 rows 9.9 µs, with spans of two 10.2.
            (_, 32..) if self.rounds <= FEW_ROUNDS => (16, 1),
            (_, 32..) => (16, 2 / narrow),
            (_, 16..) => (8, 2 / narrow),
            _ => (groups.clamp(1, 8), 1),
        };
        let of = |warps, span, stages, blocks| Shape {
            warps,
            span,
            stages,
            blocks,
            streamed: false,
        };
        let wanted = [
            of(warps, span, 2, 2),
            of(warps, span, 3, 1),
            of(warps, span, 2, 1),
            of(warps, 1, 3, 1),
            of(warps, 1, 2, 1),
            of(warps.min(8), 1, 2, 1),
            of(warps.min(4), 1, 2, 1),
        ];
        let wanted = match self.most {
            1 => &wanted[..],
            // Two stages do as well as three and leave more of the first-level cache.
            _ => &wanted[2..],
        };
        let streamed = wanted.iter().filter(|_| !norm).map(|&shape| Shape {
            streamed: true,
            ..shape
        });
        let all = max_shared + RESERVED_BYTES;
        let fits = |shape: &Shape| (self.shared_bytes(*shape, self.most) + RESERVED_BYTES) * shape.blocks <= all;
        wanted.iter().copied().chain(streamed).find(fits)
    }
}

/// One number of tokens a block.
struct Entry {
    sizes: Sizes,
    shape: Shape,
    function: Function,
}

/// The kernel, compiled for each number of tokens.
pub(super) struct GroupsSmallBatch {
    /// Ascending; those whose tokens fit. Without a norm that is each; the last takes more tokens than it has tiles for
    /// in several blocks.
    entries: Vec<Entry>,
    gated: bool,
    max_shared: u32,
    num_sms: u32,
}

impl GroupsSmallBatch {
    pub(super) fn prepare(
        cx: &Preparation<'_>,
        op: &ops::Linear,
        format: WeightFormat,
        fusion: &Fusion,
    ) -> Result<GroupsSmallBatch> {
        let max_shared = cx.facts().max_shared_bytes;
        let num_sms = cx.facts().num_sms.max(1);
        let tile_rows = if fusion.gate == "0" { ROWS } else { ROWS / 2 };
        let one = |(most, tiles): (u32, u32)| -> Option<Result<Entry>> {
            let sizes = Sizes {
                format,
                k: op.in_features,
                most,
                tiles,
                rounds: op.out_features.div_ceil(tile_rows * num_sms),
            };
            let shape = sizes.shape(fusion.norm, max_shared)?;
            let Shape {
                warps,
                span,
                stages,
                blocks,
                streamed,
                ..
            } = shape;
            let [most, tiles, warps, span, stages, blocks] =
                [most, tiles, warps, span, stages, blocks].map(|v| v.to_string());
            let defines = [
                ("FORMAT", code(format)),
                ("ACT", type_name(op.act)),
                ("OUT", type_name(op.out)),
                ("TILES", tiles.as_str()),
                ("MOST", most.as_str()),
                ("WARPS", warps.as_str()),
                ("SPAN", span.as_str()),
                ("STAGES", stages.as_str()),
                ("MIN_BLOCKS", blocks.as_str()),
                ("EPILOGUE", epilogue_code(op.epilogue)),
                ("GATE", fusion.gate),
                ("NORM", if fusion.norm { "1" } else { "0" }),
            ];
            let name = match streamed {
                true => "linear_groups_streamed",
                false => "linear_groups_small",
            };
            let compile = || -> Result<Entry> {
                let function = cx.function(LINEAR_GROUPS_SMALL, &defines, name, max_shared)?;
                cx.driver.prefer_shared(function, CARVEOUT_BYTES)?;
                Ok(Entry { sizes, shape, function })
            };
            Some(compile())
        };
        let needed = most_tokens(op).min(op.max_tokens);
        let sizes = SIZES.into_iter().filter(|&(most, _)| most == 1 || most / 2 < needed);
        Ok(GroupsSmallBatch {
            entries: sizes.map_while(one).collect::<Result<_>>()?,
            gated: fusion.gate != "0",
            max_shared,
            num_sms,
        })
    }

    fn entry(&self, tokens: u32) -> Option<&Entry> {
        let fitting = self.entries.iter().find(|entry| tokens <= entry.sizes.most);
        fitting.or(self.entries.last())
    }

    /// Whether it computes calls of this many tokens.
    pub(super) fn takes(&self, tokens: u32) -> bool {
        self.entries.iter().any(|entry| tokens <= entry.sizes.most)
    }

    /// Appends the launch. Rows of x are 16-byte aligned.
    pub(super) fn encode(&self, encoding: &mut Encoding, call: &SmallBatchCall) {
        let tokens = call.out.len();
        let Some(entry) = self.entry(tokens) else { return };
        let shared = entry.sizes.shared_bytes(entry.shape, tokens);
        let rows = if self.gated { ROWS / 2 } else { ROWS };
        let of_sm = ((self.max_shared + RESERVED_BYTES) / (shared + RESERVED_BYTES)).clamp(1, entry.shape.blocks);
        let blocks = call.out_features.div_ceil(rows).min(of_sm * self.num_sms);
        let args = call.args(&[], &[Arg::U32(call.matrix_rows), Arg::U32(call.first_up)]);
        let grid = [blocks, tokens.div_ceil(entry.sizes.most), 1];
        encoding.launch(entry.function, grid, 32 * entry.shape.warps, shared, &args);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::formats::in_blocks;

    /// Blocks of sm_80, of sm_86 and of sm_90.
    const SHARED: [u32; 3] = [163 << 10, 99 << 10, 227 << 10];

    fn sizes(format: WeightFormat, k: u32, (most, tiles): (u32, u32), rounds: u32) -> Sizes {
        Sizes {
            format,
            k,
            most,
            tiles,
            rounds,
        }
    }

    #[test]
    fn every_shape_fits_shared_memory() {
        let formats = || WeightFormat::ALL.into_iter().filter(|&f| in_blocks(f));
        for format in formats() {
            for k in (128..30_000).step_by(128) {
                for (size, rounds) in SIZES.into_iter().flat_map(|size| [(size, 1), (size, 9)]) {
                    let sizes = sizes(format, k, size, rounds);
                    for max in SHARED {
                        let shape = sizes.shape(false, max).expect("one that streams");
                        let bytes = sizes.shared_bytes(shape, size.0);
                        assert!(
                            bytes <= max,
                            "{format:?} {k} {size:?}: {shape:?} takes {bytes} of {max}"
                        );
                        assert!(shape.warps * shape.span <= k / 128 || shape.warps * shape.span <= 8);
                    }
                }
            }
        }
    }

    #[test]
    fn one_token_of_an_8b_model_has_two_blocks_a_multiprocessor() {
        let (max, format) = (227 << 10, WeightFormat::U4G128);
        let shape = |k, size, norm| sizes(format, k, size, 14).shape(norm, max);
        for k in [4096, 14_336] {
            let shape = shape(k, SIZES[0], true).unwrap();
            assert_eq!(
                (shape.warps, shape.span, shape.stages, shape.blocks),
                (8, 4, 2, 2),
                "{k}"
            );
        }
        // Eight tokens of the inner width are streamed, and have no norm before.
        assert!(shape(14_336, SIZES[1], false).unwrap().streamed);
        assert_eq!(shape(14_336, SIZES[1], true), None);
        assert!(!shape(4096, SIZES[2], true).unwrap().streamed);
    }
}
