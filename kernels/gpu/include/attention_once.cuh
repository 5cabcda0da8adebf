// Decode attention of few short sequences, in the fused form: a block has an item (a token and a KV head) to itself, its warps hold all the item's keys and
// values in registers, and what counts is the time from the previous kernel's end to this one's.
//
// Tiles of 16 keys go to the warps in turn. Units of the cache are fragments of the matrix units as they lie there (kv.cuh), so a lane loads its words of
// them straight from memory, before the previous kernel has ended. Then every warp brings and rotates the query by itself; the one that has the
// token's own place puts key and value there. One barrier, behind which the warps' sums are added up, is all that follows.
//
// attention_decode.cu says what the definitions mean.
#pragma once
#include "attention_tile.cuh"

#define ONCE_WARPS 8
#define ONCE_TILES 3                                // of 16 keys, a warp
#define ONCE_STRIDE (HEAD_DIM + 8)                  // of a head's sums: no bank conflicts
// One block is enough to ask for: without that word the compiler spills to make room for two.
#define BOUNDS __launch_bounds__(ONCE_WARPS * 32 > THREADS ? ONCE_WARPS * 32 : THREADS, 1)
// Shared memory: sums [ONCE_WARPS][GROUP][ONCE_STRIDE] f32 | stats [ONCE_WARPS][GROUP][2] f32

// First tile of 16 keys that a sequence's one token sees.
__device__ __forceinline__ u32 once_first(const Work &work, i32 keys) { return work.window > 0 && keys > (i32)work.window ? (u32)(keys - (i32)work.window) / 16 : 0; }

// Whether the whole batch runs like this: few items, one token a sequence, no more keys than the warps hold. The same for all threads.
__device__ __forceinline__ bool fits_once(const Work &work) {
    if (work.S * work.num_kv_heads > gridDim.x) return false;
    bool fits = true;
    for (u32 s = 0; s < work.S; s++) {
        i32 keys = work.sequences[s].keys;
        bool none = work.sequences[s + 1].before == work.sequences[s].before;
        fits = fits && (none || (query_len_of(work, s) == 1 && ((u32)keys + 15) / 16 - once_first(work, keys) <= ONCE_WARPS * ONCE_TILES));
    }
    return fits;
}

// Cosines and sines of the dims that a lane holds of a head: 16d + 2t, + 1, + 8, + 9.
struct OnceAngles {
    float cosine[ROTARY_DIM / (INTERLEAVED ? 16 : 32)][INTERLEAVED ? 2 : 4], sine[ROTARY_DIM / (INTERLEAVED ? 16 : 32)][INTERLEAVED ? 2 : 4];
};

__device__ __forceinline__ void load_once_angles(OnceAngles &angles, const float *row) {
    u32 t = threadIdx.x & 3;
#pragma unroll
    for (int d = 0; d < ROTARY_DIM / (INTERLEAVED ? 16 : 32); d++) {
#if INTERLEAVED
        angles.cosine[d][0] = row[8 * d + t], angles.cosine[d][1] = row[8 * d + 4 + t];
        angles.sine[d][0] = row[ROTARY_DIM / 2 + 8 * d + t], angles.sine[d][1] = row[ROTARY_DIM / 2 + 8 * d + 4 + t];
#else
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float2 cosine = *(const float2 *)(row + 16 * d + 8 * half + 2 * t), sine = *(const float2 *)(row + ROTARY_DIM / 2 + 16 * d + 8 * half + 2 * t);
            angles.cosine[d][2 * half] = cosine.x, angles.cosine[d][2 * half + 1] = cosine.y;
            angles.sine[d][2 * half] = sine.x, angles.sine[d][2 * half + 1] = sine.y;
        }
#endif
    }
}

// Rotates a head: words of dims 16d + 2t and 16d + 2t + 8.
__device__ __forceinline__ void turn_once(u32 (&words)[DT][2], const OnceAngles &angles) {
    float x[DT][4];
#pragma unroll
    for (int d = 0; d < DT; d++) {
        unpack2<ACT>(words[d][0], x[d][0], x[d][1]);
        unpack2<ACT>(words[d][1], x[d][2], x[d][3]);
    }
#if INTERLEAVED
#pragma unroll
    for (int d = 0; d < ROTARY_DIM / 16; d++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float a = x[d][2 * half], b = x[d][2 * half + 1];
            x[d][2 * half] = a * angles.cosine[d][half] - b * angles.sine[d][half];
            x[d][2 * half + 1] = b * angles.cosine[d][half] + a * angles.sine[d][half];
        }
#else
#pragma unroll
    for (int d = 0; d < ROTARY_DIM / 32; d++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float a = x[d][i], b = x[d + ROTARY_DIM / 32][i];
            x[d][i] = a * angles.cosine[d][i] - b * angles.sine[d][i];
            x[d + ROTARY_DIM / 32][i] = b * angles.cosine[d][i] + a * angles.sine[d][i];
        }
#endif
#pragma unroll
    for (int d = 0; d < DT; d++) {
        words[d][0] = pack2<ACT>(x[d][0], x[d][1]);
        words[d][1] = pack2<ACT>(x[d][2], x[d][3]);
    }
}

// A tile's fragments: keys as rows, values transposed.
struct OnceTile {
    u32 keys[DT][4], values[DT][4];
};

// Loads a tile whose first key is `key`. Values of tokens outside first .. end - 1 become zero, whatever their bytes hold.
__device__ __forceinline__ void load_once_tile(OnceTile &tile, const u8 *head, i32 key, i32 first, i32 end) {
    u32 lane = threadIdx.x & 31, inside = (u32)key % BLOCK;
    const u8 *keys = head + inside / 8 * 128 + 4 * lane, *values = head + Layout::K_BYTES + inside / 8 * Layout::DIM_UNITS * 128 + 4 * lane;
#pragma unroll
    for (int d = 0; d < DT; d++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            tile.keys[d][i] = __ldcg((const u32 *)(keys + ((2 * d + i / 2) * Layout::TOKEN_UNITS + i % 2) * 128));
            tile.values[d][i] = __ldcg((const u32 *)(values + (i / 2 * Layout::DIM_UNITS + 2 * d + i % 2) * 128));
        }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        i32 token = key + 8 * half + 2 * (i32)(lane & 3);
        u32 keep = (token >= first && token < end ? 0xffffu : 0) | (token + 1 >= first && token + 1 < end ? 0xffff0000u : 0);
#pragma unroll
        for (int d = 0; d < DT; d++) {
            tile.values[d][2 * half] &= keep;
            tile.values[d][2 * half + 1] &= keep;
        }
    }
}

// The token's own key (words as `turn_once` has them) and value (dims 16d + g and + 8) into row `row` of a tile: 0 .. 15, others
// are none of it.
__device__ __forceinline__ void put_once(OnceTile &tile, const u32 (&key)[DT][2], const u32 (&value)[DT][2], u32 row) {
    u32 g = threadIdx.x % 32 / 4, t = threadIdx.x & 3;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        bool key_here = row / 8 == half && g == row % 8, value_here = row / 8 == half && t == row % 8 / 2;
#pragma unroll
        for (int d = 0; d < DT; d++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                tile.keys[d][2 * i + half] = key_here ? key[d][i] : tile.keys[d][2 * i + half];
                tile.values[d][2 * half + i] |= value_here ? value[d][i] << 16 * (row % 2) : 0;
            }
    }
}

// An item of block `blockIdx.x`. `early`: as for the kernel. All threads.
__device__ __forceinline__ void attend_once(u8 *shared, const Work &work, const Inputs &in, const Output &output, u8 *cache, u64 page_stride,
                                            const i32 *block_table, u32 table_stride, float factor, float softcap, bool early) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane & 3;
    u32 s = blockIdx.x / work.num_kv_heads, kv_head = blockIdx.x - s * work.num_kv_heads;
    if (s >= work.S || work.sequences[s + 1].before == work.sequences[s].before) {
        // One block that waits is enough: the kernel has not ended before it has.
        if (early && blockIdx.x == 0) wait_for_previous();
        return;
    }
    const Sequence sequence = work.sequences[s];
    i32 last = sequence.keys - 1, first = work.window > 0 && sequence.keys > (i32)work.window ? sequence.keys - (i32)work.window : 0;
    u32 first_tile = (u32)first / 16, tiles = (u32)last / 16 - first_tile + 1, token = (u32)sequence.start;
    bool owner = warp == (tiles - 1) % ONCE_WARPS;
    const i32 *pages = block_table + (u64)(u32)sequence.row * table_stride;

    i32 page[ONCE_TILES];
#pragma unroll
    for (u32 i = 0; i < ONCE_TILES; i++) {
        u32 tile = warp + i * ONCE_WARPS;
        page[i] = tile < tiles ? __ldcg(pages + 16 * (first_tile + tile) / BLOCK) : 0;
    }
    i32 slot = __ldcg(in.slots + token);
    OnceAngles angles;
    load_once_angles(angles, in.table + (u64)(u32)__ldcg(in.positions + token) * ROTARY_DIM);
    OnceTile tile[ONCE_TILES];
#pragma unroll
    for (u32 i = 0; i < ONCE_TILES; i++)
        if (warp + i * ONCE_WARPS < tiles)
            load_once_tile(tile[i], cache + (u64)(u32)page[i] * page_stride + (u64)kv_head * Layout::HEAD_BYTES, (i32)(16 * (first_tile + warp + i * ONCE_WARPS)), first, last);
    // Lanes past the group's heads hold zeros. Addresses are at hand when the wait ends.
    u32 query[DT][2], key[DT][2] = {}, value[DT][2] = {};
    const ACT *q = in.q + (u64)token * in.q_token_stride + (u64)(kv_head * GROUP + g) * in.q_head_stride + 2 * t;
    const ACT *k = in.k + (u64)token * in.k_token_stride + (u64)kv_head * in.k_head_stride + 2 * t;
    const ACT *v = in.v + (u64)token * in.v_token_stride + (u64)kv_head * in.v_head_stride + g;
    asm volatile("" : "+l"(q), "+l"(k), "+l"(v));
    if (early) wait_for_previous();
#pragma unroll
    for (int d = 0; d < DT; d++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            query[d][i] = g < GROUP ? __ldcg((const u32 *)(q + 16 * d + 8 * i)) : 0;
            if (owner) key[d][i] = __ldcg((const u32 *)(k + 16 * d + 8 * i));
            if (owner) value[d][i] = __ldcg((const u16 *)(v + 16 * d + 8 * i));
        }
    turn_once(query, angles);
    if (owner) {
        turn_once(key, angles);
#pragma unroll
        for (u32 i = 0; i < ONCE_TILES; i++) put_once(tile[i], key, value, (u32)last - 16 * (first_tile + warp + i * ONCE_WARPS));
    }

    // Scores of keys g and g + 8 of each tile against heads 2t and 2t + 1.
    float scores[ONCE_TILES][4], highest[2] = {-INFINITY_F, -INFINITY_F}, total[2] = {};
#pragma unroll
    for (u32 i = 0; i < ONCE_TILES; i++) {
        if (warp + i * ONCE_WARPS < tiles) {
            i32 key_of = (i32)(16 * (first_tile + warp + i * ONCE_WARPS) + g);
            float sums[4] = {};
#pragma unroll
            for (int d = 0; d < DT; d++) mma_m16n8k16<ACT>(sums, tile[i].keys[d], query[d]);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float x = sums[j] * factor;
                if (SOFTCAP) x = softcap * LOG2E * tanhf(x / softcap);
                i32 at = key_of + (j >= 2 ? 8 : 0);
                scores[i][j] = at < first || at > last ? -INFINITY_F : x;
                highest[j & 1] = fmaxf(highest[j & 1], scores[i][j]);
            }
        }
    }
    float base[2];
#pragma unroll
    for (int c = 0; c < 2; c++) {
#pragma unroll
        for (int mask = 4; mask < 32; mask <<= 1) highest[c] = fmaxf(highest[c], __shfl_xor_sync(0xffffffffu, highest[c], mask));
        base[c] = highest[c] == -INFINITY_F ? 0.f : highest[c]; // nothing seen: no inf - inf
    }
    float sum[DT][4] = {};
#pragma unroll
    for (u32 i = 0; i < ONCE_TILES; i++) {
        if (warp + i * ONCE_WARPS < tiles) {
            float e[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                e[j] = exp2_fast(scores[i][j] - base[j & 1]);
                total[j & 1] += e[j];
            }
            u32 p[2] = {transposed(pack2<ACT>(e[0], e[1])), transposed(pack2<ACT>(e[2], e[3]))};
#pragma unroll
            for (int d = 0; d < DT; d++) mma_m16n8k16<ACT>(sum[d], tile[i].values[d], p);
        }
    }
#pragma unroll
    for (int mask = 4; mask < 32; mask <<= 1)
#pragma unroll
        for (int c = 0; c < 2; c++) total[c] += __shfl_xor_sync(0xffffffffu, total[c], mask);

    float *sums_at = (float *)shared;
    float2 *stats_at = (float2 *)(sums_at + ONCE_WARPS * GROUP * ONCE_STRIDE);
#pragma unroll
    for (int c = 0; c < 2; c++) {
        u32 head = 2 * t + c;
        if (head >= GROUP) continue;
        float *to = sums_at + (warp * GROUP + head) * ONCE_STRIDE + g;
#pragma unroll
        for (int d = 0; d < DT; d++) {
            to[16 * d] = sum[d][c];
            to[16 * d + 8] = sum[d][2 + c];
        }
        if (g == 0) stats_at[warp * GROUP + head] = make_float2(highest[c], total[c]);
    }
    __syncthreads();

    for (u32 e = threadIdx.x; e < GROUP * HEAD_DIM / 4; e += ONCE_WARPS * 32) {
        u32 head = e / (HEAD_DIM / 4), dim = e % (HEAD_DIM / 4) * 4;
        float2 stats[ONCE_WARPS];
        float4 part[ONCE_WARPS];
        float above = -INFINITY_F, all = 0.f;
#pragma unroll
        for (int w = 0; w < ONCE_WARPS; w++) {
            stats[w] = stats_at[w * GROUP + head];
            part[w] = *(const float4 *)(sums_at + (w * GROUP + head) * ONCE_STRIDE + dim);
            above = fmaxf(above, stats[w].x);
        }
        float4 result = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
        for (int w = 0; w < ONCE_WARPS; w++) {
            // A warp that saw nothing has sums of zero.
            float weight = exp2_fast(stats[w].x - above);
            add_weighted(result, weight, part[w]);
            all += weight * stats[w].y;
        }
        write_out(output, token, kv_head * GROUP + head, dim, result, above, all);
    }
    if (!owner || slot < 0) return;
    // Key and value as the cache holds them; nobody waits for this.
    u8 *to = cache + (u64)((u32)slot / BLOCK) * page_stride + (u64)kv_head * Layout::HEAD_BYTES;
    u32 inside = (u32)slot % BLOCK;
#pragma unroll
    for (int d = 0; d < DT; d++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (g == 0) *(u32 *)(to + Layout::key_row(inside, 2 * d + i) + 4 * t) = key[d][i];
            if (t == 0) *(u16 *)(to + Layout::value_row(16 * d + 8 * i + g, inside / 8) + inside % 8 * 2) = (u16)value[d][i];
        }
}
