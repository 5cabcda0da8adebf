//! Writing one token into a block of the KV cache (`kv_layout`) and reading it back, and the element types that mean a
//! number by themselves.

use half::{bf16, f16};

use crate::e4m3::{e4m3_from_f32, e4m3_to_f32};
use crate::kv_coded::{I8, MAX_U4_HEAD_DIM, U4, read_coded, write_coded};
use crate::kv_layout::{KvDtype, KvElement, KvLayout, KvNumber};
use crate::simd::{LANES, Simd};

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
