// Attention of few query tokens a sequence over the paged cache, at the speed of memory: every warp streams about an
// equal share of all keys and values of the batch through shared memory.
//
// The work is a line of tiles of 64 keys: sequence by sequence, query token by query token, KV head by KV head. An item
// is a query token and a KV head. Where no warp gets much more than an equal share so, each takes whole items, equally
// many. Else blocks cut the line into equal shares, and warps cut those. All of it is found on the device from
// seq_lens; so one long sequence and hundreds of short ones both fill the device.
//
// A warp has its own ring of buffers, which hold keys and values of its tiles in turn, and refills each as it empties.
// It asks for the query of its next item while it works on one, and writes the results of items that are all its own.
// Of those that warps have cut it leaves its sums in shared memory, and the block adds them up at its end. Of those
// that blocks have cut, sums go to scratch, and the last of the blocks adds them up. A warp that has all that its block
// has of such an item hands its sums over by itself, and works on it first if the item ends in another block: then
// nobody waits for it.
//
// Matrix units (m16n8k16): scores = K * Qt with 16 keys as rows and up to 8 query heads of the group as columns, then
// out-transposed = Vt * P, where P is the transposed scores. Units of the cache (kv.cuh) are exactly the 8x8 tiles that
// ldmatrix loads.
//
// With COMMON, keys that sequences of the batch have in common are read once for many of them (common_keys.cuh).
//
// The fused form (ROPE) takes q, k and v as projected. Each warp norms and rotates the queries of its items. Keys and
// values of this step come from k and v, not from the cache; the warp that has a token's own key stores both in the
// cache. q and k stay as they are. Slots must be those that the block table gives.
//
// Definitions: ACT (bf16, f16); KV (the cache's type: ACT or e4m3, and with BLOCK up to 64 and without ROPE code8 or
// code4); HEAD_DIM (multiple of 16); GROUP (query heads of a KV head); BLOCK (16, 32, 64, 128); WARPS; RING (buffers of
// a warp); SOFTCAP (0, 1); ROPE (0, 1: the fused form). With ROPE: ROTARY_DIM, INTERLEAVED (0, 1), NORM (0, 1). ONCE
// (0, 1; the fused form without norms): batches that fit run as in attention_once.cuh. COMMON (0, 1; without a window).
//
// `early`: nothing that may still run writes step data (rows, lengths, block table, positions, slots) or keys and
// values of earlier steps. The kernel then reads them before the previous one has ended.
//
// Entry point: attention_decode. Grid: any number of blocks, as many as run at once; WARPS * 32 threads, with ONCE 288.
// Dynamic shared memory: SHARED_BYTES of decode_items.cuh + 16 * (S + 1), with COMMON 2 * S more. Scratch: partials,
// 2 * blocks * GROUP * (HEAD_DIM + 4) f32; with COMMON common, common_rows * query heads * (HEAD_DIM + 2) f32, where
// common_rows is at least S. counters: u32 a block and three more, zero before the first launch; every launch leaves
// them zero. teams: what find_common.cu has found in the same step data, or null; not used without COMMON.
// Sequences whose query_len is not below `query_len_end` are left to another kernel.
// check: -DACT=bf16 -DHEAD_DIM=128 -DGROUP=4 -DBLOCK=64 -DWARPS=4 -DRING=3 -DSOFTCAP=0 -DROPE=0
// check: -DACT=f16 -DHEAD_DIM=256 -DGROUP=2 -DBLOCK=64 -DWARPS=3 -DRING=2 -DSOFTCAP=1 -DROPE=0
// check: -DACT=f16 -DHEAD_DIM=64 -DGROUP=3 -DBLOCK=16 -DWARPS=4 -DRING=3 -DSOFTCAP=0 -DROPE=1 -DROTARY_DIM=64 -DINTERLEAVED=0 -DNORM=0
// check: -DACT=bf16 -DHEAD_DIM=128 -DGROUP=8 -DBLOCK=128 -DWARPS=4 -DRING=3 -DSOFTCAP=0 -DROPE=1 -DROTARY_DIM=128 -DINTERLEAVED=1 -DNORM=1
// check: -DACT=bf16 -DHEAD_DIM=64 -DGROUP=3 -DBLOCK=64 -DWARPS=4 -DRING=2 -DSOFTCAP=0 -DROPE=1 -DROTARY_DIM=64 -DINTERLEAVED=1 -DNORM=0 -DONCE=1
// check: -DACT=f16 -DHEAD_DIM=48 -DGROUP=8 -DBLOCK=16 -DWARPS=4 -DRING=2 -DSOFTCAP=1 -DROPE=1 -DROTARY_DIM=32 -DINTERLEAVED=0 -DNORM=0 -DONCE=1
// check: -DACT=f16 -DHEAD_DIM=256 -DGROUP=2 -DBLOCK=16 -DWARPS=3 -DRING=2 -DSOFTCAP=1 -DROPE=1 -DROTARY_DIM=256 -DINTERLEAVED=0 -DNORM=1
// check: -DACT=bf16 -DHEAD_DIM=128 -DGROUP=4 -DBLOCK=64 -DWARPS=4 -DRING=2 -DSOFTCAP=0 -DROPE=1 -DROTARY_DIM=128 -DINTERLEAVED=0 -DNORM=0 -DCOMMON=1
// check: -DACT=bf16 -DHEAD_DIM=128 -DGROUP=8 -DBLOCK=16 -DWARPS=4 -DRING=2 -DSOFTCAP=1 -DROPE=1 -DROTARY_DIM=64 -DINTERLEAVED=1 -DNORM=1 -DCOMMON=1
// check: -DACT=f16 -DHEAD_DIM=64 -DGROUP=3 -DBLOCK=64 -DWARPS=4 -DRING=2 -DSOFTCAP=0 -DROPE=0 -DCOMMON=1
// check: -DACT=bf16 -DKV=e4m3 -DHEAD_DIM=128 -DGROUP=16 -DBLOCK=128 -DWARPS=4 -DRING=4 -DSOFTCAP=0 -DROPE=0 -DCOMMON=1
// check: -DACT=f16 -DKV=code4 -DHEAD_DIM=128 -DGROUP=1 -DBLOCK=32 -DWARPS=3 -DRING=3 -DSOFTCAP=0 -DROPE=0 -DCOMMON=1
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
#ifndef COMMON
#define COMMON 0
#endif
#include "attention_tile.cuh"
#include "decode_items.cuh"
#include "teams.cuh"

#if COMMON
#include "common_keys.cuh"
#endif
#if ONCE
#include "attention_once.cuh"
#else
#define BOUNDS __launch_bounds__(THREADS)
#endif

// f32 of a block's part of an item: sums, then highest and total of each head, twice that for alignment
#define PARTIAL (GROUP * (HEAD_DIM + 4))

// The sums of a warp's item that is cut at place `place` of it, and what is said of those items.
__device__ __forceinline__ float *sums_of(u8 *shared, u32 warp, u32 place) {
    return (float *)(place == 0 ? desk_of(shared, warp) + SUMS_AT : shared + warp * RING * UNIT_BYTES);
}
__device__ __forceinline__ Cut *cuts_of(u8 *shared, u32 warp) { return (Cut *)(desk_of(shared, warp) + CUTS_AT); }
__device__ __forceinline__ u32 &marks_of(u8 *shared, u32 warp) { return *(u32 *)(desk_of(shared, warp) + MARKS_AT); }

// The part of a block in an item that blocks have cut: slot 1 where the item begins in the block, else 0.
__device__ __forceinline__ float *partial_of(const Output &output, u32 block, bool begins) {
    return output.partials + (u64)(2 * block + begins) * PARTIAL;
}

// Parts of an item in a block: of warps `first` to `last`, the first one's at its place `place`, all others' at 0.
struct Parts {
    u32 first, place, last;
};

// Adds up a block's parts of an item: into the result, or with `partial` into the block's part. All threads.
__device__ __forceinline__ void add_up(u8 *shared, const Parts &parts, const Cut &cut, const Output &output,
                                       float *partial) {
#pragma unroll 2
    for (u32 e = threadIdx.x; e < GROUP * HEAD_DIM / 4; e += THREADS) {
        u32 head = e / (HEAD_DIM / 4), dim = e % (HEAD_DIM / 4) * 4;
        float2 own[WARPS];
        float4 part[WARPS];
        float highest = -INFINITY_F, total = 0.f;
#pragma unroll
        for (u32 w = 0; w < WARPS; w++) {
            own[w] = make_float2(-INFINITY_F, 0.f);
            if (w < parts.first || w > parts.last) continue;
            u32 place = w == parts.first ? parts.place : 0;
            own[w] = ((const float2 *)(desk_of(shared, w) + STATS_AT))[place * GROUP + head];
            part[w] = *(const float4 *)(sums_of(shared, w, place) + head * HEAD_STRIDE + dim);
            highest = fmaxf(highest, own[w].x);
        }
        float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
        for (u32 w = 0; w < WARPS; w++) {
            if (own[w].x == -INFINITY_F) continue; // left nothing
            float weight = exp2_fast(own[w].x - highest);
            add_weighted(sum, weight, part[w]);
            total += weight * own[w].y;
        }
        if (partial) {
            __stcg((float4 *)(partial + head * HEAD_DIM + dim), sum);
            if (dim == 0) __stcg((float2 *)(partial + GROUP * HEAD_DIM + 2 * head), make_float2(highest, total));
        } else {
            write_out(output, cut.token, cut.kv_head * GROUP + head, dim, sum, highest, total);
        }
    }
}

// Says that a block's part of an item is in scratch, by one thread: whether those of all blocks are.
__device__ __forceinline__ bool is_last(const Output &output, u32 first_block, u32 last_block) {
    __threadfence();
    // Wraps to zero with the last arrival, ready for the next launch.
    u32 before = atomicInc(output.counters + first_block, last_block - first_block);
    __threadfence();
    return before == last_block - first_block;
}

// Adds up the parts that blocks have left of an item. Thread `thread` of `threads`.
__device__ __forceinline__ void add_blocks(const Output &output, u32 token, u32 kv_head, u32 first_block,
                                           u32 last_block, u32 thread, u32 threads) {
    u32 parts = last_block - first_block + 1;
    for (u32 e = thread; e < GROUP * HEAD_DIM / 4; e += threads) {
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

// --- A warp's item ---------------------------------------------------------------------------------------------------

// Puts a warp's sums, and highest and total of each head, into rows of `stride` floats.
__device__ __forceinline__ void put_sums(float *sums, u32 stride, float2 *stats, Softmax &softmax) {
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane & 3;
    add_totals(softmax);
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            u32 head = 8 * n + 2 * t + c;
            if (head >= GROUP) continue;
            if (g == 0) stats[head] = make_float2(softmax.highest[n][c], softmax.total[n][c]);
            float *to = sums + head * stride + g;
#pragma unroll
            for (int d = 0; d < DT; d++) {
                to[16 * d] = softmax.sum[d][n][c];
                to[16 * d + 8] = softmax.sum[d][n][2 + c];
            }
        }
}

// Leaves the sums of an item that warps have cut for the end of the block; at place 1 where the ring is empty.
__device__ __forceinline__ void leave_sums(u8 *shared, u32 place, const Item &item, Softmax &softmax) {
    u32 warp = threadIdx.x / 32;
    put_sums(sums_of(shared, warp, place), HEAD_STRIDE,
             (float2 *)(desk_of(shared, warp) + STATS_AT) + place * GROUP, softmax);
    if (threadIdx.x % 32 > 0) return;
    cuts_of(shared, warp)[place] = {item.token, item.kv_head, item.line, item.line_end};
    u32 before = item.line_end > item.end ? LEFT_BEFORE | LEFT_THROUGH : LEFT_BEFORE;
    marks_of(shared, warp) |= place ? LEFT_BEHIND : before;
}

// Hands over the sums of an item of which this warp has all that its block has. The last of the blocks adds up.
__device__ __forceinline__ void hand_over(const Output &output, const Item &item, u32 share, bool begins,
                                          Softmax &softmax) {
    u32 lane = threadIdx.x % 32, first_block = item.line / share, last_block = (item.line_end - 1) / share;
    float *partial = partial_of(output, blockIdx.x, begins);
    put_sums(partial, HEAD_DIM, (float2 *)(partial + GROUP * HEAD_DIM), softmax);
    __syncwarp();
    u32 adds = lane == 0 && is_last(output, first_block, last_block);
    adds = __shfl_sync(0xffffffffu, adds, 0);
    // The others' reads come behind the first lane's fence.
    __syncwarp();
    if (adds) add_blocks(output, item.token, item.kv_head, first_block, last_block, lane, 32);
}

// Writes the result of an item of this warp alone.
__device__ __forceinline__ void write_sums(const Output &output, const Item &item, Softmax &softmax) {
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane & 3;
    add_totals(softmax);
#pragma unroll
    for (int n = 0; n < NT; n++) {
        float factor[2];
#pragma unroll
        for (int c = 0; c < 2; c++) {
            u32 head = 8 * n + 2 * t + c;
            factor[c] = factor_of(output, item.kv_head * GROUP + (head < GROUP ? head : 0), softmax.highest[n][c],
                                  softmax.total[n][c]);
        }
        // Turned round, a lane has neighbouring dims of head 8n + g.
        u32 *to = (u32 *)(output.out + (u64)item.token * output.token_stride +
                          (u64)(item.kv_head * GROUP + 8 * n + g) * output.head_stride + 2 * t);
#pragma unroll
        for (int d = 0; d < DT; d++) {
            float *sum = softmax.sum[d][n];
            u32 low = transposed(pack2<ACT>(sum[0] * factor[0], sum[1] * factor[1])),
                high = transposed(pack2<ACT>(sum[2] * factor[0], sum[3] * factor[1]));
            if (8 * n + g >= GROUP) continue;
            to[8 * d] = low;
            to[8 * d + 4] = high;
        }
    }
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
    Norms norms = {};
    Angles turn = {};
    if (!values) load_norms(norms, in);
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
        words = turned(words, norms, turn, true, in);
        if (lane < HEAD_DIM / 8)
            put_key_part(unit + key_unit(lane / PARTS, inside / 8) + inside % 8 * 16, lane % PARTS, words);
    }
}

// Puts the keys of this step's tokens into a tile that was copied without them.
__device__ __forceinline__ void put_keys(const Inputs &in, const Item &item, const u8 *desk, u8 *unit, i32 tile_key) {
    u32 c = threadIdx.x % 32, inside = (u32)(item.last - tile_key);
    if (item.keys - item.first_new > 1) put_others(in, item, unit, tile_key, false);
    if (inside < TILE && c < Layout::KEY_ROWS)
        *(uint4 *)(unit + key_unit(c, inside / 8) + inside % 8 * 16) = *(const uint4 *)(desk + CURRENT_AT + 16 * c);
    __syncwarp();
}

// The same for values.
__device__ __forceinline__ void put_values(const Inputs &in, const Item &item, const u8 *desk, u8 *unit,
                                           i32 tile_key) {
    u32 inside = (u32)(item.last - tile_key);
    if (item.keys - item.first_new > 1) put_others(in, item, unit, tile_key, true);
    if (inside < TILE) put_value(unit, inside, (const KV *)(desk + CURRENT_AT + HEAD_DIM * KV_BYTES));
    __syncwarp();
}
#endif

// --- The kernel ------------------------------------------------------------------------------------------------------

extern "C" __global__ void BOUNDS attention_decode(
    const ACT *q, u32 q_token_stride, u32 q_head_stride, u8 *cache, u64 page_stride, const i32 *block_table,
    u32 table_stride, const i32 *step_rows, const i32 *starts, const i32 *seq_lens, const float *sinks, ACT *out,
    u32 out_token_stride, u32 out_head_stride, float *partials, u32 *counters, u32 S, u32 num_kv_heads, float scale,
    float softcap, u32 window, u32 query_len_end, u32 early, const Teams *teams, float *common,
    u32 common_rows
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
    Norms norms = {};
    load_norms(norms, in);
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
    float factor = (SOFTCAP ? scale : scale * LOG2E) * Query<ACT, KV>::scale;
    Sequence *sequences = (Sequence *)(shared + SHARED_BYTES);
    Work work = {sequences, S, num_kv_heads, window, nullptr};
    u32 barriers = shared_address(shared + BARRIERS_AT);
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < BARRIERS; i++) barrier_init(barriers + i * 8, 1);
        order_barriers_before_copies();
    }
    __syncthreads();
    if (!early) wait_for_previous();
    u32 *scan = (u32 *)(shared + DESKS_AT + SUMS_AT);
#if COMMON
    u16 *common_tiles = (u16 *)(sequences + S + 1);
    bool has_teams = teams && __ldcg(&teams->count) > 0;
    lay_out(sequences, scan, step_rows, starts, seq_lens, S, window, query_len_end, has_teams,
            teams ? teams->tiles(S) : nullptr, common_tiles);
    CommonSums common_sums = {common, common_rows, num_kv_heads * GROUP};
    u32 *common_counters = counters + gridDim.x;
    if (has_teams) {
        work.common = common_tiles;
        if (early) wait_for_previous();
        early = 0;
        CommonCall call = {in, sequences, teams, common_sums, common_counters, cache, page_stride, block_table,
                           table_stride, S, num_kv_heads, factor, softcap};
        read_common(shared, call);
    }
#else
    lay_out(sequences, scan, step_rows, starts, seq_lens, S, window, query_len_end, false, nullptr, nullptr);
#endif

    u8 *desk = desk_of(shared, warp);
    // Columns past the group stay zero.
    for (u32 i = lane; i < NT * HEAD_DIM && warp < WARPS; i += 32)
        *(uint4 *)(desk + i * 16) = make_uint4(0, 0, 0, 0);
    if (lane == 0 && warp < WARPS) marks_of(shared, warp) = 0;
#if ONCE
    if (warp >= WARPS) return;
#endif
    u32 total = sequences[S].before * num_kv_heads;
    u32 share = share_of(total, sequences[1].before);
    u32 begin = blockIdx.x * share, end = total - begin < share ? total : begin + share;
    bool whole = whole_items(work, total, gridDim.x * WARPS);
    if (whole ? total == 0 : begin >= total) {
        if (early) wait_for_previous();
#if COMMON
        if (work.common) leave_common(common_counters);
#endif
        return;
    }
    // This warp's part; there may be none.
    u32 each = (end - begin) / WARPS, more = (end - begin) % WARPS;
    u32 own = begin + warp * each + (warp < more ? warp : more), own_end = own + each + (warp < more);
    if (whole) {
        u32 number = blockIdx.x * WARPS + warp, warps = gridDim.x * WARPS, items = S * num_kv_heads;
        own = line_of(work, (u32)((u64)items * number / warps));
        own_end = line_of(work, (u32)((u64)items * (number + 1) / warps));
    }
    u32 first_s = sequence_at(work, own, 0), tail = own, s = first_s;
    if (!whole && own < own_end && own_end == end && place_of(work, own, first_s).line_end < end) {
        // An item that it begins and another block ends comes first.
        u32 last_s = sequence_at(work, end - 1, first_s);
        Place place = place_of(work, end - 1, last_s);
        if (place.line_end > end) tail = place.line, s = last_s;
    }

    Ring ring = {shared_address(shared) + warp * RING * UNIT_BYTES, barriers + warp * RING * 8, 0, 0};
    Fetch fetch = {};
    fetch.x = tail;
    fetch.end = own_end;
    fetch.s = s;
    look_up(fetch, work, block_table, table_stride);
    auto refill = [&]() {
        if (fetch.x >= fetch.end) return;
        bool values = ring.issued & 1;
        copy_part(ring, cache, page_stride, fetch.page, fetch.head, fetch.tile, fetch.keys, values);
        if (!values) return;
        if (++fetch.x == own_end && tail > own) fetch.x = own, fetch.end = tail, fetch.s = first_s;
        look_up(fetch, work, block_table, table_stride);
    };
    for (u32 i = 0; i < RING; i++) refill();
    let_next_start();
    Item coming = {};
    bool goes_on = own < own_end;
    if (goes_on) coming = item_at(work, tail, own_end, s);
    if (early) wait_for_previous();
    Raw raw;
    if (goes_on) raw.load(coming, in);

    while (goes_on) {
        const Item item = coming;
#if ROPE
        raw.put(desk, item, in, norms, cache, page_stride);
#else
        raw.put(desk, item);
#endif
        __syncwarp();
        u32 query[NT][DT][2];
        load_query(query, shared_address(desk));
        u32 next = item.end;
        if (next == own_end && tail > own) next = own, s = first_s;
        goes_on = next != (tail > own ? tail : own_end);
        if (goes_on) {
            while (sequences[s + 1].before * num_kv_heads <= next) s++;
            coming = item_at(work, next, own_end, s);
            raw.load(coming, in);
        }
        Softmax softmax;
        clear(softmax);
        float query_sums[NT][2] = {};
        if constexpr (CODE_BITS == 4) sum_queries(query_sums, query);
        for (u32 y = item.begin; y < item.end; y++) {
            i32 tile_key = item.tile_key + (i32)((y - item.begin) * TILE);
            i32 from = item.first - tile_key, to = item.last - tile_key;
            bool masked = from > 0 || to < TILE - 1;
            float scores[4][NT][4];
            u32 p[4][NT][2];
            u32 unit = take(ring);
#if ROPE
            bool is_current = tile_key + TILE > item.first_new;
            if (is_current) put_keys(in, item, desk, shared + (unit - shared_address(shared)), tile_key);
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
            if (is_current) put_values(in, item, desk, shared + (unit - shared_address(shared)), tile_key);
#endif
            if (masked) multiply_values<true>(softmax, p, unit, from, to);
            else multiply_values<false>(softmax, p, unit, from, to);
#if ROPE
            if (is_current && fetch.x < fetch.end) order_stores_before_copies();
#endif
            __syncwarp();
            refill();
        }
#if COMMON
        if (work.common && item.end == item.line_end && work.common[item.s] > 0)
            add_common(softmax, shared, common_sums, common_counters, S, item);
#endif
        bool begins = item.line >= begin;
        if (item.begin == item.line && item.end == item.line_end) write_sums(output, item, softmax);
        else if ((begins ? item.line : begin) == item.begin && (item.line_end < end ? item.line_end : end) == item.end)
            hand_over(output, item, share, begins, softmax);
        else leave_sums(shared, item.line < own ? 0 : 1, item, softmax);
    }

    // Items that warps have cut. Each begins before the share, or in some warp's part.
    __syncthreads();
    u32 marks = 0;
#pragma unroll
    for (u32 w = 0; w < WARPS; w++) marks |= marks_of(shared, w) << w * MARKS;
    constexpr u32 every = (1u << WARPS * MARKS) / ((1 << MARKS) - 1);
#pragma unroll 1
    for (u32 first = marks & (LEFT_BEFORE | every * LEFT_BEHIND); first; first &= first - 1) {
        u32 at = __ffs(first) - 1, place = at % MARKS > 0;
        Parts parts = {at / MARKS, place, at / MARKS};
        bool behind = place || marks & LEFT_THROUGH;
        while (behind && marks >> (parts.last + 1) * MARKS & LEFT_BEFORE) {
            parts.last++;
            behind = marks >> parts.last * MARKS & LEFT_THROUGH;
        }
        const Cut cut = cuts_of(shared, parts.first)[place];
        bool begins = cut.line >= begin, is_whole = begins && cut.line_end <= end;
        add_up(shared, parts, cut, output, is_whole ? nullptr : partial_of(output, blockIdx.x, begins));
        if (is_whole) continue;
        u32 first_block = cut.line / share, last_block = (cut.line_end - 1) / share;
        u32 *adds = (u32 *)desk_of(shared, 0); // nobody needs its query any more
        __syncthreads();
        if (threadIdx.x == 0) *adds = is_last(output, first_block, last_block);
        __syncthreads();
        if (*adds) add_blocks(output, cut.token, cut.kv_head, first_block, last_block, threadIdx.x, THREADS);
    }
#if COMMON
    if (work.common) leave_common(common_counters);
#endif
}
