// `linear` of many tokens: in f32, or on the matrix units of Intel's GPUs where DPAS is defined. No barriers.
//
// In f32 a group computes 64 tokens by 64 rows, a work-item four by four of them from vectors of depths, which the
// first-level cache serves to its neighbours. On matrix units a subgroup computes 8 tokens by 4 · DPAS rows, in
// products of 8 by 16 by DPAS: tokens come as the left side by block reads of their rows, weights as the right side,
// whose lanes want 32 bytes that lie side by side in a row. All subgroups of a group multiply the same 64 rows at about
// the same time, so that the first-level cache reads them once. More sums a subgroup would not fit in 128 registers.
//
// Definitions: ACT, WEIGHT, OUT (f32, f16, bf16), EPILOGUE (see activate.h), DPAS (see matrix.h; ACT and WEIGHT are the
// same, f16 or bf16). linear_tiled: grid (⌈n / 64⌉, ⌈tokens / 64⌉), 256 threads; on matrix units 128 threads for 64
// tokens a group, 256 for 128.
// revision: 1
// check: -DACT=f32 -DWEIGHT=f32 -DOUT=f32 -DEPILOGUE=0
// check: -DACT=bf16 -DWEIGHT=bf16 -DOUT=f32 -DEPILOGUE=3
// check: -DACT=f16 -DWEIGHT=f16 -DOUT=f16 -DEPILOGUE=2
// matrix: -DACT=bf16 -DWEIGHT=bf16 -DOUT=bf16 -DEPILOGUE=1
// matrix: -DACT=f16 -DWEIGHT=f16 -DOUT=f32 -DEPILOGUE=0
#include "product.h"

#ifdef DPAS
#include "matrix.h"

// Products side by side of DPAS rows each; rows of a group; lanes that do 8 tokens of it.
#define RIGHTS 4
#define GROUP_ROWS 64
#define COLUMNS (GROUP_ROWS / (RIGHTS * DPAS))
#define TOKEN_LANES (COLUMNS * DPAS)
// Products of 16 depths that one read of tokens serves, and what it gives a lane of each token.
#if DPAS == 16
#define READS 4
#define READ(to, x) vstore4(as_short4(intel_sub_group_block_read_us4((const __global ushort *)(x))), 0, to)
#else
#define READS 2
#define READ(to, x) vstore2(as_int2(intel_sub_group_block_read2((const __global uint *)(x))), 0, to)
#endif

// Element d of a row of k; 0 behind its end.
INLINE u32 element(const __global ushort *row, u32 d, u32 k) { return d < k ? row[d] : 0; }

// What a lane brings of 16 depths from d on, one element at a time: for the end of a row, and rows that start at odd
// elements.
INLINE left1 left_of(const __global ushort *row, u32 d, u32 k, u32 lane) {
#if DPAS == 16
    return (short)element(row, d + lane, k);
#else
    return (int)(element(row, d + 2 * lane, k) | element(row, d + 2 * lane + 1, k) << 16);
#endif
}
INLINE int pair_at(const __global ushort *row, u32 d, u32 k) {
    return (int)(element(row, d, k) | element(row, d + 1, k) << 16);
}
INLINE int8 right_of(const __global ushort *row, u32 d, u32 k) {
    return (int8)(pair_at(row, d, k), pair_at(row, d + 2, k), pair_at(row, d + 4, k), pair_at(row, d + 6, k),
                  pair_at(row, d + 8, k), pair_at(row, d + 10, k), pair_at(row, d + 12, k), pair_at(row, d + 14, k));
}

INLINE void write_outs(float8 sums, const __global float *bias, const __global OUT *residual, __global OUT *out,
                       u32 residual_stride, u32 out_stride, u32 first_token, u32 tokens, u32 row, u32 n) {
    if (row >= n) return;
    float parts[8];
    vstore8(sums, 0, parts);
#pragma unroll
    for (u32 t = 0; t < 8; t++)
        if (first_token + t < tokens)
            write_out(parts[t], bias, residual, out, residual_stride, out_stride, first_token + t, row);
}

// Of each product, spelled out: sums must stay in registers, and compilers do not always unroll what they are asked to.
#ifdef DPAS_EMULATED
#define EACH(DO) UNROLLED for (u32 j = 0; j < RIGHTS; j++) { DO(j) }
#else
#define EACH(DO) DO(0) DO(1) DO(2) DO(3)
#endif
#define CLEAR(j) sums[j] = 0.f;
#define ADD(j) sums[j] = MULTIPLY8(ACT, left, as_int8(vload8(0, (const __global u32 *)(weights[j] + d))), sums[j]);
#define ADD_ELEMENTS(j) sums[j] = MULTIPLY8(ACT, left, right_of(weights[j], d, k), sums[j]);
#define FINISH(j)                                                                              \
    write_outs(sums[j], bias, residual, out, residual_stride, out_stride, first_token, tokens, \
               first_row + j * DPAS + lane, n);

KERNEL void linear_tiled(const __global ACT *x, const __global WEIGHT *w, const __global float *bias,
                         const __global OUT *residual, __global OUT *out, u32 x_stride, u32 residual_stride,
                         u32 out_stride, u32 tokens, u32 n, u32 k) {
    u32 id = get_local_id(0), lane = id % DPAS;
    u32 first_row = get_group_id(0) * GROUP_ROWS + id / DPAS % COLUMNS * (RIGHTS * DPAS);
    u32 first_token = (get_group_id(1) * (get_local_size(0) / TOKEN_LANES) + id / TOKEN_LANES) * 8;
    if (first_row >= n || first_token >= tokens) return;
    // Rows and tokens past the end repeat the last one, and are not written.
    const __global ushort *weights[RIGHTS];
#pragma unroll
    for (u32 j = 0; j < RIGHTS; j++) weights[j] = w + (u64)min(first_row + j * DPAS + lane, n - 1) * k;
    float8 sums[RIGHTS];
    EACH(CLEAR)
    // Block reads and vectors of words want rows that start at words.
    bool words = ((u64)x | (u64)w) % 4 == 0 && x_stride % 2 == 0 && k % 2 == 0;
    u32 d = 0, whole = words ? k / (16 * READS) * (16 * READS) : 0;
    while (d < whole) {
        left1 reads[8][READS];
#pragma unroll
        for (u32 t = 0; t < 8; t++) READ(reads[t], x + (u64)min(first_token + t, tokens - 1) * x_stride + d);
        UNROLLED for (u32 i = 0; i < READS; i++, d += 16) {
            left8 left = (left8)(reads[0][i], reads[1][i], reads[2][i], reads[3][i], reads[4][i], reads[5][i],
                                 reads[6][i], reads[7][i]);
            EACH(ADD)
        }
    }
    for (; d < k; d += 16) {
        left1 read[8];
#pragma unroll
        for (u32 t = 0; t < 8; t++) read[t] = left_of(x + (u64)min(first_token + t, tokens - 1) * x_stride, d, k, lane);
        left8 left = (left8)(read[0], read[1], read[2], read[3], read[4], read[5], read[6], read[7]);
        EACH(ADD_ELEMENTS)
    }
    EACH(FINISH)
}
#else
#define EACH 4
// Depths of a vector: GPUs have registers for few.
#ifdef HALYARD_CPU
#define DEPTHS 8
#else
#define DEPTHS 4
#endif

KERNEL void linear_tiled(const __global ACT *x, const __global WEIGHT *w, const __global float *bias,
                         const __global OUT *residual, __global OUT *out, u32 x_stride, u32 residual_stride,
                         u32 out_stride, u32 tokens, u32 n, u32 k) {
    u32 id = get_local_id(0), first_row = get_group_id(0) * 64 + id % 16 * EACH,
        first_token = get_group_id(1) * 64 + id / 16 * EACH;
    if (first_row >= n || first_token >= tokens) return;
    // Rows and tokens past the end repeat the last one, and are not written.
    const __global WEIGHT *weights = w + (u64)get_group_id(0) * 64 * k;
    const __global ACT *values = x + (u64)get_group_id(1) * 64 * x_stride;
    // In elements, from the group's first: half the registers of an address.
    u32 weight_at[EACH], value_at[EACH];
    SUM(DEPTHS) sums[EACH][EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        weight_at[i] = (min(first_row + i, n - 1) - get_group_id(0) * 64) * k;
        value_at[i] = (min(first_token + i, tokens - 1) - get_group_id(1) * 64) * x_stride;
#pragma unroll
        for (u32 j = 0; j < EACH; j++) sums[i][j] = 0.f;
    }
    u32 whole = k / DEPTHS * DEPTHS;
    for (u32 d = 0; d < whole; d += DEPTHS) {
        FLOATN(DEPTHS) weight[EACH];
#pragma unroll
        for (u32 i = 0; i < EACH; i++) weight[i] = LOADN(DEPTHS, WEIGHT, weights, weight_at[i] + d);
#pragma unroll
        for (u32 t = 0; t < EACH; t++) {
            FLOATN(DEPTHS) value = LOADN(DEPTHS, ACT, values, value_at[t] + d);
#pragma unroll
            for (u32 i = 0; i < EACH; i++) sums[t][i] = ADD_PRODUCTS(DEPTHS, weight[i], value, sums[t][i]);
        }
    }
    float totals[EACH * EACH];
#pragma unroll
    for (u32 j = 0; j < EACH * EACH; j++) totals[j] = TOTAL(DEPTHS, sums[j / EACH][j % EACH]);
    for (u32 d = whole; d < k; d++) {
#pragma unroll
        for (u32 j = 0; j < EACH * EACH; j++)
            totals[j] = fma(LOAD(WEIGHT, weights, weight_at[j % EACH] + d), LOAD(ACT, values, value_at[j / EACH] + d),
                            totals[j]);
    }
    // What follows is too long to be there sixteen times, and an index that is not known would move the sums to memory.
    for (u32 j = 0; j < EACH * EACH; j++) {
        float sum = totals[0];
#pragma unroll
        for (u32 i = 1; i < EACH * EACH; i++) sum = i == j ? totals[i] : sum;
        u32 token = first_token + j / EACH, row = first_row + j % EACH;
        if (token < tokens && row < n) write_out(sum, bias, residual, out, residual_stride, out_stride, token, row);
    }
}
#endif
