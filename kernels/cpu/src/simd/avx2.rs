//! The vector of `simd` as two AVX2 registers.

use std::arch::x86_64::*;

use super::{Quants, Simd, unroll, zero_point};
use crate::act::INT8_QUADS;

/// AVX2 + FMA + F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

type F = [__m256; 2];
type I = [__m256i; 2];

/// Writes methods whose body is a few intrinsics.
macro_rules! ops {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)? = $body:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($arg: $ty),*) $(-> $out)? {
            // SAFETY: the trait's contract: the CPU has the instructions, the pointers hold 16 elements.
            unsafe { $body }
        }
    )*};
}

const ROUND: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

impl Simd for Avx2 {
    type F = F;
    type I = I;
    const LARGE_TILES: bool = false;
    const TILES: bool = true;

    ops! {
        fn splat(x: f32) -> F = [_mm256_set1_ps(x); 2];
        fn load(p: *const f32) -> F = [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))];
        fn store(p: *mut f32, v: F) = { _mm256_storeu_ps(p, v[0]); _mm256_storeu_ps(p.add(8), v[1]) };
        fn add(a: F, b: F) -> F = [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])];
        fn sub(a: F, b: F) -> F = [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])];
        fn mul(a: F, b: F) -> F = [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])];
        fn div(a: F, b: F) -> F = [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])];
        fn fma(a: F, b: F, c: F) -> F = [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])];
        fn max(a: F, b: F) -> F = [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])];
        fn min(a: F, b: F) -> F = [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])];
        fn select_lt(a: F, b: F, x: F, y: F) -> F = [
            _mm256_blendv_ps(y[0], x[0], _mm256_cmp_ps::<_CMP_LT_OQ>(a[0], b[0])),
            _mm256_blendv_ps(y[1], x[1], _mm256_cmp_ps::<_CMP_LT_OQ>(a[1], b[1])),
        ];
        fn abs(a: F) -> F = [_mm256_andnot_ps(sign(), a[0]), _mm256_andnot_ps(sign(), a[1])];
        fn copysign(a: F, s: F) -> F = [
            _mm256_or_ps(_mm256_andnot_ps(sign(), a[0]), _mm256_and_ps(sign(), s[0])),
            _mm256_or_ps(_mm256_andnot_ps(sign(), a[1]), _mm256_and_ps(sign(), s[1])),
        ];
        fn round_i32(a: F) -> I = [
            _mm256_cvtps_epi32(_mm256_round_ps::<ROUND>(a[0])),
            _mm256_cvtps_epi32(_mm256_round_ps::<ROUND>(a[1])),
        ];
        fn i32_to_f32(a: I) -> F = [_mm256_cvtepi32_ps(a[0]), _mm256_cvtepi32_ps(a[1])];
        fn pow2(a: I) -> F = [pow2_half(a[0]), pow2_half(a[1])];
        fn load_f16(p: *const u16) -> F =
            [_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast()))];
        fn load_bf16(p: *const u16) -> F = [bf16_half(p), bf16_half(p.add(8))];
        fn store_f16(p: *mut u16, v: F) = {
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[0]));
            _mm_storeu_si128(p.add(8).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[1]))
        };
        fn store_bf16(p: *mut u16, v: F) = _mm256_storeu_si256(
            p.cast(),
            _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(round_bf16(v[0]), round_bf16(v[1])))
        );
        fn splat_i(x: i32) -> I = [_mm256_set1_epi32(x); 2];
        fn load_i(p: *const u8) -> I = [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())];
        fn load_u8x16(p: *const u8) -> I =
            [_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())), _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(8).cast()))];
        fn load_i8x16(p: *const u8) -> I =
            [_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())), _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.add(8).cast()))];
        fn store_i8x16(p: *mut u8, v: I) = {
            _mm_storel_epi64(p.cast(), low_bytes(v[0]));
            _mm_storel_epi64(p.add(8).cast(), low_bytes(v[1]))
        };
        fn and_i(a: I, b: I) -> I = [_mm256_and_si256(a[0], b[0]), _mm256_and_si256(a[1], b[1])];
        fn or_i(a: I, b: I) -> I = [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])];
        fn load_table(p: *const u8) -> I = [_mm256_broadcastsi128_si256(_mm_loadu_si128(p.cast())); 2];
        fn look_up(table: I, places: I) -> I =
            [_mm256_shuffle_epi8(table[0], places[0]), _mm256_shuffle_epi8(table[1], places[1])];
        fn add_i(a: I, b: I) -> I = [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])];
        fn sum_i(v: I) -> i32 = {
            let eight = _mm256_add_epi32(v[0], v[1]);
            let four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256::<1>(eight));
            let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
            _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two)))
        };
        fn bf16_pair(a: I) -> [F; 2] = {
            let high = _mm256_set1_epi32(0xffff_0000u32 as i32);
            [
                [
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(a[0])),
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(a[1])),
                ],
                [
                    _mm256_castsi256_ps(_mm256_and_si256(a[0], high)),
                    _mm256_castsi256_ps(_mm256_and_si256(a[1], high)),
                ],
            ]
        };
        fn dot_bf16(acc: F, w: I, x: I) -> F = {
            let (w, x) = (Self::bf16_pair(w), Self::bf16_pair(x));
            Self::fma(w[1], x[1], Self::fma(w[0], x[0], acc))
        };
        fn bytes_f32(a: I) -> [F; 4] = {
            let low = _mm256_set1_epi32(0xff);
            let mut out = [[_mm256_setzero_ps(); 2]; 4];
            for half in 0..2 {
                let v = a[half];
                out[0][half] = _mm256_cvtepi32_ps(_mm256_and_si256(v, low));
                out[1][half] = _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32::<8>(v), low));
                out[2][half] = _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32::<16>(v), low));
                out[3][half] = _mm256_cvtepi32_ps(_mm256_srli_epi32::<24>(v));
            }
            out
        };
        fn nibbles_f32(a: I) -> [F; 8] = {
            let mask = Self::splat_i(0x0f0f_0f0f);
            let low = Self::bytes_f32(Self::and_i(a, mask));
            let high = Self::bytes_f32(Self::and_i(Self::shr::<4>(a), mask));
            [low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]]
        };
    }

    #[inline(always)]
    unsafe fn shl<const N: u32>(a: I) -> I {
        // SAFETY: the trait's contract.
        unsafe {
            let count = _mm_cvtsi32_si128(N as i32);
            [_mm256_sll_epi32(a[0], count), _mm256_sll_epi32(a[1], count)]
        }
    }

    #[inline(always)]
    unsafe fn shr<const N: u32>(a: I) -> I {
        // SAFETY: the trait's contract.
        unsafe {
            let count = _mm_cvtsi32_si128(N as i32);
            [_mm256_srl_epi32(a[0], count), _mm256_srl_epi32(a[1], count)]
        }
    }

    #[inline(always)]
    unsafe fn dot4<const WIDE: bool>(acc: I, w: I, x: I) -> I {
        // SAFETY: the trait's contract.
        unsafe {
            [
                dot4_half::<WIDE>(acc[0], w[0], x[0]),
                dot4_half::<WIDE>(acc[1], w[1], x[1]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn dots<const G: usize, const C: usize>(
        w: &[I; G],
        quants: Quants,
        x: *const i32,
        negative_sums: *const i32,
    ) -> [I; C] {
        // SAFETY: the trait's contract.
        unsafe {
            if quants.max > 127 {
                return dots_wide(w, x);
            }
            let one = _mm256_set1_epi16(1);
            let together = quads_in_16_bits(quants.max).min(G);
            let mut sums = [[_mm256_setzero_si256(); 2]; C];
            unroll!(t in 0..C => { sums[t] = zero_point::<Self>(quants, *negative_sums.add(t)); });
            let mut pairs = [[_mm256_setzero_si256(); 2]; C];
            unroll!(g in 0..G => {
                unroll!(t in 0..C => {
                    let x = _mm256_set1_epi32(*x.add(t * INT8_QUADS + g));
                    for half in 0..2 {
                        let product = _mm256_maddubs_epi16(w[g][half], x);
                        pairs[t][half] = match g.is_multiple_of(together) {
                            true => product,
                            false => _mm256_add_epi16(pairs[t][half], product),
                        };
                    }
                });
                if g % together == together - 1 || g == G - 1 {
                    unroll!(t in 0..C => {
                        for half in 0..2 {
                            let pair = _mm256_madd_epi16(pairs[t][half], one);
                            sums[t][half] = _mm256_add_epi32(sums[t][half], pair);
                        }
                    });
                }
            });
            sums
        }
    }
}

/// Quads whose products of pairs add up in 16 bits: a pair is at most 2 · 127 · `max`.
const fn quads_in_16_bits(max: u32) -> usize {
    (i16::MAX as u32 / (2 * 127 * max)) as usize
}

#[inline(always)]
unsafe fn sign() -> __m256 {
    // SAFETY: the caller has AVX2.
    unsafe { _mm256_castsi256_ps(_mm256_set1_epi32(i32::MIN)) }
}

#[inline(always)]
unsafe fn pow2_half(a: __m256i) -> __m256 {
    // SAFETY: the caller has AVX2.
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(a, _mm256_set1_epi32(127)))) }
}

#[inline(always)]
unsafe fn bf16_half(p: *const u16) -> __m256 {
    // SAFETY: the caller has AVX2 and 8 halves at `p`.
    unsafe {
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(
            p.cast(),
        ))))
    }
}

/// Each lane's bf16 bits in its low half, rounded to nearest even.
#[inline(always)]
unsafe fn round_bf16(v: __m256) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe {
        let bits = _mm256_castps_si256(v);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
        _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan))
    }
}

/// The low byte of each of 8 lanes, in the low 8 bytes.
#[inline(always)]
unsafe fn low_bytes(v: __m256i) -> __m128i {
    // SAFETY: the caller has AVX2.
    unsafe {
        let pick = _mm256_setr_epi8(
            0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1,
            -1, -1, -1, -1,
        );
        let picked = _mm256_shuffle_epi8(v, pick);
        _mm_unpacklo_epi32(_mm256_castsi256_si128(picked), _mm256_extracti128_si256::<1>(picked))
    }
}

/// `dots` of weights up to 255, whose zero is 128: less that, they are signed, and pairs of their products fit 16 bits.
#[inline(always)]
unsafe fn dots_wide<const G: usize, const C: usize>(w: &[I; G], x: *const i32) -> [I; C] {
    // SAFETY: the caller has AVX2; the rest is the trait's contract.
    unsafe {
        let (one, zero) = (_mm256_set1_epi16(1), _mm256_set1_epi8(i8::MIN));
        let mut sums = [[_mm256_setzero_si256(); 2]; C];
        unroll!(g in 0..G => {
            let signed = [_mm256_xor_si256(w[g][0], zero), _mm256_xor_si256(w[g][1], zero)];
            // 128 as an unsigned byte is right, too.
            let size = [_mm256_abs_epi8(signed[0]), _mm256_abs_epi8(signed[1])];
            unroll!(t in 0..C => {
                let x = _mm256_set1_epi32(*x.add(t * INT8_QUADS + g));
                for half in 0..2 {
                    let pairs = _mm256_maddubs_epi16(size[half], _mm256_sign_epi8(x, signed[half]));
                    sums[t][half] = _mm256_add_epi32(sums[t][half], _mm256_madd_epi16(pairs, one));
                }
            });
        });
        sums
    }
}

#[inline(always)]
unsafe fn dot4_half<const WIDE: bool>(acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe {
        if WIDE {
            // Pairs of u8·i8 may pass i16: split into even and odd bytes and multiply as i16.
            let even = _mm256_madd_epi16(
                _mm256_and_si256(w, _mm256_set1_epi16(0xff)),
                _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x)),
            );
            let odd = _mm256_madd_epi16(_mm256_srli_epi16::<8>(w), _mm256_srai_epi16::<8>(x));
            _mm256_add_epi32(acc, _mm256_add_epi32(even, odd))
        } else {
            let pairs = _mm256_maddubs_epi16(w, x);
            _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }
}
