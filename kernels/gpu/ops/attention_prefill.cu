// Attention of prompt chunks over the paged cache on Hopper's matrix units (sm_90a): one warp loads, the other warpgroups multiply, taking
// turns so that one's softmax runs beside another's products (Shah et al. 2024, arXiv 2407.08608).
//
// Definitions: ACT (bf16, f16: activations and cache), HEAD_DIM (64, 128), GROUP (query heads of a KV head, 1..16), BLOCK (64, 128),
// CONSUMERS (multiplying warpgroups, 2 or 3; default 2), STEP (cache blocks of a softmax step), K_STAGES and
// V_STAGES (key and value parts in flight, at least 2 · STEP), SOFTCAP (1: scores are capped),
// MAX_SEQS (most sequences of a call).
//
// Rows of a tile are (token, head of the group) pairs of one sequence and one KV head: row r of a sequence is token r / GROUP, head
// r % GROUP. ROWS = 64 · CONSUMERS rows are one tile; a block takes tiles, longest first, until none is left.
//
// Launch: 128 · (CONSUMERS + 1) threads; grid.x any number, best min(multiprocessors, (T · GROUP / ROWS + S) · num_kv_heads);
// dynamic shared memory: ROWS · (2 · HEAD_DIM + 16) + (K_STAGES + V_STAGES) · 2 · BLOCK · HEAD_DIM + 12 · MAX_SEQS + 512 bytes.
// Needs q aligned to 16 bytes, its strides multiples of 8 elements, out's likewise; scale > 0.
// check: -DACT=bf16 -DHEAD_DIM=128 -DGROUP=4 -DBLOCK=64 -DCONSUMERS=2 -DSOFTCAP=0 -DMAX_SEQS=512
// check: -DACT=f16 -DHEAD_DIM=64 -DGROUP=3 -DBLOCK=64 -DCONSUMERS=3 -DSOFTCAP=1 -DMAX_SEQS=64
#include "common.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "hopper.cuh"

#ifndef CONSUMERS
#define CONSUMERS 2
#endif
#ifndef K_STAGES
#define K_STAGES (HEAD_DIM == 128 ? 5 : 8)
#define V_STAGES (HEAD_DIM == 128 ? 6 : 8)
#endif
#ifndef STEP
#define STEP (HEAD_DIM == 128 ? 2 : 1)
#endif
#ifndef SOFTCAP
#define SOFTCAP 0
#endif
#ifndef MAX_SEQS
#define MAX_SEQS 512
#endif

#define ROWS (64 * CONSUMERS)
#define THREADS (128 * (CONSUMERS + 1))
#define TURN 1 // named barriers TURN + w: warpgroup w may start products
#include "prefill.cuh"

struct Shared {
    Barrier tile_full, q_full;
    Barrier q_empty; // multipliers hold their queries, loaders know the tile
    Barrier k_full[K_STAGES], k_empty[K_STAGES], v_full[V_STAGES], v_empty[V_STAGES];
    Tile tiles[2]; // of even and odd count
    int table_rows[2];
    int counts[2];
};

// Walks a ring of key or value parts; the phase flips each time round.
template <int STAGES> struct Cursor {
    int stage;
    u32 phase;
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
};

__device__ __forceinline__ void load_async(u32 to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// The dealing warp: finds the next tile when the present one begins, and loads its queries. The first two tiles of each block are dealt
// there and back, which balances a descending list; the others by a counter where there is one.
__device__ __forceinline__ void deal(const Params &p, Shared &shared, const u8 *queries, const Plan &plan, int lane) {
    int items = plan.counts[1] * p.num_kv_heads, blocks = gridDim.x, item = blockIdx.x;
    u32 q_address = shared_address(queries);
    for (int n = 0;; n++) {
        if (n > 1 && p.counter) {
            int taken = 0;
            if (lane == 0) {
                taken = (int)atomicAdd(p.counter, 1u);
                // Each block that got a second tile takes until it fails: the last take of all leaves the counter as it was found.
                if (taken == items - blocks - 1) *p.counter = 0;
            }
            item = 2 * blocks + __shfl_sync(0xffffffffu, taken, 0);
        } else if (n > 0) {
            item = n * blocks + (n & 1 ? blocks - 1 - (int)blockIdx.x : (int)blockIdx.x);
        }
        bool more = item < items;
        Tile tile;
        tile.rows = 0;
        int table_row = 0;
        if (more) tile = find_tile(p, plan, item, table_row);
        if (lane == 0) {
            shared.tiles[n & 1] = tile;
            shared.table_rows[n & 1] = table_row;
            barrier_arrive(shared.tile_full);
        }
        if (!more) return;
        const int CHUNKS = HEAD_DIM / 8; // of 16 bytes in a row
        int c = lane % CHUNKS;
#pragma unroll 4
        for (int r = lane / CHUNKS; r < ROWS; r += 32 / CHUNKS) {
            int row = min(tile.first_row + r, tile.rows - 1);
            const ACT *from = p.q + (tile.first_token + row / GROUP) * p.q_token_stride + (tile.kv_head * GROUP + row % GROUP) * p.q_head_stride;
            load_async(q_address + r * Q_PITCH + c * 16, from + 8 * c);
        }
        asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&shared.q_full)) : "memory");
        // When all have begun with this tile, its queries are out of the buffer and the tile before it is over: the next is dealt.
        barrier_wait(shared.q_empty, n & 1);
    }
}

// A loading warp: the key parts (or the value parts) of a tile's cache blocks, from the last block to the first.
template <int STAGES>
__device__ __forceinline__ void load(const Params &p, Shared &shared, Barrier (&full)[STAGES], Barrier (&empty)[STAGES], u8 *ring, u32 part, int lane) {
    Cursor<STAGES> cursor = {0, 1};
    u32 parity = 0;
    while (true) {
        barrier_wait(shared.tile_full, parity);
        Tile tile = shared.tiles[parity];
        if (tile.rows == 0) return;
        const i32 *table = p.block_table + shared.table_rows[parity] * p.table_stride;
        const u8 *cache = p.cache + (2 * tile.kv_head + part) * PART_BYTES;
        parity ^= 1;
        __syncwarp();
        if (lane == 0) barrier_arrive(shared.q_empty);
        int pages = 0;
#pragma unroll 1
        for (int b = tile.last_block, i = 0; b >= tile.first_block; b--, i++) {
            if (i % 32 == 0) pages = b - lane >= tile.first_block ? table[b - lane] : 0;
            int page = __shfl_sync(0xffffffffu, pages, i % 32);
            barrier_wait(empty[cursor.stage], cursor.phase);
            if (lane == 0) {
                barrier_arrive_expect(full[cursor.stage], PART_BYTES);
                bulk_load(ring + cursor.stage * PART_BYTES, cache + page * p.block_bytes, PART_BYTES, full[cursor.stage]);
            }
            cursor.advance();
        }
    }
}

// Scores of 64 rows against BLOCK keys: tile i of 8 keys is s[4i ..]. `keys` describes the first 16 dimensions of the block's keys.
__device__ __forceinline__ void start_scores(float (&s)[BLOCK / 2], const u32 (&q)[HEAD_DIM / 4], u64 keys) {
#pragma unroll
    for (int k = 0; k < HEAD_DIM / 16; k++)
        Wgmma<ACT, BLOCK>::run(s, q[4 * k], q[4 * k + 1], q[4 * k + 2], q[4 * k + 3], keys + k * (BLOCK * 32 / 16), k > 0);
}
// Adds the weighted values. `values` describes the block's first 16 tokens.
__device__ __forceinline__ void start_output(float (&o)[HEAD_DIM / 2], const u32 (&weights)[BLOCK / 4], u64 values) {
#pragma unroll
    for (int k = 0; k < BLOCK / 16; k++)
        Wgmma<ACT, HEAD_DIM>::run(o, weights[4 * k], weights[4 * k + 1], weights[4 * k + 2], weights[4 * k + 3], values + k * (HEAD_DIM * 32 / 16), 1);
}

// Scores of a step, masked and capped, become weights.
struct Mask {
    int position[2];
    int clear, seen; // blocks that end by `clear` and begin from `seen` on need no mask
};
__device__ __forceinline__ void finish_scores(const Params &p, float (&s)[BLOCK / 2], const Mask &m, int block, int lane) {
    if (SOFTCAP) cap(s, p.scale, p.softcap);
    if ((block + 1) * BLOCK > m.clear || block * BLOCK < m.seen) mask(s, m.position, block * BLOCK, p.window, lane);
}

// Waits for the value parts of a step of `count` blocks; the first stands in for what is not there.
__device__ __forceinline__ void take_values(Shared &shared, Cursor<V_STAGES> &cursor, int (&stages)[STEP], int count) {
#pragma unroll
    for (int i = 0; i < STEP; i++) {
        stages[i] = i < count ? cursor.stage : stages[0];
        if (i < count) {
            barrier_wait(shared.v_full[cursor.stage], cursor.phase);
            cursor.advance();
        }
    }
}

// A multiplying warpgroup: 64 rows of every tile.
__device__ __forceinline__ void multiply(const Params &p, Shared &shared, const u8 *queries, const u8 *ring, int group, int thread) {
    int warp = thread / 32, lane = thread & 31, next_group = group + 1 == CONSUMERS ? 0 : group + 1;
    Cursor<K_STAGES> k_cursor = {0, 0};
    Cursor<V_STAGES> v_cursor = {0, 0};
    u32 parity = 0;
    float scale_log2 = SOFTCAP ? LOG2E : p.scale * LOG2E;
    // Operands in the first stages; a stage is `STAGE` further.
    u64 keys = wgmma_operand(shared_address(ring), BLOCK * 16, 128);
    u64 values = wgmma_operand(shared_address(ring) + K_STAGES * PART_BYTES, HEAD_DIM * 16, 128);
    const u64 STAGE = PART_BYTES / 16;
    // Row and half of a row that this lane addresses for ldmatrix: its four 8×8 pieces are those of the left operand.
    u32 q_address = shared_address(queries) + (64 * group + 16 * warp + (lane & 15)) * Q_PITCH + (lane >> 4) * 16;
    if (group == CONSUMERS - 1) named_signal(TURN, 256);
    while (true) {
        barrier_wait(shared.tile_full, parity);
        Tile tile = shared.tiles[parity];
        if (tile.rows == 0) return;
        barrier_wait(shared.q_full, parity);
        parity ^= 1;
        u32 q[HEAD_DIM / 4];
#pragma unroll
        for (int k = 0; k < HEAD_DIM / 16; k++)
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(q[4 * k]), "=r"(q[4 * k + 1]), "=r"(q[4 * k + 2]), "=r"(q[4 * k + 3])
                         : "r"(q_address + k * 32)
                         : "memory");
        __syncwarp();
        if (lane == 0) barrier_arrive(shared.q_empty);

        int first_row = tile.first_row + 64 * group, last = tile.rows - 1;
        Mask m;
#pragma unroll
        for (int half = 0; half < 2; half++) m.position[half] = tile.prefix + min(first_row + 16 * warp + lane / 4 + 8 * half, last) / GROUP;
        m.clear = tile.prefix + min(first_row, last) / GROUP + 1;
        m.seen = p.window > 0 ? tile.prefix + min(first_row + 63, last) / GROUP - p.window + 1 : 0;

        float o[HEAD_DIM / 2], s[STEP][BLOCK / 2], maximum[2] = {-INFINITY_F, -INFINITY_F}, sum[2] = {0.f, 0.f}, rescale[2];
        u32 weights[STEP][BLOCK / 4];
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) o[i] = 0.f;

        // The first step takes what the others, of STEP blocks each, leave.
        int block = tile.last_block, count = (block - tile.first_block) % STEP + 1, stages[STEP];
#pragma unroll
        for (int i = 0; i < STEP; i++) {
            // A block that is not there is stood in for by the first, with weights of 0: a branch would hold the products up.
            stages[i] = i < count ? k_cursor.stage : stages[0];
            if (i < count) {
                barrier_wait(shared.k_full[k_cursor.stage], k_cursor.phase);
                k_cursor.advance();
            }
        }
        named_wait(TURN + group, 256);
        pin(q);
#pragma unroll
        for (int i = 0; i < STEP; i++) pin(s[i]);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < STEP; i++) start_scores(s[i], q, keys + stages[i] * STAGE);
        wgmma_commit();
        named_signal(TURN + next_group, 256);
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < STEP; i++) {
            pin(s[i]);
            if (i < count) {
                if (lane == 0) barrier_arrive(shared.k_empty[stages[i]]);
                finish_scores(p, s[i], m, block - i, lane);
            } else {
#pragma unroll
                for (int j = 0; j < BLOCK / 2; j++) s[i][j] = -INFINITY_F;
            }
        }
        softmax(s, maximum, rescale, scale_log2);
        add_weights(s, sum, rescale);
#pragma unroll
        for (int i = 0; i < STEP; i++) to_weights(weights[i], s[i]);

        for (block -= count; block >= tile.first_block; block -= STEP) {
#pragma unroll
            for (int i = 0; i < STEP; i++) {
                barrier_wait(shared.k_full[k_cursor.stage], k_cursor.phase);
                stages[i] = k_cursor.stage;
                k_cursor.advance();
            }
            int v_stages[STEP];
            take_values(shared, v_cursor, v_stages, count);
            named_wait(TURN + group, 256);
#pragma unroll
            for (int i = 0; i < STEP; i++) {
                pin(s[i]);
                pin(weights[i]);
            }
            pin(o);
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < STEP; i++) start_scores(s[i], q, keys + stages[i] * STAGE);
            wgmma_commit();
#pragma unroll
            for (int i = 0; i < STEP; i++) start_output(o, weights[i], values + v_stages[i] * STAGE);
            wgmma_commit();
            named_signal(TURN + next_group, 256);
            wgmma_wait<1>();
#pragma unroll
            for (int i = 0; i < STEP; i++) {
                pin(s[i]);
                if (lane == 0) barrier_arrive(shared.k_empty[stages[i]]);
                finish_scores(p, s[i], m, block - i, lane);
            }
            softmax(s, maximum, rescale, scale_log2);
#pragma unroll
            for (int i = 0; i < STEP; i++) pin(s[i]);
            // The branch stands between softmax and wait on purpose: within one straight piece of code the compiler waits first.
            if (__any_sync(0xffffffffu, rescale[0] != 1.f || rescale[1] != 1.f)) {
                wgmma_wait<0>();
                pin(o);
#pragma unroll
                for (int i = 0; i < HEAD_DIM / 2; i++) o[i] *= rescale[i / 2 % 2];
            } else {
                asm volatile("wgmma.wait_group.sync.aligned 0; // kept apart" ::: "memory");
                pin(o);
            }
            add_weights(s, sum, rescale);
#pragma unroll
            for (int i = 0; i < STEP; i++) {
                pin(weights[i]);
                if (lane == 0 && i < count) barrier_arrive(shared.v_empty[v_stages[i]]);
                to_weights(weights[i], s[i]);
            }
            count = STEP;
        }
        take_values(shared, v_cursor, stages, count);
        pin(o);
#pragma unroll
        for (int i = 0; i < STEP; i++) pin(weights[i]);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < STEP; i++) start_output(o, weights[i], values + stages[i] * STAGE);
        wgmma_commit();
        wgmma_wait<0>();
        pin(o);
#pragma unroll
        for (int i = 0; i < STEP; i++)
            if (lane == 0 && i < count) barrier_arrive(shared.v_empty[stages[i]]);
        store(p, tile, o, maximum, sum, first_row + 16 * warp, scale_log2, lane);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_prefill(const ACT *q, i64 q_token_stride, i64 q_head_stride, const u8 *cache, u64 block_bytes, const i32 *block_table, i64 table_stride,
                      const i32 *step_rows, const i32 *query_start_loc, const i32 *seq_lens, const float *sinks, ACT *out, i64 out_token_stride,
                      i64 out_head_stride, u32 *counter, int num_seqs, int num_kv_heads, float scale, float softcap, int window, int min_query_len) {
    extern __shared__ __align__(128) u8 memory[];
    u8 *ring = memory, *queries = ring + (K_STAGES + V_STAGES) * PART_BYTES;
    Shared &shared = *(Shared *)(queries + ROWS * Q_PITCH);
    static_assert(sizeof(Shared) <= 512, "the launch's shared memory");
    int *lists = (int *)((u8 *)&shared + 512);
    Plan plan = {lists, lists + MAX_SEQS, lists + 2 * MAX_SEQS, shared.counts};
    Params p = {q,        q_token_stride, q_head_stride, cache,           block_bytes, block_table,  table_stride, step_rows, query_start_loc, seq_lens, sinks, out, out_token_stride,
                out_head_stride, counter, num_seqs, num_kv_heads, scale, softcap, window, min_query_len};
    if (threadIdx.x == 0) {
        barrier_init(shared.tile_full, 1);
        barrier_init(shared.q_full, 32);
        barrier_init(shared.q_empty, 4 * CONSUMERS + 2);
        for (int i = 0; i < K_STAGES; i++) {
            barrier_init(shared.k_full[i], 1);
            barrier_init(shared.k_empty[i], 4 * CONSUMERS);
        }
        for (int i = 0; i < V_STAGES; i++) {
            barrier_init(shared.v_full[i], 1);
            barrier_init(shared.v_empty[i], 4 * CONSUMERS);
        }
        barrier_init_done();
    }
    __syncthreads();
    wait_for_previous();
    int warpgroup = threadIdx.x / 128;
    // What one hands over the others take: the sum stays within the registers the launch got (128 · 504 of 2, 128 · 512 of 3 consumers).
    if (warpgroup == 0) {
        give_registers<CONSUMERS == 2 ? 40 : 56>();
        make_plan(p, plan, threadIdx.x);
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (warp == 0) {
            deal(p, shared, queries, plan, lane);
            let_next_start();
        } else if (warp == 1) {
            load(p, shared, shared.k_full, shared.k_empty, ring, 0, lane);
        } else if (warp == 2) {
            load(p, shared, shared.v_full, shared.v_empty, ring + K_STAGES * PART_BYTES, 1, lane);
        }
    } else {
        take_registers<CONSUMERS == 2 ? 232 : 152>();
        multiply(p, shared, queries, ring, warpgroup - 1, threadIdx.x % 128);
    }
}

#endif
