// Attention of any shape and type over the paged cache, without matrix units: a warp a (token, query head), online
// softmax in f32.
// Slow and general: it serves the calls that the tuned kernels do not take.
//
// Definitions: ACT (f32, f16, bf16: q and out), KV (those, e4m3, code8 or code4: the cache), HEAD_DIM, BLOCK (a
// multiple of 8).
// Entry point: attention_plain. Grid: ceil(T * num_heads / 4) blocks of 128 threads. Tokens that belong to no sequence
// write nothing.
// revision: 1
// check: -DACT=f32 -DKV=f32 -DHEAD_DIM=64 -DBLOCK=8
// check: -DACT=f16 -DKV=e4m3 -DHEAD_DIM=80 -DBLOCK=16
// check: -DACT=bf16 -DKV=bf16 -DHEAD_DIM=128 -DBLOCK=64
// check: -DACT=bf16 -DKV=e4m3 -DHEAD_DIM=256 -DBLOCK=64
// check: -DACT=bf16 -DKV=f32 -DHEAD_DIM=16 -DBLOCK=8
// check: -DACT=f32 -DKV=f32 -DHEAD_DIM=80 -DBLOCK=8
// check: -DACT=bf16 -DKV=e4m3 -DHEAD_DIM=128 -DBLOCK=64
// check: -DACT=f32 -DKV=code8 -DHEAD_DIM=80 -DBLOCK=8
// check: -DACT=bf16 -DKV=code4 -DHEAD_DIM=128 -DBLOCK=64
#include "kv_codes.cuh"

typedef KvLayout<KV, HEAD_DIM, BLOCK> Layout;

#define DIMS ((HEAD_DIM + 31) / 32) // dims of a lane: lane, lane + 32, ...
#define LOG2E 1.4426950408889634f

// Sum of the 8 values of a dim at tokens 8 * eighth .. of a block, weighted; tokens with weight 0 do not count,
// whatever they hold.
template <typename Layout>
__device__ __forceinline__ float weighted_values(const u8 *piece, u32 dim, u32 eighth, const float *weights) {
    float sum = 0.f;
#pragma unroll
    for (int part = 0; part < 8; part += (Layout::ROW < 8 ? Layout::ROW : 8)) {
        u32 token = eighth * 8 + part;
        const KV *row = (const KV *)(piece + Layout::value_row(dim, token / Layout::ROW));
#pragma unroll
        for (int j = 0; j < (Layout::ROW < 8 ? Layout::ROW : 8); j++) {
            float weight = weights[part + j];
            sum += weight == 0.f ? 0.f : weight * to_f32(row[Layout::place(token % Layout::ROW + j)]);
        }
    }
    return sum;
}

template <typename Layout>
__device__ __forceinline__ float weighted_codes(const u8 *piece, u32 dim, u32 eighth, const float *weights) {
    const u8 *values = piece + Layout::K_BYTES;
    float sum = 0.f;
    for (u32 j = 0; j < 8; j++) {
        u32 token = eighth * 8 + j;
        CodeMap map = code_map<CODE_BITS>(*(const u32 *)(values + Layout::WORDS_AT + 4 * token));
        float value = map.scale * code_at<CODE_BITS>(values + Layout::key_row(token, dim / Layout::ROW),
                                                     dim % Layout::ROW) + map.minimum;
        sum += weights[j] == 0.f ? 0.f : weights[j] * value;
    }
    return sum;
}

// The product of a query and a key.
template <typename Layout>
__device__ __forceinline__ float key_product(const float *query, const u8 *piece, u32 token) {
    float product = 0.f;
    for (int r = 0; r < Layout::KEY_ROWS; r++) {
        const KV *values = (const KV *)(piece + Layout::key_row(token, r));
#pragma unroll
        for (int j = 0; j < Layout::ROW; j++)
            if (r * Layout::ROW + j < HEAD_DIM)
                product += query[r * Layout::ROW + j] * to_f32(values[Layout::place(j)]);
    }
    return product;
}
template <typename Layout>
__device__ __forceinline__ float coded_product(const float *query, const u8 *piece, u32 token) {
    CodeMap map = code_map<CODE_BITS>(*(const u32 *)(piece + Layout::WORDS_AT + 4 * token));
    float product = 0.f;
    for (u32 d = 0; d < HEAD_DIM; d++)
        product += query[d] * (map.scale * code_at<CODE_BITS>(piece + Layout::key_row(token, d / Layout::ROW),
                                                              d % Layout::ROW) + map.minimum);
    return product;
}

// The sequence that token t belongs to: the last s with start[s] <= t. Empty sequences share their start with the next.
__device__ __forceinline__ u32 sequence_of(const i32 *starts, u32 S, i32 t) {
    u32 low = 0, high = S - 1;
    while (low < high) {
        u32 middle = (low + high + 1) / 2;
        if (starts[middle] <= t) low = middle;
        else high = middle - 1;
    }
    return low;
}

extern "C" __global__ void __launch_bounds__(128)
    attention_plain(const ACT *q, u32 q_token_stride, u32 q_head_stride, const u8 *cache, u64 page_stride,
                    const i32 *block_table, u32 table_stride, const i32 *step_rows, const i32 *starts,
                    const i32 *seq_lens, const float *sinks, ACT *out, u32 out_token_stride, u32 out_head_stride, u32 T,
                    u32 S, u32 num_heads, u32 group, float scale, float softcap, u32 window) {
    __shared__ float queries[4][HEAD_DIM];
    __shared__ float weights[4][32];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 job = blockIdx.x * 4 + warp;
    u32 t = job / num_heads, head = job % num_heads;
    wait_for_previous();
    let_next_start();
    if (t >= T || (i32)t >= starts[S] || (i32)t < starts[0]) return;
    u32 s = sequence_of(starts, S, (i32)t);
    i32 row = step_rows[s];
    if (row < 0) return;
    // Position of the token, and the keys first ..= last that it sees.
    i32 last = seq_lens[s] - starts[s + 1] + (i32)t;
    i32 first = window > 0 && last + 1 > (i32)window ? last + 1 - (i32)window : 0;
    const i32 *pages = block_table + (u64)row * table_stride;
    u64 piece_offset = (u64)(head / group) * Layout::HEAD_BYTES;

    float *query = queries[warp], *weight = weights[warp];
    for (u32 d = lane; d < HEAD_DIM; d += 32)
        query[d] = to_f32(q[(u64)t * q_token_stride + (u64)head * q_head_stride + d]);
    __syncwarp();
    if constexpr (CODE_BITS == 4) turn_shared<HEAD_DIM>(query);
    float highest = -INFINITY_F, total = 0.f, sum[DIMS];
#pragma unroll
    for (int i = 0; i < DIMS; i++) sum[i] = 0.f;
    for (i32 tile = first & ~31; tile <= last; tile += 32) {
        // Scores: a lane a key.
        i32 key = tile + (i32)lane;
        bool seen = key >= first && key <= last;
        float score = -INFINITY_F;
        if (seen) {
            const u8 *piece = cache + (u64)pages[key / BLOCK] * page_stride + piece_offset;
            float product;
            if constexpr (CODE_BITS > 0) product = coded_product<Layout>(query, piece, (u32)key % BLOCK);
            else product = key_product<Layout>(query, piece, (u32)key % BLOCK);
            score = product * scale;
            if (softcap > 0.f) score = softcap * tanhf(score / softcap);
        }
        float above = fmaxf(highest, warp_max(score));
        float kept = highest == above ? 1.f : exp2f((highest - above) * LOG2E);
        float p = seen ? exp2f((score - above) * LOG2E) : 0.f;
        highest = above;
        total = total * kept + warp_sum(p);
        __syncwarp();
        weight[lane] = p;
        __syncwarp();
        // Values: a lane a dim, 8 tokens at a time.
#pragma unroll
        for (int i = 0; i < DIMS; i++) sum[i] *= kept;
        for (int eighth = 0; eighth < 4; eighth++) {
            i32 token = tile + eighth * 8;
            if (token + 7 < first || token > last) continue;
            const u8 *piece = cache + (u64)pages[token / BLOCK] * page_stride + piece_offset;
#pragma unroll
            for (int i = 0; i < DIMS; i++) {
                u32 dim = lane + 32 * i;
                if (dim >= HEAD_DIM) continue;
                u32 inside = (u32)token % BLOCK / 8;
                if constexpr (CODE_BITS > 0) sum[i] += weighted_codes<Layout>(piece, dim, inside, weight + eighth * 8);
                else sum[i] += weighted_values<Layout>(piece, dim, inside, weight + eighth * 8);
            }
        }
    }
    if (sinks) {
        float above = fmaxf(highest, sinks[head]);
        float kept = exp2f((highest - above) * LOG2E);
        total = total * kept + exp2f((sinks[head] - above) * LOG2E);
#pragma unroll
        for (int i = 0; i < DIMS; i++) sum[i] *= kept;
    }
#pragma unroll
    for (int i = 0; i < DIMS; i++) {
        u32 dim = lane + 32 * i;
        if (dim < HEAD_DIM)
            out[(u64)t * out_token_stride + (u64)head * out_head_stride + dim] = from_f32<ACT>(sum[i] / total);
    }
}
