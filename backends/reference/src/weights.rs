//! Weight formats: a row of canonical bytes to f32 values; GGUF's blocks by the contract's `blocks`. Must never round:
//! the values are what the file says.

use half::{bf16, f16};
use halyard_platform_api::{WeightFormat, blocks, e4m3};

/// Dequantises one row. `bytes` is [`WeightFormat::row_bytes`] of `out.len()` values.
pub fn dequantise_row(format: WeightFormat, bytes: &[u8], out: &mut [f32]) {
    let numbers = bytes.chunks_exact(format.block_bytes()).zip(out.iter_mut());
    match format {
        WeightFormat::F32 => numbers.for_each(|(b, y)| *y = f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        WeightFormat::F16 => numbers.for_each(|(b, y)| *y = f16::from_le_bytes([b[0], b[1]]).to_f32()),
        WeightFormat::BF16 => numbers.for_each(|(b, y)| *y = bf16::from_le_bytes([b[0], b[1]]).to_f32()),
        WeightFormat::F8E4M3 => e4m3_row(bytes, out),
        _ => {
            blocks::dequantize(format, bytes, out);
        }
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
