// `linear` of few tokens: every weight is read once, straight from memory into matrix units, and whatever surrounds the product (norm before,
// bias, activation, gating, residual after) happens on the way.
//
// Sixteen weight rows are the A operand of m16n8k16, eight tokens the columns of B. A product does not care about the order of its depths as long as
// both operands agree, so lane (g, t) reads 16 bytes of rows g and g + 8 and of token g at depths 8t .. 8t + 7 of a chunk of 32: that is two
// steps of the product, and no weight goes through shared memory. The warps of a block share the chunks of its rows; their sums meet at the end.
// Blocks stay and walk over the tiles of rows, with the next weights always asked for: the first ones, being constants, before the previous
// kernel has ended.
//
// Definitions: ACT (bf16, f16: activations and weights), OUT (bf16, f16, f32), TILES (8 tokens each), WARPS, ROW_TILES (16 rows each), DEPTH (chunks in
// flight a warp), ONE_TILE (1: as many blocks as tiles of rows, and all chunks in flight at once), MIN_BLOCKS (blocks that an SM should hold), EPILOGUE (see activate.cuh), GATE (0: plain; else the activation of the gate: then tiles are 8
// gate and 8 up rows, and out = activate(gate) · up), NORM (1: x is normalised: out = W·(x·(norm + offset)) / rms(x)).
// Launch: grid (blocks: up to the number of tiles of 16·ROW_TILES rows, 8·ROW_TILES gated; tiles of 8·TILES tokens), 32·WARPS threads.
// Dynamic shared memory: linear_small keeps the tokens of its tile there, pitch values each (see `pitch_of`), then come 2·WARPS·8·TILES·(16·ROW_TILES + 4)
// + WARPS·8·TILES floats. linear_direct, for tokens that do not fit, needs the floats only; it knows no norm.
// Needs: k and x_stride multiples of 8, x, w and norm 16-byte aligned.
// check: -DACT=bf16 -DOUT=bf16 -DTILES=1 -DWARPS=16 -DROW_TILES=1 -DDEPTH=8 -DONE_TILE=0 -DMIN_BLOCKS=1 -DEPILOGUE=0 -DGATE=0 -DNORM=1
// check: -DACT=bf16 -DOUT=bf16 -DTILES=1 -DWARPS=16 -DROW_TILES=1 -DDEPTH=8 -DONE_TILE=0 -DMIN_BLOCKS=1 -DEPILOGUE=0 -DGATE=1 -DNORM=1
// check: -DACT=bf16 -DOUT=bf16 -DTILES=1 -DWARPS=16 -DROW_TILES=2 -DDEPTH=4 -DONE_TILE=0 -DMIN_BLOCKS=1 -DEPILOGUE=0 -DGATE=0 -DNORM=0
// check: -DACT=bf16 -DOUT=bf16 -DTILES=1 -DWARPS=6 -DROW_TILES=1 -DDEPTH=3 -DONE_TILE=1 -DMIN_BLOCKS=1 -DEPILOGUE=0 -DGATE=0 -DNORM=1
// check: -DACT=bf16 -DOUT=bf16 -DTILES=1 -DWARPS=6 -DROW_TILES=2 -DDEPTH=3 -DONE_TILE=1 -DMIN_BLOCKS=1 -DEPILOGUE=0 -DGATE=1 -DNORM=1
// check: -DACT=bf16 -DOUT=bf16 -DTILES=1 -DWARPS=12 -DROW_TILES=1 -DDEPTH=4 -DONE_TILE=1 -DMIN_BLOCKS=1 -DEPILOGUE=0 -DGATE=0 -DNORM=0
// check: -DACT=bf16 -DOUT=bf16 -DTILES=2 -DWARPS=6 -DROW_TILES=2 -DDEPTH=3 -DONE_TILE=1 -DMIN_BLOCKS=1 -DEPILOGUE=0 -DGATE=2 -DNORM=1
// check: -DACT=bf16 -DOUT=f32 -DTILES=4 -DWARPS=16 -DROW_TILES=1 -DDEPTH=3 -DONE_TILE=0 -DMIN_BLOCKS=1 -DEPILOGUE=0 -DGATE=0 -DNORM=0
// check: -DACT=f16 -DOUT=f32 -DTILES=2 -DWARPS=16 -DROW_TILES=2 -DDEPTH=2 -DONE_TILE=0 -DMIN_BLOCKS=1 -DEPILOGUE=3 -DGATE=0 -DNORM=0
// check: -DACT=bf16 -DOUT=f32 -DTILES=1 -DWARPS=8 -DROW_TILES=2 -DDEPTH=4 -DONE_TILE=0 -DMIN_BLOCKS=2 -DEPILOGUE=0 -DGATE=0 -DNORM=0
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
// The two steps of a chunk go to sums of their own.
constexpr bool kSplit = ONE_TILE && TILES == 1;
// Tokens whose loads a thread has in flight: as many as registers allow beside the weights.
constexpr u32 kBatch = ONE_TILE ? 8 : 4;
constexpr u32 kSums = WARPS * kTokens * kColumn;

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

// Values of a token in shared memory, with its padding: tokens that lanes read together lie in different banks.
__device__ __forceinline__ u32 pitch_of(u32 k) { return (k + 63) / 64 * 64 + 32; }

// Values (two a word) times the norm's weights; their squares are added to `squares`.
__device__ __forceinline__ void apply_norm(uint4 &x, const float (&scale)[8], float &squares) {
    u32 *words = (u32 *)&x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float a, b;
        unpack2<ACT>(words[i], a, b);
        squares = fmaf(a, a, fmaf(b, b, squares));
        words[i] = pack2<ACT>(a * scale[2 * i], b * scale[2 * i + 1]);
    }
}

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

// Copies the tokens of this tile to shared memory; with NORM times the norm's weights, and its squares to `squares`. Short rows are shared out: each
// group of warps takes every so manieth token. A rehearsal (`real` false) loads nothing that earlier work writes.
__device__ __forceinline__ void stage(const Small &p, u32 first_token, u32 columns, ACT *staged, float *squares, bool real) {
    u32 pitch = pitch_of(p.k), lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u32 wide = min((p.k + 255) / 256, (u32)WARPS), groups = WARPS / wide, group = warp / wide;
    const ACT *x = p.x + (u64)first_token * p.x_stride;
    float sums[kTokens] = {};
    float scale[8];
    u32 at = 8 * (threadIdx.x - group * wide * 32);
    if (group >= groups) at = p.k;
    auto load_norm = [&] {
        if (NORM && at < p.k) {
            float4 low = __ldg((const float4 *)(p.norm + at)), high = __ldg((const float4 *)(p.norm + at) + 1);
            float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            for (int i = 0; i < 8; i++) scale[i] = v[i] + p.norm_offset;
        }
    };
    load_norm();
    if (real) wait_for_previous();
    while (at < p.k) {
#pragma unroll
        for (u32 first = 0; first < kTokens; first += kBatch) {
            // The loads of some tokens are on their way before the first is used.
            uint4 v[kBatch];
#pragma unroll
            for (u32 i = 0; i < kBatch; i++) {
                u32 token = (first + i) * groups + group;
                v[i] = load_values(x + (u64)token * p.x_stride + at, real && token < columns);
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
        load_norm();
    }
    __syncthreads();
    if (NORM) {
        // Behind the barrier, where it runs beside the first products: nobody asks for the squares before the next one.
#pragma unroll
        for (u32 first = 0; first < kTokens; first += 8) {
            float sum = eight_sums(sums + first);
            u32 token = (first + lane / 4) * groups + group;
            if (token < columns && group < groups && lane % 4 == 0) squares[token * WARPS + warp] = sum;
        }
    }
}

// 1 / rms of a token, from the squares that the warps left.
__device__ __forceinline__ float scale_of(const float *squares, u32 column, float one_over_k, float eps) {
    float sum = 0.f;
#pragma unroll
    for (u32 i = 0; i < WARPS; i++) sum += squares[column * WARPS + i];
    return rsqrtf(fmaf(sum, one_over_k, eps));
}

// What is added to an output value, asked for before its sum is there.
struct Around {
    float bias, bias_up;
    u32 residual;
};

__device__ __forceinline__ Around around(const Small &p, u32 tile, u32 i, u32 first_token, u32 columns) {
    Around a = {0.f, 0.f, 0};
    u32 row = tile * kOut + i % kOut, column = i / kOut;
    if (row < p.n && column < columns) {
        if (p.bias) a.bias = __ldg(p.bias + row);
        if (GATE && p.bias_up) a.bias_up = __ldg(p.bias_up + row);
        if (p.residual) a.residual = load_bits(p.residual + (u64)(first_token + column) * p.residual_stride + row);
    }
    return a;
}

// What follows the sums of a tile of rows: one thread an output value, neighbours in a row. `first` belongs to the thread's first value.
__device__ __forceinline__ void finish(const Small &p, u32 tile, const float *sums, const float *squares, float one_over_k, u32 first_token, u32 columns,
                                       Around first, bool real) {
#pragma unroll 1
    for (u32 i = threadIdx.x; i < kOut * columns; i += kThreads) {
        u32 at = i % kOut, column = i / kOut, row = tile * kOut + at;
        if (row >= p.n) continue;
        Around a = i == threadIdx.x ? first : around(p, tile, i, first_token, real ? columns : 0);
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
        if (real) p.out[(u64)(first_token + column) * p.out_stride + row] = from_f32<OUT>(sum + from_bits<OUT>(a.residual));
    }
}

// Where the lane's depths of its rows of a tile begin.
__device__ __forceinline__ void find_rows(const Small &p, u32 tile, u32 g, u32 t, const ACT *(&rows)[ROW_TILES][2]) {
    u32 last = p.n - 1;
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++) {
        u32 first = tile * kOut + r * (GATE ? 8 : 16) + g;
        rows[r][0] = p.w + (u64)min(first, last) * p.k + 8 * t;
        rows[r][1] = GATE ? p.w_up + (u64)min(first, last) * p.k + 8 * t : p.w + (u64)min(first + 8, last) * p.k + 8 * t;
    }
}

__device__ __forceinline__ void load_rows(const ACT *const (&rows)[ROW_TILES][2], u32 depth, bool wanted, uint4 (&w)[ROW_TILES][2]) {
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++) {
        w[r][0] = load_weights(rows[r][0] + depth, wanted);
        w[r][1] = load_weights(rows[r][1] + depth, wanted);
    }
}

// One chunk's two steps for a tile of tokens, each into its own sums where latency counts (kSplit): a product waits for the one before it.
__device__ __forceinline__ void multiply(const uint4 (&w)[ROW_TILES][2], const uint4 &x, float (*sums)[4], float (*others)[4]) {
    u32 low[2] = {x.x, x.y}, high[2] = {x.z, x.w};
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++) {
        uint4 a = w[r][0], b = w[r][1];
        u32 first[4] = {a.x, b.x, a.y, b.y}, second[4] = {a.z, b.z, a.w, b.w};
        mma_m16n8k16<ACT>(sums[r * TILES], first, low);
        mma_m16n8k16<ACT>(others[r * TILES], second, high);
    }
}

template <bool STAGED> __device__ __forceinline__ void product(const Small &p) {
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

    // A block of one tile first rehearses, while it waits for the previous kernel anyway: the instructions are then at hand.
#pragma unroll 1
    for (u32 pass = ONE_TILE ? 0 : 1; pass < 2; pass++) {
        bool real = pass != 0;
        if (STAGED) {
            stage(p, first_token, columns, staged, squares, real);
        } else if (real) {
            wait_for_previous();
        }
        // Tokens that are not staged are asked for as early as the weights.
        uint4 values[STAGED ? 1 : DEPTH][TILES];
        auto load_x = [&](u32 d, u32 depth) {
#pragma unroll
            for (u32 n = 0; n < TILES; n++) {
                bool present = real && 8 * n + g < columns && depth + 8 * t < p.k;
                values[STAGED ? 0 : d][n] = load_values(p.x + (u64)(first_token + 8 * n + g) * p.x_stride + depth + 8 * t, present);
            }
        };
        if (!STAGED) {
#pragma unroll
            for (u32 d = 0; d < DEPTH; d++) load_x(d, 32 * (warp + d * WARPS));
        }

        u32 parity = pass, tile = blockIdx.x;
        do {
            float sums[ROW_TILES * TILES][4] = {}, others[kSplit ? ROW_TILES * TILES : 1][4] = {};
            Around first = around(p, tile, threadIdx.x, first_token, real ? columns : 0);
            u32 round = 0;
            do {
                bool last = ONE_TILE || round + 1 == rounds, more = !ONE_TILE && (!last || tile + gridDim.x < tiles);
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
                            multiply(w[d], x, sums + n, kSplit ? others + n : sums + n);
                        }
                    }
                    if (!ONE_TILE) {
                        u32 ahead = 32 * (next + d * WARPS);
                        load_rows(rows, ahead, more && ahead + 8 * t < p.k, w[d]);
                        if (!STAGED) load_x(d, ahead);
                    }
                }
            } while (!ONE_TILE && ++round < rounds);
            // Two buffers, so that one barrier a tile is enough.
            float *tile_sums = sums_at + parity * kSums;
            parity ^= 1;
#pragma unroll
            for (u32 n = 0; n < TILES; n++) {
#pragma unroll
                for (u32 r = 0; r < ROW_TILES; r++) {
                    float *to = tile_sums + (warp * kTokens + 8 * n + 2 * t) * kColumn + 16 * r + g, *from = sums[r * TILES + n];
                    for (u32 i = 0; kSplit && i < 4; i++) from[i] += others[r * TILES + n][i];
                    to[0] = from[0];
                    to[kColumn] = from[1];
                    to[8] = from[2];
                    to[kColumn + 8] = from[3];
                }
            }
            __syncthreads();
            finish(p, tile, tile_sums, squares, one_over_k, first_token, columns, first, real);
            tile += gridDim.x;
        } while (!ONE_TILE && tile < tiles);
    }
}

#define ENTRY(name, staged)                                                                                                                          \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, MIN_BLOCKS)                                                                             \
        name(const ACT *x, const ACT *w, const ACT *w_up, const float *norm, const float *bias, const float *bias_up, const OUT *residual,          \
             OUT *out, u32 x_stride, u32 residual_stride, u32 out_stride, u32 tokens, u32 n, u32 k, float norm_offset, float eps) {                 \
        Small p = {x, w, w_up, norm, bias, bias_up, residual, out, x_stride, residual_stride, out_stride, tokens, n, k, norm_offset, eps};          \
        product<staged>(p);                                                                                                                         \
    }
ENTRY(linear_small, true)
#if !NORM
ENTRY(linear_direct, false)
#endif
