// `sample`: a token per row. The tokens that the filters keep are described by one threshold (a key and, among its
// ties, an index), which is found by bisection. Probabilities are sums of integers, so that no draw depends on the
// order of a sum.
// Definitions: as logits.h.
// revision: 1
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

// The least key whose probability is min_p of the most likely one's.
INLINE u32 min_p_key(float max, float min_p) {
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
INLINE u64 part_of(u64 total, u32 word) {
    u64 odd = 2ul * word + 1, low = odd * total, high = mul_hi(odd, total);
    u64 part = high << 31 | low >> 33;
    return part + ((low & 0x1fffffffful) != 0);
}

// top_p of the sum, rounded up to a whole, at least 1. top_p is below 1: 24 bits, shifted down.
INLINE u64 top_p_part(u64 total, float top_p) {
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

// One group a row. Stages that a row does not ask for search nothing, so that every work-item meets the same barriers:
// see TOGETHER_IF.
KERNEL void sample(const __global float *logits, u32 logits_stride, u32 vocab, const __global i32 *step_rows,
                   u32 step_rows_stride, const __global u8 *row_sampling, u32 sampling_stride, u32 num_rows,
                   const __global i32 *row_num_tokens, u32 num_tokens_stride, __global i32 *out, u32 out_stride) {
    __local Shared s;
    u64 seq = get_group_id(0);
    u32 id = get_local_id(0);
    i32 index = step_rows[seq * step_rows_stride];
    // No early return: compilers for CPUs run what stands behind it for all work-items, so that it must be valid for
    // padding too.
    bool live = index >= 0 && (u32)index < num_rows;
    index = live ? index : 0;
    const __global u32 *words = (const __global u32 *)(row_sampling + (u64)index * sampling_stride);
    Params p = {words[0], words[1], words[2], as_float(words[3]), words[4], as_float(words[5]), as_float(words[6])};
    // No temperature: the largest. Extreme ones still have an inverse.
    bool is_greedy = !live || !(p.temperature > 0.f);
    Row row = row_of(logits + seq * logits_stride, vocab, is_greedy ? 1.f : clamp(p.temperature, 1e-30f, 1e30f));
    float best;
    u64 top = row_max(best_of(&row, &best), &s), above, total;
    float max_value = scaled(&row, from_key((u32)(top >> 32))) + 0.f;
    i32 largest = token_of(top);
    bool draws = !is_greedy && largest >= 0 && max_value > -INFINITY;
    u32 counter = (u32)row_num_tokens[(u64)index * num_tokens_stride] - p.prompt_len;
    u32 word = philox(counter, p.seed_low, p.seed_high).s0;
    // Each stage raises the least key that stays.
    if (id == 0) s.found = draws && p.min_p > 0.f ? min(min_p_key(max_value, p.min_p), key_of(max_value)) : KEY_FINITE;
    barrier(CLK_LOCAL_MEM_FENCE);
    u32 least = s.found, end = key_of(max_value) + 1;
    bool by_count = draws && p.top_k > 0 && p.top_k < vocab, by_mass = draws && p.top_p < 1.f;
    u64 need = p.top_k;
    // By number, and then by mass. A loop, so that the code stands there once.
    for (u32 is_mass = 0; is_mass < 2; is_mass++) {
        bool wanted = is_mass ? by_mass : by_count;
        u64 mass = row_sum(is_mass && wanted ? run_sum(&row, MASS, max_value, from_key(least), ALL) : 0, &s);
        need = is_mass ? top_p_part(mass, p.top_p) : need;
        u32 key = largest_key(&row, &s, is_mass, max_value,
                              !wanted   ? end
                              : is_mass ? least
                                        : KEY_NONE,
                              end, need, &above);
        least = wanted ? max(least, key) : least;
    }
    // Of equal values the first ones stay.
    u64 tie = max(weight_of(from_key(least), max_value), (u64)1), ties = (need - above + tie - 1) / tie;
    float value = from_key(least);
    u64 mine = by_mass ? run_sum(&row, TIES, max_value, value, ALL) : 0, before = block_scan(mine, &s, &total);
    u32 last_tie = locate(&row, &s, TIES, max_value, value, ALL, before, mine, min(ties, total));
    last_tie = by_mass ? last_tie : ALL;

    mine = draws ? run_sum(&row, MASS, max_value, value, last_tie) : 0;
    before = block_scan(mine, &s, &total);
    u32 drawn = locate(&row, &s, MASS, max_value, value, last_tie, before, mine, part_of(total, word));
    i32 token = draws ? (i32)min(drawn, vocab - 1) : largest;
    if (id == 0) out[seq * out_stride] = live ? token : -1;
}
