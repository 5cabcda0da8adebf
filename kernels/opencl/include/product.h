// What the products of a matrix with few tokens share: 32 work-items an output row, eight rows a group, up to eight tokens. The work-items'
// sums meet once in local memory, where one of them finishes each (row, token).
// Definitions: ACT, OUT (f32, f16, bf16), EPILOGUE (see activate.h).
#ifndef HALYARD_PRODUCT_H
#define HALYARD_PRODUCT_H
#include "activate.h"

// Output rows, and tokens, of a group.
#define ROWS 8
#define TOKENS 8
#define THREADS (32 * ROWS)

static inline void write_out(float sum, const __global float *bias, const __global OUT *residual, __global OUT *out, u32 residual_stride,
                             u32 out_stride, u64 token, u32 row) {
    if (bias) sum += bias[row];
    sum = activate(sum);
    if (residual) sum += LOAD(OUT, residual, token * residual_stride + row);
    STORE(OUT, sum, out, token * out_stride + row);
}

// Adds up the sums of 32 work-items a row and writes out[first_token + t][first_row + r]. `shared`: [ROWS][TOKENS][32].
static inline void finish_rows(const float *sums, __local float *shared, const __global float *bias, const __global OUT *residual,
                               __global OUT *out, u32 residual_stride, u32 out_stride, u32 first_row, u32 n, u32 first_token, u32 count) {
    u32 id = get_local_id(0);
    for (u32 t = 0; t < count; t++) shared[(id / 32 * TOKENS + t) * 32 + id % 32] = sums[t];
    barrier(CLK_LOCAL_MEM_FENCE);
    u32 row = first_row + id / TOKENS, token = id % TOKENS;
    if (id >= ROWS * TOKENS || row >= n || token >= count) return;
    float16 parts = vload16(0, shared + id * 32) + vload16(0, shared + id * 32 + 16);
    write_out(sum16(parts), bias, residual, out, residual_stride, out_stride, first_token + token, row);
}

#endif
