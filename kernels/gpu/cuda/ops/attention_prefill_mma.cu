// Attention of prompt chunks over the paged cache with the m16n8k16 product of a warp (sm_80 and newer): for devices
// that attention_prefill does not serve. Each warp holds 16 rows; keys and values of a cache block pass through shared
// memory one after the other, so that the next part loads while the present one is multiplied (Dao 2023, arXiv
// 2307.08691).
//
// Definitions: ACT (bf16, f16: activations), KV (the cache: ACT, e4m3, code8 or code4), HEAD_DIM (32, 64, 96, 128),
// GROUP (query heads of a KV head, 1..16), BLOCK (32, 64, 128), SOFTCAP (1: scores are capped), MAX_SEQS (most
// sequences of a call).
//
// Launch: 128 threads; grid.x any number, best min(2 · multiprocessors, (T · GROUP / 64 + S) · num_kv_heads); dynamic
// shared memory: 64 · (2 · HEAD_DIM + 16) + a head's keys and values of a block as the cache has them + 12 · MAX_SEQS +
// 16 bytes. Parameters, rows, tiles and needs as attention_prefill.
// check: -DACT=bf16 -DHEAD_DIM=128 -DGROUP=4 -DBLOCK=64 -DSOFTCAP=0 -DMAX_SEQS=512
// check: -DACT=f16 -DHEAD_DIM=96 -DGROUP=1 -DBLOCK=32 -DSOFTCAP=1 -DMAX_SEQS=64
// check: -DACT=bf16 -DKV=e4m3 -DHEAD_DIM=128 -DGROUP=4 -DBLOCK=64 -DSOFTCAP=0 -DMAX_SEQS=512
// check: -DACT=f16 -DKV=e4m3 -DHEAD_DIM=32 -DGROUP=2 -DBLOCK=128 -DSOFTCAP=1 -DMAX_SEQS=64
// check: -DACT=bf16 -DKV=code8 -DHEAD_DIM=128 -DGROUP=4 -DBLOCK=64 -DSOFTCAP=0 -DMAX_SEQS=512
// check: -DACT=f16 -DKV=code4 -DHEAD_DIM=96 -DGROUP=2 -DBLOCK=32 -DSOFTCAP=1 -DMAX_SEQS=64
#include "common.cuh"
#include "mma.cuh"

#ifndef KV
#define KV ACT
#endif
#ifndef SOFTCAP
#define SOFTCAP 0
#endif
#ifndef MAX_SEQS
#define MAX_SEQS 512
#endif

#define ROWS 64
#define THREADS 128
#include "prefill.cuh"

__device__ __forceinline__ void load_async(u32 to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// Waits for the thread's loads, then for all threads'.
__device__ __forceinline__ void loads_done() {
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
}
__device__ __forceinline__ void load_part(u32 to, const u8 *from, int thread) {
#pragma unroll 4
    for (int at = 16 * thread; at < PART_BYTES; at += 16 * THREADS) load_async(to + at, from + at);
}

// d (16 rows, 8 · COLUMNS) += a · b, DEPTH 16-deep steps; b's units lie in shared memory as in the cache.
template <int COLUMNS, int DEPTH>
__device__ __forceinline__ void multiply(float (&d)[4 * COLUMNS], const u32 (&a)[4 * DEPTH], u32 b, int lane) {
    constexpr bool WIDE = sizeof(KV) == 2;
    // Four units at once: four rows of one column, or (8-bit, a row is a step) two rows of two columns.
    b += (WIDE ? (lane >> 3) * COLUMNS : (lane >> 3 & 1) * COLUMNS + (lane >> 4)) * 128 + (lane & 7) * 16;
#pragma unroll
    for (int k = 0; k < DEPTH; k += 2) {
#pragma unroll
        for (int c = 0; c < COLUMNS; c += WIDE ? 1 : 2) {
            u32 units[4];
            load_pieces(units, b + ((WIDE ? 2 : 1) * k * COLUMNS + c) * 128);
#pragma unroll
            for (int part = 0; part < (WIDE ? 2 : 4); part++) {
                int step = part % 2;
                float(&tile)[4] = *reinterpret_cast<float(*)[4]>(&d[4 * (c + part / 2)]);
                u32 left[4] = {a[4 * (k + step)], a[4 * (k + step) + 1], a[4 * (k + step) + 2], a[4 * (k + step) + 3]};
                u32 right[2];
                if constexpr (WIDE) {
                    right[0] = units[2 * step];
                    right[1] = units[2 * step + 1];
                } else {
                    widen(units[part], right[0], right[1]);
                }
                mma_m16n8k16<FACTOR>(tile, left, right);
            }
        }
    }
}

// Scores of a block's keys as codes.
template <typename L>
__device__ __forceinline__ void multiply_coded_keys(float (&s)[BLOCK / 2], const u32 (&q)[HEAD_DIM / 4], u32 keys,
                                                    const float (&query_sums)[2], int lane) {
    constexpr int STEPS = L::ROW / 16; // of the product in a row
    u32 at = keys + (lane >> 3) * 128 + (lane & 7) * 16;
#pragma unroll
    for (int row = 0; row < L::KEY_ROWS; row++)
#pragma unroll
        for (int c = 0; c < BLOCK / 8; c += 4) {
            u32 units[4];
            load_pieces(units, at + (row * L::TOKEN_UNITS + c) * 128);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int step = 0; step < STEPS && row * STEPS + step < HEAD_DIM / 16; step++) {
                    const u32 *own = q + 4 * (row * STEPS + step);
                    u32 left[4] = {own[0], own[1], own[2], own[3]},
                        right[2] = {code_pair<FACTOR, CODE_BITS>(units[i], 2 * step),
                                    code_pair<FACTOR, CODE_BITS>(units[i], 2 * step + 1)};
                    mma_m16n8k16<FACTOR>(*reinterpret_cast<float(*)[4]>(&s[4 * (c + i)]), left, right);
                }
        }
#pragma unroll
    for (int c = 0; c < BLOCK / 8; c++) {
        uint2 words = load_words(keys + L::WORDS_AT + (8 * c + 2 * (lane & 3)) * 4);
        CodeMap first = code_map<CODE_BITS>(words.x), second = code_map<CODE_BITS>(words.y);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float *score = s + 4 * c + 2 * half;
            score[0] = scaled_score<CODE_BITS>(score[0], first, query_sums[half]);
            score[1] = scaled_score<CODE_BITS>(score[1], second, query_sums[half]);
        }
    }
}

// Adds a block's values as codes, weighted.
template <typename L>
__device__ __forceinline__ void multiply_coded_values(float (&o)[HEAD_DIM / 2], const u32 (&weights)[BLOCK / 4],
                                                      u32 values, int lane) {
    constexpr int PAIRS = L::ROW / 8; // of 8 dims in a row
    u32 at = values + (lane >> 3) * 128 + (lane & 7) * 16;
#pragma unroll
    for (int eighth = 0; eighth < BLOCK / 8; eighth += 4) {
        ScalePair maps[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint2 words = load_words(values + L::WORDS_AT + (8 * (eighth + i) + 2 * (lane & 3)) * 4);
            maps[i] = scale_pair<FACTOR, CODE_BITS>(words.x, words.y);
        }
#pragma unroll
        for (int row = 0; row < L::KEY_ROWS; row++) {
            u32 units[4];
            load_pieces_transposed(units, at + (row * L::TOKEN_UNITS + eighth) * 128);
#pragma unroll
            for (int j = 0; j < PAIRS && row * PAIRS + j < HEAD_DIM / 8; j++)
#pragma unroll
                for (int step = 0; step < 2; step++) {
                    const u32 *own = weights + 4 * (eighth / 2 + step);
                    u32 left[4] = {own[0], own[1], own[2], own[3]}, right[2];
#pragma unroll
                    for (int i = 0; i < 2; i++)
                        right[i] = value_pair<FACTOR, CODE_BITS>(units[2 * step + i], j, maps[2 * step + i]);
                    mma_m16n8k16<FACTOR>(*reinterpret_cast<float(*)[4]>(&o[4 * (row * PAIRS + j)]), left, right);
                }
        }
    }
}

// The sums of the queries of a lane's rows, g and g + 8.
__device__ __forceinline__ void sum_queries(float (&sums)[2], const u32 (&q)[HEAD_DIM / 4]) {
    u32 one = pack2<FACTOR>(1.f, 1.f), ones[2] = {one, one};
    float sum[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int k = 0; k < HEAD_DIM / 16; k++) {
        u32 left[4] = {q[4 * k], q[4 * k + 1], q[4 * k + 2], q[4 * k + 3]};
        mma_m16n8k16<FACTOR>(sum, left, ones);
    }
    sums[0] = sum[0];
    sums[1] = sum[2];
}

__device__ __forceinline__ void attend(const Params &p, const Tile &tile, int table_row, u32 queries, u32 keys,
                                       int thread) {
    int warp = thread / 32, lane = thread & 31;
    u32 values = keys + PART_BYTES;
    u64 head_offset = (u64)tile.kv_head * 2 * PART_BYTES;
    const i32 *table = p.block_table + table_row * p.table_stride;
    __syncthreads(); // the tile before is done with shared memory
    for (int at = thread; at < ROWS * HEAD_DIM / 8; at += THREADS) {
        int r = at / (HEAD_DIM / 8), c = at % (HEAD_DIM / 8), row = min(tile.first_row + r, tile.rows - 1);
        const ACT *from = p.q + (tile.first_token + row / GROUP) * p.q_token_stride +
                          (tile.kv_head * GROUP + row % GROUP) * p.q_head_stride;
        load_async(queries + r * Q_PITCH + c * 16, from + 8 * c);
    }
    const u8 *block_data = p.cache + table[tile.last_block] * p.block_bytes + head_offset;
    load_part(keys, block_data, thread);
    loads_done();

    u32 q[HEAD_DIM / 4], weights[BLOCK / 4];
#pragma unroll
    for (int k = 0; k < HEAD_DIM / 16; k++)
        load_pieces(*reinterpret_cast<u32(*)[4]>(&q[4 * k]),
                    queries + (16 * warp + (lane & 15)) * Q_PITCH + (lane >> 4) * 16 + k * 32);
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 4; i++) q[i] = Query<ACT, KV>::factor(q[i]);
    float query_sums[2] = {};
    if constexpr (CODE_BITS == 4) {
        turn_operands<ACT, HEAD_DIM>(q);
        sum_queries(query_sums, q);
    }
    int first_row = tile.first_row + 16 * warp, position[2];
#pragma unroll
    for (int half = 0; half < 2; half++)
        position[half] = tile.prefix + min(first_row + lane / 4 + 8 * half, tile.rows - 1) / GROUP;
    int clear = tile.prefix + min(first_row, tile.rows - 1) / GROUP + 1;
    int seen = p.window > 0 ? tile.prefix + min(first_row + 15, tile.rows - 1) / GROUP - p.window + 1 : 0;
    float scale_log2 = SOFTCAP ? LOG2E : p.scale * LOG2E;
    float o[HEAD_DIM / 2], maximum[2] = {-INFINITY_F, -INFINITY_F}, sum[2] = {0.f, 0.f}, rescale[2], offset[2];
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; i++) o[i] = 0.f;

#pragma unroll 1
    for (int block = tile.last_block; block >= tile.first_block; block--) {
        load_part(values, block_data + PART_BYTES, thread);
        float s[BLOCK / 2];
#pragma unroll
        for (int i = 0; i < BLOCK / 2; i++) s[i] = 0.f;
        if constexpr (CODE_BITS > 0) multiply_coded_keys<Layout>(s, q, keys, query_sums, lane);
        else multiply<BLOCK / 8, HEAD_DIM / 16>(s, q, keys, lane);
        loads_done();
        if (block == tile.last_block && last_keys(tile) < BLOCK) {
            clear_values<Layout>(values, block_data + PART_BYTES, last_keys(tile), thread, THREADS);
            __syncthreads();
        }
        if (block > tile.first_block) {
            block_data = p.cache + table[block - 1] * p.block_bytes + head_offset;
            load_part(keys, block_data, thread);
        }
        if (SOFTCAP) cap(s, p.scale, p.softcap);
        if ((block + 1) * BLOCK > clear || block * BLOCK < seen) mask(s, position, block * BLOCK, p.window, lane);
        raise_maximum(s, maximum, rescale, offset, scale_log2);
        weigh(s, weights, sum, rescale, offset, scale_log2);
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) o[i] *= rescale[i / 2 % 2];
        if constexpr (CODE_BITS > 0) multiply_coded_values<Layout>(o, weights, values, lane);
        else multiply<HEAD_DIM / 8, BLOCK / 16>(o, weights, values, lane);
        loads_done();
    }
    store(p, tile, o, maximum, sum, first_row, scale_log2, queries + 16 * warp * Q_PITCH, lane);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    attention_prefill_mma(const ACT *q, i64 q_token_stride, i64 q_head_stride, const u8 *cache, u64 block_bytes,
                          const i32 *block_table, i64 table_stride, const i32 *step_rows, const i32 *query_start_loc,
                          const i32 *seq_lens, const float *sinks, ACT *out, i64 out_token_stride, i64 out_head_stride,
                          u32 *counter, int num_seqs, int num_kv_heads, float scale, float softcap, int window,
                          int min_query_len) {
    extern __shared__ __align__(128) u8 memory[];
    u32 keys = (u32)__cvta_generic_to_shared(memory), queries = keys + 2 * PART_BYTES;
    int *counts = (int *)(memory + 2 * PART_BYTES + ROWS * Q_PITCH), *lists = counts + 4;
    Plan plan = {lists, lists + MAX_SEQS, lists + 2 * MAX_SEQS, counts};
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
    wait_for_previous();
    make_plan(p, plan, threadIdx.x);
    int items = counts[1] * num_kv_heads, item = blockIdx.x;
    __shared__ int taken;
    while (item < items) {
        int table_row, next = item + (int)gridDim.x;
        if (counter && threadIdx.x == 0) {
            // Each tile causes one take: the last of them leaves the counter as it was found.
            int take = (int)atomicAdd(counter, 1u);
            if (take == items - 1) *counter = 0;
            taken = take;
        }
        Tile tile = find_tile(p, plan, item, table_row);
        attend(p, tile, table_row, queries, keys, threadIdx.x);
        item = counter ? (int)gridDim.x + taken : next;
        __syncthreads();
    }
    let_next_start();
}
