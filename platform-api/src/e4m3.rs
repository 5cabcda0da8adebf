//! The numbers of [`DType::F8E4M3`](crate::DType) and [`WeightFormat::F8E4M3`](crate::WeightFormat): 8-bit floats with
//! 4 exponent and 3 mantissa bits (OCP 8-bit Floating Point Specification 1.0: bias 7, no infinities, NaN where the
//! other bits are all ones).

/// The value of a code.
#[must_use]
pub fn to_f32(code: u8) -> f32 {
    let magnitude = match code & 0x7f {
        0x7f => f32::NAN,
        subnormal @ 0..8 => f32::from(subnormal) / 512.0,
        // The same fields under f32's bias.
        fields => f32::from_bits((u32::from(fields) << 20) + (120 << 23)),
    };
    if code < 0x80 { magnitude } else { -magnitude }
}

/// The nearest code, of two the even one; beyond ±448 the largest. NaN stays NaN.
#[must_use]
pub fn from_f32(value: f32) -> u8 {
    let sign = ((value.to_bits() >> 24) & 0x80) as u8;
    if value.is_nan() {
        return sign | 0x7f;
    }
    let magnitude = value.abs().min(448.0);
    // Below 2^-6 codes are 2^-9 apart; above, three bits of the mantissa stay.
    if magnitude < 1.0 / 64.0 {
        return sign | (magnitude * 512.0).round_ties_even() as u8;
    }
    let bits = magnitude.to_bits();
    let rounded = bits + 0x7_ffff + (bits >> 20 & 1);
    sign | ((rounded >> 20) - (120 << 3)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the specification's formula, which is slower and plainer than the code above.
    #[test]
    fn every_code_has_the_value_of_the_specification() {
        for code in 0..=0xffu8 {
            let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
            let magnitude = match (exponent, code & 7) {
                (15, 7) => f32::NAN,
                (0, _) => mantissa / 8.0 * 2f32.powi(-6),
                _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
            };
            let expected = if code < 0x80 { magnitude } else { -magnitude };
            let same_bits = to_f32(code).to_bits() == expected.to_bits();
            assert!(
                same_bits || expected.is_nan() && to_f32(code).is_nan(),
                "code {code:#x}"
            );
        }
    }

    /// The definition: among all codes the nearest, the even one of two equally near. Every value that 16 bits of an
    /// f32 can say, halves between codes among them.
    #[test]
    fn values_round_to_the_nearest_code_of_all() {
        for upper in 0..=u16::MAX {
            let value = f32::from_bits(u32::from(upper) << 16);
            if value.is_nan() {
                assert_eq!(from_f32(value) & 0x7f, 0x7f);
                continue;
            }
            let magnitude = f64::from(value.abs().min(448.0));
            let error = |code: &u8| (magnitude - f64::from(to_f32(*code))).abs();
            let nearest = (0..=0x7eu8).min_by(|a, b| error(a).total_cmp(&error(b)).then((a % 2).cmp(&(b % 2))));
            let sign = if value.is_sign_negative() { 0x80 } else { 0 };
            assert_eq!(Some(from_f32(value)), nearest.map(|code| sign | code), "{value}");
        }
    }
}
