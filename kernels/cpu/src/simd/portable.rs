//! The vector of `simd` in plain Rust, which the compiler vectorises as it can. Owns the meaning of every operation:
//! the intrinsic versions are tested against it.

use half::{bf16, f16};

use super::{LANES, Simd};

/// Plain Rust.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

/// Writes one method as a loop over the lanes. The bodies are safe code: `unsafe` is the trait's signature only.
macro_rules! lanewise {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty = |$i:ident| $body:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($arg: $ty),*) -> $out {
            let mut out: $out = [Default::default(); LANES];
            for $i in 0..LANES {
                out[$i] = $body;
            }
            out
        }
    )*};
}

#[inline(always)]
fn mul_add(a: f32, b: f32, c: f32) -> f32 {
    // Without a fused instruction `mul_add` is a slow library call.
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

type F = [f32; LANES];
type I = [i32; LANES];

impl Simd for Portable {
    type F = F;
    type I = I;
    const LARGE_TILES: bool = false;
    const TILES: bool = false;

    lanewise! {
        add(a: F, b: F) -> F = |i| a[i] + b[i];
        sub(a: F, b: F) -> F = |i| a[i] - b[i];
        mul(a: F, b: F) -> F = |i| a[i] * b[i];
        div(a: F, b: F) -> F = |i| a[i] / b[i];
        fma(a: F, b: F, c: F) -> F = |i| mul_add(a[i], b[i], c[i]);
        max(a: F, b: F) -> F = |i| if a[i] > b[i] { a[i] } else { b[i] };
        min(a: F, b: F) -> F = |i| if a[i] < b[i] { a[i] } else { b[i] };
        select_lt(a: F, b: F, x: F, y: F) -> F = |i| if a[i] < b[i] { x[i] } else { y[i] };
        abs(a: F) -> F = |i| f32::from_bits(a[i].to_bits() & 0x7fff_ffff);
        copysign(a: F, s: F) -> F = |i| f32::from_bits((a[i].to_bits() & 0x7fff_ffff) | (s[i].to_bits() & 0x8000_0000));
        round_i32(a: F) -> I = |i| a[i].round_ties_even() as i32;
        i32_to_f32(a: I) -> F = |i| a[i] as f32;
        pow2(a: I) -> F = |i| f32::from_bits((a[i].wrapping_add(127) as u32) << 23);
        and_i(a: I, b: I) -> I = |i| a[i] & b[i];
        or_i(a: I, b: I) -> I = |i| a[i] | b[i];
        add_i(a: I, b: I) -> I = |i| a[i].wrapping_add(b[i]);
    }

    #[inline(always)]
    unsafe fn sum_i(v: I) -> i32 {
        v.into_iter().fold(0, i32::wrapping_add)
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> F {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn splat_i(x: i32) -> I {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> F {
        // SAFETY: 16 floats are readable at `p`.
        unsafe { p.cast::<F>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: F) {
        // SAFETY: 16 floats are writable at `p`.
        unsafe { p.cast::<F>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> F {
        // SAFETY: 16 halves are readable at `p`.
        let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        let mut out = [0f32; LANES];
        for i in 0..LANES {
            out[i] = f16::from_bits(bits[i]).to_f32();
        }
        out
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> F {
        // SAFETY: 16 halves are readable at `p`.
        let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        let mut out = [0f32; LANES];
        for i in 0..LANES {
            out[i] = f32::from_bits(u32::from(bits[i]) << 16);
        }
        out
    }

    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: F) {
        let mut bits = [0u16; LANES];
        for i in 0..LANES {
            bits[i] = f16::from_f32(v[i]).to_bits();
        }
        // SAFETY: 16 halves are writable at `p`.
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(bits) }
    }

    #[inline(always)]
    unsafe fn store_bf16(p: *mut u16, v: F) {
        let mut bits = [0u16; LANES];
        for i in 0..LANES {
            bits[i] = bf16::from_f32(v[i]).to_bits();
        }
        // SAFETY: 16 halves are writable at `p`.
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(bits) }
    }

    #[inline(always)]
    unsafe fn load_i(p: *const u8) -> I {
        // SAFETY: 64 bytes are readable at `p`.
        unsafe { p.cast::<I>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_u8x16(p: *const u8) -> I {
        // SAFETY: 16 bytes are readable at `p`.
        let bytes = unsafe { p.cast::<[u8; LANES]>().read_unaligned() };
        let mut out = [0i32; LANES];
        for i in 0..LANES {
            out[i] = i32::from(bytes[i]);
        }
        out
    }

    #[inline(always)]
    unsafe fn load_i8x16(p: *const u8) -> I {
        // SAFETY: 16 bytes are readable at `p`.
        let bytes = unsafe { p.cast::<[i8; LANES]>().read_unaligned() };
        let mut out = [0i32; LANES];
        for i in 0..LANES {
            out[i] = i32::from(bytes[i]);
        }
        out
    }

    #[inline(always)]
    unsafe fn store_i8x16(p: *mut u8, v: I) {
        let mut bytes = [0u8; LANES];
        for i in 0..LANES {
            bytes[i] = v[i] as u8;
        }
        // SAFETY: 16 bytes are writable at `p`.
        unsafe { p.cast::<[u8; LANES]>().write_unaligned(bytes) }
    }

    #[inline(always)]
    unsafe fn shl<const N: u32>(a: I) -> I {
        let mut out = a;
        for lane in &mut out {
            *lane <<= N;
        }
        out
    }

    #[inline(always)]
    unsafe fn shr<const N: u32>(a: I) -> I {
        let mut out = a;
        for lane in &mut out {
            *lane = ((*lane as u32) >> N) as i32;
        }
        out
    }

    #[inline(always)]
    unsafe fn load_table(p: *const u8) -> I {
        // SAFETY: 16 bytes are readable at `p`.
        let bytes = unsafe { p.cast::<[[u8; 4]; 4]>().read_unaligned() };
        let mut out = [0i32; LANES];
        for i in 0..LANES {
            out[i] = i32::from_le_bytes(bytes[i % 4]);
        }
        out
    }

    #[inline(always)]
    unsafe fn look_up(table: I, places: I) -> I {
        let mut out = [0i32; LANES];
        for i in 0..LANES {
            let mut bytes = places[i].to_le_bytes();
            for byte in &mut bytes {
                let place = usize::from(*byte & 15);
                *byte = table[i / 4 * 4 + place / 4].to_le_bytes()[place % 4];
            }
            out[i] = i32::from_le_bytes(bytes);
        }
        out
    }

    #[inline(always)]
    unsafe fn bytes_f32(a: I) -> [F; 4] {
        let mut out = [[0f32; LANES]; 4];
        for (j, vector) in out.iter_mut().enumerate() {
            for i in 0..LANES {
                vector[i] = ((a[i] as u32 >> (8 * j)) & 0xff) as f32;
            }
        }
        out
    }

    #[inline(always)]
    unsafe fn nibbles_f32(a: I) -> [F; 8] {
        let mut out = [[0f32; LANES]; 8];
        for (j, vector) in out.iter_mut().enumerate() {
            let shift = 8 * (j % 4) + 4 * (j / 4);
            for i in 0..LANES {
                vector[i] = ((a[i] as u32 >> shift) & 0xf) as f32;
            }
        }
        out
    }

    #[inline(always)]
    unsafe fn dot4<const WIDE: bool>(acc: I, w: I, x: I) -> I {
        let mut out = acc;
        for i in 0..LANES {
            let (wb, xb) = (w[i].to_le_bytes(), x[i].to_le_bytes());
            for j in 0..4 {
                out[i] += i32::from(wb[j]) * i32::from(xb[j] as i8);
            }
        }
        out
    }

    #[inline(always)]
    unsafe fn bf16_pair(a: I) -> [F; 2] {
        let mut out = [[0f32; LANES]; 2];
        for i in 0..LANES {
            out[0][i] = f32::from_bits((a[i] as u32) << 16);
            out[1][i] = f32::from_bits(a[i] as u32 & 0xffff_0000);
        }
        out
    }

    #[inline(always)]
    unsafe fn dot_bf16(acc: F, w: I, x: I) -> F {
        // SAFETY: plain Rust needs no instruction set.
        unsafe {
            let (w, x) = (Self::bf16_pair(w), Self::bf16_pair(x));
            Self::fma(w[1], x[1], Self::fma(w[0], x[0], acc))
        }
    }
}
