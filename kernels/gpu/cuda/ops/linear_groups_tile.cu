// `linear` of a batch of tokens over records: tiles of 32·ROW_WARPS weight rows and TOKENS tokens. Groups of 128
// depths, codes, scales and tokens, stream through a ring of STAGES pieces in shared memory, and codes become operands
// between shared memory and matrix units: nothing is unpacked. Few tiles share the depth among several blocks: each
// leaves its sums, and groups_finish adds them in order. groups_product.cuh says how lanes share rows, depths and
// tokens.
//
// The warps are ROW_WARPS by rows and TOKEN_WARPS by tokens. Where the format has minima, each warp sums the values of
// some of the piece's tokens for all, while the products run. 16-byte units of codes and tokens are swapped within
// their rows, so that what lanes read together lies in different banks.
//
// Definitions: FORMAT (see groups_product.cuh), ACT (bf16, f16), OUT (bf16, f16, f32), TOKENS (a multiple of
// 8·TOKEN_WARPS), ROW_WARPS, TOKEN_WARPS, STAGES (2 or more), MIN_BLOCKS, EPILOGUE (see activate.cuh).
// linear_groups_tile: grid (⌈n / 32·ROW_WARPS⌉, ⌈tokens / TOKENS⌉, splits), 32·ROW_WARPS·TOKEN_WARPS threads; dynamic
// shared memory: STAGES·`kStageBytes` + TOKENS·`kRuns`·4, at least TOKENS·(32·ROW_WARPS + 4)·4 bytes. `depth`: groups
// of a split. `partials` (null where there is one split): [splits, tokens, n] floats. groups_finish: grid (⌈n / 256⌉,
// tokens), 256 threads.
// Needs: k a multiple of 32, x_stride one of 8, x and weights 16-byte aligned.
// check: -DFORMAT=43 -DACT=bf16 -DOUT=bf16 -DTOKENS=64 -DROW_WARPS=4 -DTOKEN_WARPS=1 -DSTAGES=4 -DMIN_BLOCKS=2 -DEPILOGUE=0
// check: -DFORMAT=43 -DACT=f16 -DOUT=f32 -DTOKENS=128 -DROW_WARPS=4 -DTOKEN_WARPS=2 -DSTAGES=4 -DMIN_BLOCKS=1 -DEPILOGUE=1
// check: -DFORMAT=40 -DACT=bf16 -DOUT=bf16 -DTOKENS=32 -DROW_WARPS=4 -DTOKEN_WARPS=1 -DSTAGES=3 -DMIN_BLOCKS=1 -DEPILOGUE=0
// check: -DFORMAT=45 -DACT=bf16 -DOUT=bf16 -DTOKENS=64 -DROW_WARPS=4 -DTOKEN_WARPS=2 -DSTAGES=3 -DMIN_BLOCKS=1 -DEPILOGUE=3
// check: -DFORMAT=47 -DACT=f16 -DOUT=f16 -DTOKENS=64 -DROW_WARPS=4 -DTOKEN_WARPS=1 -DSTAGES=3 -DMIN_BLOCKS=1 -DEPILOGUE=0
// check: -DFORMAT=48 -DACT=bf16 -DOUT=bf16 -DTOKENS=32 -DROW_WARPS=4 -DTOKEN_WARPS=1 -DSTAGES=4 -DMIN_BLOCKS=2 -DEPILOGUE=0
// check: -DFORMAT=49 -DACT=f16 -DOUT=f16 -DTOKENS=64 -DROW_WARPS=4 -DTOKEN_WARPS=1 -DSTAGES=4 -DMIN_BLOCKS=2 -DEPILOGUE=0
// check: -DFORMAT=55 -DACT=bf16 -DOUT=bf16 -DTOKENS=128 -DROW_WARPS=4 -DTOKEN_WARPS=2 -DSTAGES=3 -DMIN_BLOCKS=1 -DEPILOGUE=0
// check: -DFORMAT=3 -DACT=bf16 -DOUT=bf16 -DTOKENS=64 -DROW_WARPS=4 -DTOKEN_WARPS=1 -DSTAGES=4 -DMIN_BLOCKS=2 -DEPILOGUE=0
// check: -DFORMAT=4 -DACT=f16 -DOUT=f16 -DTOKENS=64 -DROW_WARPS=4 -DTOKEN_WARPS=1 -DSTAGES=3 -DMIN_BLOCKS=1 -DEPILOGUE=0
// check: -DFORMAT=5 -DACT=bf16 -DOUT=f32 -DTOKENS=32 -DROW_WARPS=4 -DTOKEN_WARPS=1 -DSTAGES=4 -DMIN_BLOCKS=2 -DEPILOGUE=0
// check: -DFORMAT=6 -DACT=bf16 -DOUT=bf16 -DTOKENS=64 -DROW_WARPS=4 -DTOKEN_WARPS=1 -DSTAGES=3 -DMIN_BLOCKS=1 -DEPILOGUE=0
// check: -DFORMAT=7 -DACT=bf16 -DOUT=bf16 -DTOKENS=64 -DROW_WARPS=4 -DTOKEN_WARPS=1 -DSTAGES=4 -DMIN_BLOCKS=2 -DEPILOGUE=0
// check: -DFORMAT=8 -DACT=bf16 -DOUT=bf16 -DTOKENS=32 -DROW_WARPS=4 -DTOKEN_WARPS=1 -DSTAGES=4 -DMIN_BLOCKS=2 -DEPILOGUE=0
#include "groups_product.cuh"

constexpr u32 kRows = 32 * ROW_WARPS;
constexpr u32 kWarps = ROW_WARPS * TOKEN_WARPS;
constexpr u32 kThreads = 32 * kWarps;
constexpr u32 kPitch = kRows + 4;
constexpr u32 kWeightBytes = kRows / kRecordRows * kRecord;
constexpr u32 kStageBytes = kWeightBytes + TOKENS * 256;
#include "groups_tile.cuh"
// Tiles of 8 tokens of a warp, and of all.
constexpr u32 kTiles = TOKENS / 8 / TOKEN_WARPS;
constexpr u32 kAllTiles = TOKENS / 8;
// Tiles whose products take turns.
constexpr u32 kTurns = kTiles % 2 == 0 ? 2 : 1;

// Asks for the records of a group of the tile's rows: behind the last row, for the last ones again.
__device__ __forceinline__ void ask_weights(const Tile &p, u32 to, u32 first_row, u32 group) {
    constexpr u32 units = kRecord / 16;
#pragma unroll
    for (u32 i = threadIdx.x; i < kWeightBytes / 16; i += kThreads) {
        u32 block = min(first_row / kRecordRows + i / units, (p.n - 1) / kRecordRows);
        copy_async<16>(to + 16 * i, record_of(p.records, block, group) + 16 * (i % units), true);
    }
}

// And for the tokens' values.
__device__ __forceinline__ void ask_tokens(const Tile &p, u32 to, u32 first_token, u32 group) {
#pragma unroll
    for (u32 i = threadIdx.x; i < TOKENS * 16; i += kThreads) {
        u32 token = i / 16, unit = i % 16, depth = 128 * group + 8 * unit;
        bool wanted = first_token + token < p.tokens && depth < p.k;
        const ACT *from = p.x + (wanted ? (u64)(first_token + token) * p.x_stride + depth : 0);
        copy_async<16>(to + kWeightBytes + 256 * token + 16 * (unit ^ 2 * (token & 3)), from, wanted);
    }
}

// Multiplies one piece. `totals_at`: kRuns sums a token, for all warps.
__device__ __forceinline__ void multiply(const u8 *piece, float *totals_at, u32 warp_row, u32 warp_tile,
                                         float (&sums)[kTiles][2][4]) {
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const u8 *tokens = piece + kWeightBytes + 256 * g + 8 * (t & 1);
    // The lane's values of a tile's token g: units 4·chunk + t / 2, and two further on.
    auto values = [&](u32 tile) {
        const u8 *token = tokens + 2048 * tile;
        return [=](u32 chunk, u32(&b)[2][2]) {
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                uint2 v = *(const uint2 *)(token + 16 * ((4 * chunk + 2 * half + t / 2) ^ 2 * (g & 3)));
                b[half][0] = v.x, b[half][1] = v.y;
            }
        };
    };
    if (kNeedsSums) {
#pragma unroll
        for (u32 tile = warp; tile < kAllTiles; tile += kWarps) {
            float2 totals[kRuns];
            sum_group<ACT>(values(tile), totals);
#pragma unroll
            for (u32 run = 0; run < kRuns; run++)
                if (g == 0) *(float2 *)(totals_at + run * TOKENS + 8 * tile + 2 * t) = totals[run];
        }
    }
    u32 a[2][8][4];
    Factors f[2][2];
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        Codes codes[2];
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            const u8 *record = piece + (warp_row + 16 * r + 8 * h) / kRecordRows * kRecord;
            codes[h] = codes_at(record, g, t);
            f[r][h] = factors_at(record + scales_in_record(g));
        }
        left_of<ACT>(codes[0], codes[1], a[r]);
    }
#pragma unroll
    for (u32 tile = 0; tile < kTiles; tile += kTurns)
        multiply_group<ACT, 2, kTurns>(
            a, f, [&](u32 n, u32 chunk, u32(&b)[2][2]) { values(warp_tile + tile + n)(chunk, b); }, sums + tile);
    if (kNeedsSums) {
        __syncthreads();
#pragma unroll
        for (u32 tile = 0; tile < kTiles; tile++) {
            float2 totals[kRuns];
#pragma unroll
            for (u32 run = 0; run < kRuns; run++)
                totals[run] = *(const float2 *)(totals_at + run * TOKENS + 8 * (warp_tile + tile) + 2 * t);
            add_minima<2>(f, totals, sums[tile]);
        }
    }
}

__device__ __forceinline__ void product(const Tile &p) {
    extern __shared__ uint4 shared[];
    u8 *pieces = (u8 *)shared;
    float *totals_at = (float *)(pieces + STAGES * kStageBytes);
    u32 base = place_in_shared(shared), lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u32 first_row = blockIdx.x * kRows, first_token = blockIdx.y * TOKENS, begin = blockIdx.z * p.depth,
        end = min(p.records.groups, begin + p.depth);
    // The first weights are constants: ask for them before the previous kernel has ended.
#pragma unroll
    for (u32 s = 0; s < STAGES - 1; s++)
        if (begin + s < end) ask_weights(p, base + s * kStageBytes, first_row, begin + s);
    let_next_start();
    wait_for_previous();
#pragma unroll
    for (u32 s = 0; s < STAGES - 1; s++) {
        if (begin + s < end) ask_tokens(p, base + s * kStageBytes, first_token, begin + s);
        end_of_copies();
    }
    float sums[kTiles][2][4] = {};
    u32 warp_row = warp / TOKEN_WARPS * 32, warp_tile = warp % TOKEN_WARPS * kTiles, slot = 0, next = STAGES - 1;
#pragma unroll 1
    for (u32 group = begin; group < end; group++) {
        wait_for_copies<STAGES - 2>();
        __syncthreads();
        // All threads are done with the piece that was in the next slot.
        if (group + STAGES - 1 < end) {
            ask_weights(p, base + next * kStageBytes, first_row, group + STAGES - 1);
            ask_tokens(p, base + next * kStageBytes, first_token, group + STAGES - 1);
        }
        end_of_copies();
        multiply(pieces + slot * kStageBytes, totals_at, warp_row, warp_tile, sums);
        slot = slot + 1 == STAGES ? 0 : slot + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
    }
    wait_for_copies<0>();
    __syncthreads();
    float *all = (float *)shared;
#pragma unroll
    for (u32 tile = 0; tile < kTiles; tile++) {
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            float *to = all + (8 * (warp_tile + tile) + 2 * (lane & 3)) * kPitch + warp_row + 16 * r + (lane >> 2);
            to[0] = sums[tile][r][0];
            to[kPitch] = sums[tile][r][1];
            to[8] = sums[tile][r][2];
            to[kPitch + 8] = sums[tile][r][3];
        }
    }
    __syncthreads();
    write_sums(p, all, first_row, first_token);
}

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS)
    linear_groups_tile(const ACT *x, u8 *weights, const float *bias, const OUT *residual, OUT *out, float *partials,
                       u32 x_stride, u32 residual_stride, u32 out_stride, u32 tokens, u32 n, u32 k, u32 depth) {
    product({x, records_of(weights, k), bias, residual, out, partials, x_stride, residual_stride, out_stride, tokens,
             n, k, depth});
}
