//! Reads packed panels (layout: `pack`) into registers: as f32 weights, or as unsigned quants with scales. Owns the
//! reading side, one type a format; the products in `linear_*` are generic over it.
//!
//! Every quantised format reads as w = s·q + m with q an unsigned byte. For the symmetric ones m = −zero·s, so that
//! `fma(s, q, m)` is d·(q − zero) exactly, as files define it.

use crate::format::WeightFormat;
use crate::pack::{block_layout, lead};
pub(crate) use crate::panel_groups::{F8, I8, U4};
use crate::simd::{LANES, Quants, Simd, unroll};

/// Scale and offset of the two halves (16 elements of K each) of one 32-element block, lane = row.
#[derive(Clone, Copy)]
pub(crate) struct Scales<S: Simd> {
    pub s: [S::F; 2],
    pub m: [S::F; 2],
}

/// A format whose weights can be read as f32.
///
/// # Safety
/// Callers have `S`'s instruction set, and `panel` points to a whole packed panel that has a block `b`.
pub(crate) trait PanelFormat: 'static {
    /// A weight is a number of its own: a shift or a conversion decodes it.
    const PLAIN: bool = false;
    /// What the eight steps of a block share.
    type Block<S: Simd>: Copy;
    unsafe fn block<S: Simd>(panel: *const u8, b: usize) -> Self::Block<S>;
    /// The weights at k = 32·b + 8·v .. + 8, lane = row; v in 0..4.
    unsafe fn decode8<S: Simd>(panel: *const u8, b: usize, v: usize, block: &Self::Block<S>) -> [S::F; 8];
    /// Of these, 2i and 2i + 1, for where there are no registers for eight.
    #[inline(always)]
    unsafe fn decode2<S: Simd>(panel: *const u8, b: usize, v: usize, block: &Self::Block<S>, i: usize) -> [S::F; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let weights = Self::decode8::<S>(panel, b, v, block);
            [weights[2 * i], weights[2 * i + 1]]
        }
    }
}

/// A format of unsigned quants with scales.
///
/// # Safety
/// As for [`PanelFormat`].
pub(crate) trait QuantFormat: 'static {
    const FORMAT: WeightFormat;
    const QUANTS: Quants;
    /// The two halves of a block have scales of their own.
    const SPLIT: bool = false;
    /// Blocks have minima besides, which [`QuantFormat::mins`] gives; those of `scales` hold the zero point, too.
    const HAS_MIN: bool = false;
    unsafe fn mins<S: Simd>(_: *const u8, _: usize) -> [S::F; 2] {
        // SAFETY: the caller has the instruction set.
        unsafe { [S::splat(0.0); 2] }
    }
    unsafe fn scales<S: Simd>(panel: *const u8, b: usize) -> Scales<S>;
    /// Groups 2v and 2v + 1: each lane's bytes are four consecutive k of its row.
    unsafe fn quads<S: Simd>(panel: *const u8, b: usize, v: usize) -> [S::I; 2];
    /// As [`PanelFormat::decode8`], before scaling.
    #[inline(always)]
    unsafe fn quants8<S: Simd>(panel: *const u8, b: usize, v: usize) -> [S::F; 8] {
        // SAFETY: the caller's promise.
        unsafe {
            let [low, high] = Self::quads::<S>(panel, b, v);
            let (l, h) = (S::bytes_f32(low), S::bytes_f32(high));
            [l[0], l[1], l[2], l[3], h[0], h[1], h[2], h[3]]
        }
    }
}

/// Where block `b` begins.
#[inline(always)]
pub(crate) const fn offset(format: WeightFormat, b: usize) -> usize {
    let (block, head) = block_layout(format);
    if head == 0 {
        lead(format) + b * block
    } else {
        lead(format) + (b / 8) * (8 * block + head) + head + (b % 8) * block
    }
}

/// Where the head of the 256 elements that hold block `b` begins.
#[inline(always)]
pub(crate) const fn head_offset(format: WeightFormat, b: usize) -> usize {
    let (block, head) = block_layout(format);
    lead(format) + (b / 8) * (8 * block + head)
}

#[inline(always)]
pub(crate) unsafe fn symmetric<S: Simd>(s: S::F, zero: f32) -> Scales<S> {
    // SAFETY: the caller has the instruction set.
    unsafe {
        let m = S::mul(s, S::splat(-zero));
        Scales { s: [s; 2], m: [m; 2] }
    }
}

/// Groups 2v and 2v + 1 of nibbles that begin at `p`.
#[inline(always)]
pub(crate) unsafe fn nibble_quads<S: Simd>(p: *const u8, v: usize) -> [S::I; 2] {
    // SAFETY: 256 bytes of nibbles are readable at `p`; v < 4.
    unsafe {
        let packed = S::load_i(p.add(64 * v));
        let mask = S::splat_i(0x0f0f_0f0f);
        [S::and_i(packed, mask), S::and_i(S::shr::<4>(packed), mask)]
    }
}

/// `x >> (step · i)` for i in 0..4 as immediate shifts.
#[inline(always)]
pub(crate) unsafe fn shr_step<S: Simd, const S1: u32, const S2: u32, const S3: u32>(x: S::I, i: usize) -> S::I {
    // SAFETY: the caller has the instruction set.
    unsafe {
        match i {
            0 => x,
            1 => S::shr::<S1>(x),
            2 => S::shr::<S2>(x),
            _ => S::shr::<S3>(x),
        }
    }
}

/// Marker types, one a format.
pub(crate) struct F32;
pub(crate) struct F16;
pub(crate) struct Bf16;
pub(crate) struct Q4_0;
pub(crate) struct Q4_1;
pub(crate) struct Q5_0;
pub(crate) struct Q8_0;
pub(crate) struct Q4K;
pub(crate) struct Q6K;
pub(crate) struct F8E4M3;

impl PanelFormat for F32 {
    const PLAIN: bool = true;
    type Block<S: Simd> = ();
    #[inline(always)]
    unsafe fn block<S: Simd>(_: *const u8, _: usize) {}
    #[inline(always)]
    unsafe fn decode8<S: Simd>(panel: *const u8, b: usize, v: usize, (): &()) -> [S::F; 8] {
        // SAFETY: block b holds 32 · 16 floats.
        unsafe {
            let p = panel.cast::<f32>().add((32 * b + 8 * v) * LANES);
            let mut w = [S::splat(0.0); 8];
            unroll!(i in 0..8 => { w[i] = S::load(p.add(i * LANES)); });
            w
        }
    }
}

impl PanelFormat for F16 {
    const PLAIN: bool = true;
    type Block<S: Simd> = ();
    #[inline(always)]
    unsafe fn block<S: Simd>(_: *const u8, _: usize) {}
    #[inline(always)]
    unsafe fn decode8<S: Simd>(panel: *const u8, b: usize, v: usize, (): &()) -> [S::F; 8] {
        // SAFETY: block b holds 32 · 16 halves.
        unsafe {
            let p = panel.cast::<u16>().add((32 * b + 8 * v) * LANES);
            let mut w = [S::splat(0.0); 8];
            unroll!(i in 0..8 => { w[i] = S::load_f16(p.add(i * LANES)); });
            w
        }
    }
    #[inline(always)]
    unsafe fn decode2<S: Simd>(panel: *const u8, b: usize, v: usize, (): &(), i: usize) -> [S::F; 2] {
        // SAFETY: block b holds 32 · 16 halves.
        unsafe {
            let p = panel.cast::<u16>().add((32 * b + 8 * v + 2 * i) * LANES);
            [S::load_f16(p), S::load_f16(p.add(LANES))]
        }
    }
}

impl PanelFormat for Bf16 {
    const PLAIN: bool = true;
    type Block<S: Simd> = ();
    #[inline(always)]
    unsafe fn block<S: Simd>(_: *const u8, _: usize) {}
    #[inline(always)]
    unsafe fn decode8<S: Simd>(panel: *const u8, b: usize, v: usize, (): &()) -> [S::F; 8] {
        // SAFETY: block b holds 16 vectors of 64 bytes.
        unsafe {
            let p = panel.add((16 * b + 4 * v) * 64);
            let mut w = [S::splat(0.0); 8];
            unroll!(i in 0..4 => { [w[2 * i], w[2 * i + 1]] = S::bf16_pair(S::load_i(p.add(64 * i))); });
            w
        }
    }
    #[inline(always)]
    unsafe fn decode2<S: Simd>(panel: *const u8, b: usize, v: usize, (): &(), i: usize) -> [S::F; 2] {
        // SAFETY: block b holds 16 vectors of 64 bytes.
        unsafe { S::bf16_pair(S::load_i(panel.add((16 * b + 4 * v + i) * 64))) }
    }
}

impl PanelFormat for F8E4M3 {
    /// The rows' scales.
    type Block<S: Simd> = S::F;
    #[inline(always)]
    unsafe fn block<S: Simd>(panel: *const u8, b: usize) -> S::F {
        // SAFETY: the head holds 16 floats.
        unsafe { S::load(panel.add(head_offset(WeightFormat::F8E4M3, b)).cast()) }
    }
    #[inline(always)]
    unsafe fn decode8<S: Simd>(panel: *const u8, b: usize, v: usize, scale: &S::F) -> [S::F; 8] {
        // SAFETY: block b holds 32 · 16 bytes.
        unsafe {
            let p = panel.add(offset(WeightFormat::F8E4M3, b) + 8 * v * LANES);
            let mut w = [S::splat(0.0); 8];
            unroll!(i in 0..8 => { w[i] = e4m3::<S>(p.add(i * LANES), *scale); });
            w
        }
    }
}

/// 16 codes of 8-bit floats at `p`, times their scales.
#[inline(always)]
pub(crate) unsafe fn e4m3<S: Simd>(p: *const u8, scale: S::F) -> S::F {
    // SAFETY: 16 bytes are readable at `p`; the caller has the instruction set.
    unsafe {
        let up = S::splat(f32::from_bits((120 + 127) << 23));
        let code = S::load_u8x16(p);
        let sign = S::shl::<24>(S::and_i(code, S::splat_i(0x80)));
        let fields = S::shl::<20>(S::and_i(code, S::splat_i(0x7f)));
        // The upper half of a pair is the word itself, its lower bits cleared: they are clear. As an f32 the fields are
        // 2^120 too small; that factor is exact, so that the scale rounds once.
        let [_, value] = S::bf16_pair(S::or_i(sign, fields));
        S::mul(S::mul(value, up), scale)
    }
}

/// Reads weights of a format of quants as f32.
macro_rules! quant_panel {
    ($($name:ty),*) => {$(
        impl $crate::panel::PanelFormat for $name {
            type Block<S: Simd> = Scales<S>;
            #[inline(always)]
            unsafe fn block<S: Simd>(panel: *const u8, b: usize) -> Scales<S> {
                // SAFETY: the caller's promise.
                unsafe { Self::scales::<S>(panel, b) }
            }
            #[inline(always)]
            unsafe fn decode8<S: Simd>(panel: *const u8, b: usize, v: usize, block: &Scales<S>) -> [S::F; 8] {
                // SAFETY: the caller's promise.
                unsafe {
                    let mut w = Self::quants8::<S>(panel, b, v);
                    unroll!(i in 0..8 => { w[i] = S::fma(block.s[v / 2], w[i], block.m[v / 2]); });
                    w
                }
            }
        }
    )*};
}
pub(crate) use quant_panel;
quant_panel!(Q4_0, Q4_1, Q5_0, Q8_0, Q4K, Q6K);
quant_panel!(U4<16>, U4<32>, U4<128>, I8<16>, I8<32>, I8<128>);

impl QuantFormat for Q4_0 {
    const FORMAT: WeightFormat = WeightFormat::Q4_0;
    const QUANTS: Quants = Quants {
        max: 15,
        zero_log2: Some(3),
    };
    #[inline(always)]
    unsafe fn scales<S: Simd>(panel: *const u8, b: usize) -> Scales<S> {
        // SAFETY: a block begins with 16 halves.
        unsafe { symmetric::<S>(S::load_f16(panel.add(offset(Self::FORMAT, b)).cast()), 8.0) }
    }
    #[inline(always)]
    unsafe fn quads<S: Simd>(panel: *const u8, b: usize, v: usize) -> [S::I; 2] {
        // SAFETY: nibbles follow 32 bytes of scales.
        unsafe { nibble_quads::<S>(panel.add(offset(Self::FORMAT, b) + 32), v) }
    }
    #[inline(always)]
    unsafe fn quants8<S: Simd>(panel: *const u8, b: usize, v: usize) -> [S::F; 8] {
        // SAFETY: nibbles follow 32 bytes of scales.
        unsafe { S::nibbles_f32(S::load_i(panel.add(offset(Self::FORMAT, b) + 32 + 64 * v))) }
    }
}

impl QuantFormat for Q4_1 {
    const FORMAT: WeightFormat = WeightFormat::Q4_1;
    const QUANTS: Quants = Quants {
        max: 15,
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
        // SAFETY: nibbles follow 64 bytes of scales and mins.
        unsafe { nibble_quads::<S>(panel.add(offset(Self::FORMAT, b) + 64), v) }
    }
    #[inline(always)]
    unsafe fn quants8<S: Simd>(panel: *const u8, b: usize, v: usize) -> [S::F; 8] {
        // SAFETY: nibbles follow 64 bytes of scales and mins.
        unsafe { S::nibbles_f32(S::load_i(panel.add(offset(Self::FORMAT, b) + 64 + 64 * v))) }
    }
}

impl QuantFormat for Q5_0 {
    const FORMAT: WeightFormat = WeightFormat::Q5_0;
    const QUANTS: Quants = Quants {
        max: 31,
        zero_log2: Some(4),
    };
    #[inline(always)]
    unsafe fn scales<S: Simd>(panel: *const u8, b: usize) -> Scales<S> {
        // SAFETY: a block begins with 16 halves.
        unsafe { symmetric::<S>(S::load_f16(panel.add(offset(Self::FORMAT, b)).cast()), 16.0) }
    }
    #[inline(always)]
    unsafe fn quads<S: Simd>(panel: *const u8, b: usize, v: usize) -> [S::I; 2] {
        // SAFETY: nibbles follow 32 bytes of scales, 64 bytes of fifth bits follow the nibbles.
        unsafe {
            let p = panel.add(offset(Self::FORMAT, b) + 32);
            let low = nibble_quads::<S>(p, v);
            let bits = shr_step::<S, 2, 4, 6>(S::load_i(p.add(256)), v);
            let one = S::splat_i(0x0101_0101);
            [
                S::or_i(low[0], S::shl::<4>(S::and_i(bits, one))),
                S::or_i(low[1], S::shl::<4>(S::and_i(S::shr::<1>(bits), one))),
            ]
        }
    }
}

impl QuantFormat for Q8_0 {
    const FORMAT: WeightFormat = WeightFormat::Q8_0;
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
        // SAFETY: 512 bytes of quants follow 32 bytes of scales.
        unsafe {
            let p = panel.add(offset(Self::FORMAT, b) + 32 + 128 * v);
            [S::load_i(p), S::load_i(p.add(64))]
        }
    }
}

impl QuantFormat for Q4K {
    const FORMAT: WeightFormat = WeightFormat::Q4K;
    const QUANTS: Quants = Quants {
        max: 15,
        zero_log2: None,
    };
    #[inline(always)]
    unsafe fn scales<S: Simd>(panel: *const u8, b: usize) -> Scales<S> {
        // SAFETY: the head holds 16 + 16 halves, the block begins with 16 scales and 16 mins.
        unsafe {
            let head = panel.add(head_offset(Self::FORMAT, b)).cast::<u16>();
            let p = panel.add(offset(Self::FORMAT, b));
            let s = S::mul(S::load_f16(head), S::i32_to_f32(S::load_u8x16(p)));
            let min = S::mul(S::load_f16(head.add(LANES)), S::i32_to_f32(S::load_u8x16(p.add(LANES))));
            Scales {
                s: [s; 2],
                m: [S::sub(S::splat(0.0), min); 2],
            }
        }
    }
    #[inline(always)]
    unsafe fn quads<S: Simd>(panel: *const u8, b: usize, v: usize) -> [S::I; 2] {
        // SAFETY: nibbles follow 32 bytes of scales and mins.
        unsafe { nibble_quads::<S>(panel.add(offset(Self::FORMAT, b) + 32), v) }
    }
    #[inline(always)]
    unsafe fn quants8<S: Simd>(panel: *const u8, b: usize, v: usize) -> [S::F; 8] {
        // SAFETY: nibbles follow 32 bytes of scales and mins.
        unsafe { S::nibbles_f32(S::load_i(panel.add(offset(Self::FORMAT, b) + 32 + 64 * v))) }
    }
}

impl QuantFormat for Q6K {
    const FORMAT: WeightFormat = WeightFormat::Q6K;
    const QUANTS: Quants = Quants {
        max: 63,
        zero_log2: Some(5),
    };
    const SPLIT: bool = true;
    #[inline(always)]
    unsafe fn scales<S: Simd>(panel: *const u8, b: usize) -> Scales<S> {
        // SAFETY: the head holds 16 halves, the block begins with 2 · 16 scales.
        unsafe {
            let d = S::load_f16(panel.add(head_offset(Self::FORMAT, b)).cast());
            let p = panel.add(offset(Self::FORMAT, b));
            let low = S::mul(d, S::i32_to_f32(S::load_i8x16(p)));
            let high = S::mul(d, S::i32_to_f32(S::load_i8x16(p.add(LANES))));
            let zero = S::splat(-32.0);
            Scales {
                s: [low, high],
                m: [S::mul(low, zero), S::mul(high, zero)],
            }
        }
    }
    #[inline(always)]
    unsafe fn quads<S: Simd>(panel: *const u8, b: usize, v: usize) -> [S::I; 2] {
        // SAFETY: nibbles follow 32 bytes of scales, 128 bytes of bit pairs follow the nibbles.
        unsafe {
            let p = panel.add(offset(Self::FORMAT, b) + 32);
            let low = nibble_quads::<S>(p, v);
            let bits = S::load_i(p.add(256 + 64 * (v / 2)));
            let bits = if v.is_multiple_of(2) { bits } else { S::shr::<4>(bits) };
            let three = S::splat_i(0x0303_0303);
            [
                S::or_i(low[0], S::shl::<4>(S::and_i(bits, three))),
                S::or_i(low[1], S::shl::<4>(S::and_i(S::shr::<2>(bits), three))),
            ]
        }
    }
}
