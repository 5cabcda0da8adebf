//! Formats whose codes are points of a grid, 4 or 8 neighbouring values at once: IQ3, IQ2 and IQ1. The grids are part
//! of the formats; `grids.bin` holds them (made by tests/fixtures/quant/make_grids.py from the Python package `gguf`).

use super::super::tables::f16_to_f32;
use super::Block;
use super::floats::{f16_at, u16_at, u32_at};

/// All grids, one behind the other, each point's coordinates packed from the lowest bit up.
static GRIDS: &[u8; 9216] = include_bytes!("grids.bin");

/// A grid: where it begins in [`GRIDS`], and what its coordinates mean.
struct Grid<const VALUES: usize> {
    begin: usize,
    /// Coordinates of a point.
    width: usize,
    values: [i8; VALUES],
}

/// Magnitudes of IQ2's values.
const IQ2: [i8; 3] = [8, 25, 43];
const IQ2_XXS: Grid<3> = Grid::new(0, 8, IQ2);
const IQ2_XS: Grid<3> = Grid::new(512, 8, IQ2);
const IQ2_S: Grid<3> = Grid::new(1536, 8, IQ2);
const IQ3_XXS: Grid<8> = Grid::new(3584, 4, [4, 12, 20, 28, 36, 44, 52, 62]);
const IQ3_S: Grid<8> = Grid::new(4096, 4, [1, 3, 5, 7, 9, 11, 13, 15]);
/// In eighths, as what is added to all values of a group is one eighth.
const IQ1: Grid<3> = Grid::new(5120, 8, [-8, 0, 8]);

impl<const VALUES: usize> Grid<VALUES> {
    const fn new(begin: usize, width: usize, values: [i8; VALUES]) -> Self {
        Grid { begin, width, values }
    }

    /// The numbers of a point, to the beginning of `codes`.
    fn point(&self, index: usize, codes: &mut [i8]) {
        // 2 bits a coordinate, or 4 where there are eight numbers.
        let bits = if VALUES == 3 { 2 } else { 4 };
        let point_bytes = self.width * bits / 8;
        let bytes = &GRIDS[self.begin + index * point_bytes..][..point_bytes];
        for (i, code) in codes[..self.width].iter_mut().enumerate() {
            let coordinate = bytes[i * bits / 8] >> (i * bits % 8) & ((1 << bits) - 1);
            *code = self.values[usize::from(coordinate)];
        }
    }
}

/// Bit i set: value i is negative.
fn negate(signs: u8, codes: &mut [i8]) {
    for (i, code) in codes.iter_mut().enumerate() {
        if signs >> i & 1 == 1 {
            *code = -*code;
        }
    }
}

/// Eight signs of seven bits: an even number of them is negative.
fn even_signs(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// The scales 2 s + 1 of a nibble's two groups of 16.
fn odd_scales(byte: u8) -> [i32; 2] {
    [2 * i32::from(byte & 15) + 1, 2 * i32::from(byte >> 4) + 1]
}

/// f16 d; for each 32 values 4 bytes of points, u32: four times seven bits of signs, and the scale.
pub(super) fn iq2_xxs(bytes: &[u8], block: &mut Block) {
    block.d = f16_at(bytes, 0) / 8.0;
    for j in 0..8 {
        let (points, signs) = (&bytes[2 + 8 * j..], u32_at(bytes, 6 + 8 * j));
        block.scales[2 * j..2 * j + 2].fill(2 * (signs >> 28) as i32 + 1);
        for (l, codes) in block.codes[32 * j..32 * j + 32].chunks_exact_mut(8).enumerate() {
            IQ2_XXS.point(points[l].into(), codes);
            negate(even_signs(signs >> (7 * l)), codes);
        }
    }
}

/// f16 d; for each 8 values 9 bits of a point and 7 of signs; scales.
pub(super) fn iq2_xs(bytes: &[u8], block: &mut Block) {
    block.d = f16_at(bytes, 0) / 8.0;
    for (l, codes) in block.codes.chunks_exact_mut(8).enumerate() {
        let word = u16_at(bytes, 2 + 2 * l);
        IQ2_XS.point((word & 511).into(), codes);
        negate(even_signs((word >> 9).into()), codes);
    }
    for (scales, &byte) in block.scales.chunks_exact_mut(2).zip(&bytes[66..74]) {
        scales.copy_from_slice(&odd_scales(byte));
    }
}

/// f16 d; for each 8 values 8 bits of a point, then 8 signs, then the point's upper pair; scales.
pub(super) fn iq2_s(bytes: &[u8], block: &mut Block) {
    block.d = f16_at(bytes, 0) / 8.0;
    for (l, codes) in block.codes.chunks_exact_mut(8).enumerate() {
        let high = usize::from(bytes[66 + l / 4] >> (l % 4 * 2) & 3);
        IQ2_S.point(usize::from(bytes[2 + l]) | high << 8, codes);
        negate(bytes[34 + l], codes);
    }
    for (scales, &byte) in block.scales.chunks_exact_mut(2).zip(&bytes[74..82]) {
        scales.copy_from_slice(&odd_scales(byte));
    }
}

/// f16 d; a byte for each point of 4 values; for each 32 values u32: four times seven bits of signs, and the scale.
pub(super) fn iq3_xxs(bytes: &[u8], block: &mut Block) {
    block.d = f16_at(bytes, 0) / 4.0;
    for (l, codes) in block.codes.chunks_exact_mut(8).enumerate() {
        let signs = u32_at(bytes, 66 + l / 4 * 4);
        IQ3_XXS.point(bytes[2 + 2 * l].into(), codes);
        IQ3_XXS.point(bytes[3 + 2 * l].into(), &mut codes[4..]);
        negate(even_signs(signs >> (l % 4 * 7)), codes);
        block.scales[l / 2] = 2 * (signs >> 28) as i32 + 1;
    }
}

/// f16 d; a byte for each point of 4 values, then its ninth bit, 8 signs for each 8 values, a scale for each 32.
pub(super) fn iq3_s(bytes: &[u8], block: &mut Block) {
    block.d = f16_at(bytes, 0);
    for (l, codes) in block.codes.chunks_exact_mut(4).enumerate() {
        let ninth = usize::from(bytes[66 + l / 8] >> (l % 8) & 1);
        IQ3_S.point(usize::from(bytes[2 + l]) | ninth << 8, codes);
    }
    for (codes, &signs) in block.codes.chunks_exact_mut(8).zip(&bytes[74..106]) {
        negate(signs, codes);
    }
    for (scales, &byte) in block.scales.chunks_exact_mut(4).zip(&bytes[106..110]) {
        let [first, second] = odd_scales(byte);
        scales.copy_from_slice(&[first, first, second, second]);
    }
}

/// A point of IQ1 and an eighth, added or (where `less`) taken off.
fn iq1_point(index: usize, less: bool, codes: &mut [i8]) {
    IQ1.point(index, codes);
    for code in codes {
        *code += if less { -1 } else { 1 };
    }
}

/// f16 d; a byte for each point of 8 values; for each 32 values u16: four times the points' upper 3 bits, 3 bits of
/// scale, and whether an eighth is taken off.
pub(super) fn iq1_s(bytes: &[u8], block: &mut Block) {
    block.d = f16_at(bytes, 0) / 8.0;
    for (l, codes) in block.codes.chunks_exact_mut(8).enumerate() {
        let word = u16_at(bytes, 34 + l / 4 * 2);
        let high = usize::from(word >> (l % 4 * 3) & 7);
        iq1_point(usize::from(bytes[2 + l]) | high << 8, word >> 15 == 1, codes);
        block.scales[l / 2] = 2 * i32::from(word >> 12 & 7) + 1;
    }
}

/// A byte for each point of 8 values; a nibble for each: upper 3 bits, and whether an eighth is taken off; four u16 of
/// four scales of 3 bits each, whose upper nibbles are the f16 d, lowest first.
pub(super) fn iq1_m(bytes: &[u8], block: &mut Block) {
    let words: [u16; 4] = std::array::from_fn(|i| u16_at(bytes, 48 + 2 * i));
    let d = (0..4).fold(0u16, |d, i| d | words[i] >> 12 << (4 * i));
    block.d = f16_to_f32(d.to_le_bytes()) / 8.0;
    for (l, codes) in block.codes.chunks_exact_mut(8).enumerate() {
        let nibble = usize::from(bytes[32 + l / 2] >> (l % 2 * 4) & 15);
        iq1_point(usize::from(bytes[l]) | (nibble & 7) << 8, nibble & 8 != 0, codes);
    }
    for (group, scale) in block.scales.iter_mut().enumerate() {
        *scale = 2 * i32::from(words[group / 4] >> (group % 4 * 3) & 7) + 1;
    }
}
