// Decode attention of few short sequences, in the fused form: a block has one item (a token and a KV head), and its
// warps hold all the item's keys and values in registers. The goal is a short time from the previous kernel's end to
// this one's.
//
// Tiles of 16 keys go to the warps in turn. Units of the cache are fragments of the matrix units as they lie there
// (kv.cuh), so a lane loads its words of them straight from memory, before the previous kernel has ended. Then every
// warp loads and rotates the query by itself. One more warp takes the current token: it does the same with the token's
// own key and value, which are not in the cache yet, and stores them there. One barrier follows, and then the warps'
// sums are added up.
//
// attention_decode.cu explains the definitions.
#pragma once
#include "attention_tile.cuh"

#define ONCE_WARPS 8                                // that hold tiles
#define ONCE_TILES 3                                // of 16 keys, a warp
#define ONCE_THREADS (32 * ONCE_WARPS + 32)
#define ONCE_STRIDE (HEAD_DIM + 8)                  // of a head's sums: no bank conflicts
// At least one block a multiprocessor: without this bound the compiler spills registers so that two fit.
#define BOUNDS __launch_bounds__(ONCE_THREADS, 1)
// Shared memory: sums [ONCE_WARPS][GROUP][ONCE_STRIDE] f32 | the token's value [HEAD_DIM] f32 | highest and total
// [ONCE_WARPS + 1][GROUP][2] f32
static_assert(THREADS <= ONCE_THREADS, "a block has the threads of the longer form");
static_assert(HEAD_DIM <= 64 && GROUP <= 8, "a pair of dims a thread, and a head a column of the matrix units");

// First tile of 16 keys that a sequence's one token sees.
__device__ __forceinline__ u32 once_first(u32 window, i32 keys) {
    return window > 0 && keys > (i32)window ? (u32)(keys - (i32)window) / 16 : 0;
}

// What a block works at.
struct OnceItem {
    u32 kv_head, token, first_tile, tiles; // tiles: those with keys of the cache
    i32 first, last;                       // keys that the token sees; the last is its own
    i32 row;                               // of the block table; below zero where the block has nothing to do
};

// Whether the whole batch runs in this form: few items, one token a sequence, no more keys than the warps hold. The
// result is the same for all threads; if true, `item` is this block's. Each lane checks one sequence, and there is no
// barrier, because the block's next loads depend on the result.
__device__ __forceinline__ bool find_once(OnceItem &item, const i32 *step_rows, const i32 *starts, const i32 *seq_lens,
                                          u32 S, u32 num_kv_heads, u32 window, u32 query_len_end) {
    u32 lane = threadIdx.x % 32, s = blockIdx.x / num_kv_heads;
    if (S > 32 || S * num_kv_heads > gridDim.x) return false;
    i32 row = -1, start = 0, keys = 0, query_len = 0;
    if (lane < S) {
        row = __ldcg(step_rows + lane);
        start = __ldcg(starts + lane);
        keys = __ldcg(seq_lens + lane);
        query_len = __ldcg(starts + lane + 1) - start;
    }
    bool none = row < 0 || query_len <= 0 || (u32)query_len >= query_len_end;
    u32 first_tile = once_first(window, keys);
    if (!__all_sync(0xffffffffu,
                    none || (query_len == 1 && ((u32)keys + 15) / 16 - first_tile <= ONCE_WARPS * ONCE_TILES)))
        return false;
    item.kv_head = blockIdx.x - s * num_kv_heads;
    item.row = s < S ? __shfl_sync(0xffffffffu, none ? -1 : row, s) : -1;
    item.token = (u32)__shfl_sync(0xffffffffu, start, s & 31);
    item.last = __shfl_sync(0xffffffffu, keys, s & 31) - 1;
    item.first = window > 0 && item.last + 1 > (i32)window ? item.last + 1 - (i32)window : 0;
    item.first_tile = once_first(window, item.last + 1);
    item.tiles = ((u32)item.last + 15) / 16 - item.first_tile;
    return true;
}

// Cosines and sines of the dims that a lane holds of a head: 16d + 2t, + 1, + 8, + 9.
struct OnceAngles {
    float cosine[ROTARY_DIM / (INTERLEAVED ? 16 : 32)][INTERLEAVED ? 2 : 4],
        sine[ROTARY_DIM / (INTERLEAVED ? 16 : 32)][INTERLEAVED ? 2 : 4];
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
            float2 cosine = *(const float2 *)(row + 16 * d + 8 * half + 2 * t),
                   sine = *(const float2 *)(row + ROTARY_DIM / 2 + 16 * d + 8 * half + 2 * t);
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

// Loads a tile whose first key is `key`.
__device__ __forceinline__ void load_once_tile(OnceTile &tile, const u8 *head, i32 key) {
    u32 lane = threadIdx.x & 31, inside = (u32)key % BLOCK;
    const u8 *keys = head + inside / 8 * 128 + 4 * lane,
             *values = head + Layout::K_BYTES + inside / 8 * Layout::DIM_UNITS * 128 + 4 * lane;
#pragma unroll
    for (int d = 0; d < DT; d++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            tile.keys[d][i] = __ldcg((const u32 *)(keys + ((2 * d + i / 2) * Layout::TOKEN_UNITS + i % 2) * 128));
            tile.values[d][i] = __ldcg((const u32 *)(values + (i / 2 * Layout::DIM_UNITS + 2 * d + i % 2) * 128));
        }
}

// What belongs to tokens outside first .. end - 1 becomes zero, whatever their bytes hold. Returns what `settle` takes.
__device__ __forceinline__ u32 mask_once_tile(OnceTile &tile, i32 key, i32 first, i32 end) {
    u32 lane = threadIdx.x & 31, bits = 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        i32 row = key + 8 * half + (i32)(lane / 4), token = key + 8 * half + 2 * (i32)(lane & 3);
        u32 keep_row = row >= first && row < end ? 0xffffffffu : 0;
        u32 keep = (token >= first && token < end ? 0xffffu : 0) |
                   (token + 1 >= first && token + 1 < end ? 0xffff0000u : 0);
#pragma unroll
        for (int d = 0; d < DT; d++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                tile.keys[d][2 * i + half] &= keep_row;
                tile.values[d][2 * half + i] &= keep;
                bits ^= tile.keys[d][2 * i + half] ^ tile.values[d][2 * half + i];
            }
    }
    return bits;
}

// Where sums meet.
struct OnceShared {
    float *sums, *value;
    float2 *stats;
};

__device__ __forceinline__ float once_score(float sum, float factor, float softcap) {
    return SOFTCAP ? softcap * LOG2E * tanhf(sum * factor / softcap) : sum * factor;
}

// Words of dims 16d + 2t and 16d + 2t + 8 of the head at `from`, zeros where nothing is wanted.
__device__ __forceinline__ void load_once_head(u32 (&words)[DT][2], const ACT *from, bool wanted) {
#pragma unroll
    for (int d = 0; d < DT; d++)
#pragma unroll
        for (int i = 0; i < 2; i++) words[d][i] = wanted ? *(const u32 *)(from + 16 * d + 8 * i) : 0;
}

// The query head that a lane has a part of: lanes past the group's heads have zeros.
__device__ __forceinline__ const ACT *once_query(const Inputs &in, const OnceItem &item) {
    u32 g = threadIdx.x % 32 / 4, t = threadIdx.x & 3;
    return in.q + (u64)item.token * in.q_token_stride + (u64)(item.kv_head * GROUP + g) * in.q_head_stride + 2 * t;
}

// A warp that holds tiles: leaves its sums, their highest score and their total. `settled`: bits of what else has to be
// at hand before the wait.
__device__ __forceinline__ void attend_tiles(const OnceShared &shared, const OnceItem &item, const Inputs &in,
                                             const u8 *cache, u64 page_stride, const i32 *pages, float factor,
                                             float softcap, bool early, u32 settled) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane & 3;
    i32 page[ONCE_TILES];
#pragma unroll
    for (u32 i = 0; i < ONCE_TILES; i++) {
        u32 tile = warp + i * ONCE_WARPS;
        page[i] = tile < item.tiles ? __ldcg(pages + 16 * (item.first_tile + tile) / BLOCK) : 0;
    }
    OnceAngles angles;
    load_once_angles(angles, in.table + (u64)(u32)__ldcg(in.positions + item.token) * ROTARY_DIM);
    i32 first_key = (i32)(16 * (item.first_tile + warp));
    OnceTile tile[ONCE_TILES] = {};
#pragma unroll
    for (u32 i = 0; i < ONCE_TILES; i++)
        if (warp + i * ONCE_WARPS < item.tiles)
            load_once_tile(tile[i], cache + (u64)(u32)page[i] * page_stride + (u64)item.kv_head * Layout::HEAD_BYTES,
                           first_key + (i32)(16 * ONCE_WARPS * i));
    float masked[ONCE_TILES][2]; // of keys g and g + 8: what is added to their scores
#pragma unroll
    for (u32 i = 0; i < ONCE_TILES; i++) {
        i32 key = first_key + (i32)(16 * ONCE_WARPS * i);
        settled ^= mask_once_tile(tile[i], key, item.first, item.last);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            i32 row = key + 8 * half + (i32)g;
            masked[i][half] = row >= item.first && row < item.last ? 0.f : -INFINITY_F;
            settled ^= (u32)__float_as_int(masked[i][half]);
        }
    }
    const ACT *from = once_query(in, item);
    // The angles come later than the keys: nothing waits for them here.
    settle(settled ^ (u32)(u64)from);
    if (early) wait_for_previous();

    u32 query[DT][2];
    load_once_head(query, from, g < GROUP);
    turn_once(query, angles);
    // Scores of keys g and g + 8 of each tile against heads 2t and 2t + 1. Absent tiles go along: their products cost
    // less than a branch.
    float scores[ONCE_TILES][4] = {}, highest[2] = {-INFINITY_F, -INFINITY_F};
#pragma unroll
    for (int d = 0; d < DT; d++)
#pragma unroll
        for (u32 i = 0; i < ONCE_TILES; i++) mma_m16n8k16<ACT>(scores[i], tile[i].keys[d], query[d]);
#pragma unroll
    for (u32 i = 0; i < ONCE_TILES; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            scores[i][j] = once_score(scores[i][j], factor, softcap) + masked[i][j / 2];
            highest[j & 1] = fmaxf(highest[j & 1], scores[i][j]);
        }
    float base[2];
#pragma unroll
    for (int mask = 4; mask < 32; mask <<= 1)
#pragma unroll
        for (int c = 0; c < 2; c++) highest[c] = fmaxf(highest[c], __shfl_xor_sync(0xffffffffu, highest[c], mask));
#pragma unroll
    for (int c = 0; c < 2; c++) base[c] = highest[c] == -INFINITY_F ? 0.f : highest[c]; // nothing seen: no inf - inf
    // The total is the sum of the weights as the values meet them: a row of ones more.
    const u32 one = pack2<ACT>(1.f, 1.f), ones[4] = {one, one, one, one};
    float sum[DT][4] = {}, total[4] = {};
#pragma unroll
    for (u32 i = 0; i < ONCE_TILES; i++) {
        float e[4];
#pragma unroll
        for (int j = 0; j < 4; j++) e[j] = exp2_fast(scores[i][j] - base[j & 1]);
        u32 p[2] = {transposed(pack2<ACT>(e[0], e[1])), transposed(pack2<ACT>(e[2], e[3]))};
#pragma unroll
        for (int d = 0; d < DT; d++) mma_m16n8k16<ACT>(sum[d], tile[i].values[d], p);
        mma_m16n8k16<ACT>(total, ones, p);
    }
#pragma unroll
    for (int c = 0; c < 2; c++) {
        u32 head = 2 * t + c;
        if (head >= GROUP) continue;
        float *to = shared.sums + (warp * GROUP + head) * ONCE_STRIDE + g;
#pragma unroll
        for (int d = 0; d < DT; d++) {
            to[16 * d] = sum[d][c];
            to[16 * d + 8] = sum[d][2 + c];
        }
        if (g == 0) shared.stats[warp * GROUP + head] = make_float2(highest[c], total[c]);
    }
}

// The current token's warp: its own key and value. It leaves the value and its scores for the others, waits for no
// other warp, and stores both in the cache.
__device__ __forceinline__ void attend_current(const OnceShared &shared, const OnceItem &item, const Inputs &in,
                                               u8 *cache, u64 page_stride, float factor, float softcap, bool early) {
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane & 3;
    i32 slot = __ldcg(in.slots + item.token);
    OnceAngles angles;
    load_once_angles(angles, in.table + (u64)(u32)__ldcg(in.positions + item.token) * ROTARY_DIM);
    const ACT *q = once_query(in, item),
              *k = in.k + (u64)item.token * in.k_token_stride + (u64)item.kv_head * in.k_head_stride + 2 * t;
    const ACT *v = in.v + (u64)item.token * in.v_token_stride + (u64)item.kv_head * in.v_head_stride + 2 * lane;
    settle((u32)(u64)q ^ (u32)(u64)k ^ (u32)(u64)v);
    if (early) wait_for_previous();

    u32 query[DT][2], key[DT][2], value = 0;
    load_once_head(key, k, true);
    load_once_head(query, q, g < GROUP);
    if (2 * lane < HEAD_DIM) value = *(const u32 *)v;
    turn_once(key, angles);
    turn_once(query, angles);
    // All rows of the product are this key: every lane gets the scores of heads 2t and 2t + 1.
    float scores[4] = {};
#pragma unroll
    for (int d = 0; d < DT; d++) {
        u32 rows[4] = {key[d][0], key[d][0], key[d][1], key[d][1]};
        mma_m16n8k16<ACT>(scores, rows, query[d]);
    }
#pragma unroll
    for (int c = 0; c < 2; c++)
        if (g == 0 && 2 * t + c < GROUP)
            shared.stats[ONCE_WARPS * GROUP + 2 * t + c] = make_float2(once_score(scores[c], factor, softcap), 1.f);
    float2 dims;
    unpack2<ACT>(value, dims.x, dims.y);
    if (2 * lane < HEAD_DIM) *(float2 *)(shared.value + 2 * lane) = dims;
    __syncthreads();
    if (slot < 0) return;
    u8 *to = cache + (u64)((u32)slot / BLOCK) * page_stride + (u64)item.kv_head * Layout::HEAD_BYTES;
    u32 inside = (u32)slot % BLOCK;
#pragma unroll
    for (int d = 0; d < DT; d++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (g == (2 * d + i) % 8) *(u32 *)(to + Layout::key_row(inside, 2 * d + i) + 4 * t) = key[d][i];
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (2 * lane < HEAD_DIM)
            *(u16 *)(to + Layout::value_row(2 * lane + i, inside / 8) + inside % 8 * 2) = (u16)(value >> 16 * i);
}

// A block's item. `early`: as for the kernel. All threads.
__device__ __forceinline__ void attend_once(u8 *memory, const OnceItem &item, const Inputs &in, const Output &output,
                                            u8 *cache, u64 page_stride, const i32 *block_table, u32 table_stride,
                                            float factor, float softcap, bool early) {
    if (item.row < 0) {
        // One block that waits is enough: the kernel has not ended before it has.
        if (early && blockIdx.x == 0) wait_for_previous();
        return;
    }
    OnceShared shared;
    shared.sums = (float *)memory;
    shared.value = shared.sums + ONCE_WARPS * GROUP * ONCE_STRIDE;
    shared.stats = (float2 *)(shared.value + HEAD_DIM);
    if (threadIdx.x / 32 == ONCE_WARPS) {
        attend_current(shared, item, in, cache, page_stride, factor, softcap, early);
        return;
    }

    // A pair of dims of a head.
    u32 head = threadIdx.x / (HEAD_DIM / 2), dim = threadIdx.x % (HEAD_DIM / 2) * 2;
    bool present = head < GROUP;
    u32 *to = (u32 *)(output.out + (u64)item.token * output.token_stride +
                      (u64)(item.kv_head * GROUP + head) * output.head_stride + dim);
    float sink = present && output.sinks ? __ldg(output.sinks + item.kv_head * GROUP + head) * LOG2E : -INFINITY_F;
    attend_tiles(shared, item, in, cache, page_stride, block_table + (u64)(u32)item.row * table_stride, factor, softcap,
                 early, (u32)(u64)to ^ (u32)__float_as_int(sink));
    __syncthreads();
    if (!present) return;
    float2 stats[ONCE_WARPS + 1], part[ONCE_WARPS + 1];
    float above = sink;
#pragma unroll
    for (int w = 0; w <= ONCE_WARPS; w++) {
        stats[w] = shared.stats[w * GROUP + head];
        part[w] = *(const float2 *)((w < ONCE_WARPS ? shared.sums + (w * GROUP + head) * ONCE_STRIDE : shared.value) +
                                    dim);
        above = fmaxf(above, stats[w].x);
    }
    float total = exp2_fast(sink - above), low = 0.f, high = 0.f;
#pragma unroll
    for (int w = 0; w <= ONCE_WARPS; w++) {
        // A warp that saw nothing has sums of zero.
        float weight = exp2_fast(stats[w].x - above);
        low += weight * part[w].x;
        high += weight * part[w].y;
        total += weight * stats[w].y;
    }
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(total)); // the highest score's weight is one: never tiny
    *to = pack2<ACT>(low * inverse, high * inverse);
}
