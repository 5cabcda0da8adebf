// Attention of few query tokens a sequence over the paged cache, at the speed of memory: every block of threads streams
// an equal share of all keys and values of the batch through shared memory.
//
// The work is a line of tiles of 64 keys: sequence by sequence, query token by query token, KV head by KV head. Blocks
// cut the line into equal shares, found on the device from seq_lens, so one long sequence and hundreds of short ones
// both fill the machine. Within a share, warp w takes tiles w, w + WARPS, ...; it has a ring of buffers of its own that
// hold keys and values in turn, and refills each as it empties. One more warp, the clerk, keeps an item (a query token
// and a KV head) ahead of them: it brings the query, and when all warps have left their sums of an item, it adds them
// up and writes the result; the share's last item all warps add up together. Where shares cut an item, the sums go to
// scratch, and whichever of its blocks comes last adds them up.
//
// Matrix units (m16n8k16): scores = K * Qt with 16 keys as rows and up to 8 query heads of the group as columns, then
// out-transposed = Vt * P, where P is the transposed scores. Units of the cache (kv.cuh) are exactly the 8x8 tiles that
// ldmatrix loads.
//
// Definitions: ACT (bf16, f16), KV (the cache's type: ACT or e4m3), HEAD_DIM (multiple of 16), GROUP (query heads of a
// KV head), BLOCK (16, 32, 64, 128), WARPS, RING (buffers of a warp), SOFTCAP (0, 1), ROPE (0, 1: the fused form, see
// below); with ROPE: ROTARY_DIM, INTERLEAVED (0, 1), NORM (0, 1).
//
// The fused form takes q, k and v as projected: the clerk norms and rotates q, and the keys and values of this step do
// not come from the cache but from k and v; the clerk of the block that has a token's own key stores both. It leaves q
// and k as they are. Slots must be those that the block table gives.
//
// `early`: nothing that may still run writes step data (rows, lengths, block table, positions, slots) or keys and
// values of earlier steps: they are read before the previous kernel has ended.
// ONCE (0, 1; the fused form without norms): batches that fit it run as in attention_once.cuh.
//
// Entry point: attention_decode. Grid: any number of blocks, as many as run at once; (WARPS + 1) * 32 threads, with
// ONCE 288. Dynamic shared memory: SHARED_BYTES below + 16 * (S + 1). Scratch: partials, 2 * blocks * GROUP * (HEAD_DIM
// + 2) f32. counters: u32 a block, zero before the first launch; every launch leaves them zero. Sequences whose
// query_len is not below `query_len_end` are another kernel's.
// check: -DACT=bf16 -DHEAD_DIM=128 -DGROUP=4 -DBLOCK=64 -DWARPS=4 -DRING=3 -DSOFTCAP=0 -DROPE=0
// check: -DACT=f16 -DHEAD_DIM=256 -DGROUP=2 -DBLOCK=64 -DWARPS=3 -DRING=2 -DSOFTCAP=1 -DROPE=0
// check: -DACT=f16 -DHEAD_DIM=64 -DGROUP=3 -DBLOCK=16 -DWARPS=4 -DRING=3 -DSOFTCAP=0 -DROPE=1 -DROTARY_DIM=64 -DINTERLEAVED=0 -DNORM=0
// check: -DACT=bf16 -DHEAD_DIM=128 -DGROUP=8 -DBLOCK=128 -DWARPS=4 -DRING=3 -DSOFTCAP=0 -DROPE=1 -DROTARY_DIM=128 -DINTERLEAVED=1 -DNORM=1
// check: -DACT=bf16 -DHEAD_DIM=64 -DGROUP=3 -DBLOCK=64 -DWARPS=4 -DRING=2 -DSOFTCAP=0 -DROPE=1 -DROTARY_DIM=64 -DINTERLEAVED=1 -DNORM=0 -DONCE=1
// check: -DACT=f16 -DHEAD_DIM=48 -DGROUP=8 -DBLOCK=16 -DWARPS=4 -DRING=2 -DSOFTCAP=1 -DROPE=1 -DROTARY_DIM=32 -DINTERLEAVED=0 -DNORM=0 -DONCE=1
// check: -DACT=f16 -DHEAD_DIM=256 -DGROUP=2 -DBLOCK=16 -DWARPS=3 -DRING=2 -DSOFTCAP=1 -DROPE=1 -DROTARY_DIM=256 -DINTERLEAVED=0 -DNORM=1
// check: -DACT=bf16 -DKV=e4m3 -DHEAD_DIM=128 -DGROUP=4 -DBLOCK=64 -DWARPS=4 -DRING=5 -DSOFTCAP=0 -DROPE=1 -DROTARY_DIM=128 -DINTERLEAVED=0 -DNORM=0
// check: -DACT=f16 -DKV=e4m3 -DHEAD_DIM=80 -DGROUP=9 -DBLOCK=16 -DWARPS=4 -DRING=3 -DSOFTCAP=1 -DROPE=0
// check: -DACT=bf16 -DKV=e4m3 -DHEAD_DIM=64 -DGROUP=3 -DBLOCK=128 -DWARPS=4 -DRING=3 -DSOFTCAP=0 -DROPE=1 -DROTARY_DIM=64 -DINTERLEAVED=1 -DNORM=1
#ifndef KV
#define KV ACT
#endif
#ifndef ONCE
#define ONCE 0
#endif
#include "attention_tile.cuh"

#define HEAD_STRIDE (HEAD_DIM + 4)    // of the warps' sums: no bank conflicts
// lanes of a head, 8 dims each
#define LANES (HEAD_DIM > 128 ? 32 : HEAD_DIM > 64 ? 16 : HEAD_DIM > 32 ? 8 : HEAD_DIM > 16 ? 4 : 2)
#ifndef BUFFERS
#define BUFFERS 2                     // items under way
#endif
#define PARTS (Layout::ROW / 8)        // eights of dims in a row of a key
#define AT_ONCE 8                     // parts of a cut item that are read together
// Shared memory: rings | items [BUFFERS] | barriers: rings [WARPS][RING], ready [BUFFERS], done [BUFFERS] u64 |
// sequences [S + 1]
// An item: query, units [NT][HEAD_DIM / 8] | the token's own key (rows as in the cache) and value (dim by dim), as held
// | sums [WARPS][GROUP][HEAD_STRIDE] f32 | Item | stats [WARPS][GROUP][2] f32
#define FRESH_AT (NT * HEAD_DIM * 16)
#define SUMS_AT (FRESH_AT + HEAD_DIM * 4)
#define ITEM_AT (SUMS_AT + WARPS * GROUP * HEAD_STRIDE * 4)
#define STATS_AT (ITEM_AT + 64)
#define ITEM_BYTES ((STATS_AT + WARPS * GROUP * 8 + 127) / 128 * 128)
#define ITEMS_AT (WARPS * RING * UNIT_BYTES)
#define BARRIERS_AT (ITEMS_AT + BUFFERS * ITEM_BYTES)
#define SHARED_BYTES (BARRIERS_AT + (WARPS * RING + 2 * BUFFERS) * 8 / 16 * 16 + 16)

// --- The clerk: queries in, results out ------------------------------------------------------------------------------

// What the warps must know of an item.
struct Item {
    u32 begin, end;     // its tiles on the line, as far as they are this share's
    i32 tile_key;       // first key of the first of them
    i32 first, last;    // keys that the query sees; the last is its own
    u32 kv_head, token;
    i32 keys;           // of the sequence
    i32 first_new;      // first key of this step
    i32 first_token;    // its token
    u32 cut;            // other blocks have tiles of it too
    u32 begins;         // in this block
};

struct Inputs {
    const ACT *q, *k, *v;
    u32 q_token_stride, q_head_stride, k_token_stride, k_head_stride, v_token_stride, v_head_stride;
    const i32 *positions, *slots;
    const float *table, *q_norm, *k_norm;
    u32 table_rows;
    float q_eps, k_eps, q_offset, k_offset;
};

struct Output {
    ACT *out;
    u32 token_stride, head_stride;
    const float *sinks;
    float *partials;
    u32 *counters;
};

__device__ __forceinline__ Item item_at(const Work &work, u32 x, u32 end, u32 s) {
    Place place = place_of(work, x, s);
    Item item = {};
    u32 index = query_index(work, place.item);
    i32 query_len = query_len_of(work, s), window = (i32)work.window;
    item.begin = x;
    item.end = end - x < place.tiles - place.tile ? end : x + place.tiles - place.tile;
    item.tile_key = (i32)((place.first_tile + place.tile) * TILE);
    item.keys = work.sequences[s].keys;
    item.first_new = item.keys - query_len;
    item.last = item.first_new + (i32)index;
    item.first = window > 0 && item.last + 1 > window ? item.last + 1 - window : 0;
    item.kv_head = place.item - index * work.num_kv_heads;
    item.first_token = work.sequences[s].start;
    item.token = (u32)item.first_token + index;
    item.cut = place.tile > 0 || x + place.tiles > end;
    item.begins = place.tile == 0;
    return item;
}

__device__ __forceinline__ void load_8(float (&x)[8], const float *from) {
    float4 a = *(const float4 *)from, b = *(const float4 *)(from + 4);
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}

#if ROPE
// What turns 8 dims of a head: norm weights of q and k (constant), cosines and sines of the item's position.
struct Turn {
    float q_norm[8], k_norm[8], cosine[8], sine[8];
};

__device__ __forceinline__ void load_norms(Turn &turn, const Inputs &in) {
#if NORM
    u32 c = threadIdx.x % LANES;
    if (8 * c >= HEAD_DIM) return;
    load_8(turn.q_norm, in.q_norm + 8 * c);
    load_8(turn.k_norm, in.k_norm + 8 * c);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        turn.q_norm[i] += in.q_offset;
        turn.k_norm[i] += in.k_offset;
    }
#endif
}

__device__ __forceinline__ void load_angles(Turn &turn, const Inputs &in, u32 position) {
    u32 c = threadIdx.x % LANES;
    if (8 * c >= ROTARY_DIM) return;
    const float *angles = in.table + (u64)position * ROTARY_DIM;
#if INTERLEAVED
    float4 cosine = *(const float4 *)(angles + 4 * c), sine = *(const float4 *)(angles + ROTARY_DIM / 2 + 4 * c);
    turn.cosine[0] = cosine.x, turn.cosine[1] = cosine.y, turn.cosine[2] = cosine.z, turn.cosine[3] = cosine.w;
    turn.sine[0] = sine.x, turn.sine[1] = sine.y, turn.sine[2] = sine.z, turn.sine[3] = sine.w;
#else
    u32 pair = 8 * (c < ROTARY_DIM / 16 ? c : c - ROTARY_DIM / 16);
    load_8(turn.cosine, angles + pair);
    load_8(turn.sine, angles + ROTARY_DIM / 2 + pair);
#endif
}

// Norms and rotates a head that LANES lanes hold, 8 dims each. All lanes of the warp call it.
__device__ __forceinline__ uint4 turned(uint4 words, const Turn &turn, bool is_key, const Inputs &in) {
    u32 c = threadIdx.x % LANES;
    float x[8];
    unpack2<ACT>(words.x, x[0], x[1]);
    unpack2<ACT>(words.y, x[2], x[3]);
    unpack2<ACT>(words.z, x[4], x[5]);
    unpack2<ACT>(words.w, x[6], x[7]);
#if NORM
    float squares = 0.f;
#pragma unroll
    for (int i = 0; i < 8; i++) squares += x[i] * x[i];
#pragma unroll
    for (int mask = 1; mask < LANES; mask <<= 1) squares += __shfl_xor_sync(0xffffffffu, squares, mask);
    float factor = rsqrtf(squares / HEAD_DIM + (is_key ? in.k_eps : in.q_eps));
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] *= factor * (is_key ? turn.k_norm[i] : turn.q_norm[i]);
#endif
#if INTERLEAVED
    if (8 * c < ROTARY_DIM) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float a = x[2 * i], b = x[2 * i + 1];
            x[2 * i] = a * turn.cosine[i] - b * turn.sine[i];
            x[2 * i + 1] = b * turn.cosine[i] + a * turn.sine[i];
        }
    }
#else
    const u32 half = ROTARY_DIM / 16; // lanes with the first values of the pairs
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float other = __shfl_sync(0xffffffffu, x[i], c < half ? c + half : c - half, LANES);
        if (c < 2 * half)
            x[i] = c < half ? x[i] * turn.cosine[i] - other * turn.sine[i]
                            : x[i] * turn.cosine[i] + other * turn.sine[i];
    }
#endif
    return make_uint4(pack2<ACT>(x[0], x[1]), pack2<ACT>(x[2], x[3]), pack2<ACT>(x[4], x[5]), pack2<ACT>(x[6], x[7]));
}
#endif

// Eight dims of a key into its row of the cache or of a tile: the row's part `part`.
__device__ __forceinline__ void put_key_part(u8 *row, u32 part, uint4 words) {
    if constexpr (KV_BYTES == 1) {
        u16 *to = (u16 *)row + part;
        to[0] = narrow<ACT>(words.x);
        to[2] = narrow<ACT>(words.y);
        to[4] = narrow<ACT>(words.z);
        to[6] = narrow<ACT>(words.w);
    } else {
        *(uint4 *)row = words;
    }
}

// Eight dims of a query as the product takes them.
__device__ __forceinline__ uint4 factors(uint4 words) {
    typedef Query<ACT, KV> Q;
    return make_uint4(Q::factor(words.x), Q::factor(words.y), Q::factor(words.z), Q::factor(words.w));
}

// Brings an item's query heads (and in the fused form the token's own key and value) to shared memory. The fused form
// also stores key and value in the cache, in the block that has the tile they belong to.
__device__ __forceinline__ void bring(u8 *buffer, const Item &item, const Inputs &in
#if ROPE
                                      ,
                                      Turn &turn, u8 *cache, u64 page_stride
#endif
) {
    const u32 rows = GROUP + (ROPE ? 1 : 0), at_once = 32 / LANES, passes = (rows + at_once - 1) / at_once;
    u32 lane = threadIdx.x % 32, c = lane % LANES;
    bool there = 8 * c < HEAD_DIM;
#if ROPE
    // A token's position is nearly always the place of its key: the angles are loaded for that before the position is
    // known.
    u32 position = (u32)in.positions[item.token],
        expected = (u32)item.last < in.table_rows ? (u32)item.last : in.table_rows - 1;
    i32 slot = in.slots[item.token];
    load_angles(turn, in, expected);
    uint4 value = make_uint4(0, 0, 0, 0);
    if (lane < HEAD_DIM / 8)
        value = *(const uint4 *)(in.v + (u64)item.token * in.v_token_stride + (u64)item.kv_head * in.v_head_stride +
                                 8 * lane);
#endif
    uint4 words[passes];
#pragma unroll
    for (u32 pass = 0; pass < passes; pass++) {
        u32 row = pass * at_once + lane / LANES;
        words[pass] = make_uint4(0, 0, 0, 0);
        const ACT *from = in.q + (u64)item.token * in.q_token_stride +
                          (u64)(item.kv_head * GROUP + row) * in.q_head_stride;
#if ROPE
        if (row == GROUP) from = in.k + (u64)item.token * in.k_token_stride + (u64)item.kv_head * in.k_head_stride;
#endif
        if (there && row < rows) words[pass] = *(const uint4 *)(from + 8 * c);
    }
    if (lane == 0) *(Item *)(buffer + ITEM_AT) = item;
#if ROPE
    if (position != expected) load_angles(turn, in, position);
#endif
#pragma unroll
    for (u32 pass = 0; pass < passes; pass++) {
        u32 row = pass * at_once + lane / LANES;
#if ROPE
        words[pass] = turned(words[pass], turn, row == GROUP, in);
        if (there && row == GROUP) put_key_part(buffer + FRESH_AT + c / PARTS * 16, c % PARTS, words[pass]);
#endif
        if (there && row < GROUP)
            *(uint4 *)(buffer + ((row / 8 * (HEAD_DIM / 8) + c) * 8 + row % 8) * 16) = factors(words[pass]);
    }
#if ROPE
    u8 *fresh_value = buffer + FRESH_AT + HEAD_DIM * KV_BYTES;
    u32 held[4] = {value.x, value.y, value.z, value.w}; // eight dims of the value as the cache has them
    if constexpr (KV_BYTES == 1) {
        held[0] = narrow<ACT>(value.x) | narrow<ACT>(value.y) << 16;
        held[1] = narrow<ACT>(value.z) | narrow<ACT>(value.w) << 16;
        if (lane < HEAD_DIM / 8) *(uint2 *)(fresh_value + 8 * lane) = make_uint2(held[0], held[1]);
        __syncwarp();
    } else {
        if (lane < HEAD_DIM / 8) *(uint4 *)(fresh_value + 16 * lane) = value;
    }
    if (slot < 0 || (u32)(item.last - item.tile_key) >= (item.end - item.begin) * TILE) return;
    u8 *page = cache + (u64)((u32)slot / BLOCK) * page_stride + (u64)item.kv_head * Layout::HEAD_BYTES;
    u32 inside = (u32)slot % BLOCK;
    if constexpr (KV_BYTES == 1) {
        // A row has dims of two lanes.
        if (lane < Layout::KEY_ROWS)
            *(uint4 *)(page + Layout::key_row(inside, lane)) = *(const uint4 *)(buffer + FRESH_AT + 16 * lane);
    } else {
#pragma unroll
        for (u32 pass = 0; pass < passes; pass++)
            if (there && pass * at_once + lane / LANES == GROUP)
                *(uint4 *)(page + Layout::key_row(inside, c)) = words[pass];
    }
    if (lane < HEAD_DIM / 8) {
        KV *to = (KV *)(page + Layout::value_row(8 * lane, inside / Layout::ROW)) + Layout::place(inside % Layout::ROW);
#pragma unroll
        for (int i = 0; i < 8; i++) to[Layout::ROW * i].bits = held[i * KV_BYTES / 4] >> i * KV_BYTES % 4 * 8;
    }
#endif
}

// Adds a sink and writes four neighbouring dims of a head.
__device__ __forceinline__ void write_out(const Output &output, u32 token, u32 head, u32 dim, float4 sum, float highest,
                                          float total) {
    float kept = 1.f;
    if (output.sinks) {
        float sink = output.sinks[head] * LOG2E, above = fmaxf(highest, sink);
        kept = exp2_fast(highest - above);
        total = total * kept + exp2_fast(sink - above);
    }
    float inverse = __fdividef(kept, total);
    u32 *to = (u32 *)(output.out + (u64)token * output.token_stride + (u64)head * output.head_stride + dim);
    to[0] = pack2<ACT>(sum.x * inverse, sum.y * inverse);
    to[1] = pack2<ACT>(sum.z * inverse, sum.w * inverse);
}

#if ONCE
#include "attention_once.cuh"
#else
#define BOUNDS __launch_bounds__(THREADS)
#endif

// f32 of a block's part of an item: sums, then highest and total of each head, twice that for alignment
#define PARTIAL (GROUP * (HEAD_DIM + 4))

// Adds up the warps' sums of an item: into the result, or into this block's part of a cut item. `threads` threads, of
// which this is number `thread`.
__device__ __forceinline__ void add_up(const u8 *buffer, const Item &item, const Output &output, float *partial,
                                       u32 thread, u32 threads) {
#pragma unroll 4
    for (u32 e = thread; e < GROUP * HEAD_DIM / 4; e += threads) {
        u32 head = e / (HEAD_DIM / 4), dim = e % (HEAD_DIM / 4) * 4;
        const float2 *stats = (const float2 *)(buffer + STATS_AT) + head;
        const float *sums = (const float *)(buffer + SUMS_AT) + head * HEAD_STRIDE + dim;
        float2 own[WARPS];
        float4 part[WARPS];
        float highest = -INFINITY_F, total = 0.f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            own[w] = stats[w * GROUP];
            part[w] = *(const float4 *)(sums + w * GROUP * HEAD_STRIDE);
            highest = fmaxf(highest, own[w].x);
        }
        float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            if (own[w].x == -INFINITY_F) continue; // left nothing
            float weight = exp2_fast(own[w].x - highest);
            add_weighted(sum, weight, part[w]);
            total += weight * own[w].y;
        }
        if (item.cut) {
            __stcg((float4 *)(partial + head * HEAD_DIM + dim), sum);
            if (dim == 0) __stcg((float2 *)(partial + GROUP * HEAD_DIM + 2 * head), make_float2(highest, total));
        } else {
            write_out(output, item.token, item.kv_head * GROUP + head, dim, sum, highest, total);
        }
    }
}

// The part of a block in a cut item: slot 1 where the item begins in the block, else 0.
__device__ __forceinline__ float *partial_of(const Output &output, u32 block, bool begins) {
    return output.partials + (u64)(2 * block + begins) * PARTIAL;
}

// A cut item at the end of a block: the last of its blocks to come adds up what all left in scratch. All threads.
__device__ __forceinline__ void join(u8 *shared, const Output &output, u32 token, u32 kv_head, u32 first_block,
                                     u32 last_block) {
    u32 *arrived = (u32 *)(shared + ITEMS_AT);
    u32 parts = last_block - first_block + 1;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        // Wraps to zero with the last arrival, ready for the next launch.
        *arrived = atomicInc(output.counters + first_block, parts - 1);
        __threadfence();
    }
    __syncthreads();
    if (*arrived != parts - 1) return;
    for (u32 e = threadIdx.x; e < GROUP * HEAD_DIM / 4; e += THREADS) {
        u32 head = e / (HEAD_DIM / 4), dim = e % (HEAD_DIM / 4) * 4;
        float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
        float highest = -INFINITY_F, total = 0.f;
        for (u32 i = 0; i < parts; i += AT_ONCE) {
            float2 stats[AT_ONCE];
            float4 part[AT_ONCE];
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; j++) {
                // The last part stands in for those past the end.
                const float *from = partial_of(output, first_block + (i + j < parts ? i + j : parts - 1), i + j == 0);
                stats[j] = __ldcg((const float2 *)(from + GROUP * HEAD_DIM + 2 * head));
                part[j] = __ldcg((const float4 *)(from + head * HEAD_DIM + dim));
            }
            float above = highest;
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; j++) above = fmaxf(above, stats[j].x);
            if (above == -INFINITY_F) continue;
            float kept = exp2_fast(highest - above);
            sum.x *= kept, sum.y *= kept, sum.z *= kept, sum.w *= kept;
            total *= kept;
            highest = above;
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; j++) {
                // A part that saw nothing left no sums.
                if (i + j >= parts || stats[j].x == -INFINITY_F) continue;
                float weight = exp2_fast(stats[j].x - highest);
                add_weighted(sum, weight, part[j]);
                total += weight * stats[j].y;
            }
        }
        write_out(output, token, kv_head * GROUP + head, dim, sum, highest, total);
    }
}

// --- The other warps -------------------------------------------------------------------------------------------------

// The query heads of an item as the second operand of the scores' product: columns 8n + g, dims 16d + 2t (+ 1), and +
// 8.
__device__ __forceinline__ void load_query(u32 (&query)[NT][DT][2], u32 buffer) {
    u32 at = buffer + threadIdx.x % 32 * 16;
#pragma unroll
    for (int n = 0; n < NT; n++) {
#pragma unroll
        for (int d = 0; d + 1 < DT; d += 2) {
            u32 units[4];
            load_matrix(units, at + (n * (HEAD_DIM / 8) + 2 * d) * 128);
            query[n][d][0] = units[0];
            query[n][d][1] = units[1];
            query[n][d + 1][0] = units[2];
            query[n][d + 1][1] = units[3];
        }
        if (DT % 2) {
            // Two units are left: the upper lanes' addresses count for nothing, but must be readable.
            u32 units[4];
            load_matrix(units, buffer + threadIdx.x % 16 * 16 + (n * (HEAD_DIM / 8) + 2 * (DT - 1)) * 128);
            query[n][DT - 1][0] = units[0];
            query[n][DT - 1][1] = units[1];
        }
    }
}

// Leaves a warp's sums for the clerk.
__device__ __forceinline__ void leave_sums(u8 *buffer, Softmax &softmax, bool any) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane & 3;
    float *sums = (float *)(buffer + SUMS_AT) + warp * GROUP * HEAD_STRIDE;
    float2 *stats = (float2 *)(buffer + STATS_AT) + warp * GROUP;
    if (!any) {
        for (u32 head = lane; head < GROUP; head += 32) stats[head] = make_float2(-INFINITY_F, 0.f);
        return;
    }
#pragma unroll
    for (int n = 0; n < NT; n++) {
        u32 head = 8 * n + 2 * t;
#pragma unroll
        for (int d = 0; d < DT; d++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (head + (i & 1) < GROUP)
                    sums[(head + (i & 1)) * HEAD_STRIDE + 16 * d + g + (i & 2) * 4] = softmax.sum[d][n][i];
    }
#pragma unroll
    for (int mask = 4; mask < 32; mask <<= 1)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int c = 0; c < 2; c++) softmax.total[n][c] += __shfl_xor_sync(0xffffffffu, softmax.total[n][c], mask);
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int c = 0; c < 2; c++)
            if (g == 0 && 8 * n + 2 * t + c < GROUP)
                stats[8 * n + 2 * t + c] = make_float2(softmax.highest[n][c], softmax.total[n][c]);
}

#if ROPE
// Puts a value, as held or as projected, into a tile: dims lane, lane + 32, ... of it, which fall into different banks.
template <typename T> __device__ __forceinline__ void put_value(u8 *unit, u32 inside, const T *value) {
    KV *to = (KV *)(unit + value_unit(0, inside / Layout::ROW)) + Layout::place(inside % Layout::ROW);
#pragma unroll
    for (u32 dim = threadIdx.x % 32; dim < HEAD_DIM; dim += 32) {
        if constexpr (sizeof(T) == sizeof(KV)) to[Layout::ROW * dim] = *(const KV *)(value + dim);
        else to[Layout::ROW * dim] = from_f32<KV>(to_f32(value[dim]));
    }
}

// Of a step with several tokens of a sequence: the keys (or values) of the others than `item.token` that lie in a tile.
__device__ __noinline__ void put_others(const Inputs &in, const Item &item, u8 *unit, i32 tile_key, bool values) {
    u32 lane = threadIdx.x % 32;
    i32 begin = item.first_new > tile_key ? item.first_new : tile_key,
        end = item.keys < tile_key + TILE ? item.keys : tile_key + TILE;
    Turn turn = {};
    if (!values) load_norms(turn, in);
    for (i32 key = begin; key < end; key++) {
        u32 token = (u32)(item.first_token + key - item.first_new), inside = (u32)(key - tile_key);
        if (token == item.token) continue;
        if (values) {
            put_value(unit, inside, in.v + (u64)token * in.v_token_stride + (u64)item.kv_head * in.v_head_stride);
            continue;
        }
        uint4 words = make_uint4(0, 0, 0, 0);
        if (lane < HEAD_DIM / 8)
            words = *(const uint4 *)(in.k + (u64)token * in.k_token_stride + (u64)item.kv_head * in.k_head_stride +
                                     8 * lane);
        load_angles(turn, in, (u32)in.positions[token]);
        words = turned(words, turn, true, in);
        if (lane < HEAD_DIM / 8)
            put_key_part(unit + key_unit(lane / PARTS, inside / 8) + inside % 8 * 16, lane % PARTS, words);
    }
}

// Puts the keys of this step's tokens into a tile that was copied without them.
__device__ __forceinline__ void put_keys(const Inputs &in, const Item &item, const u8 *buffer, u8 *unit, i32 tile_key) {
    u32 c = threadIdx.x % 32, inside = (u32)(item.last - tile_key);
    if (item.keys - item.first_new > 1) put_others(in, item, unit, tile_key, false);
    if (inside < TILE && c < Layout::KEY_ROWS)
        *(uint4 *)(unit + key_unit(c, inside / 8) + inside % 8 * 16) = *(const uint4 *)(buffer + FRESH_AT + 16 * c);
    __syncwarp();
}

// The same for values.
__device__ __forceinline__ void put_values(const Inputs &in, const Item &item, const u8 *buffer, u8 *unit,
                                           i32 tile_key) {
    u32 inside = (u32)(item.last - tile_key);
    if (item.keys - item.first_new > 1) put_others(in, item, unit, tile_key, true);
    if (inside < TILE) put_value(unit, inside, (const KV *)(buffer + FRESH_AT + HEAD_DIM * KV_BYTES));
    __syncwarp();
}
#endif

// --- The kernel ------------------------------------------------------------------------------------------------------

extern "C" __global__ void BOUNDS attention_decode(
    const ACT *q, u32 q_token_stride, u32 q_head_stride, u8 *cache, u64 page_stride, const i32 *block_table,
    u32 table_stride, const i32 *step_rows, const i32 *starts, const i32 *seq_lens, const float *sinks, ACT *out,
    u32 out_token_stride, u32 out_head_stride, float *partials, u32 *counters, u32 S, u32 num_kv_heads, float scale,
    float softcap, u32 window, u32 query_len_end, u32 early
#if ROPE
    ,
    const ACT *k, u32 k_token_stride, u32 k_head_stride, const ACT *v, u32 v_token_stride, u32 v_head_stride,
    const i32 *positions, const i32 *slots, const float *table, const float *q_norm, const float *k_norm, float q_eps,
    float k_eps, float q_offset, float k_offset, u32 table_rows
#endif
) {
    // What follows few sequences is short as well: its weights can come at once.
    if (ONCE) let_next_start();
    extern __shared__ __align__(128) u8 shared[];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Inputs in = {};
    in.q = q;
    in.q_token_stride = q_token_stride;
    in.q_head_stride = q_head_stride;
#if ROPE
    in.k = k;
    in.v = v;
    in.k_token_stride = k_token_stride;
    in.k_head_stride = k_head_stride;
    in.v_token_stride = v_token_stride;
    in.v_head_stride = v_head_stride;
    in.positions = positions;
    in.slots = slots;
    in.table = table;
    in.table_rows = table_rows;
    in.q_norm = q_norm;
    in.k_norm = k_norm;
    in.q_eps = q_eps;
    in.k_eps = k_eps;
    in.q_offset = q_offset;
    in.k_offset = k_offset;
    Turn turn = {};
    if (warp == WARPS) load_norms(turn, in);
#endif
    Output output = {out, out_token_stride, out_head_stride, sinks, partials, counters};
#if ONCE
    if (!early) wait_for_previous();
    OnceItem once;
    if (find_once(once, step_rows, starts, seq_lens, S, num_kv_heads, window, query_len_end)) {
        attend_once(shared, once, in, output, cache, page_stride, block_table, table_stride,
                    SOFTCAP ? scale : scale * LOG2E, softcap, early);
        return;
    }
#endif
    Sequence *sequences = (Sequence *)(shared + SHARED_BYTES);
    Work work = {sequences, S, num_kv_heads, window};
    u32 barriers = shared_address(shared + BARRIERS_AT), ready = barriers + WARPS * RING * 8,
        done = ready + BUFFERS * 8;
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < WARPS * RING; i++) barrier_init(barriers + i * 8, 1);
        for (u32 i = 0; i < BUFFERS; i++) {
            barrier_init(ready + i * 8, 32);
            barrier_init(done + i * 8, WARPS * 32);
        }
        order_barriers_before_copies();
    }
    // Columns past the group stay zero.
    for (u32 i = threadIdx.x; i < BUFFERS * NT * HEAD_DIM; i += THREADS)
        *(uint4 *)(shared + ITEMS_AT + i / (NT * HEAD_DIM) * ITEM_BYTES + i % (NT * HEAD_DIM) * 16) = make_uint4(0, 0,
                                                                                                                 0, 0);
    __syncthreads();
    if (!early) wait_for_previous();
    lay_out(sequences, (u32 *)(shared + ITEMS_AT + STATS_AT), step_rows, starts, seq_lens, S, window, query_len_end);

#if ONCE
    if (warp > WARPS) return;
#endif
    u32 total = sequences[S].before * num_kv_heads;
    u32 share = share_of(total, sequences[1].before);
    u32 begin = blockIdx.x * share;
    if (begin >= total) {
        if (early) wait_for_previous();
        return;
    }
    u32 end = total - begin < share ? total : begin + share;
    u32 s = sequence_at(work, begin, 0);
    u32 number = 0; // items of this block so far

    if (warp == WARPS) {
        let_next_start();
        Item next = item_at(work, begin, end, s);
        if (early) wait_for_previous();
        u32 written = 0;
        for (u32 x = begin; x < end || written + 1 < number;) {
            u8 *buffer;
            if (x < end && number < written + BUFFERS) {
                buffer = shared + ITEMS_AT + number % BUFFERS * ITEM_BYTES;
                const Item item = next;
#if ROPE
                bring(buffer, item, in, turn, cache, page_stride);
#else
                bring(buffer, item, in);
#endif
                barrier_arrive(ready + number % BUFFERS * 8);
                number++;
                x = item.end;
                if (x < end) {
                    while (sequences[s + 1].before * num_kv_heads <= x) s++;
                    next = item_at(work, x, end, s);
                }
                continue;
            }
            buffer = shared + ITEMS_AT + written % BUFFERS * ITEM_BYTES;
            barrier_wait(done + written % BUFFERS * 8, written / BUFFERS & 1);
            Item item = *(const Item *)(buffer + ITEM_AT);
            add_up(buffer, item, output, partial_of(output, blockIdx.x, item.begins), lane, 32);
            __syncwarp();
            written++;
        }
    } else {
        Ring ring = {shared_address(shared) + warp * RING * UNIT_BYTES, barriers + warp * RING * 8, 0, 0};
        Fetch fetch = {};
        fetch.x = begin + warp;
        fetch.end = end;
        fetch.s = s;
        look_up(fetch, work, block_table, table_stride);
        auto refill = [&]() {
            if (fetch.x >= fetch.end) return;
            bool values = ring.issued & 1;
            copy_part(ring, cache, page_stride, fetch.page, fetch.head, fetch.tile, fetch.keys, values);
            if (values) {
                fetch.x += WARPS;
                look_up(fetch, work, block_table, table_stride);
            }
        };
        for (u32 i = 0; i < RING; i++) refill();
        let_next_start();
        if (early) wait_for_previous();

        float factor = (SOFTCAP ? scale : scale * LOG2E) * Query<ACT, KV>::scale;
        u32 y = begin + warp;
        for (u32 x = begin; x < end; number++) {
            u8 *buffer = shared + ITEMS_AT + number % BUFFERS * ITEM_BYTES;
            barrier_wait(ready + number % BUFFERS * 8, number / BUFFERS & 1);
            const Item item = *(const Item *)(buffer + ITEM_AT);
            x = item.end;
            bool any = y < item.end;
            Softmax softmax;
            if (any) {
                u32 query[NT][DT][2];
                load_query(query, shared_address(buffer));
                clear(softmax);
                for (; y < item.end; y += WARPS) {
                    i32 tile_key = item.tile_key + (i32)((y - item.begin) * TILE);
                    i32 from = item.first - tile_key, to = item.last - tile_key;
                    bool masked = from > 0 || to < TILE - 1;
                    float scores[4][NT][4];
                    u32 p[4][NT][2];
                    u32 unit = take(ring);
#if ROPE
                    bool fresh = tile_key + TILE > item.first_new;
                    if (fresh) put_keys(in, item, buffer, shared + (unit - shared_address(shared)), tile_key);
#endif
                    multiply_keys(scores, query, unit);
                    if (masked) weigh<true>(softmax, p, scores, factor, softcap, from, to);
                    else weigh<false>(softmax, p, scores, factor, softcap, from, to);
#if ROPE
                    if (fresh && fetch.x < fetch.end) order_stores_before_copies();
#endif
                    __syncwarp();
                    refill();
                    unit = take(ring);
#if ROPE
                    if (fresh) put_values(in, item, buffer, shared + (unit - shared_address(shared)), tile_key);
#endif
                    if (masked) multiply_values<true>(softmax, p, unit, from, to);
                    else multiply_values<false>(softmax, p, unit, from, to);
#if ROPE
                    if (fresh && fetch.x < fetch.end) order_stores_before_copies();
#endif
                    __syncwarp();
                    refill();
                }
            }
            leave_sums(buffer, softmax, any);
            if (x < end) barrier_arrive(done + number % BUFFERS * 8);
        }
    }

    // The last item is everybody's, who have nothing else to do.
    __syncthreads();
    const u8 *buffer = shared + ITEMS_AT + (number - 1) % BUFFERS * ITEM_BYTES;
    const Item item = *(const Item *)(buffer + ITEM_AT);
    add_up(buffer, item, output, partial_of(output, blockIdx.x, item.begins), threadIdx.x, THREADS);
    if (number == 1 && !item.cut) return;

    // The first and the last item of the share may be cut.
    for (u32 x = begin;; x = end - 1) {
        Place place = place_of(work, x, sequence_at(work, x, 0));
        u32 item_begin = x - place.tile, item_end = item_begin + place.tiles;
        if (item_begin < begin || item_end > end) {
            u32 index = query_index(work, place.item);
            join(shared, output, (u32)sequences[place.s].start + index, place.item - index * num_kv_heads,
                 item_begin / share, (item_end - 1) / share);
        }
        if (item_end >= end) break;
    }
}
