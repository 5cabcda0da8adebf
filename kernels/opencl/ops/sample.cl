// `sample`: a token per row. The tokens that the filters keep are described by one threshold (a key and, among its ties, an index), which is
// found among the few largest, where these are all that is kept, or by bisection. Probabilities are sums of integers, so that no draw depends
// on the order of a sum.
// Definitions: as logits.h.
// check:
// check: -DBLOCK=256
#include "logits.h"

// The threshold of min_p in 64 bits where the device has them.
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
typedef double wide;
#else
typedef float wide;
#endif

// The weight of a listed entry, whose key stands in the upper half, or in the lower one.
static inline u64 upper_weight(u64 entry, float max) { return weight_of(from_key((u32)(entry >> 32)), max); }
static inline u64 lower_weight(u64 entry, float max) { return weight_of(from_key((u32)entry), max); }

// This work-item's part of `count` entries.
static inline u32 first_listed(u32 count) {
    u32 each = (count + BLOCK - 1) / BLOCK;
    return min((u32)get_local_id(0) * each, count);
}
static inline u32 end_listed(u32 count) {
    u32 each = (count + BLOCK - 1) / BLOCK;
    return min(first_listed(count) + each, count);
}

#define LOCATE_LISTED(name, weight)                                                                                        \
    /* The sum of the first `count` entries before this work-item's part, and in `total` of all. */                       \
    static inline u64 name##_before(__local Shared *s, u32 count, float max, u64 *total) {                                 \
        u64 sum = 0;                                                                                                       \
        for (u32 i = first_listed(count); i < end_listed(count); i++) sum += weight(s->listed[i], max);                    \
        return block_scan(sum, s, total);                                                                                  \
    }                                                                                                                      \
    /* The first place at which the running sum reaches the target; `count` if none. */                                   \
    static inline u32 name(__local Shared *s, u32 count, float max, u64 before, u64 target) {                              \
        if (get_local_id(0) == 0) s->found = count;                                                                        \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                                      \
        for (u32 i = first_listed(count); i < end_listed(count); i++) {                                                    \
            u64 next = before + weight(s->listed[i], max);                                                                 \
            if (before < target && target <= next) s->found = i;                                                           \
            before = next;                                                                                                 \
        }                                                                                                                  \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                                      \
        u32 found = s->found;                                                                                              \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                                      \
        return found;                                                                                                      \
    }
LOCATE_LISTED(locate_upper, upper_weight)
LOCATE_LISTED(locate_lower, lower_weight)

// The least key whose probability is min_p of the most likely one's.
static inline u32 min_p_key(float max, float min_p) {
    wide least = min_p, top = max;
    u32 key = key_of((float)(top + log(least)));
    for (i32 i = 0; i < 16 && exp((wide)from_key(key - 1) - top) >= least; i++) key--;
    for (i32 i = 0; i < 16 && exp((wide)from_key(key) - top) < least; i++) key++;
    return key;
}

// A `SamplingRow`, as far as `sample` needs it.
typedef struct {
    u32 seed_low, seed_high, prompt_len;
    float temperature;
    u32 top_k;
    float top_p, min_p;
} Params;

// u of the sum, u = (word + ½)/2³²: rounded up to a whole.
static inline u64 part_of(u64 total, u32 word) {
    u64 odd = 2ul * word + 1, low = odd * total, high = mul_hi(odd, total);
    u64 part = high << 31 | low >> 33;
    return part + ((low & 0x1fffffffful) != 0);
}

// top_p of the sum, rounded up to a whole, at least 1. top_p is below 1: 24 bits, shifted down.
static inline u64 top_p_part(u64 total, float top_p) {
    u32 bits = as_uint(top_p), exponent = bits >> 23;
    if (top_p <= 0.f || exponent < 127 - 64) return 1;
    u64 digits = (bits & 0x7fffffu) | 0x800000u;
    // digits · 2^-shift, 24 ≤ shift < 88.
    u32 shift = 150 - exponent;
    u64 low = digits * total, high = mul_hi(digits, total), part, rest;
    if (shift < 64) {
        part = high << (64 - shift) | low >> shift;
        rest = low & ((1ul << shift) - 1);
    } else {
        part = shift == 64 ? high : high >> (shift - 64);
        rest = low | (high & ((1ul << (shift - 64)) - 1));
    }
    part += rest != 0;
    return part > 0 ? part : 1;
}

// Draws among the largest, if they are all that the filters leave; −1: they are not. `lower`: keys below are outside of the list, `least`:
// min_p's threshold.
static inline i32 draw_listed(const Row *row, __local Shared *s, const Params *p, float max, u32 lower, u32 least, u32 word) {
    bool all_mass = p->top_k == 0;
    float least_value = from_key(least), lower_value = from_key(lower);
    u64 mass = 0;
    start_list(s);
    for (u32 i = row->first; i < row->end; i++) {
        float x = scaled(row, row->logits[i]);
        if (all_mass && x >= least_value) mass += weight_of(x, max);
        if (x >= lower_value) list_value(s, x, i);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    u32 count = s->num_listed;
    if (count > MAX_LISTED || count == 0) return -1;
    sort_listed(s, count);
    if (p->top_k > 0 && p->top_k < count) {
        // Ties of the k-th stay.
        u32 kth = (u32)(s->listed[p->top_k - 1] >> 32);
        while (count > p->top_k && (u32)(s->listed[count - 1] >> 32) < kth) count--;
    }
    bool is_whole = true;
    if (p->top_p < 1.f) {
        u64 listed, whole = row_sum(mass, s), before = locate_upper_before(s, count, max, &listed);
        u32 last = locate_upper(s, count, max, before, top_p_part(all_mass ? whole : listed, p->top_p));
        is_whole = last < count || !all_mass;
        count = last < count ? last + 1 : count;
    }
    if (!is_whole) return -1;
    // In index order. Every work-item has read what it needs of the other one.
    barrier(CLK_LOCAL_MEM_FENCE);
    for (u32 i = get_local_id(0); i < count; i += BLOCK) s->listed[i] = s->listed[i] << 32 | s->listed[i] >> 32;
    sort_listed(s, count);
    u64 total, before = locate_lower_before(s, count, max, &total);
    u32 place = locate_lower(s, count, max, before, part_of(total, word));
    return (i32) ~(u32)(s->listed[min(place, count - 1)] >> 32);
}

// Draws after filters of any size.
static inline i32 draw_any(const Row *row, __local Shared *s, const Params *p, float max, u32 least, u32 word) {
    u32 last_tie = 0x7fffffffu;
    u64 above, total;
    if (p->top_k > 0) {
        u32 kth = largest_key(row, s, false, max, KEY_NONE, key_of(max) + 1, p->top_k, 0, &above);
        least = kth > least ? kth : least;
    }
    if (p->top_p < 1.f) {
        u64 need = top_p_part(row_sum(run_sum(row, MASS, max, from_key(least), ALL), s), p->top_p);
        u32 key = largest_key(row, s, true, max, least, key_of(max) + 1, need, 0, &above);
        u64 tie = weight_of(from_key(key), max);
        u64 ties = (need - above + tie - 1) / (tie > 0 ? tie : 1);
        float value = from_key(key);
        u64 mine = run_sum(row, TIES, max, value, ALL), before = block_scan(mine, s, &total);
        last_tie = locate(row, s, TIES, max, value, ALL, before, mine, min(ties, total));
        least = key;
    }
    float threshold = from_key(least);
    u64 mine = run_sum(row, MASS, max, threshold, last_tie), before = block_scan(mine, s, &total);
    return (i32)locate(row, s, MASS, max, threshold, last_tie, before, mine, part_of(total, word));
}

// One group a row.
__kernel void sample(const __global float *logits, u32 logits_stride, u32 vocab, const __global i32 *step_rows, u32 step_rows_stride,
                     const __global u8 *row_sampling, u32 sampling_stride, u32 num_rows, const __global i32 *row_num_tokens,
                     u32 num_tokens_stride, __global i32 *out, u32 out_stride) {
    __local Shared s;
    u64 seq = get_group_id(0);
    u32 id = get_local_id(0);
    i32 index = step_rows[seq * step_rows_stride];
    __global i32 *to = out + seq * out_stride;
    if (index < 0 || (u32)index >= num_rows) {
        if (id == 0) *to = -1;
        return;
    }
    const __global u32 *words = (const __global u32 *)(row_sampling + (u64)index * sampling_stride);
    Params p = {words[0], words[1], words[2], as_float(words[3]), words[4], as_float(words[5]), as_float(words[6])};
    // No temperature: the largest. Extreme ones still have an inverse.
    bool is_greedy = !(p.temperature > 0.f);
    Row row = row_of(logits + seq * logits_stride, vocab, is_greedy ? 1.f : clamp(p.temperature, 1e-30f, 1e30f));
    float best;
    u64 top = row_max(best_of(&row, &best), &s);
    i32 token = (i32) ~(u32)top;
    float max = scaled(&row, from_key((u32)(top >> 32))) + 0.f;
    if (!is_greedy && max > -INFINITY) {
        u32 counter = (u32)row_num_tokens[(u64)index * num_tokens_stride] - p.prompt_len;
        u32 word = philox(counter, p.seed_low, p.seed_high).s0;
        u32 least = KEY_FINITE;
        if (p.min_p > 0.f) {
            barrier(CLK_LOCAL_MEM_FENCE);
            if (id == 0) s.found = min(min_p_key(max, p.min_p), key_of(max));
            barrier(CLK_LOCAL_MEM_FENCE);
            least = s.found;
        }
        token = -1;
        if (p.top_k >= vocab) p.top_k = 0;
        if (p.top_k > 0 ? p.top_k <= MAX_LISTED : p.top_p < 1.f) {
            // At least as many values as top_k are not below the largest of as many work-items.
            u32 lower;
            if (p.top_k > BLOCK / 2) {
                u64 above;
                lower = largest_key(&row, &s, false, max, KEY_NONE, key_of(max) + 1, p.top_k, MAX_LISTED, &above);
            } else {
                lower = ranked_key(scaled_key(&row, best), p.top_k > 0 ? p.top_k : BLOCK / 4, &s);
            }
            token = draw_listed(&row, &s, &p, max, lower > least ? lower : least, least, word);
        }
        if (token < 0) token = draw_any(&row, &s, &p, max, least, word);
    }
    if (id == 0) *to = min(token, (i32)vocab - 1);
}
