//! Weight formats: a row of canonical bytes to f32 values, after ggml's `ggml-quants.c` (GGUF block formats). Must
//! never round: the values are what the file says.

use half::{bf16, f16};
use halyard_platform_api::{WeightFormat, e4m3};

/// Dequantises one row. `bytes` is [`WeightFormat::row_bytes`] of `out.len()` values.
pub fn dequantise_row(format: WeightFormat, bytes: &[u8], out: &mut [f32]) {
    let blocks = bytes
        .chunks_exact(format.block_bytes())
        .zip(out.chunks_exact_mut(format.block_values()));
    match format {
        WeightFormat::F32 => blocks.for_each(|(b, y)| y[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        WeightFormat::F16 => blocks.for_each(|(b, y)| y[0] = half_at(b, 0)),
        WeightFormat::BF16 => blocks.for_each(|(b, y)| y[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32()),
        WeightFormat::Q4_0 => blocks.for_each(|(b, y)| q4_0(b, y)),
        WeightFormat::Q4_1 => blocks.for_each(|(b, y)| q4_1(b, y)),
        WeightFormat::Q5_0 => blocks.for_each(|(b, y)| q5_0(b, y)),
        WeightFormat::Q8_0 => blocks.for_each(|(b, y)| q8_0(b, y)),
        WeightFormat::Q4K => blocks.for_each(|(b, y)| q4_k(b, y)),
        WeightFormat::Q6K => blocks.for_each(|(b, y)| q6_k(b, y)),
        WeightFormat::F8E4M3 => e4m3_row(bytes, out),
    }
}

/// Codes, then the row's scale.
fn e4m3_row(bytes: &[u8], y: &mut [f32]) {
    let (codes, scale) = bytes.split_at(y.len());
    let scale = f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]);
    for (value, &code) in y.iter_mut().zip(codes) {
        *value = scale * e4m3::to_f32(code);
    }
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Low nibbles are the first half of the block, high nibbles the second.
fn q4_0(block: &[u8], y: &mut [f32]) {
    let d = half_at(block, 0);
    for (j, &byte) in block[2..18].iter().enumerate() {
        y[j] = d * (f32::from(byte & 0xF) - 8.0);
        y[j + 16] = d * (f32::from(byte >> 4) - 8.0);
    }
}

fn q4_1(block: &[u8], y: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (j, &byte) in block[4..20].iter().enumerate() {
        y[j] = d * f32::from(byte & 0xF) + m;
        y[j + 16] = d * f32::from(byte >> 4) + m;
    }
}

/// The fifth bit of value j is bit j of the u32.
fn q5_0(block: &[u8], y: &mut [f32]) {
    let d = half_at(block, 0);
    let fifth = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
    let bit = |j: usize| ((fifth >> j & 1) << 4) as u8;
    for (j, &byte) in block[6..22].iter().enumerate() {
        y[j] = d * (f32::from(byte & 0xF | bit(j)) - 16.0);
        y[j + 16] = d * (f32::from(byte >> 4 | bit(j + 16)) - 16.0);
    }
}

fn q8_0(block: &[u8], y: &mut [f32]) {
    let d = half_at(block, 0);
    for (value, &byte) in y.iter_mut().zip(&block[2..34]) {
        *value = d * f32::from(byte as i8);
    }
}

/// Eight groups of 32 values, each with a 6-bit scale and a 6-bit min; groups 2i and 2i+1 share 32 bytes (low, high
/// nibbles).
fn q4_k(block: &[u8], y: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let (scales, nibbles) = (&block[4..16], &block[16..144]);
    for group in 0..8 {
        let (scale, min) = q4_k_scale_min(scales, group);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        for l in 0..32 {
            let byte = nibbles[group / 2 * 32 + l];
            let q = if group % 2 == 0 { byte & 0xF } else { byte >> 4 };
            y[group * 32 + l] = scale * f32::from(q) - min;
        }
    }
}

/// Twelve bytes hold eight 6-bit scales and mins: the first four plainly, the others in the spare bits.
fn q4_k_scale_min(scales: &[u8], group: usize) -> (u8, u8) {
    if group < 4 {
        (scales[group] & 63, scales[group + 4] & 63)
    } else {
        (
            scales[group + 4] & 0xF | scales[group - 4] >> 6 << 4,
            scales[group + 4] >> 4 | scales[group] >> 6 << 4,
        )
    }
}

/// Two halves of 128 values: each has 64 bytes of low nibbles, 32 bytes of high pairs and 8 scales of 16 values.
fn q6_k(block: &[u8], y: &mut [f32]) {
    let d = half_at(block, 208);
    for part in 0..2 {
        let low = &block[part * 64..][..64];
        let high = &block[128 + part * 32..][..32];
        let scales = &block[192 + part * 8..][..8];
        for quarter in 0..4 {
            for l in 0..32 {
                let byte = low[quarter % 2 * 32 + l];
                let nibble = if quarter < 2 { byte & 0xF } else { byte >> 4 };
                let pair = high[l] >> (2 * quarter) & 3;
                let q = f32::from(nibble | pair << 4) - 32.0;
                let scale = f32::from(scales[quarter * 2 + l / 16] as i8);
                y[part * 128 + quarter * 32 + l] = d * scale * q;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q4_1_block_by_hand() {
        let mut block = vec![0u8; 20];
        block[..2].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
        block[2..4].copy_from_slice(&f16::from_f32(-1.0).to_le_bytes());
        block[4] = 0xF3;
        let mut y = [0.0; 32];
        dequantise_row(WeightFormat::Q4_1, &block, &mut y);
        assert_eq!((y[0], y[16], y[1]), (0.5, 6.5, -1.0));
    }

    #[test]
    fn e4m3_row_by_hand() {
        // 1, the largest, the smallest, -0.875, minus zero and NaN; the scale follows.
        let mut row = vec![0x38, 0x7e, 0x01, 0xb6, 0x80, 0xff];
        row.extend(0.5f32.to_le_bytes());
        let mut y = [9.0; 6];
        dequantise_row(WeightFormat::F8E4M3, &row, &mut y);
        assert_eq!(y[..5], [0.5, 224.0, 1.0 / 1024.0, -0.4375, 0.0]);
        assert!(y[5].is_nan());
    }

    #[test]
    fn q5_0_takes_the_fifth_bit_of_both_halves() {
        let mut block = vec![0u8; 22];
        block[..2].copy_from_slice(&f16::from_f32(1.0).to_le_bytes());
        block[2..6].copy_from_slice(&(1u32 | 1 << 17).to_le_bytes());
        block[6] = 0x21;
        let mut y = [0.0; 32];
        dequantise_row(WeightFormat::Q5_0, &block, &mut y);
        assert_eq!((y[0], y[16], y[1], y[17]), (1.0, -14.0, -16.0, 0.0));
    }
}
