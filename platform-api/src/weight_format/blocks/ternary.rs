//! Codes −1, 0 and 1: TQ1_0 (five in a byte) and TQ2_0 (four).

use super::Block;
use super::floats::f16_at;
use super::k_quants::pairs256;

/// 64 bytes of pairs, f16 d. A pair of 3 means 2.
pub(super) fn tq2_0(bytes: &[u8], block: &mut Block) {
    block.d = f16_at(bytes, 64);
    pairs256(&bytes[..64], 1, &mut block.codes);
}

/// 32 bytes of five values, 16 bytes of five, 4 bytes of four, f16 d. A byte is a fraction of 256: its digits to base 3
/// are the codes plus 1, most significant first. The first digits of all bytes of a part come first.
pub(super) fn tq1_0(bytes: &[u8], block: &mut Block) {
    block.d = f16_at(bytes, 52);
    let mut codes = block.codes.iter_mut();
    for (part, digits) in [(&bytes[..32], 5), (&bytes[32..48], 5), (&bytes[48..52], 4)] {
        for digit in 0..digits {
            for (&byte, code) in part.iter().zip(&mut codes) {
                let rest = byte.wrapping_mul(3u8.pow(digit));
                *code = ((u16::from(rest) * 3) >> 8) as i8 - 1;
            }
        }
    }
}
