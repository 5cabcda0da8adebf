//! 8-bit floats of 4 exponent and 3 mantissa bits (OCP 8-bit Floating Point Specification 1.0, E4M3: bias 7, no infinities, 0x7F and 0xFF are
//! NaN): one value, and 16 of them as a vector of f32.

use crate::simd::Simd;

/// Largest value.
const MAX: f32 = 448.0;
/// Smallest normal value, 2^-6.
const MIN_NORMAL: f32 = 0.015_625;

/// The value of a code.
pub fn e4m3_to_f32(code: u8) -> f32 {
    let magnitude = u32::from(code & 0x7F);
    let value = match magnitude {
        0x7F => f32::NAN,
        // Subnormal: units of 2^-9.
        0..8 => magnitude as f32 / 512.0,
        _ => f32::from_bits((magnitude << 20) + (120 << 23)),
    };
    if code & 0x80 == 0 { value } else { -value }
}

/// The nearest code, ties to even; beyond ±448 saturates, NaN stays NaN.
pub fn e4m3_from_f32(value: f32) -> u8 {
    let sign = (value.to_bits() >> 24) as u8 & 0x80;
    let magnitude = value.abs();
    let code = if magnitude.is_nan() {
        0x7F
    } else if magnitude >= MAX {
        0x7E
    } else if magnitude < MIN_NORMAL {
        (magnitude * 512.0).round_ties_even() as u8
    } else {
        // Rounding the mantissa to 3 bits carries into the exponent by itself.
        let bits = magnitude.to_bits();
        let rounded = bits + 0x7_FFFF + (bits >> 20 & 1);
        ((rounded >> 20) - (120 << 3)) as u8
    };
    sign | code
}

/// 16 codes as f32.
///
/// # Safety
/// The CPU has `S`'s instruction set; 16 bytes are readable at `p`.
#[inline(always)]
pub(crate) unsafe fn load_e4m3<S: Simd>(p: *const u8) -> S::F {
    // SAFETY: the caller's promise.
    unsafe {
        let codes = S::load_u8x16(p);
        let magnitude = S::and_i(codes, S::splat_i(0x7F));
        let number = S::i32_to_f32(magnitude);
        // Exponent field 112 + e: the value over 2^8, and never a subnormal of f32, which would be slow. The second of a pair keeps the bits.
        let bits = S::or_i(S::shl::<20>(magnitude), S::splat_i(0x70 << 23));
        let normal = S::mul(S::bf16_pair(bits)[1], S::splat(256.0));
        let subnormal = S::mul(number, S::splat(1.0 / 512.0));
        let value = S::select_lt(number, S::splat(8.0), subnormal, normal);
        let value = S::select_lt(S::splat(126.5), number, S::splat(f32::NAN), value);
        S::copysign(value, S::bf16_pair(S::shl::<24>(codes))[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_survive_the_round_trip_and_neighbours_round_to_even() {
        for code in 0..=0xFF_u8 {
            let value = e4m3_to_f32(code);
            if code & 0x7F == 0x7F {
                assert!(value.is_nan());
                continue;
            }
            assert_eq!(e4m3_from_f32(value), code, "{value}");
            if code & 0x7F < 0x7E {
                let middle = (value + e4m3_to_f32(code + 1)) / 2.0;
                assert_eq!(e4m3_from_f32(middle), code + (code & 1), "halfway after {value}");
            }
        }
    }

    #[test]
    fn known_values_and_the_ends_of_the_range() {
        // From the specification's table.
        for (code, value) in [(0x01, 0.001_953_125), (0x08, 0.015_625), (0x38, 1.0), (0x7E, 448.0)] {
            assert_eq!(e4m3_to_f32(code), value);
        }
        for large in [449.0, 480.0, 1e30, f32::INFINITY] {
            assert_eq!((e4m3_from_f32(large), e4m3_from_f32(-large)), (0x7E, 0xFE));
        }
        assert_eq!(e4m3_from_f32(f32::NAN) & 0x7F, 0x7F);
        assert_eq!(e4m3_from_f32(-0.0), 0x80);
    }
}
