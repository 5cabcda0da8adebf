//! Reads the panels of `pack_coded`. Owns the reading side of them, as `panel` does of the others.

use crate::format::WeightFormat;
use crate::pack_coded::offset_of_numbers;
use crate::panel::{QuantFormat, Scales, head_offset, nibble_quads, offset, quant_panel, shr_step, symmetric};
use crate::simd::{LANES, Quants, Simd, unroll};

/// Marker types, one a kind of panel.
pub(crate) struct Int5;
pub(crate) struct Int5Scaled;
pub(crate) struct Int2Scaled;
pub(crate) struct Int2;
pub(crate) struct Int3Scaled;
pub(crate) struct Table3Scaled;
pub(crate) struct Table3Small;
pub(crate) struct Table4Scaled;
pub(crate) struct Table4;
quant_panel!(
    Int5,
    Int5Scaled,
    Int2Scaled,
    Int2,
    Int3Scaled,
    Table3Scaled,
    Table3Small,
    Table4Scaled,
    Table4
);

/// Groups 2v and 2v + 1 of single bits that lie at `p`: bit g of a byte is group g's. They come as bit 0 of each byte.
#[inline(always)]
unsafe fn bit_quads<S: Simd>(p: *const u8, v: usize) -> [S::I; 2] {
    // SAFETY: 64 bytes are readable at `p`; v < 4.
    unsafe {
        let bits = shr_step::<S, 2, 4, 6>(S::load_i(p), v);
        let one = S::splat_i(0x0101_0101);
        [S::and_i(bits, one), S::and_i(S::shr::<1>(bits), one)]
    }
}

/// Groups 2v and 2v + 1 of pairs of bits that begin at `p`.
#[inline(always)]
unsafe fn pair_quads<S: Simd>(p: *const u8, v: usize) -> [S::I; 2] {
    // SAFETY: 128 bytes are readable at `p`; v < 4.
    unsafe {
        let bits = S::load_i(p.add(64 * (v / 2)));
        let bits = if v.is_multiple_of(2) { bits } else { S::shr::<4>(bits) };
        let three = S::splat_i(0x0303_0303);
        [S::and_i(bits, three), S::and_i(S::shr::<2>(bits), three)]
    }
}

/// Nibbles at `nibbles` with a fifth bit each at `bits`.
#[inline(always)]
unsafe fn fifth_quads<S: Simd>(nibbles: *const u8, bits: *const u8, v: usize) -> [S::I; 2] {
    // SAFETY: 256 and 64 bytes are readable; v < 4.
    unsafe {
        let (low, high) = (nibble_quads::<S>(nibbles, v), bit_quads::<S>(bits, v));
        [
            S::or_i(low[0], S::shl::<4>(high[0])),
            S::or_i(low[1], S::shl::<4>(high[1])),
        ]
    }
}

/// Groups 2v and 2v + 1 of pairs at `p` with a third bit each behind them.
#[inline(always)]
unsafe fn third_quads<S: Simd>(p: *const u8, v: usize) -> [S::I; 2] {
    // SAFETY: 128 and 64 bytes are readable; v < 4.
    unsafe {
        let (low, high) = (pair_quads::<S>(p, v), bit_quads::<S>(p.add(128), v));
        [
            S::or_i(low[0], S::shl::<2>(high[0])),
            S::or_i(low[1], S::shl::<2>(high[1])),
        ]
    }
}

/// Scales of a block's halves at `p`, times `d`, of weights whose zero is `zero`.
#[inline(always)]
unsafe fn halves<S: Simd>(d: S::F, p: *const u8, zero: f32) -> Scales<S> {
    // SAFETY: 2 · 16 scales are readable; the caller has the instruction set.
    unsafe {
        let low = S::mul(d, S::i32_to_f32(S::load_i8x16(p)));
        let high = S::mul(d, S::i32_to_f32(S::load_i8x16(p.add(LANES))));
        let zero = S::splat(-zero);
        Scales {
            s: [low, high],
            m: [S::mul(low, zero), S::mul(high, zero)],
        }
    }
}

/// The panel's numbers at the places that bytes say.
#[inline(always)]
unsafe fn numbers<S: Simd>(panel: *const u8, places: [S::I; 2]) -> [S::I; 2] {
    // SAFETY: a panel with numbers begins with 16 of them; places are below 16.
    unsafe {
        let table = S::load_table(panel);
        [S::look_up(table, places[0]), S::look_up(table, places[1])]
    }
}

/// Scale and offset of weights with a minimum: −dmin · min.
#[inline(always)]
unsafe fn negative<S: Simd>(dmin: S::F, min: S::I) -> S::F {
    // SAFETY: the caller has the instruction set.
    unsafe { S::sub(S::splat(0.0), S::mul(dmin, S::i32_to_f32(min))) }
}

impl QuantFormat for Int5 {
    const FORMAT: WeightFormat = WeightFormat::Int5;
    const QUANTS: Quants = Quants {
        max: 31,
        zero_log2: None,
    };
    #[inline(always)]
    unsafe fn scales<S: Simd>(panel: *const u8, b: usize) -> Scales<S> {
        // SAFETY: a block begins with 16 + 16 halves.
        unsafe {
            let p = panel.add(offset(Self::FORMAT, b)).cast::<u16>();
            Scales {
                s: [S::load_f16(p); 2],
                m: [S::load_f16(p.add(LANES)); 2],
            }
        }
    }
    #[inline(always)]
    unsafe fn quads<S: Simd>(panel: *const u8, b: usize, v: usize) -> [S::I; 2] {
        // SAFETY: nibbles follow 64 bytes of scales and offsets, fifth bits the nibbles.
        unsafe {
            let p = panel.add(offset(Self::FORMAT, b) + 64);
            fifth_quads::<S>(p, p.add(256), v)
        }
    }
}

impl QuantFormat for Int5Scaled {
    const FORMAT: WeightFormat = WeightFormat::Int5Scaled;
    const QUANTS: Quants = Quants {
        max: 31,
        zero_log2: None,
    };
    #[inline(always)]
    unsafe fn scales<S: Simd>(panel: *const u8, b: usize) -> Scales<S> {
        // SAFETY: the head holds 16 + 16 halves, then 16 scales and 16 mins for each of 8 blocks.
        unsafe {
            let head = panel.add(head_offset(Self::FORMAT, b));
            let (halves, p) = (head.cast::<u16>(), head.add(64 + 32 * (b % 8)));
            Scales {
                s: [S::mul(S::load_f16(halves), S::i32_to_f32(S::load_u8x16(p))); 2],
                m: [negative::<S>(S::load_f16(halves.add(LANES)), S::load_u8x16(p.add(LANES))); 2],
            }
        }
    }
    #[inline(always)]
    unsafe fn quads<S: Simd>(panel: *const u8, b: usize, v: usize) -> [S::I; 2] {
        // SAFETY: a block is 256 bytes of nibbles and 64 of fifth bits.
        unsafe {
            let p = panel.add(offset(Self::FORMAT, b));
            fifth_quads::<S>(p, p.add(256), v)
        }
    }
}

impl QuantFormat for Int2Scaled {
    const FORMAT: WeightFormat = WeightFormat::Int2Scaled;
    const QUANTS: Quants = Quants {
        max: 3,
        zero_log2: None,
    };
    const SPLIT: bool = true;
    const HAS_MIN: bool = true;
    #[inline(always)]
    unsafe fn mins<S: Simd>(panel: *const u8, b: usize) -> [S::F; 2] {
        // SAFETY: the caller's promise.
        unsafe { Self::scales::<S>(panel, b).m }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(panel: *const u8, b: usize) -> Scales<S> {
        // SAFETY: the head holds 16 + 16 halves, then 2 · 16 bytes of a scale and a min for each of 8 blocks.
        unsafe {
            let head = panel.add(head_offset(Self::FORMAT, b));
            let (halves, p) = (head.cast::<u16>(), head.add(64 + 32 * (b % 8)));
            let (d, dmin) = (S::load_f16(halves), S::load_f16(halves.add(LANES)));
            let (low, high) = (S::load_u8x16(p), S::load_u8x16(p.add(LANES)));
            let mask = S::splat_i(15);
            Scales {
                s: [
                    S::mul(d, S::i32_to_f32(S::and_i(low, mask))),
                    S::mul(d, S::i32_to_f32(S::and_i(high, mask))),
                ],
                m: [
                    negative::<S>(dmin, S::shr::<4>(low)),
                    negative::<S>(dmin, S::shr::<4>(high)),
                ],
            }
        }
    }
    #[inline(always)]
    unsafe fn quads<S: Simd>(panel: *const u8, b: usize, v: usize) -> [S::I; 2] {
        // SAFETY: a block is 128 bytes of pairs.
        unsafe { pair_quads::<S>(panel.add(offset(Self::FORMAT, b)), v) }
    }
}

impl QuantFormat for Int2 {
    const FORMAT: WeightFormat = WeightFormat::Int2;
    const QUANTS: Quants = Quants {
        max: 3,
        zero_log2: Some(0),
    };
    #[inline(always)]
    unsafe fn scales<S: Simd>(panel: *const u8, b: usize) -> Scales<S> {
        // SAFETY: a head is 16 halves.
        unsafe { symmetric::<S>(S::load_f16(panel.add(head_offset(Self::FORMAT, b)).cast()), 1.0) }
    }
    #[inline(always)]
    unsafe fn quads<S: Simd>(panel: *const u8, b: usize, v: usize) -> [S::I; 2] {
        // SAFETY: a block is 128 bytes of pairs.
        unsafe { pair_quads::<S>(panel.add(offset(Self::FORMAT, b)), v) }
    }
}

impl QuantFormat for Int3Scaled {
    const FORMAT: WeightFormat = WeightFormat::Int3Scaled;
    const QUANTS: Quants = Quants {
        max: 7,
        zero_log2: Some(2),
    };
    const SPLIT: bool = true;
    #[inline(always)]
    unsafe fn scales<S: Simd>(panel: *const u8, b: usize) -> Scales<S> {
        // SAFETY: the head holds 16 halves, then 2 · 16 scales for each of 8 blocks.
        unsafe {
            let head = panel.add(head_offset(Self::FORMAT, b));
            halves::<S>(S::load_f16(head.cast()), head.add(32 + 32 * (b % 8)), 4.0)
        }
    }
    #[inline(always)]
    unsafe fn quads<S: Simd>(panel: *const u8, b: usize, v: usize) -> [S::I; 2] {
        // SAFETY: a block is 128 bytes of pairs and 64 of third bits.
        unsafe { third_quads::<S>(panel.add(offset(Self::FORMAT, b)), v) }
    }
}

/// Scales of block `b` of a panel of 3-bit codes with a table.
#[inline(always)]
unsafe fn table3_scales<S: Simd>(format: WeightFormat, panel: *const u8, b: usize) -> Scales<S> {
    // SAFETY: the head holds 16 floats, then 2 · 16 scales for each of 8 blocks.
    unsafe {
        let head = panel.add(head_offset(format, b));
        let zero = f32::from(offset_of_numbers(format));
        halves::<S>(S::load(head.cast()), head.add(64 + 32 * (b % 8)), zero)
    }
}

/// Its numbers.
#[inline(always)]
unsafe fn table3_quads<S: Simd>(format: WeightFormat, panel: *const u8, b: usize, v: usize) -> [S::I; 2] {
    // SAFETY: a block is 128 bytes of pairs and 64 of third bits.
    unsafe { numbers::<S>(panel, third_quads::<S>(panel.add(offset(format, b)), v)) }
}

impl QuantFormat for Table3Scaled {
    const FORMAT: WeightFormat = WeightFormat::Table3Scaled;
    const QUANTS: Quants = Quants {
        max: 127,
        zero_log2: Some(6),
    };
    const SPLIT: bool = true;
    #[inline(always)]
    unsafe fn scales<S: Simd>(panel: *const u8, b: usize) -> Scales<S> {
        // SAFETY: the trait's contract.
        unsafe { table3_scales::<S>(Self::FORMAT, panel, b) }
    }
    #[inline(always)]
    unsafe fn quads<S: Simd>(panel: *const u8, b: usize, v: usize) -> [S::I; 2] {
        // SAFETY: the trait's contract.
        unsafe { table3_quads::<S>(Self::FORMAT, panel, b, v) }
    }
}

impl QuantFormat for Table3Small {
    const FORMAT: WeightFormat = WeightFormat::Table3Small;
    const QUANTS: Quants = Quants {
        max: 31,
        zero_log2: Some(4),
    };
    const SPLIT: bool = true;
    #[inline(always)]
    unsafe fn scales<S: Simd>(panel: *const u8, b: usize) -> Scales<S> {
        // SAFETY: the trait's contract.
        unsafe { table3_scales::<S>(Self::FORMAT, panel, b) }
    }
    #[inline(always)]
    unsafe fn quads<S: Simd>(panel: *const u8, b: usize, v: usize) -> [S::I; 2] {
        // SAFETY: the trait's contract.
        unsafe { table3_quads::<S>(Self::FORMAT, panel, b, v) }
    }
}

impl QuantFormat for Table4Scaled {
    const FORMAT: WeightFormat = WeightFormat::Table4Scaled;
    const QUANTS: Quants = Quants {
        max: 255,
        zero_log2: Some(7),
    };
    #[inline(always)]
    unsafe fn scales<S: Simd>(panel: *const u8, b: usize) -> Scales<S> {
        // SAFETY: the head holds 16 floats, then 16 scales for each of 8 blocks.
        unsafe {
            let head = panel.add(head_offset(Self::FORMAT, b));
            let scale = S::load_i8x16(head.add(64 + LANES * (b % 8)));
            symmetric::<S>(S::mul(S::load(head.cast()), S::i32_to_f32(scale)), 128.0)
        }
    }
    #[inline(always)]
    unsafe fn quads<S: Simd>(panel: *const u8, b: usize, v: usize) -> [S::I; 2] {
        // SAFETY: a block is 256 bytes of nibbles.
        unsafe { numbers::<S>(panel, nibble_quads::<S>(panel.add(offset(Self::FORMAT, b)), v)) }
    }
}

impl QuantFormat for Table4 {
    const FORMAT: WeightFormat = WeightFormat::Table4;
    const QUANTS: Quants = Quants {
        max: 255,
        zero_log2: Some(7),
    };
    #[inline(always)]
    unsafe fn scales<S: Simd>(panel: *const u8, b: usize) -> Scales<S> {
        // SAFETY: a block begins with 16 halves.
        unsafe { symmetric::<S>(S::load_f16(panel.add(offset(Self::FORMAT, b)).cast()), 128.0) }
    }
    #[inline(always)]
    unsafe fn quads<S: Simd>(panel: *const u8, b: usize, v: usize) -> [S::I; 2] {
        // SAFETY: nibbles follow 32 bytes of scales.
        unsafe { numbers::<S>(panel, nibble_quads::<S>(panel.add(offset(Self::FORMAT, b) + 32), v)) }
    }
}
