// What the prefill kernels share: tiles of (token, head) rows and how they are dealt, the softmax in registers, the
// epilogue. A warp holds 16 rows; scores and outputs lie as mma_m16n8k16 leaves them: lane 4g + t has columns 2t, 2t+1
// of every 8, of rows g and g + 8.
//
// Wants ACT, KV (the cache's type: ACT, e4m3, code8 or code4), HEAD_DIM, GROUP, BLOCK and ROWS (of a tile) defined.
#pragma once
#include "widen.cuh"

typedef KvLayout<KV, HEAD_DIM, BLOCK> Layout;
typedef FactorOf<KV, ACT>::type FACTOR;

// bytes of a query row in shared memory: 16 more, so that 8 rows lie in different banks
#define Q_PITCH (2 * HEAD_DIM + 16)
#define PART_BYTES ((int)Layout::K_BYTES) // keys or values of a head of a block
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
            if (i < count)
                tiles = ((p.query_start_loc[plan.order[i] + 1] - p.query_start_loc[plan.order[i]]) * GROUP + ROWS - 1) /
                        ROWS;
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
    int first = tile.prefix + tile.first_row / GROUP,
        last = tile.prefix + (min(tile.first_row + ROWS, tile.rows) - 1) / GROUP;
    tile.first_block = p.window > 0 ? max(0, first - p.window + 1) / BLOCK : 0;
    tile.last_block = last / BLOCK;
    return tile;
}

// Keys of the tile's sequence in its last block.
__device__ __forceinline__ int last_keys(const Tile &tile) {
    return tile.prefix + tile.rows / GROUP - tile.last_block * BLOCK;
}

// Of 8 neighbours of 16 bits, those from `kept` on become zeroes.
__device__ __forceinline__ void clear_from(uint4 &words, int kept) {
    u32 *word = &words.x;
#pragma unroll
    for (int i = 0; i < 4; i++) word[i] &= kept >= 2 * i + 2 ? 0xffffffffu : kept == 2 * i + 1 ? 0xffffu : 0u;
}

// Makes the values from key `keys` on zeroes in shared memory. The cache was never written there and may hold NaN,
// which a weight of 0 does not cancel. Of codes it is their words that become 0. Else rows of 16 bytes hold ROW keys of
// one dimension; those that hold earlier keys too come from the cache at `from`.
template <typename L>
__device__ __forceinline__ void clear_values(u32 to, const u8 *from, int keys, int thread, int threads) {
    if constexpr (CODE_BITS > 0) {
        for (int token = keys + thread; token < BLOCK; token += threads)
            asm volatile("st.shared.u32 [%0], %1;" ::"r"(to + L::WORDS_AT + 4 * token), "r"(0) : "memory");
    } else {
        constexpr int ROW = L::ROW;
#pragma unroll 1
        for (int row = keys / ROW * HEAD_DIM + thread; row < BLOCK / ROW * HEAD_DIM; row += threads) {
            int kept = keys - row / HEAD_DIM * ROW;
            u32 words[4] = {0, 0, 0, 0};
            if (kept > 0) {
                uint4 all = *(const uint4 *)(from + 16 * row);
                words[0] = all.x, words[1] = all.y, words[2] = all.z, words[3] = all.w;
#pragma unroll
                for (int i = 0; i < ROW; i++) {
                    u32 byte = L::place(i) * (u32)sizeof(KV), element = sizeof(KV) == 1 ? 0xffu : 0xffffu;
                    if (i >= kept) words[byte / 4] &= ~(element << byte % 4 * 8);
                }
            }
            asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to + 16 * row), "r"(words[0]), "r"(words[1]),
                         "r"(words[2]), "r"(words[3])
                         : "memory");
        }
    }
}

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The rows' running maxima over new scores; returns whether any of the warp's rose. `rescale` is the factor for the
// sums so far, `offset` is what `weigh` subtracts.
__device__ __forceinline__ bool raise_maximum(const float (&s)[BLOCK / 2], float (&maximum)[2], float (&rescale)[2],
                                              float (&offset)[2], float scale_log2) {
    float m[2] = {maximum[0], maximum[1]};
#pragma unroll
    for (int i = 0; i < BLOCK / 4; i++) m[i & 1] = fmaxf(m[i & 1], fmaxf(s[2 * i], s[2 * i + 1]));
#pragma unroll
    for (int lanes = 1; lanes < 4; lanes *= 2) {
#pragma unroll
        for (int half = 0; half < 2; half++) m[half] = fmaxf(m[half], __shfl_xor_sync(0xffffffffu, m[half], lanes));
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        // A row that has seen no key yet has maximum −inf: its weights must come out 0, not NaN.
        offset[half] = m[half] == -INFINITY_F ? 0.f : m[half] * scale_log2;
        rescale[half] = exp2_fast(maximum[half] * scale_log2 - offset[half]);
    }
    bool rose = m[0] != maximum[0] || m[1] != maximum[1];
    maximum[0] = m[0];
    maximum[1] = m[1];
    return __any_sync(0xffffffffu, rose);
}

// Scores become weights relative to the maximum, in the form that the next product takes; this thread's part of the
// rows' sums grows.
__device__ __forceinline__ void weigh(float (&s)[BLOCK / 2], u32 (&weights)[BLOCK / 4], float (&sum)[2],
                                      const float (&rescale)[2], const float (&offset)[2], float scale_log2) {
    float part[4] = {sum[0] * rescale[0], 0.f, sum[1] * rescale[1], 0.f};
#pragma unroll
    for (int i = 0; i < BLOCK / 4; i++) {
        int half = i & 1;
        float x = exp2_fast(__fmaf_rn(s[2 * i], scale_log2, -offset[half])),
              y = exp2_fast(__fmaf_rn(s[2 * i + 1], scale_log2, -offset[half]));
        part[2 * half] += x;
        part[2 * half + 1] += y;
        weights[i] = pack2<FACTOR>(x, y);
    }
    sum[0] = part[0] + part[1];
    sum[1] = part[2] + part[3];
}

// Keys that a row must not see get −inf: column c of the block at `key` is seen where position − window < key + c <=
// position.
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
    for (int i = 0; i < BLOCK / 2; i++)
        s[i] = softcap - __fdividef(2.f * softcap, exp2_fast(fminf(s[i] * factor, 80.f)) + 1.f);
}

// Divides by the sums and stores a warp's 16 rows, which pass through `staging` (16 rows of Q_PITCH bytes, this warp's
// own) to leave in whole rows.
__device__ __forceinline__ void store(const Params &p, const Tile &tile, const float (&o)[HEAD_DIM / 2],
                                      const float (&maximum)[2], const float (&sum)[2], int first_row, float scale_log2,
                                      u32 staging, int lane) {
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float total = sum[half];
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        factor[half] = 1.f;
        if (p.sinks) {
            int row = first_row + lane / 4 + 8 * half;
            float sink = p.sinks[tile.kv_head * GROUP + row % GROUP] * LOG2E, highest = maximum[half] * scale_log2,
                  larger = fmaxf(sink, highest);
            factor[half] = exp2_fast(highest - larger);
            total = total * factor[half] + exp2_fast(sink - larger);
        }
        factor[half] = __fdividef(factor[half], total);
    }
#if __CUDA_ARCH__ >= 900
    // As ldmatrix reads: lane l names row l % 16 of the tile of columns that its upper half-warp advances by one.
    u32 to = staging + (lane & 15) * Q_PITCH + (lane >> 4) * 16;
#else
    u32 to = staging + (lane >> 2) * Q_PITCH + (lane & 3) * 4;
#endif
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; i += 2) {
        u32 w[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            w[j] = pack2<ACT>(o[4 * i + 2 * j] * factor[j & 1], o[4 * i + 2 * j + 1] * factor[j & 1]);
#if __CUDA_ARCH__ >= 900
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to + i * 16), "r"(w[0]),
                     "r"(w[1]), "r"(w[2]), "r"(w[3])
                     : "memory");
#else
#pragma unroll
        for (int j = 0; j < 4; j++)
            asm volatile("st.shared.u32 [%0], %1;" ::"r"(to + i * 16 + (j & 1) * 8 * Q_PITCH + (j >> 1) * 16), "r"(w[j])
                         : "memory");
#endif
    }
    __syncwarp();
    const int CHUNKS = HEAD_DIM / 8; // of 16 bytes in a row
#pragma unroll 2
    for (int at = lane; at < 16 * CHUNKS; at += 32) {
        int r = at / CHUNKS, c = at % CHUNKS, row = first_row + r;
        uint4 words;
        asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                     : "r"(staging + r * Q_PITCH + c * 16)
                     : "memory");
        ACT *out = p.out + (tile.first_token + row / GROUP) * p.out_token_stride +
                   (tile.kv_head * GROUP + row % GROUP) * p.out_head_stride;
        if (row < tile.rows) *(uint4 *)(out + 8 * c) = words;
    }
    __syncwarp();
}
