//! Numbers in a block's bytes, little-endian.

/// The f16 at `at`.
pub(super) fn f16_at(bytes: &[u8], at: usize) -> f32 {
    f16(u16_at(bytes, at))
}

/// The value of an f16 (IEEE 754 binary16).
pub(super) fn f16(bits: u16) -> f32 {
    let (exponent, fraction) = (u32::from(bits >> 10 & 31), u32::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => fraction as f32 / (1 << 24) as f32,
        31 => f32::from_bits(0x7f80_0000 | fraction << 13),
        _ => f32::from_bits((exponent + 112) << 23 | fraction << 13),
    };
    if bits < 0x8000 { magnitude } else { -magnitude }
}

/// The u16 at `at`.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The u32 at `at`.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

#[cfg(test)]
mod tests {
    use super::f16;

    /// By the standard's formula, for every number.
    #[test]
    fn every_f16_has_the_value_of_the_standard() {
        for bits in 0..=u16::MAX {
            let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 0x3ff) / 1024.0);
            let magnitude = match exponent {
                0 => fraction * 2f32.powi(-14),
                31 if fraction == 0.0 => f32::INFINITY,
                31 => f32::NAN,
                _ => (1.0 + fraction) * 2f32.powi(exponent - 15),
            };
            let expected = if bits < 0x8000 { magnitude } else { -magnitude };
            let found = f16(bits);
            assert!(
                found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(),
                "{bits:#x}: {found}"
            );
        }
    }
}
