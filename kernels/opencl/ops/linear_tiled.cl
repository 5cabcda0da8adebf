// `linear` of many tokens without matrix units, in f32: a group computes 64 tokens by 64 rows, a work-item four by four of them from vectors of
// eight depths, which the first-level cache serves to its neighbours. No barriers.
//
// Definitions: ACT, WEIGHT, OUT (f32, f16, bf16), EPILOGUE (see activate.h).
// linear_tiled: grid (⌈n / 64⌉, ⌈tokens / 64⌉), 256 threads.
// check: -DACT=f32 -DWEIGHT=f32 -DOUT=f32 -DEPILOGUE=0
// check: -DACT=bf16 -DWEIGHT=bf16 -DOUT=f32 -DEPILOGUE=3
// check: -DACT=f16 -DWEIGHT=f16 -DOUT=f16 -DEPILOGUE=2
#include "product.h"

#define EACH 4

KERNEL void linear_tiled(const __global ACT *x, const __global WEIGHT *w, const __global float *bias, const __global OUT *residual,
                           __global OUT *out, u32 x_stride, u32 residual_stride, u32 out_stride, u32 tokens, u32 n, u32 k) {
    u32 id = get_local_id(0), first_row = get_group_id(0) * 64 + id % 16 * EACH, first_token = get_group_id(1) * 64 + id / 16 * EACH;
    if (first_row >= n || first_token >= tokens) return;
    // Rows and tokens past the end repeat the last one, and are not written.
    const __global WEIGHT *weights[EACH];
    const __global ACT *values[EACH];
    float8 sums[EACH][EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        weights[i] = w + (u64)min(first_row + i, n - 1) * k;
        values[i] = x + (u64)min(first_token + i, tokens - 1) * x_stride;
#pragma unroll
        for (u32 j = 0; j < EACH; j++) sums[i][j] = 0.f;
    }
    u32 whole = k / 8 * 8;
    for (u32 d = 0; d < whole; d += 8) {
        float8 weight[EACH];
#pragma unroll
        for (u32 i = 0; i < EACH; i++) weight[i] = LOADN(8, WEIGHT, weights[i], d);
#pragma unroll
        for (u32 t = 0; t < EACH; t++) {
            float8 value = LOADN(8, ACT, values[t], d);
#pragma unroll
            for (u32 i = 0; i < EACH; i++) sums[t][i] = fma(weight[i], value, sums[t][i]);
        }
    }
#pragma unroll
    for (u32 t = 0; t < EACH; t++) {
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            float sum = sum8(sums[t][i]);
            for (u32 d = whole; d < k; d++) sum = fma(LOAD(WEIGHT, weights[i], d), LOAD(ACT, values[t], d), sum);
            if (first_token + t < tokens && first_row + i < n)
                write_out(sum, bias, residual, out, residual_stride, out_stride, first_token + t, first_row + i);
        }
    }
}
