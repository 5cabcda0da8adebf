// `lora_shrink` and `lora_expand`: many adapters in one batch, each token with its own.
// Definitions: ACT (x of shrink, out of expand) and WEIGHT (a, b): f32, f16, bf16.
// revision: 1
// check: -DACT=f32 -DWEIGHT=f32
// check: -DACT=f16 -DWEIGHT=bf16
// check: -DACT=bf16 -DWEIGHT=f16
#include "common.h"

#define THREADS 256
// Tokens of a group: in decode steps, and in prompts.
#define FEW 1
#define MANY 8
// Ranks of a group of `lora_shrink`.
#define RANKS 4

// Slot of token `t`; −1 where there is none, or it is past the end.
INLINE i32 slot_of(const __global i32 *token_lora, u32 stride, u32 t, u32 num_tokens, u32 num_slots) {
    if (t >= num_tokens) return -1;
    i32 slot = token_lora[(u64)t * stride];
    return (u32)slot < num_slots ? slot : -1;
}

// Grid: tokens in `each`, ranks in RANKS. A group has each · RANKS results: its work-items share out the width of each
// of them.
INLINE void shrink(const __global ACT *x, u32 x_stride, const __global WEIGHT *a, u32 slot_stride, u32 rank_stride,
                   const __global i32 *token_lora, u32 token_lora_stride, __global float *out, u32 out_stride,
                   u32 num_tokens, u32 num_slots, u32 width, u32 max_rank, __local float *parts, u32 each) {
    u32 results = each * RANKS, id = get_local_id(0), share = id / results, shares = THREADS / results;
    u32 t = get_group_id(0) * each + id % results / RANKS, rank = get_group_id(1) * RANKS + id % RANKS;
    i32 slot = slot_of(token_lora, token_lora_stride, t, num_tokens, num_slots);
    bool live = t < num_tokens && rank < max_rank;
    float rest = 0.f;
    float8 sums = 0.f;
    if (live && slot >= 0) {
        const __global WEIGHT *weights = a + (u64)slot * slot_stride + (u64)rank * rank_stride;
        const __global ACT *values = x + (u64)t * x_stride;
        u32 whole = width / 8 * 8;
        for (u32 k = 8 * share; k < whole; k += 8 * shares)
            sums = fma(LOADN(8, ACT, values, k), LOADN(8, WEIGHT, weights, k), sums);
        for (u32 k = whole + share; k < width; k += shares)
            rest = fma(LOAD(ACT, values, k), LOAD(WEIGHT, weights, k), rest);
    }
    parts[id] = sum8(sums) + rest;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (id >= results || !live) return;
    float sum = 0.f;
    for (u32 i = 0; i < shares; i++) sum += parts[i * results + id];
    out[(u64)t * out_stride + rank] = sum;
}

#define SHRINK(name, each)                                                                                            \
    KERNEL void name(const __global ACT *x, u32 x_stride, const __global WEIGHT *a, u32 slot_stride, u32 rank_stride, \
                     const __global i32 *token_lora, u32 token_lora_stride, __global float *out, u32 out_stride,      \
                     u32 num_tokens, u32 num_slots, u32 width, u32 max_rank) {                                        \
        __local float parts[THREADS];                                                                                 \
        shrink(x, x_stride, a, slot_stride, rank_stride, token_lora, token_lora_stride, out, out_stride, num_tokens,  \
               num_slots, width, max_rank, parts, each);                                                              \
    }
SHRINK(lora_shrink_few, FEW)
SHRINK(lora_shrink_many, MANY)

// Grid: tokens in `each`, features in THREADS. A work-item computes one feature of every token.
INLINE void expand(const __global float *x, u32 x_stride, const __global WEIGHT *b, u32 slot_stride, u32 feature_stride,
                   const __global float *scales, u32 scales_stride, const __global i32 *token_lora,
                   u32 token_lora_stride, __global ACT *out, u32 out_stride, u32 num_tokens, u32 num_slots,
                   u32 features, u32 max_rank, u32 second, u32 third, u32 each) {
    u32 n = get_group_id(1) * THREADS + get_local_id(0), whole = max_rank / 8 * 8;
    if (n >= features) return;
    // max_rank columns of x for each part of the features, which begin at 0, `second` and `third` (where there are
    // any).
    u32 mine = ((n >= second) + (n >= third)) * max_rank;
    for (u32 i = 0; i < each; i++) {
        u32 t = get_group_id(0) * each + i;
        i32 slot = slot_of(token_lora, token_lora_stride, t, num_tokens, num_slots);
        if (slot < 0) continue;
        const __global WEIGHT *weights = b + (u64)slot * slot_stride + (u64)n * feature_stride;
        const __global float *values = x + (u64)t * x_stride + mine;
        float8 sums = 0.f;
        float rest = 0.f;
        for (u32 r = 0; r < whole; r += 8) sums = fma(LOADN(8, f32, values, r), LOADN(8, WEIGHT, weights, r), sums);
        for (u32 r = whole; r < max_rank; r++) rest = fma(values[r], LOAD(WEIGHT, weights, r), rest);
        u64 at = (u64)t * out_stride + n;
        STORE(ACT, LOAD(ACT, out, at) + scales[(u64)slot * scales_stride] * (sum8(sums) + rest), out, at);
    }
}

#define EXPAND(name, each)                                                                                             \
    KERNEL void name(const __global float *x, u32 x_stride, const __global WEIGHT *b, u32 slot_stride,                 \
                     u32 feature_stride, const __global float *scales, u32 scales_stride,                              \
                     const __global i32 *token_lora, u32 token_lora_stride, __global ACT *out, u32 out_stride,         \
                     u32 num_tokens, u32 num_slots, u32 features, u32 max_rank, u32 x_width, u32 second, u32 third) {  \
        expand(x, x_stride, b, slot_stride, feature_stride, scales, scales_stride, token_lora, token_lora_stride, out, \
               out_stride, num_tokens, num_slots, features, max_rank, second, third, each);                            \
    }
EXPAND(lora_expand_few, FEW)
EXPAND(lora_expand_many, MANY)
