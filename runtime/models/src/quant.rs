//! The exact value of every stored weight format, and rounding to a format at load. Formats themselves are the
//! contract's ([`halyard_platform_api::weight_format`]).
//!
//! For tests and for the rare tensor that must become f32 (norms, biases, a tied table that a backend cannot read). It
//! is never a fast path: backends pack and compute on the stored blocks.

use halyard_platform_api::weight_format::{dequantise_row, put_group};
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

/// The type to which weights are rounded while loading, to the nearest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// 8-bit floats (E4M3), one scale a row.
    Fp8,
    /// Signed bytes, a scale for each group of 128 columns (or 64, 32, 16, as they divide the row).
    Int8,
    /// Four bits with a scale and a zero point for each such group.
    Int4,
}

impl Rounding {
    /// The format of rows of `columns` values; `None` where no group divides them: such a matrix stays as it is.
    #[must_use]
    pub fn format(self, columns: usize) -> Option<WeightFormat> {
        match self {
            Rounding::Fp8 => Some(WeightFormat::F8E4M3),
            Rounding::Int8 => WeightFormat::I8G128.narrowed(columns),
            Rounding::Int4 => WeightFormat::U4G128.narrowed(columns),
        }
    }
}

/// Appends a row of groups ([`Rounding::Int8`], [`Rounding::Int4`]): bytes reach ±127 at the largest magnitude, four
/// bits 0 and 15 at the least and the largest value, of which 0 is a code.
pub(crate) fn quantize_groups(format: WeightFormat, values: &[f32], row: &mut Vec<u8>) {
    let group = format.block_values();
    let mut codes = vec![0i8; group];
    let is_small = format.narrowed(16) == Some(WeightFormat::U4G16);
    for values in values.chunks_exact(group) {
        let (low, high) = values
            .iter()
            .fold((0.0f32, 0.0f32), |(low, high), &v| (low.min(v), high.max(v)));
        let (scale, zero, range) = match is_small {
            true => {
                let scale = (high - low) / 15.0;
                let zero = if scale > 0.0 { (-low / scale).round() } else { 0.0 };
                (scale, zero, (0.0, 15.0))
            }
            false => (high.max(-low) / 127.0, 0.0, (-127.0, 127.0)),
        };
        for (code, value) in codes.iter_mut().zip(values) {
            let number = if scale > 0.0 {
                (value / scale).round() + zero
            } else {
                zero
            };
            *code = number.clamp(range.0, range.1) as i8;
        }
        put_group(
            format,
            &codes,
            scale,
            if zero == 0.0 { 0.0 } else { -(scale * zero) },
            row,
        );
    }
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
