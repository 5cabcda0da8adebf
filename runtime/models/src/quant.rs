//! The exact value of every stored weight format, in plain scalar code; GGUF's blocks by the contract's `blocks`.
//!
//! This is the meaning of the formats, for tests and for the rare tensor that must become f32 (norms,
//! biases, a tied table that a backend cannot read). It is never a fast path: backends pack and
//! compute on the stored blocks.

use half::{bf16, f16};
use halyard_platform_api::{WeightFormat, blocks, e4m3};

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
        WeightFormat::Q5_1 => "Q5_1",
        WeightFormat::Q2K => "Q2_K",
        WeightFormat::Q3K => "Q3_K",
        WeightFormat::Q5K => "Q5_K",
        WeightFormat::IQ4NL => "IQ4_NL",
        WeightFormat::IQ4XS => "IQ4_XS",
        WeightFormat::IQ3XXS => "IQ3_XXS",
        WeightFormat::IQ3S => "IQ3_S",
        WeightFormat::IQ2XXS => "IQ2_XXS",
        WeightFormat::IQ2XS => "IQ2_XS",
        WeightFormat::IQ2S => "IQ2_S",
        WeightFormat::IQ1S => "IQ1_S",
        WeightFormat::IQ1M => "IQ1_M",
        WeightFormat::TQ1_0 => "TQ1_0",
        WeightFormat::TQ2_0 => "TQ2_0",
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
    let numbers = bytes.chunks_exact(format.block_bytes()).zip(out.iter_mut());
    match format {
        WeightFormat::F32 => numbers.for_each(|(b, value)| *value = f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        WeightFormat::F16 => numbers.for_each(|(b, value)| *value = f16::from_le_bytes([b[0], b[1]]).to_f32()),
        WeightFormat::BF16 => numbers.for_each(|(b, value)| *value = bf16::from_le_bytes([b[0], b[1]]).to_f32()),
        WeightFormat::F8E4M3 => e4m3_row(bytes, out),
        _ => {
            blocks::dequantize(format, bytes, out);
        }
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

/// Codes, then their scale.
fn e4m3_row(bytes: &[u8], out: &mut [f32]) {
    let (codes, scale) = bytes.split_at(out.len());
    let scale = f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]);
    for (value, &code) in out.iter_mut().zip(codes) {
        *value = scale * e4m3::to_f32(code);
    }
}
