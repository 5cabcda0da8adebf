// `linear` of few tokens over 8-bit weights with a scale a row: every code is read once, widened in registers and
// multiplied on matrix units; norm before, and bias, activation, gating and residual after it are fused. The layout of
// the weights is scaled.cuh's.
//
// Sixteen weight rows are the A operand of m16n8k16, eight tokens the columns of B, as in linear_small.cu; a lane (g,
// t) reads 16 codes of rows g and g + 8 at depths 16t .. 16t + 15 of a chunk of 64, which is four steps of the product.
// A block has one tile of rows; its warps share the chunks and prefetch the next ones before a chunk is used. Tokens
// are in shared memory, a slice of their depth at a time. The first weights, which are constants, are loaded before the
// previous kernel has ended.
//
// Definitions: ACT (bf16, f16), OUT (bf16, f16, f32), TILES (8 tokens each), MOST (tokens of a block: 8·TILES, or 1),
// WARPS, ROW_TILES (16 rows each), DEPTH (chunks in flight a warp), MIN_BLOCKS (blocks that an SM should hold),
// EPILOGUE (see activate.cuh), GATE (0: plain; else the activation of the gate: then tiles are 8 gate and 8 up rows,
// and out = activate(gate) · up), NORM (1: x is normalised: out = W·(x·(norm + offset)) / rms(x)).
// Launch: grid (tiles of MOST tokens, tiles of 16·ROW_TILES rows; 8·ROW_TILES gated), 32·WARPS threads; token tiles are
// neighbours, so that the second one finds the weights in the cache. Slices are `slice_rounds` times WARPS·DEPTH
// chunks.
// Dynamic shared memory: the tile's tokens, `staged_pitch` values each, then WARPS·MOST·(16·ROW_TILES + 5) floats.
// Needs: k and x_stride multiples of 16 and 8, x, codes and norm 16-byte aligned.
// check: -DACT=bf16 -DOUT=bf16 -DTILES=1 -DMOST=8 -DWARPS=8 -DROW_TILES=1 -DDEPTH=4 -DMIN_BLOCKS=3 -DEPILOGUE=0 -DGATE=0 -DNORM=1
// check: -DACT=bf16 -DOUT=bf16 -DTILES=1 -DMOST=8 -DWARPS=8 -DROW_TILES=1 -DDEPTH=4 -DMIN_BLOCKS=3 -DEPILOGUE=0 -DGATE=1 -DNORM=1
// check: -DACT=bf16 -DOUT=bf16 -DTILES=1 -DMOST=1 -DWARPS=8 -DROW_TILES=1 -DDEPTH=4 -DMIN_BLOCKS=3 -DEPILOGUE=0 -DGATE=1 -DNORM=1
// check: -DACT=bf16 -DOUT=bf16 -DTILES=1 -DMOST=8 -DWARPS=8 -DROW_TILES=1 -DDEPTH=4 -DMIN_BLOCKS=3 -DEPILOGUE=0 -DGATE=0 -DNORM=0
// check: -DACT=bf16 -DOUT=bf16 -DTILES=1 -DMOST=1 -DWARPS=8 -DROW_TILES=1 -DDEPTH=4 -DMIN_BLOCKS=3 -DEPILOGUE=0 -DGATE=0 -DNORM=0
// check: -DACT=bf16 -DOUT=f32 -DTILES=2 -DMOST=16 -DWARPS=8 -DROW_TILES=2 -DDEPTH=2 -DMIN_BLOCKS=2 -DEPILOGUE=0 -DGATE=2 -DNORM=1
// check: -DACT=f16 -DOUT=f16 -DTILES=4 -DMOST=32 -DWARPS=8 -DROW_TILES=2 -DDEPTH=2 -DMIN_BLOCKS=2 -DEPILOGUE=3 -DGATE=0 -DNORM=0
// check: -DACT=f16 -DOUT=f32 -DTILES=1 -DMOST=8 -DWARPS=1 -DROW_TILES=1 -DDEPTH=1 -DMIN_BLOCKS=3 -DEPILOGUE=1 -DGATE=0 -DNORM=0
#include "act_norm.cuh"
#include "activate.cuh"
#include "mma.cuh"
#include "scaled.cuh"
#include "weights.cuh"

constexpr u32 kThreads = 32 * WARPS;
constexpr u32 kRows = 16 * ROW_TILES;
constexpr u32 kOut = GATE ? kRows / 2 : kRows;
// Padding that keeps the lanes of a store in different banks.
constexpr u32 kColumn = kRows + 4;
constexpr u32 kTokens = MOST;
// Tokens whose loads a thread has in flight.
constexpr u32 kBatch = MOST < 4 ? MOST : 4;
constexpr u32 kRound = 64 * WARPS * DEPTH;

struct Product {
    const ACT *x;
    const u8 *codes, *codes_up;
    const float *scales, *scales_up;
    const float *norm, *bias, *bias_up;
    const OUT *residual;
    OUT *out;
    u32 x_stride, residual_stride, out_stride;
    u32 tokens, n, k, slice_rounds;
    float norm_offset, eps;
};

// Values of a token in shared memory, with padding: the two tokens that lanes read together lie in different banks.
__device__ __forceinline__ u32 staged_pitch(u32 k, u32 slice_rounds) {
    return min((k + 63) / 64 * 64, slice_rounds * kRound) + 8;
}

// Copies depths first .. end of this tile's tokens to shared memory, normalised up to their root mean square.
__device__ __forceinline__ void stage(const Product &p, u32 first_token, u32 columns, u32 first, u32 end, ACT *staged,
                                      float (&squares)[kTokens]) {
    u32 pitch = staged_pitch(p.k, p.slice_rounds);
    const ACT *x = p.x + (u64)first_token * p.x_stride;
    for (u32 at = first + 8 * threadIdx.x; at < end; at += 8 * kThreads) {
        float scale[8];
        if (NORM) {
            float4 low = __ldg((const float4 *)(p.norm + at)), high = __ldg((const float4 *)(p.norm + at) + 1);
            float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
            for (int i = 0; i < 8; i++) scale[i] = v[i] + p.norm_offset;
        }
#pragma unroll
        for (u32 base = 0; base < kTokens; base += kBatch) {
            if (base >= columns) break;
            uint4 v[kBatch];
#pragma unroll
            for (u32 i = 0; i < kBatch; i++)
                v[i] = load_values(x + (u64)(base + i) * p.x_stride + at, base + i < columns);
#pragma unroll
            for (u32 i = 0; i < kBatch; i++) {
                if (base + i >= columns) break;
                if (NORM) apply_norm(v[i], scale, squares[base + i]);
                *(uint4 *)(staged + (base + i) * pitch + (at - first)) = v[i];
            }
        }
    }
}

// The operands of an output value's epilogue, loaded before its sum is complete.
struct Around {
    float scale, scale_up, bias, bias_up;
    u32 residual;
};

__device__ __forceinline__ Around around(const Product &p, u32 i, u32 first_token, u32 columns) {
    Around a = {0.f, 0.f, 0.f, 0.f, 0};
    u32 row = blockIdx.y * kOut + i % kOut, column = i / kOut;
    if (row < p.n && column < columns) {
        a.scale = __ldg(p.scales + row);
        if (GATE) a.scale_up = __ldg(p.scales_up + row);
        if (p.bias) a.bias = __ldg(p.bias + row);
        if (GATE && p.bias_up) a.bias_up = __ldg(p.bias_up + row);
        if (p.residual) a.residual = load_bits(p.residual + (u64)(first_token + column) * p.residual_stride + row);
    }
    return a;
}

// What follows the sums: one thread an output value, neighbours in a row. `first` belongs to the thread's first value.
__device__ __forceinline__ void finish(const Product &p, const float *sums, const float *squares, u32 first_token,
                                       u32 columns, Around first) {
#pragma unroll 1
    for (u32 i = threadIdx.x; i < kOut * columns; i += kThreads) {
        u32 at = i % kOut, column = i / kOut, row = blockIdx.y * kOut + at;
        if (row >= p.n) continue;
        Around a = i == threadIdx.x ? first : around(p, i, first_token, columns);
        // Gate rows are the first eight of their tile, up rows the others.
        const float *from = sums + column * kColumn + (GATE ? at / 8 * 16 + at % 8 : at);
        float sum = 0.f, up = 0.f, square = 0.f;
#pragma unroll
        for (u32 warp = 0; warp < WARPS; warp++) {
            sum += from[warp * kTokens * kColumn];
            if (GATE) up += from[warp * kTokens * kColumn + 8];
            if (NORM) square += squares[column * WARPS + warp];
        }
        float rms = NORM ? rsqrtf(fmaf(square, 1.f / (float)p.k, p.eps)) : 1.f;
        sum = fmaf(sum, a.scale * rms, a.bias);
        sum = GATE ? activate<GATE>(sum) * fmaf(up, a.scale_up * rms, a.bias_up) : activate<EPILOGUE>(sum);
        p.out[(u64)(first_token + column) * p.out_stride + row] = from_f32<OUT>(sum + from_bits<OUT>(a.residual));
    }
}

// Where the lane's depths of its rows begin.
__device__ __forceinline__ void find_rows(const Product &p, u32 g, u32 t, const u8 *(&rows)[ROW_TILES][2]) {
    u32 last = p.n - 1;
    u64 pitch = codes_pitch(p.k);
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++) {
        u32 first = blockIdx.y * kOut + r * (GATE ? 8 : 16) + g;
        rows[r][0] = p.codes + min(first, last) * pitch + 16 * t;
        rows[r][1] = GATE ? p.codes_up + min(first, last) * pitch + 16 * t
                          : p.codes + min(first + 8, last) * pitch + 16 * t;
    }
}

__device__ __forceinline__ void load_rows(const u8 *const (&rows)[ROW_TILES][2], u32 depth, bool wanted,
                                          uint4 (&w)[ROW_TILES][2]) {
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++) {
        w[r][0] = load_weights(rows[r][0] + depth, wanted);
        w[r][1] = load_weights(rows[r][1] + depth, wanted);
    }
}

// One chunk's four steps for all tiles of tokens. `x` is the lane's depth of token g; null where there is none.
__device__ __forceinline__ void multiply(const uint4 (&w)[ROW_TILES][2], const ACT *x, u32 pitch, u32 g, u32 columns,
                                         float (&sums)[ROW_TILES][TILES][4]) {
    u32 a[ROW_TILES][4][4];
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++) {
        u32 low[4] = {w[r][0].x, w[r][0].y, w[r][0].z, w[r][0].w},
            high[4] = {w[r][1].x, w[r][1].y, w[r][1].z, w[r][1].w};
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            widen_codes<ACT>(low[i], a[r][i][0], a[r][i][2]);
            widen_codes<ACT>(high[i], a[r][i][1], a[r][i][3]);
        }
    }
#pragma unroll
    for (u32 n = 0; n < TILES; n++) {
        uint4 first = make_uint4(0, 0, 0, 0), second = first;
        if (x && 8 * n + g < columns) {
            const uint4 *from = (const uint4 *)(x + 8 * n * pitch);
            first = from[0];
            second = from[1];
        }
        u32 b[4][2] = {{first.x, first.y}, {first.z, first.w}, {second.x, second.y}, {second.z, second.w}};
#pragma unroll
        for (u32 i = 0; i < 4; i++)
#pragma unroll
            for (u32 r = 0; r < ROW_TILES; r++) mma_m16n8k16<ACT>(sums[r][n], a[r][i], b[i]);
    }
}

__device__ __forceinline__ void product(const Product &p) {
    extern __shared__ uint4 shared[];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    u32 first_token = blockIdx.x * kTokens, columns = min(p.tokens - first_token, kTokens);
    u32 pitch = staged_pitch(p.k, p.slice_rounds), slice = p.slice_rounds * kRound, chunks = (p.k + 63) / 64;
    ACT *staged = (ACT *)shared;
    float *sums_at = (float *)(staged + columns * pitch), *squares_at = sums_at + WARPS * kTokens * kColumn;

    const u8 *rows[ROW_TILES][2];
    uint4 w[DEPTH][ROW_TILES][2];
    find_rows(p, g, t, rows);
#pragma unroll
    for (u32 d = 0; d < DEPTH; d++) {
        u32 depth = 64 * (warp + d * WARPS);
        load_rows(rows, depth, depth + 16 * t < p.k, w[d]);
    }
    let_next_start();
    wait_for_previous();
    Around first = around(p, threadIdx.x, first_token, columns);

    float sums[ROW_TILES][TILES][4] = {}, squares[kTokens] = {};
    u32 slice_first = 0, slice_end = 0;
#pragma unroll 1
    for (u32 begin = 0; begin < p.k; begin += kRound) {
        if (begin == slice_end) {
            if (begin) __syncthreads();
            slice_first = begin;
            slice_end = begin + slice;
            stage(p, first_token, columns, begin, min(slice_end, p.k), staged, squares);
            __syncthreads();
        }
#pragma unroll
        for (u32 d = 0; d < DEPTH; d++) {
            u32 chunk = begin / 64 + warp + d * WARPS, depth = 64 * chunk + 16 * t;
            if (chunk < chunks) {
                const ACT *x = depth < p.k ? staged + g * pitch + (depth - slice_first) : nullptr;
                multiply(w[d], x, pitch, g, columns, sums);
            }
            u32 ahead = 64 * chunk + kRound;
            load_rows(rows, ahead, ahead + 16 * t < p.k, w[d]);
        }
    }
#pragma unroll
    for (u32 n = 0; n < TILES; n++) {
#pragma unroll
        for (u32 r = 0; r < ROW_TILES; r++) {
            if (8 * n + 2 * t >= kTokens) continue;
            float *to = sums_at + (warp * kTokens + 8 * n + 2 * t) * kColumn + 16 * r + g;
            to[0] = sums[r][n][0];
            to[8] = sums[r][n][2];
            if (kTokens == 1) continue;
            to[kColumn] = sums[r][n][1];
            to[kColumn + 8] = sums[r][n][3];
        }
    }
    if (NORM) {
#pragma unroll
        for (u32 token = 0; token < kTokens; token++) {
            if (token >= columns) break;
            float sum = warp_sum(squares[token]);
            if (lane == 0) squares_at[token * WARPS + warp] = sum;
        }
    }
    __syncthreads();
    finish(p, sums_at, squares_at, first_token, columns, first);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, MIN_BLOCKS)
    linear_scaled_small(const ACT *x, const u8 *codes, const u8 *codes_up, const float *scales, const float *scales_up,
                        const float *norm, const float *bias, const float *bias_up, const OUT *residual, OUT *out,
                        u32 x_stride, u32 residual_stride, u32 out_stride, u32 tokens, u32 n, u32 k, u32 slice_rounds,
                        float norm_offset, float eps) {
    product({x, codes, codes_up, scales, scales_up, norm, bias, bias_up, residual, out, x_stride, residual_stride,
             out_stride, tokens, n, k, slice_rounds, norm_offset, eps});
}
