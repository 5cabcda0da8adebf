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
#define Q_PITCH (2 * HEAD_DIM + 16) // bytes of a query row in shared memory: 16 more, so that 8 rows lie in different banks
#define PART_BYTES (2 * BLOCK * HEAD_DIM)
#define TURN 1    // named barriers TURN + w: warpgroup w may start products
#define PLANNERS 7 // named barrier of the loading warpgroup
#define LOG2E 1.4426950408889634f

// Work of a block until the next tile.
struct Tile {
    int rows;        // rows of the sequence; 0: no more tiles
    int first_row;   // of the tile
    int first_token; // of the sequence, in q and out
    int prefix;      // keys before the sequence's first token
    int kv_head;
    int first_block, last_block; // cache blocks with visible keys, by position
};

struct Shared {
    Barrier q_full, q_empty, full[STAGES], empty[STAGES];
    Tile tile;
    int num_seqs, num_tiles;
};

struct Params {
    const ACT *q;
    i64 q_token_stride, q_head_stride;
    const u8 *cache;
    u64 block_bytes;
    const i32 *block_table;
    i64 table_stride;
    const i32 *step_rows, *query_start_loc, *seq_lens;
    const float *sinks;
    ACT *out;
    i64 out_token_stride, out_head_stride;
    u32 *counter;
    int num_seqs, num_kv_heads;
    float scale, softcap;
    int window, min_query_len;
};

// Tiles of each sequence, longest keys first: order[i] is the i-th sequence, ends[i] the tiles up to and with it. By the loading warpgroup.
__device__ __forceinline__ void plan(const Params &p, Shared &shared, int *ends, int *order, int *lens, int thread) {
    if (thread == 0) shared.num_seqs = 0;
    named_wait(PLANNERS, 128);
#pragma unroll 1
    for (int s = thread; s < p.num_seqs; s += 128) {
        int query_len = p.query_start_loc[s + 1] - p.query_start_loc[s];
        if (p.step_rows[s] < 0 || query_len < p.min_query_len || query_len < 1) continue;
        ends[atomicAdd(&shared.num_seqs, 1)] = s;
    }
    named_wait(PLANNERS, 128);
    int count = shared.num_seqs;
#pragma unroll 1
    for (int i = thread; i < count; i += 128) lens[i] = p.seq_lens[ends[i]];
    named_wait(PLANNERS, 128);
#pragma unroll 1
    for (int i = thread; i < count; i += 128) {
        int len = lens[i], s = ends[i], rank = 0;
#pragma unroll 1
        for (int j = 0; j < count; j++) rank += lens[j] > len || (lens[j] == len && ends[j] < s);
        order[rank] = s;
    }
    named_wait(PLANNERS, 128);
    if (thread < 32) {
        int sum = 0;
#pragma unroll 1
        for (int base = 0; base < count; base += 32) {
            int i = base + thread, tiles = 0;
            if (i < count) tiles = ((p.query_start_loc[order[i] + 1] - p.query_start_loc[order[i]]) * GROUP + ROWS - 1) / ROWS;
            for (int step = 1; step < 32; step *= 2) {
                int other = __shfl_up_sync(0xffffffffu, tiles, step);
                if (thread >= step) tiles += other;
            }
            if (i < count) ends[i] = sum + tiles;
            sum += __shfl_sync(0xffffffffu, tiles, 31);
        }
        if (thread == 0) shared.num_tiles = sum;
    }
    named_wait(PLANNERS, 128);
}

// Which tile `item` stands for: heads of one tile are neighbours, a sequence's last tiles (most keys) come first.
__device__ __forceinline__ Tile find_tile(const Params &p, const Shared &shared, const int *ends, const int *order, int item, int &table_row) {
    Tile tile;
    tile.kv_head = item % p.num_kv_heads;
    int index = item / p.num_kv_heads, low = 0, high = shared.num_seqs - 1;
#pragma unroll 1
    while (low < high) {
        int middle = (low + high) / 2;
        if (ends[middle] > index) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    int s = order[low];
    tile.first_row = (ends[low] - 1 - index) * ROWS;
    tile.first_token = p.query_start_loc[s];
    int query_len = p.query_start_loc[s + 1] - tile.first_token;
    tile.rows = query_len * GROUP;
    tile.prefix = p.seq_lens[s] - query_len;
    table_row = p.step_rows[s];
    int first = tile.prefix + tile.first_row / GROUP, last = tile.prefix + (min(tile.first_row + ROWS, tile.rows) - 1) / GROUP;
    tile.first_block = p.window > 0 ? max(0, first - p.window + 1) / BLOCK : 0;
    tile.last_block = last / BLOCK;
    return tile;
}

// The loading warp: queries of a tile, then its cache blocks from the last to the first.
__device__ __forceinline__ void load(const Params &p, Shared &shared, u8 *queries, u8 *ring, const int *ends, const int *order, int lane) {
    int items = shared.num_tiles * p.num_kv_heads, item = blockIdx.x, stage = 0;
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
        Tile tile = find_tile(p, shared, ends, order, item, table_row);
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

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
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

// Scores become weights relative to the running maximum; the rows' maxima and (this thread's part of the) sums follow. Returns how what was
// summed so far must be scaled.
__device__ __forceinline__ void softmax(float (&s)[BLOCK / 2], float (&maximum)[2], float (&sum)[2], float (&rescale)[2], float scale_log2) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float m = maximum[half];
#pragma unroll
        for (int i = 0; i < BLOCK / 8; i++) m = fmaxf(m, fmaxf(s[4 * i + 2 * half], s[4 * i + 2 * half + 1]));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
        // A row that has seen no key yet has maximum −inf: its weights must come out 0, not NaN.
        float offset = m == -INFINITY_F ? 0.f : m * scale_log2;
        rescale[half] = exp2_fast(maximum[half] * scale_log2 - offset);
        maximum[half] = m;
        float part = 0.f;
#pragma unroll
        for (int i = 0; i < BLOCK / 8; i++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float &x = s[4 * i + 2 * half + e];
                x = exp2_fast(__fmaf_rn(x, scale_log2, -offset));
                part += x;
            }
        }
        sum[half] = sum[half] * rescale[half] + part;
    }
}

// Keys that a row must not see get −inf: column c of the block at `key` is seen where position − window < key + c <= position.
__device__ __forceinline__ void mask(float (&s)[BLOCK / 2], const int (&position)[2], int key, int window, int lane) {
    int column = 2 * (lane & 3);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int high = position[half] - key - column, low = window > 0 ? high - window : -2 * BLOCK;
#pragma unroll
        for (int i = 0; i < BLOCK / 8; i++) {
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (8 * i + e > high || 8 * i + e <= low) s[4 * i + 2 * half + e] = -INFINITY_F;
        }
    }
}

__device__ __forceinline__ void cap(float (&s)[BLOCK / 2], float scale, float softcap) {
    // tanh(x) = 1 − 2 / (e^2x + 1)
    float factor = 2.f * LOG2E * scale / softcap;
#pragma unroll
    for (int i = 0; i < BLOCK / 2; i++) s[i] = softcap - __fdividef(2.f * softcap, exp2_fast(fminf(s[i] * factor, 80.f)) + 1.f);
}

__device__ __forceinline__ void to_weights(u32 (&weights)[BLOCK / 4], const float (&s)[BLOCK / 2]) {
#pragma unroll
    for (int i = 0; i < BLOCK / 4; i++) weights[i] = pack2<ACT>(s[2 * i], s[2 * i + 1]);
}

// Four lanes hold four words each (lane t: words 4i + t of ... of tile i); afterwards lane t holds the four words of tile t.
__device__ __forceinline__ uint4 transpose4(u32 a, u32 b, u32 c, u32 d, int t) {
    // Exchange with the neighbour lane, then with the one two away.
    u32 x = __shfl_xor_sync(0xffffffffu, t & 1 ? a : b, 1), y = __shfl_xor_sync(0xffffffffu, t & 1 ? c : d, 1);
    if (t & 1) {
        a = x;
        c = y;
    } else {
        b = x;
        d = y;
    }
    x = __shfl_xor_sync(0xffffffffu, t & 2 ? a : c, 2);
    y = __shfl_xor_sync(0xffffffffu, t & 2 ? b : d, 2);
    if (t & 2) {
        a = x;
        b = y;
    } else {
        c = x;
        d = y;
    }
    return make_uint4(a, b, c, d);
}

// Divides by the sums and stores a warp's 16 rows.
__device__ __forceinline__ void store(const Params &p, const Tile &tile, const float (&o)[HEAD_DIM / 2], const float (&maximum)[2], const float (&sum)[2],
                                      int first_row, float scale_log2, int lane) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = first_row + lane / 4 + 8 * half;
        bool present = row < tile.rows;
        int head = tile.kv_head * GROUP + row % GROUP;
        float total = sum[half];
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        float factor = 1.f;
        if (p.sinks && present) {
            float sink = p.sinks[head] * LOG2E, highest = maximum[half] * scale_log2, larger = fmaxf(sink, highest);
            factor = exp2_fast(highest - larger);
            total = total * factor + exp2_fast(sink - larger);
        }
        factor = __fdividef(factor, total);
        ACT *to = p.out + (tile.first_token + row / GROUP) * p.out_token_stride + head * p.out_head_stride;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i += 4) {
            u32 w[4];
#pragma unroll
            for (int j = 0; j < 4; j++) w[j] = pack2<ACT>(o[4 * (i + j) + 2 * half] * factor, o[4 * (i + j) + 2 * half + 1] * factor);
            uint4 words = transpose4(w[0], w[1], w[2], w[3], lane & 3);
            if (present) *(uint4 *)(to + 8 * (i + (lane & 3))) = words;
        }
    }
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
    int *ends = (int *)((u8 *)&shared + 512), *order = ends + MAX_SEQS, *lens = order + MAX_SEQS;
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
    if (warpgroup == 0) {
        give_registers<32>();
        plan(p, shared, ends, order, lens, threadIdx.x);
        if (threadIdx.x < 32) {
            load(p, shared, queries, ring, ends, order, threadIdx.x);
            let_next_start();
        }
    } else {
        take_registers<CONSUMERS == 2 ? 240 : 160>();
        multiply(p, shared, queries, ring, warpgroup - 1, threadIdx.x % 128);
    }
}

#endif
