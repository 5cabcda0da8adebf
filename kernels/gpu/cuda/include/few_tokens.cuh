// What products of few tokens share (linear_small, linear_once): operands, a lane's rows of weights, matrix units over
// them, and what follows the sums.
//
// Sixteen weight rows are the A operand of m16n8k16, eight tokens the columns of B. A product does not care about the
// order of its depths as long as both operands agree, so lane (g, t) reads 16 bytes of rows g and g + 8 and of token g
// at depths 8t .. 8t + 7 of a chunk of 32: that is two steps of the product, and no weight goes through shared memory.
// The warps of a block share the chunks of its rows; their sums meet at the end.
//
// Definitions of the including file: ACT, OUT, TILES (8 tokens each), WARPS, ROW_TILES (16 rows each), EPILOGUE, GATE,
// NORM.
#pragma once
#include "act_norm.cuh"
#include "activate.cuh"
#include "common.cuh"
#include "mma.cuh"
#include "weights.cuh"

constexpr u32 kThreads = 32 * WARPS;
constexpr u32 kRows = 16 * ROW_TILES;
constexpr u32 kOut = GATE ? kRows / 2 : kRows;
// Padding that keeps the lanes of a store in different banks.
constexpr u32 kColumn = kRows + 4;
constexpr u32 kTokens = 8 * TILES;
constexpr u32 kSums = WARPS * kTokens * kColumn;

struct Few {
    const ACT *x;
    const ACT *w;
    const ACT *w_up;
    const float *norm;
    const float *bias;
    const float *bias_up;
    const OUT *residual;
    OUT *out;
    u32 x_stride, residual_stride, out_stride;
    u32 tokens, n, k;
    float norm_offset, eps;
};

// The norm's weights of depths at .. at + 7, which are constant.
__device__ __forceinline__ void load_norm(const Few &p, u32 at, float (&scale)[8]) {
    float4 low = __ldg((const float4 *)(p.norm + at)), high = __ldg((const float4 *)(p.norm + at) + 1);
    float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 8; i++) scale[i] = v[i] + p.norm_offset;
}

// 1 / rms of a token, from the squares that the warps left.
__device__ __forceinline__ float scale_of(const float *squares, u32 column, float one_over_k, float eps) {
    float sum = 0.f;
#pragma unroll
    for (u32 i = 0; i < WARPS; i++) sum += squares[column * WARPS + i];
    return rsqrtf(fmaf(sum, one_over_k, eps));
}

// The addends of an output value, loaded before its sum is complete.
struct Around {
    float bias, bias_up;
    const OUT *from; // of the residual, or none
    u32 residual;
};

// Loads its constants and finds the address of the residual.
__device__ __forceinline__ Around around(const Few &p, u32 tile, u32 i, u32 first_token, u32 columns) {
    Around a = {0.f, 0.f, nullptr, 0};
    u32 row = tile * kOut + i % kOut, column = i / kOut;
    if (row < p.n && column < columns) {
        if (p.bias) a.bias = __ldg(p.bias + row);
        if (GATE && p.bias_up) a.bias_up = __ldg(p.bias_up + row);
        if (p.residual) a.from = p.residual + (u64)(first_token + column) * p.residual_stride + row;
    }
    return a;
}

// What earlier work wrote.
__device__ __forceinline__ void ask_residual(Around &a) {
    if (a.from) a.residual = load_bits(a.from);
}

// What follows the sums of output value `i` of a tile of rows: neighbours are in a row.
__device__ __forceinline__ void finish_value(const Few &p, u32 tile, u32 i, const float *sums, const float *squares,
                                             float one_over_k, u32 first_token, const Around &a) {
    u32 at = i % kOut, column = i / kOut, row = tile * kOut + at;
    // Gate rows are the first eight of their tile, up rows the others.
    const float *from = sums + column * kColumn + (GATE ? at / 8 * 16 + at % 8 : at);
    float sum = 0.f, up = 0.f;
#pragma unroll
    for (u32 warp = 0; warp < WARPS; warp++) {
        sum += from[warp * kTokens * kColumn];
        if (GATE) up += from[warp * kTokens * kColumn + 8];
    }
    float scale = NORM ? scale_of(squares, column, one_over_k, p.eps) : 1.f;
    sum = fmaf(sum, scale, a.bias);
    sum = GATE ? activate<GATE>(sum) * fmaf(up, scale, a.bias_up) : activate<EPILOGUE>(sum);
    p.out[(u64)(first_token + column) * p.out_stride + row] = from_f32<OUT>(sum + from_bits<OUT>(a.residual));
}

// What follows the sums of a tile of rows, one thread a value. `first` belongs to the thread's first one.
__device__ __forceinline__ void finish(const Few &p, u32 tile, const float *sums, const float *squares,
                                       float one_over_k, u32 first_token, u32 columns, const Around &first) {
    auto present = [&](u32 i) { return i < kOut * columns && tile * kOut + i % kOut < p.n; };
    if constexpr (kOut * kTokens <= kThreads) {
        if (present(threadIdx.x)) finish_value(p, tile, threadIdx.x, sums, squares, one_over_k, first_token, first);
    } else {
#pragma unroll 1
        for (u32 i = threadIdx.x; i < kOut * columns; i += kThreads) {
            Around a = first;
            if (i != threadIdx.x) {
                a = around(p, tile, i, first_token, columns);
                ask_residual(a);
            }
            if (present(i)) finish_value(p, tile, i, sums, squares, one_over_k, first_token, a);
        }
    }
}

// Where the lane's depths of its rows of a tile begin.
__device__ __forceinline__ void find_rows(const Few &p, u32 tile, u32 g, u32 t, const ACT *(&rows)[ROW_TILES][2]) {
    u32 last = p.n - 1;
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++) {
        u32 first = tile * kOut + r * (GATE ? 8 : 16) + g;
        rows[r][0] = p.w + (u64)min(first, last) * p.k + 8 * t;
        rows[r][1] = GATE ? p.w_up + (u64)min(first, last) * p.k + 8 * t
                          : p.w + (u64)min(first + 8, last) * p.k + 8 * t;
    }
}

__device__ __forceinline__ void load_rows(const ACT *const (&rows)[ROW_TILES][2], u32 depth, bool wanted,
                                          uint4 (&w)[ROW_TILES][2]) {
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++) {
        w[r][0] = load_weights(rows[r][0] + depth, wanted);
        w[r][1] = load_weights(rows[r][1] + depth, wanted);
    }
}

// One chunk's two steps for a tile of tokens; sums of row tile r are at r · TILES.
__device__ __forceinline__ void multiply(const uint4 (&w)[ROW_TILES][2], const uint4 &x, float (*sums)[4]) {
    u32 low[2] = {x.x, x.y}, high[2] = {x.z, x.w};
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++) {
        uint4 a = w[r][0], b = w[r][1];
        u32 first[4] = {a.x, b.x, a.y, b.y}, second[4] = {a.z, b.z, a.w, b.w};
        mma_m16n8k16<ACT>(sums[r * TILES], first, low);
        mma_m16n8k16<ACT>(sums[r * TILES], second, high);
    }
}

// Leaves a warp's sums of a tile of tokens (number `n`) where `finish` finds them.
__device__ __forceinline__ void leave_sums(float *to, u32 n, float (*sums)[4]) {
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++) {
        float *at = to + (warp * kTokens + 8 * n + 2 * t) * kColumn + 16 * r + g, *from = sums[r * TILES];
        at[0] = from[0];
        at[kColumn] = from[1];
        at[8] = from[2];
        at[kColumn + 8] = from[3];
    }
}
