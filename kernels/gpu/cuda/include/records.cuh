// Records of a canonical format (quantized.cuh), eight neighbours of a row at a time.
#pragma once
#include "quantized.cuh"

// Values `k` .. `k` + 7 (`k` a multiple of 8) of row `row` of the eight whose records begin at `records`.
__device__ __forceinline__ void weights8_of_records(const u8 *records, u32 row, u32 k, float (&w)[8]) {
    const u8 *record = records + (u64)(k / 128) * kRecord;
    u32 chunk = k % 128 / 32, half = k % 32 / 16, first_lane = k % 16 / 4;
    const float *factors = (const float *)(record + scales_in_record(row)) + k % 128 / GROUP_VALUES * SCALE_WORDS;
    float scale = factors[0], add = kHasMin ? factors[SCALE_WORDS - 1] : 0.f;
#pragma unroll
    for (u32 l = 0; l < 2; l++) {
        const u8 *codes = record + codes_in_record(row, first_lane + l, kBytes ? chunk / 2 : 0);
        u32 word = *(const u32 *)(codes + (kBytes ? 8 * (chunk % 2) + 4 * half : 4 * chunk));
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            // Even values are in the lower half of a word of nibbles.
            u32 code = kBytes ? word >> (8 * i) & 0xff : word >> (4 * (2 * half + i / 2) + 16 * (i & 1)) & 15;
            w[4 * l + i] = scale * (number_of(code) + add);
        }
    }
}
