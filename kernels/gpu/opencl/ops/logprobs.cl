// `top_logprobs`: log-probability and rank of a chosen token, and the most likely ones.
// Definitions: as logits.h.
// revision: 1
// check:
// check: -DBLOCK=256
#include "logits.h"

#define NO_NUMBER as_float(0x7fc00000)

#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
INLINE float log_of_weight(u64 weight) { return (float)log((double)weight * (1.0 / 8796093022208.0)); }
#else
INLINE float log_of_weight(u64 weight) { return log((float)weight * (1.f / WEIGHT_ONE)); }
#endif

// One group a row: log-probability and rank of the chosen token, and the k most likely.
KERNEL void top_logprobs(const __global float *logits, u32 logits_stride, u32 vocab, const __global i32 *chosen,
                         u32 chosen_stride, __global float *chosen_logprobs, u32 logprobs_stride,
                         __global i32 *chosen_ranks, u32 ranks_stride, __global i32 *top_tokens, u32 top_tokens_stride,
                         __global float *top_logprobs, u32 top_logprobs_stride, u32 k) {
    __local Shared s;
    u64 n = get_group_id(0);
    u32 id = get_local_id(0);
    Row row = row_of(logits + n * logits_stride, vocab, 1.f);
    i32 token = chosen[n * chosen_stride];
    bool is_chosen = token >= 0 && (u32)token < vocab;
    float mine = is_chosen ? scaled(&row, row.logits[token]) : INFINITY;
    float best;
    u64 top = row_max(best_of(&row, &best), &s);
    // Without a distribution there are no log-probabilities.
    bool none = token_of(top) < 0;
    float max = scaled(&row, from_key((u32)(top >> 32)));
    bool few = k > 0 && k <= BLOCK / 2;
    float lower = INFINITY;
    TOGETHER_IF(few) lower = from_key(ranked_key(scaled_key(&row, best), k, &s));
    start_list(&s);
    u64 mass = 0, greater = 0;
    for (u32 i = row.first; i < row.end; i++) {
        float x = scaled(&row, row.logits[i]);
        mass += weight_of(x, max);
        greater += x > mine;
        if (few && x >= lower) list_value(&s, x, i);
    }
    float norm = log_of_weight(row_sum(mass, &s));
    u64 rank = row_sum(greater, &s) + 1;
    if (id == 0) {
        chosen_logprobs[n * logprobs_stride] = none ? NO_NUMBER : is_chosen ? (mine - max) - norm : 0.f;
        chosen_ranks[n * ranks_stride] = is_chosen && !none ? (i32)rank : 0;
    }
    TOGETHER_IF(k > 0 && (!few || s.num_listed > MAX_LISTED)) {
        // Many ties, or many wanted: the k-th value first.
        u64 above, total;
        float value = from_key(largest_key(&row, &s, false, max, KEY_NONE, key_of(max) + 1, k, &above));
        u64 ties = run_sum(&row, TIES, max, value, ALL), before = block_scan(ties, &s, &total);
        u32 last_tie = locate(&row, &s, TIES, max, value, ALL, before, ties, k - above);
        start_list(&s);
        for (u32 i = row.first; i < row.end; i++) {
            float x = scaled(&row, row.logits[i]);
            if (x > value || (x == value && i <= last_tie)) list_value(&s, x, i);
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    sort_listed(&s, k > 0 ? min(s.num_listed, (u32)MAX_LISTED) : 0);
    for (u32 i = id; i < k; i += BLOCK) {
        u64 entry = s.listed[i];
        top_tokens[n * top_tokens_stride + i] = none ? 0 : (i32) ~(u32)entry;
        top_logprobs[n * top_logprobs_stride + i] = none ? NO_NUMBER : (from_key((u32)(entry >> 32)) - max) - norm;
    }
}
