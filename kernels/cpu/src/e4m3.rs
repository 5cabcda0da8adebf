//! 8-bit floats of 4 exponent and 3 mantissa bits (OCP 8-bit Floating Point Specification 1.0, E4M3: bias 7, no
//! infinities, 0x7F and 0xFF are NaN), one at a time. The contract has the same for crates that may use it.

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
