// What kernels that multiply tiles of records by a batch of tokens share (linear_groups_tile, linear_groups_hopper):
// their operands, and what follows a tile's sums.
//
// Before it: FORMAT, ACT, OUT, TOKENS, EPILOGUE (see activate.cuh), and as constants the tile's rows (kRows), the
// block's threads (kThreads), a multiple of them or a part without rest, and the floats of a token's sums in shared
// memory (kPitch), such that neighbours are in rows and tokens in different banks.
#pragma once
#include "activate.cuh"
#include "groups_product.cuh"

struct Tile {
    const ACT *x;
    Records records;
    const float *bias;
    const OUT *residual;
    OUT *out;
    float *partials;
    u32 x_stride, residual_stride, out_stride;
    u32 tokens, n, k, depth;
};

// A finished sum, with what follows.
__device__ __forceinline__ void put(const Tile &p, u32 token, u32 row, float sum) {
    if (p.bias) sum += __ldg(p.bias + row);
    sum = activate<EPILOGUE>(sum);
    if (p.residual) sum += to_f32(p.residual[(u64)token * p.residual_stride + row]);
    p.out[(u64)token * p.out_stride + row] = from_f32<OUT>(sum);
}

// Writes the tile's sums, which stand in `all` by token (kPitch floats each) and row.
__device__ __forceinline__ void write_sums(const Tile &p, const float *all, u32 first_row, u32 first_token) {
    constexpr u32 step = kThreads < kRows ? kThreads : kRows;
    u32 tokens = min(p.tokens - first_token, (u32)TOKENS);
#pragma unroll
    for (u32 at = threadIdx.x % step; at < kRows; at += step) {
        u32 row = first_row + at;
        if (row >= p.n) break;
        for (u32 token = threadIdx.x / step; token < tokens; token += kThreads / step) {
            float sum = all[token * kPitch + at];
            if (p.partials) {
                p.partials[((u64)blockIdx.z * p.tokens + first_token + token) * p.n + row] = sum;
            } else {
                put(p, first_token + token, row, sum);
            }
        }
    }
}

// Adds the parts' sums in order.
extern "C" __global__ void __launch_bounds__(256)
    groups_finish(const float *partials, const float *bias, const OUT *residual, OUT *out, u32 residual_stride,
                  u32 out_stride, u32 tokens, u32 n, u32 splits) {
    u32 row = blockIdx.x * 256 + threadIdx.x, token = blockIdx.y;
    wait_for_previous();
    let_next_start();
    if (row >= n) return;
    float sum = 0.f;
#pragma unroll 4
    for (u32 split = 0; split < splits; split++) sum += partials[((u64)split * tokens + token) * n + row];
    Tile p = {nullptr, {}, bias, residual, out, nullptr, 0, residual_stride, out_stride, tokens, n, 0, 0};
    put(p, token, row, sum);
}
