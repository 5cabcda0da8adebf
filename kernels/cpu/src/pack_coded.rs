//! Packs rows of formats that the contract's decoders take apart (`blocks`): integers of 2 to 5 bits with scales. Owns
//! the writing side of their panels; six of them hold all such formats. As in `pack`, `[r]` runs over a panel's 16 rows.
//!
//! - `Q5_1` d f16\[r\], m f16\[r\], nibbles, fifth bits u8\[r\]\[4\]: bit g of byte j is that of group g.
//! - `Q5K` per 256: d f16\[r\], dmin f16\[r\], for each block scale u8\[r\], min u8\[r\]; then per block: nibbles, fifth
//!   bits.
//! - `Q2K` per 256: d f16\[r\], dmin f16\[r\], for each block u8\[2\]\[r\]: scale and min of 16 elements in a byte; then
//!   per block: pairs u8\[2\]\[r\]\[4\], bits 2g of vector h are those of group 4h + g.
//! - `Q3K` first the panel's numbers u8\[16\], 64 more than they are; per 256: d f32\[r\], for each block scales
//!   i8\[2\]\[r\]; then per block: which number, as pairs and third bits.
//! - `IQ4XS` first the panel's numbers, 128 more than they are; per 256: d f32\[r\], for each block scale i8\[r\]; then
//!   per block: which number, as nibbles.
//! - `IQ4NL` the numbers as in `IQ4XS`; per block: d f16\[r\], nibbles.

use half::f16;
use halyard_platform_api::blocks::{self, Block};

use crate::format::WeightFormat;
use crate::pack::{BLOCK, block_layout, lead, pack_nibbles};
use crate::simd::LANES;

/// What a panel's numbers are more than the numbers.
pub(crate) const fn offset_of_numbers(format: WeightFormat) -> i32 {
    match format.panels() {
        WeightFormat::Q3K => 64,
        _ => 128,
    }
}

/// Where each number stands in the panel's table.
struct Places([u8; 256]);

impl Places {
    /// Writes the numbers to a panel's beginning, too.
    fn of(format: WeightFormat, panel: &mut [u8]) -> Places {
        let mut places = [0; 256];
        let numbers = format.coded().map_or(&[][..], |coded| blocks::numbers(coded));
        for (place, &number) in numbers.iter().enumerate() {
            places[usize::from(number as u8)] = place as u8;
            panel[place] = (i32::from(number) + offset_of_numbers(format)) as u8;
        }
        Places(places)
    }
}

/// Packs row `r` of a panel.
pub(crate) fn pack_coded(format: WeightFormat, row: &[u8], panel: &mut [u8], r: usize) {
    let Some(coded) = format.coded() else {
        unreachable!("{format:?} is packed as it is")
    };
    let panels = format.panels();
    let has_numbers = lead(format) > 0;
    let places = if has_numbers {
        Places::of(format, panel)
    } else {
        Places([0; 256])
    };
    let (block_bytes, head) = block_layout(format);
    let values = format.block_len();
    let outs = panel[lead(format)..].chunks_exact_mut(head + values / BLOCK * block_bytes);
    let mut block = Block::default();
    for (bytes, out) in row.chunks_exact(format.block_bytes()).zip(outs) {
        block.read(coded, bytes);
        let mut q = [0u8; 256];
        for (q, &code) in q.iter_mut().zip(&block.codes[..values]) {
            *q = if has_numbers { places.0[usize::from(code as u8)] } else { code as u8 };
        }
        if matches!(format, WeightFormat::TQ1_0 | WeightFormat::TQ2_0) {
            // Numbers from −1 on: a minimum of d under numbers from 0 on.
            q.iter_mut().for_each(|q| *q = q.wrapping_add(1));
            (block.dmin, block.mins) = (block.d, [1; 16]);
        }
        let (head, body) = out.split_at_mut(head);
        match panels {
            WeightFormat::Q5_1 | WeightFormat::IQ4NL => {
                put_f16(block.d, body, r);
                let with_min = panels == WeightFormat::Q5_1;
                if with_min {
                    put_f16(-block.dmin, &mut body[32..], r);
                }
                let at = if with_min { 64 } else { 32 };
                pack_nibbles(&q[..BLOCK], &mut body[at..], r);
                if with_min {
                    put_bit(&q[..BLOCK], 4, &mut body[at + 256..], r);
                }
            }
            _ => pack_256(panels, &block, &q, (head, body), r),
        }
    }
}

/// 256 elements.
fn pack_256(panels: WeightFormat, block: &Block, q: &[u8; 256], (head, body): (&mut [u8], &mut [u8]), r: usize) {
    let (block_bytes, _) = block_layout(panels);
    match panels {
        WeightFormat::Q5K | WeightFormat::Q2K => {
            put_f16(block.d, head, r);
            put_f16(block.dmin, &mut head[32..], r);
        }
        _ => head[4 * r..4 * r + 4].copy_from_slice(&block.d.to_le_bytes()),
    }
    let scales = &mut head[64..];
    for (j, (q, out)) in q.chunks_exact(BLOCK).zip(body.chunks_exact_mut(block_bytes)).enumerate() {
        let (scale, min) = (&block.scales[2 * j..2 * j + 2], &block.mins[2 * j..2 * j + 2]);
        match panels {
            WeightFormat::Q5K => {
                (scales[32 * j + r], scales[32 * j + LANES + r]) = (scale[0] as u8, min[0]);
                pack_nibbles(q, out, r);
                put_bit(q, 4, &mut out[256..], r);
            }
            WeightFormat::Q2K => {
                for half in 0..2 {
                    scales[32 * j + LANES * half + r] = scale[half] as u8 | min[half] << 4;
                }
                put_pairs(q, out, r);
            }
            WeightFormat::Q3K => {
                for half in 0..2 {
                    scales[32 * j + LANES * half + r] = scale[half] as i8 as u8;
                }
                put_pairs(q, out, r);
                put_bit(q, 2, &mut out[128..], r);
            }
            _ => {
                scales[LANES * j + r] = scale[0] as i8 as u8;
                pack_nibbles(q, out, r);
            }
        }
    }
}

/// A number that came from an f16.
fn put_f16(value: f32, out: &mut [u8], r: usize) {
    out[2 * r..2 * r + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

/// The low pairs of 32 quants into 2 vectors.
fn put_pairs(q: &[u8], out: &mut [u8], r: usize) {
    for (k, q) in q.iter().enumerate() {
        out[64 * (k / 16) + 4 * r + k % 4] |= (q & 3) << (2 * (k / 4 % 4));
    }
}

/// Bit `bit` of 32 quants into a vector.
fn put_bit(q: &[u8], bit: u32, out: &mut [u8], r: usize) {
    for (k, q) in q.iter().enumerate() {
        out[4 * r + k % 4] |= (q >> bit & 1) << (k / 4);
    }
}
