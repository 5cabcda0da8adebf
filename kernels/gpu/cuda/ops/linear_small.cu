// `linear` of few tokens: every weight is read once, straight from memory into matrix units, and the ops around the
// product (norm before; bias, activation, gating, residual after) are fused.
//
// Blocks are persistent and walk over the tiles of rows. They always prefetch the next weights; the first ones, which
// are constants, before the previous kernel has ended. See few_tokens.cuh for how lanes share rows and tokens, and
// linear_once.cu for matrices that are in flight whole.
//
// Definitions: ACT (bf16, f16: activations and weights), OUT (bf16, f16, f32), TILES (8 tokens each), WARPS, ROW_TILES
// (16 rows each), DEPTH (chunks in flight a warp), MIN_BLOCKS (blocks that an SM should hold), EPILOGUE (see
// activate.cuh), GATE (0: plain; else the activation of the gate: then tiles are 8 gate and 8 up rows, and out =
// activate(gate) · up), NORM (1: x is normalised: out = W·(x·(norm + offset)) / rms(x)).
// Launch: grid (blocks: up to the number of tiles of 16·ROW_TILES rows, 8·ROW_TILES gated; tiles of 8·TILES tokens),
// 32·WARPS threads.
// Dynamic shared memory: linear_small keeps the tokens of its tile there, pitch values each (see `pitch_of`), then come
// 2·WARPS·8·TILES·(16·ROW_TILES + 4) + WARPS·8·TILES floats. linear_direct, for tokens that do not fit, needs the
// floats only; it knows no norm.
// Needs: k and x_stride multiples of 8, x, w and norm 16-byte aligned.
// check: -DACT=bf16 -DOUT=bf16 -DTILES=1 -DWARPS=16 -DROW_TILES=1 -DDEPTH=8 -DMIN_BLOCKS=1 -DEPILOGUE=0 -DGATE=0 -DNORM=1
// check: -DACT=bf16 -DOUT=bf16 -DTILES=1 -DWARPS=16 -DROW_TILES=1 -DDEPTH=8 -DMIN_BLOCKS=1 -DEPILOGUE=0 -DGATE=1 -DNORM=1
// check: -DACT=bf16 -DOUT=bf16 -DTILES=1 -DWARPS=16 -DROW_TILES=2 -DDEPTH=4 -DMIN_BLOCKS=1 -DEPILOGUE=0 -DGATE=0 -DNORM=0
// check: -DACT=bf16 -DOUT=f32 -DTILES=4 -DWARPS=16 -DROW_TILES=1 -DDEPTH=3 -DMIN_BLOCKS=1 -DEPILOGUE=0 -DGATE=0 -DNORM=0
// check: -DACT=f16 -DOUT=f32 -DTILES=2 -DWARPS=16 -DROW_TILES=2 -DDEPTH=2 -DMIN_BLOCKS=1 -DEPILOGUE=3 -DGATE=0 -DNORM=0
// check: -DACT=bf16 -DOUT=f32 -DTILES=1 -DWARPS=8 -DROW_TILES=2 -DDEPTH=4 -DMIN_BLOCKS=2 -DEPILOGUE=0 -DGATE=0 -DNORM=0
#include "few_tokens.cuh"

// Tokens whose loads a thread has in flight: as many as the registers hold together with the weights.
constexpr u32 kBatch = 4;

// Values of a token in shared memory, with its padding: tokens that lanes read together lie in different banks.
__device__ __forceinline__ u32 pitch_of(u32 k) { return (k + 63) / 64 * 64 + 32; }

// The warp's sums of eight values a lane, in one butterfly: lane l gets that of value l / 4.
__device__ __forceinline__ float eight_sums(const float *values) {
    u32 lane = threadIdx.x & 31;
    float v[8];
    for (u32 i = 0; i < 8; i++) v[i] = values[i];
#pragma unroll
    for (u32 half = 4; half > 0; half /= 2) {
        bool upper = lane & 4 * half;
#pragma unroll
        for (u32 i = 0; i < half; i++) {
            float kept = upper ? v[i + half] : v[i], given = upper ? v[i] : v[i + half];
            v[i] = kept + __shfl_xor_sync(0xffffffffu, given, 4 * half);
        }
    }
    v[0] += __shfl_xor_sync(0xffffffffu, v[0], 2);
    return v[0] + __shfl_xor_sync(0xffffffffu, v[0], 1);
}

// Copies the tokens of this tile to shared memory, and with NORM times the norm's weights, its squares to `squares`.
// Short rows are shared out: each group of warps takes every so manieth token.
__device__ __forceinline__ void stage(const Few &p, u32 first_token, u32 columns, ACT *staged, float *squares) {
    u32 pitch = pitch_of(p.k), lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u32 wide = min((p.k + 255) / 256, (u32)WARPS), groups = WARPS / wide, group = warp / wide;
    const ACT *x = p.x + (u64)first_token * p.x_stride;
    float sums[kTokens] = {};
    float scale[8];
    u32 at = 8 * (threadIdx.x - group * wide * 32);
    if (group >= groups) at = p.k;
    if (NORM && at < p.k) load_norm(p, at, scale);
    wait_for_previous();
    while (at < p.k) {
#pragma unroll
        for (u32 first = 0; first < kTokens; first += kBatch) {
            // The loads of some tokens are on their way before the first is used.
            uint4 v[kBatch];
#pragma unroll
            for (u32 i = 0; i < kBatch; i++) {
                u32 token = (first + i) * groups + group;
                v[i] = load_values(x + (u64)token * p.x_stride + at, token < columns);
            }
#pragma unroll
            for (u32 i = 0; i < kBatch; i++) {
                u32 token = (first + i) * groups + group;
                if (token >= columns) break;
                if (NORM) apply_norm(v[i], scale, sums[first + i]);
                *(uint4 *)(staged + token * pitch + at) = v[i];
            }
        }
        at += 8 * 32 * wide;
        if (NORM && at < p.k) load_norm(p, at, scale);
    }
    __syncthreads();
    if (NORM) {
        // After the barrier, where it overlaps the first products: the squares are not needed before the next barrier.
#pragma unroll
        for (u32 first = 0; first < kTokens; first += 8) {
            float sum = eight_sums(sums + first);
            u32 token = (first + lane / 4) * groups + group;
            if (token < columns && group < groups && lane % 4 == 0) squares[token * WARPS + warp] = sum;
        }
    }
}

template <bool STAGED> __device__ __forceinline__ void product(const Few &p) {
    extern __shared__ uint4 shared[];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    u32 first_token = blockIdx.y * kTokens, columns = min(p.tokens - first_token, kTokens);
    u32 pitch = pitch_of(p.k);
    ACT *staged = (ACT *)shared;
    float *sums_at = (float *)(staged + (STAGED ? columns * pitch : 0)), *squares = sums_at + 2 * kSums;
    u32 chunks = (p.k + 31) / 32, tiles = (p.n + kOut - 1) / kOut;
    float one_over_k = 1.f / (float)p.k;
    u32 rounds = (chunks + WARPS * DEPTH - 1) / (WARPS * DEPTH);

    const ACT *rows[ROW_TILES][2];
    uint4 w[DEPTH][ROW_TILES][2];
    find_rows(p, blockIdx.x, g, t, rows);
#pragma unroll
    for (u32 d = 0; d < DEPTH; d++) {
        u32 depth = 32 * (warp + d * WARPS);
        load_rows(rows, depth, depth + 8 * t < p.k, w[d]);
    }
    let_next_start();
    // Each token's squares come from some of the warps.
    if (NORM) {
        for (u32 i = threadIdx.x; i < WARPS * kTokens; i += kThreads) squares[i] = 0.f;
        __syncthreads();
    }

    if (STAGED) {
        stage(p, first_token, columns, staged, squares);
    } else {
        wait_for_previous();
    }
    // Tokens that are not staged are loaded as early as the weights.
    uint4 values[STAGED ? 1 : DEPTH][TILES];
    auto load_x = [&](u32 d, u32 depth) {
#pragma unroll
        for (u32 n = 0; n < TILES; n++) {
            bool present = 8 * n + g < columns && depth + 8 * t < p.k;
            values[STAGED ? 0 : d][n] = load_values(p.x + (u64)(first_token + 8 * n + g) * p.x_stride + depth + 8 * t,
                                                    present);
        }
    };
    if (!STAGED) {
#pragma unroll
        for (u32 d = 0; d < DEPTH; d++) load_x(d, 32 * (warp + d * WARPS));
    }

    u32 parity = 0, tile = blockIdx.x;
    do {
        float sums[ROW_TILES * TILES][4] = {};
        Around first = around(p, tile, threadIdx.x, first_token, columns);
        ask_residual(first);
        u32 round = 0;
        do {
            bool last = round + 1 == rounds, more = !last || tile + gridDim.x < tiles;
            if (last && more) find_rows(p, tile + gridDim.x, g, t, rows);
            u32 next = last ? warp : warp + (round + 1) * DEPTH * WARPS;
#pragma unroll
            for (u32 d = 0; d < DEPTH; d++) {
                u32 chunk = warp + (round * DEPTH + d) * WARPS, depth = 32 * chunk + 8 * t;
                if (chunk < chunks) {
#pragma unroll
                    for (u32 n = 0; n < TILES; n++) {
                        uint4 x = make_uint4(0, 0, 0, 0);
                        if (!STAGED) {
                            x = values[STAGED ? 0 : d][n];
                        } else if (8 * n + g < columns && depth < p.k) {
                            x = *(const uint4 *)(staged + (8 * n + g) * pitch + depth);
                        }
                        multiply(w[d], x, sums + n);
                    }
                }
                u32 ahead = 32 * (next + d * WARPS);
                load_rows(rows, ahead, more && ahead + 8 * t < p.k, w[d]);
                if (!STAGED) load_x(d, ahead);
            }
        } while (++round < rounds);
        // Two buffers, so that one barrier a tile is enough.
        float *tile_sums = sums_at + parity * kSums;
        parity ^= 1;
#pragma unroll
        for (u32 n = 0; n < TILES; n++) leave_sums(tile_sums, n, sums + n);
        __syncthreads();
        finish(p, tile, tile_sums, squares, one_over_k, first_token, columns, first);
        tile += gridDim.x;
    } while (tile < tiles);
}

#define ENTRY(name, staged)                                                                                           \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, MIN_BLOCKS)                                              \
        name(const ACT *x, const ACT *w, const ACT *w_up, const float *norm, const float *bias, const float *bias_up, \
             const OUT *residual, OUT *out, u32 x_stride, u32 residual_stride, u32 out_stride, u32 tokens, u32 n,     \
             u32 k, float norm_offset, float eps) {                                                                   \
        Few p = {x,          w,      w_up, norm, bias,        bias_up, residual, out, x_stride, residual_stride,      \
                 out_stride, tokens, n,    k,    norm_offset, eps};                                                   \
        product<staged>(p);                                                                                           \
    }
ENTRY(linear_small, true)
#if !NORM
ENTRY(linear_direct, false)
#endif
