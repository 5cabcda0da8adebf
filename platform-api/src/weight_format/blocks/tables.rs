//! Codes of 4 bits that a fixed table turns into numbers: IQ4_NL and IQ4_XS.

use super::Block;
use super::floats::{f16_at, u16_at};

/// The numbers of IQ4's codes (`kvalues_iq4nl` of ggml-common.h).
pub(super) const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// 16 bytes: the low nibbles are a group of 32's first half.
fn look_up(nibbles: &[u8], codes: &mut [i8]) {
    for (j, &byte) in nibbles[..16].iter().enumerate() {
        codes[j] = IQ4[usize::from(byte & 15)];
        codes[j + 16] = IQ4[usize::from(byte >> 4)];
    }
}

/// f16 d, 16 bytes of nibbles.
pub(super) fn iq4_nl(bytes: &[u8], block: &mut Block) {
    block.d = f16_at(bytes, 0);
    look_up(&bytes[2..18], &mut block.codes);
}

/// f16 d, u16 with the upper pairs of the 8 scales, 4 bytes with their low nibbles, 128 bytes of nibbles in groups of
/// 32 values. A scale is the 6 bits less 32.
pub(super) fn iq4_xs(bytes: &[u8], block: &mut Block) {
    let high = u16_at(bytes, 2);
    block.d = f16_at(bytes, 0);
    for j in 0..8 {
        let scale = bytes[4 + j / 2] >> (j % 2 * 4) & 15 | ((high >> (2 * j) & 3) as u8) << 4;
        block.scales[2 * j..2 * j + 2].fill(i32::from(scale) - 32);
        look_up(&bytes[8 + 16 * j..], &mut block.codes[32 * j..]);
    }
}
