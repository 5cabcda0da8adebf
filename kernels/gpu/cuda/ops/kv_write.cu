// Keys and values into their KV blocks (layout: kv.cuh). A block of threads a token; slots may come in any order.
// V is transposed in its block: where consecutive tokens fill a whole 16-byte row, the first of them (its leader)
// writes the row for all; other tokens write their elements one by one. Codes (layout: kv_codes.cuh) lie token by token
// on both sides: there a warp writes a head.
//
// Definitions: ACT (f32, f16, bf16: type of k and v), KV (those, e4m3, code8 or code4: type held), HEAD_DIM, BLOCK
// (tokens of a KV block).
// For rope_kv_write also: ROTARY_DIM (0: none), INTERLEAVED (0, 1: which elements form a pair), NORM (0, 1: per-head
// RMS norms first).
// Entry points: kv_write; rope_kv_write (with ROTARY_DIM defined): norms and rotates q and k in place, then stores k
// and v.
// Grid: T blocks of 128 threads.
// revision: 1
// check: -DACT=f32 -DKV=f32 -DHEAD_DIM=64 -DBLOCK=8
// check: -DACT=f16 -DKV=e4m3 -DHEAD_DIM=80 -DBLOCK=16
// check: -DACT=bf16 -DKV=bf16 -DHEAD_DIM=128 -DBLOCK=64
// check: -DACT=bf16 -DKV=bf16 -DHEAD_DIM=128 -DBLOCK=64 -DROTARY_DIM=128 -DINTERLEAVED=0 -DNORM=1
// check: -DACT=f16 -DKV=f16 -DHEAD_DIM=64 -DBLOCK=16 -DROTARY_DIM=32 -DINTERLEAVED=1 -DNORM=0
// check: -DACT=bf16 -DKV=e4m3 -DHEAD_DIM=128 -DBLOCK=64 -DROTARY_DIM=0 -DINTERLEAVED=0 -DNORM=1
// check: -DACT=f32 -DKV=f16 -DHEAD_DIM=80 -DBLOCK=8
// check: -DACT=bf16 -DKV=e4m3 -DHEAD_DIM=128 -DBLOCK=64 -DROTARY_DIM=128 -DINTERLEAVED=0 -DNORM=1
// check: -DACT=f32 -DKV=code8 -DHEAD_DIM=80 -DBLOCK=8
// check: -DACT=bf16 -DKV=code8 -DHEAD_DIM=128 -DBLOCK=64 -DROTARY_DIM=128 -DINTERLEAVED=0 -DNORM=1
// check: -DACT=bf16 -DKV=code4 -DHEAD_DIM=128 -DBLOCK=64
// check: -DACT=f16 -DKV=code4 -DHEAD_DIM=80 -DBLOCK=16 -DROTARY_DIM=32 -DINTERLEAVED=1 -DNORM=0
#include "kv_codes.cuh"

typedef KvLayout<KV, HEAD_DIM, BLOCK> Layout;

template <typename L> union Row {
    uint4 bits;
    KV values[L::ROW];
};

// Stores k of a token, whose first value is at `k`.
template <typename Layout>
__device__ __forceinline__ void store_keys(const ACT *k, u32 head_stride, u8 *page, u32 token, u32 num_kv_heads) {
    for (u32 i = threadIdx.x; i < num_kv_heads * Layout::KEY_ROWS; i += blockDim.x) {
        u32 head = i / Layout::KEY_ROWS, row = i % Layout::KEY_ROWS;
        const ACT *from = k + (u64)head * head_stride + row * Layout::ROW;
        Row<Layout> held;
#pragma unroll
        for (int j = 0; j < Layout::ROW; j++) {
            bool inside = row * Layout::ROW + j < HEAD_DIM;
            held.values[Layout::place(j)] = from_f32<KV>(inside ? to_f32(from[j]) : 0.f);
        }
        *(uint4 *)(page + (u64)head * Layout::HEAD_BYTES + Layout::key_row(token, row)) = held.bits;
    }
}

// Stores v of token t, and of those after it that share its rows.
template <typename Layout>
__device__ __forceinline__ void store_values(const ACT *v, u32 token_stride, u32 head_stride, const i32 *slots,
                                             u8 *cache, u64 page_stride, u32 t, u32 T, u32 num_kv_heads) {
    i32 slot = slots[t];
    u32 token = (u32)slot % BLOCK, inside = token % Layout::ROW;
    u8 *page = cache + (u64)((u32)slot / BLOCK) * page_stride;
    bool follows = inside > 0 && t > 0 && slots[t - 1] == slot - 1;
    if (follows) return; // an earlier token of the same rows is the leader
    u32 count = 1;
    while (inside + count < Layout::ROW && token + count < BLOCK && t + count < T &&
           slots[t + count] == slot + (i32)count)
        count++;
    const ACT *source = v + (u64)t * token_stride;
    for (u32 i = threadIdx.x; i < num_kv_heads * HEAD_DIM; i += blockDim.x) {
        u32 head = i / HEAD_DIM, dim = i % HEAD_DIM;
        const ACT *from = source + (u64)head * head_stride + dim;
        u8 *to = page + (u64)head * Layout::HEAD_BYTES + Layout::value_row(dim, token / Layout::ROW);
        if (count == Layout::ROW) {
            Row<Layout> row;
#pragma unroll
            for (int j = 0; j < Layout::ROW; j++)
                row.values[Layout::place(j)] = from_f32<KV>(to_f32(from[(u64)j * token_stride]));
            *(uint4 *)to = row.bits;
        } else {
            for (u32 j = 0; j < count; j++)
                ((KV *)to)[Layout::place(inside + j)] = from_f32<KV>(to_f32(from[(u64)j * token_stride]));
        }
    }
}

// Stores the heads of a token's keys or values as codes: a warp a head.
template <typename Layout>
__device__ __forceinline__ void store_coded(const ACT *heads, u32 head_stride, bool is_key, u8 *page, u32 token,
                                            u32 num_kv_heads) {
    __shared__ float shared[4][HEAD_DIM];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (u32 head = warp; head < num_kv_heads; head += 4) {
        for (u32 d = lane; d < HEAD_DIM; d += 32) shared[warp][d] = to_f32(heads[(u64)head * head_stride + d]);
        u8 *part = page + (u64)head * Layout::HEAD_BYTES + (is_key ? 0 : Layout::K_BYTES);
        store_codes<Layout>(shared[warp], is_key, part, token);
    }
}

extern "C" __global__ void __launch_bounds__(128)
    kv_write(const ACT *k, u32 k_token_stride, u32 k_head_stride, const ACT *v, u32 v_token_stride, u32 v_head_stride,
             const i32 *slots, u8 *cache, u64 page_stride, u32 T, u32 num_kv_heads) {
    wait_for_previous();
    let_next_start();
    u32 t = blockIdx.x;
    i32 slot = slots[t];
    if (slot < 0) return;
    u8 *page = cache + (u64)((u32)slot / BLOCK) * page_stride;
    const ACT *own_k = k + (u64)t * k_token_stride, *own_v = v + (u64)t * v_token_stride;
    if constexpr (CODE_BITS > 0) {
        store_coded<Layout>(own_k, k_head_stride, true, page, (u32)slot % BLOCK, num_kv_heads);
        store_coded<Layout>(own_v, v_head_stride, false, page, (u32)slot % BLOCK, num_kv_heads);
    } else {
        store_keys<Layout>(own_k, k_head_stride, page, (u32)slot % BLOCK, num_kv_heads);
        store_values<Layout>(v, v_token_stride, v_head_stride, slots, cache, page_stride, t, T, num_kv_heads);
    }
}

#ifdef ROTARY_DIM
// Stores a key that a warp holds in shared memory.
template <typename Layout>
__device__ __forceinline__ void store_held_key(const float *held, u8 *piece, u32 token, u32 lane) {
    for (u32 row = lane; row < Layout::KEY_ROWS; row += 32) {
        Row<Layout> key;
#pragma unroll
        for (int j = 0; j < Layout::ROW; j++) {
            u32 d = row * Layout::ROW + j;
            key.values[Layout::place(j)] = from_f32<KV>(d < HEAD_DIM ? held[d] : 0.f);
        }
        *(uint4 *)(piece + Layout::key_row(token, row)) = key.bits;
    }
}

// x: q heads and then k heads, side by side. A warp a head.
extern "C" __global__ void __launch_bounds__(128)
    rope_kv_write(ACT *x, u32 x_token_stride, u32 x_head_stride, const ACT *v, u32 v_token_stride, u32 v_head_stride,
                  const i32 *positions, const float *table, const float *q_norm, const float *k_norm, float q_eps,
                  float k_eps, float q_offset, float k_offset, const i32 *slots, u8 *cache, u64 page_stride, u32 T,
                  u32 num_heads, u32 num_kv_heads) {
    __shared__ float shared[4][HEAD_DIM];
    wait_for_previous();
    let_next_start();
    u32 t = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    i32 slot = slots[t];
    float *held = shared[warp];
    const float *angles = table + (u64)positions[t] * ROTARY_DIM;
    for (u32 head = warp; head < num_heads + num_kv_heads; head += 4) {
        bool is_key = head >= num_heads;
        ACT *values = x + (u64)t * x_token_stride + (u64)head * x_head_stride;
        __syncwarp();
        float squares = 0.f;
        for (u32 d = lane; d < HEAD_DIM; d += 32) {
            float value = to_f32(values[d]);
            held[d] = value;
            squares += value * value;
        }
#if NORM
        const float *weight = is_key ? k_norm : q_norm;
        float offset = is_key ? k_offset : q_offset;
        float factor = rsqrtf(warp_sum(squares) / HEAD_DIM + (is_key ? k_eps : q_eps));
        for (u32 d = lane; d < HEAD_DIM; d += 32) held[d] *= factor * (weight[d] + offset);
#endif
        __syncwarp();
        for (u32 i = lane; i < ROTARY_DIM / 2; i += 32) {
            u32 first = INTERLEAVED ? 2 * i : i, second = INTERLEAVED ? 2 * i + 1 : i + ROTARY_DIM / 2;
            float a = held[first], b = held[second], c = angles[i], s = angles[ROTARY_DIM / 2 + i];
            held[first] = a * c - b * s;
            held[second] = b * c + a * s;
        }
        __syncwarp();
        for (u32 d = lane; d < HEAD_DIM; d += 32) values[d] = from_f32<ACT>(held[d]);
        if (is_key && slot >= 0) {
            u8 *page = cache + (u64)((u32)slot / BLOCK) * page_stride + (u64)(head - num_heads) * Layout::HEAD_BYTES;
            // Through the activation type, as the separate ops would.
            for (u32 d = lane; d < HEAD_DIM; d += 32) held[d] = to_f32(from_f32<ACT>(held[d]));
            __syncwarp();
            if constexpr (CODE_BITS > 0) store_codes<Layout>(held, true, page, (u32)slot % BLOCK);
            else store_held_key<Layout>(held, page, (u32)slot % BLOCK, lane);
        }
    }
    if (slot < 0) return;
    if constexpr (CODE_BITS > 0)
        store_coded<Layout>(v + (u64)t * v_token_stride, v_head_stride, false,
                            cache + (u64)((u32)slot / BLOCK) * page_stride, (u32)slot % BLOCK, num_kv_heads);
    else store_values<Layout>(v, v_token_stride, v_head_stride, slots, cache, page_stride, t, T, num_kv_heads);
}
#endif
