// Block formats as model files hold them (ggml's, ggml-common.h), value by value: for kernels that dequantise as they
// read.
// Definition: FORMAT, the contract's code: 3 Q4_0, 4 Q4_1, 5 Q5_0, 6 Q8_0, 7 Q4_K, 8 Q6_K.
// revision: 1
#pragma once
#include "common.cuh"

__device__ __forceinline__ float half_at(const u8 *p) {
    f16 h;
    h.bits = *(const u16 *)p;
    return to_f32(h);
}
// Nibble j of 32: low ones first.
__device__ __forceinline__ u32 nibble(const u8 *p, u32 j) { return j < 16 ? p[j] & 15 : p[j - 16] >> 4; }

// Value i of a row. Products of f16 scales and small integers are exact, so a fused multiply-add rounds as the two
// steps do.
__device__ __forceinline__ float value_at(const u8 *row, u32 i) {
#if FORMAT == 3
    const u8 *block = row + i / 32 * 18;
    return half_at(block) * ((float)nibble(block + 2, i % 32) - 8.f);
#elif FORMAT == 4
    const u8 *block = row + i / 32 * 20;
    return half_at(block) * (float)nibble(block + 4, i % 32) + half_at(block + 2);
#elif FORMAT == 5
    const u8 *block = row + i / 32 * 22;
    u32 j = i % 32, fifth = block[2 + j / 8] >> (j % 8) & 1;
    return half_at(block) * ((float)(nibble(block + 6, j) | fifth << 4) - 16.f);
#elif FORMAT == 6
    const u8 *block = row + i / 32 * 34;
    return half_at(block) * (float)(i8)block[2 + i % 32];
#elif FORMAT == 7
    const u8 *block = row + i / 256 * 144, *packed = block + 4;
    u32 group = i % 256 / 32, scale, low;
    if (group < 4) {
        scale = packed[group] & 63;
        low = packed[group + 4] & 63;
    } else {
        scale = (packed[group + 4] & 15) | (packed[group - 4] >> 6 << 4);
        low = (packed[group + 4] >> 4) | (packed[group] >> 6 << 4);
    }
    u8 byte = block[16 + group / 2 * 32 + i % 32];
    float q = (float)(group % 2 ? byte >> 4 : byte & 15);
    return (half_at(block) * (float)scale) * q - half_at(block + 2) * (float)low;
#else
    const u8 *block = row + i / 256 * 210;
    u32 part = i % 256 / 128, quarter = i % 128 / 32, l = i % 32;
    u8 byte = block[part * 64 + quarter % 2 * 32 + l];
    u32 low = quarter < 2 ? byte & 15 : byte >> 4, high = block[128 + part * 32 + l] >> (2 * quarter) & 3;
    float scale = (float)(i8)block[192 + part * 8 + quarter * 2 + l / 16];
    return half_at(block + 208) * scale * ((float)(low | high << 4) - 32.f);
#endif
}
