// Attention of prompt chunks over the paged cache on Hopper's matrix units (sm_90a): one warp loads, the other warpgroups multiply, taking
// turns so that one's softmax runs beside another's products (Shah et al. 2024, arXiv 2407.08608).
//
// Definitions: ACT (bf16, f16: activations and cache), HEAD_DIM (64, 128), GROUP (query heads of a KV head, 1..16), BLOCK (64, 128),
// CONSUMERS (multiplying warpgroups, 2 or 3; default 2), STAGES (cache blocks in flight, >= 3), SOFTCAP (1: scores are capped),
// MAX_SEQS (most sequences of a call).
//
// Rows of a tile are (token, head of the group) pairs of one sequence and one KV head: row r of a sequence is token r / GROUP, head
// r % GROUP. ROWS = 64 · CONSUMERS rows are one tile; a block takes tiles, longest first, until none is left.
//
// Launch: 128 · (CONSUMERS + 1) threads; grid.x any number, best min(multiprocessors, (T · GROUP / ROWS + S) · num_kv_heads);
// dynamic shared memory: ROWS · (2 · HEAD_DIM + 16) + STAGES · 4 · BLOCK · HEAD_DIM + 12 · MAX_SEQS + 512 bytes.
// Needs q aligned to 16 bytes, its strides multiples of 8 elements, out's likewise; scale > 0.
// check: -DACT=bf16 -DHEAD_DIM=128 -DGROUP=4 -DBLOCK=64 -DCONSUMERS=2 -DSOFTCAP=0 -DMAX_SEQS=512
// check: -DACT=f16 -DHEAD_DIM=64 -DGROUP=3 -DBLOCK=64 -DCONSUMERS=3 -DSOFTCAP=1 -DMAX_SEQS=64
#include "common.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "hopper.cuh"

#ifndef CONSUMERS
#define CONSUMERS 2
#endif
#ifndef STAGES
#define STAGES (HEAD_DIM == 128 ? 5 : 6)
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
    Barrier q_full, q_empty, full[STAGES], empty[STAGES];
    Tile tile;
    int counts[2];
};

// The loading warp: queries of a tile, then its cache blocks from the last to the first.
__device__ __forceinline__ void load(const Params &p, Shared &shared, u8 *queries, u8 *ring, const Plan &plan, int lane) {
    int items = plan.counts[1] * p.num_kv_heads, item = blockIdx.x, stage = 0;
    u32 phase = 1, q_phase = 1;
    u64 head_bytes = 2 * PART_BYTES;
    while (true) {
        barrier_wait(shared.q_empty, q_phase);
        q_phase ^= 1;
        if (item >= items) {
            if (lane == 0) {
                shared.tile.rows = 0;
                barrier_arrive(shared.q_full);
            }
            return;
        }
        int next = item + (int)gridDim.x;
        if (p.counter) {
            // Each tile causes one take: the last of them leaves the counter as it was found.
            if (lane == 0) {
                int taken = (int)atomicAdd(p.counter, 1u);
                next = (int)gridDim.x + taken;
                if (taken == items - 1) *p.counter = 0;
            }
            next = __shfl_sync(0xffffffffu, next, 0);
        }
        int table_row;
        Tile tile = find_tile(p, plan, item, table_row);
        int rows = min(ROWS, tile.rows - tile.first_row);
        if (lane == 0) {
            shared.tile = tile;
            barrier_arrive_expect(shared.q_full, rows * 2 * HEAD_DIM);
        }
        __syncwarp();
#pragma unroll 1
        for (int r = lane; r < rows; r += 32) {
            int row = tile.first_row + r;
            const ACT *from = p.q + (tile.first_token + row / GROUP) * p.q_token_stride + (tile.kv_head * GROUP + row % GROUP) * p.q_head_stride;
            bulk_load(queries + r * Q_PITCH, from, 2 * HEAD_DIM, shared.q_full);
        }
        const i32 *table = p.block_table + table_row * p.table_stride;
        int pages = 0;
#pragma unroll 1
        for (int b = tile.last_block, i = 0; b >= tile.first_block; b--, i++) {
            if (i % 32 == 0) pages = b - lane >= tile.first_block ? table[b - lane] : 0;
            int page = __shfl_sync(0xffffffffu, pages, i % 32);
            barrier_wait(shared.empty[stage], phase);
            if (lane == 0) {
                barrier_arrive_expect(shared.full[stage], 2 * PART_BYTES);
                bulk_load(ring + stage * 2 * PART_BYTES, p.cache + page * p.block_bytes + tile.kv_head * head_bytes, 2 * PART_BYTES, shared.full[stage]);
            }
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
        }
        item = next;
    }
}

// Scores of 64 rows against BLOCK keys: tile i of 8 keys is s[4i ..]. `keys` describes the first 16 dimensions of the block's keys.
__device__ __forceinline__ void start_scores(float (&s)[BLOCK / 2], const u32 (&q)[HEAD_DIM / 4], u64 keys) {
#pragma unroll
    for (int k = 0; k < HEAD_DIM / 16; k++)
        Wgmma<ACT, BLOCK>::run(s, q[4 * k], q[4 * k + 1], q[4 * k + 2], q[4 * k + 3], keys + k * (BLOCK * 32 / 16), k > 0);
    wgmma_commit();
}
// Adds the weighted values. `values` describes the block's first 16 tokens.
__device__ __forceinline__ void start_output(float (&o)[HEAD_DIM / 2], const u32 (&weights)[BLOCK / 4], u64 values) {
#pragma unroll
    for (int k = 0; k < BLOCK / 16; k++)
        Wgmma<ACT, HEAD_DIM>::run(o, weights[4 * k], weights[4 * k + 1], weights[4 * k + 2], weights[4 * k + 3], values + k * (HEAD_DIM * 32 / 16), 1);
    wgmma_commit();
}

// A multiplying warpgroup: 64 rows of every tile.
__device__ __forceinline__ void multiply(const Params &p, Shared &shared, const u8 *queries, const u8 *ring, int group, int thread) {
    int warp = thread / 32, lane = thread & 31, stage = 0, next_group = group + 1 == CONSUMERS ? 0 : group + 1;
    u32 phase = 0, q_phase = 0;
    float scale_log2 = SOFTCAP ? LOG2E : p.scale * LOG2E;
    // Operands in the first stage; a stage is `STAGE` further.
    u64 keys = wgmma_operand(shared_address(ring), BLOCK * 16, 128), values = wgmma_operand(shared_address(ring) + PART_BYTES, HEAD_DIM * 16, 128);
    const u64 STAGE = 2 * PART_BYTES / 16;
    // Row and half of a row that this lane addresses for ldmatrix: its four 8×8 pieces are those of the left operand.
    u32 q_address = shared_address(queries) + (64 * group + 16 * warp + (lane & 15)) * Q_PITCH + (lane >> 4) * 16;
    if (group == CONSUMERS - 1) named_signal(TURN, 256);
    while (true) {
        barrier_wait(shared.q_full, q_phase);
        q_phase ^= 1;
        Tile tile = shared.tile;
        if (tile.rows == 0) return;
        u32 q[HEAD_DIM / 4];
#pragma unroll
        for (int k = 0; k < HEAD_DIM / 16; k++)
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(q[4 * k]), "=r"(q[4 * k + 1]), "=r"(q[4 * k + 2]), "=r"(q[4 * k + 3])
                         : "r"(q_address + k * 32)
                         : "memory");
        __syncwarp();
        if (lane == 0) barrier_arrive(shared.q_empty);

        int first_row = tile.first_row + 64 * group + 16 * warp, position[2];
#pragma unroll
        for (int half = 0; half < 2; half++) position[half] = tile.prefix + min(first_row + lane / 4 + 8 * half, tile.rows - 1) / GROUP;
        // Of the warpgroup's rows: no block that ends before `clear` crosses the diagonal, none from `seen` on the window's edge.
        int clear = tile.prefix + min(tile.first_row + 64 * group, tile.rows - 1) / GROUP + 1;
        int seen = p.window > 0 ? tile.prefix + min(tile.first_row + 64 * group + 63, tile.rows - 1) / GROUP - p.window + 1 : 0;

        float o[HEAD_DIM / 2], s[BLOCK / 2], maximum[2] = {-INFINITY_F, -INFINITY_F}, sum[2] = {0.f, 0.f}, rescale[2];
        u32 weights[BLOCK / 4];
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) o[i] = 0.f;

        int block = tile.last_block, previous = stage;
        barrier_wait(shared.full[stage], phase);
        named_wait(TURN + group, 256);
        pin(q);
        wgmma_fence();
        start_scores(s, q, keys + stage * STAGE);
        named_signal(TURN + next_group, 256);
        wgmma_wait<0>();
        pin(s);
        if (SOFTCAP) cap(s, p.scale, p.softcap);
        if ((block + 1) * BLOCK > clear || block * BLOCK < seen) mask(s, position, block * BLOCK, p.window, lane);
        softmax(s, maximum, sum, rescale, scale_log2);
        to_weights(weights, s);
        while (--block >= tile.first_block) {
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
            barrier_wait(shared.full[stage], phase);
            named_wait(TURN + group, 256);
            pin(s);
            pin(o);
            pin(weights);
            wgmma_fence();
            start_scores(s, q, keys + stage * STAGE);
            start_output(o, weights, values + previous * STAGE);
            named_signal(TURN + next_group, 256);
            wgmma_wait<1>();
            pin(s);
            if (SOFTCAP) cap(s, p.scale, p.softcap);
            if ((block + 1) * BLOCK > clear || block * BLOCK < seen) mask(s, position, block * BLOCK, p.window, lane);
            softmax(s, maximum, sum, rescale, scale_log2);
            pin(s);
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
            pin(weights);
            if (lane == 0) barrier_arrive(shared.empty[previous]);
            to_weights(weights, s);
            previous = stage;
        }
        pin(o);
        pin(weights);
        wgmma_fence();
        start_output(o, weights, values + previous * STAGE);
        wgmma_wait<0>();
        pin(o);
        if (lane == 0) barrier_arrive(shared.empty[previous]);
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
        store(p, tile, o, maximum, sum, first_row, scale_log2, lane);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_prefill(const ACT *q, i64 q_token_stride, i64 q_head_stride, const u8 *cache, u64 block_bytes, const i32 *block_table, i64 table_stride,
                      const i32 *step_rows, const i32 *query_start_loc, const i32 *seq_lens, const float *sinks, ACT *out, i64 out_token_stride,
                      i64 out_head_stride, u32 *counter, int num_seqs, int num_kv_heads, float scale, float softcap, int window, int min_query_len) {
    extern __shared__ __align__(128) u8 memory[];
    u8 *ring = memory, *queries = ring + STAGES * 2 * PART_BYTES;
    Shared &shared = *(Shared *)(queries + ROWS * Q_PITCH);
    static_assert(sizeof(Shared) <= 512, "the launch's shared memory");
    int *lists = (int *)((u8 *)&shared + 512);
    Plan plan = {lists, lists + MAX_SEQS, lists + 2 * MAX_SEQS, shared.counts};
    Params p = {q,        q_token_stride, q_head_stride, cache,           block_bytes, block_table,  table_stride, step_rows, query_start_loc, seq_lens, sinks, out, out_token_stride,
                out_head_stride, counter, num_seqs, num_kv_heads, scale, softcap, window, min_query_len};
    if (threadIdx.x == 0) {
        barrier_init(shared.q_full, 1);
        barrier_init(shared.q_empty, 4 * CONSUMERS);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(shared.full[i], 1);
            barrier_init(shared.empty[i], 4 * CONSUMERS);
        }
        barrier_init_done();
    }
    __syncthreads();
    wait_for_previous();
    int warpgroup = threadIdx.x / 128;
    // What one hands over the others take: the sum stays within the registers the launch got (128 · 504 of 2, 128 · 512 of 3 consumers).
    if (warpgroup == 0) {
        give_registers<CONSUMERS == 2 ? 40 : 32>();
        make_plan(p, plan, threadIdx.x);
        if (threadIdx.x < 32) {
            load(p, shared, queries, ring, plan, threadIdx.x);
            let_next_start();
        }
    } else {
        take_registers<CONSUMERS == 2 ? 232 : 160>();
        multiply(p, shared, queries, ring, warpgroup - 1, threadIdx.x % 128);
    }
}

#endif
