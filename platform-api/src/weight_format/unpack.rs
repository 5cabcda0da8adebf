//! What stands in a block: its codes in the order of its values, and the scale and minimum of each group. One function
//! a format; all else is generic.

use super::block::{Unpacked, bytes, float, half, nibbles};
use super::blocks::{self, Block};
use super::tables::e8m0_to_f32;
use super::{Codes, WeightFormat, k_quants};
use crate::e4m3;

/// Takes a block apart. `block` has [`WeightFormat::block_bytes`] bytes, `tail` the row's
/// [`WeightFormat::row_tail_bytes`]. Plain formats have no codes: nothing is written.
pub fn unpack(format: WeightFormat, block: &[u8], tail: &[u8], out: &mut Unpacked) {
    use WeightFormat as F;
    let codes = &mut out.codes;
    match format {
        F::F32 | F::F16 | F::BF16 => {}
        F::Q4_0 => {
            out.scales[0] = half(block, 0);
            nibbles(&block[2..], 32, 32, codes);
            codes[..32].iter_mut().for_each(|q| *q -= 8);
        }
        F::Q4_1 => {
            (out.scales[0], out.mins[0]) = (half(block, 0), half(block, 2));
            nibbles(&block[4..], 32, 32, codes);
        }
        F::Q5_0 => {
            out.scales[0] = half(block, 0);
            let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
            nibbles(&block[6..], 32, 32, codes);
            for (j, q) in codes[..32].iter_mut().enumerate() {
                *q = (*q | ((high >> j & 1) << 4) as i8) - 16;
            }
        }
        F::Q8_0 => {
            out.scales[0] = half(block, 0);
            bytes(&block[2..34], codes);
        }
        F::Q4K => k_quants::q4_k(block, out),
        F::Q6K => k_quants::q6_k(block, out),
        F::F8E4M3 => {
            out.scales[0] = float(tail, 0);
            bytes(&block[..1], codes);
        }
        F::Q5_1 | F::Q2K | F::Q3K | F::Q5K | F::IQ4NL | F::IQ4XS | F::IQ3XXS | F::IQ3S | F::IQ2XXS | F::IQ2XS => {
            of_block(format, block, out);
        }
        F::IQ2S | F::IQ1S | F::IQ1M | F::TQ1_0 | F::TQ2_0 => of_block(format, block, out),
        F::Mxfp4 => {
            out.scales[0] = e8m0_to_f32(block[0]);
            nibbles(&block[1..], 32, 32, codes);
        }
        F::Nvfp4 => {
            out.scales[0] = float(tail, 0) * e4m3::to_f32(block[0]);
            nibbles(&block[1..], 16, 16, codes);
        }
        F::U4G16 | F::U4G32 | F::U4G64 | F::U4G128 => {
            (out.scales[0], out.mins[0]) = (float(block, 0), float(block, 4));
            let group = format.block_values();
            nibbles(&block[8..], group, group.min(32), codes);
        }
        F::I8G16 | F::I8G32 | F::I8G64 | F::I8G128 => {
            (out.scales[0], out.mins[0]) = (float(block, 0), float(block, 4));
            bytes(&block[8..], codes);
        }
        F::E2M1G16 | F::E2M1G32 | F::Nf4G64 | F::Fp4G64 | F::Iq4NlG32 => {
            out.scales[0] = float(block, 0);
            let group = format.block_values();
            nibbles(&block[4..], group, group.min(32), codes);
        }
        F::F8G32 | F::F8G64 | F::F8G128 | F::F8B128 => {
            out.scales[0] = float(block, 0);
            bytes(&block[4..], codes);
        }
    }
}

/// A block of small integers as scales ([`blocks`]).
fn of_block(format: WeightFormat, bytes: &[u8], out: &mut Unpacked) {
    let layout = format.layout();
    let mut block = Block::default();
    block.read(format, bytes);
    for group in 0..layout.block_values / layout.group {
        let first = group * layout.group / blocks::GROUP;
        (out.scales[group], out.mins[group]) = (block.scale(first), -block.min(first));
    }
    out.codes = block.codes;
    if let Codes::Table(_) = layout.codes {
        let numbers = blocks::numbers(format);
        for code in &mut out.codes[..layout.block_values] {
            *code = numbers.binary_search(code).unwrap_or(0) as i8;
        }
    }
}
