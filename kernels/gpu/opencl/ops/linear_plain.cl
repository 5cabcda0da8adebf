// `linear` of any type, size and stride, in f32; the conversion of weights to another type; and what follows or
// precedes a library product (bias, activation, residual).
//
// LANES work-items an output row (see product.h): they share the depths in pieces of 16, eight tokens at a time.
//
// Definitions: ACT, WEIGHT, OUT (f32, f16, bf16), EPILOGUE (see activate.h).
// linear_plain: grid (⌈n / 8⌉, ⌈tokens / 8⌉), 256 threads. convert_weights (WEIGHT to ACT): grid ⌈count / 1024⌉, 256
// threads. linear_finish: grid (⌈n / 256⌉, ⌈tokens / 8⌉), 256 threads.
// revision: 2
// check: -DACT=f32 -DWEIGHT=f32 -DOUT=f32 -DEPILOGUE=0
// check: -DACT=bf16 -DWEIGHT=f32 -DOUT=f32 -DEPILOGUE=3
// check: -DACT=f16 -DWEIGHT=bf16 -DOUT=f16 -DEPILOGUE=2
// check: -DACT=bf16 -DWEIGHT=f32 -DOUT=f32 -DEPILOGUE=0 -DHALYARD_CPU
#include "product.h"

KERNEL void linear_plain(const __global ACT *x, const __global WEIGHT *w, const __global float *bias,
                         const __global OUT *residual, __global OUT *out, u32 x_stride, u32 residual_stride,
                         u32 out_stride, u32 tokens, u32 n, u32 k) {
    __local float shared[SHARED_FLOATS];
    u32 lane = get_local_id(0) % LANES, first_row = get_group_id(0) * ROWS, first = get_group_id(1) * TOKENS;
    u32 row = min(first_row + (u32)get_local_id(0) / LANES, n - 1), count = min(tokens - first, (u32)TOKENS);
    const __global WEIGHT *weights = w + (u64)row * k;
    const __global ACT *values = x + (u64)first * x_stride;
#if LANES == 1
    if (get_local_id(0) >= ROWS) return;
#endif
    float sums[TOKENS];
    u32 whole = k / 16 * 16;
    if (count == 1) {
        float16 sum = 0.f;
        for (u32 i = 16 * lane; i < whole; i += 16 * LANES)
            sum = fma(LOADN(16, WEIGHT, weights, i), LOADN(16, ACT, values, i), sum);
        sums[0] = sum16(sum);
    } else {
        SUM(16) sum[TOKENS];
        for (u32 t = 0; t < TOKENS; t++) sum[t] = 0.f;
        for (u32 i = 16 * lane; i < whole; i += 16 * LANES) {
            float16 weight = LOADN(16, WEIGHT, weights, i);
#pragma unroll
            for (u32 t = 0; t < TOKENS; t++) {
                // A token past the end repeats the last one.
                const __global ACT *from = values + (u64)min(t, count - 1) * x_stride;
                sum[t] = ADD_VALUES(weight, ACT, from, i, sum[t]);
            }
        }
        for (u32 t = 0; t < TOKENS; t++) sums[t] = TOTAL(16, sum[t]);
    }
    for (u32 i = whole + lane; i < k; i += LANES) {
        float weight = LOAD(WEIGHT, weights, i);
        for (u32 t = 0; t < count; t++) sums[t] = fma(weight, LOAD(ACT, values, (u64)t * x_stride + i), sums[t]);
    }
    finish_rows(sums, shared, bias, residual, out, residual_stride, out_stride, first_row, n, first, count);
}

// Rounds to the nearest value that the type holds: a weight beyond f16's range becomes its largest value, not an
// infinity. Infinities and NaN of the file stay as they are.
#define NARROW_f32(x) (x)
#define NARROW_bf16(x) (x)
#define NARROW_f16(x) (isfinite(x) ? clamp(x, -65504.f, 65504.f) : (x))

KERNEL void convert_weights(const __global WEIGHT *from, __global ACT *to, u64 count) {
    u64 first = (u64)get_group_id(0) * 1024 + get_local_id(0);
    for (u32 i = 0; i < 4; i++) {
        u64 at = first + 256 * i;
        if (at < count) {
            float value = LOAD(WEIGHT, from, at);
            STORE(ACT, CAT(NARROW_, ACT)(value), to, at);
        }
    }
}

// out = epilogue(product + bias) + residual, where each of product (f32 rows), bias and residual may be absent.
KERNEL void linear_finish(const __global float *product, const __global float *bias, const __global OUT *residual,
                          __global OUT *out, u32 product_stride, u32 residual_stride, u32 out_stride, u32 n,
                          u32 tokens) {
    u32 row = get_group_id(0) * 256 + get_local_id(0), first = get_group_id(1) * 8;
    if (row >= n) return;
    for (u64 token = first; token < min(first + 8, tokens); token++) {
        float sum = product ? product[token * product_stride + row] : 0.f;
        write_out(sum, bias, residual, out, residual_stride, out_stride, token, row);
    }
}
