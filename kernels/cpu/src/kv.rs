//! The paged KV cache of one layer: the layout of a block, and writing one token into it. Owns the layout; the
//! attention kernel reads it.
//!
//! A block of `block_size` tokens is a K part followed by a V part, element type [`KvDtype`]:
//! - K \[kv_head\]\[panel\]\[head_dim\]\[16\]: panels of 16 tokens, token fastest, so that one vector holds one
//!   dimension of 16 keys and q·K needs no sums across lanes. A last panel of fewer tokens is padded.
//! - V \[kv_head\]\[token\]\[head_dim\]: one vector holds 16 dimensions of one token.
//!
//! In bf16 both lie in pairs, as dot products of bf16 read them: K \[kv_head\]\[panel\]\[head_dim / 2\]\[16\]\[2\]
//! pairs dimensions (an odd last one with a zero), V \[kv_head\]\[token / 2\]\[head_dim\]\[2\] pairs tokens.
//!
//! Codes of 8 and 4 bits have a layout of their own, with the words of their scales behind all codes: `kv_coded`.
//!
//! Best with a `block_size` that is a multiple of 16; any other works. Nothing needs to be cleared: slots that were
//! never written are never used.

use half::{bf16, f16};

use crate::e4m3::{e4m3_from_f32, e4m3_to_f32};
use crate::kv_coded::{I8, MAX_U4_HEAD_DIM, U4, read_coded, write_coded};
use crate::simd::{LANES, Simd};

/// Element type of a KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum KvDtype {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// 8-bit float, 4 exponent and 3 mantissa bits, scale 1.
    E4m3,
    /// Codes of 8 bits, with a scale for each token and head.
    I8,
    /// Codes of 4 bits, with a scale and a minimum for each token and head.
    U4,
}

impl KvDtype {
    /// Every dtype.
    pub const ALL: [KvDtype; 6] = [
        KvDtype::F32,
        KvDtype::F16,
        KvDtype::Bf16,
        KvDtype::E4m3,
        KvDtype::I8,
        KvDtype::U4,
    ];
    /// Those whose elements stand alone: what latents are held in.
    pub const FLOATS: [KvDtype; 4] = [KvDtype::F32, KvDtype::F16, KvDtype::Bf16, KvDtype::E4m3];

    /// Bytes of an element; of U4, of the two that share it.
    pub const fn bytes(self) -> usize {
        match self {
            KvDtype::F32 => 4,
            KvDtype::F16 | KvDtype::Bf16 => 2,
            KvDtype::E4m3 | KvDtype::I8 | KvDtype::U4 => 1,
        }
    }

    /// Whether elements are codes that mean something with their token's scale only.
    pub const fn is_coded(self) -> bool {
        matches!(self, KvDtype::I8 | KvDtype::U4)
    }
}

/// Shape of one layer's block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvLayout {
    /// Element type.
    pub dtype: KvDtype,
    /// Tokens in a block, at least 1.
    pub block_size: usize,
    /// KV heads.
    pub num_kv_heads: usize,
    /// Elements of a head, K and V alike.
    pub head_dim: usize,
}

impl KvLayout {
    /// Panels of 16 keys in a block.
    #[inline(always)]
    pub(crate) const fn panels(&self) -> usize {
        self.block_size.div_ceil(LANES)
    }

    /// Whether elements lie in pairs.
    #[inline(always)]
    const fn in_pairs(&self) -> bool {
        matches!(self.dtype, KvDtype::Bf16)
    }

    /// Elements of one key as stored.
    #[inline(always)]
    const fn key_dim(&self) -> usize {
        match self.dtype {
            KvDtype::Bf16 => self.head_dim.next_multiple_of(2),
            KvDtype::U4 => self.head_dim.div_ceil(2),
            _ => self.head_dim,
        }
    }

    /// Elements of one token's values as stored.
    #[inline(always)]
    pub(crate) const fn value_dim(&self) -> usize {
        match self.dtype {
            // Whole vectors of 16 codes, and of 32 where a byte holds two.
            KvDtype::I8 => self.head_dim.next_multiple_of(LANES),
            KvDtype::U4 => self.head_dim.next_multiple_of(2 * LANES) / 2,
            _ => self.head_dim,
        }
    }

    /// Elements of one head's K in a block.
    #[inline(always)]
    const fn k_head(&self) -> usize {
        self.panels() * LANES * self.key_dim()
    }

    /// Elements of one head's V in a block.
    #[inline(always)]
    const fn v_head(&self) -> usize {
        let tokens = if self.in_pairs() {
            self.block_size.next_multiple_of(2)
        } else {
            self.block_size
        };
        tokens * self.value_dim()
    }

    /// Bytes of the K part.
    pub const fn k_bytes(&self) -> usize {
        self.num_kv_heads * self.k_head() * self.dtype.bytes()
    }

    /// Bytes of K and V, without words of scales.
    #[inline(always)]
    const fn element_bytes(&self) -> usize {
        self.k_bytes() + self.num_kv_heads * self.v_head() * self.dtype.bytes()
    }

    /// Bytes of a block: K and V of `block_size` tokens.
    pub const fn block_bytes(&self) -> usize {
        if self.dtype.is_coded() {
            // Scales of keys and of values, a word of 4 bytes each.
            let words = 2 * self.num_kv_heads * self.panels() * LANES;
            self.element_bytes() + words * 4
        } else {
            self.element_bytes()
        }
    }

    /// Byte offset, inside a block, of the words that the keys (`part` 0) or values (`part` 1) of a panel's 16 tokens
    /// are scaled by (codes only).
    #[inline(always)]
    pub(crate) const fn words(&self, part: usize, kv_head: usize, panel: usize) -> usize {
        let before = (part * self.num_kv_heads + kv_head) * self.panels() + panel;
        self.element_bytes() + before * LANES * 4
    }

    /// Byte offset, inside a block, of a panel of keys.
    #[inline(always)]
    pub(crate) const fn k_panel(&self, kv_head: usize, panel: usize) -> usize {
        (kv_head * self.k_head() + panel * LANES * self.key_dim()) * self.dtype.bytes()
    }

    /// Byte offset, inside a block, of one token's values (not in pairs).
    #[inline(always)]
    pub(crate) const fn v_row(&self, kv_head: usize, token: usize) -> usize {
        self.k_bytes() + (kv_head * self.v_head() + token * self.value_dim()) * self.dtype.bytes()
    }

    /// Byte offset, inside a block, of the values of tokens 2·`pair` and 2·`pair` + 1 (in pairs).
    #[inline(always)]
    pub(crate) const fn v_pair(&self, kv_head: usize, pair: usize) -> usize {
        self.k_bytes() + (kv_head * self.v_head() + 2 * pair * self.head_dim) * self.dtype.bytes()
    }

    /// Byte offset, inside a block, of one element of a key.
    #[inline(always)]
    fn k_element(&self, kv_head: usize, token: usize, d: usize) -> usize {
        let lane = token % LANES;
        let index = if self.in_pairs() {
            (d / 2 * LANES + lane) * 2 + d % 2
        } else {
            d * LANES + lane
        };
        self.k_panel(kv_head, token / LANES) + index * self.dtype.bytes()
    }

    /// Byte offset, inside a block, of one element of a value.
    #[inline(always)]
    pub(crate) fn v_element(&self, kv_head: usize, token: usize, d: usize) -> usize {
        if self.in_pairs() {
            self.v_pair(kv_head, token / 2) + (2 * d + token % 2) * self.dtype.bytes()
        } else {
            self.v_row(kv_head, token) + d * self.dtype.bytes()
        }
    }
}

/// An element type as kernels read it.
pub(crate) trait KvElement: 'static {
    const BYTES: usize;
    /// Lies in pairs, for dot products of bf16.
    const PAIRS: bool = false;
    /// Is a code: `attention_coded` reads it, and nothing else.
    const CODED: bool = false;
    /// Codes in a byte.
    const PER_BYTE: usize = 1;
    /// 16 elements at `p`; where a byte holds two, those in its lower half.
    unsafe fn load<S: Simd>(p: *const u8) -> S::F;
    /// Where a byte holds two elements: those in the upper halves of 16 bytes.
    #[inline(always)]
    unsafe fn load_upper<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { Self::load::<S>(p) }
    }
    /// One element.
    unsafe fn read(p: *const u8) -> f32;
}

/// An element type that means a number by itself.
pub(crate) trait KvNumber: KvElement {
    /// One element.
    unsafe fn write(p: *mut u8, v: f32);
}

impl KvElement for f32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: the caller has 16 elements at `p`.
        unsafe { S::load(p.cast()) }
    }
    #[inline(always)]
    unsafe fn read(p: *const u8) -> f32 {
        // SAFETY: the caller has an element at `p`.
        unsafe { p.cast::<f32>().read_unaligned() }
    }
}

impl KvNumber for f32 {
    #[inline(always)]
    unsafe fn write(p: *mut u8, v: f32) {
        // SAFETY: the caller has an element at `p`.
        unsafe { p.cast::<f32>().write_unaligned(v) }
    }
}

impl KvElement for f16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: the caller has 16 elements at `p`.
        unsafe { S::load_f16(p.cast()) }
    }
    #[inline(always)]
    unsafe fn read(p: *const u8) -> f32 {
        // SAFETY: the caller has an element at `p`.
        f16::from_bits(unsafe { p.cast::<u16>().read_unaligned() }).to_f32()
    }
}

impl KvNumber for f16 {
    #[inline(always)]
    unsafe fn write(p: *mut u8, v: f32) {
        // SAFETY: the caller has an element at `p`.
        unsafe { p.cast::<u16>().write_unaligned(f16::from_f32(v).to_bits()) }
    }
}

impl KvElement for bf16 {
    const BYTES: usize = 2;
    const PAIRS: bool = true;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: the caller has 16 elements at `p`.
        unsafe { S::load_bf16(p.cast()) }
    }
    #[inline(always)]
    unsafe fn read(p: *const u8) -> f32 {
        // SAFETY: the caller has an element at `p`.
        bf16::from_bits(unsafe { p.cast::<u16>().read_unaligned() }).to_f32()
    }
}

impl KvNumber for bf16 {
    #[inline(always)]
    unsafe fn write(p: *mut u8, v: f32) {
        // SAFETY: the caller has an element at `p`.
        unsafe { p.cast::<u16>().write_unaligned(bf16::from_f32(v).to_bits()) }
    }
}

/// 16 codes as f32.
///
/// # Safety
/// The CPU has `S`'s instruction set; 16 bytes are readable at `p`.
#[inline(always)]
unsafe fn load_e4m3<S: Simd>(p: *const u8) -> S::F {
    // SAFETY: the caller's promise.
    unsafe {
        let codes = S::load_u8x16(p);
        let magnitude = S::and_i(codes, S::splat_i(0x7F));
        let number = S::i32_to_f32(magnitude);
        // Exponent field 112 + e: the value over 2^8, and never a subnormal of f32, which would be slow. The second of
        // a pair keeps the bits.
        let bits = S::or_i(S::shl::<20>(magnitude), S::splat_i(0x70 << 23));
        let normal = S::mul(S::bf16_pair(bits)[1], S::splat(256.0));
        let subnormal = S::mul(number, S::splat(1.0 / 512.0));
        let value = S::select_lt(number, S::splat(8.0), subnormal, normal);
        let value = S::select_lt(S::splat(126.5), number, S::splat(f32::NAN), value);
        S::copysign(value, S::bf16_pair(S::shl::<24>(codes))[1])
    }
}

/// An 8-bit float as bits.
pub(crate) struct E4m3;

impl KvElement for E4m3 {
    const BYTES: usize = 1;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: the caller has 16 elements at `p`.
        unsafe { load_e4m3::<S>(p) }
    }
    #[inline(always)]
    unsafe fn read(p: *const u8) -> f32 {
        // SAFETY: the caller has an element at `p`.
        e4m3_to_f32(unsafe { p.read() })
    }
}

impl KvNumber for E4m3 {
    #[inline(always)]
    unsafe fn write(p: *mut u8, v: f32) {
        // SAFETY: the caller has an element at `p`.
        unsafe { p.write(e4m3_from_f32(v)) }
    }
}

/// Writes one token's K and V, all heads, into slot `token` of `block`. `k` and `v` are
/// \[num_kv_heads, head_dim\] f32, contiguous.
///
/// # Safety
/// `block` points to `layout.block_bytes()` writable bytes that no other thread touches in this token's slot.
///
/// # Panics
/// If `token` lies outside the block, `k` or `v` is shorter than num_kv_heads · head_dim, or a head in U4 has more than
/// [`MAX_U4_HEAD_DIM`] elements.
pub unsafe fn kv_write(layout: &KvLayout, block: *mut u8, token: usize, k: &[f32], v: &[f32]) {
    let elements = layout.num_kv_heads * layout.head_dim;
    assert!(
        token < layout.block_size,
        "slot {token} of a block of {}",
        layout.block_size
    );
    assert!(
        k.len() >= elements && v.len() >= elements,
        "K and V of {elements} elements"
    );
    assert!(
        layout.dtype != KvDtype::U4 || layout.head_dim <= MAX_U4_HEAD_DIM,
        "heads of {} elements in U4",
        layout.head_dim
    );
    // SAFETY: checked above.
    unsafe {
        match layout.dtype {
            KvDtype::F32 => write_token::<f32>(layout, block, token, k, v),
            KvDtype::F16 => write_token::<f16>(layout, block, token, k, v),
            KvDtype::Bf16 => write_token_pairs(layout, block, token, k, v),
            KvDtype::E4m3 => write_token::<E4m3>(layout, block, token, k, v),
            KvDtype::I8 => write_coded::<I8>(layout, block, token, k, v),
            KvDtype::U4 => write_coded::<U4>(layout, block, token, k, v),
        }
    }
}

unsafe fn write_token<E: KvNumber>(layout: &KvLayout, block: *mut u8, token: usize, k: &[f32], v: &[f32]) {
    let dim = layout.head_dim;
    for head in 0..layout.num_kv_heads {
        // SAFETY: head and token lie inside the layout, whose bytes the caller promised.
        unsafe {
            let keys = block.add(layout.k_panel(head, token / LANES) + token % LANES * E::BYTES);
            let values = block.add(layout.v_row(head, token));
            for d in 0..dim {
                E::write(keys.add(d * LANES * E::BYTES), k[head * dim + d]);
                E::write(values.add(d * E::BYTES), v[head * dim + d]);
            }
        }
    }
}

/// `write_token` for elements in pairs.
unsafe fn write_token_pairs(layout: &KvLayout, block: *mut u8, token: usize, k: &[f32], v: &[f32]) {
    let dim = layout.head_dim;
    for head in 0..layout.num_kv_heads {
        let (k, v) = (&k[head * dim..(head + 1) * dim], &v[head * dim..(head + 1) * dim]);
        // SAFETY: head and token lie inside the layout, whose bytes the caller promised.
        unsafe {
            let mut keys = block.add(layout.k_element(head, token, 0)).cast::<[bf16; 2]>();
            for pair in k.chunks(2) {
                let second = pair.get(1).copied().unwrap_or(0.0);
                keys.write_unaligned([bf16::from_f32(pair[0]), bf16::from_f32(second)]);
                keys = keys.wrapping_add(LANES);
            }
            let mut values = block.add(layout.v_element(head, token, 0)).cast::<bf16>();
            for &v in v {
                values.write_unaligned(bf16::from_f32(v));
                values = values.wrapping_add(2);
            }
        }
    }
}

/// Reads back what `kv_write` wrote: one token's K and V of one head, \[head_dim\] f32 each.
///
/// # Safety
/// `block` points to `layout.block_bytes()` readable bytes.
///
/// # Panics
/// If `token` or `kv_head` lies outside the block, or an output is shorter than head_dim.
pub unsafe fn kv_read(layout: &KvLayout, block: *const u8, kv_head: usize, token: usize, k: &mut [f32], v: &mut [f32]) {
    assert!(
        token < layout.block_size && kv_head < layout.num_kv_heads,
        "token {token}, head {kv_head}"
    );
    assert!(
        k.len() >= layout.head_dim && v.len() >= layout.head_dim,
        "outputs of {} elements",
        layout.head_dim
    );
    // SAFETY: checked above.
    unsafe {
        match layout.dtype {
            KvDtype::F32 => read_token::<f32>(layout, block, kv_head, token, k, v),
            KvDtype::F16 => read_token::<f16>(layout, block, kv_head, token, k, v),
            KvDtype::Bf16 => read_token::<bf16>(layout, block, kv_head, token, k, v),
            KvDtype::E4m3 => read_token::<E4m3>(layout, block, kv_head, token, k, v),
            KvDtype::I8 => read_coded::<I8>(layout, block, kv_head, token, k, v),
            KvDtype::U4 => read_coded::<U4>(layout, block, kv_head, token, k, v),
        }
    }
}

unsafe fn read_token<E: KvNumber>(
    layout: &KvLayout,
    block: *const u8,
    kv_head: usize,
    token: usize,
    k: &mut [f32],
    v: &mut [f32],
) {
    // SAFETY: head and token lie inside the layout, whose bytes the caller promised.
    unsafe {
        for d in 0..layout.head_dim {
            k[d] = E::read(block.add(layout.k_element(kv_head, token, d)));
            v[d] = E::read(block.add(layout.v_element(kv_head, token, d)));
        }
    }
}
