// Keys and values into their KV blocks (layout: kv.cuh). A block of threads a token; slots may come in any order.
// V is transposed in its block: where consecutive tokens fill a whole 16-byte row, the first of them (its leader)
// writes the row for all; other tokens write their elements one by one.
//
// Definitions: ACT (f32, f16, bf16: type of k and v), KV (those or e4m3: type held), HEAD_DIM, BLOCK (tokens of a KV
// block).
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
#include "kv.cuh"

typedef KvLayout<KV, HEAD_DIM, BLOCK> Layout;

union Row {
    uint4 bits;
    KV values[Layout::ROW];
};

// Stores v of token t, and of those after it that share its rows.
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
            Row row;
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

extern "C" __global__ void __launch_bounds__(128)
    kv_write(const ACT *k, u32 k_token_stride, u32 k_head_stride, const ACT *v, u32 v_token_stride, u32 v_head_stride,
             const i32 *slots, u8 *cache, u64 page_stride, u32 T, u32 num_kv_heads) {
    wait_for_previous();
    let_next_start();
    u32 t = blockIdx.x;
    i32 slot = slots[t];
    if (slot < 0) return;
    u8 *page = cache + (u64)((u32)slot / BLOCK) * page_stride;
    const ACT *source = k + (u64)t * k_token_stride;
    for (u32 i = threadIdx.x; i < num_kv_heads * Layout::KEY_ROWS; i += blockDim.x) {
        u32 head = i / Layout::KEY_ROWS, row = i % Layout::KEY_ROWS;
        const ACT *from = source + (u64)head * k_head_stride + row * Layout::ROW;
        Row held;
#pragma unroll
        for (int j = 0; j < Layout::ROW; j++) {
            bool inside = row * Layout::ROW + j < HEAD_DIM;
            held.values[Layout::place(j)] = from_f32<KV>(inside ? to_f32(from[j]) : 0.f);
        }
        *(uint4 *)(page + (u64)head * Layout::HEAD_BYTES + Layout::key_row((u32)slot % BLOCK, row)) = held.bits;
    }
    store_values(v, v_token_stride, v_head_stride, slots, cache, page_stride, t, T, num_kv_heads);
}

#ifdef ROTARY_DIM
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
            for (u32 row = lane; row < Layout::KEY_ROWS; row += 32) {
                Row key;
#pragma unroll
                for (int j = 0; j < Layout::ROW; j++) {
                    u32 d = row * Layout::ROW + j;
                    // Through the activation type, as the separate ops would.
                    key.values[Layout::place(j)] = from_f32<KV>(d < HEAD_DIM ? to_f32(from_f32<ACT>(held[d])) : 0.f);
                }
                *(uint4 *)(page + Layout::key_row((u32)slot % BLOCK, row)) = key.bits;
            }
        }
    }
    if (slot >= 0) store_values(v, v_token_stride, v_head_stride, slots, cache, page_stride, t, T, num_kv_heads);
}
#endif
