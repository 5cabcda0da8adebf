// Attention of prompt chunks over the paged cache on Hopper's matrix units (sm_90a): one warp loads, another deals
// tiles, warpgroups multiply, so that the softmax of one overlaps the products of the other (Shah et al. 2024, arXiv
// 2407.08608). The time from a block's scores to its weights bounds the speed. That path is kept short: the next
// block's arrival is checked early, and sums and conversions overlap the exponentials.
//
// Definitions: ACT (bf16, f16: activations), KV (the cache: ACT, e4m3, code8 or code4), HEAD_DIM (64, 128), GROUP
// (query heads of a KV head, 1..16), BLOCK (64), CONSUMERS (multiplying warpgroups: 2, at HEAD_DIM 64 rather 3), STAGES
// (cache blocks in flight, at least 3), SOFTCAP (1: scores are capped), MAX_SEQS (most sequences of a call). Those from
// CONSUMERS on have defaults.
//
// Rows of a tile are (token, head of the group) pairs of one sequence and one KV head: row r of a sequence is token r /
// GROUP, head r % GROUP. ROWS = 64 · CONSUMERS rows are one tile; a block takes tiles, longest first, until none is
// left.
//
// Launch: 128 · (CONSUMERS + 1) threads; grid.x any number, best min(multiprocessors, (T · GROUP / ROWS + S) ·
// num_kv_heads); dynamic shared memory: 2 · ROWS · (2 · HEAD_DIM + 16) + STAGES · 4 · BLOCK · HEAD_DIM + 12 · MAX_SEQS
// + 512 bytes, and with 8-bit floats and codes two heads of a block more: those arrive in a ring of two of their own,
// from which two more warps widen them into the stages. Needs q aligned to 16 bytes, its strides multiples of 8
// elements, out's likewise; scale > 0.
// check: -DACT=bf16 -DHEAD_DIM=128 -DGROUP=4 -DBLOCK=64 -DCONSUMERS=2 -DSOFTCAP=0 -DMAX_SEQS=512
// check: -DACT=f16 -DHEAD_DIM=64 -DGROUP=3 -DBLOCK=64 -DCONSUMERS=3 -DSOFTCAP=1 -DMAX_SEQS=64
// check: -DACT=bf16 -DKV=e4m3 -DHEAD_DIM=128 -DGROUP=4 -DBLOCK=64 -DCONSUMERS=2 -DSTAGES=3 -DSOFTCAP=0 -DMAX_SEQS=512
// check: -DACT=f16 -DKV=e4m3 -DHEAD_DIM=64 -DGROUP=3 -DBLOCK=64 -DCONSUMERS=3 -DSTAGES=5 -DSOFTCAP=1 -DMAX_SEQS=64
// check: -DACT=bf16 -DKV=code8 -DHEAD_DIM=128 -DGROUP=4 -DBLOCK=64 -DCONSUMERS=2 -DSTAGES=3 -DSOFTCAP=0 -DMAX_SEQS=512
// check: -DACT=f16 -DKV=code8 -DHEAD_DIM=64 -DGROUP=3 -DBLOCK=64 -DCONSUMERS=3 -DSTAGES=5 -DSOFTCAP=1 -DMAX_SEQS=64
// check: -DACT=bf16 -DKV=code4 -DHEAD_DIM=64 -DGROUP=4 -DBLOCK=64 -DCONSUMERS=3 -DSTAGES=5 -DSOFTCAP=0 -DMAX_SEQS=512
// check: -DACT=bf16 -DKV=code4 -DHEAD_DIM=128 -DGROUP=4 -DBLOCK=64 -DCONSUMERS=2 -DSTAGES=3 -DSOFTCAP=0 -DMAX_SEQS=512
#include "common.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "hopper.cuh"

#ifndef KV
#define KV ACT
#endif
#ifndef CONSUMERS
#define CONSUMERS (HEAD_DIM == 128 ? 2 : 3)
#endif
#ifndef STAGES
#define STAGES (HEAD_DIM == 128 ? 4 : 6)
#endif
#ifndef SOFTCAP
#define SOFTCAP 0
#endif
#ifndef MAX_SEQS
#define MAX_SEQS 512
#endif

#define ROWS (64 * CONSUMERS)
#define THREADS (128 * (CONSUMERS + 1))
#define BLOCK_BYTES (2 * PART_BYTES) // of a head in the cache
#define STAGE_PART (2 * BLOCK * HEAD_DIM) // keys or values as the products take them
#define STAGE_BYTES (2 * STAGE_PART)
#define NARROW (sizeof(KV) == 1)
#define ARRIVALS 2 // narrow blocks in flight
#include "prefill.cuh"

struct Shared {
    Barrier tile_full, q_full;
    Barrier begun; // multipliers hold their queries, the loader knows the tile
    Barrier full[STAGES], empty[STAGES];
    Barrier arrived[ARRIVALS], widened[ARRIVALS]; // narrow blocks only, as the next
    int keys[ARRIVALS];                           // of the block that arrived; negative: no more blocks
    Tile tiles[2]; // of even and odd count
    int table_rows[2];
    int counts[2];
};

// Walks a ring of cache blocks; the phase flips each time round.
template <int COUNT = STAGES> struct Cursor {
    int stage;
    u32 phase;
    __device__ __forceinline__ void advance() {
        if (++stage == COUNT) {
            stage = 0;
            phase ^= 1;
        }
    }
};

__device__ __forceinline__ void load_async(u32 to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// The dealing warp: finds the next tile when the present one begins, and loads its queries. The first two tiles of each
// block are dealt there and back, which balances a descending list; the others by a counter where there is one.
__device__ __forceinline__ void deal(const Params &p, Shared &shared, const u8 *queries, const Plan &plan, int lane) {
    int items = plan.counts[1] * p.num_kv_heads, blocks = gridDim.x, item = blockIdx.x;
    u32 q_address = shared_address(queries);
    for (int n = 0;; n++) {
        // When all have begun with a tile, its queries are out of the buffer and the one before it is over: the next is
        // dealt.
        if (n > 0) barrier_wait(shared.begun, (n & 1) ^ 1);
        if (n > 1 && p.counter) {
            int taken = 0;
            if (lane == 0) {
                taken = (int)atomicAdd(p.counter, 1u);
                // Each block that got a second tile takes until it fails: the last take of all leaves the counter as it
                // was found.
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
#pragma unroll 1
        for (int r = lane / 4; r < ROWS; r += 8) {
            int row = min(tile.first_row + r, tile.rows - 1);
            const ACT *from = p.q + (tile.first_token + row / GROUP) * p.q_token_stride +
                              (tile.kv_head * GROUP + row % GROUP) * p.q_head_stride;
#pragma unroll
            for (int c = lane % 4; c < HEAD_DIM / 8; c += 4) load_async(q_address + r * Q_PITCH + c * 16, from + 8 * c);
        }
        asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&shared.q_full))
                     : "memory");
    }
}

// The loading warp: the tile's head of its cache blocks, from the last block to the first.
__device__ __forceinline__ void load(const Params &p, Shared &shared, u8 *ring, int lane) {
    Cursor<NARROW ? ARRIVALS : STAGES> cursor = {0, 1};
    Barrier *full = NARROW ? shared.arrived : shared.full, *empty = NARROW ? shared.widened : shared.empty;
    u32 parity = 0;
    while (true) {
        barrier_wait(shared.tile_full, parity);
        Tile tile = shared.tiles[parity];
        if (tile.rows == 0) {
            if (NARROW && lane == 0) {
                barrier_wait(empty[cursor.stage], cursor.phase);
                atomicExch(&shared.keys[cursor.stage], -1);
                barrier_arrive(full[cursor.stage]);
            }
            return;
        }
        const i32 *table = p.block_table + shared.table_rows[parity] * p.table_stride;
        const u8 *cache = p.cache + tile.kv_head * BLOCK_BYTES;
        parity ^= 1;
        __syncwarp();
        if (lane == 0) barrier_arrive(shared.begun);
        int pages = 0;
#pragma unroll 1
        for (int b = tile.last_block, i = 0; b >= tile.first_block; b--, i++) {
            if (i % 32 == 0) pages = b - lane >= tile.first_block ? table[b - lane] : 0;
            int page = __shfl_sync(0xffffffffu, pages, i % 32);
            barrier_wait(empty[cursor.stage], cursor.phase);
            u8 *to = ring + cursor.stage * BLOCK_BYTES;
            const u8 *from = cache + page * p.block_bytes;
            u32 bytes = BLOCK_BYTES;
            int keys = b == tile.last_block ? min(last_keys(tile), BLOCK) : BLOCK;
            if (NARROW) {
                if (lane == 0) atomicExch(&shared.keys[cursor.stage], keys);
            } else if (keys < BLOCK) {
                clear_values<Layout>(shared_address(to) + PART_BYTES, from + PART_BYTES, keys, lane, 32);
                stores_before_products();
                __syncwarp();
                bytes = PART_BYTES + keys / 8 * HEAD_DIM * 16;
            }
            if (lane == 0) {
                barrier_arrive_expect(full[cursor.stage], bytes);
                bulk_load(to, from, bytes, full[cursor.stage]);
            }
            cursor.advance();
        }
    }
}

// A warp's 32 tokens of a block: keys or values from codes, brought to their scales, to a stage.
template <bool VALUES, typename L>
__device__ __forceinline__ void widen_codes(u32 from, u32 to, int keys, int warp, int lane) {
    constexpr int PAIRS = L::ROW / 8; // of 8 dims in a row
    ScalePair maps[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int token = 32 * warp + 8 * i + (VALUES ? 2 * (lane & 3) : lane >> 2);
        u32 address = from + L::WORDS_AT + 4 * token, first = load_word(address), second = first;
        if (VALUES) {
            second = token + 1 < keys ? load_word(address + 4) : 0;
            first = token < keys ? first : 0;
        }
        maps[i] = scale_pair<FACTOR, CODE_BITS>(first, second);
    }
    u32 eighth = 4 * warp + (lane >> 3), row_of_unit = (lane & 7) * 16;
#pragma unroll 2
    for (int row = 0; row < L::KEY_ROWS; row++) {
        u32 units[4];
        u32 at = from + (row * L::TOKEN_UNITS + eighth) * 128 + row_of_unit;
        if constexpr (VALUES) load_pieces_transposed(units, at);
        else load_pieces(units, at);
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            u32 out[4], dims = row * PAIRS + j;
#pragma unroll
            for (int i = 0; i < 4; i++) out[i] = value_pair<FACTOR, CODE_BITS>(units[i], j, maps[i]);
            u32 unit = VALUES ? eighth * (HEAD_DIM / 8) + dims : dims * (BLOCK / 8) + eighth;
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to + unit * 128 +
                                                                                               row_of_unit),
                         "r"(out[0]), "r"(out[1]), "r"(out[2]), "r"(out[3])
                         : "memory");
        }
    }
}

// Blocks of 8-bit floats: a row of 16 bytes, of one token or dimension, becomes two.
template <typename L>
__device__ __forceinline__ void widen_floats(const uint4 *rows, u8 *stage, int keys, int thread) {
#pragma unroll
    for (int part = 0; part < 2; part++) {
        const int LENGTH = part == 0 ? BLOCK : HEAD_DIM; // rows side by side
        uint4 *out = (uint4 *)(stage + part * STAGE_PART);
#pragma unroll 2
        for (int row = thread; row < PART_BYTES / 16; row += 64) {
            uint4 words = rows[part * (PART_BYTES / 16) + row], low, high;
            widen(words.x, low.x, high.x);
            widen(words.y, low.y, high.y);
            widen(words.z, low.z, high.z);
            widen(words.w, low.w, high.w);
            int group = row / LENGTH;
            if (part == 1 && 16 * group + 16 > keys) {
                clear_from(low, keys - 16 * group);
                clear_from(high, keys - 16 * group - 8);
            }
            out[row + group * LENGTH] = low;
            out[row + (group + 1) * LENGTH] = high;
        }
    }
}

// A widening warp (of two): blocks of 8-bit floats or of codes become stages of the ring. Values from key `keys` on
// were never written and become zeroes, as a weight of 0 would not stop a NaN.
__device__ __forceinline__ void widen_blocks(Shared &shared, const u8 *arrivals, u8 *ring, int thread) {
    Cursor<ARRIVALS> from = {0, 0};
    Cursor<> to = {0, 1};
    while (true) {
        barrier_wait(shared.arrived[from.stage], from.phase);
        // One lane reads it and broadcasts it. The barriers order the access; it is atomic because the sanitizer's
        // racecheck does not see that.
        int keys = __shfl_sync(0xffffffffu, thread % 32 == 0 ? atomicOr(&shared.keys[from.stage], 0) : 0, 0);
        if (keys < 0) return;
        barrier_wait(shared.empty[to.stage], to.phase);
        const u8 *block = arrivals + from.stage * BLOCK_BYTES;
        u8 *stage = ring + to.stage * STAGE_BYTES;
        if constexpr (CODE_BITS > 0) {
            u32 codes = shared_address(block), out = shared_address(stage);
            widen_codes<false, Layout>(codes, out, keys, thread / 32, thread % 32);
            widen_codes<true, Layout>(codes + PART_BYTES, out + STAGE_PART, keys, thread / 32, thread % 32);
        } else {
            widen_floats<Layout>((const uint4 *)block, stage, keys, thread);
        }
        // Each lane for itself: that one lane may speak for its warp the racecheck does not see.
        barrier_arrive(shared.widened[from.stage]);
        stores_before_products();
        __syncwarp();
        if (thread % 32 == 0) barrier_arrive(shared.full[to.stage]);
        from.advance();
        to.advance();
    }
}

// Scores of 64 rows against BLOCK keys: tile i of 8 keys is s[4i ..]. `keys` describes the first 16 dimensions of the
// block's keys.
__device__ __forceinline__ void start_scores(float (&s)[BLOCK / 2], const u32 (&q)[HEAD_DIM / 4], u64 keys) {
#pragma unroll
    for (int k = 0; k < HEAD_DIM / 16; k++)
        Wgmma<FACTOR, BLOCK>::run(s, q[4 * k], q[4 * k + 1], q[4 * k + 2], q[4 * k + 3], keys + k * (BLOCK * 32 / 16),
                                  k > 0);
    wgmma_commit();
}
// Adds the weighted values. `values` describes the block's first 16 tokens.
__device__ __forceinline__ void start_output(float (&o)[HEAD_DIM / 2], const u32 (&weights)[BLOCK / 4], u64 values) {
#pragma unroll
    for (int k = 0; k < BLOCK / 16; k++)
        Wgmma<FACTOR, HEAD_DIM>::run(o, weights[4 * k], weights[4 * k + 1], weights[4 * k + 2], weights[4 * k + 3],
                                     values + k * (HEAD_DIM * 32 / 16), 1);
    wgmma_commit();
}

// What a lane's two rows see.
struct Mask {
    int position[2];
    int clear, seen; // blocks that end by `clear` and begin from `seen` on need no mask, for all rows of the warpgroup
};
// Caps and masks the scores of a block.
__device__ __forceinline__ void finish_scores(const Params &p, float (&s)[BLOCK / 2], const Mask &m, int block,
                                              int lane) {
    if (SOFTCAP) cap(s, p.scale, p.softcap);
    if ((block + 1) * BLOCK > m.clear || block * BLOCK < m.seen) mask(s, m.position, block * BLOCK, p.window, lane);
}

// A multiplying warpgroup: 64 rows of every tile.
__device__ __forceinline__ void multiply(const Params &p, Shared &shared, const u8 *queries, const u8 *ring, int group,
                                         int thread) {
    int warp = thread / 32, lane = thread & 31;
    Cursor<> cursor = {0, 0};
    u32 parity = 0;
    float scale_log2 = SOFTCAP ? LOG2E : p.scale * LOG2E;
    // Operands in the first stage; a stage is `STAGE` further.
    u64 keys = wgmma_operand(shared_address(ring), BLOCK * 16, 128),
        values = wgmma_operand(shared_address(ring) + STAGE_PART, HEAD_DIM * 16, 128);
    const u64 STAGE = STAGE_BYTES / 16;
    // Row and half of a row that this lane addresses for ldmatrix: its four 8×8 pieces are those of the left operand.
    u32 q_address = shared_address(queries) + (64 * group + 16 * warp + (lane & 15)) * Q_PITCH + (lane >> 4) * 16;
    // This warp's rows on their way out.
    u32 staging = shared_address(queries) + (ROWS + 64 * group + 16 * warp) * Q_PITCH;
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
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 4; i++) q[i] = Query<ACT, KV>::factor(q[i]);
        if constexpr (CODE_BITS == 4) turn_operands<ACT, HEAD_DIM>(q);
        __syncwarp();
        if (lane == 0) barrier_arrive(shared.begun);

        int first_row = tile.first_row + 64 * group, last = tile.rows - 1;
        Mask m;
#pragma unroll
        for (int half = 0; half < 2; half++)
            m.position[half] = tile.prefix + min(first_row + 16 * warp + lane / 4 + 8 * half, last) / GROUP;
        m.clear = tile.prefix + min(first_row, last) / GROUP + 1;
        m.seen = p.window > 0 ? tile.prefix + min(first_row + 63, last) / GROUP - p.window + 1 : 0;

        float o[HEAD_DIM / 2], s[BLOCK / 2], maximum[2] = {-INFINITY_F, -INFINITY_F}, sum[2] = {0.f, 0.f}, rescale[2],
                                             offset[2];
        u32 weights[BLOCK / 4];
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) o[i] = 0.f;

        int block = tile.last_block, previous = cursor.stage;
        barrier_wait(shared.full[cursor.stage], cursor.phase);
        pin(q);
        wgmma_fence();
        start_scores(s, q, keys + cursor.stage * STAGE);
        wgmma_wait<0>();
        pin(s);
        cursor.advance();
        bool ready = barrier_ended(shared.full[cursor.stage], cursor.phase);
        finish_scores(p, s, m, block, lane);
        raise_maximum(s, maximum, rescale, offset, scale_log2);
        weigh(s, weights, sum, rescale, offset, scale_log2);

        while (--block >= tile.first_block) {
            if (!ready) barrier_wait(shared.full[cursor.stage], cursor.phase);
            pin(s);
            pin(o);
            pin(weights);
            wgmma_fence();
            start_scores(s, q, keys + cursor.stage * STAGE);
            start_output(o, weights, values + previous * STAGE);
            wgmma_wait<1>();
            pin(s);
            finish_scores(p, s, m, block, lane);
            bool rose = raise_maximum(s, maximum, rescale, offset, scale_log2);
            // The branch between maxima and wait is on purpose: in straight-line code the compiler moves the wait
            // first.
            if (rose) {
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
            previous = cursor.stage;
            cursor.advance();
            ready = barrier_ended(shared.full[cursor.stage], cursor.phase);
            weigh(s, weights, sum, rescale, offset, scale_log2);
        }
        pin(o);
        pin(weights);
        wgmma_fence();
        start_output(o, weights, values + previous * STAGE);
        wgmma_wait<0>();
        pin(o);
        if (lane == 0) barrier_arrive(shared.empty[previous]);
        store(p, tile, o, maximum, sum, first_row + 16 * warp, scale_log2, staging, lane);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_prefill(const ACT *q, i64 q_token_stride, i64 q_head_stride, const u8 *cache, u64 block_bytes,
                      const i32 *block_table, i64 table_stride, const i32 *step_rows, const i32 *query_start_loc,
                      const i32 *seq_lens, const float *sinks, ACT *out, i64 out_token_stride, i64 out_head_stride,
                      u32 *counter, int num_seqs, int num_kv_heads, float scale, float softcap, int window,
                      int min_query_len) {
    extern __shared__ __align__(128) u8 memory[];
    u8 *ring = memory, *arrivals = ring + STAGES * STAGE_BYTES,
       *queries = arrivals + (NARROW ? ARRIVALS * BLOCK_BYTES : 0);
    Shared &shared = *(Shared *)(queries + 2 * ROWS * Q_PITCH); // between: rows on their way out
    static_assert(sizeof(Shared) <= 512, "the launch's shared memory");
    int *lists = (int *)((u8 *)&shared + 512);
    Plan plan = {lists, lists + MAX_SEQS, lists + 2 * MAX_SEQS, shared.counts};
    Params p = {q,
                q_token_stride,
                q_head_stride,
                cache,
                block_bytes,
                block_table,
                table_stride,
                step_rows,
                query_start_loc,
                seq_lens,
                sinks,
                out,
                out_token_stride,
                out_head_stride,
                counter,
                num_seqs,
                num_kv_heads,
                scale * Query<ACT, KV>::scale,
                softcap,
                window,
                min_query_len};
    if (threadIdx.x == 0) {
        barrier_init(shared.tile_full, 1);
        barrier_init(shared.q_full, 32);
        barrier_init(shared.begun, 4 * CONSUMERS + 1);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(shared.full[i], NARROW ? 2 : 1);
            barrier_init(shared.empty[i], 4 * CONSUMERS);
        }
        for (int i = 0; i < ARRIVALS; i++) {
            barrier_init(shared.arrived[i], 1);
            barrier_init(shared.widened[i], 64);
        }
        barrier_init_done();
    }
    __syncthreads();
    wait_for_previous();
    int warpgroup = threadIdx.x / 128;
    // What one hands over the others take: the sum stays within the registers the launch got (128 · 504 of 2, 128 · 512
    // of 3 consumers). Widening takes some more.
    if (warpgroup == 0) {
        give_registers<NARROW ? 56 : CONSUMERS == 2 ? 40 : 32>();
        make_plan(p, plan, threadIdx.x);
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (warp == 0) {
            deal(p, shared, queries, plan, lane);
            let_next_start();
        } else if (warp == 1) {
            load(p, shared, NARROW ? arrivals : ring, lane);
        } else if (NARROW) {
            widen_blocks(shared, arrivals, ring, threadIdx.x - 64);
        }
    } else {
        take_registers<CONSUMERS == 2 ? (NARROW ? 224 : 232) : (NARROW ? 152 : 160)>();
        multiply(p, shared, queries, ring, warpgroup - 1, threadIdx.x % 128);
    }
}

#endif
