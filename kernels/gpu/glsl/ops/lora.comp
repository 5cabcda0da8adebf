#version 460
#extension GL_GOOGLE_include_directive : enable
// `lora_shrink` and `lora_expand`: many adapters in one batch. A block takes one token, or a few neighbours: where
// these use the same adapter, which is the rule in a prompt, its weights are read once for all of them.
// Definitions: ACT (x of shrink, out of expand) and WEIGHT (a, b): f32, f16, bf16.
// revision: 1
// check: lora_shrink_few lora_shrink_many lora_expand_few lora_expand_many -DACT=f32 -DWEIGHT=f32
// check: lora_shrink_few lora_shrink_many lora_expand_few lora_expand_many -DACT=f32 -DWEIGHT=f16
// check: lora_shrink_few lora_shrink_many lora_expand_few lora_expand_many -DACT=bf16 -DWEIGHT=bf16
// check: lora_shrink_few lora_expand_many -DACT=f16 -DWEIGHT=f16
// check: lora_shrink_many lora_expand_few -DACT=f16 -DWEIGHT=bf16
// check: lora_shrink_few lora_expand_many -DACT=bf16 -DWEIGHT=f32
#define N 8
// Ranks of a block of `lora_shrink`.
#define SUMS 4
#define RANKS SUMS
#include "lanes.glsl"
#include "vector.glsl"

// Tokens of a block: in decode steps, where neighbours differ, and in prompts.
#if defined(ENTRY_lora_shrink_few) || defined(ENTRY_lora_expand_few)
#define TOKENS 1
#else
#define TOKENS 8
#endif

#if defined(ENTRY_lora_shrink_few) || defined(ENTRY_lora_shrink_many)
PARAMETERS(u64 x; u32 x_stride; u64 a; u32 slot_stride; u32 rank_stride; u64 token_lora; u32 token_lora_stride; u64 to;
           u32 to_stride; u32 num_tokens; u32 num_slots; u32 width; u32 max_rank;)
#else
PARAMETERS(u64 x; u32 x_stride; u64 b; u32 slot_stride; u32 feature_stride; u64 scales; u32 scales_stride;
           u64 token_lora; u32 token_lora_stride; u64 to; u32 to_stride; u32 num_tokens; u32 num_slots; u32 features;
           u32 max_rank; u32 x_width; u32 second; u32 third;)
#endif

// The slots of a block's tokens (−1: none), one group of equal ones after another: `left` has the tokens of later
// groups as bits.
struct Groups {
    i32 slots[TOKENS];
    u32 left;
};
Groups groups_of(u32 first) {
    Groups groups;
    groups.left = 0;
    UNROLLED for (u32 i = 0; i < TOKENS; i++) {
        groups.slots[i] = -1;
        if (first + i >= p.num_tokens) continue;
        u32 slot = Words(p.token_lora + u64(first + i) * p.token_lora_stride * 4).at[0];
        if (slot >= p.num_slots) continue;
        groups.slots[i] = i32(slot);
        groups.left |= 1u << i;
    }
    return groups;
}
// The next group's tokens as bits, and their slot.
u32 next_group(inout Groups groups, out i32 slot) {
    slot = -1;
    u32 same = 0;
    UNROLLED for (u32 i = 0; i < TOKENS; i++) {
        if ((groups.left >> i & 1u) == 0) continue;
        if (slot < 0) slot = groups.slots[i];
        if (groups.slots[i] == slot) same |= 1u << i;
    }
    groups.left &= ~same;
    return same;
}

#if defined(ENTRY_lora_shrink_few) || defined(ENTRY_lora_shrink_many)

shared float parts[8][TOKENS * RANKS];

// Grid: tokens in TOKENS, ranks in RANKS. The threads of a block (256) share out the width.
void main() {
    u32 first = gl_WorkGroupID.x * TOKENS, rank = gl_WorkGroupID.y * RANKS;
    Groups groups = groups_of(first);
    u64 pitch = u64(p.x_stride) * SIZE(ACT);
    bool vector = (p.x | pitch | p.a | u64(p.rank_stride) * SIZE(WEIGHT) | u64(p.slot_stride) * SIZE(WEIGHT)) % 16 == 0;
    u32 whole = vector ? p.width & ~7u : 0;
    float sums[TOKENS][RANKS], v[8], w[RANKS][8];
    UNROLLED for (u32 i = 0; i < TOKENS; i++)
        UNROLLED for (u32 r = 0; r < RANKS; r++) sums[i][r] = 0.0;
    while (groups.left != 0) {
        i32 slot;
        u32 same = next_group(groups, slot);
        u64 weights[RANKS];
        UNROLLED for (u32 r = 0; r < RANKS; r++)
            weights[r] = p.a + (u64(slot) * p.slot_stride + u64(min(rank + r, p.max_rank - 1)) * p.rank_stride) *
                                   SIZE(WEIGHT);
        for (u32 k = 8 * THREAD; k < whole; k += 8 * THREADS) {
            UNROLLED for (u32 r = 0; r < RANKS; r++) GET(WEIGHT, weights[r] + k * SIZE(WEIGHT), w[r]);
            UNROLLED for (u32 i = 0; i < TOKENS; i++) {
                if ((same >> i & 1u) == 0) continue;
                GET(ACT, p.x + (first + i) * pitch + k * SIZE(ACT), v);
                UNROLLED for (u32 r = 0; r < RANKS; r++)
                    UNROLLED for (u32 j = 0; j < 8; j++) sums[i][r] = fma(v[j], w[r][j], sums[i][r]);
            }
        }
        for (u32 k = whole + THREAD; k < p.width; k += THREADS) {
            UNROLLED for (u32 i = 0; i < TOKENS; i++) {
                if ((same >> i & 1u) == 0) continue;
                float value = LOAD(ACT, p.x + (first + i) * pitch, k);
                UNROLLED for (u32 r = 0; r < RANKS; r++)
                    sums[i][r] = fma(value, LOAD(WEIGHT, weights[r], k), sums[i][r]);
            }
        }
    }
    UNROLLED for (u32 i = 0; i < TOKENS; i++) {
        float mine = sums32(sums[i], RANKS);
        if (LANE < RANKS) parts[WARP][i * RANKS + LANE] = mine;
    }
    barrier();
    u32 i = THREAD / RANKS, r = THREAD % RANKS;
    if (i >= TOKENS || first + i >= p.num_tokens || rank + r >= p.max_rank) return;
    float sum = 0.0;
    for (u32 part = 0; part < WARPS; part++) sum += parts[part][THREAD];
    Floats(p.to + (u64(first + i) * p.to_stride + rank + r) * 4).at[0] = sum;
}

#else

// The tokens' x: TOKENS · x_width, max_rank for each part of the features, which begin at 0, `second` and `third`
// (where there are any).
shared float inputs[SHARED_WORDS];

// Grid: tokens in TOKENS, features in THREADS. A thread computes one feature.
void main() {
    u32 first = gl_WorkGroupID.x * TOKENS, n = gl_WorkGroupID.y * THREADS + THREAD;
    Groups groups = groups_of(first);
    if (groups.left == 0) return;
    for (u32 at = THREAD; at < TOKENS * p.x_width; at += THREADS) {
        u32 t = first + at / p.x_width;
        float value = 0.0;
        if (t < p.num_tokens) value = Floats(p.x + u64(t) * p.x_stride * 4).at[at % p.x_width];
        inputs[at] = value;
    }
    barrier();
    if (n >= p.features) return;
    u32 mine = (u32(n >= p.second) + u32(n >= p.third)) * p.max_rank;
    bool vector = (p.b | u64(p.feature_stride) * SIZE(WEIGHT) | u64(p.slot_stride) * SIZE(WEIGHT)) % 16 == 0;
    u32 whole = vector ? p.max_rank & ~7u : 0;
    while (groups.left != 0) {
        i32 slot;
        u32 same = next_group(groups, slot);
        u64 weights = p.b + (u64(slot) * p.slot_stride + u64(n) * p.feature_stride) * SIZE(WEIGHT);
        float sums[TOKENS], w[8];
        UNROLLED for (u32 i = 0; i < TOKENS; i++) sums[i] = 0.0;
        for (u32 r = 0; r < whole; r += 8) {
            GET(WEIGHT, weights + r * SIZE(WEIGHT), w);
            UNROLLED for (u32 i = 0; i < TOKENS; i++) {
                if ((same >> i & 1u) == 0) continue;
                UNROLLED for (u32 j = 0; j < 8; j++) sums[i] = fma(inputs[mine + i * p.x_width + r + j], w[j], sums[i]);
            }
        }
        for (u32 r = whole; r < p.max_rank; r++) {
            float weight = LOAD(WEIGHT, weights, r);
            UNROLLED for (u32 i = 0; i < TOKENS; i++) sums[i] = fma(inputs[mine + i * p.x_width + r], weight, sums[i]);
        }
        float scale = Floats(p.scales + u64(slot) * p.scales_stride * 4).at[0];
        UNROLLED for (u32 i = 0; i < TOKENS; i++) {
            if ((same >> i & 1u) == 0) continue;
            u64 to = p.to + (u64(first + i) * p.to_stride + n) * SIZE(ACT);
            STORE(ACT, to, 0, LOAD(ACT, to, 0) + scale * sums[i]);
        }
    }
}
#endif
