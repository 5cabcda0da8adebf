//! Keys and values as codes of 8 or 4 bits, with a word for each token and head that says what they mean. Owns the
//! two formats, and how a token is written and read back; `attention_coded` multiplies with them.
//!
//! - `I8`: value = s · q, q from −127 to 127. The word is s = max |x| / 127 in f32.
//! - `U4`: value = s · q + m, q from 0 to 15. The word holds s in its lower and m in its upper half, both bf16: m is
//!   the smallest value, rounded down, and s is (largest − m) / 15, rounded up, so that no code falls outside.
//!
//! A head with a value that is no finite number is NaN as a whole. Keys in U4 are turned before they become codes, and
//! queries before they meet them (`turn`): what few dimensions have much of, all have then, and a step is shorter.
//!
//! A block has keys, values, words of keys, words of values:
//! - K \[kv_head\]\[panel\]\[head_dim\]\[16\] codes; of 4 bits, a byte holds dimensions 2·d (lower half) and 2·d + 1.
//! - V \[kv_head\]\[token\]\[head_dim\] codes, rows padded to 16; of 4 bits, rows padded to 32, and a byte holds
//!   dimensions d (lower half) and d + 16 of 32.
//! - words \[kv_head\]\[panel\]\[16\].
//!
//! A byte belongs to one token alone, so that tokens may be written at once.

use crate::kv_layout::{KvElement, KvLayout};
use crate::simd::{LANES, Simd};

/// Codes of 8 bits.
pub(crate) struct I8;
/// Codes of 4 bits.
pub(crate) struct U4;

/// Largest head dimension of a cache in U4: keys and queries are turned in a buffer of that length on the stack.
pub const MAX_U4_HEAD_DIM: usize = 1024;

/// Turns a head: x becomes H·x / √n in each run of n values, H being Hadamard's matrix (Sylvester's) of the largest
/// power of two that divides the head's length. Lengths and products of heads stay; twice is the identity. Sums are in
/// one order for everybody: neighbours at a distance of 1, then 2, then 4, ….
#[inline(always)]
pub(crate) fn turn(x: &mut [f32]) {
    let n = match x.len() {
        0 => return,
        len => 1 << len.trailing_zeros(),
    };
    let mut half = 1;
    while half < n {
        for pair in x.chunks_exact_mut(2 * half) {
            let (a, b) = pair.split_at_mut(half);
            for i in 0..half {
                (a[i], b[i]) = (a[i] + b[i], a[i] - b[i]);
            }
        }
        half *= 2;
    }
    let factor = 1.0 / (n as f32).sqrt();
    for x in x.iter_mut() {
        *x *= factor;
    }
}

/// A format of codes.
pub(crate) trait KvCode: KvElement {
    /// The word of a head's values, and what codes are made with: code = (x − minimum) / scale to the nearest.
    fn word(x: &[f32]) -> (u32, Map);
    /// What codes with this word mean.
    fn map(word: u32) -> Map;
}

/// value = scale · code + minimum.
#[derive(Clone, Copy)]
pub(crate) struct Map {
    pub(crate) scale: f32,
    pub(crate) minimum: f32,
}

impl KvElement for I8 {
    const BYTES: usize = 1;
    const CODED: bool = true;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: the caller has 16 codes at `p`.
        unsafe { S::i32_to_f32(S::load_i8x16(p)) }
    }
    #[inline(always)]
    unsafe fn read(p: *const u8) -> f32 {
        // SAFETY: the caller has a code at `p`.
        f32::from(unsafe { p.cast::<i8>().read() })
    }
}

impl KvElement for U4 {
    const BYTES: usize = 1;
    const CODED: bool = true;
    const PER_BYTE: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: the caller has 16 bytes of codes at `p`.
        unsafe { S::i32_to_f32(S::and_i(S::load_u8x16(p), S::splat_i(0xF))) }
    }
    #[inline(always)]
    unsafe fn load_upper<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: the caller has 16 bytes of codes at `p`.
        unsafe { S::i32_to_f32(S::shr::<4>(S::load_u8x16(p))) }
    }
    #[inline(always)]
    unsafe fn read(p: *const u8) -> f32 {
        // SAFETY: the caller has a byte of codes at `p`.
        f32::from(unsafe { p.read() } & 0xF)
    }
}

/// Bits of the largest magnitude; above [`INFINITE`] where a value is no number.
fn largest_magnitude(x: &[f32]) -> u32 {
    x.iter().fold(0, |most, x| most.max(x.to_bits() & 0x7FFF_FFFF))
}

/// The bits of ∞.
const INFINITE: u32 = 0x7F80_0000;

/// What makes every value of a head NaN.
const NOTHING: Map = Map {
    scale: f32::NAN,
    minimum: f32::NAN,
};

impl KvCode for I8 {
    fn word(x: &[f32]) -> (u32, Map) {
        let most = largest_magnitude(x);
        let map = match most < INFINITE {
            true => Map {
                scale: f32::from_bits(most) / 127.0,
                minimum: 0.0,
            },
            false => NOTHING,
        };
        (map.scale.to_bits(), map)
    }

    fn map(word: u32) -> Map {
        Map {
            scale: f32::from_bits(word),
            minimum: 0.0,
        }
    }
}

/// The bits of the largest bf16 that is not above x, in the upper half.
fn bf16_down(x: f32) -> u32 {
    match x.to_bits() {
        bits if x < 0.0 => (bits + 0xFFFF) & 0xFFFF_0000,
        bits => bits & 0xFFFF_0000,
    }
}

/// The bits of the smallest bf16 that is not below x ≥ 0, in the upper half.
fn bf16_up(x: f32) -> u32 {
    (x.to_bits() + 0xFFFF) & 0xFFFF_0000
}

impl KvCode for U4 {
    fn word(x: &[f32]) -> (u32, Map) {
        if largest_magnitude(x) >= INFINITE {
            return (
                NOTHING.scale.to_bits() >> 16 | NOTHING.minimum.to_bits() & 0xFFFF_0000,
                NOTHING,
            );
        }
        let least = x
            .iter()
            .fold(f32::INFINITY, |least, &x| if x < least { x } else { least });
        let most = x
            .iter()
            .fold(f32::NEG_INFINITY, |most, &x| if x > most { x } else { most });
        let minimum = bf16_down(least);
        let scale = bf16_up((most - f32::from_bits(minimum)) / 15.0);
        let word = scale >> 16 | minimum;
        (word, U4::map(word))
    }

    fn map(word: u32) -> Map {
        Map {
            scale: f32::from_bits(word << 16),
            minimum: f32::from_bits(word & 0xFFFF_0000),
        }
    }
}

impl Map {
    /// The code of a value: the nearest, of two the even one. Its lower bits, of whatever format.
    #[inline(always)]
    fn code(self, x: f32) -> u8 {
        // 1.5 · 2^23: adding it rounds to a whole number, which then stands in the lowest bits, in two's complement.
        const WHOLE: f32 = 12_582_912.0;
        ((x - self.minimum) / self.divisor() + WHOLE).to_bits() as u8
    }

    /// The scale, or where it is 0, ∞: all values are the minimum then, and codes are 0.
    #[inline(always)]
    fn divisor(self) -> f32 {
        match self.scale == 0.0 {
            true => f32::INFINITY,
            false => self.scale,
        }
    }
}

/// Writes one token, as `kv_write` does.
///
/// # Safety
/// As `kv_write`.
pub(crate) unsafe fn write_coded<E: KvCode>(layout: &KvLayout, block: *mut u8, token: usize, k: &[f32], v: &[f32]) {
    let dim = layout.head_dim;
    let mut turned = [0f32; MAX_U4_HEAD_DIM];
    let (panel, lane) = (token / LANES, token % LANES);
    for head in 0..layout.num_kv_heads {
        let (mut k, v) = (&k[head * dim..(head + 1) * dim], &v[head * dim..(head + 1) * dim]);
        if E::PER_BYTE == 2 {
            turned[..dim].copy_from_slice(k);
            turn(&mut turned[..dim]);
            k = &turned[..dim];
        }
        // SAFETY: head and token lie inside the layout, whose bytes the caller promised.
        unsafe {
            let (word, map) = E::word(k);
            block
                .add(layout.words(0, head, panel) + lane * 4)
                .cast::<u32>()
                .write_unaligned(word);
            let keys = block.add(layout.k_panel(head, panel) + lane);
            for (i, k) in k.chunks(E::PER_BYTE).enumerate() {
                let upper = k.get(1).map_or(0, |&k| map.code(k) << 4);
                keys.add(i * LANES).write(map.code(k[0]) | upper);
            }
            let (word, map) = E::word(v);
            block
                .add(layout.words(1, head, panel) + lane * 4)
                .cast::<u32>()
                .write_unaligned(word);
            let values = block.add(layout.v_row(head, token));
            for (i, v) in v.chunks(E::PER_BYTE * LANES).enumerate() {
                for d in 0..v.len().min(LANES) {
                    let upper = v.get(LANES + d).map_or(0, |&v| map.code(v) << 4);
                    values.add(i * LANES + d).write(map.code(v[d]) | upper);
                }
            }
        }
    }
}

/// Reads one token of one head, as `kv_read` does.
///
/// # Safety
/// As `kv_read`.
pub(crate) unsafe fn read_coded<E: KvCode>(
    layout: &KvLayout,
    block: *const u8,
    kv_head: usize,
    token: usize,
    k: &mut [f32],
    v: &mut [f32],
) {
    let (panel, lane) = (token / LANES, token % LANES);
    // SAFETY: head and token lie inside the layout, whose bytes the caller promised.
    unsafe {
        let map = |part| {
            E::map(
                block
                    .add(layout.words(part, kv_head, panel) + lane * 4)
                    .cast::<u32>()
                    .read_unaligned(),
            )
        };
        let value = |map: Map, at: *const u8, upper: bool| {
            let code = match upper {
                true => f32::from(at.read() >> 4),
                false => E::read(at),
            };
            map.scale * code + map.minimum
        };
        let (keys, values) = (map(0), map(1));
        for d in 0..layout.head_dim {
            let at = block.add(layout.k_panel(kv_head, panel) + d / E::PER_BYTE * LANES + lane);
            k[d] = value(keys, at, d % E::PER_BYTE == 1);
            let piece = E::PER_BYTE * LANES;
            let at = block.add(layout.v_row(kv_head, token) + d / piece * LANES + d % LANES);
            v[d] = value(values, at, d % piece >= LANES);
        }
    }
    if E::PER_BYTE == 2 {
        turn(&mut k[..layout.head_dim]);
    }
}
