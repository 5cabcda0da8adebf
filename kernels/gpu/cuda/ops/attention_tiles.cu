// Attention of prompts over the paged cache on the matrix units of AMD's CDNA: 32 neighbouring tokens of a query head a
// wave of 64 lanes, 32 keys at a time, and nothing in shared memory.
//
// Both products are transposed (scores are keys by tokens, sums are dims by tokens), so that a lane has one token. Its
// running softmax needs one word of the other half of the wave, and the first product leaves its weights where the
// second one reads them. Keys and values are in the cache in the products' layout: a row of 16 bytes is what the wave's
// two halves need of a key or a dim in one step, and 32 rows lie next to each other. A wave may hold tokens of several
// sequences: it then goes through the keys of each.
//
// Definitions: ACT and KV (the same: f16 or bf16), HEAD_DIM (a multiple of 8), BLOCK (a multiple of 8). Queries start
// at multiples of 8 bytes.
// Entry point: attention_tiles. Grid (⌈T / 64⌉, num_heads), 128 threads; parameters are those of attention_plain.
// Tokens that belong to no sequence write nothing. Empty where there are no such units.
// revision: 1
// check: -DACT=bf16 -DKV=bf16 -DHEAD_DIM=128 -DBLOCK=64
// check: -DACT=f16 -DKV=f16 -DHEAD_DIM=64 -DBLOCK=16
// check: -DACT=bf16 -DKV=bf16 -DHEAD_DIM=256 -DBLOCK=32
// check: -DACT=f16 -DKV=f16 -DHEAD_DIM=80 -DBLOCK=8
#include "kv.cuh"
#include "mfma.cuh"

#if defined(MFMA)
typedef KvLayout<KV, HEAD_DIM, BLOCK> Layout;

#define LOG2E 1.4426950408889634f

constexpr u32 TILE = 32, STEPS = HEAD_DIM / 8, CHUNKS = (HEAD_DIM + TILE - 1) / TILE;

// The first sequence that ends behind token t.
__device__ __forceinline__ u32 sequence_at(const i32 *starts, u32 S, i32 t) {
    u32 low = 0, high = S;
    while (low < high) {
        u32 middle = (low + high) / 2;
        if (starts[middle + 1] > t) high = middle;
        else low = middle + 1;
    }
    return low;
}

// The keys of one sequence, of which the wave's tokens see `least` to `most`. Outside that range both the cache and the
// block table may hold anything.
struct Keys {
    const u8 *cache; // of the KV head
    u64 page_stride;
    const i32 *pages;
    i32 least, most;

    // Where token `key`, or the nearest that counts, lies in its block's piece.
    __device__ __forceinline__ const u8 *piece(i32 key, u32 &token) const {
        key = min(max(key, least), most);
        token = (u32)key % BLOCK;
        return cache + (u64)pages[key / BLOCK] * page_stride;
    }
    // Two words of the values at keys `key` ..: only those that count, as 0 · NaN is NaN.
    __device__ __forceinline__ uint2 counting(i32 key) const {
        u32 words[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            i32 low = key + 2 * i, high = low + 1;
            words[i] = (low >= least && low <= most ? 0xffffu : 0) | (high >= least && high <= most ? 0xffff0000u : 0);
        }
        return make_uint2(words[0], words[1]);
    }
};

// A lane's token: its scores' highest so far, the weights' total, and whether there is such a token.
struct Token {
    float highest, total;
    bool live;
};

// Scores of the 32 keys from `start` on against the wave's tokens, a lane's own token in all its sums.
__device__ __forceinline__ MfmaSums multiply_keys(const Keys &keys, i32 start, const uint2 (&query)[STEPS], u32 lane) {
    u32 token;
    const u8 *piece = keys.piece(start + (i32)(lane % TILE), token);
    const u8 *key = piece + Layout::key_row(token, 0) + lane / TILE * 8;
    MfmaSums scores = {};
#pragma unroll
    for (u32 step = 0; step < STEPS; step++)
        scores = mfma_32x32x8<KV>(*(const uint2 *)(key + step * Layout::TOKEN_UNITS * 128), query[step], scores);
    return scores;
}

// Adds the values of the 32 keys from `start` on, weighted.
__device__ __forceinline__ void add_values(const Keys &keys, i32 start, const uint2 (&weights)[TILE / 8],
                                           MfmaSums (&sums)[CHUNKS], u32 lane) {
#pragma unroll
    for (u32 step = 0; step < TILE / 8; step++) {
        i32 first = start + 8 * (i32)step;
        if (first + 7 < keys.least || first > keys.most) continue;
        u32 token;
        const u8 *piece = keys.piece(first, token);
        const u8 *value = piece + Layout::value_row(lane % TILE, token / 8) + lane / TILE * 8;
        uint2 counting = keys.counting(first + 4 * (i32)(lane / TILE));
#pragma unroll
        for (u32 chunk = 0; chunk < CHUNKS; chunk++) {
            uint2 values = make_uint2(0, 0);
            if (HEAD_DIM % TILE == 0 || chunk * TILE + lane % TILE < HEAD_DIM)
                values = *(const uint2 *)(value + chunk * (TILE / 8 * 128));
            values.x &= counting.x;
            values.y &= counting.y;
            sums[chunk] = mfma_32x32x8<KV>(values, weights[step], sums[chunk]);
        }
    }
}

// Turns scores into weights of keys `first` to `last`, and keeps the softmax running.
__device__ __forceinline__ float weigh(Token &token, MfmaSums &scores, uint2 (&weights)[TILE / 8], i32 start, i32 first,
                                       i32 last, float scale, float softcap, u32 lane) {
    float above = token.highest, sum = 0.f;
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
        i32 key = start + (i32)mfma_row(lane, i);
        float score = scores[i] * scale;
        if (softcap > 0.f) score = softcap * tanhf(score / softcap);
        scores[i] = key >= first && key <= last ? score : -INFINITY_F;
        above = fmaxf(above, scores[i]);
    }
    above = fmaxf(above, of_other_half(above));
    float kept = token.highest == above ? 1.f : exp2f((token.highest - above) * LOG2E);
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
        scores[i] = scores[i] == -INFINITY_F ? 0.f : exp2f((scores[i] - above) * LOG2E);
        sum += scores[i];
    }
#pragma unroll
    for (u32 step = 0; step < TILE / 8; step++)
        weights[step] = make_uint2(pack2<KV>(scores[4 * step], scores[4 * step + 1]),
                                   pack2<KV>(scores[4 * step + 2], scores[4 * step + 3]));
    token.total = token.total * kept + sum + of_other_half(sum);
    token.highest = above;
    return kept;
}

extern "C" __global__ void __launch_bounds__(128)
    attention_tiles(const ACT *q, u32 q_token_stride, u32 q_head_stride, const u8 *cache, u64 page_stride,
                    const i32 *block_table, u32 table_stride, const i32 *step_rows, const i32 *starts,
                    const i32 *seq_lens, const float *sinks, ACT *out, u32 out_token_stride, u32 out_head_stride, u32 T,
                    u32 S, u32 num_heads, u32 group, float scale, float softcap, u32 window) {
    // The same for the whole wave: said so that the compiler sees it.
    u32 wave = (u32)__builtin_amdgcn_readfirstlane((int)(threadIdx.x / 64)), lane = threadIdx.x % 64;
    i32 first_token = (i32)(blockIdx.x * 64 + wave * TILE), end_token = min(first_token + (i32)TILE, (i32)T);
    u32 head = blockIdx.y;
    i32 t = first_token + (i32)(lane % TILE);
    wait_for_previous();
    let_next_start();
    if (first_token >= (i32)T) return;
    uint2 query[STEPS];
    const ACT *from = q + (u64)t * q_token_stride + (u64)head * q_head_stride + 4 * (lane / TILE);
#pragma unroll
    for (u32 step = 0; step < STEPS; step++)
        query[step] = t < end_token ? *(const uint2 *)(from + 8 * step) : make_uint2(0, 0);
    Token token = {-INFINITY_F, 0.f, false};
    MfmaSums sums[CHUNKS] = {};
    for (u32 s = sequence_at(starts, S, first_token); s < S; s++) {
        i32 begin = max(starts[s], first_token), after = starts[s + 1], end = min(after, end_token), row = step_rows[s];
        if (begin >= end_token) break;
        if (begin >= end || row < 0) continue;
        // Positions are a token's number and this.
        i32 offset = seq_lens[s] - after, last = t + offset, first = window > 0 ? last + 1 - (i32)window : 0;
        bool mine = t >= begin && t < end;
        if (!mine) last = -1;
        token.live = token.live || mine;
        Keys keys = {cache + (u64)(head / group) * Layout::HEAD_BYTES, page_stride,
                     block_table + (u64)row * table_stride, window > 0 ? max(begin + offset + 1 - (i32)window, 0) : 0,
                     end - 1 + offset};
        for (i32 start = keys.least & ~(i32)(TILE - 1); start <= keys.most; start += TILE) {
            MfmaSums scores = multiply_keys(keys, start, query, lane);
            uint2 weights[TILE / 8];
            float kept = weigh(token, scores, weights, start, first, last, scale, softcap, lane);
#pragma unroll
            for (u32 chunk = 0; chunk < CHUNKS; chunk++) sums[chunk] *= kept;
            add_values(keys, start, weights, sums, lane);
        }
    }
    if (!token.live) return;
    float kept = 1.f;
    if (sinks) {
        float above = fmaxf(token.highest, sinks[head]);
        kept = exp2f((token.highest - above) * LOG2E);
        token.total = token.total * kept + exp2f((sinks[head] - above) * LOG2E);
    }
    kept /= token.total;
    ACT *to = out + (u64)t * out_token_stride + (u64)head * out_head_stride;
#pragma unroll
    for (u32 chunk = 0; chunk < CHUNKS; chunk++)
#pragma unroll
        for (u32 i = 0; i < 16; i++) {
            u32 dim = chunk * TILE + mfma_row(lane, i);
            if (HEAD_DIM % TILE == 0 || dim < HEAD_DIM) to[dim] = from_f32<ACT>(sums[chunk][i] * kept);
        }
}
#endif
