// `rope`: rotates pairs of each head by table values of the token's position, in place. A work-item turns some
// neighbouring pairs of one head: `_vector` those of 16 bytes, `_scalar` one.
//
// Definitions: ACT = f32, f16 or bf16, the type of x; INTERLEAVED = 0: pairs (i, i + rotary_dim / 2), 1: pairs (2i, 2i
// + 1).
// revision: 1
// check: -DACT=f32 -DINTERLEAVED=0
// check: -DACT=f16 -DINTERLEAVED=0
// check: -DACT=bf16 -DINTERLEAVED=0
// check: -DACT=f32 -DINTERLEAVED=1
// check: -DACT=f16 -DINTERLEAVED=1
// check: -DACT=bf16 -DINTERLEAVED=1
#include "common.h"

// Elements of a work-item's pairs that lie side by side in each half.
#if INTERLEAVED
#define PAIRS (PER_VECTOR(ACT) / 2)
#else
#define PAIRS PER_VECTOR(ACT)
#endif

// `groups` work-items a head, `total` in all. A position outside the table (a caller's bug) leaves its head as it is.
INLINE void rotate_pairs(const __global i32 *positions, const __global float *table, u32 num_positions, __global ACT *x,
                         u64 token_stride, u64 head_stride, u32 heads, u32 half_dim, u32 groups, u32 total, u32 pairs) {
    u32 i = global_index();
    if (i >= total) return;
    u32 head = i / groups, pair = (i - head * groups) * pairs;
    u32 token = head / heads;
    head -= token * heads;
    u32 position = (u32)positions[token];
    if (position >= num_positions) return;
    const __global float *cosines = table + (u64)position * (2 * half_dim) + pair, *sines = cosines + half_dim;
    __global ACT *at = x + token * token_stride + head * head_stride;
    for (u32 k = 0; k < pairs; k++) {
#if INTERLEAVED
        u32 first = 2 * (pair + k), second = first + 1;
#else
        u32 first = pair + k, second = first + half_dim;
#endif
        float a = LOAD(ACT, at, first), b = LOAD(ACT, at, second), c = cosines[k], s = sines[k];
        STORE(ACT, a * c - b * s, at, first);
        STORE(ACT, b * c + a * s, at, second);
    }
}

#define ENTRY(name, pairs)                                                                                           \
    KERNEL void name(const __global i32 *positions, const __global float *table, u32 num_positions, __global ACT *x, \
                     u64 token_stride, u64 head_stride, u32 heads, u32 half_dim, u32 groups, u32 total) {            \
        rotate_pairs(positions, table, num_positions, x, token_stride, head_stride, heads, half_dim, groups, total,  \
                     pairs);                                                                                         \
    }

ENTRY(rope_vector, PAIRS)
ENTRY(rope_scalar, 1)
