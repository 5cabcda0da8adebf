//! A block taken apart, and what is read of its bytes.

use super::tables::f16_to_f32;

/// Most values of a block.
pub const MAX_BLOCK: usize = 256;
/// Most groups of a block.
pub const MAX_GROUPS: usize = 16;

/// A block taken apart. Of each array the first values count, as many as the block has.
#[derive(Clone, Debug)]
pub struct Unpacked {
    /// Codes; those of 8-bit floats as bytes.
    pub codes: [i8; MAX_BLOCK],
    /// Scale of each group.
    pub scales: [f32; MAX_GROUPS],
    /// What is added, by group; 0 where a format has no minimum.
    pub mins: [f32; MAX_GROUPS],
}

impl Default for Unpacked {
    fn default() -> Self {
        Unpacked {
            codes: [0; MAX_BLOCK],
            scales: [0.0; MAX_GROUPS],
            mins: [0.0; MAX_GROUPS],
        }
    }
}

/// Nibbles of `count` values in runs of `run`: byte j of a run holds value j low and value j + run / 2 high.
pub(super) fn nibbles(packed: &[u8], count: usize, run: usize, codes: &mut [i8]) {
    let runs = packed.chunks_exact(run / 2).zip(codes[..count].chunks_exact_mut(run));
    for (packed, codes) in runs {
        let (low, high) = codes.split_at_mut(run / 2);
        for ((&byte, low), high) in packed.iter().zip(low).zip(high) {
            (*low, *high) = ((byte & 15) as i8, (byte >> 4) as i8);
        }
    }
}

/// Bytes as codes.
pub(super) fn bytes(packed: &[u8], codes: &mut [i8]) {
    for (code, &byte) in codes.iter_mut().zip(packed) {
        *code = byte as i8;
    }
}

/// The f16 at a byte.
pub(super) fn half(block: &[u8], at: usize) -> f32 {
    f16_to_f32([block[at], block[at + 1]])
}

/// The f32 at a byte.
pub(super) fn float(block: &[u8], at: usize) -> f32 {
    f32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}
