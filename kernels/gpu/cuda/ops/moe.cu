// Mixture of experts: `moe_route`, `moe_linear`, `moe_combine`.
// Definitions: ACT (x and out) and WEIGHT (experts' matrices): f32, f16, bf16; instead of WEIGHT, FORMAT (a format
// in blocks: see blocks.cuh).
// revision: 6
// check: -DACT=f32 -DWEIGHT=f32
// check: -DACT=f32 -DWEIGHT=f16
// check: -DACT=f32 -DWEIGHT=bf16
// check: -DACT=f16 -DWEIGHT=f32
// check: -DACT=f16 -DWEIGHT=f16
// check: -DACT=f16 -DWEIGHT=bf16
// check: -DACT=bf16 -DWEIGHT=f32
// check: -DACT=bf16 -DWEIGHT=f16
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
#include "eights.cuh"

// `moe_route`: tokens of a block, a warp each; experts that a lane can hold in registers.
#define ROUTED 4
#define HELD 8

// Descending by score, then ascending by index; a NaN comes last.
__device__ __forceinline__ u64 route_key(float score, u32 expert) {
    u32 bits = __float_as_uint(score + 0.f);
    u32 key = score != score ? 0 : bits ^ ((u32)((i32)bits >> 31) | 0x80000000u);
    return (u64)key << 32 | (u32)~expert;
}

// The sum of the `count` largest of `n` choices, largest first.
__device__ __forceinline__ float sum_of_best(const float *choices, u32 n, u32 count) {
    u64 last = ~0ull;
    float sum = 0.f;
    for (u32 taken = 0; taken < count; taken++) {
        u64 best = 0;
        for (u32 i = 0; i < n; i++) {
            u64 key = route_key(choices[i], i);
            if (key < last && key > best) best = key;
        }
        last = best;
        sum += choices[~(u32)best];
    }
    return sum;
}

// Leaves choices of the best groups as they are, and makes all others the last. Behind the choices are `num_groups`
// floats of room.
__device__ __forceinline__ void keep_best_groups(float *choices, u32 num_experts, u32 num_groups, u32 top_groups,
                                                 u32 group_best) {
    u32 lane = threadIdx.x & 31, each = num_experts / num_groups;
    float *sums = choices + num_experts;
    __syncwarp();
    for (u32 g = lane; g < num_groups; g += 32) sums[g] = sum_of_best(choices + g * each, each, group_best);
    __syncwarp();
    for (u32 e = lane; e < num_experts; e += 32) {
        u32 own = e / each, better = 0;
        for (u32 g = 0; g < num_groups; g++) better += sums[g] > sums[own] || (sums[g] == sums[own] && g < own);
        if (better >= top_groups) choices[e] = -INFINITY_F;
    }
}

// Shared: ROUTED · (num_experts + num_groups) floats. `bias` may be null, `num_groups` 0.
extern "C" __global__ void moe_route(const float *logits, u32 logits_stride, i32 *experts, u32 experts_stride,
                                     float *weights, u32 weights_stride, const float *bias, u32 num_tokens,
                                     u32 num_experts, u32 top_k, u32 is_sigmoid, u32 normalize, float factor,
                                     u32 num_groups, u32 top_groups, u32 group_best) {
    extern __shared__ float all_choices[];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, t = blockIdx.x * ROUTED + warp;
    float *choices = all_choices + warp * (num_experts + num_groups);
    wait_for_previous();
    if (t >= num_tokens) return;
    const float *row = logits + (u64)t * logits_stride;
    experts += (u64)t * experts_stride;
    weights += (u64)t * weights_stride;
#if !defined(PORTABLE)
    if (num_experts <= 32 * HELD && top_k <= 32) {
        // Lane l holds experts l, l + 32, ..., and later choice l.
        float scores[HELD], max = -INFINITY_F, sum = 0.f, total = 0.f;
#pragma unroll
        for (u32 i = 0; i < HELD; i++) {
            u32 e = lane + 32 * i;
            scores[i] = e < num_experts ? row[e] : -INFINITY_F;
            max = fmaxf(max, scores[i]);
        }
        let_next_start();
        max = warp_max(max);
#pragma unroll
        for (u32 i = 0; i < HELD; i++) {
            scores[i] = expf(is_sigmoid ? -scores[i] : scores[i] - max);
            if (lane + 32 * i < num_experts) sum += scores[i];
        }
        sum = warp_sum(sum);
        // Numbers that compare as route_key does, and which of them are not taken yet.
        u32 keys[HELD], left = 0;
#pragma unroll
        for (u32 i = 0; i < HELD; i++) {
            u32 e = lane + 32 * i;
            scores[i] = is_sigmoid ? __fdiv_rn(1.f, 1.f + scores[i]) : __fdiv_rn(scores[i], sum);
            if (e < num_experts) choices[e] = bias ? scores[i] + bias[e] : scores[i];
        }
        if (num_groups) keep_best_groups(choices, num_experts, num_groups, top_groups, group_best);
        __syncwarp();
#pragma unroll
        for (u32 i = 0; i < HELD; i++) {
            u32 e = lane + 32 * i;
            keys[i] = e < num_experts ? (u32)(route_key(choices[e], e) >> 32) : 0;
            left |= (e < num_experts ? 1u : 0u) << i;
        }
        u32 own = 0;
        float own_score = 0.f;
        for (u32 j = 0; j < top_k; j++) {
            u32 best = 0, expert = ~0u;
            float score = 0.f;
#pragma unroll
            for (u32 i = 0; i < HELD; i++) {
                bool better = (left >> i & 1) && (expert == ~0u || keys[i] > best);
                best = better ? keys[i] : best;
                expert = better ? lane + 32 * i : expert;
                score = better ? scores[i] : score;
            }
            u32 highest = __reduce_max_sync(0xffffffffu, best);
            expert = __reduce_min_sync(0xffffffffu, best == highest ? expert : ~0u);
            score = __shfl_sync(0xffffffffu, score, expert % 32);
            if (lane == expert % 32) left &= ~(1u << expert / 32);
            total += score;
            if (lane == j) own = expert, own_score = score;
        }
        if (lane < top_k) {
            experts[lane] = (i32)own;
            weights[lane] = (normalize ? __fdiv_rn(own_score, total) : own_score) * factor;
        }
        return;
    }
#endif
    float max = -INFINITY_F, sum = 0.f, total = 0.f;
    for (u32 e = lane; e < num_experts; e += 32) max = fmaxf(max, row[e]);
    max = warp_max(max);
    if (!is_sigmoid) {
        for (u32 e = lane; e < num_experts; e += 32) sum += expf(row[e] - max);
        sum = warp_sum(sum);
    }
    auto score_of = [&](u32 e) {
        return is_sigmoid ? __fdiv_rn(1.f, 1.f + expf(-row[e])) : __fdiv_rn(expf(row[e] - max), sum);
    };
    for (u32 e = lane; e < num_experts; e += 32) choices[e] = bias ? score_of(e) + bias[e] : score_of(e);
    let_next_start();
    if (num_groups) keep_best_groups(choices, num_experts, num_groups, top_groups, group_best);
    // Each round takes the best that comes after the last one taken.
    u64 last = ~0ull;
    for (u32 j = 0; j < top_k; j++) {
        u64 best = 0;
        for (u32 e = lane; e < num_experts; e += 32) {
            u64 key = route_key(choices[e], e);
            if (key < last && key > best) best = key;
        }
        for (u32 mask = 16; mask > 0; mask >>= 1) {
            u64 other = __shfl_xor_sync(0xffffffffu, best, mask);
            best = best < other ? other : best;
        }
        last = best;
        u32 expert = ~(u32)best;
        float score = score_of(expert);
        total += score;
        if (lane == 0) {
            experts[j] = (i32)expert;
            weights[j] = normalize ? score : score * factor;
        }
    }
    if (normalize && lane == 0)
        for (u32 j = 0; j < top_k; j++) weights[j] = __fdiv_rn(weights[j], total) * factor;
}

#define LINEAR_THREADS 256

// Features of a warp.
#define FEATURES 4

// `bias` may be null. Without `experts`, choice j takes matrix j: `head_linear`. Choices of other experts than those
// from `first_expert` on become 0. Grid: features in 8 · FEATURES,
// choices (token · top_k + j) up to a bound, then in strides. A warp computes FEATURES features of a choice.
extern "C" __global__ void __launch_bounds__(LINEAR_THREADS)
    moe_linear(const ACT *x, u32 token_stride, u32 input_stride, const u8 *weight, u64 row_bytes, const i32 *experts,
               u32 experts_stride, ACT *out, u32 out_token_stride, u32 out_choice_stride, const float *bias,
               u32 num_choices, u32 top_k, u32 first_expert, u32 num_experts, u32 width, u32 features) {
    wait_for_previous();
    let_next_start();
    u32 lane = threadIdx.x & 31, n = (blockIdx.x * (LINEAR_THREADS / 32) + (threadIdx.x >> 5)) * FEATURES;
    if (n >= features) return;
    for (u32 choice = blockIdx.y; choice < num_choices; choice += gridDim.y) {
        u32 t = choice / top_k, j = choice % top_k;
        u32 expert = experts ? (u32)experts[(u64)t * experts_stride + j] - first_expert : j;
        if (expert >= num_experts) {
            ACT *to = out + (u64)t * out_token_stride + (u64)j * out_choice_stride + n;
            if (lane < FEATURES && n + lane < features) to[lane] = from_f32<ACT>(0.f);
            continue;
        }
        const ACT *input = x + (u64)t * token_stride + (u64)j * input_stride;
        const u8 *rows = weight + ((u64)expert * features + n) * row_bytes;
        bool vector = ((u64)input | (kBlocks ? 0 : (u64)rows | row_bytes)) % 16 == 0;
        u32 whole = vector ? width / 8 * 8 : 0;
        float sums[FEATURES] = {0.f, 0.f, 0.f, 0.f};
        for (u32 k = 8 * lane; k < whole; k += 256) {
            float v[8], w[8];
            load8(input + k, v);
#pragma unroll
            for (u32 i = 0; i < FEATURES; i++) {
                if (n + i >= features) continue;
                weights8(rows + i * row_bytes, k, w);
#pragma unroll
                for (u32 e = 0; e < 8; e++) sums[i] += v[e] * w[e];
            }
        }
        for (u32 k = whole + lane; k < width; k += 32) {
            float v = to_f32(input[k]);
#pragma unroll
            for (u32 i = 0; i < FEATURES; i++) {
                if (n + i < features) sums[i] += v * weight1(rows + i * row_bytes, k);
            }
        }
#pragma unroll
        for (u32 i = 0; i < FEATURES; i++) {
            float sum = warp_sum(sums[i]);
            if (lane == 0 && n + i < features) {
                if (bias) sum += bias[(u64)expert * features + n + i];
                out[(u64)t * out_token_stride + (u64)j * out_choice_stride + n + i] = from_f32<ACT>(sum);
            }
        }
    }
}

// Grid: values of a token in blocks, tokens.
extern "C" __global__ void moe_combine(const ACT *x, u32 token_stride, u32 choice_stride, const float *weights,
                                       u32 weights_stride, ACT *out, u32 out_stride, u32 num_tokens, u32 top_k,
                                       u32 width) {
    wait_for_previous();
    let_next_start();
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= width) return;
    for (u32 t = blockIdx.y; t < num_tokens; t += gridDim.y) {
        float sum = 0.f;
        for (u32 j = 0; j < top_k; j++) {
            sum += weights[(u64)t * weights_stride + j] *
                   to_f32(x[(u64)t * token_stride + (u64)j * choice_stride + at]);
        }
        out[(u64)t * out_stride + at] = from_f32<ACT>(sum);
    }
}
