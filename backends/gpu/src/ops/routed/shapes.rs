//! How experts' matrices lie for products on matrix units, how blocks of these products are cut, and from how many
//! choices an expert each pays.

use halyard_platform_api::{DType, WeightFormat, ops};

use super::support::MAX_EXPERTS;
use super::unpacked;
use crate::driver::Facts;
use crate::ops::linear::{
    HOPPER_ROWS, HOPPER_THREADS, RECORD_ROWS, has_bytes, has_operands, hopper_ring_bytes, hopper_tokens, run_values,
};

/// How the experts' matrices lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rows {
    /// Row after row, in the activations' type.
    Plain,
    /// As records of this format.
    Records(WeightFormat),
}

impl Rows {
    /// How matrix units take the op's; `None`: they do not.
    pub(super) fn of(op: &ops::MoeLinear, facts: &Facts) -> Option<Rows> {
        let rows = match (op.dtype, op.weight) {
            (DType::BF16, WeightFormat::BF16) | (DType::F16, WeightFormat::F16) => Rows::Plain,
            (DType::BF16 | DType::F16, format) if has_operands(format) => Rows::Records(format),
            _ => return None,
        };
        let whole = match rows {
            Rows::Plain => op.in_features.is_multiple_of(8),
            // No record has rows of two experts, and what packs them takes 32 values at a time.
            Rows::Records(_) => {
                u64::from(op.out_features).is_multiple_of(RECORD_ROWS) && op.in_features.is_multiple_of(32)
            }
        };
        (facts.matrix_units && whole && op.num_experts <= MAX_EXPERTS).then_some(rows)
    }

    /// By choices an expert: more of them share the rows that were read.
    pub(super) fn few(self) -> [Few; 3] {
        match self {
            Rows::Plain => [
                Few::new(1, 1, 2, 3, 5),
                Few::new(2, 1, 4, 4, 12),
                Few::new(4, 2, 4, 2, 0),
            ],
            Rows::Records(format) if has_bytes(format) => [
                Few::new(1, 2, 2, 1, 4),
                Few::new(2, 2, 4, 1, 5),
                Few::new(4, 1, 4, 1, 0),
            ],
            // Of short runs twice the rows would take 244 registers a thread.
            Rows::Records(format) if run_values(format) < 64 => [
                Few::new(1, 2, 4, 1, 5),
                Few::new(2, 2, 2, 1, 12),
                Few::new(4, 1, 4, 1, 0),
            ],
            Rows::Records(_) => [
                Few::new(1, 4, 4, 1, 5),
                Few::new(2, 2, 2, 1, 12),
                Few::new(4, 1, 4, 1, 0),
            ],
        }
    }

    /// Tiles for Hopper's matrix units in so much shared memory, the smaller first; empty where those do not take the
    /// rows.
    pub(super) fn tiles(self, max_shared_bytes: u32) -> Vec<Tile> {
        let format = match self {
            Rows::Plain => return PLAIN_TILES.to_vec(),
            Rows::Records(format) => format,
        };
        let fitting = |&tokens: &u32| {
            // Groups of a piece of the ring, and pieces; the better first.
            let rings = [(2, 4), (2, 3), (1, 5), (1, 4), (1, 3)];
            let mut tiles = rings
                .into_iter()
                .map(|(groups, stages)| Tile::records(format, tokens, groups, stages));
            tiles.find(|tile| tile.shared <= max_shared_bytes)
        };
        hopper_tokens(format).iter().filter_map(fitting).collect()
    }

    /// Choices an expert from which [`Many`] pays.
    pub(super) fn many_from(self) -> u32 {
        match self {
            Rows::Plain => 120,
            Rows::Records(format) => unpacked::pays_from(format),
        }
    }

    /// Choices an expert from which the larger tile pays.
    pub(super) fn large_from(self) -> u32 {
        match self {
            Rows::Plain => 48,
            Rows::Records(_) => 28,
        }
    }
}

/// How a block of moe_few or moe_groups_few is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Few {
    /// Choices of a pass, in eights.
    pub(super) tiles: u32,
    /// Rows, in sixteens.
    pub(super) row_tiles: u32,
    pub(super) warps: u32,
    /// Chunks, or groups, in flight a warp.
    pub(super) depth: u32,
    /// It pays up to so many choices an expert, where there are tiles.
    pub(super) most: u32,
}

/// Choices an expert up to which the last of them pays without tiles.
pub(super) const MOST_FEW: u32 = 32;

impl Few {
    const fn new(tiles: u32, row_tiles: u32, warps: u32, depth: u32, most: u32) -> Few {
        Few {
            tiles,
            row_tiles,
            warps,
            depth,
            most,
        }
    }

    pub(super) fn shared_bytes(self) -> u32 {
        4 * self.warps * 8 * self.tiles * (16 * self.row_tiles + 4)
    }
}

/// A block of moe_tile or moe_groups_hopper: its tokens, groups of a piece of its ring, and pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    pub(super) tokens: u32,
    pub(super) groups: u32,
    pub(super) stages: u32,
    pub(super) threads: u32,
    pub(super) shared: u32,
}

impl Tile {
    const fn plain(tokens: u32, stages: u32) -> Tile {
        Tile {
            tokens,
            groups: 0,
            stages,
            threads: 256,
            shared: 1024 + stages * (TILE_ROWS + tokens) * 128,
        }
    }

    fn records(format: WeightFormat, tokens: u32, groups: u32, stages: u32) -> Tile {
        Tile {
            tokens,
            groups,
            stages,
            threads: HOPPER_THREADS,
            shared: hopper_ring_bytes(format, tokens, groups, stages) + 8 * tokens,
        }
    }
}

/// Those of moe_tile, the smaller first.
const PLAIN_TILES: [Tile; 2] = [Tile::plain(64, 5), Tile::plain(128, 4)];
/// Rows of a block of either.
pub(super) const TILE_ROWS: u32 = 256;
const _: () = assert!(TILE_ROWS == HOPPER_ROWS);
/// Most blocks that share an expert's choices.
pub(super) const MAX_SHARES: u32 = 8;
