// 8-bit weights (E4M3) with a scale a row, as the linear kernels hold them: rows of codes, each padded with zeros to a
// multiple of 16 bytes, and behind all rows, at a multiple of 256 bytes, the scales. In every four bytes stand values
// 2, 0, 3, 1, so that a mask gives neighbours side by side. A row that holds a NaN has the scale NaN: the kernels do
// not tell that code from numbers.
#pragma once
#include "common.cuh"

// Bytes between rows of codes. The host computes the same sizes: ops/linear/scaled.rs.
__device__ __forceinline__ u64 codes_pitch(u32 k) { return ((u64)k + 15) / 16 * 16; }
__device__ __forceinline__ u64 scales_at(u32 n, u32 k) { return (n * codes_pitch(k) + 255) / 256 * 256; }

// Four codes in the file's order, and back.
__device__ __forceinline__ u32 shuffle_codes(u32 file) {
    return (file >> 16 & 0xff) | (file & 0xff) << 8 | (file >> 24) << 16 | (file >> 8 & 0xff) << 24;
}
__device__ __forceinline__ u32 file_codes(u32 held) {
    return (held >> 8 & 0xff) | (held >> 24) << 8 | (held & 0xff) << 16 | (held >> 16 & 0xff) << 24;
}

#if !defined(__HIP__)
// Values 0, 1 and values 2, 3 of four codes as operands of the matrix unit. A code's fields, moved to their places in
// the wider type, are a power of two too small; the product with it is exact, subnormal numbers included.
template <typename T> __device__ __forceinline__ void widen_codes(u32 held, u32 &first, u32 &second);
template <> __device__ __forceinline__ void widen_codes<bf16>(u32 held, u32 &first, u32 &second) {
    u32 upper = held << 8, up = 0x7b807b80, none = 0x80008000;
    first = (held & 0x80008000) | (held >> 4 & 0x07f007f0);
    second = (upper & 0x80008000) | (upper >> 4 & 0x07f007f0);
    asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(first) : "r"(up), "r"(none));
    asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(second) : "r"(up), "r"(none));
}
template <> __device__ __forceinline__ void widen_codes<f16>(u32 held, u32 &first, u32 &second) {
    u32 upper = held << 8, up = 0x5c005c00, none = 0x80008000;
    first = (held & 0x80008000) | (held >> 1 & 0x3f803f80);
    second = (upper & 0x80008000) | (upper >> 1 & 0x3f803f80);
    asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(first) : "r"(up), "r"(none));
    asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(second) : "r"(up), "r"(none));
}
#endif
