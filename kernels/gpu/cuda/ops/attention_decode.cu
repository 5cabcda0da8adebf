// Attention of few query tokens a sequence over the paged cache, at the speed of memory: every block of threads streams
// an equal share of all keys and values of the batch through shared memory.
//
// The work is a line of tiles of 64 keys: sequence by sequence, query token by query token, KV head by KV head. Blocks
// cut the line into equal shares, which they find on the device from seq_lens. So one long sequence and hundreds of
// short ones both fill the device.
//
// Within a share, consumer warp w takes tiles w, w + WARPS, ... It has its own ring of buffers, which hold keys and
// values in turn, and refills each as it empties. A producer warp runs one item (query token x KV head) ahead of the
// consumers. It loads the query; when all consumers have stored their partial sums of an item, it adds them up and
// writes the result. All warps add up the last item of a share together. Where shares cut an item, the sums go to
// scratch, and the last of its blocks to finish adds them up.
//
// Matrix units (m16n8k16): scores = K * Qt with 16 keys as rows and up to 8 query heads of the group as columns, then
// out-transposed = Vt * P, where P is the transposed scores. Units of the cache (kv.cuh) are exactly the 8x8 tiles that
// ldmatrix loads.
//
// The fused form (ROPE) takes q, k and v as projected. The producer warp norms and rotates q. Keys and values of this
// step come from k and v, not from the cache; the block that has a token's own key stores both in the cache. q and k
// stay as they are. Slots must be those that the block table gives.
//
// Definitions: ACT (bf16, f16); KV (the cache's type: ACT or e4m3, and with BLOCK up to 64 and without ROPE code8 or
// code4); HEAD_DIM (multiple of 16); GROUP (query heads of a KV head); BLOCK (16, 32, 64, 128); WARPS; RING (buffers of
// a warp); SOFTCAP (0, 1); ROPE (0, 1: the fused form). With ROPE: ROTARY_DIM, INTERLEAVED (0, 1), NORM (0, 1). ONCE
// (0, 1; the fused form without norms): batches that fit run as in attention_once.cuh.
//
// `early`: nothing that may still run writes step data (rows, lengths, block table, positions, slots) or keys and
// values of earlier steps. The kernel then reads them before the previous one has ended.
//
// Entry point: attention_decode. Grid: any number of blocks, as many as run at once; (WARPS + 1) * 32 threads, with
// ONCE 288. Dynamic shared memory: SHARED_BYTES of decode_items.cuh + 16 * (S + 1). Scratch: partials, 2 * blocks *
// GROUP * (HEAD_DIM + 2) f32. counters: u32 a block, zero before the first launch; every launch leaves them zero.
// Sequences whose query_len is not below `query_len_end` are left to another kernel.
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
// check: -DACT=bf16 -DKV=code8 -DHEAD_DIM=128 -DGROUP=4 -DBLOCK=64 -DWARPS=4 -DRING=5 -DSOFTCAP=0 -DROPE=0
// check: -DACT=f16 -DKV=code8 -DHEAD_DIM=80 -DGROUP=9 -DBLOCK=16 -DWARPS=4 -DRING=3 -DSOFTCAP=1 -DROPE=0
// check: -DACT=bf16 -DKV=code4 -DHEAD_DIM=128 -DGROUP=4 -DBLOCK=64 -DWARPS=4 -DRING=3 -DSOFTCAP=0 -DROPE=0
// check: -DACT=f16 -DKV=code4 -DHEAD_DIM=80 -DGROUP=3 -DBLOCK=32 -DWARPS=4 -DRING=3 -DSOFTCAP=0 -DROPE=0
#ifndef KV
#define KV ACT
#endif
#ifndef ONCE
#define ONCE 0
#endif
#include "attention_tile.cuh"
#include "decode_items.cuh"

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

// An item that shares cut: the last of its blocks to finish adds up the partial sums in scratch. Called by all threads.
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
                // The last part replaces those past the end.
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

// --- Consumer warps --------------------------------------------------------------------------------------------------

// The query heads of an item as the second operand of the scores' product: columns 8n + g, dims 16d + 2t (+ 1), and +
// 8.
__device__ __forceinline__ void load_query(u32 (&query)[NT][DT][2], u32 buffer) {
    u32 at = buffer + threadIdx.x % 32 * 16;
#pragma unroll
    for (int n = 0; n < NT; n++) {
#pragma unroll
        for (int d = 0; d + 1 < DT; d += 2) {
            u32 units[4];
            load_pieces(units, at + (n * (HEAD_DIM / 8) + 2 * d) * 128);
            query[n][d][0] = units[0];
            query[n][d][1] = units[1];
            query[n][d + 1][0] = units[2];
            query[n][d + 1][1] = units[3];
        }
        if (DT % 2) {
            // Two units are left: the upper lanes' addresses count for nothing, but must be readable.
            u32 units[4];
            load_pieces(units, buffer + threadIdx.x % 16 * 16 + (n * (HEAD_DIM / 8) + 2 * (DT - 1)) * 128);
            query[n][DT - 1][0] = units[0];
            query[n][DT - 1][1] = units[1];
        }
    }
}

// Stores a warp's partial sums for the producer warp.
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

// In a step with several tokens of a sequence: puts the keys (or values) of the tokens other than `item.token` into a
// tile.
__device__ __noinline__ void put_others(const Inputs &in, const Item &item, u8 *unit, i32 tile_key, bool values) {
    u32 lane = threadIdx.x % 32;
    i32 begin = item.first_new > tile_key ? item.first_new : tile_key,
        end = item.keys < tile_key + TILE ? item.keys : tile_key + TILE;
    RopeInputs turn = {};
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
        *(uint4 *)(unit + key_unit(c, inside / 8) + inside % 8 * 16) = *(const uint4 *)(buffer + CURRENT_AT + 16 * c);
    __syncwarp();
}

// The same for values.
__device__ __forceinline__ void put_values(const Inputs &in, const Item &item, const u8 *buffer, u8 *unit,
                                           i32 tile_key) {
    u32 inside = (u32)(item.last - tile_key);
    if (item.keys - item.first_new > 1) put_others(in, item, unit, tile_key, true);
    if (inside < TILE) put_value(unit, inside, (const KV *)(buffer + CURRENT_AT + HEAD_DIM * KV_BYTES));
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
    // After a call of few sequences the next kernel is short as well: let it load its weights now.
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
    RopeInputs turn = {};
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
                float query_sums[NT][2] = {};
                if constexpr (CODE_BITS == 4) sum_queries(query_sums, query);
                for (; y < item.end; y += WARPS) {
                    i32 tile_key = item.tile_key + (i32)((y - item.begin) * TILE);
                    i32 from = item.first - tile_key, to = item.last - tile_key;
                    bool masked = from > 0 || to < TILE - 1;
                    float scores[4][NT][4];
                    u32 p[4][NT][2];
                    u32 unit = take(ring);
#if ROPE
                    bool is_current = tile_key + TILE > item.first_new;
                    if (is_current) put_keys(in, item, buffer, shared + (unit - shared_address(shared)), tile_key);
#endif
                    multiply_keys(scores, query, unit, query_sums);
                    if (masked) weigh<true>(softmax, p, scores, factor, softcap, from, to);
                    else weigh<false>(softmax, p, scores, factor, softcap, from, to);
#if ROPE
                    if (is_current && fetch.x < fetch.end) order_stores_before_copies();
#endif
                    __syncwarp();
                    refill();
                    unit = take(ring);
#if ROPE
                    if (is_current) put_values(in, item, buffer, shared + (unit - shared_address(shared)), tile_key);
#endif
                    if (masked) multiply_values<true>(softmax, p, unit, from, to);
                    else multiply_values<false>(softmax, p, unit, from, to);
#if ROPE
                    if (is_current && fetch.x < fetch.end) order_stores_before_copies();
#endif
                    __syncwarp();
                    refill();
                }
            }
            leave_sums(buffer, softmax, any);
            if (x < end) barrier_arrive(done + number % BUFFERS * 8);
        }
    }

    // All warps add up the last item: they have no other work.
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
