#version 460
#extension GL_GOOGLE_include_directive : enable
// Mixture of experts: `moe_route`, `moe_linear`, `moe_combine`.
// Definitions: ACT (x and out) and WEIGHT (experts' matrices): f32, f16, bf16; instead of WEIGHT, FORMAT (a format
// in blocks: see blocks.glsl).
// revision: 6
// check: moe_route moe_linear moe_combine -DACT=f32 -DWEIGHT=f32
// check: moe_linear -DACT=f32 -DWEIGHT=f16
// check: moe_linear -DACT=f32 -DWEIGHT=bf16
// check: moe_linear -DACT=f16 -DWEIGHT=f32
// check: moe_linear moe_combine -DACT=f16 -DWEIGHT=f16
// check: moe_linear -DACT=f16 -DWEIGHT=bf16
// check: moe_linear -DACT=bf16 -DWEIGHT=f32
// check: moe_linear -DACT=bf16 -DWEIGHT=f16
// check: moe_linear moe_combine -DACT=bf16 -DWEIGHT=bf16
// check: moe_linear -DACT=f32 -DFORMAT=3
// check: moe_linear -DACT=f16 -DFORMAT=4
// check: moe_linear -DACT=bf16 -DFORMAT=5
// check: moe_linear -DACT=f32 -DFORMAT=6
// check: moe_linear -DACT=f16 -DFORMAT=7
// check: moe_linear -DACT=bf16 -DFORMAT=8
// check: moe_linear -DACT=f32 -DFORMAT=40
// check: moe_linear -DACT=bf16 -DFORMAT=43
// check: moe_linear -DACT=f16 -DFORMAT=47
// check: moe_linear -DACT=bf16 -DFORMAT=48
// check: moe_linear -DACT=f16 -DFORMAT=50
// check: moe_linear -DACT=f32 -DFORMAT=52
// check: moe_linear -DACT=bf16 -DFORMAT=55
#define N 8
// Features of 32 threads of `moe_linear`.
#define SUMS 4
#define FEATURES SUMS
#include "functions.glsl"
#include "lanes.glsl"
#include "vector.glsl"
#ifdef FORMAT
#include "blocks.glsl"
#endif

#if defined(ENTRY_moe_route)

// Choices of the block's tokens and sums of their groups, 32 threads each: tokens · (num_experts + num_groups).
shared float choices[SHARED_WORDS];

// Descending by score; a NaN comes last.
u32 route_key(float score) {
    if (is_nan(score)) return 0;
    u32 bits = score == 0.0 ? 0 : floatBitsToUint(score);
    return bits ^ (u32(i32(bits) >> 31) | 0x80000000u);
}

PARAMETERS(u64 logits; u32 logits_stride; u64 experts; u32 experts_stride; u64 weights; u32 weights_stride; u64 bias;
           u32 num_tokens; u32 num_experts; u32 top_k; u32 is_sigmoid; u32 normalize; float factor; u32 num_groups;
           u32 top_groups; u32 group_best;)

// Whether a choice comes after (last_key, last_index): by key, of equal ones the lowest index first.
bool comes_after(u32 key, u32 index, bool is_first, u32 last_key, u32 last_index) {
    return is_first || key < last_key || (key == last_key && index > last_index);
}

// The sum of the `p.group_best` largest of `n` choices from `begin` on, largest first.
float sum_of_best(u32 begin, u32 n) {
    u32 last_key = 0xffffffffu, last_index = 0;
    float sum = 0.0;
    for (u32 taken = 0; taken < p.group_best; taken++) {
        u32 key = 0, index = 0;
        bool found = false;
        for (u32 i = 0; i < n; i++) {
            u32 other = route_key(choices[begin + i]);
            if (!comes_after(other, i, taken == 0, last_key, last_index) || (found && other <= key)) continue;
            key = other;
            index = i;
            found = true;
        }
        last_key = key;
        last_index = index;
        sum += choices[begin + index];
    }
    return sum;
}

float score_of(float logit, float largest, float sum) {
    return p.is_sigmoid != 0 ? 1.0 / (1.0 + exp_of(-logit)) : exp_of(logit - largest) / sum;
}

void main() {
    u32 t = gl_WorkGroupID.x * WARPS + WARP, first = WARP * (p.num_experts + p.num_groups);
    // Tokens past the end follow the last one, for the barriers' sake, and write nothing.
    bool live = t < p.num_tokens;
    Floats row = Floats(p.logits + u64(min(t, p.num_tokens - 1)) * p.logits_stride * 4);
    float largest = -INFINITY, sum = 0.0;
    for (u32 e = LANE; e < p.num_experts; e += 32) largest = max(largest, row.at[e]);
    largest = max32(largest);
    for (u32 e = LANE; e < p.num_experts; e += 32) sum += exp_of(row.at[e] - largest);
    sum = sum32(sum);
    for (u32 e = LANE; e < p.num_experts; e += 32) {
        float bias = p.bias != 0 ? Floats(p.bias).at[e] : 0.0;
        choices[first + e] = score_of(row.at[e], largest, sum) + bias;
    }
    barrier();
    if (p.num_groups != 0) {
        u32 each = p.num_experts / p.num_groups, sums = first + p.num_experts;
        for (u32 g = LANE; g < p.num_groups; g += 32) choices[sums + g] = sum_of_best(first + g * each, each);
        barrier();
        for (u32 e = LANE; e < p.num_experts; e += 32) {
            u32 own = e / each, better = 0;
            float mine = choices[sums + own];
            for (u32 g = 0; g < p.num_groups; g++) {
                float other = choices[sums + g];
                if (other > mine || (other == mine && g < own)) better++;
            }
            if (better >= p.top_groups) choices[first + e] = -INFINITY;
        }
        barrier();
    }
    u64 experts = p.experts + u64(t) * p.experts_stride * 4, weights = p.weights + u64(t) * p.weights_stride * 4;
    // Each round takes the best that comes after the last one taken: by score, of equal ones the lowest.
    u32 last_key = 0xffffffffu, last_index = 0;
    bool is_first = true;
    float total = 0.0;
    for (u32 j = 0; j < p.top_k; j++) {
        u32 key = 0, inverted = 0;
        for (u32 e = LANE; e < p.num_experts; e += 32) {
            u32 other = route_key(choices[first + e]);
            bool is_left = comes_after(other, e, is_first, last_key, last_index);
            if (is_left && (inverted == 0 || other > key)) {
                key = other;
                inverted = ~e;
            }
        }
        // Lanes without a candidate offer index ~0, which only they have.
        u32 best = max32(key), index = ~max32(key == best ? inverted : 0);
        is_first = false;
        last_key = best;
        last_index = index;
        float score = score_of(row.at[min(index, p.num_experts - 1)], largest, sum);
        total += score;
        if (live && LANE == 0) {
            Words(experts).at[j] = index;
            Floats(weights).at[j] = p.normalize != 0 ? score : score * p.factor;
        }
    }
    if (live && p.normalize != 0 && LANE == 0) {
        for (u32 j = 0; j < p.top_k; j++) Floats(weights).at[j] = Floats(weights).at[j] / total * p.factor;
    }
}

#elif defined(ENTRY_moe_linear)

// Eight weights of a row from value k on, and one.
#ifdef FORMAT
#define WEIGHT_ALIGNED(address) true
void weights8(u64 row, u32 k, out float w[8]) { VALUES8_AT(row, k, w) }
float weight1(u64 row, u32 k) { return value_at(row, k); }
#else
#define WEIGHT_ALIGNED(address) ((address) % 16 == 0)
void weights8(u64 row, u32 k, out float w[8]) { GET(WEIGHT, row + u64(k) * SIZE(WEIGHT), w); }
float weight1(u64 row, u32 k) { return LOAD(WEIGHT, row, k); }
#endif

// Without `experts`, choice j takes matrix j: `head_linear`. Choices of other experts than those from `first_expert` on
// become 0. Grid: features in 8 · FEATURES, choices (token · top_k + j) up to a bound, then in strides. 32 threads
// compute FEATURES features of a choice.
PARAMETERS(u64 x; u32 token_stride; u32 input_stride; u64 weight; u64 row_bytes; u64 experts; u32 experts_stride;
           u64 to; u32 to_token_stride; u32 to_choice_stride; u64 bias; u32 num_choices; u32 top_k; u32 first_expert;
           u32 num_experts; u32 width; u32 features;)
void main() {
    u32 n = (gl_WorkGroupID.x * WARPS + WARP) * FEATURES;
    for (u32 choice = gl_WorkGroupID.y; choice < p.num_choices; choice += gl_NumWorkGroups.y) {
        u32 t = choice / p.top_k, j = choice % p.top_k, expert = j;
        if (p.experts != 0) expert = Words(p.experts + u64(t) * p.experts_stride * 4).at[j] - p.first_expert;
        u64 to = p.to + (u64(t) * p.to_token_stride + u64(j) * p.to_choice_stride) * SIZE(ACT);
        if (expert >= p.num_experts) {
            if (LANE < FEATURES && n + LANE < p.features) STORE(ACT, to, n + LANE, 0.0);
            continue;
        }
        u64 from = p.x + (u64(t) * p.token_stride + u64(j) * p.input_stride) * SIZE(ACT),
            rows = p.weight + u64(expert) * p.features * p.row_bytes;
        u32 whole = from % 16 == 0 && WEIGHT_ALIGNED(rows | p.row_bytes) ? p.width & ~7u : 0;
        float sums[FEATURES] = float[FEATURES](0.0, 0.0, 0.0, 0.0), v[8], w[8];
        // Features past the end repeat the last one, for the barriers' sake.
        u64 row[FEATURES];
        UNROLLED for (u32 i = 0; i < FEATURES; i++) row[i] = rows + min(n + i, p.features - 1) * p.row_bytes;
        for (u32 k = 8 * LANE; k < whole; k += 256) {
            GET(ACT, from + u64(k) * SIZE(ACT), v);
            UNROLLED for (u32 i = 0; i < FEATURES; i++) {
                weights8(row[i], k, w);
                UNROLLED for (u32 e = 0; e < 8; e++) sums[i] = fma(v[e], w[e], sums[i]);
            }
        }
        for (u32 k = whole + LANE; k < p.width; k += 32) {
            float value = LOAD(ACT, from, k);
            UNROLLED for (u32 i = 0; i < FEATURES; i++) sums[i] = fma(value, weight1(row[i], k), sums[i]);
        }
        float mine = sums32(sums, FEATURES);
        if (LANE < FEATURES && n + LANE < p.features) {
            if (p.bias != 0) mine += Floats(p.bias).at[expert * p.features + n + LANE];
            STORE(ACT, to, n + LANE, mine);
        }
    }
}

#else

// Grid: values of a token in blocks, tokens up to a bound, then in strides.
PARAMETERS(u64 x; u32 token_stride; u32 choice_stride; u64 weights; u32 weights_stride; u64 to; u32 to_stride;
           u32 num_tokens; u32 top_k; u32 width;)
void main() {
    u32 at = gl_WorkGroupID.x * THREADS + gl_LocalInvocationIndex;
    if (at >= p.width) return;
    for (u32 t = gl_WorkGroupID.y; t < p.num_tokens; t += gl_NumWorkGroups.y) {
        float sum = 0.0;
        for (u32 j = 0; j < p.top_k; j++) {
            float weight = Floats(p.weights + u64(t) * p.weights_stride * 4).at[j];
            sum += weight * LOAD(ACT, p.x + (u64(t) * p.token_stride + u64(j) * p.choice_stride) * SIZE(ACT), at);
        }
        STORE(ACT, p.to + u64(t) * p.to_stride * SIZE(ACT), at, sum);
    }
}
#endif
