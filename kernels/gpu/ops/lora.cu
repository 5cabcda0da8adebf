// `lora_shrink` and `lora_expand`: many adapters in one batch. A block takes a few neighbouring tokens; where they use the same adapter, which
// is the rule in a prompt, its weights are read once for all of them.
// Definitions: ACT (x of shrink, out of expand) and WEIGHT (a, b): f32, f16, bf16.
// check: -DACT=f32 -DWEIGHT=f32
// check: -DACT=f32 -DWEIGHT=f16
// check: -DACT=f32 -DWEIGHT=bf16
// check: -DACT=f16 -DWEIGHT=f32
// check: -DACT=f16 -DWEIGHT=f16
// check: -DACT=f16 -DWEIGHT=bf16
// check: -DACT=bf16 -DWEIGHT=f32
// check: -DACT=bf16 -DWEIGHT=f16
// check: -DACT=bf16 -DWEIGHT=bf16
#include "common.cuh"

#define THREADS 256
#define TOKENS 4

// Slot of token `t`; −1 where there is none, or it is past the end.
__device__ __forceinline__ i32 slot_of(const i32 *token_lora, u32 stride, u32 t, u32 num_tokens, u32 num_slots) {
    if (t >= num_tokens) return -1;
    i32 slot = token_lora[(u64)t * stride];
    return (u32)slot < num_slots ? slot : -1;
}

// Eight neighbours as f32, from a 16-byte boundary (32 for f32: two loads).
template <typename T> __device__ __forceinline__ void load8(const T *p, float (&v)[8]) {
    uint4 w = *(const uint4 *)p;
    unpack2<T>(w.x, v[0], v[1]);
    unpack2<T>(w.y, v[2], v[3]);
    unpack2<T>(w.z, v[4], v[5]);
    unpack2<T>(w.w, v[6], v[7]);
}
template <> __device__ __forceinline__ void load8<float>(const float *p, float (&v)[8]) {
    float4 a = *(const float4 *)p, b = *(const float4 *)(p + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

__device__ __forceinline__ bool is_aligned(const void *p, u64 stride_bytes) { return ((u64)p | stride_bytes) % 16 == 0; }

// Grid: tokens in fours, ranks in eights. A warp computes one rank's products with up to four tokens.
extern "C" __global__ void __launch_bounds__(THREADS)
    lora_shrink(const ACT *x, u32 x_stride, const WEIGHT *a, u32 slot_stride, u32 rank_stride, const i32 *token_lora, u32 token_lora_stride,
                float *out, u32 out_stride, u32 num_tokens, u32 num_slots, u32 width, u32 max_rank) {
    wait_for_previous();
    let_next_start();
    u32 lane = threadIdx.x & 31, rank = blockIdx.y * (THREADS / 32) + (threadIdx.x >> 5), first = blockIdx.x * TOKENS;
    if (rank >= max_rank) return;
    i32 slots[TOKENS];
#pragma unroll
    for (u32 i = 0; i < TOKENS; i++) slots[i] = slot_of(token_lora, token_lora_stride, first + i, num_tokens, num_slots);
    bool vector = is_aligned(x, x_stride * sizeof(ACT)) && is_aligned(a, rank_stride * sizeof(WEIGHT)) && (u64)slot_stride * sizeof(WEIGHT) % 16 == 0;
    u32 whole = vector ? width / 8 * 8 : 0;
    float sums[TOKENS] = {0.f, 0.f, 0.f, 0.f};
    u32 done = 0;
    for (u32 begin = 0; begin < TOKENS; begin++) {
        i32 slot = -1;
#pragma unroll
        for (u32 i = 0; i < TOKENS; i++) slot = i == begin ? slots[i] : slot;
        if (done >> begin & 1 || slot < 0) continue;
        u32 same = 0;
#pragma unroll
        for (u32 i = 0; i < TOKENS; i++) same |= (u32)(slots[i] == slot) << i;
        done |= same;
        const WEIGHT *weights = a + (u64)slot * slot_stride + (u64)rank * rank_stride;
        for (u32 k = 8 * lane; k < whole; k += 256) {
            float w[8], v[8];
            load8(weights + k, w);
#pragma unroll
            for (u32 i = 0; i < TOKENS; i++) {
                if (!(same >> i & 1)) continue;
                load8(x + (u64)(first + i) * x_stride + k, v);
#pragma unroll
                for (u32 j = 0; j < 8; j++) sums[i] += v[j] * w[j];
            }
        }
        for (u32 k = whole + lane; k < width; k += 32) {
            float w = to_f32(weights[k]);
#pragma unroll
            for (u32 i = 0; i < TOKENS; i++) {
                if (same >> i & 1) sums[i] += to_f32(x[(u64)(first + i) * x_stride + k]) * w;
            }
        }
    }
#pragma unroll
    for (u32 i = 0; i < TOKENS; i++) {
        float sum = warp_sum(sums[i]);
        if (lane == 0 && first + i < num_tokens) out[(u64)(first + i) * out_stride + rank] = sum;
    }
}

// Grid: tokens in fours, features in THREADS. A thread computes one feature of up to four tokens; shared: their x, TOKENS · max_rank floats.
extern "C" __global__ void __launch_bounds__(THREADS)
    lora_expand(const float *x, u32 x_stride, const WEIGHT *b, u32 slot_stride, u32 feature_stride, const float *scales, u32 scales_stride,
                const i32 *token_lora, u32 token_lora_stride, ACT *out, u32 out_stride, u32 num_tokens, u32 num_slots, u32 features,
                u32 max_rank) {
    extern __shared__ float inputs[];
    wait_for_previous();
    let_next_start();
    u32 first = blockIdx.x * TOKENS, n = blockIdx.y * THREADS + threadIdx.x;
    i32 slots[TOKENS];
    bool any = false;
#pragma unroll
    for (u32 i = 0; i < TOKENS; i++) {
        slots[i] = slot_of(token_lora, token_lora_stride, first + i, num_tokens, num_slots);
        any |= slots[i] >= 0;
    }
    if (!any) return;
    for (u32 at = threadIdx.x; at < TOKENS * max_rank; at += THREADS) {
        u32 t = first + at / max_rank;
        inputs[at] = t < num_tokens ? x[(u64)t * x_stride + at % max_rank] : 0.f;
    }
    __syncthreads();
    if (n >= features) return;
    bool vector = is_aligned(b, feature_stride * sizeof(WEIGHT)) && (u64)slot_stride * sizeof(WEIGHT) % 16 == 0;
    u32 whole = vector ? max_rank / 8 * 8 : 0, done = 0;
    for (u32 begin = 0; begin < TOKENS; begin++) {
        i32 slot = -1;
#pragma unroll
        for (u32 i = 0; i < TOKENS; i++) slot = i == begin ? slots[i] : slot;
        if (done >> begin & 1 || slot < 0) continue;
        u32 same = 0;
#pragma unroll
        for (u32 i = 0; i < TOKENS; i++) same |= (u32)(slots[i] == slot) << i;
        done |= same;
        const WEIGHT *weights = b + (u64)slot * slot_stride + (u64)n * feature_stride;
        float sums[TOKENS] = {0.f, 0.f, 0.f, 0.f};
        for (u32 r = 0; r < whole; r += 8) {
            float w[8];
            load8(weights + r, w);
#pragma unroll
            for (u32 i = 0; i < TOKENS; i++) {
#pragma unroll
                for (u32 j = 0; j < 8; j++) sums[i] += inputs[i * max_rank + r + j] * w[j];
            }
        }
        for (u32 r = whole; r < max_rank; r++) {
            float w = to_f32(weights[r]);
#pragma unroll
            for (u32 i = 0; i < TOKENS; i++) sums[i] += inputs[i * max_rank + r] * w;
        }
        float scale = scales[(u64)slot * scales_stride];
#pragma unroll
        for (u32 i = 0; i < TOKENS; i++) {
            if (!(same >> i & 1)) continue;
            ACT *to = out + (u64)(first + i) * out_stride + n;
            *to = from_f32<ACT>(to_f32(*to) + scale * sums[i]);
        }
    }
}
