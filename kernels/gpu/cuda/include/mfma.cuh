// Matrix units of AMD's CDNA (gfx90a and newer): the 32 x 32 x 8 product of a wave of 64 lanes. Compiled, and never run
// on hardware.
#pragma once
#include "common.cuh"

#if defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) || defined(__gfx950__)
#define MFMA 1

typedef float MfmaSums __attribute__((ext_vector_type(16)));
typedef short MfmaBits __attribute__((ext_vector_type(4)));
typedef _Float16 MfmaHalves __attribute__((ext_vector_type(4)));

// d += a · b. Lane l holds of a row l % 32, of b column l % 32, both at depths 4 · (l / 32) .. + 3; of d column l % 32
// at the rows that `mfma_row` says. The words hold 16-bit values in order.
template <typename T> __device__ __forceinline__ MfmaSums mfma_32x32x8(uint2 a, uint2 b, MfmaSums d);
template <> __device__ __forceinline__ MfmaSums mfma_32x32x8<bf16>(uint2 a, uint2 b, MfmaSums d) {
    u64 left = (u64)a.y << 32 | a.x, right = (u64)b.y << 32 | b.x;
    return __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(__builtin_bit_cast(MfmaBits, left),
                                                    __builtin_bit_cast(MfmaBits, right), d, 0, 0, 0);
}
template <> __device__ __forceinline__ MfmaSums mfma_32x32x8<f16>(uint2 a, uint2 b, MfmaSums d) {
    u64 left = (u64)a.y << 32 | a.x, right = (u64)b.y << 32 | b.x;
    return __builtin_amdgcn_mfma_f32_32x32x8f16(__builtin_bit_cast(MfmaHalves, left),
                                                __builtin_bit_cast(MfmaHalves, right), d, 0, 0, 0);
}
// What the lane of the wave's other half that has the same row or column holds.
__device__ __forceinline__ float of_other_half(float x) {
    return __uint_as_float(hip::word_from(__float_as_uint(x), hip::wave_lane() ^ 32));
}
__device__ __forceinline__ constexpr u32 mfma_row(u32 lane, u32 i) { return 8 * (i / 4) + 4 * (lane / 32) + i % 4; }
#endif
