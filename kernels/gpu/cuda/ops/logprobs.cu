// `top_logprobs`: log-probability and rank of a chosen token, and the most likely ones.
// Definitions: as logits.cuh.
// revision: 1
// check:
// check: -DBLOCK=256
#include "logits.cuh"

// One block a row: log-probability and rank of the chosen token, and the k most likely.
extern "C" __global__ void __launch_bounds__(BLOCK)
    top_logprobs(const float *logits, u32 logits_stride, u32 vocab, const i32 *chosen, u32 chosen_stride,
                 float *chosen_logprobs, u32 logprobs_stride, i32 *chosen_ranks, u32 ranks_stride, i32 *top_tokens,
                 u32 top_tokens_stride, float *top_logprobs, u32 top_logprobs_stride, u32 k) {
    __shared__ Shared s;
    wait_for_previous();
    u32 n = blockIdx.x;
    Row row = row_of(logits + (u64)n * logits_stride, (i32)vocab, 1.f);
    i32 token = chosen[(u64)n * chosen_stride];
    bool is_chosen = token >= 0 && (u32)token < vocab;
    float mine = is_chosen ? scaled(row, row.logits[token]) : INFINITY_F;
    Best best = thread_best(row);
    u64 largest = block_max(best.key(), s.warps);
    if (token_of(largest) < 0) {
        // No distribution: no log-probabilities.
        let_next_start();
        float nan = __int_as_float(0x7fc00000);
        if (threadIdx.x == 0) {
            chosen_logprobs[(u64)n * logprobs_stride] = nan;
            chosen_ranks[(u64)n * ranks_stride] = 0;
        }
        for (u32 i = threadIdx.x; i < k; i += BLOCK) {
            top_tokens[(u64)n * top_tokens_stride + i] = 0;
            top_logprobs[(u64)n * top_logprobs_stride + i] = nan;
        }
        return;
    }
    float max = scaled(row, from_key((u32)(largest >> 32)));
    bool few = k > 0 && k <= BLOCK / 2;
    float lower = few ? from_key(select_thread(scaled_key(row, best.value), k)) : INFINITY_F;
    if (threadIdx.x == 0) s.num_listed = 0;
    __syncthreads();
    u64 mass = 0;
    u32 greater = 0;
    for_each(row, [&](const Group &group) {
        Weight sum = {0, 0};
        float top = -INFINITY_F;
#pragma unroll
        for (i32 e = 0; e < 16; e++) {
            float x = scaled(row, group.v[e]);
            sum.add(weight_of(x, max), true);
            greater += x > mine;
            top = fmaxf(top, x);
        }
        mass += sum.value();
        if (!few || top < lower) return;
#pragma unroll
        for (i32 e = 0; e < 16; e++) {
            if ((u32)group.place(e) < vocab) list(s, scaled(row, group.v[e]), lower, group.place(e));
        }
    });
    float norm = (float)log((double)block_sum(mass, s.warps) * (1.0 / ((u64)1 << 43)));
    u64 rank = block_sum(greater, s.warps) + 1;
    if (threadIdx.x == 0) {
        chosen_logprobs[(u64)n * logprobs_stride] = is_chosen ? (mine - max) - norm : 0.f;
        chosen_ranks[(u64)n * ranks_stride] = is_chosen ? (i32)rank : 0;
    }
    if (k == 0) return;
    if (!few || s.num_listed > MAX_LISTED) {
        // Many ties, or many wanted: the k-th value first.
        u64 above;
        u32 kth = select<false>(row, s, max, KEY_NONE, key_of(max) + 1, k, 0, above);
        i32 last_tie = locate(
            row, s, [&](i32 at, float x) { return Weight{0, (u32)(scaled_key(row, x) == kth && (u32)at < vocab)}; },
            [&](u64) { return k - above; });
        __syncthreads();
        if (threadIdx.x == 0) s.num_listed = 0;
        __syncthreads();
        float value = from_key(kth);
        for_each(row, [&](const Group &group) {
#pragma unroll
            for (i32 e = 0; e < 16; e++) {
                i32 at = group.place(e);
                float x = scaled(row, group.v[e]);
                if ((u32)at < vocab && (x > value || at <= last_tie)) list(s, x, value, at);
            }
        });
        __syncthreads();
    }
    let_next_start();
    sort_listed(s, min(s.num_listed, MAX_LISTED));
    for (u32 i = threadIdx.x; i < k; i += BLOCK) {
        u64 entry = s.listed[i];
        top_tokens[(u64)n * top_tokens_stride + i] = (i32) ~(u32)entry;
        top_logprobs[(u64)n * top_logprobs_stride + i] = (from_key((u32)(entry >> 32)) - max) - norm;
    }
}
