// Mixture of experts: `moe_route`, `moe_linear`, `moe_combine`.
// Definitions: ACT (x and out) and WEIGHT (experts' matrices): f32, f16, bf16; instead of WEIGHT, FORMAT (a format
// in blocks: see blocks.h).
// revision: 6
// check: -DACT=f32 -DWEIGHT=f32
// check: -DACT=f16 -DWEIGHT=f16
// check: -DACT=bf16 -DWEIGHT=bf16
// check: -DACT=f32 -DFORMAT=3
// check: -DACT=f16 -DFORMAT=4
// check: -DACT=bf16 -DFORMAT=5
// check: -DACT=f32 -DFORMAT=6
// check: -DACT=f16 -DFORMAT=7
// check: -DACT=bf16 -DFORMAT=8
// check: -DACT=f32 -DFORMAT=40
// check: -DACT=bf16 -DFORMAT=43
// check: -DACT=f16 -DFORMAT=47
// check: -DACT=bf16 -DFORMAT=48
// check: -DACT=f16 -DFORMAT=50
// check: -DACT=f32 -DFORMAT=52
// check: -DACT=bf16 -DFORMAT=55
#include "common.h"
#ifdef FORMAT
#include "blocks.h"
#endif

// `moe_route`: tokens of a group, 32 work-items each.
#define ROUTED 4

// Descending by score, then ascending by index; a NaN comes last.
INLINE u64 route_key(float score, u32 expert) {
    u32 bits = as_uint(score + 0.f);
    u32 key = isnan(score) ? 0 : bits ^ ((u32)((i32)bits >> 31) | 0x80000000u);
    return (u64)key << 32 | (u32)~expert;
}

// The sum of the `count` largest of `n` choices, largest first.
INLINE float sum_of_best(const __local float *choices, u32 n, u32 count) {
    u64 last = ~0ul;
    float sum = 0.f;
    for (u32 taken = 0; taken < count; taken++) {
        u64 best = 0;
        for (u32 i = 0; i < n; i++) {
            u64 key = route_key(choices[i], i);
            best = key < last ? max(best, key) : best;
        }
        last = best;
        sum += choices[~(u32)best];
    }
    return sum;
}

INLINE float score_of(float logit, u32 is_sigmoid, float largest, float sum) {
    return is_sigmoid ? divide_exactly(1.f, 1.f + exp(-logit)) : divide_exactly(exp(logit - largest), sum);
}

// `shared`: ROUTED · (num_experts + num_groups) floats. A token past the end repeats the last one, and is not written.
// `bias` may be null, `num_groups` 0.
KERNEL void moe_route(const __global float *logits, u32 logits_stride, __global i32 *experts, u32 experts_stride,
                      __global float *weights, u32 weights_stride, const __global float *bias, u32 num_tokens,
                      u32 num_experts, u32 top_k, u32 is_sigmoid, u32 normalize, float factor, u32 num_groups,
                      u32 top_groups, u32 group_best, __local uchar *shared) {
    __local float floats[32 * ROUTED];
    __local u64 keys[32 * ROUTED];
    u32 lane = get_local_id(0) % 32, part = get_local_id(0) / 32, asked = get_group_id(0) * ROUTED + part;
    bool live = asked < num_tokens;
    u64 t = min(asked, num_tokens - 1);
    const __global float *row = logits + t * logits_stride;
    __local float *choices = (__local float *)shared + part * (num_experts + num_groups);
    float largest = -INFINITY;
    for (u32 e = lane; e < num_experts; e += 32) largest = fmax(largest, row[e]);
    largest = lanes_max(largest, floats, lane, 32);
    float sum = 0.f;
    for (u32 e = lane; e < num_experts; e += 32) sum += exp(row[e] - largest);
    sum = lanes_sum(sum, floats, lane, 32);
    for (u32 e = lane; e < num_experts; e += 32)
        choices[e] = score_of(row[e], is_sigmoid, largest, sum) + (bias ? bias[e] : 0.f);
    // Both barriers are outside of branches: with them in `if (num_groups)`, pocl 3.1 masks all of a token's experts.
    u32 each = num_groups ? num_experts / num_groups : num_experts;
    __local float *sums = choices + num_experts;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (u32 g = lane; g < num_groups; g += 32) sums[g] = sum_of_best(choices + g * each, each, group_best);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (num_groups) {
        for (u32 e = lane; e < num_experts; e += 32) {
            u32 own = e / each, better = 0;
            for (u32 g = 0; g < num_groups; g++) better += sums[g] > sums[own] || (sums[g] == sums[own] && g < own);
            if (better >= top_groups) choices[e] = -INFINITY;
        }
    }
    // Each round takes the best that comes after the last one taken.
    u64 last = ~0ul;
    float total = 0.f;
    for (u32 j = 0; j < top_k; j++) {
        u64 best = 0;
        for (u32 e = lane; e < num_experts; e += 32) {
            u64 key = route_key(choices[e], e);
            best = key < last ? max(best, key) : best;
        }
        best = lanes_max_u64(best, keys, lane, 32);
        last = best;
        u32 expert = ~(u32)best;
        float score = score_of(row[expert], is_sigmoid, largest, sum);
        total += score;
        if (live && lane == 0) {
            experts[t * experts_stride + j] = (i32)expert;
            weights[t * weights_stride + j] = normalize ? score : score * factor;
        }
    }
    if (live && normalize && lane == 0) {
        for (u32 j = 0; j < top_k; j++) {
            __global float *to = &weights[t * weights_stride + j];
            *to = divide_exactly(*to, total) * factor;
        }
    }
}

#define LINEAR_THREADS 256
// Features of 32 work-items.
#define FEATURES 4

// Eight weights of a row from value k on, and one.
#ifdef FORMAT
INLINE float8 weights8(const __global u8 *row, u32 k) {
#if FORMAT >= 40
    float scale = scale_at(row, k), low = min_at(row, k);
    u32 a = codes_at(row, k), b = codes_at(row, k + 4);
    return (float8)(SCALED(scale, low, a & 255), SCALED(scale, low, a >> 8 & 255), SCALED(scale, low, a >> 16 & 255),
                    SCALED(scale, low, a >> 24), SCALED(scale, low, b & 255), SCALED(scale, low, b >> 8 & 255),
                    SCALED(scale, low, b >> 16 & 255), SCALED(scale, low, b >> 24));
#else
    return (float8)(value_at(row, k), value_at(row, k + 1), value_at(row, k + 2), value_at(row, k + 3),
                    value_at(row, k + 4), value_at(row, k + 5), value_at(row, k + 6), value_at(row, k + 7));
#endif
}
INLINE float weight1(const __global u8 *row, u32 k) { return value_at(row, k); }
#else
INLINE float8 weights8(const __global u8 *row, u32 k) { return LOADN(8, WEIGHT, (const __global WEIGHT *)row, k); }
INLINE float weight1(const __global u8 *row, u32 k) { return LOAD(WEIGHT, (const __global WEIGHT *)row, k); }
#endif

// `bias` may be null. Without `experts`, choice j takes matrix j: `head_linear`. Grid: features in 8 · FEATURES,
// choices (token · top_k + j) up to a bound, then in strides. 32 work-items compute FEATURES features of a choice.
KERNEL void moe_linear(const __global ACT *x, u32 token_stride, u32 input_stride, const __global u8 *weight,
                       u64 row_bytes, const __global i32 *experts, u32 experts_stride, __global ACT *out,
                       u32 out_token_stride, u32 out_choice_stride, const __global float *bias, u32 num_choices,
                       u32 top_k, u32 first_expert, u32 num_experts, u32 width, u32 features) {
    __local float shared[LINEAR_THREADS * FEATURES];
    u32 id = get_local_id(0), lane = id % 32, first = get_group_id(0) * (LINEAR_THREADS / 32 * FEATURES),
        n = first + id / 32 * FEATURES;
    for (u32 choice = get_group_id(1); choice < num_choices; choice += get_num_groups(1)) {
        u32 t = choice / top_k, j = choice % top_k, expert = j;
        if (experts) expert = (u32)experts[(u64)t * experts_stride + j] - first_expert;
        bool live = expert < num_experts;
        expert = live ? expert : 0;
        const __global ACT *input = x + (u64)t * token_stride + (u64)j * input_stride;
        for (u32 f = 0; f < (live ? FEATURES : 0); f++) {
            float8 sums = 0.f;
            float rest = 0.f;
            // A feature past the end repeats the last one.
            const __global u8 *row = weight + ((u64)expert * features + min(n + f, features - 1)) * row_bytes;
            u32 whole = width / 8 * 8;
            for (u32 k = 8 * lane; k < whole; k += 256) sums = fma(LOADN(8, ACT, input, k), weights8(row, k), sums);
            for (u32 k = whole + lane; k < width; k += 32) rest = fma(LOAD(ACT, input, k), weight1(row, k), rest);
            shared[(id / 32 * FEATURES + f) * 32 + lane] = sum8(sums) + rest;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (id < LINEAR_THREADS / 32 * FEATURES && first + id < features) {
            float sum = live ? sum16(vload16(0, shared + id * 32) + vload16(0, shared + id * 32 + 16)) : 0.f;
            if (bias && live) sum += bias[(u64)expert * features + first + id];
            STORE(ACT, sum, out, (u64)t * out_token_stride + (u64)j * out_choice_stride + first + id);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

// Grid: values of a token in groups, tokens.
KERNEL void moe_combine(const __global ACT *x, u32 token_stride, u32 choice_stride, const __global float *weights,
                        u32 weights_stride, __global ACT *out, u32 out_stride, u32 num_tokens, u32 top_k, u32 width) {
    u32 at = global_index();
    if (at >= width) return;
    for (u32 t = get_group_id(1); t < num_tokens; t += get_num_groups(1)) {
        float sum = 0.f;
        for (u32 j = 0; j < top_k; j++)
            sum += weights[(u64)t * weights_stride + j] *
                   LOAD(ACT, x, (u64)t * token_stride + (u64)j * choice_stride + at);
        STORE(ACT, sum, out, (u64)t * out_stride + at);
    }
}
