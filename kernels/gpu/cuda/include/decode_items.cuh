// Items of attention_decode (an item: a query token and a KV head): where a warp has its own in shared memory, how it
// brings the query, with norm and rotation where the kernel is the fused form, and how a result is written.
//
// Wants the definitions of attention_decode.cu and attention_tile.cuh.
#pragma once

#define HEAD_STRIDE (HEAD_DIM + 4)    // of a cut item's sums: no bank conflicts
// lanes of a head, 8 dims each
#define LANES (HEAD_DIM > 128 ? 32 : HEAD_DIM > 64 ? 16 : HEAD_DIM > 32 ? 8 : HEAD_DIM > 16 ? 4 : 2)
#define PARTS (Layout::ROW / 8)        // eights of dims in a row of a key
#define AT_ONCE 8                     // parts of a cut item that are read together
// Shared memory: rings | desks [WARPS] | barriers [BARRIERS] u64: [WARPS][RING], with COMMON as many again | with
// COMMON four words | sequences [S + 1] | with COMMON their common tiles [S] u16
// A warp's desk: its item's query, units [NT][HEAD_DIM / 8] | the token's own key (rows as in the cache) and value (dim
// by dim), as held | of the two items that may be cut: sums of the first [GROUP][HEAD_STRIDE] f32, stats of both [2]
// [GROUP][2] f32, Cut [2], marks. The second one's sums lie in the warp's ring, which is empty by then.
#define CURRENT_AT (NT * HEAD_DIM * 16)
#define SUMS_AT (CURRENT_AT + HEAD_DIM * 4)
#define STATS_AT (SUMS_AT + GROUP * HEAD_STRIDE * 4)
#define CUTS_AT (STATS_AT + 2 * GROUP * 8)
#define MARKS_AT (CUTS_AT + 32)
// With COMMON, a desk also has room for 16 query heads.
#define DESK_ROOM (COMMON && MARKS_AT + 4 < HEAD_DIM * 32 ? HEAD_DIM * 32 : MARKS_AT + 4)
#define DESK_BYTES ((DESK_ROOM + 127) / 128 * 128)
static_assert(GROUP * HEAD_STRIDE * 4 <= RING * UNIT_BYTES, "a ring holds an item's sums");
#define DESKS_AT (WARPS * RING * UNIT_BYTES)
__device__ __forceinline__ u8 *desk_of(u8 *shared, u32 warp) { return shared + DESKS_AT + warp * DESK_BYTES; }
#define BARRIERS_AT (DESKS_AT + WARPS * DESK_BYTES)
#define BARRIERS ((1 + COMMON) * WARPS * RING)
#define WORDS_AT (BARRIERS_AT + BARRIERS * 8) // with COMMON, four words
#define SHARED_BYTES (BARRIERS_AT + BARRIERS * 8 / 16 * 16 + 16)

// An item of a warp's part of the line.
struct Item {
    u32 begin, end;     // its tiles, as far as they are the warp's
    i32 tile_key;       // first key of the first of them
    i32 first, last;    // keys that the query sees; the last is its own
    u32 kv_head, token;
    i32 keys;           // of the sequence
    i32 first_new;      // first key of this step
    i32 first_token;    // its token
    u32 line, line_end; // all its tiles
    u32 s;              // its sequence
};

// What a warp leaves for the end of its block of items that are cut: at place 0 that which others have begun, and at
// place 1 that which it begins itself.
struct Cut {
    u32 token, kv_head, line, line_end;
};
#define LEFT_BEFORE 1  // marks of a warp: an item at place 0,
#define LEFT_THROUGH 2 // and others go on with it;
#define LEFT_BEHIND 4  // an item at place 1
#define MARKS 3        // bits of them
static_assert(WARPS * MARKS < 32, "marks of all warps in a word");

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
    item.end = end < place.line_end ? end : place.line_end;
    item.tile_key = (i32)((place.first_tile + place.tile) * TILE);
    item.keys = work.sequences[s].keys;
    item.first_new = item.keys - query_len;
    item.last = item.first_new + (i32)index;
    item.first = window > 0 && item.last + 1 > window ? item.last + 1 - window : 0;
    item.kv_head = place.item - index * work.num_kv_heads;
    item.first_token = work.sequences[s].start;
    item.token = (u32)item.first_token + index;
    item.line = place.line;
    item.line_end = place.line_end;
    item.s = s;
    return item;
}

__device__ __forceinline__ void load_8(float (&x)[8], const float *from) {
    float4 a = *(const float4 *)from, b = *(const float4 *)(from + 4);
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}

#if ROPE
// For 8 dims of a head: norm weights of q and k (constant); cosines and sines of a position.
struct Norms {
    float q[8], k[8];
};
struct Angles {
    float cosine[8], sine[8];
};

__device__ __forceinline__ void load_norms(Norms &norms, const Inputs &in) {
#if NORM
    u32 c = threadIdx.x % LANES;
    if (8 * c >= HEAD_DIM) return;
    load_8(norms.q, in.q_norm + 8 * c);
    load_8(norms.k, in.k_norm + 8 * c);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        norms.q[i] += in.q_offset;
        norms.k[i] += in.k_offset;
    }
#endif
}

__device__ __forceinline__ void load_angles(Angles &turn, const Inputs &in, u32 position) {
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
__device__ __forceinline__ uint4 turned(uint4 words, const Norms &norms, const Angles &turn, bool is_key,
                                        const Inputs &in) {
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
    for (int i = 0; i < 8; i++) x[i] *= factor * (is_key ? norms.k[i] : norms.q[i]);
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

// An item's query heads, and in the fused form the token's own key and value, as they come from memory.
struct Raw {
    static constexpr u32 rows = GROUP + (ROPE ? 1 : 0), at_once = 32 / LANES, passes = (rows + at_once - 1) / at_once;
    uint4 words[passes];
#if ROPE
    uint4 value;
    u32 position, expected;
    i32 slot;
    Angles turn;
#endif

    __device__ __forceinline__ void load(const Item &item, const Inputs &in) {
        u32 lane = threadIdx.x % 32, c = lane % LANES;
        bool there = 8 * c < HEAD_DIM;
#if ROPE
        // A token's position is nearly always the place of its key: the angles are loaded for that before the position
        // is known.
        position = (u32)in.positions[item.token];
        expected = (u32)item.last < in.table_rows ? (u32)item.last : in.table_rows - 1;
        slot = in.slots[item.token];
        load_angles(turn, in, expected);
        value = make_uint4(0, 0, 0, 0);
        if (lane < HEAD_DIM / 8)
            value = *(const uint4 *)(in.v + (u64)item.token * in.v_token_stride +
                                     (u64)item.kv_head * in.v_head_stride + 8 * lane);
#endif
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
    }

    // Puts the query on the warp's desk; in the fused form normed and rotated, with the token's own key and value,
    // which the warp that has the tile they belong to also stores in the cache.
    __device__ __forceinline__ void put(u8 *desk, const Item &item
#if ROPE
                                        ,
                                        const Inputs &in, const Norms &norms, u8 *cache, u64 page_stride
#endif
    ) {
        u32 lane = threadIdx.x % 32, c = lane % LANES;
        bool there = 8 * c < HEAD_DIM;
#if ROPE
        if (position != expected) load_angles(turn, in, position);
#endif
#pragma unroll
        for (u32 pass = 0; pass < passes; pass++) {
            u32 row = pass * at_once + lane / LANES;
#if ROPE
            words[pass] = turned(words[pass], norms, turn, row == GROUP, in);
            if (there && row == GROUP) put_key_part(desk + CURRENT_AT + c / PARTS * 16, c % PARTS, words[pass]);
#endif
            if constexpr (CODE_BITS == 4) words[pass] = turned_query<ACT, HEAD_DIM>(words[pass], c);
            if (there && row < GROUP)
                *(uint4 *)(desk + ((row / 8 * (HEAD_DIM / 8) + c) * 8 + row % 8) * 16) = factors(words[pass]);
        }
#if ROPE
        u8 *current_value = desk + CURRENT_AT + HEAD_DIM * KV_BYTES;
        u32 held[4] = {value.x, value.y, value.z, value.w}; // eight dims of the value as the cache has them
        if constexpr (KV_BYTES == 1) {
            held[0] = narrow<ACT>(value.x) | narrow<ACT>(value.y) << 16;
            held[1] = narrow<ACT>(value.z) | narrow<ACT>(value.w) << 16;
            if (lane < HEAD_DIM / 8) *(uint2 *)(current_value + 8 * lane) = make_uint2(held[0], held[1]);
            __syncwarp();
        } else {
            if (lane < HEAD_DIM / 8) *(uint4 *)(current_value + 16 * lane) = value;
        }
        if (slot < 0 || (u32)(item.last - item.tile_key) >= (item.end - item.begin) * TILE) return;
        u8 *page = cache + (u64)((u32)slot / BLOCK) * page_stride + (u64)item.kv_head * Layout::HEAD_BYTES;
        u32 inside = (u32)slot % BLOCK;
        if constexpr (KV_BYTES == 1) {
            // A row has dims of two lanes.
            if (lane < Layout::KEY_ROWS)
                *(uint4 *)(page + Layout::key_row(inside, lane)) = *(const uint4 *)(desk + CURRENT_AT + 16 * lane);
        } else {
#pragma unroll
            for (u32 pass = 0; pass < passes; pass++)
                if (there && pass * at_once + lane / LANES == GROUP)
                    *(uint4 *)(page + Layout::key_row(inside, c)) = words[pass];
        }
        if (lane < HEAD_DIM / 8) {
            KV *to = (KV *)(page + Layout::value_row(8 * lane, inside / Layout::ROW)) +
                     Layout::place(inside % Layout::ROW);
#pragma unroll
            for (int i = 0; i < 8; i++) to[Layout::ROW * i].bits = held[i * KV_BYTES / 4] >> i * KV_BYTES % 4 * 8;
        }
#endif
    }
};

// What an item's sums are multiplied by, with a sink added to their total.
__device__ __forceinline__ float factor_of(const Output &output, u32 head, float highest, float total) {
    float kept = 1.f;
    if (output.sinks) {
        float sink = output.sinks[head] * LOG2E, above = fmaxf(highest, sink);
        kept = exp2_fast(highest - above);
        total = total * kept + exp2_fast(sink - above);
    }
    return __fdividef(kept, total);
}

// Writes four neighbouring dims of a head.
__device__ __forceinline__ void write_out(const Output &output, u32 token, u32 head, u32 dim, float4 sum, float highest,
                                          float total) {
    float factor = factor_of(output, head, highest, total);
    u32 *to = (u32 *)(output.out + (u64)token * output.token_stride + (u64)head * output.head_stride + dim);
    to[0] = pack2<ACT>(sum.x * factor, sum.y * factor);
    to[1] = pack2<ACT>(sum.z * factor, sum.w * factor);
}
