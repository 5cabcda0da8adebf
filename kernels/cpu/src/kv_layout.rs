//! The paged KV cache of one layer: the layout of a block, and what an element type must be able to. `kv` and
//! `kv_coded` write it, attention reads it.
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
    pub(crate) fn k_element(&self, kv_head: usize, token: usize, d: usize) -> usize {
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
