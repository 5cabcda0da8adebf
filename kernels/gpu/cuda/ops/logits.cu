// `logits_process`: masks, stop tokens, bias, bad words and penalties, in the documented order. A block owns a slice of
// one row's vocabulary and applies every list and the whole history to it, so that nothing is shared between blocks and
// counts need no memory but the block's own. No definitions.
// revision: 1
// check:
#include "common.cuh"

#define THREADS 256
// Tokens of a slice; their counts lie in shared memory.
#define SLICE 8192
// A token of the prompt; the bits below count the output.
#define SEEN 0x80000000u

struct Lists {
    const i32 *allowed_mask, *bias_tokens;
    const float *bias_values;
    const i32 *stop_tokens, *bad_words, *grammar_mask;
};

// Makes a token impossible. What the sampler reports must reach it: NaN and +∞ stay.
__device__ __forceinline__ void forbid(float *logit) {
    if (*logit < INFINITY_F) *logit = -INFINITY_F;
}

// Cleared bits make their tokens impossible.
__device__ __forceinline__ void apply_masks(float *logits, u32 first, u32 end, const i32 *one, const i32 *two) {
    for (u32 v = first + threadIdx.x; v < end; v += THREADS) {
        u32 bits = (one ? (u32)one[v >> 5] : 0xffffffffu) & (two ? (u32)two[v >> 5] : 0xffffffffu);
        if (!(bits >> (v & 31) & 1)) forbid(logits + v);
    }
}

// A token that is listed more often gets its values one after another, by the thread of its first place.
__device__ __forceinline__ void apply_bias(float *logits, u32 first, u32 end, const i32 *tokens, const float *values,
                                           u32 count) {
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
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

// Warp by warp: each sequence's earlier tokens are compared with the end of the history.
__device__ __forceinline__ void apply_bad_words(float *logits, u32 first, u32 end, const i32 *list, u32 width,
                                                u32 count, const i32 *history, u32 num_tokens) {
    u32 lane = threadIdx.x & 31, at = 0;
    for (u32 word = 0; word < count && at < width; word++) {
        i32 len = list[at];
        if (len <= 0 || (u32)len >= width - at) return;
        const i32 *ids = list + at + 1;
        at += len + 1;
        u32 last = (u32)ids[len - 1], before = len - 1;
        // Each warp checks its own words, and only those whose last token is in this slice.
        if (word % (THREADS / 32) != threadIdx.x >> 5 || last < first || last >= end || before > num_tokens) continue;
        bool equal = true;
        for (u32 i = lane; i < before; i += 32) equal &= ids[i] == history[num_tokens - before + i];
        if (__all_sync(0xffffffffu, equal) && lane == 0) forbid(logits + last);
    }
}

__device__ __forceinline__ void count_token(u32 *counts, u32 first, u32 size, i32 token, bool is_output) {
    u32 at = (u32)token - first;
    if (at >= size) return;
    if (is_output) {
        atomicAdd(&counts[at], 1);
    } else if (!(counts[at] & SEEN)) {
        atomicOr(&counts[at], SEEN);
    }
}

// Repetition over prompt and output; frequency and presence over the output. Each step rounds as the formula is
// written.
__device__ __forceinline__ void apply_penalties(float *logits, u32 first, u32 end, u32 *counts, const i32 *history,
                                                u32 num_tokens, u32 prompt, float repetition, float presence,
                                                float frequency) {
    u32 size = end - first;
    for (u32 i = threadIdx.x; i < size; i += THREADS) counts[i] = 0;
    __syncthreads();
    // Four tokens a load, where the address allows.
    u32 head = min((u32)(4 - ((u64)history >> 2 & 3)) & 3, num_tokens), fours = (num_tokens - head) / 4;
    for (u32 i = threadIdx.x; i < fours; i += THREADS) {
        u32 at = head + 4 * i;
        int4 tokens = *(const int4 *)(history + at);
        count_token(counts, first, size, tokens.x, at >= prompt);
        count_token(counts, first, size, tokens.y, at + 1 >= prompt);
        count_token(counts, first, size, tokens.z, at + 2 >= prompt);
        count_token(counts, first, size, tokens.w, at + 3 >= prompt);
    }
    u32 tail = head + 4 * fours;
    if (threadIdx.x < head) count_token(counts, first, size, history[threadIdx.x], threadIdx.x >= prompt);
    if (threadIdx.x < num_tokens - tail)
        count_token(counts, first, size, history[tail + threadIdx.x], tail + threadIdx.x >= prompt);
    __syncthreads();
    for (u32 i = threadIdx.x; i < size; i += THREADS) {
        u32 count = counts[i];
        if (count == 0) continue;
        float logit = logits[first + i];
        logit = logit > 0.f ? __fdiv_rn(logit, repetition) : __fmul_rn(logit, repetition);
        count &= ~SEEN;
        if (count > 0) {
            logit = __fsub_rn(logit, __fmul_rn(frequency, (float)count));
            logit = __fsub_rn(logit, presence);
        }
        logits[first + i] = logit;
    }
}

// Grid: slices of the vocabulary, sequences.
extern "C" __global__ void __launch_bounds__(THREADS)
    logits_process(float *logits, u32 logits_stride, u32 vocab, const i32 *step_rows, u32 step_rows_stride,
                   const u8 *row_sampling, u32 sampling_stride, u32 num_rows, const i32 *row_tokens, u32 tokens_stride,
                   u32 max_tokens, const i32 *row_num_tokens, u32 num_tokens_stride, const i32 *allowed_mask,
                   u32 allowed_stride, const i32 *bias_tokens, u32 bias_tokens_stride, u32 max_bias,
                   const float *bias_values, u32 bias_values_stride, const i32 *stop_tokens, u32 stop_stride,
                   u32 max_stop, const i32 *bad_words, u32 bad_words_stride, u32 bad_words_width,
                   const i32 *grammar_mask, u32 grammar_stride) {
    __shared__ u32 counts[SLICE];
    wait_for_previous();
    let_next_start();
    u64 seq = blockIdx.y;
    i32 index = step_rows[seq * step_rows_stride];
    if (index < 0 || (u32)index >= num_rows) return;
    u64 row = (u32)index;
    const u32 *words = (const u32 *)(row_sampling + row * sampling_stride);
    u32 prompt = words[2], min_tokens = words[10];
    float repetition = __uint_as_float(words[7]), presence = __uint_as_float(words[8]),
          frequency = __uint_as_float(words[9]);
    u32 num_bias = words[11], num_stop = words[12], num_bad_words = words[13];
    bool use_mask = words[14] == 1;
    u32 num_tokens = min((u32)max(row_num_tokens[row * num_tokens_stride], 0), max_tokens);
    u32 num_output = num_tokens > prompt ? num_tokens - prompt : 0;
    const i32 *history = row_tokens + row * tokens_stride;
    float *mine = logits + seq * logits_stride;
    u32 first = blockIdx.x * SLICE, end = min(first + SLICE, vocab);

    const i32 *allowed = allowed_mask && use_mask ? allowed_mask + row * allowed_stride : 0;
    const i32 *grammar = grammar_mask ? grammar_mask + seq * grammar_stride : 0;
    if (allowed || grammar) {
        apply_masks(mine, first, end, allowed, grammar);
        __syncthreads();
    }
    if (stop_tokens && num_output < min_tokens && num_stop > 0) {
        const i32 *stops = stop_tokens + row * stop_stride;
        for (u32 i = threadIdx.x; i < min(num_stop, max_stop); i += THREADS) {
            if ((u32)stops[i] >= first && (u32)stops[i] < end) forbid(mine + stops[i]);
        }
        __syncthreads();
    }
    if (bias_tokens && bias_values && num_bias > 0) {
        apply_bias(mine, first, end, bias_tokens + row * bias_tokens_stride, bias_values + row * bias_values_stride,
                   min(num_bias, max_bias));
        __syncthreads();
    }
    if (bad_words && num_bad_words > 0) {
        apply_bad_words(mine, first, end, bad_words + row * bad_words_stride, bad_words_width, num_bad_words, history,
                        num_tokens);
        __syncthreads();
    }
    if (repetition != 1.f || presence != 0.f || frequency != 0.f) {
        apply_penalties(mine, first, end, counts, history, num_tokens, prompt, repetition, presence, frequency);
    }
}
