// Attention of any shape and type over the paged cache: 32 work-items a (token, query head) share its keys in runs of
// eight tokens, with a running softmax in f32. On processors each work-item has a softmax of its own and sums of every
// dim; they are joined at the end, some dims at a time. In subgroups the work-items share one softmax, 256 keys at a
// time: the weights are exchanged through local memory, and each work-item sums a few dims of its own.
//
// Definitions: ACT (f32, f16, bf16: q and out), KV (those or e4m3: the cache), HEAD_DIM, BLOCK (a multiple of 8).
// Entry point: attention_plain. Grid: ceil(T * num_heads / 4) groups of 128 threads. Tokens that belong to no sequence
// write nothing.
// revision: 1
// check: -DACT=f32 -DKV=f32 -DHEAD_DIM=64 -DBLOCK=8
// check: -DACT=f16 -DKV=e4m3 -DHEAD_DIM=80 -DBLOCK=16
// check: -DACT=bf16 -DKV=bf16 -DHEAD_DIM=128 -DBLOCK=64
// check: -DACT=bf16 -DKV=f32 -DHEAD_DIM=16 -DBLOCK=8
#include "kv.h"

// Work-items of a group; (token, head) pairs of it.
#define THREADS 128
#define JOBS (THREADS / 32)
// Dims that are joined at a time, and their number rounded up to that.
#define SLICE 8
#define DIMS ((HEAD_DIM + SLICE - 1) / SLICE * SLICE)
// Dims of a work-item, where each has its own.
#define OWN_DIMS ((HEAD_DIM + 31) / 32)
// The query's values, rounded up to whole rows of keys.
#define QUERY (KEY_ROWS * ROW)
// Elements of a row of the cache that are read at once.
#if CAT(IS_WIDE_, KV)
#define PIECE 4
#else
#define PIECE 8
#endif
// Those of a key's row that are multiplied at once: of eight keys, so that GPUs have registers for four.
#ifdef SUBGROUP
#define KEY_PIECE 4
#else
#define KEY_PIECE PIECE
#endif
#define DOT4(a, b) sum4((a) * (b))
#define DOT8(a, b) sum8((a) * (b))

// The sequence that token t belongs to: the last s with start[s] <= t. Empty sequences share their start with the next.
INLINE u32 sequence_of(const __global i32 *starts, u32 S, i32 t) {
    u32 low = 0, high = S - 1;
    while (low < high) {
        u32 middle = (low + high + 1) / 2;
        if (starts[middle] <= t) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

// Scores of eight neighbouring tokens from `token` of a block on.
INLINE float8 scores_of(const __global u8 *piece, u32 token, const __local float *query) {
    float scores[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
    for (u32 r = 0; r < KEY_ROWS; r++) {
        const __global u8 *rows = piece + key_row(token, r);
        for (u32 p = 0; p < ROW; p += KEY_PIECE) {
            FLOATN(KEY_PIECE) q = CAT(vload, KEY_PIECE)(0, query + r * ROW + p);
#pragma unroll
            for (u32 j = 0; j < 8; j++) {
                // What lies past the head's dims in its last row counts nothing, as the query is 0 there and kv_write
                // stores 0.
                scores[j] += CAT(DOT, KEY_PIECE)(q, LOADN(KEY_PIECE, KV, (const __global KV *)(rows + 16 * j), p));
            }
        }
    }
    return vload8(0, scores);
}

// Values of a dim at eight neighbouring tokens. A row of f32 holds four.
INLINE float8 values_of(const __global u8 *piece, u32 dim, u32 token) {
#if PIECE == 4
    return (float8)(LOADN(4, KV, (const __global KV *)(piece + value_row(dim, token / ROW)), 0),
                    LOADN(4, KV, (const __global KV *)(piece + value_row(dim, token / ROW + 1)), 0));
#else
    return LOADN(8, KV, (const __global KV *)(piece + value_row(dim, token / ROW)), token % ROW);
#endif
}

KERNEL void attention_plain(const __global ACT *q, u32 q_token_stride, u32 q_head_stride, const __global u8 *cache,
                            u64 page_stride, const __global i32 *block_table, u32 table_stride,
                            const __global i32 *step_rows, const __global i32 *starts, const __global i32 *seq_lens,
                            const __global float *sinks, __global ACT *out, u32 out_token_stride, u32 out_head_stride,
                            u32 T, u32 S, u32 num_heads, u32 group, float scale, float softcap, u32 window) {
    __local float queries[JOBS][QUERY];
#ifdef SUBGROUP
    __local float weights[JOBS][32 * 8], shared[THREADS];
    __local u32 passes[JOBS];
#else
    __local float slices[THREADS * SLICE];
    __local float highests[THREADS], totals[THREADS];
#endif
    u32 id = get_local_id(0), lane = id % 32, job = id / 32, index = get_group_id(0) * JOBS + job;
    u32 t = index / num_heads, head = index % num_heads;
    bool live = t < T && (i32)t < starts[S] && (i32)t >= starts[0];
    u32 s = live ? sequence_of(starts, S, (i32)t) : 0;
    i32 row = live ? step_rows[s] : -1;
    live = live && row >= 0;
    // Position of the token, and the keys first ..= last that it sees.
    i32 last = live ? seq_lens[s] - starts[s + 1] + (i32)t : -1;
    i32 first = window > 0 && last + 1 > (i32)window ? last + 1 - (i32)window : 0;
    const __global i32 *pages = block_table + (u64)max(row, 0) * table_stride;
    u64 piece_offset = (u64)(head / group) * HEAD_BYTES;
    for (u32 d = lane; d < QUERY; d += 32)
        queries[job][d] = live && d < HEAD_DIM ? LOAD(ACT, q, (u64)t * q_token_stride + (u64)head * q_head_stride + d)
                                               : 0.f;
    barrier(CLK_LOCAL_MEM_FENCE);

    float highest = -INFINITY, total = 0.f;
    const int8 steps = (int8)(0, 1, 2, 3, 4, 5, 6, 7);
#ifdef SUBGROUP
    // The keys of `first` on, in passes; the group goes through those of its longest sequence.
    i32 begin = first & ~7;
    if (lane == 0) passes[job] = live ? (u32)((last - begin) / 256 + 1) : 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    u32 most = 0;
    for (u32 i = 0; i < JOBS; i++) most = max(most, passes[i]);
    float sum[OWN_DIMS];
#pragma unroll
    for (u32 e = 0; e < OWN_DIMS; e++) sum[e] = 0.f;
    for (u32 pass = 0; pass < most; pass++) {
        i32 start = begin + 256 * (i32)pass, token = start + 8 * (i32)lane;
        float8 score = -INFINITY;
        if (token <= last) {
            const __global u8 *piece = cache + (u64)pages[token / BLOCK] * page_stride + piece_offset;
            int8 keys = token + steps;
            score = scores_of(piece, (u32)token % BLOCK, queries[job]) * scale;
            if (softcap > 0.f) score = softcap - 2.f * softcap / (exp(score * (2.f / softcap)) + 1.f);
            // Whatever an unseen key held: it may be no number.
            score = select((float8)-INFINITY, score, keys >= first && keys <= last);
        }
        float4 pairs = fmax(score.lo, score.hi);
        float above = fmax(highest,
                           lanes_max(fmax(fmax(pairs.s0, pairs.s1), fmax(pairs.s2, pairs.s3)), shared, lane, 32));
        float kept = highest == above ? 1.f : exp(highest - above);
        float8 p = above == -INFINITY ? (float8)0.f : exp(score - above);
        highest = above;
        total = total * kept + sum8(p);
        vstore8(p, lane, weights[job]);
        barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
        for (u32 e = 0; e < OWN_DIMS; e++) sum[e] *= kept;
        for (i32 at = start; at <= last && at < start + 256; at += 8) {
            const __global u8 *piece = cache + (u64)pages[at / BLOCK] * page_stride + piece_offset;
            float8 weight = vload8((at - start) / 8, weights[job]);
#pragma unroll
            for (u32 e = 0; e < OWN_DIMS; e++) {
                u32 d = lane + 32 * e;
                // What a key that counts nothing has for values may be no number.
                if (HEAD_DIM % 32 == 0 || d < HEAD_DIM)
                    sum[e] += sum8(select((float8)0.f, weight * values_of(piece, d, (u32)at % BLOCK), weight != 0.f));
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    float above = fmax(highest, sinks && live ? sinks[head] : -INFINITY), base = above == -INFINITY ? 0.f : above,
          factor = exp(highest - base);
    float all = lanes_sum(total * factor, shared, lane, 32);
    if (sinks && live) all += exp(sinks[head] - base);
#pragma unroll
    for (u32 e = 0; e < OWN_DIMS; e++) {
        u32 d = lane + 32 * e;
        if (live && d < HEAD_DIM)
            STORE(ACT, sum[e] * factor / all, out, (u64)t * out_token_stride + (u64)head * out_head_stride + d);
    }
#else
    // Work-items that have keys: the others' places are not joined.
    u32 used = live ? min((last - (first & ~7)) / 8 + 1, 32) : 0;
    float sum[DIMS];
    for (u32 d = 0; lane < used && d < DIMS; d++) sum[d] = 0.f;
    for (i32 token = (first & ~7) + 8 * (i32)lane; token <= last; token += 256) {
        const __global u8 *piece = cache + (u64)pages[token / BLOCK] * page_stride + piece_offset;
        int8 keys = token + steps, seen = keys >= first && keys <= last;
        float8 score = scores_of(piece, (u32)token % BLOCK, queries[job]) * scale;
        if (softcap > 0.f) score = softcap * tanh(score / softcap);
        // Whatever an unseen key held: it may be no number.
        score = select((float8)-INFINITY, score, seen);
        float4 pairs = fmax(score.lo, score.hi);
        float above = fmax(highest, fmax(fmax(pairs.s0, pairs.s1), fmax(pairs.s2, pairs.s3)));
        float kept = highest == above ? 1.f : exp(highest - above);
        float8 p = above == -INFINITY ? (float8)0.f : exp(score - above);
        highest = above;
        total = total * kept + sum8(p);
        for (u32 d = 0; d < HEAD_DIM; d++) {
            float8 values = values_of(piece, d, (u32)token % BLOCK);
            sum[d] = sum[d] * kept + sum8(select((float8)0.f, p * values, seen));
        }
    }
    highests[id] = highest;
    totals[id] = total;
    barrier(CLK_LOCAL_MEM_FENCE);
    float above = sinks && live ? sinks[head] : -INFINITY, all = 0.f;
    for (u32 i = 0; i < used; i++) above = fmax(above, highests[32 * job + i]);
    float base = above == -INFINITY ? 0.f : above;
    for (u32 i = 0; i < used; i++) all += totals[32 * job + i] * exp(highests[32 * job + i] - base);
    if (sinks && live) all += exp(sinks[head] - base);
    float factor = exp(highest - base);
    for (u32 d = 0; d < HEAD_DIM; d += SLICE) {
        if (lane < used) vstore8(vload8(0, sum + d) * factor, 0, slices + SLICE * id);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (live && lane < SLICE && d + lane < HEAD_DIM) {
            float joined = 0.f;
            for (u32 i = 0; i < used; i++) joined += slices[SLICE * (32 * job + i) + lane];
            STORE(ACT, joined / all, out, (u64)t * out_token_stride + (u64)head * out_head_stride + d + lane);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
#endif
}
