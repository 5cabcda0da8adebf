//! GGUF's K-quants (ggml-quants.c): 256 values, scales of groups packed tightly.

use super::block::{Unpacked, half};

/// f16 d, f16 dmin, 12 bytes of scales and minima, then per 64 values 32 bytes: low nibbles first, high nibbles next.
pub(super) fn q4_k(block: &[u8], out: &mut Unpacked) {
    let (d, dmin) = (half(block, 0), half(block, 2));
    let (packed, nibbles) = (&block[4..16], &block[16..144]);
    for (group, codes) in out.codes.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_min(packed, group);
        (out.scales[group], out.mins[group]) = (d * scale, -(dmin * min));
        let shift = group % 2 * 4;
        for (code, &byte) in codes.iter_mut().zip(&nibbles[group / 2 * 32..][..32]) {
            *code = (byte >> shift & 15) as i8;
        }
    }
}

/// The 6-bit scale and minimum of a group out of 12 packed bytes.
fn scale_min(packed: &[u8], group: usize) -> (f32, f32) {
    let (scale, min) = if group < 4 {
        (packed[group] & 63, packed[group + 4] & 63)
    } else {
        (
            packed[group + 4] & 15 | packed[group - 4] >> 6 << 4,
            packed[group + 4] >> 4 | packed[group] >> 6 << 4,
        )
    };
    (f32::from(scale), f32::from(min))
}

/// 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales, f16 d.
pub(super) fn q6_k(block: &[u8], out: &mut Unpacked) {
    let d = half(block, 208);
    for (scale, &code) in out.scales.iter_mut().zip(&block[192..208]) {
        *scale = d * f32::from(code as i8);
    }
    out.mins = Default::default();
    for (at, code) in out.codes.iter_mut().enumerate() {
        let (half, quarter, l) = (at / 128, at / 32 % 4, at % 32);
        let nibble = block[half * 64 + quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
        let pair = block[128 + half * 32 + l] >> (quarter * 2) & 3;
        *code = (nibble | pair << 4) as i8 - 32;
    }
}
