// `gather_rows` and `scatter_rows` (bytes, any type), and with ACT defined `quantize_act` and `pool`.
//
// Definitions: none, or ACT = f32, f16 or bf16, the type of x.
// revision: 1
// check:
// check: -DACT=f32
// check: -DACT=f16
// check: -DACT=bf16
#include "common.h"

#ifndef ACT

// Row i of `count`: gather writes out[i] = x[index[i]], scatter out[index[i]] = x[i]. `other_rows`: rows that an index
// may name; -1 and indices outside (a caller's bug) move nothing. Pitches and `units` of a row count units.
#define ENTRY(name, UNIT)                                                                                \
    KERNEL void name(const __global UNIT *x, u64 x_pitch, const __global i32 *index, __global UNIT *out, \
                     u64 out_pitch, u32 count, u32 units, u32 other_rows, u32 scatter) {                 \
        u32 i = global_index(), row = i / units, unit = i - row * units;                                 \
        if (row >= count) return;                                                                        \
        u32 other = (u32)index[row];                                                                     \
        if (other >= other_rows) return;                                                                 \
        out[(scatter ? other : row) * out_pitch + unit] = x[(scatter ? row : other) * x_pitch + unit];   \
    }

ENTRY(move_rows_16, uint4)
ENTRY(move_rows_4, u32)
ENTRY(move_rows_1, u8)

#else

#define THREADS 256

// The largest number of each code, and the code of a quotient.
#define LIMIT_INT8 127.f
#define CODE_INT8(x) (u8)(i8)clamp(convert_int_sat_rte(x), -127, 127)
#define LIMIT_FP8 448.f
#define CODE_FP8(x) f32_to_e4m3(x)

INLINE float over_scale(float x, float scale) { return scale == 0.f ? 0.f : divide_exactly(x, scale); }

// A group a row, one scale a row; the second pass finds the row in the cache.
#define ROW_ENTRY(name, CODE, LIMIT)                                                                            \
    KERNEL void name(const __global ACT *x, u64 x_stride, __global u8 *q, u64 q_stride, __global float *scales, \
                     u64 scale_stride, u32 width) {                                                             \
        __local float shared[THREADS];                                                                          \
        u32 row = get_group_id(0), id = get_local_id(0), step = get_local_size(0);                              \
        x += row * x_stride;                                                                                    \
        q += row * q_stride;                                                                                    \
        float largest = 0.f;                                                                                    \
        for (u32 i = id; i < width; i += step) largest = fmax(largest, fabs(LOAD(ACT, x, i)));                  \
        float scale = divide_exactly(block_max(largest, shared), LIMIT);                                        \
        for (u32 i = id; i < width; i += step) q[i] = CODE(over_scale(LOAD(ACT, x, i), scale));                 \
        if (id == 0) scales[row * scale_stride] = scale;                                                        \
    }
ROW_ENTRY(quantize_int8_vector, CODE_INT8, LIMIT_INT8)
ROW_ENTRY(quantize_int8_scalar, CODE_INT8, LIMIT_INT8)
ROW_ENTRY(quantize_fp8_vector, CODE_FP8, LIMIT_FP8)
ROW_ENTRY(quantize_fp8_scalar, CODE_FP8, LIMIT_FP8)

// The work-item that meets the first of 32 values does them all: `each` values a work-item were asked for, `groups`
// work-items a row.
INLINE void quantize_block(const __global ACT *x, u64 x_stride, __global u8 *q, u64 q_stride, __global float *scales,
                                  u64 scale_stride, u32 groups, u32 total, u32 each) {
    u32 i = global_index(), row = i / groups, column = (i - row * groups) * each;
    if (i >= total || column % 32 != 0) return;
    const __global ACT *from = x + row * x_stride + column;
    __global u8 *to = q + row * q_stride + column;
    float largest = 0.f;
    for (u32 k = 0; k < 32; k++) largest = fmax(largest, fabs(LOAD(ACT, from, k)));
    float scale = divide_exactly(largest, LIMIT_INT8);
    for (u32 k = 0; k < 32; k++) to[k] = CODE_INT8(over_scale(LOAD(ACT, from, k), scale));
    scales[row * scale_stride + column / 32] = scale;
}

#define BLOCK_ENTRY(name, each)                                                                                 \
    KERNEL void name(const __global ACT *x, u64 x_stride, __global u8 *q, u64 q_stride, __global float *scales, \
                     u64 scale_stride, u32 groups, u32 total) {                                                 \
        quantize_block(x, x_stride, q, q_stride, scales, scale_stride, groups, total, each);                    \
    }
BLOCK_ENTRY(quantize_block32_vector, PER_VECTOR(ACT))
BLOCK_ENTRY(quantize_block32_scalar, 1)

// 32 columns of a sequence a group; eight work-items a column share the tokens. `mode`: 0 last, 1 mean, 2 first. Starts
// are kept inside 0 .. num_tokens.
KERNEL void pool_rows(const __global ACT *x, u64 x_stride, u32 num_tokens, const __global i32 *query_start_loc,
                      __global float *out, u64 out_stride, u32 width, u32 mode) {
    __local float parts[THREADS];
    u32 seq = get_group_id(0), id = get_local_id(0), column = get_group_id(1) * 32 + id % 32;
    i32 start = max(0, query_start_loc[seq]), end = min((i32)num_tokens, query_start_loc[seq + 1]),
        count = max(0, end - start);
    if (count > 0 && mode != 1) {
        start = mode == 0 ? end - 1 : start;
        end = start + 1;
    }
    float sum = 0.f;
    if (column < width) {
        for (i32 t = start + (i32)(id / 32); t < end; t += THREADS / 32) sum += LOAD(ACT, x, t * x_stride + column);
    }
    parts[id] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (id < 32 && column < width) {
        for (u32 i = 1; i < THREADS / 32; i++) sum += parts[32 * i + id];
        out[seq * out_stride + column] = mode == 1 && count > 0 ? sum / (float)count : sum;
    }
}

// A group a row: divides by the Euclidean norm, at least 1e-12.
KERNEL void pool_normalize(__global float *out, u64 out_stride, u32 width) {
    __local float shared[THREADS];
    __global float *row = out + get_group_id(0) * out_stride;
    u32 id = get_local_id(0), step = get_local_size(0);
    float part = 0.f;
    for (u32 i = id; i < width; i += step) part += row[i] * row[i];
    float norm = fmax(sqrt(block_sum(part, shared)), 1e-12f);
    for (u32 i = id; i < width; i += step) row[i] /= norm;
}

#endif
