//! The vector of `simd` as four NEON registers. Half precision goes through the portable conversion, integer dot
//! products through 16-bit multiplies: the base instruction set has no better, and every AArch64 CPU has it.

use std::arch::aarch64::*;

use super::portable::Portable;
use super::{LANES, Simd};

/// NEON.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

type F = [float32x4_t; 4];
type I = [int32x4_t; 4];

/// Writes a method as one expression for each of the four registers.
macro_rules! quarters {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $out:ty = |$q:ident| $body:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($arg: $ty),*) -> $out {
            // SAFETY: the trait's contract: the CPU has NEON, the pointers hold 16 elements.
            unsafe {
                [
                    { let $q = 0usize; $body },
                    { let $q = 1usize; $body },
                    { let $q = 2usize; $body },
                    { let $q = 3usize; $body },
                ]
            }
        }
    )*};
}

impl Simd for Neon {
    type F = F;
    type I = I;
    const LARGE_TILES: bool = false;
    const TILES: bool = true;

    quarters! {
        fn load(p: *const f32) -> F = |q| vld1q_f32(p.add(4 * q));
        fn add(a: F, b: F) -> F = |q| vaddq_f32(a[q], b[q]);
        fn sub(a: F, b: F) -> F = |q| vsubq_f32(a[q], b[q]);
        fn mul(a: F, b: F) -> F = |q| vmulq_f32(a[q], b[q]);
        fn div(a: F, b: F) -> F = |q| vdivq_f32(a[q], b[q]);
        fn fma(a: F, b: F, c: F) -> F = |q| vfmaq_f32(c[q], a[q], b[q]);
        fn max(a: F, b: F) -> F = |q| vbslq_f32(vcgtq_f32(a[q], b[q]), a[q], b[q]);
        fn min(a: F, b: F) -> F = |q| vbslq_f32(vcltq_f32(a[q], b[q]), a[q], b[q]);
        fn select_lt(a: F, b: F, x: F, y: F) -> F = |q| vbslq_f32(vcltq_f32(a[q], b[q]), x[q], y[q]);
        fn abs(a: F) -> F = |q| vabsq_f32(a[q]);
        fn copysign(a: F, s: F) -> F = |q| vbslq_f32(vdupq_n_u32(0x8000_0000), s[q], a[q]);
        fn round_i32(a: F) -> I = |q| vcvtnq_s32_f32(a[q]);
        fn i32_to_f32(a: I) -> F = |q| vcvtq_f32_s32(a[q]);
        fn pow2(a: I) -> F = |q| vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(a[q], vdupq_n_s32(127))));
        fn load_bf16(p: *const u16) -> F = |q| vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p.add(4 * q))));
        fn load_i(p: *const u8) -> I = |q| vreinterpretq_s32_u8(vld1q_u8(p.add(16 * q)));
        fn and_i(a: I, b: I) -> I = |q| vandq_s32(a[q], b[q]);
        fn or_i(a: I, b: I) -> I = |q| vorrq_s32(a[q], b[q]);
        fn look_up(table: I, places: I) -> I = |q| vreinterpretq_s32_u8(vqtbl1q_u8(
            vreinterpretq_u8_s32(table[q]),
            vreinterpretq_u8_s32(places[q]),
        ));
        fn add_i(a: I, b: I) -> I = |q| vaddq_s32(a[q], b[q]);
    }

    #[inline(always)]
    unsafe fn sum_i(v: I) -> i32 {
        // SAFETY: the trait's contract.
        unsafe { vaddvq_s32(vaddq_s32(vaddq_s32(v[0], v[1]), vaddq_s32(v[2], v[3]))) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> F {
        // SAFETY: the trait's contract.
        unsafe { [vdupq_n_f32(x); 4] }
    }

    #[inline(always)]
    unsafe fn load_table(p: *const u8) -> I {
        // SAFETY: the trait's contract.
        unsafe { [vreinterpretq_s32_u8(vld1q_u8(p)); 4] }
    }

    #[inline(always)]
    unsafe fn splat_i(x: i32) -> I {
        // SAFETY: the trait's contract.
        unsafe { [vdupq_n_s32(x); 4] }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: F) {
        // SAFETY: 16 floats are writable at `p`.
        unsafe {
            vst1q_f32(p, v[0]);
            vst1q_f32(p.add(4), v[1]);
            vst1q_f32(p.add(8), v[2]);
            vst1q_f32(p.add(12), v[3]);
        }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> F {
        // SAFETY: the caller's pointer; the array holds 16 floats.
        unsafe { Self::load(Portable::load_f16(p).as_ptr()) }
    }

    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: F) {
        // SAFETY: the caller's pointer; the array holds 16 floats.
        unsafe { Portable::store_f16(p, lanes(v)) }
    }

    #[inline(always)]
    unsafe fn store_bf16(p: *mut u16, v: F) {
        // SAFETY: the caller's pointer; the array holds 16 floats.
        unsafe { Portable::store_bf16(p, lanes(v)) }
    }

    #[inline(always)]
    unsafe fn load_u8x16(p: *const u8) -> I {
        // SAFETY: 16 bytes are readable at `p`.
        unsafe {
            let bytes = vld1q_u8(p);
            let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
            [
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))),
                vreinterpretq_s32_u32(vmovl_high_u16(low)),
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))),
                vreinterpretq_s32_u32(vmovl_high_u16(high)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn load_i8x16(p: *const u8) -> I {
        // SAFETY: 16 bytes are readable at `p`.
        unsafe {
            let bytes = vreinterpretq_s8_u8(vld1q_u8(p));
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            [
                vmovl_s16(vget_low_s16(low)),
                vmovl_high_s16(low),
                vmovl_s16(vget_low_s16(high)),
                vmovl_high_s16(high),
            ]
        }
    }

    #[inline(always)]
    unsafe fn store_i8x16(p: *mut u8, v: I) {
        // SAFETY: 16 bytes are writable at `p`.
        unsafe {
            let low = vcombine_s16(vmovn_s32(v[0]), vmovn_s32(v[1]));
            let high = vcombine_s16(vmovn_s32(v[2]), vmovn_s32(v[3]));
            vst1q_u8(p, vreinterpretq_u8_s8(vcombine_s8(vmovn_s16(low), vmovn_s16(high))));
        }
    }

    #[inline(always)]
    unsafe fn shl<const N: u32>(a: I) -> I {
        // SAFETY: the trait's contract.
        unsafe {
            let count = vdupq_n_s32(N as i32);
            [
                vshlq_s32(a[0], count),
                vshlq_s32(a[1], count),
                vshlq_s32(a[2], count),
                vshlq_s32(a[3], count),
            ]
        }
    }

    #[inline(always)]
    unsafe fn shr<const N: u32>(a: I) -> I {
        // SAFETY: the trait's contract.
        unsafe {
            // A left shift by a negative count is a right shift.
            let count = vdupq_n_s32(-(N as i32));
            let mut out = a;
            for quarter in &mut out {
                *quarter = vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(*quarter), count));
            }
            out
        }
    }

    #[inline(always)]
    unsafe fn bytes_f32(a: I) -> [F; 4] {
        // SAFETY: the trait's contract.
        unsafe {
            let low = Self::splat_i(0xff);
            [
                Self::i32_to_f32(Self::and_i(a, low)),
                Self::i32_to_f32(Self::and_i(Self::shr::<8>(a), low)),
                Self::i32_to_f32(Self::and_i(Self::shr::<16>(a), low)),
                Self::i32_to_f32(Self::shr::<24>(a)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn nibbles_f32(a: I) -> [F; 8] {
        // SAFETY: the trait's contract.
        unsafe {
            let mask = Self::splat_i(0x0f0f_0f0f);
            let low = Self::bytes_f32(Self::and_i(a, mask));
            let high = Self::bytes_f32(Self::and_i(Self::shr::<4>(a), mask));
            [low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]]
        }
    }

    #[inline(always)]
    unsafe fn dot4<const WIDE: bool>(acc: I, w: I, x: I) -> I {
        // SAFETY: the trait's contract.
        unsafe {
            let mut out = acc;
            for q in 0..4 {
                let (w, x) = (vreinterpretq_u8_s32(w[q]), vreinterpretq_s8_s32(x[q]));
                let w_low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(w)));
                let w_high = vreinterpretq_s16_u16(vmovl_high_u8(w));
                let (x_low, x_high) = (vmovl_s8(vget_low_s8(x)), vmovl_high_s8(x));
                // One register of four products a lane; pairwise sums put each lane's total in its place.
                let first = vpaddq_s32(
                    vmull_s16(vget_low_s16(w_low), vget_low_s16(x_low)),
                    vmull_high_s16(w_low, x_low),
                );
                let second = vpaddq_s32(
                    vmull_s16(vget_low_s16(w_high), vget_low_s16(x_high)),
                    vmull_high_s16(w_high, x_high),
                );
                out[q] = vaddq_s32(out[q], vpaddq_s32(first, second));
            }
            out
        }
    }

    #[inline(always)]
    unsafe fn bf16_pair(a: I) -> [F; 2] {
        // SAFETY: the trait's contract.
        unsafe {
            let (even, odd) = (Self::shl::<16>(a), Self::and_i(a, Self::splat_i(0xffff_0000u32 as i32)));
            let mut out = [Self::splat(0.0); 2];
            for q in 0..4 {
                out[0][q] = vreinterpretq_f32_s32(even[q]);
                out[1][q] = vreinterpretq_f32_s32(odd[q]);
            }
            out
        }
    }

    #[inline(always)]
    unsafe fn dot_bf16(acc: F, w: I, x: I) -> F {
        // SAFETY: the trait's contract.
        unsafe {
            let (w, x) = (Self::bf16_pair(w), Self::bf16_pair(x));
            Self::fma(w[1], x[1], Self::fma(w[0], x[0], acc))
        }
    }
}

#[inline(always)]
unsafe fn lanes(v: F) -> [f32; LANES] {
    let mut out = [0f32; LANES];
    // SAFETY: the array holds 16 floats; the caller has NEON.
    unsafe { Neon::store(out.as_mut_ptr(), v) };
    out
}
