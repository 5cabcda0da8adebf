//! Support for self-tests of matrix-unit kernels at load: test data of small whole numbers, whose sums do not depend on
//! the order, and memory that device and host both see. A driver's own tests of products use it too.

use halyard_platform_api::{DType, Result};

use crate::driver::{DevicePtr, Driver, Pinned};

/// The value of an operand's token at a depth. It and [`weight_at`] change with the depth, and in no simple rhythm:
/// sums over depths that met in a wrong order must differ.
pub fn x_at(token: u32, depth: u32) -> i32 {
    ((token * 5 + depth * 3 + depth / 7) % 7) as i32 - 3
}

/// The value of a weight's row at a depth.
pub fn weight_at(row: u32, depth: u32) -> i32 {
    ((row * 2 + depth * depth + depth / 5) % 5) as i32 - 2
}

/// Their product over some depths.
pub fn sum_at(token: u32, row: u32, depths: u32) -> i32 {
    (0..depths).map(|k| x_at(token, k) * weight_at(row, k)).sum()
}

/// A whole number below 16 as the bits of a float type, the lowest of these 32.
fn bits_of(dtype: DType, value: i32) -> u32 {
    let bits = (value as f32).to_bits();
    // Both halves cut off nothing: 8 and 11 bits of a number below 16 are there.
    match dtype {
        DType::BF16 => bits >> 16,
        DType::F16 if value == 0 => 0,
        DType::F16 => bits >> 16 & 0x8000 | ((bits >> 23 & 0xff) - 112) << 10 | bits >> 13 & 0x3ff,
        _ => bits,
    }
}

/// A whole number below 16 in a float type's bytes.
pub fn whole_number(dtype: DType, value: i32) -> Vec<u8> {
    bits_of(dtype, value).to_le_bytes()[..dtype.bytes()].to_vec()
}

/// The value of a type's bytes.
pub fn value_of(dtype: DType, bytes: &[u8]) -> f32 {
    match (dtype, bytes) {
        (DType::BF16, &[a, b]) => f32::from_bits(u32::from(u16::from_le_bytes([a, b])) << 16),
        (DType::F16, &[a, b]) => {
            let bits = u32::from(u16::from_le_bytes([a, b]));
            let (sign, exponent, digits) = (bits >> 15, bits >> 10 & 31, bits & 0x3ff);
            let size = match exponent {
                0 => digits as f32 / 16_777_216.0,
                31 => f32::NAN,
                _ => f32::from_bits((exponent + 112) << 23 | digits << 13),
            };
            if sign == 1 { -size } else { size }
        }
        (_, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
        _ => f32::NAN,
    }
}

/// Rows of `columns` of them with `padding` zeros behind each.
pub fn whole_numbers(dtype: DType, rows: u32, columns: u32, padding: u32, at: impl Fn(u32, u32) -> i32) -> Vec<u8> {
    let size = dtype.bytes();
    let mut bytes = Vec::with_capacity(rows as usize * (columns + padding) as usize * size);
    for (row, column) in (0..rows).flat_map(|row| (0..columns + padding).map(move |column| (row, column))) {
        let value = if column < columns { at(row, column) } else { 0 };
        bytes.extend_from_slice(&bits_of(dtype, value).to_le_bytes()[..size]);
    }
    bytes
}

/// Pinned memory, freed at its end.
pub struct SelfTestMemory<'a> {
    driver: &'a dyn Driver,
    pinned: Pinned,
    len: usize,
}

impl<'a> SelfTestMemory<'a> {
    /// Holds `bytes`.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn with(driver: &'a dyn Driver, bytes: &[u8]) -> Result<SelfTestMemory<'a>> {
        let pinned = driver.allocate_pinned(bytes.len() as u64)?;
        // SAFETY: fresh memory of that size.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), pinned.host, bytes.len()) };
        let len = bytes.len();
        Ok(SelfTestMemory { driver, pinned, len })
    }

    /// Where the device has it.
    pub fn device(&self) -> DevicePtr {
        self.pinned.device
    }

    /// What it holds.
    ///
    /// # Safety
    /// The work that writes it has been waited for.
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: as the caller promises; it is initialised.
        unsafe { std::slice::from_raw_parts(self.pinned.host, self.len) }
    }
}

impl Drop for SelfTestMemory<'_> {
    fn drop(&mut self) {
        // SAFETY: nothing uses it any more.
        unsafe { self.driver.free_pinned(self.pinned) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_exact_in_every_type() {
        // From the formats: sign, exponent (bias 15 and 127), leading digits.
        for (value, f16, bf16) in [
            (0, 0x0000u16, 0x0000u16),
            (1, 0x3c00, 0x3f80),
            (-1, 0xbc00, 0xbf80),
            (2, 0x4000, 0x4000),
            (-3, 0xc200, 0xc040),
            (7, 0x4700, 0x40e0),
            (15, 0x4b80, 0x4170),
        ] {
            assert_eq!(whole_number(DType::F16, value), f16.to_le_bytes(), "{value}");
            assert_eq!(whole_number(DType::BF16, value), bf16.to_le_bytes(), "{value}");
            assert_eq!(whole_number(DType::F32, value), (value as f32).to_le_bytes(), "{value}");
        }
    }

    #[test]
    fn numbers_keep_their_value_in_every_type() {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for value in -15..16 {
                assert_eq!(value_of(dtype, &whole_number(dtype, value)), value as f32, "{dtype:?}");
            }
        }
    }

    #[test]
    fn depths_that_meet_in_a_wrong_order_show() {
        let swapped = |token: u32, row: u32, bit: u32| -> i32 {
            (0..192).map(|k| x_at(token, k ^ bit) * weight_at(row, k)).sum()
        };
        for bit in [1, 2, 4, 8, 16] {
            let seen = (0..70).filter(|&token| swapped(token, 3, bit) != sum_at(token, 3, 192));
            assert!(seen.count() > 35, "neighbours at {bit}");
        }
    }

    #[test]
    fn padding_is_zero() {
        let rows = whole_numbers(DType::BF16, 2, 1, 1, |row, _| row as i32 + 1);
        assert_eq!(rows, [0x80, 0x3f, 0, 0, 0x00, 0x40, 0, 0]);
    }
}
