//! Packs coded rows: integers of 2 to 5 bits, or places in a table, with integers as scales. Owns the writing side of
//! their panels. As in `pack`, `[r]` runs over a panel's 16 rows.
//!
//! - `Int5` d f16\[r\], −dmin f16\[r\], nibbles, fifth bits u8\[r\]\[4\]: bit g of byte j is that of group g.
//! - `Int5Scaled` per 256: d f16\[r\], dmin f16\[r\], for each block scale u8\[r\], min u8\[r\]; then per block:
//!   nibbles, fifth bits.
//! - `Int2Scaled` per 256: d f16\[r\], dmin f16\[r\], for each block u8\[2\]\[r\]: scale and min of 16 elements in a
//!   byte; then per block: pairs u8\[2\]\[r\]\[4\], bits 2g of vector h are those of group 4h + g.
//! - `Int2` per 256: d f16\[r\]; then per block: pairs.
//! - `Int3Scaled` per 256: d f16\[r\], for each block scales i8\[2\]\[r\]; then per block: pairs and third bits.
//! - `Table3Scaled` first the panel's numbers u8\[16\], 64 more than they are; per 256: d f32\[r\], for each block
//!   scales i8\[2\]\[r\]; then per block: pairs and third bits. `Table3Small` the same, 16 more than they are.
//! - `Table4Scaled` first the panel's numbers, 128 more than they are; per 256: d f32\[r\], for each block scale
//!   i8\[r\]; then per block: nibbles.
//! - `Table4` the numbers as in `Table4Scaled`; per block: d f16\[r\], nibbles.

use half::f16;

use crate::format::{CodedBlock, WeightFormat};

/// Rows of a panel.
pub(crate) const ROWS: usize = 16;
/// Elements of K that are packed together.
const BLOCK: usize = 32;

/// Where things begin in a panel: bytes before the first block, of a block, and before each 8 blocks.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    pub lead: usize,
    pub block_bytes: usize,
    pub head: usize,
}

/// What a panel's numbers are more than the numbers.
pub(crate) const fn offset_of_numbers(format: WeightFormat) -> u8 {
    match format {
        WeightFormat::Table3Scaled => 64,
        WeightFormat::Table3Small => 16,
        _ => 128,
    }
}

/// Packs row `r` of a panel.
pub(crate) fn pack_coded(format: WeightFormat, layout: Layout, row: &[u8], panel: &mut [u8], r: usize) {
    let (table, panel) = panel.split_at_mut(layout.lead);
    let outs = panel.chunks_exact_mut(layout.head + format.block_len() / BLOCK * layout.block_bytes);
    for (bytes, out) in row.chunks_exact(format.block_bytes()).zip(outs) {
        let block = CodedBlock::of(bytes);
        // Every block of a weight has the same numbers.
        for (number, &of_block) in table.iter_mut().zip(block.numbers) {
            *number = of_block.wrapping_add(offset_of_numbers(format));
        }
        match format {
            WeightFormat::Int5 => {
                put_f16(block.d, out, r);
                put_f16(-block.dmin, &mut out[32..], r);
                put_bits::<0, 4>(block.codes, &mut out[64..], r);
                put_bits::<4, 1>(block.codes, &mut out[64 + 256..], r);
            }
            WeightFormat::Table4 => {
                put_f16(block.d, out, r);
                put_bits::<0, 4>(block.codes, &mut out[32..], r);
            }
            _ => pack_scaled(format, layout, &block, out, r),
        }
    }
}

/// 256 elements.
fn pack_scaled(format: WeightFormat, layout: Layout, block: &CodedBlock<'_>, out: &mut [u8], r: usize) {
    let (head, body) = out.split_at_mut(layout.head);
    let factors = match format {
        WeightFormat::Int5Scaled | WeightFormat::Int2Scaled => {
            put_f16(block.d, head, r);
            put_f16(block.dmin, &mut head[32..], r);
            64
        }
        WeightFormat::Int2 | WeightFormat::Int3Scaled => {
            put_f16(block.d, head, r);
            32
        }
        _ => {
            head[4 * r..4 * r + 4].copy_from_slice(&block.d.to_le_bytes());
            64
        }
    };
    let scales = &mut head[factors..];
    let codes = block.codes.chunks_exact(BLOCK);
    for (j, (q, out)) in codes.zip(body.chunks_exact_mut(layout.block_bytes)).enumerate() {
        let (scale, min) = (&block.scales[2 * j..2 * j + 2], &block.mins[2 * j..2 * j + 2]);
        match format {
            WeightFormat::Int5Scaled => {
                (scales[32 * j + r], scales[32 * j + ROWS + r]) = (scale[0], min[0]);
                put_bits::<0, 4>(q, out, r);
                put_bits::<4, 1>(q, &mut out[256..], r);
            }
            WeightFormat::Int2Scaled => {
                for half in 0..2 {
                    scales[32 * j + ROWS * half + r] = scale[half] & 15 | min[half] << 4;
                }
                put_bits::<0, 2>(q, out, r);
            }
            WeightFormat::Int2 => put_bits::<0, 2>(q, out, r),
            WeightFormat::Int3Scaled | WeightFormat::Table3Scaled | WeightFormat::Table3Small => {
                for half in 0..2 {
                    scales[32 * j + ROWS * half + r] = scale[half];
                }
                put_bits::<0, 2>(q, out, r);
                put_bits::<2, 1>(q, &mut out[128..], r);
            }
            _ => {
                scales[ROWS * j + r] = scale[0];
                put_bits::<0, 4>(q, out, r);
            }
        }
    }
}

/// A number that came from an f16.
fn put_f16(value: f32, out: &mut [u8], r: usize) {
    out[2 * r..2 * r + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

/// Bits `LOW..LOW + BITS` of at most 32 quants into vectors of 16 rows × 4 bytes, of which each holds 8 / `BITS` groups
/// of 4 quants, the first one in its lowest bits.
pub(crate) fn put_bits<const LOW: u32, const BITS: u32>(q: &[u8], out: &mut [u8], r: usize) {
    let mask = (0xff >> (8 - BITS)) * 0x0101_0101;
    let vectors = out.chunks_mut(4 * ROWS);
    for (quants, out) in q.chunks_exact(4 * (8 / BITS as usize)).zip(vectors) {
        let groups = quants.as_chunks::<4>().0.iter().zip(0..);
        let word = groups.fold(0, |word, (group, g)| {
            word | (u32::from_le_bytes(*group) >> LOW & mask) << (BITS * g)
        });
        out[4 * r..4 * r + 4].copy_from_slice(&word.to_le_bytes());
    }
}
