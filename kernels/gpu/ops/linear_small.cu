// `linear` of few tokens: every weight is read once, straight from memory into matrix units, and whatever surrounds the product (norm before,
// bias, activation, gating, residual after) happens in registers.
//
// Sixteen weight rows are the A operand of m16n8k16, eight tokens the columns of B. A product does not care about the order of its depths as long as
// both operands agree, so lane (g, t) reads 16 bytes of rows g and g + 8 and of token g at depths 8t .. 8t + 7 of a chunk of 32: that is two
// steps of the product, and nothing goes through shared memory. The warps of a block share the chunks of its rows; their sums meet at the end.
// Weights are constants: the first ones are asked for before the previous kernel has ended.
//
// Definitions: ACT (bf16, f16: activations and weights), OUT (bf16, f16, f32), WARPS, ROW_TILES (16 rows each), DEPTH (chunks in flight a warp),
// MIN_BLOCKS (blocks that an SM should hold), EPILOGUE (see activate.cuh), GATE (0: plain; else the activation of the gate: then tiles are 8 gate and 8 up
// rows, and out = activate(gate) · up), NORM (1: x is normalised: out = W·(x·(norm + offset)) / rms(x)).
// Launch: grid (tiles of 16·ROW_TILES rows (8·ROW_TILES gated), tiles of 8·n tokens), 32·WARPS threads,
// 4·WARPS·8·n·(16·ROW_TILES + 5) bytes of dynamic shared memory, n of linear_small_n.
// Needs: k and x_stride multiples of 8, x, w and norm 16-byte aligned.
// check: -DACT=bf16 -DOUT=bf16 -DWARPS=8 -DROW_TILES=1 -DDEPTH=4 -DMIN_BLOCKS=2 -DEPILOGUE=0 -DGATE=0 -DNORM=0
// check: -DACT=bf16 -DOUT=bf16 -DWARPS=8 -DROW_TILES=1 -DDEPTH=4 -DMIN_BLOCKS=2 -DEPILOGUE=0 -DGATE=1 -DNORM=1
// check: -DACT=f16 -DOUT=f32 -DWARPS=16 -DROW_TILES=2 -DDEPTH=2 -DMIN_BLOCKS=1 -DEPILOGUE=3 -DGATE=0 -DNORM=0
#include "activate.cuh"
#include "common.cuh"
#include "mma.cuh"
#include "weights.cuh"

constexpr u32 kRows = 16 * ROW_TILES;
// Padding that keeps the lanes of a store in different banks.
constexpr u32 kColumn = kRows + 4;

struct Small {
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

// Values (two a word) times the norm's weights; their squares are added to `squares`.
__device__ __forceinline__ void apply_norm(uint4 &x, const float *norm, float offset, float &squares) {
    const float4 *at = (const float4 *)norm;
    float4 low = __ldg(at), high = __ldg(at + 1);
    float scale[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    u32 *words = (u32 *)&x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float a, b;
        unpack2<ACT>(words[i], a, b);
        squares = fmaf(a, a, fmaf(b, b, squares));
        words[i] = pack2<ACT>(a * (scale[2 * i] + offset), b * (scale[2 * i + 1] + offset));
    }
}

// What follows the sums: one thread an output value, neighbours in a row.
template <int TILES> __device__ __forceinline__ void finish(const Small &p, const float *sums, const float *squares, u32 first_token) {
    constexpr u32 kOut = GATE ? kRows / 2 : kRows;
    u32 first_row = blockIdx.x * kOut;
    u32 columns = min(p.tokens - first_token, 8u * TILES);
    for (u32 i = threadIdx.x; i < kOut * columns; i += WARPS * 32) {
        u32 at = i % kOut, column = i / kOut, row = first_row + at, token = first_token + column;
        if (row >= p.n) continue;
        float residual = p.residual ? to_f32(p.residual[(u64)token * p.residual_stride + row]) : 0.f;
        // Gate rows are the first eight of their tile, up rows the others.
        u32 local = GATE ? at / 8 * 16 + at % 8 : at;
        float sum = 0.f, up = 0.f, square = 0.f;
#pragma unroll
        for (u32 warp = 0; warp < WARPS; warp++) {
            const float *from = sums + (warp * 8 * TILES + column) * kColumn + local;
            sum += from[0];
            if (GATE) up += from[8];
            if (NORM) square += squares[warp * 8 * TILES + column];
        }
        if (NORM) {
            float scale = rsqrtf(square / p.k + p.eps);
            sum *= scale;
            up *= scale;
        }
        if (p.bias) sum += p.bias[row];
        if (GATE) {
            if (p.bias_up) up += p.bias_up[row];
            sum = activate<GATE>(sum) * up;
        } else {
            sum = activate<EPILOGUE>(sum);
        }
        p.out[(u64)token * p.out_stride + row] = from_f32<OUT>(sum + residual);
    }
}

template <int TILES> __device__ __forceinline__ void product(const Small &p) {
    extern __shared__ float shared[];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    u32 chunks = (p.k + 31) / 32;
    const ACT *rows[ROW_TILES][2];
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++) {
        u32 tile = blockIdx.x * ROW_TILES + r, last = p.n - 1;
        if (GATE) {
            u32 row = min(tile * 8 + g, last);
            rows[r][0] = p.w + (u64)row * p.k + 8 * t;
            rows[r][1] = p.w_up + (u64)row * p.k + 8 * t;
        } else {
            rows[r][0] = p.w + (u64)min(tile * 16 + g, last) * p.k + 8 * t;
            rows[r][1] = p.w + (u64)min(tile * 16 + g + 8, last) * p.k + 8 * t;
        }
    }
    uint4 w[DEPTH][ROW_TILES][2], x[DEPTH][TILES];
#pragma unroll
    for (u32 d = 0; d < DEPTH; d++) {
        u32 depth = 32 * (warp + d * WARPS);
        bool wanted = depth + 8 * t < p.k;
#pragma unroll
        for (u32 r = 0; r < ROW_TILES; r++) {
            w[d][r][0] = load_weights(rows[r][0] + depth, wanted);
            w[d][r][1] = load_weights(rows[r][1] + depth, wanted);
        }
    }
    let_next_start();
    wait_for_previous();

    u32 first_token = blockIdx.y * 8 * TILES;
    const ACT *tokens[TILES];
    bool present[TILES];
#pragma unroll
    for (u32 n = 0; n < TILES; n++) {
        u32 token = first_token + 8 * n + g;
        present[n] = token < p.tokens;
        tokens[n] = p.x + (u64)token * p.x_stride + 8 * t;
    }
    float sums[ROW_TILES][TILES][4] = {}, squares[TILES] = {};
#pragma unroll
    for (u32 d = 0; d < DEPTH; d++) {
        u32 depth = 32 * (warp + d * WARPS);
#pragma unroll
        for (u32 n = 0; n < TILES; n++) x[d][n] = load_values(tokens[n] + depth, present[n] && depth + 8 * t < p.k);
    }
#pragma unroll 1
    for (u32 first = warp; first < chunks; first += DEPTH * WARPS) {
#pragma unroll
        for (u32 d = 0; d < DEPTH; d++) {
            u32 chunk = first + d * WARPS;
            if (chunk < chunks) {
                u32 next = 32 * (chunk + DEPTH * WARPS);
                bool wanted = next + 8 * t < p.k;
#pragma unroll
                for (u32 n = 0; n < TILES; n++) {
                    uint4 v = x[d][n];
                    if (NORM && 32 * chunk + 8 * t < p.k) apply_norm(v, p.norm + 32 * chunk + 8 * t, p.norm_offset, squares[n]);
                    u32 low[2] = {v.x, v.y}, high[2] = {v.z, v.w};
#pragma unroll
                    for (u32 r = 0; r < ROW_TILES; r++) {
                        uint4 a = w[d][r][0], b = w[d][r][1];
                        u32 first_step[4] = {a.x, b.x, a.y, b.y}, second_step[4] = {a.z, b.z, a.w, b.w};
                        mma_m16n8k16<ACT>(sums[r][n], first_step, low);
                        mma_m16n8k16<ACT>(sums[r][n], second_step, high);
                    }
                    x[d][n] = load_values(tokens[n] + next, present[n] && wanted);
                }
#pragma unroll
                for (u32 r = 0; r < ROW_TILES; r++) {
                    w[d][r][0] = load_weights(rows[r][0] + next, wanted);
                    w[d][r][1] = load_weights(rows[r][1] + next, wanted);
                }
            }
        }
    }

    float *all_squares = shared + WARPS * 8 * TILES * kColumn;
#pragma unroll
    for (u32 n = 0; n < TILES; n++) {
#pragma unroll
        for (u32 r = 0; r < ROW_TILES; r++) {
            float *to = shared + (warp * 8 * TILES + 8 * n + 2 * t) * kColumn + 16 * r + g;
            to[0] = sums[r][n][0];
            to[kColumn] = sums[r][n][1];
            to[8] = sums[r][n][2];
            to[kColumn + 8] = sums[r][n][3];
        }
        if (NORM) {
            float square = squares[n];
            square += __shfl_xor_sync(0xffffffffu, square, 1);
            square += __shfl_xor_sync(0xffffffffu, square, 2);
            if (t == 0) all_squares[warp * 8 * TILES + 8 * n + g] = square;
        }
    }
    __syncthreads();
    finish<TILES>(p, shared, all_squares, first_token);
}

#define ENTRY(tiles)                                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, MIN_BLOCKS)                                                                             \
        linear_small_##tiles(const ACT *x, const ACT *w, const ACT *w_up, const float *norm, const float *bias, const float *bias_up,               \
                             const OUT *residual, OUT *out, u32 x_stride, u32 residual_stride, u32 out_stride, u32 tokens, u32 n, u32 k,            \
                             float norm_offset, float eps) {                                                                                        \
        Small p = {x, w, w_up, norm, bias, bias_up, residual, out, x_stride, residual_stride, out_stride, tokens, n, k, norm_offset, eps};          \
        product<tiles>(p);                                                                                                                          \
    }
ENTRY(1)
ENTRY(2)
ENTRY(4)
