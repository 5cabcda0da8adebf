// Attention of prompts over the paged cache on the matrix units of Intel's GPUs (matrix.h): SUBGROUP / 2 neighbouring
// tokens of a query head a subgroup, 32 keys at a time, and nothing in local memory.
//
// Scores are tokens by keys: a lane has one key and loads 32 bytes of it in the cache's layout. The weights of 16 keys
// are then the left side of the product with their values. Its lanes need 16 tokens of a dim, which are two rows of the
// cache as well. With subgroups of 8 lanes, a lane has two neighbouring keys, in two products, because a word holds
// both. So lanes exchange only each token's highest score. A subgroup may hold tokens of several sequences: it then
// goes through the keys of each.
//
// Definitions: ACT and KV (the same: f16 or bf16), HEAD_DIM (a multiple of 16), BLOCK (a multiple of 8), DPAS (see
// matrix.h). Queries start at words.
// Entry point: attention_tiles. Grid (⌈T / 64⌉, num_heads), 128 threads; parameters are those of attention_plain.
// Tokens that belong to no sequence write nothing. Empty where there are no such units.
// revision: 1
// check: -DACT=bf16 -DKV=bf16 -DHEAD_DIM=128 -DBLOCK=64
// matrix: -DACT=bf16 -DKV=bf16 -DHEAD_DIM=128 -DBLOCK=64
// matrix: -DACT=f16 -DKV=f16 -DHEAD_DIM=64 -DBLOCK=16
// matrix: -DACT=f16 -DKV=f16 -DHEAD_DIM=80 -DBLOCK=8
#include "kv.h"

#ifdef DPAS
#include "matrix.h"

// Tokens of a subgroup, and vectors of one value for each.
#if DPAS == 16
#define TOKENS 8
typedef left8 Left;
#define MULTIPLY_ROWS MULTIPLY8
#define FOR_TOKENS(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#else
#define TOKENS 4
typedef left4 Left;
#define MULTIPLY_ROWS MULTIPLY4
#define FOR_TOKENS(DO) DO(0) DO(1) DO(2) DO(3)
#endif
typedef FLOATN(TOKENS) Floats;
typedef CAT(int, TOKENS) Ints;

// Keys of a pass; products of scores and of values in it; keys of which a lane brings the weights in one left side.
#define KEYS 32
#define SCORES (KEYS / DPAS)
#define PIECES (KEYS / 16)
#define STEPS (HEAD_DIM / 16)
#define CHUNKS (HEAD_DIM / DPAS)

// The first sequence that ends behind token t.
INLINE u32 sequence_at(const __global i32 *starts, u32 S, i32 t) {
    u32 low = 0, high = S;
    while (low < high) {
        u32 middle = (low + high) / 2;
        if (starts[middle + 1] > t) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

// The key that a lane has in the i-th product of scores, counted from the pass's first.
INLINE i32 key_of(u32 i, u32 lane) { return (i32)(i / LEFT_VALUES * 16 + LEFT_VALUES * lane + i % LEFT_VALUES); }

// Two rows of the cache.
INLINE int8 two_rows(const __global u8 *a, const __global u8 *b) {
    return as_int8((uint8)(vload4(0, (const __global u32 *)a), vload4(0, (const __global u32 *)b)));
}

// Of four words of values at keys `key` .., those that count, as 0 · NaN is NaN.
INLINE uint4 counting(i32 key, i32 least, i32 most) {
    int4 low = key + (int4)(0, 2, 4, 6), high = low + 1;
    return select((uint4)0, (uint4)0xffffu, low >= least && low <= most) |
           select((uint4)0, (uint4)0xffff0000u, high >= least && high <= most);
}

#if DPAS == 16
#define WEIGHT_OF(m) weights.s##m = (short)bits_of(scores[p].s##m);
#else
#define WEIGHT_OF(m) weights.s##m = (int)(bits_of(scores[2 * p].s##m) | bits_of(scores[2 * p + 1].s##m) << 16);
#endif
INLINE u32 bits_of(float x) { return CAT(f32_to_, ACT)(x); }

KERNEL void attention_tiles(const __global ACT *q, u32 q_token_stride, u32 q_head_stride, const __global u8 *cache,
                            u64 page_stride, const __global i32 *block_table, u32 table_stride,
                            const __global i32 *step_rows, const __global i32 *starts, const __global i32 *seq_lens,
                            const __global float *sinks, __global ACT *out, u32 out_token_stride, u32 out_head_stride,
                            u32 T, u32 S, u32 num_heads, u32 group, float scale, float softcap, u32 window) {
    // Each work-item's part of the queries for each step. It reads only its own part, so there is no barrier. In
    // registers they would displace the sums.
    __local Left queries[STEPS][128];
    u32 lane = get_local_id(0) % DPAS, head = get_group_id(1);
    i32 first_token = (i32)(get_group_id(0) * 64 + get_local_id(0) / DPAS * TOKENS),
        end_token = min(first_token + TOKENS, (i32)T);
    if (first_token >= (i32)T) return;
    // Tokens past the end repeat the last one, and are not written.
    for (u32 step = 0; step < STEPS; step++) {
        left1 values[TOKENS];
#pragma unroll
        for (i32 m = 0; m < TOKENS; m++)
            values[m] = *(const __global left1 *)(q + (u64)min(first_token + m, end_token - 1) * q_token_stride +
                                                  (u64)head * q_head_stride + 16 * step + LEFT_VALUES * lane);
        queries[step][get_local_id(0)] = CAT(vload, TOKENS)(0, values);
    }
    Floats highest = -INFINITY, total = 0.f, sums[CHUNKS];
#pragma unroll
    for (u32 chunk = 0; chunk < CHUNKS; chunk++) sums[chunk] = 0.f;
    Ints live = 0;
    const __global u8 *pieces = cache + (u64)(head / group) * HEAD_BYTES;
#if TOKENS == 8
    const Ints tokens = first_token + (int8)(0, 1, 2, 3, 4, 5, 6, 7);
#else
    const Ints tokens = first_token + (int4)(0, 1, 2, 3);
#endif
    for (u32 s = sequence_at(starts, S, first_token); s < S; s++) {
        i32 begin = max(starts[s], first_token), after = starts[s + 1], end = min(after, end_token), row = step_rows[s];
        if (begin >= end_token) break;
        if (begin >= end || row < 0) continue;
        // Positions are a token's number and this. Each token sees keys first to last; what lies outside least to most
        // may be anything, also in the table.
        i32 offset = seq_lens[s] - after, least = window > 0 ? max(begin + offset + 1 - (i32)window, 0) : 0,
            most = end - 1 + offset;
        Ints mine = tokens >= begin && tokens < end, last = select((Ints)-1, tokens + offset, mine);
        Ints first = window > 0 ? last + 1 - (i32)window : (Ints)0;
        live |= mine;
        const __global i32 *pages = block_table + (u64)row * table_stride;
        for (i32 start = least & ~15; start <= most; start += KEYS) {
            Floats scores[SCORES], above = highest;
            UNROLLED for (u32 i = 0; i < SCORES; i++) {
                i32 key = start + key_of(i, lane), near = clamp(key, least, most);
                const __global u8 *piece = pieces + (u64)pages[near / BLOCK] * page_stride +
                                           key_row((u32)near % BLOCK, 0);
                scores[i] = 0.f;
                UNROLLED for (u32 step = 0; step < STEPS; step++) scores[i] = MULTIPLY_ROWS(
                    KV, queries[step][get_local_id(0)],
                    two_rows(piece + 2 * step * TOKEN_UNITS * 128, piece + (2 * step + 1) * TOKEN_UNITS * 128),
                    scores[i]);
                scores[i] *= scale;
                if (softcap > 0.f) scores[i] = softcap - 2.f * softcap / (exp(scores[i] * (2.f / softcap)) + 1.f);
                scores[i] = select((Floats)-INFINITY, scores[i], key >= first && key <= last);
                above = fmax(above, scores[i]);
            }
#define HIGHEST(m) above.s##m = sub_group_reduce_max(above.s##m);
            FOR_TOKENS(HIGHEST)
            // A token that has seen no key yet has weights of 0.
            Floats base = select(above, (Floats)0.f, above == -INFINITY), kept = exp(highest - base);
            highest = above;
            total *= kept;
#pragma unroll
            for (u32 i = 0; i < SCORES; i++) {
                scores[i] = exp(scores[i] - base);
                total += scores[i];
            }
#pragma unroll
            for (u32 chunk = 0; chunk < CHUNKS; chunk++) sums[chunk] *= kept;
            UNROLLED for (u32 p = 0; p < PIECES; p++) {
                i32 low = start + 16 * (i32)p, high = low + 8;
                Left weights;
                FOR_TOKENS(WEIGHT_OF)
                // Rows of eight keys of which none counts are not read: others are read twice.
                i32 low_near = low + 7 < least || low > most ? (least > low ? least : most) : low,
                    high_near = high > most || high + 7 < least ? low_near : high;
                const __global u8 *a = pieces + (u64)pages[low_near / BLOCK] * page_stride +
                                       value_row(lane, (u32)low_near % BLOCK / 8);
                const __global u8 *b = pieces + (u64)pages[high_near / BLOCK] * page_stride +
                                       value_row(lane, (u32)high_near % BLOCK / 8);
                int8 counted = as_int8((uint8)(counting(low, least, most), counting(high, least, most)));
                UNROLLED for (u32 chunk = 0; chunk < CHUNKS; chunk++) sums[chunk] = MULTIPLY_ROWS(
                    KV, weights, two_rows(a + chunk * (DPAS / 8 * 128), b + chunk * (DPAS / 8 * 128)) & counted,
                    sums[chunk]);
            }
        }
    }
#define TOTAL(m) total.s##m = sub_group_reduce_add(total.s##m);
    FOR_TOKENS(TOTAL)
    Floats factor = 1.f / total;
    if (sinks) {
        Floats above = fmax(highest, sinks[head]), kept = exp(highest - above);
        factor = kept / (total * kept + exp(sinks[head] - above));
    }
    __global ACT *to = out + (u64)head * out_head_stride + lane;
#pragma unroll
    for (u32 chunk = 0; chunk < CHUNKS; chunk++) {
        Floats values = sums[chunk] * factor;
#define WRITE(m) \
    if (live.s##m) STORE(ACT, values.s##m, to, (u64)(first_token + m) * out_token_stride + chunk * DPAS);
        FOR_TOKENS(WRITE)
    }
}
#endif
