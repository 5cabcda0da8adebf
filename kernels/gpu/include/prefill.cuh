// What the prefill kernels share: tiles of (token, head) rows and how they are dealt, the softmax in registers, the epilogue. A warp holds 16
// rows; scores and outputs lie as mma_m16n8k16 leaves them: lane 4g + t has columns 2t, 2t+1 of every 8, of rows g and g + 8.
//
// Wants ACT, HEAD_DIM, GROUP, BLOCK and ROWS (of a tile) defined.
#pragma once
#include "common.cuh"

#define Q_PITCH (2 * HEAD_DIM + 16) // bytes of a query row in shared memory: 16 more, so that 8 rows lie in different banks
#define PART_BYTES (2 * BLOCK * HEAD_DIM)
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

// Tiles of each sequence, longest keys first: order[i] is the i-th sequence, ends[i] the tiles up to and with it.
struct Plan {
    int *ends, *order, *lens; // shared memory
    int *counts;              // likewise: sequences, tiles
};
__device__ __forceinline__ void planners_wait() { asm volatile("bar.sync 7, 128;" ::: "memory"); }

// By 128 threads.
__device__ __forceinline__ void make_plan(const Params &p, Plan &plan, int thread) {
    if (thread == 0) plan.counts[0] = 0;
    planners_wait();
#pragma unroll 1
    for (int s = thread; s < p.num_seqs; s += 128) {
        int query_len = p.query_start_loc[s + 1] - p.query_start_loc[s], row = p.step_rows[s], len = p.seq_lens[s];
        if (row < 0 || query_len < p.min_query_len || query_len < 1) continue;
        int i = atomicAdd(&plan.counts[0], 1);
        plan.ends[i] = s;
        plan.lens[i] = len;
    }
    planners_wait();
    int count = plan.counts[0];
#pragma unroll 1
    for (int i = thread; i < count; i += 128) {
        int len = plan.lens[i], s = plan.ends[i], rank = 0;
#pragma unroll 1
        for (int j = 0; j < count; j++) rank += plan.lens[j] > len || (plan.lens[j] == len && plan.ends[j] < s);
        plan.order[rank] = s;
    }
    planners_wait();
    if (thread < 32) {
        int sum = 0;
#pragma unroll 1
        for (int base = 0; base < count; base += 32) {
            int i = base + thread, tiles = 0;
            if (i < count) tiles = ((p.query_start_loc[plan.order[i] + 1] - p.query_start_loc[plan.order[i]]) * GROUP + ROWS - 1) / ROWS;
            for (int step = 1; step < 32; step *= 2) {
                int other = __shfl_up_sync(0xffffffffu, tiles, step);
                if (thread >= step) tiles += other;
            }
            if (i < count) plan.ends[i] = sum + tiles;
            sum += __shfl_sync(0xffffffffu, tiles, 31);
        }
        if (thread == 0) plan.counts[1] = sum;
    }
    planners_wait();
}

// Which tile `item` stands for: heads of one tile are neighbours, a sequence's last tiles (most keys) come first.
__device__ __forceinline__ Tile find_tile(const Params &p, const Plan &plan, int item, int &table_row) {
    Tile tile;
    tile.kv_head = item % p.num_kv_heads;
    int index = item / p.num_kv_heads, low = 0, high = plan.counts[0] - 1;
#pragma unroll 1
    while (low < high) {
        int middle = (low + high) / 2;
        if (plan.ends[middle] > index) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    int s = plan.order[low];
    tile.first_row = (plan.ends[low] - 1 - index) * ROWS;
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

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#ifndef STEP
#define STEP 1 // cache blocks that a softmax step takes
#endif

// Scores become weights relative to the running maximum, which follows; `rescale` is how what was summed so far must be scaled.
__device__ __forceinline__ void softmax(float (&s)[STEP][BLOCK / 2], float (&maximum)[2], float (&rescale)[2], float scale_log2) {
    float offset[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float m = maximum[half];
#pragma unroll
        for (int i = 0; i < STEP * BLOCK / 8; i++) {
            const float(&tile)[BLOCK / 2] = s[i / (BLOCK / 8)];
            m = fmaxf(m, fmaxf(tile[i % (BLOCK / 8) * 4 + 2 * half], tile[i % (BLOCK / 8) * 4 + 2 * half + 1]));
        }
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
        // A row that has seen no key yet has maximum −inf: its weights must come out 0, not NaN.
        offset[half] = m == -INFINITY_F ? 0.f : m * scale_log2;
        rescale[half] = exp2_fast(maximum[half] * scale_log2 - offset[half]);
        maximum[half] = m;
    }
#pragma unroll
    for (int i = 0; i < STEP * BLOCK / 2; i++) {
        float &x = s[i / (BLOCK / 2)][i % (BLOCK / 2)];
        x = exp2_fast(__fmaf_rn(x, scale_log2, -offset[i / 2 % 2]));
    }
}

// Adds this thread's weights to its part of the rows' sums. Apart from `softmax`: additions among the exponentials would wait for each of
// them, and the unit that computes them would idle.
__device__ __forceinline__ void add_weights(const float (&s)[STEP][BLOCK / 2], float (&sum)[2], const float (&rescale)[2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float part[2] = {0.f, 0.f};
#pragma unroll
        for (int i = 0; i < STEP * BLOCK / 8; i++) {
#pragma unroll
            for (int e = 0; e < 2; e++) part[e] += s[i / (BLOCK / 8)][i % (BLOCK / 8) * 4 + 2 * half + e];
        }
        sum[half] = sum[half] * rescale[half] + (part[0] + part[1]);
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
