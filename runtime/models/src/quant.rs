//! The exact value of every stored weight format, one block at a time, in plain scalar code.
//!
//! This is the meaning of the formats, for tests and for the rare tensor that must become f32 (norms,
//! biases, a tied table that a backend cannot read). It is never a fast path: backends pack and
//! compute on the stored blocks. Layouts: ggml-common.h and ggml-quants.c of ggml.

use half::{bf16, f16};
use halyard_platform_api::{WeightFormat, e4m3};

use crate::error::{ModelError, Result};

/// The name of a format as users write it.
#[must_use]
pub fn format_name(format: WeightFormat) -> &'static str {
    match format {
        WeightFormat::F32 => "F32",
        WeightFormat::F16 => "F16",
        WeightFormat::BF16 => "BF16",
        WeightFormat::Q4_0 => "Q4_0",
        WeightFormat::Q4_1 => "Q4_1",
        WeightFormat::Q5_0 => "Q5_0",
        WeightFormat::Q8_0 => "Q8_0",
        WeightFormat::Q4K => "Q4_K",
        WeightFormat::Q6K => "Q6_K",
        WeightFormat::F8E4M3 => "F8_E4M3",
    }
}

/// Writes the values of `bytes` (whole blocks of `format`, little endian; of formats whose rows end in a scale one row)
/// to `out`.
///
/// # Errors
/// [`ModelError::WrongByteCount`] if `bytes` is not exactly `out.len()` values.
pub fn dequantize(format: WeightFormat, bytes: &[u8], out: &mut [f32]) -> Result<()> {
    let expected_bytes = format.row_bytes(out.len());
    if expected_bytes != Some(bytes.len()) {
        return Err(ModelError::WrongByteCount {
            format: format_name(format),
            num_elements: out.len(),
            expected_bytes: expected_bytes.unwrap_or(out.len().div_ceil(format.block_values()) * format.block_bytes()),
            found_bytes: bytes.len(),
        });
    }
    let block = match format {
        WeightFormat::F32 => f32_block,
        WeightFormat::F16 => f16_block,
        WeightFormat::BF16 => bf16_block,
        WeightFormat::Q4_0 => q4_0_block,
        WeightFormat::Q4_1 => q4_1_block,
        WeightFormat::Q5_0 => q5_0_block,
        WeightFormat::Q8_0 => q8_0_block,
        WeightFormat::Q4K => q4_k_block,
        WeightFormat::Q6K => q6_k_block,
        WeightFormat::F8E4M3 => {
            e4m3_row(bytes, out);
            return Ok(());
        }
    };
    let blocks = bytes.chunks_exact(format.block_bytes());
    for (source, values) in blocks.zip(out.chunks_exact_mut(format.block_values())) {
        block(source, values);
    }
    Ok(())
}

/// One canonical row of 8-bit floats: the largest magnitude becomes 448. What the op `quantize_act` gives by its scheme
/// `Fp8Row`. `row` has [`WeightFormat::row_bytes`] bytes.
pub fn quantize_e4m3(values: &[f32], row: &mut [u8]) {
    let largest = values.iter().fold(0.0f32, |max, value| max.max(value.abs()));
    let scale = largest / 448.0;
    let (codes, tail) = row.split_at_mut(values.len());
    for (code, &value) in codes.iter_mut().zip(values) {
        *code = if scale == 0.0 { 0 } else { e4m3::from_f32(value / scale) };
    }
    tail.copy_from_slice(&scale.to_le_bytes());
}

fn f16_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

fn f32_block(bytes: &[u8], out: &mut [f32]) {
    out[0] = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
}

fn f16_block(bytes: &[u8], out: &mut [f32]) {
    out[0] = f16_at(bytes, 0);
}

fn bf16_block(bytes: &[u8], out: &mut [f32]) {
    out[0] = bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
}

/// Codes, then their scale.
fn e4m3_row(bytes: &[u8], out: &mut [f32]) {
    let (codes, scale) = bytes.split_at(out.len());
    let scale = f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]);
    for (value, &code) in out.iter_mut().zip(codes) {
        *value = scale * e4m3::to_f32(code);
    }
}

/// f16 d, 16 bytes: value j in the low nibble of byte j, value j + 16 in its high nibble.
fn q4_0_block(bytes: &[u8], out: &mut [f32]) {
    let d = f16_at(bytes, 0);
    for (j, &q) in bytes[2..18].iter().enumerate() {
        out[j] = d * (f32::from(q & 15) - 8.0);
        out[j + 16] = d * (f32::from(q >> 4) - 8.0);
    }
}

/// As Q4_0, but f16 d, f16 m and no offset of 8.
fn q4_1_block(bytes: &[u8], out: &mut [f32]) {
    let (d, m) = (f16_at(bytes, 0), f16_at(bytes, 2));
    for (j, &q) in bytes[4..20].iter().enumerate() {
        out[j] = d * f32::from(q & 15) + m;
        out[j + 16] = d * f32::from(q >> 4) + m;
    }
}

/// As Q4_0 with the fifth bit of value j in bit j of a u32 after d.
fn q5_0_block(bytes: &[u8], out: &mut [f32]) {
    let d = f16_at(bytes, 0);
    let high = u32::from_le_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]);
    for (j, &q) in bytes[6..22].iter().enumerate() {
        let fifth = |value: usize| ((high >> value & 1) << 4) as u8;
        out[j] = d * (f32::from(q & 15 | fifth(j)) - 16.0);
        out[j + 16] = d * (f32::from(q >> 4 | fifth(j + 16)) - 16.0);
    }
}

fn q8_0_block(bytes: &[u8], out: &mut [f32]) {
    let d = f16_at(bytes, 0);
    for (value, &q) in out.iter_mut().zip(&bytes[2..34]) {
        *value = d * f32::from(q as i8);
    }
}

/// The 6-bit scale and minimum of sub-block `j` (0..8) out of 12 packed bytes.
fn q4_k_scale_min(packed: &[u8], j: usize) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (
            packed[j + 4] & 15 | packed[j - 4] >> 6 << 4,
            packed[j + 4] >> 4 | packed[j] >> 6 << 4,
        )
    };
    (f32::from(scale), f32::from(min))
}

/// f16 d, f16 dmin, 12 bytes of scales, then per 64 values 32 bytes: low nibbles first, high nibbles next.
fn q4_k_block(bytes: &[u8], out: &mut [f32]) {
    let (d, dmin) = (f16_at(bytes, 0), f16_at(bytes, 2));
    let (packed, nibbles) = (&bytes[4..16], &bytes[16..144]);
    for (sub_block, values) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = q4_k_scale_min(packed, sub_block);
        let (d, m) = (d * scale, dmin * min);
        let source = &nibbles[sub_block / 2 * 32..][..32];
        let shift = sub_block % 2 * 4;
        for (value, &q) in values.iter_mut().zip(source) {
            *value = d * f32::from(q >> shift & 15) - m;
        }
    }
}

/// 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales (one per 16 values), f16 d.
fn q6_k_block(bytes: &[u8], out: &mut [f32]) {
    let d = f16_at(bytes, 208);
    for half in 0..2 {
        let low = &bytes[half * 64..][..64];
        let high = &bytes[128 + half * 32..][..32];
        let scales = &bytes[192 + half * 8..][..8];
        for quarter in 0..4 {
            for l in 0..32 {
                let nibble = low[quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
                let pair = high[l] >> (quarter * 2) & 3;
                let q = f32::from(nibble | pair << 4) - 32.0;
                let scale = f32::from(scales[quarter * 2 + l / 16] as i8);
                out[half * 128 + quarter * 32 + l] = d * scale * q;
            }
        }
    }
}
