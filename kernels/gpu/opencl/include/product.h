// What the products of a matrix with few tokens share: LANES work-items an output row, eight rows a group, up to eight
// tokens. The work-items' sums meet once in local memory, where one of them finishes each (row, token).
//
// On processors (HALYARD_CPU, from the driver) one work-item computes a whole row: it has vector instructions, and data
// of another work-item costs a barrier.
// Definitions: ACT, OUT (f32, f16, bf16), EPILOGUE (see activate.h).
#ifndef HALYARD_PRODUCT_H
#define HALYARD_PRODUCT_H
#include "activate.h"

// Output rows, and tokens, of a group of 256 work-items.
#define ROWS 8
#define TOKENS 8
#ifdef HALYARD_CPU
#define LANES 1
#define SHARED_FLOATS 1
#elif defined(SUBGROUP)
#define LANES 32
// Subgroups that share a row.
#define PARTS (LANES / SUBGROUP)
#define SHARED_FLOATS (ROWS * TOKENS * PARTS)
#else
#define LANES 32
#define SHARED_FLOATS (ROWS * TOKENS * LANES)
#endif

// A work-item's sum over vectors of N: on processors a vector of sums, so that nothing is added across; on GPUs one
// float, as a work-item has registers for 64 where subgroups of 16 have 128 of 32 bytes, and eight tokens are in
// flight.
#ifdef HALYARD_CPU
#define SUM(N) FLOATN(N)
#define ADD_PRODUCTS(N, a, b, sum) fma(a, b, sum)
#define TOTAL(N, x) CAT(sum, N)(x)
// Adds the products of 16 weights and the values at element i of p.
#define ADD_VALUES(weights, T, p, i, sum) fma(weights, LOADN(16, T, p, i), sum)
#else
#define SUM(N) float
#define ADD_PRODUCTS(N, a, b, sum) CAT(add_products, N)(a, b, sum)
#define TOTAL(N, x) (x)
#define ADD_VALUES(weights, T, p, i, sum) \
    add_products8((weights).hi, LOADN(8, T, p, (i) + 8), add_products8((weights).lo, LOADN(8, T, p, i), sum))
#endif
INLINE float add_products4(float4 a, float4 b, float sum) {
    return fma(a.s3, b.s3, fma(a.s2, b.s2, fma(a.s1, b.s1, fma(a.s0, b.s0, sum))));
}
INLINE float add_products8(float8 a, float8 b, float sum) {
    return add_products4(a.hi, b.hi, add_products4(a.lo, b.lo, sum));
}

INLINE void write_out(float sum, const __global float *bias, const __global OUT *residual, __global OUT *out,
                      u32 residual_stride, u32 out_stride, u64 token, u32 row) {
    if (bias) sum += bias[row];
    sum = activate(sum);
    if (residual) sum += LOAD(OUT, residual, token * residual_stride + row);
    STORE(OUT, sum, out, token * out_stride + row);
}

// Adds up the sums of a row's work-items and writes out[first_token + t][first_row + r]. `shared`:
// [ROWS][TOKENS][LANES], or a place for each subgroup where those add up first.
INLINE void finish_rows(const float *sums, __local float *shared, const __global float *bias,
                        const __global OUT *residual, __global OUT *out, u32 residual_stride, u32 out_stride,
                        u32 first_row, u32 n, u32 first_token, u32 count) {
    u32 id = get_local_id(0);
#if LANES == 1
    if (id >= ROWS || first_row + id >= n) return;
    for (u32 t = 0; t < count; t++)
        write_out(sums[t], bias, residual, out, residual_stride, out_stride, first_token + t, first_row + id);
#elif defined(SUBGROUP)
    for (u32 t = 0; t < count; t++) {
        float sum = sub_group_reduce_add(sums[t]);
        if (id % SUBGROUP == 0) shared[(id / LANES * TOKENS + t) * PARTS + id % LANES / SUBGROUP] = sum;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    u32 row = first_row + id / TOKENS, token = id % TOKENS;
    if (id >= ROWS * TOKENS || row >= n || token >= count) return;
    float sum = shared[id * PARTS];
    if (PARTS == 2) sum += shared[id * PARTS + 1];
    write_out(sum, bias, residual, out, residual_stride, out_stride, first_token + token, row);
#else
    for (u32 t = 0; t < count; t++) shared[(id / LANES * TOKENS + t) * LANES + id % LANES] = sums[t];
    barrier(CLK_LOCAL_MEM_FENCE);
    u32 row = first_row + id / TOKENS, token = id % TOKENS;
    if (id >= ROWS * TOKENS || row >= n || token >= count) return;
    float16 parts = vload16(0, shared + id * LANES) + vload16(0, shared + id * LANES + 16);
    write_out(sum16(parts), bias, residual, out, residual_stride, out_stride, first_token + token, row);
#endif
}

#endif
