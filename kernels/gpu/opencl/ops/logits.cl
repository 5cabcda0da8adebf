// `logits_process`: masks, stop tokens, bias, bad words and penalties, in the documented order. A group owns a slice of
// one row's vocabulary and applies every list and the whole history to it, so that nothing is shared between groups and
// counts need no memory but the group's own. No definitions.
// revision: 1
// check:
#include "common.h"

// Each step rounds as the formula is written.
#pragma OPENCL FP_CONTRACT OFF

#define THREADS 256
// Tokens of a slice; their counts lie in local memory.
#define SLICE 8192
// A token of the prompt; the bits below count the output.
#define SEEN 0x80000000u

// Makes a token impossible. What the sampler reports must reach it: NaN and +∞ stay.
INLINE void forbid(__global float *logit) {
    if (!isnan(*logit) && *logit < INFINITY) *logit = -INFINITY;
}

// Cleared bits make their tokens impossible.
INLINE void apply_masks(__global float *logits, u32 first, u32 end, const __global i32 *one, const __global i32 *two) {
    for (u32 v = first + get_local_id(0); v < end; v += THREADS) {
        u32 bits = (one ? (u32)one[v >> 5] : 0xffffffffu) & (two ? (u32)two[v >> 5] : 0xffffffffu);
        if (!(bits >> (v & 31) & 1)) forbid(logits + v);
    }
}

// A token that is listed more often gets its values one after another, by the work-item of its first place.
INLINE void apply_bias(__global float *logits, u32 first, u32 end, const __global i32 *tokens,
                       const __global float *values, u32 count) {
    for (u32 i = get_local_id(0); i < count; i += THREADS) {
        u32 token = (u32)tokens[i];
        if (token < first || token >= end) continue;
        bool again = false;
        for (u32 j = 0; j < i && !again; j++) again = (u32)tokens[j] == token;
        if (again) continue;
        float logit = logits[token];
        for (u32 j = i; j < count; j++) {
            if ((u32)tokens[j] == token) logit += values[j];
        }
        logits[token] = logit;
    }
}

// A work-item a word: the sequence's earlier tokens are compared with the end of the history.
INLINE void apply_bad_words(__global float *logits, u32 first, u32 end, const __global i32 *list, u32 width, u32 count,
                                   const __global i32 *history, u32 num_tokens) {
    u32 at = 0;
    for (u32 word = 0; word < count && at < width; word++) {
        i32 len = list[at];
        if (len <= 0 || (u32)len >= width - at) return;
        const __global i32 *ids = list + at + 1;
        at += len + 1;
        u32 last = (u32)ids[len - 1], before = len - 1;
        // Each looks at its own words, and only at those whose last token is here.
        if (word % THREADS != get_local_id(0) || last < first || last >= end || before > num_tokens) continue;
        bool equal = true;
        for (u32 i = 0; i < before && equal; i++) equal = ids[i] == history[num_tokens - before + i];
        if (equal) forbid(logits + last);
    }
}

// Repetition over prompt and output; frequency and presence over the output.
INLINE void apply_penalties(__global float *logits, u32 first, u32 end, volatile __local u32 *counts,
                            const __global i32 *history, u32 num_tokens, u32 prompt, float repetition, float presence,
                            float frequency) {
    u32 size = end - first, id = get_local_id(0);
    for (u32 i = id; i < size; i += THREADS) counts[i] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (u32 i = id; i < num_tokens; i += THREADS) {
        u32 at = (u32)history[i] - first;
        if (at >= size) continue;
        if (i >= prompt) {
            atomic_inc(&counts[at]);
        } else {
            atomic_or(&counts[at], SEEN);
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (u32 i = id; i < size; i += THREADS) {
        u32 count = counts[i];
        if (count == 0) continue;
        float logit = logits[first + i];
        logit = logit > 0.f ? divide_exactly(logit, repetition) : logit * repetition;
        count &= ~SEEN;
        if (count > 0) logit = (logit - frequency * (float)count) - presence;
        logits[first + i] = logit;
    }
}

// Grid: slices of the vocabulary, sequences.
KERNEL void logits_process(__global float *logits, u32 logits_stride, u32 vocab, const __global i32 *step_rows,
                           u32 step_rows_stride, const __global u8 *row_sampling, u32 sampling_stride, u32 num_rows,
                           const __global i32 *row_tokens, u32 tokens_stride, u32 max_tokens,
                           const __global i32 *row_num_tokens, u32 num_tokens_stride, const __global i32 *allowed_mask,
                           u32 allowed_stride, const __global i32 *bias_tokens, u32 bias_tokens_stride, u32 max_bias,
                           const __global float *bias_values, u32 bias_values_stride, const __global i32 *stop_tokens,
                           u32 stop_stride, u32 max_stop, const __global i32 *bad_words, u32 bad_words_stride,
                           u32 bad_words_width, const __global i32 *grammar_mask, u32 grammar_stride) {
    __local u32 counts[SLICE];
    u64 seq = get_group_id(1);
    i32 index = step_rows[seq * step_rows_stride];
    // No early return: compilers for CPUs run what stands behind it for all work-items, so that it must be valid for
    // padding too.
    bool live = index >= 0 && (u32)index < num_rows;
    u64 row = live ? (u32)index : 0;
    const __global u32 *words = (const __global u32 *)(row_sampling + row * sampling_stride);
    u32 prompt = words[2], min_tokens = words[10];
    float repetition = as_float(words[7]), presence = as_float(words[8]), frequency = as_float(words[9]);
    u32 num_bias = words[11], num_stop = words[12], num_bad_words = words[13];
    bool use_mask = words[14] == 1;
    u32 num_tokens = min((u32)max(row_num_tokens[row * num_tokens_stride], 0), max_tokens);
    u32 num_output = num_tokens > prompt ? num_tokens - prompt : 0;
    const __global i32 *history = row_tokens + row * tokens_stride;
    __global float *mine = logits + seq * logits_stride;
    u32 first = get_group_id(0) * SLICE, end = live ? min(first + SLICE, vocab) : first;

    const __global i32 *allowed = allowed_mask && use_mask ? allowed_mask + row * allowed_stride : 0;
    const __global i32 *grammar = grammar_mask ? grammar_mask + seq * grammar_stride : 0;
    if (live && (allowed || grammar)) apply_masks(mine, first, end, allowed, grammar);
    barrier(CLK_GLOBAL_MEM_FENCE);
    if (live && stop_tokens && num_output < min_tokens) {
        const __global i32 *stops = stop_tokens + row * stop_stride;
        for (u32 i = get_local_id(0); i < min(num_stop, max_stop); i += THREADS) {
            if ((u32)stops[i] >= first && (u32)stops[i] < end) forbid(mine + stops[i]);
        }
    }
    barrier(CLK_GLOBAL_MEM_FENCE);
    if (live && bias_tokens && bias_values)
        apply_bias(mine, first, end, bias_tokens + row * bias_tokens_stride, bias_values + row * bias_values_stride,
                   min(num_bias, max_bias));
    barrier(CLK_GLOBAL_MEM_FENCE);
    if (live && bad_words)
        apply_bad_words(mine, first, end, bad_words + row * bad_words_stride, bad_words_width, num_bad_words, history,
                        num_tokens);
    barrier(CLK_GLOBAL_MEM_FENCE);
    TOGETHER_IF(repetition != 1.f || presence != 0.f || frequency != 0.f)
        apply_penalties(mine, first, end, counts, history, num_tokens, prompt, repetition, presence, frequency);
}
