#version 460
#extension GL_GOOGLE_include_directive : enable
// `logits_process`: masks, stop tokens, bias, bad words and penalties, in the documented order. A block owns a slice of
// one row's vocabulary and applies every list and the whole history to it, so that nothing is shared between blocks and
// counts need no memory but the block's own. No definitions.
// revision: 1
// check: logits_process
#include "common.glsl"

// Tokens of a slice, by the grid; those whose counts lie in shared memory at a time.
#define SLICE 8192u
#define COUNTED 4096u
// A token of the prompt; the bits below count the output.
#define SEEN 0x80000000u

shared u32 counts[COUNTED];

// Threads change each other's logits, list after list.
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer Logits { float at[]; };

void settle() {
    memoryBarrierBuffer();
    barrier();
}

// Grid: slices of the vocabulary, sequences.
PARAMETERS_IN_MEMORY(u64 logits; u32 logits_stride; u32 vocab; u64 step_rows; u32 step_rows_stride; u64 row_sampling;
                     u32 sampling_stride; u32 num_rows; u64 row_tokens; u32 tokens_stride; u32 max_tokens;
                     u64 row_num_tokens; u32 num_tokens_stride; u64 allowed_mask; u32 allowed_stride; u64 bias_tokens;
                     u32 bias_tokens_stride; u32 max_bias; u64 bias_values; u32 bias_values_stride; u64 stop_tokens;
                     u32 stop_stride; u32 max_stop; u64 bad_words; u32 bad_words_stride; u32 bad_words_width;
                     u64 grammar_mask; u32 grammar_stride;)

// Makes a token impossible. What the sampler reports must reach it: NaN and +∞ stay.
void forbid(Logits logits, u32 token) {
    float logit = logits.at[token];
    if (!is_nan(logit) && logit < INFINITY) logits.at[token] = -INFINITY;
}

// Cleared bits make their tokens impossible. An absent mask is 0.
void apply_masks(Logits logits, u32 first, u32 end, u64 one, u64 two) {
    for (u32 v = first + gl_LocalInvocationIndex; v < end; v += THREADS) {
        u32 bits = 0xffffffffu;
        if (one != 0) bits &= Words(one).at[v >> 5];
        if (two != 0) bits &= Words(two).at[v >> 5];
        if ((bits >> (v & 31u) & 1u) == 0) forbid(logits, v);
    }
}

// A token that is listed more often gets its values one after another, by the thread of its first place.
void apply_bias(Logits logits, u32 first, u32 end, Words tokens, Floats values, u32 count) {
    for (u32 i = gl_LocalInvocationIndex; i < count; i += THREADS) {
        u32 token = tokens.at[i];
        bool mine = token >= first && token < end;
        for (u32 j = 0; j < i && mine; j++) mine = tokens.at[j] != token;
        if (!mine) continue;
        float logit = logits.at[token];
        for (u32 j = i; j < count; j++)
            if (tokens.at[j] == token) logit += values.at[j];
        logits.at[token] = logit;
    }
}

// Each sequence's earlier tokens are compared with the end of the history, a thread a sequence.
void apply_bad_words(Logits logits, u32 first, u32 end, Ints list, u32 width, u32 count, u64 history, u32 num_tokens) {
    u32 at = 0;
    for (u32 word = 0; word < count && at < width; word++) {
        i32 length = list.at[at];
        if (length <= 0 || u32(length) >= width - at) return;
        u32 ids = at + 1, before = u32(length) - 1, last = u32(list.at[ids + before]);
        at += u32(length) + 1;
        if (word % THREADS != gl_LocalInvocationIndex || last < first || last >= end || before > num_tokens) continue;
        bool equal = true;
        for (u32 i = 0; i < before && equal; i++) equal = list.at[ids + i] == Ints(history).at[num_tokens - before + i];
        if (equal) forbid(logits, last);
    }
}

// Repetition over prompt and output; frequency and presence over the output.
void apply_penalties(Logits logits, u32 first, u32 end, u64 history, u32 num_tokens, u32 prompt, float repetition,
                     float presence, float frequency) {
    u32 size = end - first;
    for (u32 i = gl_LocalInvocationIndex; i < size; i += THREADS) counts[i] = 0;
    barrier();
    for (u32 i = gl_LocalInvocationIndex; i < num_tokens; i += THREADS) {
        u32 at = Words(history).at[i] - first;
        if (at >= size) continue;
        if (i >= prompt) {
            atomicAdd(counts[at], 1);
        } else {
            atomicOr(counts[at], SEEN);
        }
    }
    barrier();
    for (u32 i = gl_LocalInvocationIndex; i < size; i += THREADS) {
        u32 count = counts[i];
        if (count == 0) continue;
        float logit = logits.at[first + i];
        logit = logit > 0.0 ? logit / repetition : logit * repetition;
        count &= ~SEEN;
        if (count > 0) logit = (logit - frequency * float(count)) - presence;
        logits.at[first + i] = logit;
    }
    barrier();
}

void main() {
    u32 seq = gl_WorkGroupID.y;
    i32 index = Ints(p.step_rows + u64(seq) * p.step_rows_stride * 4).at[0];
    if (index < 0 || u32(index) >= p.num_rows) return;
    u64 row = u64(index);
    Words words = Words(p.row_sampling + row * p.sampling_stride);
    u32 prompt = words.at[2], min_tokens = words.at[10], num_bias = words.at[11], num_stop = words.at[12],
        num_bad_words = words.at[13];
    float repetition = uintBitsToFloat(words.at[7]), presence = uintBitsToFloat(words.at[8]),
          frequency = uintBitsToFloat(words.at[9]);
    u32 num_tokens = min(u32(max(Ints(p.row_num_tokens + row * p.num_tokens_stride * 4).at[0], 0)), p.max_tokens);
    u32 num_output = num_tokens > prompt ? num_tokens - prompt : 0;
    u64 history = p.row_tokens + row * p.tokens_stride * 4;
    Logits mine = Logits(p.logits + u64(seq) * p.logits_stride * 4);
    u32 first = gl_WorkGroupID.x * SLICE, end = min(first + SLICE, p.vocab);

    u64 allowed = p.allowed_mask != 0 && words.at[14] == 1 ? p.allowed_mask + row * p.allowed_stride * 4 : 0;
    u64 grammar = p.grammar_mask != 0 ? p.grammar_mask + u64(seq) * p.grammar_stride * 4 : 0;
    if (allowed != 0 || grammar != 0) {
        apply_masks(mine, first, end, allowed, grammar);
        settle();
    }
    if (p.stop_tokens != 0 && num_output < min_tokens && num_stop > 0) {
        Words stops = Words(p.stop_tokens + row * p.stop_stride * 4);
        for (u32 i = gl_LocalInvocationIndex; i < min(num_stop, p.max_stop); i += THREADS) {
            u32 token = stops.at[i];
            if (token >= first && token < end) forbid(mine, token);
        }
        settle();
    }
    if (p.bias_tokens != 0 && p.bias_values != 0 && num_bias > 0) {
        u64 tokens = p.bias_tokens + row * p.bias_tokens_stride * 4,
            values = p.bias_values + row * p.bias_values_stride * 4;
        apply_bias(mine, first, end, Words(tokens), Floats(values), min(num_bias, p.max_bias));
        settle();
    }
    if (p.bad_words != 0 && num_bad_words > 0) {
        Ints list = Ints(p.bad_words + row * p.bad_words_stride * 4);
        apply_bad_words(mine, first, end, list, p.bad_words_width, num_bad_words, history, num_tokens);
        settle();
    }
    if (repetition != 1.0 || presence != 0.0 || frequency != 0.0) {
        for (u32 start = first; start < end; start += COUNTED)
            apply_penalties(mine, start, min(start + COUNTED, end), history, num_tokens, prompt, repetition, presence,
                            frequency);
    }
}
