// Values of records (quantized.cuh): eight neighbours of a row at a time, or all of a lane's.
#pragma once
#include "quantized.cuh"

// Values `k` .. `k` + 7 (`k` a multiple of 8) of row `row` of the eight whose records begin at `records`.
__device__ __forceinline__ void weights8_of_records(const u8 *records, u32 row, u32 k, float (&w)[8]) {
    const u8 *record = records + (u64)(k / 128) * kRecord;
    u32 chunk = k % 128 / 32, half = k % 32 / 16, first_lane = k % 16 / 4, run = k % 128 / kRun;
    u32 words[kScaleWords];
    load_scales(record + scales_in_record(row), words);
    float scale = scale_of(words, run), min = min_of(words, run);
#pragma unroll
    for (u32 l = 0; l < 2; l++) {
        const u8 *codes = record + codes_in_record(row, first_lane + l, kBytes ? chunk / 2 : 0);
        const u8 *high = record + high_in_record(row, first_lane + l);
        u32 word = *(const u32 *)(codes + (kBytes ? 8 * (chunk % 2) + 4 * half : 4 * chunk));
        u32 above = FORMAT == 5 ? high[chunk] : FORMAT == 8 ? ((const u16 *)high)[chunk] : 0;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            // Even values are in the lower half of a word of nibbles, and in the lower half of the bits above them.
            u32 pair = 2 * half + i / 2, odd = i & 1;
            u32 code = kBytes ? word >> (8 * i) & 0xff : word >> (4 * pair + 16 * odd) & 15;
            if (FORMAT == 5) code |= (above >> (pair + 4 * odd) & 1) << 4;
            if (FORMAT == 8) code |= (above >> (2 * pair + 8 * odd) & 3) << 4;
            float number = FORMAT == 6 ? (float)(i8)code : number_of(code) - (float)kOffset;
            w[4 * l + i] = value_of(number, scale, min);
        }
    }
}

// Four neighbours, at a multiple of their size.
__device__ __forceinline__ void store4(float *to, const float (&v)[4]) {
    *(float4 *)to = make_float4(v[0], v[1], v[2], v[3]);
}
template <typename T> __device__ __forceinline__ void store4(T *to, const T (&v)[4]) {
    *(uint2 *)to = make_uint2(v[0].bits | (u32)v[1].bits << 16, v[2].bits | (u32)v[3].bits << 16);
}

// Writes lane `t`'s values of a group to their row, which has `k` values and begins at `row_out`.
template <typename T>
__device__ __forceinline__ void unpack_part(const Records &of, u32 row, u32 group, u32 t, T *row_out, u32 k) {
    Group v = load_group(of, row, group, t);
    T *to = row_out + 128 * group + 4 * t;
#pragma unroll
    for (u32 chunk = 0; chunk < 4; chunk++) {
        if (128 * group + 32 * chunk >= k) break;
        float values[8];
        values_of(v, chunk, values);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            T four[4];
#pragma unroll
            for (u32 i = 0; i < 4; i++) four[i] = from_f32<T>(values[4 * half + i]);
            store4(to + 32 * chunk + 16 * half, four);
        }
    }
}
