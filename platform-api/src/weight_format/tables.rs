//! The values of codes of four bits, and small floats.

/// OCP Microscaling Formats 1.0, E2M1: a sign, two bits of exponent, one of mantissa.
pub static E2M1: [f32; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

/// Quantiles of the normal distribution (Dettmers et al. 2023, arXiv 2305.14314, appendix E).
#[allow(clippy::excessive_precision, reason = "as published")]
pub static NF4: [f32; 16] = [
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
];

/// bitsandbytes' 4-bit float: a sign, and these twelfths.
#[allow(clippy::excessive_precision, reason = "as the library's own table")]
pub static FP4: [f32; 16] = [
    0.0,
    0.005208333333,
    0.66666667,
    1.0,
    0.33333333,
    0.5,
    0.16666667,
    0.25,
    0.0,
    -0.005208333333,
    -0.66666667,
    -1.0,
    -0.33333333,
    -0.5,
    -0.16666667,
    -0.25,
];

/// ggml's IQ4_NL and IQ4_XS (ggml-common.h, `kvalues_iq4nl`).
pub static IQ4_NL: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];

/// A power of two by its exponent alone (OCP Microscaling Formats 1.0, E8M0): 2^(code − 127), 255 is NaN.
#[must_use]
pub fn e8m0_to_f32(code: u8) -> f32 {
    match code {
        255 => f32::NAN,
        0 => f32::MIN_POSITIVE / 2.0,
        code => f32::from_bits(u32::from(code) << 23),
    }
}

/// The value of an IEEE binary16.
#[must_use]
pub fn f16_to_f32(bits: [u8; 2]) -> f32 {
    let bits = u16::from_le_bytes(bits);
    let (exponent, mantissa) = (u32::from(bits >> 10 & 31), u32::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => mantissa as f32 / (1u32 << 24) as f32,
        31 => f32::from_bits(0x7f80_0000 | mantissa << 13),
        exponent => f32::from_bits((exponent + 112) << 23 | mantissa << 13),
    };
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}
