//! The exact value of every stored weight format, and rounding to a format at load. Formats themselves are the
//! contract's ([`halyard_platform_api::weight_format`]).
//!
//! For tests and for the rare tensor that must become f32 (norms, biases, a tied table that a backend cannot read). It
//! is never a fast path: backends pack and compute on the stored blocks.

use halyard_platform_api::weight_format::dequantise_row;
use halyard_platform_api::{WeightFormat, e4m3};

use crate::error::{ModelError, Result};

/// The name of a format as users write it.
#[must_use]
pub fn format_name(format: WeightFormat) -> &'static str {
    format.name()
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
    dequantise_row(format, bytes, out);
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
