//! Reads panels of groups with f32 scales (layout: `pack`): four bits, bytes and 8-bit floats, one type each over the
//! size of a group.

use crate::format::WeightFormat;
use crate::pack::block_layout;
use crate::panel::{PanelFormat, QuantFormat, Scales, head_offset, nibble_quads, offset};
use crate::simd::{LANES, Quants, Simd, unroll};

/// Marker types: of four bits, of bytes, of 8-bit floats, in groups of G.
pub(crate) struct U4<const G: usize>;
pub(crate) struct I8<const G: usize>;
pub(crate) struct F8<const G: usize>;

/// Bytes before scale and minimum of the first group of block `b`, `each` bytes a group.
#[inline(always)]
const fn group_offset(format: WeightFormat, b: usize, each: usize) -> usize {
    head_offset(format, b) + (b % 8) * 32 / format.group() * each
}

/// The two halves' scales and minima of a block: \[s\], \[m\].
#[inline(always)]
unsafe fn load<S: Simd>(format: WeightFormat, panel: *const u8, b: usize) -> [[S::F; 2]; 2] {
    // SAFETY: a head holds 2 · 16 floats for each of its groups.
    unsafe {
        let p = panel.add(group_offset(format, b, 128)).cast::<f32>();
        let low = [S::load(p), S::load(p.add(LANES))];
        let high = match format.group() {
            16 => [S::load(p.add(2 * LANES)), S::load(p.add(3 * LANES))],
            _ => low,
        };
        [[low[0], high[0]], [low[1], high[1]]]
    }
}

impl<const G: usize> QuantFormat for U4<G> {
    const FORMAT: WeightFormat = match G {
        16 => WeightFormat::U4G16,
        32 => WeightFormat::U4G32,
        _ => WeightFormat::U4G128,
    };
    const QUANTS: Quants = Quants {
        max: 15,
        zero_log2: None,
    };
    const SPLIT: bool = G == 16;
    const HAS_MIN: bool = true;
    #[inline(always)]
    unsafe fn mins<S: Simd>(panel: *const u8, b: usize) -> [S::F; 2] {
        // SAFETY: the caller's promise.
        unsafe { load::<S>(Self::FORMAT, panel, b)[1] }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(panel: *const u8, b: usize) -> Scales<S> {
        // SAFETY: the caller's promise.
        unsafe {
            let [s, m] = load::<S>(Self::FORMAT, panel, b);
            Scales { s, m }
        }
    }
    #[inline(always)]
    unsafe fn quads<S: Simd>(panel: *const u8, b: usize, v: usize) -> [S::I; 2] {
        // SAFETY: a block is 256 bytes of nibbles.
        unsafe { nibble_quads::<S>(panel.add(offset(Self::FORMAT, b)), v) }
    }
    #[inline(always)]
    unsafe fn quants8<S: Simd>(panel: *const u8, b: usize, v: usize) -> [S::F; 8] {
        // SAFETY: a block is 256 bytes of nibbles.
        unsafe { S::nibbles_f32(S::load_i(panel.add(offset(Self::FORMAT, b) + 64 * v))) }
    }
}

impl<const G: usize> QuantFormat for I8<G> {
    const FORMAT: WeightFormat = match G {
        16 => WeightFormat::I8G16,
        32 => WeightFormat::I8G32,
        _ => WeightFormat::I8G128,
    };
    const QUANTS: Quants = Quants {
        max: 255,
        zero_log2: Some(7),
    };
    const SPLIT: bool = G == 16;
    const HAS_MIN: bool = true;
    #[inline(always)]
    unsafe fn mins<S: Simd>(panel: *const u8, b: usize) -> [S::F; 2] {
        // SAFETY: the caller's promise.
        unsafe { load::<S>(Self::FORMAT, panel, b)[1] }
    }
    /// 128·s is exact, and so is its sum with a minimum where scales have 16 bits.
    #[inline(always)]
    unsafe fn scales<S: Simd>(panel: *const u8, b: usize) -> Scales<S> {
        // SAFETY: the caller's promise.
        unsafe {
            let [s, m] = load::<S>(Self::FORMAT, panel, b);
            let zero = S::splat(-128.0);
            Scales {
                s,
                m: [S::fma(s[0], zero, m[0]), S::fma(s[1], zero, m[1])],
            }
        }
    }
    #[inline(always)]
    unsafe fn quads<S: Simd>(panel: *const u8, b: usize, v: usize) -> [S::I; 2] {
        // SAFETY: a block is 512 bytes of quants.
        unsafe {
            let p = panel.add(offset(Self::FORMAT, b) + 128 * v);
            [S::load_i(p), S::load_i(p.add(64))]
        }
    }
}

impl<const G: usize> F8<G> {
    const FORMAT: WeightFormat = match G {
        32 => WeightFormat::F8G32,
        _ => WeightFormat::F8G128,
    };
}

impl<const G: usize> PanelFormat for F8<G> {
    /// The rows' scales.
    type Block<S: Simd> = S::F;
    #[inline(always)]
    unsafe fn block<S: Simd>(panel: *const u8, b: usize) -> S::F {
        // SAFETY: a head holds 16 floats for each of its groups.
        unsafe { S::load(panel.add(group_offset(Self::FORMAT, b, 64)).cast()) }
    }
    #[inline(always)]
    unsafe fn decode8<S: Simd>(panel: *const u8, b: usize, v: usize, scale: &S::F) -> [S::F; 8] {
        // SAFETY: block b holds 32 · 16 bytes; the caller has the instruction set.
        unsafe {
            let p = panel.add(offset(Self::FORMAT, b) + 8 * v * LANES);
            let mut w = [S::splat(0.0); 8];
            unroll!(i in 0..8 => { w[i] = crate::panel::e4m3::<S>(p.add(i * LANES), *scale); });
            w
        }
    }
}

const _: () = assert!(block_layout(WeightFormat::U4G128).1 == 256);
