// `rms_norm` and `layer_norm`: work-items that share a row sum it through local memory and scale it in a second pass,
// which finds it in the first-level cache. Wide rows take a group, narrow ones (the heads of q and k) a part of one.
// Row r of [T, G, width] is (r / G, r mod G). Of layer_norm each group may have a weight and a bias of its own,
// weight_inner floats apart (0: the same for all).
//
// Definitions: ACT = f32, f16 or bf16, the type of x and out; LAYER = 0 (rms_norm) or 1 (layer_norm).
// revision: 2
// check: -DACT=f32 -DLAYER=0
// check: -DACT=f16 -DLAYER=0
// check: -DACT=bf16 -DLAYER=0
// check: -DACT=f32 -DLAYER=1
// check: -DACT=f16 -DLAYER=1
// check: -DACT=bf16 -DLAYER=1
#include "common.h"

// Most work-items of a group.
#define THREADS 512

// Work-item `lane` of `lanes` takes pieces lane, lane + lanes, .. of N elements; rows first, first + step, ... All
// work-items of a group take part in every round, with rows past the end left out.
#define NORM_ROWS(name, N)                                                                                             \
    INLINE void name(const __global ACT *x, u64 x_outer, u64 x_inner, const __global float *weight,                    \
                     const __global float *bias, __global ACT *out, u64 out_outer, u64 out_inner, u32 rows, u32 inner, \
                     u32 width, float eps, float weight_offset, u32 weight_inner, u32 lane, u32 lanes, u32 first,      \
                     u32 step, __local float *shared) {                                                                \
        u32 pieces = width / N, rounds = (rows + step - 1) / step;                                                     \
        for (u32 round = 0; round < rounds; round++) {                                                                 \
            u32 row = first + round * step;                                                                            \
            bool live = row < rows;                                                                                    \
            u32 outer = live ? row / inner : 0, at = live ? row - outer * inner : 0;                                   \
            const __global ACT *from = x + outer * x_outer + at * x_inner;                                             \
            __global ACT *to = out + outer * out_outer + at * out_inner;                                               \
            u32 end = live ? pieces : 0, own = LAYER ? at * weight_inner : 0;                                          \
            float mean = 0.f;                                                                                          \
            FLOATN(N) parts = 0.f;                                                                                     \
            if (LAYER) {                                                                                               \
                for (u32 i = lane; i < end; i += lanes) parts += LOADN(N, ACT, from, i * N);                           \
                mean = lanes_sum(CAT(total, N)(parts), shared, lane, lanes) / (float)width;                            \
                parts = 0.f;                                                                                           \
            }                                                                                                          \
            for (u32 i = lane; i < end; i += lanes) {                                                                  \
                FLOATN(N) v = LOADN(N, ACT, from, i * N) - mean;                                                       \
                parts += v * v;                                                                                        \
            }                                                                                                          \
            float squares = lanes_sum(CAT(total, N)(parts), shared, lane, lanes);                                      \
            float inverse = 1.f / sqrt(squares / (float)width + eps);                                                  \
            for (u32 i = lane; i < end; i += lanes) {                                                                  \
                FLOATN(N)                                                                                              \
                y = (LOADN(N, ACT, from, i * N) - mean) * inverse *                                                    \
                    (LOADN(N, f32, weight, own + i * N) + weight_offset);                                              \
                if (LAYER && bias) y += LOADN(N, f32, bias, own + i * N);                                              \
                STOREN(N, ACT, y, to, i *N);                                                                           \
            }                                                                                                          \
        }                                                                                                              \
    }
#define total1(x) (x)
#define total4(x) sum4(x)
#define total8(x) sum8(x)
NORM_ROWS(norm_vectors, PER_VECTOR(ACT))
NORM_ROWS(norm_elements, 1)

#define PARAMETERS                                                                                             \
    const __global ACT *x, u64 x_outer, u64 x_inner, const __global float *weight, const __global float *bias, \
        __global ACT *out, u64 out_outer, u64 out_inner, u32 rows, u32 inner, u32 width, float eps,            \
        float weight_offset, u32 weight_inner
#define ARGUMENTS                                                                                           \
    x, x_outer, x_inner, weight, bias, out, out_outer, out_inner, rows, inner, width, eps, weight_offset, \
        weight_inner

// A group a row.
#define BLOCK_ENTRY(name, RUN)                                                                          \
    KERNEL void name(PARAMETERS) {                                                                      \
        __local float shared[THREADS];                                                                  \
        RUN(ARGUMENTS, get_local_id(0), get_local_size(0), get_group_id(0), get_num_groups(0), shared); \
    }
// `lanes` work-items a row.
#define LANE_ENTRY(name)                                                                   \
    KERNEL void name(PARAMETERS, u32 lanes) {                                              \
        __local float shared[THREADS];                                                     \
        u32 at_once = get_local_size(0) / lanes, id = get_local_id(0);                     \
        norm_vectors(ARGUMENTS, id % lanes, lanes, get_group_id(0) * at_once + id / lanes, \
                     get_num_groups(0) * at_once, shared);                                 \
    }

BLOCK_ENTRY(norm_block_1, norm_vectors)
BLOCK_ENTRY(norm_block_2, norm_vectors)
BLOCK_ENTRY(norm_block_4, norm_vectors)
LANE_ENTRY(norm_lanes_1)
LANE_ENTRY(norm_lanes_2)
// Any width and alignment.
BLOCK_ENTRY(norm_any, norm_elements)
