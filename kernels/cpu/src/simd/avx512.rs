//! The vector of `simd` as one AVX-512 register, in three sets: base (F, BW, DQ, VL), with VNNI, with VNNI and BF16.
//! The sets differ in the two dot products only.

use std::arch::x86_64::*;

use super::Simd;

/// AVX-512 F + BW + DQ + VL, over AVX2 + FMA + F16C; `VNNI` and `BF16` add their dot products.
#[derive(Clone, Copy)]
pub(crate) struct Avx512<const VNNI: bool, const BF16: bool>;

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

impl<const VNNI: bool, const BF16: bool> Simd for Avx512<VNNI, BF16> {
    type F = __m512;
    type I = __m512i;
    const LARGE_TILES: bool = true;
    const TILES: bool = true;

    ops! {
        fn splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        fn load(p: *const f32) -> __m512 = _mm512_loadu_ps(p);
        fn store(p: *mut f32, v: __m512) = _mm512_storeu_ps(p, v);
        fn add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        fn sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        fn mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        fn div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
        fn fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        fn max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        fn min(a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b);
        fn select_lt(a: __m512, b: __m512, x: __m512, y: __m512) -> __m512 =
            _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), y, x);
        fn abs(a: __m512) -> __m512 = _mm512_abs_ps(a);
        fn copysign(a: __m512, s: __m512) -> __m512 = _mm512_castsi512_ps(_mm512_ternarylogic_epi32::<0xca>(
            _mm512_set1_epi32(i32::MIN), _mm512_castps_si512(s), _mm512_castps_si512(a)));
        fn round_i32(a: __m512) -> __m512i = _mm512_cvt_roundps_epi32::<ROUND>(a);
        fn i32_to_f32(a: __m512i) -> __m512 = _mm512_cvtepi32_ps(a);
        fn pow2(a: __m512i) -> __m512 =
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(a, _mm512_set1_epi32(127))));
        fn round(a: __m512) -> __m512 = _mm512_roundscale_ps::<ROUND>(a);
        fn scale_wide(a: __m512, n: __m512) -> __m512 = _mm512_scalef_ps(a, n);
        fn scale_pow2(a: __m512, n: __m512, x: __m512) -> __m512 =
            _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, _mm512_set1_ps(-126.0)), a, n);
        fn load_f16(p: *const u16) -> __m512 = _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()));
        fn load_bf16(p: *const u16) -> __m512 =
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()))));
        fn store_f16(p: *mut u16, v: __m512) = _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<ROUND>(v));
        fn store_bf16(p: *mut u16, v: __m512) = _mm256_storeu_si256(p.cast(), round_bf16(v));
        fn splat_i(x: i32) -> __m512i = _mm512_set1_epi32(x);
        fn load_i(p: *const u8) -> __m512i = _mm512_loadu_si512(p.cast());
        fn prefetch(p: *const u8) = _mm_prefetch::<_MM_HINT_T1>(p.cast());
        fn load_u8x16(p: *const u8) -> __m512i = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
        fn load_i8x16(p: *const u8) -> __m512i = _mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()));
        fn store_i8x16(p: *mut u8, v: __m512i) = _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(v));
        fn and_i(a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
        fn or_i(a: __m512i, b: __m512i) -> __m512i = _mm512_or_si512(a, b);
        fn load_table(p: *const u8) -> __m512i = _mm512_broadcast_i32x4(_mm_loadu_si128(p.cast()));
        fn look_up(table: __m512i, places: __m512i) -> __m512i = _mm512_shuffle_epi8(table, places);
        fn add_i(a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
        fn sum_i(v: __m512i) -> i32 = _mm512_reduce_add_epi32(v);
        fn bf16_pair(a: __m512i) -> [__m512; 2] = [
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(a)),
            _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32(0xffff_0000u32 as i32))),
        ];
        fn sum(v: __m512) -> f32 = _mm512_reduce_add_ps(v);
        // The first maximum replaces NaN lanes.
        fn hmax(v: __m512) -> f32 = _mm512_reduce_max_ps(_mm512_max_ps(v, _mm512_set1_ps(f32::NEG_INFINITY)));
    }

    #[inline(always)]
    unsafe fn shl<const N: u32>(a: __m512i) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_slli_epi32::<N>(a) }
    }

    #[inline(always)]
    unsafe fn shr<const N: u32>(a: __m512i) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_srli_epi32::<N>(a) }
    }

    #[inline(always)]
    unsafe fn transpose(rows: [__m512; 16]) -> [__m512; 16] {
        // SAFETY: the trait's contract.
        unsafe {
            let (mut pairs, mut fours, mut out) = (rows, rows, rows);
            // In each quarter of a vector: two rows of two columns, then four rows of one column.
            for i in (0..16).step_by(2) {
                pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
                pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
            }
            for i in (0..16).step_by(4) {
                for j in 0..2 {
                    let (a, b) = (_mm512_castps_pd(pairs[i + j]), _mm512_castps_pd(pairs[i + j + 2]));
                    fours[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
                    fours[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
                }
            }
            // Quarter q of all four is column 4q + j.
            for j in 0..4 {
                let even = _mm512_shuffle_f32x4::<0x88>(fours[j], fours[4 + j]);
                let odd = _mm512_shuffle_f32x4::<0xdd>(fours[j], fours[4 + j]);
                let (even_below, odd_below) = (
                    _mm512_shuffle_f32x4::<0x88>(fours[8 + j], fours[12 + j]),
                    _mm512_shuffle_f32x4::<0xdd>(fours[8 + j], fours[12 + j]),
                );
                out[j] = _mm512_shuffle_f32x4::<0x88>(even, even_below);
                out[4 + j] = _mm512_shuffle_f32x4::<0x88>(odd, odd_below);
                out[8 + j] = _mm512_shuffle_f32x4::<0xdd>(even, even_below);
                out[12 + j] = _mm512_shuffle_f32x4::<0xdd>(odd, odd_below);
            }
            out
        }
    }

    #[inline(always)]
    unsafe fn bytes_f32(a: __m512i) -> [__m512; 4] {
        // SAFETY: the trait's contract.
        unsafe {
            let low = _mm512_set1_epi32(0xff);
            [
                _mm512_cvtepi32_ps(_mm512_and_si512(a, low)),
                _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32::<8>(a), low)),
                _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32::<16>(a), low)),
                _mm512_cvtepi32_ps(_mm512_srli_epi32::<24>(a)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn nibbles_f32(a: __m512i) -> [__m512; 8] {
        // SAFETY: the trait's contract.
        unsafe {
            // A permutation by index looks at the low four bits only: table look-up and mask in one.
            let table = _mm512_setr_ps(0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.);
            [
                _mm512_permutexvar_ps(a, table),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<8>(a), table),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<16>(a), table),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<24>(a), table),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(a), table),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<12>(a), table),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<20>(a), table),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<28>(a), table),
            ]
        }
    }

    #[inline(always)]
    unsafe fn dot4<const WIDE: bool>(acc: __m512i, w: __m512i, x: __m512i) -> __m512i {
        // SAFETY: the trait's contract; VNNI is set only in the set whose wrapper enables it.
        unsafe {
            if VNNI {
                _mm512_dpbusd_epi32(acc, w, x)
            } else if WIDE {
                // Pairs of u8·i8 may pass i16: split into even and odd bytes and multiply as i16.
                let even = _mm512_madd_epi16(
                    _mm512_and_si512(w, _mm512_set1_epi16(0xff)),
                    _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(x)),
                );
                let odd = _mm512_madd_epi16(_mm512_srli_epi16::<8>(w), _mm512_srai_epi16::<8>(x));
                _mm512_add_epi32(acc, _mm512_add_epi32(even, odd))
            } else {
                let pairs = _mm512_maddubs_epi16(w, x);
                _mm512_add_epi32(acc, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
            }
        }
    }

    #[inline(always)]
    unsafe fn store_normal_bf16(p: *mut u16, v: __m512) {
        // SAFETY: the trait's contract; BF16 is set only in the set whose wrapper enables it. The transmute is between
        // 32-byte vectors of plain bits.
        unsafe {
            let rounded = if BF16 {
                std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(v))
            } else {
                round_bf16(v)
            };
            _mm256_storeu_si256(p.cast(), rounded);
        }
    }

    #[inline(always)]
    unsafe fn dot_bf16(acc: __m512, w: __m512i, x: __m512i) -> __m512 {
        // SAFETY: the trait's contract; BF16 is set only in the set whose wrapper enables it. The transmutes are
        // between 64-byte vectors of plain bits.
        unsafe {
            if BF16 {
                _mm512_dpbf16_ps(
                    acc,
                    std::mem::transmute::<__m512i, __m512bh>(w),
                    std::mem::transmute::<__m512i, __m512bh>(x),
                )
            } else {
                let (w, x) = (Self::bf16_pair(w), Self::bf16_pair(x));
                _mm512_fmadd_ps(w[1], x[1], _mm512_fmadd_ps(w[0], x[0], acc))
            }
        }
    }
}

/// bf16 by rounding to nearest even, as integers: the BF16 instruction would flush subnormal numbers.
#[inline(always)]
unsafe fn round_bf16(v: __m512) -> __m256i {
    // SAFETY: the caller has AVX-512 F.
    unsafe {
        let bits = _mm512_castps_si512(v);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
        let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
        _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(_mm512_mask_blend_epi32(nan, rounded, quiet)))
    }
}
