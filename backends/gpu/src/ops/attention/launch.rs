//! Grids of the plain kernel and of prompts' tiles: the self-test launches them as the op does.

/// Warps of a block of the plain kernel: a (token, query head) each.
pub(super) const WARPS: u32 = 4;
/// Tokens of a tile.
const TILE_TOKENS: u32 = 64;
/// Threads of a tile.
pub(super) const TILE_THREADS: u32 = 128;

/// Blocks of the plain kernel.
pub(super) fn plain_blocks(tokens: u32, num_heads: u32) -> u32 {
    (u64::from(tokens) * u64::from(num_heads)).div_ceil(u64::from(WARPS)) as u32
}

/// Blocks of tiles.
pub(super) fn tile_blocks(tokens: u32, num_heads: u32) -> [u32; 3] {
    [tokens.div_ceil(TILE_TOKENS), num_heads, 1]
}
