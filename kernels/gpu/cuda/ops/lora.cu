// `lora_shrink` and `lora_expand`: many adapters in one batch. A block takes one token, or a few neighbours: where
// these use the same adapter, which is the rule in a prompt, its weights are read once for all of them.
// Definitions: ACT (x of shrink, out of expand) and WEIGHT (a, b): f32, f16, bf16.
// revision: 1
// check: -DACT=f32 -DWEIGHT=f32
// check: -DACT=f32 -DWEIGHT=f16
// check: -DACT=f32 -DWEIGHT=bf16
// check: -DACT=f16 -DWEIGHT=f32
// check: -DACT=f16 -DWEIGHT=f16
// check: -DACT=f16 -DWEIGHT=bf16
// check: -DACT=bf16 -DWEIGHT=f32
// check: -DACT=bf16 -DWEIGHT=f16
// check: -DACT=bf16 -DWEIGHT=bf16
#include "lora.cuh"
#include "vector.cuh"

// Threads of a block of `lora_expand`, and the most of `lora_shrink`.
#define THREADS 256
#define SHRINK_THREADS 512
// Tokens of a block: in decode steps, where neighbours differ, and in prompts.
#define FEW 1
#define MANY 8
// Ranks of a block of `lora_shrink`.
#define RANKS 4

// Sums of COUNT values (a power of two, at most 32) over a warp: a lane gets that of value lane % COUNT. Values are
// shared out as soon as there are as many lanes with the same part of a sum, so that 32 of them take 31 exchanges and
// not 160. Each sum is added up in the same order for every COUNT.
template <u32 COUNT, u32 MASK = 16> __device__ __forceinline__ float warp_sums(float *values) {
    if constexpr (MASK >= COUNT) {
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) values[i] += __shfl_xor_sync(0xffffffffu, values[i], MASK);
    } else {
        bool upper = threadIdx.x & MASK;
#pragma unroll
        for (u32 i = 0; i < MASK; i++) {
            float kept = upper ? values[i + MASK] : values[i], given = upper ? values[i] : values[i + MASK];
            values[i] = kept + __shfl_xor_sync(0xffffffffu, given, MASK);
        }
    }
    if constexpr (MASK > 1) return warp_sums<COUNT, MASK / 2>(values);
    return values[0];
}

__device__ __forceinline__ bool is_aligned(const void *p, u64 stride_bytes) {
    return ((u64)p | stride_bytes) % 16 == 0;
}

// Grid: tokens in TOKENS, ranks in RANKS; up to SHRINK_THREADS threads. A block's warps share out the width.
template <u32 TOKENS>
__device__ __forceinline__ void shrink(const ACT *x, u32 x_stride, const WEIGHT *a, u32 slot_stride, u32 rank_stride,
                                       const i32 *token_lora, u32 token_lora_stride, float *out, u32 out_stride,
                                       u32 num_tokens, u32 num_slots, u32 width, u32 max_rank) {
    __shared__ float parts[SHRINK_THREADS / 32][TOKENS * RANKS];
    wait_for_previous();
    let_next_start();
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, first = blockIdx.x * TOKENS, rank = blockIdx.y * RANKS;
    Groups<TOKENS> groups(token_lora, token_lora_stride, first, num_tokens, num_slots);
    bool vector = is_aligned(x, x_stride * sizeof(ACT)) && is_aligned(a, rank_stride * sizeof(WEIGHT)) &&
                  (u64)slot_stride * sizeof(WEIGHT) % 16 == 0;
    u32 whole = vector ? width / 8 * 8 : 0;
    float sums[TOKENS * RANKS] = {};
    i32 slot;
    while (u32 same = groups.next(slot)) {
        const WEIGHT *weights[RANKS];
#pragma unroll
        for (u32 r = 0; r < RANKS; r++)
            weights[r] = a + (u64)slot * slot_stride + (u64)min(rank + r, max_rank - 1) * rank_stride;
        for (u32 k = 8 * threadIdx.x; k < whole; k += 8 * blockDim.x) {
            // All loads of a round are in flight before the first value is used, those of tokens that belong to others
            // too.
            Group<WEIGHT, 8> raw[RANKS];
            Group<ACT, 8> values[TOKENS];
#pragma unroll
            for (u32 i = 0; i < TOKENS; i++) values[i].load(x + (u64)min(first + i, num_tokens - 1) * x_stride + k);
#pragma unroll
            for (u32 r = 0; r < RANKS; r++) raw[r].load(weights[r] + k);
            float w[RANKS][8], v[8];
#pragma unroll
            for (u32 r = 0; r < RANKS; r++) raw[r].get(w[r]);
#pragma unroll
            for (u32 i = 0; i < TOKENS; i++) {
                if (!(same >> i & 1)) continue;
                values[i].get(v);
#pragma unroll
                for (u32 r = 0; r < RANKS; r++) {
#pragma unroll
                    for (u32 j = 0; j < 8; j++) sums[i * RANKS + r] += v[j] * w[r][j];
                }
            }
        }
        for (u32 k = whole + threadIdx.x; k < width; k += blockDim.x) {
#pragma unroll
            for (u32 i = 0; i < TOKENS; i++) {
                if (!(same >> i & 1)) continue;
                float v = to_f32(x[(u64)(first + i) * x_stride + k]);
#pragma unroll
                for (u32 r = 0; r < RANKS; r++) sums[i * RANKS + r] += v * to_f32(weights[r][k]);
            }
        }
    }
    float mine = warp_sums<TOKENS * RANKS>(sums);
    if (lane < TOKENS * RANKS) parts[warp][lane] = mine;
    __syncthreads();
    u32 i = threadIdx.x / RANKS, r = threadIdx.x % RANKS;
    if (i >= TOKENS || first + i >= num_tokens || rank + r >= max_rank) return;
    float sum = 0.f;
    for (u32 w = 0; w < blockDim.x / 32; w++) sum += parts[w][threadIdx.x];
    out[(u64)(first + i) * out_stride + rank + r] = sum;
}

#define SHRINK(name, tokens)                                                                                         \
    extern "C" __global__ void __launch_bounds__(SHRINK_THREADS) name(                                               \
        const ACT *x, u32 x_stride, const WEIGHT *a, u32 slot_stride, u32 rank_stride, const i32 *token_lora,        \
        u32 token_lora_stride, float *out, u32 out_stride, u32 num_tokens, u32 num_slots, u32 width, u32 max_rank) { \
        shrink<tokens>(x, x_stride, a, slot_stride, rank_stride, token_lora, token_lora_stride, out, out_stride,     \
                       num_tokens, num_slots, width, max_rank);                                                      \
    }
SHRINK(lora_shrink_few, FEW)
SHRINK(lora_shrink_many, MANY)

// Grid: tokens in TOKENS, features in THREADS. A thread computes one feature; shared: the tokens' x, TOKENS · x_width
// floats: max_rank for each part of the features, which begin at 0, `second` and `third` (where there are any).
template <u32 TOKENS>
__device__ __forceinline__ void expand(const float *x, u32 x_stride, const WEIGHT *b, u32 slot_stride,
                                       u32 feature_stride, const float *scales, u32 scales_stride,
                                       const i32 *token_lora, u32 token_lora_stride, ACT *out, u32 out_stride,
                                       u32 num_tokens, u32 num_slots, u32 features, u32 max_rank, u32 x_width,
                                       u32 second, u32 third) {
    extern __shared__ float4 fours_of_inputs[];
    float *inputs = (float *)fours_of_inputs;
    wait_for_previous();
    let_next_start();
    u32 first = blockIdx.x * TOKENS, n = blockIdx.y * THREADS + threadIdx.x;
    // Asked for before anything else is known: one after another they would take most of the time.
    ACT old[TOKENS];
#pragma unroll
    for (u32 i = 0; i < TOKENS; i++)
        old[i] = out[(u64)min(first + i, num_tokens - 1) * out_stride + min(n, features - 1)];
    bool fours = ((u64)x | (u64)x_stride * 4 | (u64)x_width * 4 | (u64)max_rank * 4) % 16 == 0;
    if (fours) {
        for (u32 at = threadIdx.x; at < TOKENS * x_width / 4; at += THREADS) {
            u32 i = 4 * at / x_width;
            fours_of_inputs[at] = *(const float4 *)(x + (u64)min(first + i, num_tokens - 1) * x_stride +
                                                    (4 * at - i * x_width));
        }
    } else {
        for (u32 at = threadIdx.x; at < TOKENS * x_width; at += THREADS)
            inputs[at] = x[(u64)min(first + at / x_width, num_tokens - 1) * x_stride + at % x_width];
    }
    Groups<TOKENS> groups(token_lora, token_lora_stride, first, num_tokens, num_slots);
    if (groups.left == 0) return;
    __syncthreads();
    if (n >= features) return;
    const float *mine = inputs + ((n >= second) + (n >= third)) * max_rank;
    bool vector = fours && is_aligned(b, feature_stride * sizeof(WEIGHT)) &&
                  (u64)slot_stride * sizeof(WEIGHT) % 16 == 0;
    u32 whole = vector ? max_rank / 8 * 8 : 0;
    i32 slot;
    while (u32 same = groups.next(slot)) {
        const WEIGHT *weights = b + (u64)slot * slot_stride + (u64)n * feature_stride;
        float sums[TOKENS] = {};
        for (u32 r = 0; r < whole; r += 8) {
            Group<WEIGHT, 8> raw;
            float w[8];
            raw.load(weights + r);
            raw.get(w);
#pragma unroll
            for (u32 i = 0; i < TOKENS; i++) {
                if (!(same >> i & 1)) continue;
                const float4 *v = (const float4 *)(mine + i * x_width + r);
                float4 low = v[0], high = v[1];
                sums[i] += low.x * w[0] + low.y * w[1] + low.z * w[2] + low.w * w[3];
                sums[i] += high.x * w[4] + high.y * w[5] + high.z * w[6] + high.w * w[7];
            }
        }
        for (u32 r = whole; r < max_rank; r++) {
            float w = to_f32(weights[r]);
#pragma unroll
            for (u32 i = 0; i < TOKENS; i++) sums[i] += mine[i * x_width + r] * w;
        }
        float scale = scales[(u64)slot * scales_stride];
#pragma unroll
        for (u32 i = 0; i < TOKENS; i++) {
            if (!(same >> i & 1)) continue;
            out[(u64)(first + i) * out_stride + n] = from_f32<ACT>(to_f32(old[i]) + scale * sums[i]);
        }
    }
}

#define EXPAND(name, tokens)                                                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        name(const float *x, u32 x_stride, const WEIGHT *b, u32 slot_stride, u32 feature_stride, const float *scales,  \
             u32 scales_stride, const i32 *token_lora, u32 token_lora_stride, ACT *out, u32 out_stride,                \
             u32 num_tokens, u32 num_slots, u32 features, u32 max_rank, u32 x_width, u32 second, u32 third) {          \
        expand<tokens>(x, x_stride, b, slot_stride, feature_stride, scales, scales_stride, token_lora,                 \
                       token_lora_stride, out, out_stride, num_tokens, num_slots, features, max_rank, x_width, second, \
                       third);                                                                                         \
    }
EXPAND(lora_expand_few, FEW)
EXPAND(lora_expand_many, MANY)
