// `linear` over 8-bit weights (E4M3) with a scale a row: the packing of canonical rows, their unpacking for a product
// of others, and the product of any size and stride in f32. Held are rows of codes in the file's order, each padded
// with zeros to a multiple of 16 bytes, and behind all rows, at a multiple of 256 bytes, the scales.
//
// LANES work-items an output row (see product.h): each takes eight codes at a time, for eight tokens.
//
// Definitions: ACT, OUT (f32, f16, bf16), EPILOGUE (see activate.h).
// scaled_pack: grid rows, 128 threads. scaled_unpack: grid ⌈rows · k / 1024⌉, 256 threads; k is a multiple of 4.
// linear_scaled_plain: grid (⌈n / 8⌉, ⌈tokens / 8⌉), 256 threads.
// revision: 1
// check: -DACT=f32 -DOUT=f32 -DEPILOGUE=0
// check: -DACT=bf16 -DOUT=f32 -DEPILOGUE=3
// check: -DACT=f16 -DOUT=f16 -DEPILOGUE=2
// check: -DACT=f32 -DOUT=f32 -DEPILOGUE=0 -DHALYARD_CPU
#include "product.h"

// Bytes between rows of codes, and where the scales begin; the host computes the same.
INLINE u64 codes_pitch(u32 k) { return ((u64)k + 15) / 16 * 16; }
INLINE u64 scales_at(u32 n, u32 k) { return (n * codes_pitch(k) + 255) / 256 * 256; }

// Canonical rows: k codes, then the scale as four bytes at any address.
KERNEL void scaled_pack(const __global u8 *from, __global u8 *packed, u32 n, u32 k, u32 first_row) {
    u32 row = first_row + get_group_id(0);
    const __global u8 *codes = from + get_group_id(0) * ((u64)k + 4);
    __global u8 *to = packed + row * codes_pitch(k);
    for (u32 i = get_local_id(0); i < (u32)codes_pitch(k); i += get_local_size(0)) to[i] = i < k ? codes[i] : 0;
    if (get_local_id(0) < 4) packed[scales_at(n, k) + 4 * (u64)row + get_local_id(0)] = codes[k + get_local_id(0)];
}

KERNEL void scaled_unpack(const __global u8 *packed, __global ACT *out, u32 n, u32 k, u32 first_row, u32 rows) {
    u32 fours = k / 4;
    u64 i = (u64)get_group_id(0) * get_local_size(0) + get_local_id(0);
    if (i >= (u64)rows * fours) return;
    u32 row = (u32)(i / fours), four = (u32)(i - (u64)row * fours), at = first_row + row;
    float scale = ((const __global float *)(packed + scales_at(n, k)))[at];
    float4 values = load4_e4m3(packed + at * codes_pitch(k), 4 * four) * scale;
    STOREN(4, ACT, values, out, (u64)row * k + 4 * four);
}

KERNEL void linear_scaled_plain(const __global ACT *x, const __global u8 *w, const __global float *bias,
                                const __global OUT *residual, __global OUT *out, u32 x_stride, u32 residual_stride,
                                u32 out_stride, u32 tokens, u32 n, u32 k) {
    __local float shared[SHARED_FLOATS];
    u32 lane = get_local_id(0) % LANES, first_row = get_group_id(0) * ROWS, first = get_group_id(1) * TOKENS;
    u32 row = min(first_row + (u32)get_local_id(0) / LANES, n - 1), count = min(tokens - first, (u32)TOKENS);
    const __global u8 *codes = w + row * codes_pitch(k);
    const __global ACT *values = x + (u64)first * x_stride;
#if LANES == 1
    if (get_local_id(0) >= ROWS) return;
#endif
    float sums[TOKENS];
    SUM(8) sum[TOKENS];
    for (u32 t = 0; t < TOKENS; t++) sum[t] = 0.f;
    u32 whole = k / 8 * 8;
    for (u32 i = 8 * lane; i < whole; i += 8 * LANES) {
        float8 weight = load8_e4m3(codes, i);
        // A token past the end repeats the last one.
#pragma unroll
        for (u32 t = 0; t < TOKENS; t++)
            sum[t] = ADD_PRODUCTS(8, weight, LOADN(8, ACT, values + (u64)min(t, count - 1) * x_stride, i), sum[t]);
    }
    for (u32 t = 0; t < TOKENS; t++) sums[t] = TOTAL(8, sum[t]);
    for (u32 i = whole + lane; i < k; i += LANES) {
        float weight = load1_e4m3(codes, i);
        for (u32 t = 0; t < count; t++) sums[t] = fma(weight, LOAD(ACT, values, (u64)t * x_stride + i), sums[t]);
    }
    float scale = ((const __global float *)(w + scales_at(n, k)))[row];
    for (u32 t = 0; t < TOKENS; t++) sums[t] *= scale;
    finish_rows(sums, shared, bias, residual, out, residual_stride, out_stride, first_row, n, first, count);
}
