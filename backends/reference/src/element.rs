//! One element of a tensor as bytes: reading any type as f32 or i32, writing back rounded once to nearest even.

use half::{bf16, f16};
use halyard_platform_api::{DType, e4m3};

/// The float types that activations and LoRA weights come in.
pub(crate) const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// The types that a KV cache is held in.
pub(crate) const KV_TYPES: [DType; 6] = [DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::I8, DType::U4];

/// The types that latents are held in.
pub(crate) const LATENT_TYPES: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F8E4M3];

/// Reads an element of a float type (also i8 and f8) as f32. `bytes` holds exactly that element.
pub(crate) fn read_float(dtype: DType, bytes: &[u8]) -> f32 {
    match dtype {
        DType::F32 => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
        DType::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        DType::BF16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        DType::F8E4M3 => e4m3::to_f32(bytes[0]),
        DType::I8 => f32::from(bytes[0] as i8),
        // No tensor has U4.
        DType::U8 | DType::U4 => f32::from(bytes[0]),
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
        DType::F8E4M3 => bytes[0] = e4m3::from_f32(value),
        DType::I8 => bytes[0] = (value.round_ties_even() as i8) as u8,
        DType::U8 | DType::U4 => bytes[0] = value.round_ties_even() as u8,
        DType::I32 => bytes.copy_from_slice(&(value.round_ties_even() as i32).to_le_bytes()),
        DType::I64 => bytes.copy_from_slice(&(value.round_ties_even() as i64).to_le_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
