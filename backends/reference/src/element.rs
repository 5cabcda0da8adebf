//! One element of a tensor as bytes: reading any type as f32 or i32, writing back rounded once to nearest even.

use std::cmp::Ordering;
use std::sync::LazyLock;

use half::{bf16, f16};
use halyard_platform_api::DType;

/// The float types that activations and LoRA weights come in.
pub(crate) const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// The types that a KV cache is held in.
pub(crate) const KV_TYPES: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F8E4M3];

/// Reads an element of a float type (also i8 and f8) as f32. `bytes` holds exactly that element.
pub(crate) fn read_float(dtype: DType, bytes: &[u8]) -> f32 {
    match dtype {
        DType::F32 => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
        DType::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        DType::BF16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        DType::F8E4M3 => f8_to_f32(bytes[0]),
        DType::I8 => f32::from(bytes[0] as i8),
        DType::U8 => f32::from(bytes[0]),
        DType::I32 => i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as f32,
        DType::I64 => {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[..8]);
            i64::from_le_bytes(word) as f32
        }
    }
}

/// Writes `value` as an element of `dtype`, rounded to nearest even; integers saturate.
pub(crate) fn write_float(dtype: DType, value: f32, bytes: &mut [u8]) {
    match dtype {
        DType::F32 => bytes.copy_from_slice(&value.to_le_bytes()),
        DType::F16 => bytes.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
        DType::BF16 => bytes.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
        DType::F8E4M3 => bytes[0] = f8_from_f32(value),
        DType::I8 => bytes[0] = (value.round_ties_even() as i8) as u8,
        DType::U8 => bytes[0] = value.round_ties_even() as u8,
        DType::I32 => bytes.copy_from_slice(&(value.round_ties_even() as i32).to_le_bytes()),
        DType::I64 => bytes.copy_from_slice(&(value.round_ties_even() as i64).to_le_bytes()),
    }
}

/// E4M3 to f32 (OCP 8-bit Floating Point Specification 1.0: bias 7, no infinities, 0x7F and 0xFF are NaN).
pub(crate) fn f8_to_f32(byte: u8) -> f32 {
    let sign = if byte & 0x80 != 0 { -1.0 } else { 1.0 };
    let exponent = i32::from(byte >> 3 & 0xF);
    let mantissa = f32::from(byte & 7);
    if byte & 0x7F == 0x7F {
        return f32::NAN;
    }
    if exponent == 0 {
        sign * mantissa * 2f32.powi(-9)
    } else {
        sign * (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7)
    }
}

/// f32 to the nearest E4M3, ties to the even code; beyond ±448 saturates, NaN stays NaN.
pub(crate) fn f8_from_f32(value: f32) -> u8 {
    if value.is_nan() {
        return 0x7F;
    }
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    let magnitude = value.abs().min(448.0);
    // Magnitudes are in the order of their codes: the answer is one of the two codes around the value.
    let above = MAGNITUDES.partition_point(|&code| code < magnitude);
    let below = above.saturating_sub(1);
    let (up, down) = (MAGNITUDES[above] - magnitude, magnitude - MAGNITUDES[below]);
    let nearest = match up.total_cmp(&down) {
        Ordering::Less => above,
        Ordering::Greater => below,
        Ordering::Equal if above.is_multiple_of(2) => above,
        Ordering::Equal => below,
    };
    sign | nearest as u8
}

/// The values of the codes 0 to 0x7E.
static MAGNITUDES: LazyLock<[f32; 0x7F]> = LazyLock::new(|| std::array::from_fn(|code| f8_to_f32(code as u8)));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f8_code_survives_the_round_trip() {
        for code in 0..=0xFFu8 {
            if code & 0x7F != 0x7F {
                assert_eq!(f8_from_f32(f8_to_f32(code)), code, "code {code:#x}");
            }
        }
        assert_eq!(f8_to_f32(0x7E), 448.0);
        assert_eq!(f8_to_f32(0x01), 2f32.powi(-9));
        assert_eq!(f8_from_f32(1000.0), 0x7E);
        // Between 1.0 (0x38) and 1.125 (0x39): the tie goes to the even code.
        assert_eq!(f8_from_f32(1.0625), 0x38);
        assert_eq!(f8_from_f32(1.1875), 0x3A);
    }

    /// The definition: among all codes the nearest, the even one of two equally near.
    #[test]
    fn f8_rounds_to_the_nearest_code_of_all() {
        for bits in 0..=u16::MAX {
            let value = bf16::from_bits(bits).to_f32();
            if value.is_nan() {
                continue;
            }
            let magnitude = f64::from(value.abs().min(448.0));
            let error = |code: &u8| (magnitude - f64::from(f8_to_f32(*code))).abs();
            let nearest = (0..=0x7Eu8).min_by(|a, b| error(a).total_cmp(&error(b)).then((a % 2).cmp(&(b % 2))));
            let sign = if value.is_sign_negative() { 0x80 } else { 0 };
            assert_eq!(Some(f8_from_f32(value)), nearest.map(|code| sign | code), "{value}");
        }
    }

    #[test]
    fn floats_round_to_nearest_even() {
        let mut two = [0; 2];
        write_float(DType::BF16, 1.0 + 1.0 / 256.0, &mut two);
        assert_eq!(read_float(DType::BF16, &two), 1.0);
        write_float(DType::BF16, 1.0 + 3.0 / 256.0, &mut two);
        assert_eq!(read_float(DType::BF16, &two), 1.0 + 4.0 / 256.0);
        write_float(DType::F16, 65504.0, &mut two);
        assert_eq!(read_float(DType::F16, &two), 65504.0);
    }
}
