// Keys that sequences of a batch have in common, read once for all of them. find_common.cu says which those are.
//
// A team is up to TEAM sequences of one token each. A task is a part of a team's common tiles, of one KV head. All
// warps of a block bring the tiles of a task together, once, and each multiplies them with the queries of its own
// members. Sums go to scratch, for each query head of each member. A member's own items begin behind the common tiles,
// and the warp that has the last tile of one adds those sums.
//
// Blocks take tasks by number before their own items, and wait for each other's tasks when they need them. So whoever
// waits, waits for blocks that run.
//
// Wants the definitions of attention_decode.cu and decode_items.cuh.
#pragma once
#include "teams.cuh"

#define COMMON_COLUMNS 2                     // of 8 query heads, a warp
#define MEMBERS (8 * COMMON_COLUMNS / GROUP) // of a team, a warp
#define TEAM (WARPS * MEMBERS)
#define MOST_PARTS 16                        // of a team's tiles
#define COMMON_RING (WARPS * RING / 2 * 2)   // buffers of a block
static_assert(TEAM > 1 && GROUP <= 8 * COMMON_COLUMNS, "a team has members");
static_assert(COMMON_COLUMNS * HEAD_DIM * 16 <= DESK_BYTES, "a desk holds the queries of a warp's members");

// Words of shared memory (WORDS_AT): the task that is taken; parts of a team's tiles; tasks.
#define TASK 0
#define ALL_PARTS 1
#define ALL_TASKS 2

// Sums of members over common keys, in scratch: [parts][S][query heads][HEAD_DIM], then highest and total [2] of each
// head. `rows`: most of parts * S.
struct CommonSums {
    float *sums;
    u32 rows, num_heads;

    __device__ __forceinline__ float2 *stats() const { return (float2 *)(sums + (u64)rows * num_heads * HEAD_DIM); }
};
// Of counters, those behind the blocks': tasks taken, tasks done, blocks that have ended.
#define TAKEN 0
#define DONE 1
#define ENDED 2

// A warp's members: of each the sequence, its first token, its keys, held by lane `member`.
struct Members {
    u32 count, s, token, keys;
};

// Brings the queries of a warp's members, with norm and rotation in the fused form, as its product takes them.
__device__ __forceinline__ void load_members(u32 (&query)[COMMON_COLUMNS][DT][2], u8 *desk, const Members &members,
                                             u32 kv_head, const Inputs &in) {
    constexpr u32 at_once = 32 / LANES, passes = 8 * COMMON_COLUMNS / at_once;
    u32 lane = threadIdx.x % 32, c = lane % LANES;
    bool there = 8 * c < HEAD_DIM;
#if ROPE
    Norms norms = {};
    load_norms(norms, in);
    // As in Raw, angles are loaded for the place of a token's key before its position is known.
    u32 position = lane < members.count ? (u32)in.positions[members.token] : 0;
    u32 expected = members.keys - 1 < in.table_rows ? members.keys - 1 : in.table_rows - 1;
#endif
#pragma unroll
    for (u32 pass = 0; pass < passes; pass++) {
        u32 column = pass * at_once + lane / LANES, member = column / GROUP, head = kv_head * GROUP + column % GROUP;
        bool used = member < members.count;
        u32 of = used ? member : 0, token = __shfl_sync(0xffffffffu, members.token, of);
        const ACT *from = in.q + (u64)token * in.q_token_stride + (u64)head * in.q_head_stride;
        uint4 words = make_uint4(0, 0, 0, 0);
        if (there && used) words = *(const uint4 *)(from + 8 * c);
#if ROPE
        u32 place = __shfl_sync(0xffffffffu, expected, of);
        Angles turn;
        load_angles(turn, in, place);
        u32 real = __shfl_sync(0xffffffffu, position, of);
        if (real != place) load_angles(turn, in, real);
        words = turned(words, norms, turn, false, in);
#endif
        if constexpr (CODE_BITS == 4) words = turned_query<ACT, HEAD_DIM>(words, c);
        words = factors(words);
        if (!used) words = make_uint4(0, 0, 0, 0);
        if (there) *(uint4 *)(desk + ((column / 8 * (HEAD_DIM / 8) + c) * 8 + column % 8) * 16) = words;
    }
    __syncwarp();
    load_query(query, shared_address(desk));
    __syncwarp();
}

// Entries of a team's block table as lanes of a warp hold them: 32 from `first` on.
struct Entries {
    const i32 *pages;
    u32 first, count;
    i32 own;

    __device__ __forceinline__ void hold(u32 from) {
        u32 lane = threadIdx.x % 32;
        first = from;
        own = first + lane < count ? __ldcg(pages + first + lane) : -1;
    }
    // All lanes ask for the same one.
    __device__ __forceinline__ i32 at(u32 entry) {
        if (entry - first >= 32) hold(entry);
        return __shfl_sync(0xffffffffu, own, entry - first);
    }
};

// Waits for the oldest unit that the first warp has asked for. All threads.
__device__ __forceinline__ u32 take_together(Ring &ring) {
#if __CUDA_ARCH__ >= 900
    return take<COMMON_RING>(ring);
#else
    // Others see what the first warp has waited for behind a barrier.
    u32 unit = ring.buffers + ring.taken % COMMON_RING * UNIT_BYTES;
    if (threadIdx.x < 32) take<COMMON_RING>(ring);
    else ring.taken++;
    __syncthreads();
    return unit;
#endif
}

// Puts the sums of a warp's members into scratch; `row`: of the first sequence there.
__device__ __forceinline__ void put_members(SoftmaxOf<COMMON_COLUMNS> &softmax, const CommonSums &to, u64 row,
                                            const Members &members, u32 kv_head) {
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane & 3;
    add_totals(softmax);
#pragma unroll
    for (int n = 0; n < COMMON_COLUMNS; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            u32 column = 8 * n + 2 * t + c, member = column / GROUP;
            u32 s = __shfl_sync(0xffffffffu, members.s, member < members.count ? member : 0);
            if (member >= members.count) continue;
            u64 head = (row + s) * to.num_heads + kv_head * GROUP + column % GROUP;
            if (g == 0) __stcg(to.stats() + head, make_float2(softmax.highest[n][c], softmax.total[n][c]));
            float *sums = to.sums + head * HEAD_DIM + g;
#pragma unroll
            for (int d = 0; d < DT; d++) {
                __stcg(sums + 16 * d, softmax.sum[d][n][c]);
                __stcg(sums + 16 * d + 8, softmax.sum[d][n][2 + c]);
            }
        }
}

// What reading common keys takes.
struct CommonCall {
    Inputs in;
    const Sequence *sequences;
    const Teams *teams;
    CommonSums to;
    u32 *counters;
    const u8 *cache;
    u64 page_stride;
    const i32 *block_table;
    u32 table_stride, S, num_kv_heads;
    float factor, softcap;
};

// Reads the common keys of a batch that has teams: does tasks until all are taken. All threads; desks and rings are
// free before and after. A function of its own, so that other batches have the registers.
__device__ __noinline__ void read_common(u8 *shared, const CommonCall &call) {
    volatile u32 *words = (volatile u32 *)(shared + WORDS_AT);
    u32 next = 0;
    if (threadIdx.x == 0) {
        next = atomicAdd(call.counters + TAKEN, 1u);
        // As many tasks as blocks, if there is enough to share out.
        u32 items = call.teams->count * call.num_kv_heads, parts = gridDim.x / items;
        parts = min(min(parts, (u32)MOST_PARTS), min(call.teams->most_tiles / LEAST_COMMON, call.to.rows / call.S));
        parts = max(parts, 1u);
        words[ALL_PARTS] = parts;
        words[ALL_TASKS] = items * parts;
    }
    u32 warp = threadIdx.x / 32;
    u32 barriers = shared_address(shared + BARRIERS_AT) + WARPS * RING * 8;
    u8 *desk = desk_of(shared, warp);
    Ring ring = {shared_address(shared), barriers, 0, 0};
    while (true) {
        if (threadIdx.x == 0) words[TASK] = next;
        __syncthreads();
        u32 task = words[TASK], parts = words[ALL_PARTS];
        if (task >= words[ALL_TASKS]) break;
        u32 part = task % parts, kv_head = task / parts % call.num_kv_heads;
        const Team team = call.teams->list()[task / parts / call.num_kv_heads];
        u32 tile = team.tiles * part / parts, end = team.tiles * (part + 1) / parts;
        const u16 *order = call.teams->order(call.S) + team.first;
        Sequence first = call.sequences[order[0]];
        Entries entries = {call.block_table + (u64)(u32)first.row * call.table_stride, 0,
                           (u32)(first.keys + BLOCK - 1) / BLOCK, -1};
        auto ask = [&](u32 tile) {
            i32 page[PIECES];
#pragma unroll
            for (u32 i = 0; i < PIECES; i++) page[i] = entries.at((tile * TILE + i * PIECE_TOKENS) / BLOCK);
            i32 keys = (i32)((tile + 1) * TILE); // all of the tile counts
            copy_part<COMMON_RING>(ring, call.cache, call.page_stride, page, kv_head, tile, keys, false);
            copy_part<COMMON_RING>(ring, call.cache, call.page_stride, page, kv_head, tile, keys, true);
        };
        if (warp == 0) {
            entries.hold(tile * TILE / BLOCK);
            for (u32 i = tile; i < end && i < tile + COMMON_RING / 2; i++) ask(i);
        }
        u32 before = warp * MEMBERS, all = team.others + 1, lane = threadIdx.x % 32;
        Members members = {all > before ? min(all - before, (u32)MEMBERS) : 0, 0, 0, 1};
        if (lane < members.count) {
            members.s = order[before + lane];
            members.token = (u32)call.sequences[members.s].start;
            members.keys = (u32)call.sequences[members.s].keys;
        }
        u32 query[COMMON_COLUMNS][DT][2];
        float query_sums[COMMON_COLUMNS][2] = {};
        if (members.count > 0) {
            load_members(query, desk, members, kv_head, call.in);
            if constexpr (CODE_BITS == 4) sum_queries(query_sums, query);
        }
        SoftmaxOf<COMMON_COLUMNS> softmax;
        clear(softmax);
        bool asked = false;
        for (; tile < end; tile++) {
            float scores[4][COMMON_COLUMNS][4];
            u32 p[4][COMMON_COLUMNS][2];
            u32 keys = take_together(ring);
            if (members.count > 0) {
                multiply_keys(scores, query, keys, query_sums);
                weigh<false>(softmax, p, scores, call.factor, call.softcap, 0, TILE - 1);
            }
            u32 values = take_together(ring);
            if (members.count > 0) multiply_values<false>(softmax, p, values, 0, TILE - 1);
            __syncthreads();
            if (warp == 0 && tile + COMMON_RING / 2 < end) ask(tile + COMMON_RING / 2);
            // Not sooner: the first tasks are for as many blocks.
            if (threadIdx.x == 0 && tile + 2 >= end && !asked) {
                next = atomicAdd(call.counters + TAKEN, 1u);
                asked = true;
            }
        }
        if (members.count > 0) put_members(softmax, call.to, (u64)part * call.S, members, kv_head);
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            atomicAdd(call.counters + DONE, 1u);
            if (!asked) next = atomicAdd(call.counters + TAKEN, 1u);
        }
    }
    __syncthreads();
}

// Adds what the tasks have left of an item to a warp's sums.
__device__ __forceinline__ void add_common(Softmax &softmax, const u8 *shared, const CommonSums &from,
                                           const u32 *counters, u32 S, const Item &item) {
    const u32 *words = (const u32 *)(shared + WORDS_AT);
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane & 3, tasks = words[ALL_TASKS], done = 0;
    while (done < tasks)
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(done) : "l"(counters + DONE) : "memory");
    u64 row = (u64)item.s * from.num_heads + item.kv_head * GROUP;
#pragma unroll 2
    for (u32 part = 0; part < words[ALL_PARTS]; part++, row += (u64)S * from.num_heads) {
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                u32 column = 8 * n + 2 * t + c;
                u64 head = row + (column < GROUP ? column : 0);
                float2 stats = __ldcg(from.stats() + head);
                const float *sums = from.sums + head * HEAD_DIM + g;
                // A part without tiles has left no sums.
                float above = fmaxf(softmax.highest[n][c], stats.x), weight = exp2_fast(stats.x - above);
                float kept = exp2_fast(softmax.highest[n][c] - above);
                bool counts = stats.x != -INFINITY_F;
                if (!counts) kept = 1.f, above = softmax.highest[n][c];
                softmax.highest[n][c] = above;
                // Lanes of a column add their totals up later.
                softmax.total[n][c] = softmax.total[n][c] * kept + (counts && g == 0 ? weight * stats.y : 0.f);
#pragma unroll
                for (int d = 0; d < DT; d++) {
                    float low = __ldcg(sums + 16 * d), high = __ldcg(sums + 16 * d + 8);
                    softmax.sum[d][n][c] = softmax.sum[d][n][c] * kept + (counts ? weight * low : 0.f);
                    softmax.sum[d][n][2 + c] = softmax.sum[d][n][2 + c] * kept + (counts ? weight * high : 0.f);
                }
            }
    }
}

// Leaves the counters zero for the next launch, by the last block that ends. All threads.
__device__ __forceinline__ void leave_common(u32 *counters) {
    __syncthreads();
    if (threadIdx.x > 0 || atomicInc(counters + ENDED, gridDim.x - 1) < gridDim.x - 1) return;
    counters[TAKEN] = 0;
    counters[DONE] = 0;
}
