//! GGUF's younger block formats taken apart: every one of them is small integers with small integers as scales, so that
//! one formula serves all. Owns the layouts; computes with nothing but the block's own bytes. Layouts: ggml-common.h of
//! the GGML project.
//!
//! Value i of a block is d · scale\[i / 16\] · code\[i\] − dmin · min\[i / 16\]. Both products are exact in f32 for
//! finite scales, so that the subtraction is the only rounding; where a format has no minimum, nothing is rounded.

mod floats;
mod grids;
mod k_quants;
mod tables;
mod ternary;

use crate::WeightFormat;

/// Values of the largest block.
pub const MAX_VALUES: usize = 256;
/// Values that share a scale and a minimum.
pub const GROUP: usize = 16;

/// A block: its integers and their scales. What lies past the format's own block is left over from earlier ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// The factor of the scales.
    pub d: f32,
    /// The factor of the minima; 0 where the format has none.
    pub dmin: f32,
    /// A group's scale.
    pub scales: [i32; MAX_VALUES / GROUP],
    /// A group's minimum.
    pub mins: [u8; MAX_VALUES / GROUP],
    /// A value's integer.
    pub codes: [i8; MAX_VALUES],
}

impl Default for Block {
    fn default() -> Self {
        Block {
            d: 0.0,
            dmin: 0.0,
            scales: [1; MAX_VALUES / GROUP],
            mins: [0; MAX_VALUES / GROUP],
            codes: [0; MAX_VALUES],
        }
    }
}

impl Block {
    /// Reads a block of `format` from its [`WeightFormat::block_bytes`] bytes. False: the format is none of those that
    /// are read here, and nothing was read.
    ///
    /// # Panics
    /// If there are fewer bytes.
    pub fn read(&mut self, format: WeightFormat, bytes: &[u8]) -> bool {
        (self.dmin, self.scales, self.mins) = (0.0, [1; MAX_VALUES / GROUP], [0; MAX_VALUES / GROUP]);
        match format {
            WeightFormat::Q5_1 => k_quants::q5_1(bytes, self),
            WeightFormat::Q2K => k_quants::q2_k(bytes, self),
            WeightFormat::Q3K => k_quants::q3_k(bytes, self),
            WeightFormat::Q5K => k_quants::q5_k(bytes, self),
            WeightFormat::IQ4NL => tables::iq4_nl(bytes, self),
            WeightFormat::IQ4XS => tables::iq4_xs(bytes, self),
            WeightFormat::IQ3XXS => grids::iq3_xxs(bytes, self),
            WeightFormat::IQ3S => grids::iq3_s(bytes, self),
            WeightFormat::IQ2XXS => grids::iq2_xxs(bytes, self),
            WeightFormat::IQ2XS => grids::iq2_xs(bytes, self),
            WeightFormat::IQ2S => grids::iq2_s(bytes, self),
            WeightFormat::IQ1S => grids::iq1_s(bytes, self),
            WeightFormat::IQ1M => grids::iq1_m(bytes, self),
            WeightFormat::TQ1_0 => ternary::tq1_0(bytes, self),
            WeightFormat::TQ2_0 => ternary::tq2_0(bytes, self),
            _ => return false,
        }
        true
    }

    /// The factor of a group's codes, exact.
    #[must_use]
    pub fn scale(&self, group: usize) -> f32 {
        self.d * self.scales[group] as f32
    }

    /// What is taken off a group's values, exact.
    #[must_use]
    pub fn min(&self, group: usize) -> f32 {
        self.dmin * f32::from(self.mins[group])
    }
}

/// The numbers that codes of a format are, ascending, where at most 4 bits can tell them apart. Empty for other
/// formats.
#[must_use]
pub const fn numbers(format: WeightFormat) -> &'static [i8] {
    match format {
        WeightFormat::Q3K => &[-4, -3, -2, -1, 0, 1, 2, 3],
        WeightFormat::IQ2XXS | WeightFormat::IQ2XS | WeightFormat::IQ2S => &[-43, -25, -8, 8, 25, 43],
        WeightFormat::IQ1S | WeightFormat::IQ1M => &[-9, -7, -1, 1, 7, 9],
        WeightFormat::IQ4NL | WeightFormat::IQ4XS => &tables::IQ4,
        WeightFormat::IQ3XXS => &[-62, -52, -44, -36, -28, -20, -12, -4, 4, 12, 20, 28, 36, 44, 52, 62],
        WeightFormat::IQ3S => &[-15, -13, -11, -9, -7, -5, -3, -1, 1, 3, 5, 7, 9, 11, 13, 15],
        WeightFormat::Q2K => &[0, 1, 2, 3],
        // Well-formed TQ1_0 has no 2.
        WeightFormat::TQ1_0 | WeightFormat::TQ2_0 => &[-1, 0, 1, 2],
        _ => &[],
    }
}
