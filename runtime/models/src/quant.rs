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
/// bits 0 and 15 at the least and the largest value, of which 0 is a code. Ties go to the even code, as in PyTorch.
pub(crate) fn quantize_groups(format: WeightFormat, values: &[f32], row: &mut Vec<u8>) {
    let group = format.block_values();
    let mut codes = [0i8; MAX_GROUP];
    let is_small = format.narrowed(16) == Some(WeightFormat::U4G16);
    for values in values.chunks_exact(group) {
        let (low, high) = bounds(values);
        let (scale, zero, range) = match is_small {
            true => {
                let scale = (high - low) / 15.0;
                let zero = if scale > 0.0 {
                    (-low / scale).round_ties_even()
                } else {
                    0.0
                };
                (scale, zero, (0.0, 15.0))
            }
            false => (high.max(-low) / 127.0, 0.0, (-127.0, 127.0)),
        };
        let codes = &mut codes[..group];
        if scale > 0.0 {
            for (code, value) in codes.iter_mut().zip(values) {
                *code = small_integer((rounded(value / scale) + zero).clamp(range.0, range.1));
            }
        } else {
            codes.fill(zero as i8);
        }
        put_group(
            format,
            codes,
            scale,
            if zero == 0.0 { 0.0 } else { -(scale * zero) },
            row,
        );
    }
}

/// Values of the largest group.
const MAX_GROUP: usize = 128;
/// Added to a number below 2^22 it leaves the nearest integer in the last bits: 1.5 · 2^23.
const TO_INTEGER: f32 = 12_582_912.0;

/// The least and the largest value, or 0. In lanes of their own, which compilers turn into vectors.
fn bounds(values: &[f32]) -> (f32, f32) {
    const LANES: usize = 16;
    let (mut low, mut high) = ([0.0f32; LANES], [0.0f32; LANES]);
    for values in values.chunks_exact(LANES) {
        for ((low, high), &value) in low.iter_mut().zip(&mut high).zip(values) {
            *low = if value < *low { value } else { *low };
            *high = if value > *high { value } else { *high };
        }
    }
    (
        low.into_iter().fold(0.0, f32::min),
        high.into_iter().fold(0.0, f32::max),
    )
}

/// [`f32::round_ties_even`] of a number below 2^22, without a call.
fn rounded(x: f32) -> f32 {
    (x + TO_INTEGER) - TO_INTEGER
}

/// A whole number that a byte holds; 0 for one that is none.
fn small_integer(x: f32) -> i8 {
    (x + TO_INTEGER).to_bits() as i8
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_without_a_call_is_rounding() {
        for i in -1100i32..=1100 {
            for near in [-1i32, 0, 1] {
                let x = i as f32 / 8.0;
                let x = f32::from_bits(x.to_bits().wrapping_add_signed(if x == 0.0 { 0 } else { near }));
                assert_eq!(rounded(x), x.round_ties_even(), "{x}");
                assert_eq!(
                    small_integer(x.round_ties_even().clamp(-127.0, 127.0)),
                    x.round_ties_even().clamp(-127.0, 127.0) as i8
                );
            }
        }
        assert_eq!(small_integer(f32::NAN), 0);
    }

    #[test]
    fn a_group_without_values_other_than_zero_has_no_scale() {
        let mut row = Vec::new();
        quantize_groups(WeightFormat::U4G32, &[0.0; 32], &mut row);
        assert_eq!(row, [0; 24]);
    }

    /// The rule as it stands in the comment, value by value.
    #[test]
    fn codes_are_those_of_the_rule() {
        let values: Vec<f32> = (0..128 * 50u32)
            .map(|i| {
                let at = i.wrapping_mul(2_654_435_761) as f32 / u32::MAX as f32 - if i < 3200 { 0.5 } else { 0.1 };
                (at * 512.0).round() / 512.0
            })
            .collect();
        for format in [
            WeightFormat::U4G128,
            WeightFormat::I8G128,
            WeightFormat::U4G16,
            WeightFormat::I8G32,
        ] {
            let (mut row, group) = (Vec::new(), format.block_values());
            quantize_groups(format, &values, &mut row);
            let mut expected = Vec::new();
            for values in values.chunks_exact(group) {
                let low = values.iter().fold(0.0f32, |a, &b| a.min(b));
                let high = values.iter().fold(0.0f32, |a, &b| a.max(b));
                let is_small = matches!(format, WeightFormat::U4G128 | WeightFormat::U4G16);
                let scale = if is_small {
                    (high - low) / 15.0
                } else {
                    high.max(-low) / 127.0
                };
                let zero = if is_small {
                    (-low / scale).round_ties_even()
                } else {
                    0.0
                };
                let (least, most) = if is_small { (0.0, 15.0) } else { (-127.0, 127.0) };
                let code = |v: &f32| ((v / scale).round_ties_even() + zero).clamp(least, most) as i8;
                let codes: Vec<i8> = values.iter().map(code).collect();
                put_group(
                    format,
                    &codes,
                    scale,
                    if zero == 0.0 { 0.0 } else { -(scale * zero) },
                    &mut expected,
                );
            }
            assert!(row == expected, "{format:?}");
        }
    }
}
