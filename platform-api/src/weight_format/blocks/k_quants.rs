//! Codes of 2, 3 and 5 bits that are numbers themselves: Q5_1 (blocks of 32), Q2_K, Q3_K and Q5_K (blocks of 256).

use super::floats::{f16_at, u32_at};
use super::{Block, GROUP};

/// f16 d, f16 m, 32 fifth bits, 16 bytes of nibbles: the low ones first.
pub(super) fn q5_1(bytes: &[u8], block: &mut Block) {
    let fifths = u32_at(bytes, 4);
    // The formula takes a minimum off; this one is added.
    (block.d, block.dmin, block.mins) = (f16_at(bytes, 0), -f16_at(bytes, 2), [1; 16]);
    for (i, code) in block.codes[..32].iter_mut().enumerate() {
        let nibble = bytes[8 + i % 16] >> (i / 16 * 4) & 15;
        *code = (nibble | ((fifths >> i & 1) << 4) as u8) as i8;
    }
}

/// Pairs of bits: the 128 values of a half are four quarters of 32, bits 2k of the same 32 bytes being quarter k.
pub(super) fn pairs256(pairs: &[u8], zero: i8, codes: &mut [i8]) {
    for (i, code) in codes[..256].iter_mut().enumerate() {
        let (half, quarter, l) = (i / 128, i % 128 / 32, i % 32);
        *code = (pairs[32 * half + l] >> (2 * quarter) & 3) as i8 - zero;
    }
}

/// A byte a group (scale in its low nibble, minimum in its high one), 64 bytes of pairs, f16 d, f16 dmin.
pub(super) fn q2_k(bytes: &[u8], block: &mut Block) {
    (block.d, block.dmin) = (f16_at(bytes, 80), f16_at(bytes, 82));
    for (group, &byte) in bytes[..16].iter().enumerate() {
        (block.scales[group], block.mins[group]) = (i32::from(byte & 15), byte >> 4);
    }
    pairs256(&bytes[16..80], 0, &mut block.codes);
}

/// 32 bytes of third bits, 64 bytes of pairs, 12 bytes of 6-bit scales, f16 d. Bit g of byte l is the third bit of
/// value 32 g + l; where it is clear the code is 4 less.
pub(super) fn q3_k(bytes: &[u8], block: &mut Block) {
    let (thirds, packed) = (&bytes[..32], &bytes[96..108]);
    block.d = f16_at(bytes, 108);
    for group in 0..256 / GROUP {
        // Low nibbles in the first 8 bytes: groups 0 to 7, then 8 to 15. Upper pairs in the last 4.
        let low = packed[group % 8] >> (4 * (group / 8)) & 15;
        let high = packed[8 + group % 4] >> (2 * (group / 4)) & 3;
        block.scales[group] = i32::from(low | high << 4) - 32;
    }
    pairs256(&bytes[32..96], 4, &mut block.codes);
    for (i, code) in block.codes.iter_mut().enumerate() {
        *code += (thirds[i % 32] >> (i / 32) & 1) as i8 * 4;
    }
}

/// Scale and minimum of each group of 32, of 6 bits each, from 12 bytes: the first four as they are, of the others the
/// low nibbles in the last four bytes and the upper pairs above the first eight.
fn scales_and_mins(packed: &[u8], block: &mut Block) {
    for j in 0..8 {
        let (scale, min) = match j {
            0..4 => (packed[j] & 63, packed[j + 4] & 63),
            _ => (
                packed[j + 4] & 15 | packed[j - 4] >> 6 << 4,
                packed[j + 4] >> 4 | packed[j] >> 6 << 4,
            ),
        };
        block.scales[2 * j..2 * j + 2].fill(scale.into());
        block.mins[2 * j..2 * j + 2].fill(min);
    }
}

/// Nibbles of 64 values a 32 bytes: the low ones first.
pub(super) fn nibble256(nibbles: &[u8], i: usize) -> u8 {
    nibbles[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15
}

/// f16 d, f16 dmin, 12 bytes of scales and minima, 32 bytes of fifth bits (bit g of byte l: value 32 g + l), 128 bytes
/// of nibbles.
pub(super) fn q5_k(bytes: &[u8], block: &mut Block) {
    let (fifths, nibbles) = (&bytes[16..48], &bytes[48..176]);
    (block.d, block.dmin) = (f16_at(bytes, 0), f16_at(bytes, 2));
    scales_and_mins(&bytes[4..16], block);
    for (i, code) in block.codes.iter_mut().enumerate() {
        *code = (nibble256(nibbles, i) | (fifths[i % 32] >> (i / 32) & 1) << 4) as i8;
    }
}
