#version 460
#extension GL_GOOGLE_include_directive : enable
// `sample`: a token per row. The tokens that the filters keep are described by one threshold (a key and, among its
// ties, an index), which is found digit by digit. Probabilities are sums of integers, so that no draw depends on the
// order of a sum.
// Definitions: none.
// revision: 1
// check: sample
#include "logits.glsl"

// The product of two numbers, and its parts above 64 bits.
void multiply(u64 a, u64 b, out u64 high, out u64 low) {
    u64 a0 = a & 0xffffffffUL, a1 = a >> 32, b0 = b & 0xffffffffUL, b1 = b >> 32;
    u64 lowest = a0 * b0, middle = a1 * b0 + (lowest >> 32), other = a0 * b1 + (middle & 0xffffffffUL);
    high = a1 * b1 + (middle >> 32) + (other >> 32);
    low = other << 32 | (lowest & 0xffffffffUL);
}
// (high · 2^64 + low) / 2^shift rounded up, shift below 128; the quotient fits.
u64 shifted_up(u64 high, u64 low, u32 shift) {
    if (shift == 0) return low;
    if (shift < 64) return (high << (64 - shift) | low >> shift) + u64((low & ((1UL << shift) - 1)) != 0);
    shift -= 64;
    bool rest = low != 0 || (high & ((1UL << shift) - 1)) != 0;
    return (high >> shift) + u64(rest);
}

// u of the sum, u = (word + ½)/2³²: rounded up to a whole.
u64 drawn_part(u64 total, u32 word) {
    u64 high, low;
    multiply(2 * u64(word) + 1, total, high, low);
    return shifted_up(high, low, 33);
}
// top_p (below 1) of the sum, rounded up to a whole, at least 1.
u64 top_p_part(u64 total, float top_p) {
    if (!(top_p > 0.0)) return 1;
    u32 bits = floatBitsToUint(top_p), exponent = max(bits >> 23, 1u),
        digits = bits >= 0x800000u ? (bits & 0x7fffffu) | 0x800000u : bits;
    u64 high, low;
    multiply(digits, total, high, low);
    // 24 digits, the last one 2^(exponent - 150).
    u64 part = shifted_up(high, low, min(150 - exponent, 127u));
    return part > 0 ? part : 1;
}

// The least key whose probability is min_p of the most likely one's.
u32 min_p_key(float largest, float min_p) {
    u32 key = key_of(largest + log_of(max(min_p, 1.1754944e-38)));
    for (u32 i = 0; i < 16 && exp_of(from_key(key - 1) - largest) >= min_p; i++) key--;
    for (u32 i = 0; i < 16 && exp_of(from_key(key) - largest) < min_p; i++) key++;
    return min(key, key_of(largest));
}

// A row's seed, prompt length, temperature, top_k, top_p and min_p, as far as drawing needs them.
struct Filters {
    u32 top_k;
    float top_p, min_p;
};

u32 draw(Row row, Filters filters, float largest, u32 word) {
    u32 least = filters.min_p > 0.0 ? min_p_key(largest, filters.min_p) : KEY_FINITE, last_tie = 0x7fffffffu;
    u64 above;
    if (filters.top_k > 0) least = max(least, select_key(row, false, largest, filters.top_k, above));
    if (filters.top_p < 1.0) {
        Survey kept = survey(row, Part(false, from_key(least), last_tie, largest));
        u64 need = top_p_part(kept.total, filters.top_p);
        least = select_key(row, true, largest, need, above);
        // As many of the equal ones as are needed, in the order of their indices.
        u64 tie = max(weight_of(from_key(least), largest), 1UL), ties = (need - above + tie - 1) / tie;
        Part equal = Part(true, from_key(least), 0, largest);
        Survey all = survey(row, equal);
        last_tie = locate(row, equal, all, min(ties, all.total));
    }
    Part part = Part(false, from_key(least), last_tie, largest);
    Survey left = survey(row, part);
    return locate(row, part, left, drawn_part(left.total, word));
}

// One block a row.
PARAMETERS(u64 logits; u32 logits_stride; u32 vocab; u64 step_rows; u32 step_rows_stride; u64 row_sampling;
           u32 sampling_stride; u32 num_rows; u64 row_num_tokens; u32 num_tokens_stride; u64 to; u32 to_stride;)
void main() {
    u32 seq = gl_WorkGroupID.x;
    i32 index = Ints(p.step_rows + u64(seq) * p.step_rows_stride * 4).at[0];
    u64 to = p.to + u64(seq) * p.to_stride * 4;
    if (index < 0 || u32(index) >= p.num_rows) {
        if (THREAD == 0) Ints(to).at[0] = -1;
        return;
    }
    Words words = Words(p.row_sampling + u64(index) * p.sampling_stride);
    // No temperature: the largest. Extreme ones still have an inverse.
    float temperature = uintBitsToFloat(words.at[3]);
    bool is_greedy = !(temperature > 0.0) || is_nan(temperature);
    Row row = Row(p.logits + u64(seq) * p.logits_stride * 4, p.vocab,
                  is_greedy ? 1.0 : 1.0 / clamp(temperature, 1e-30, 1e30));
    u64 best = block_max(best_of(row.logits, p.vocab, THREAD, THREADS));
    u32 token = token_of(best);
    float largest = at_temperature(from_key(u32(best >> 32)), row.inverse);
    if (!is_greedy && has_token(best) && largest > -INFINITY) {
        u32 counter = u32(Ints(p.row_num_tokens + u64(index) * p.num_tokens_stride * 4).at[0]) - words.at[2];
        u32 word = philox(counter, words.at[0], words.at[1]).x, top_k = words.at[4];
        Filters filters = Filters(top_k >= p.vocab ? 0 : top_k, uintBitsToFloat(words.at[5]),
                                  uintBitsToFloat(words.at[6]));
        token = min(draw(row, filters, largest, word), p.vocab - 1);
    }
    if (THREAD == 0) Words(to).at[0] = token;
}
