// `linear` of few tokens by a small matrix: all loads are in flight at once. The goal is a short time from the previous
// kernel's end to this one's.
//
// A block has one tile of rows, and a warp's share of its depth fits in registers. The weights are loaded before the
// previous kernel has ended, in the matrix units' layout where registers suffice. Then each lane loads the values of
// the tokens that its own weights need, norms them in registers, and multiplies. Between the tokens' arrival and the
// result there is one barrier, after which the warps' sums (and squares) are added up. See few_tokens.cuh for how lanes
// share rows and tokens.
//
// Definitions: ACT (bf16, f16: activations and weights), OUT (bf16, f16, f32), TILES (8 tokens each), WARPS, ROW_TILES
// (16 rows each), DEPTH (chunks of a warp: WARPS · DEPTH chunks of 32 cover k, WARPS fewer would not), EPILOGUE (see
// activate.cuh), GATE (0: plain; else the activation of the gate: then tiles are 8 gate and 8 up rows, and out =
// activate(gate) · up), NORM (1: x is normalised: out = W·(x·(norm + offset)) / rms(x)).
// Launch: grid (tiles of 16·ROW_TILES rows, 8·ROW_TILES gated; tiles of 8·TILES tokens), 32·WARPS threads. Dynamic
// shared memory: WARPS·8·TILES·(16·ROW_TILES + 5) floats. Needs: k and x_stride multiples of 8, x, w and norm 16-byte
// aligned.
// check: -DACT=bf16 -DOUT=bf16 -DTILES=1 -DWARPS=6 -DROW_TILES=1 -DDEPTH=3 -DEPILOGUE=0 -DGATE=0 -DNORM=1
// check: -DACT=bf16 -DOUT=bf16 -DTILES=1 -DWARPS=6 -DROW_TILES=2 -DDEPTH=3 -DEPILOGUE=0 -DGATE=1 -DNORM=1
// check: -DACT=bf16 -DOUT=bf16 -DTILES=1 -DWARPS=12 -DROW_TILES=1 -DDEPTH=4 -DEPILOGUE=0 -DGATE=0 -DNORM=0
// check: -DACT=bf16 -DOUT=bf16 -DTILES=2 -DWARPS=6 -DROW_TILES=2 -DDEPTH=3 -DEPILOGUE=0 -DGATE=2 -DNORM=1
// check: -DACT=bf16 -DOUT=bf16 -DTILES=2 -DWARPS=16 -DROW_TILES=2 -DDEPTH=4 -DEPILOGUE=0 -DGATE=0 -DNORM=1
// check: -DACT=f16 -DOUT=f16 -DTILES=1 -DWARPS=6 -DROW_TILES=1 -DDEPTH=3 -DEPILOGUE=0 -DGATE=0 -DNORM=1
// check: -DACT=f16 -DOUT=f32 -DTILES=4 -DWARPS=16 -DROW_TILES=2 -DDEPTH=4 -DEPILOGUE=3 -DGATE=0 -DNORM=0
#include "few_tokens.cuh"

// The two steps of a chunk go to sums of their own.
constexpr bool kSplit = TILES == 1;
// About the registers of a thread that has its weights ready for the matrix units before the wait, and whether a block
// has so many.
constexpr u32 kReady = 8 * DEPTH * (ROW_TILES + NORM) + 4 * ROW_TILES * (TILES + kSplit) +
                       4 * DEPTH * (TILES > 1 ? 2 : 1) + 2 * TILES + 32;
constexpr bool kFits = kReady * WARPS * 32 <= 65536;

// The norm's weights of a lane's 8 depths of a chunk, each as the sum of two values of ACT: a token's value times that
// sum is rounded nearly as if the weight were f32.
struct Norm {
    u32 high[4], low[4];

    __device__ __forceinline__ u32 set(const float (&scale)[8]) {
        u32 bits = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float a, b;
            high[i] = pack2<ACT>(scale[2 * i], scale[2 * i + 1]);
            unpack2<ACT>(high[i], a, b);
            low[i] = pack2<ACT>(scale[2 * i] - a, scale[2 * i + 1] - b);
            bits ^= high[i] ^ low[i];
        }
        return bits;
    }

    __device__ __forceinline__ uint4 times(const uint4 &x) const {
        return make_uint4(
            fma2<ACT>(x.x, high[0], fma2<ACT>(x.x, low[0], 0)), fma2<ACT>(x.y, high[1], fma2<ACT>(x.y, low[1], 0)),
            fma2<ACT>(x.z, high[2], fma2<ACT>(x.z, low[2], 0)), fma2<ACT>(x.w, high[3], fma2<ACT>(x.w, low[3], 0)));
    }
};

// A chunk's rows as the left operands of its two steps, in registers of their own from here on (`zero` is one that the
// compiler does not know). Returns what `settle` takes.
__device__ __forceinline__ u32 fragments(const uint4 (&w)[2], u32 zero, u32 (&a)[2][4]) {
    u32 words[2][4] = {{w[0].x, w[1].x, w[0].y, w[1].y}, {w[0].z, w[1].z, w[0].w, w[1].w}}, bits = 0;
#pragma unroll
    for (int step = 0; step < 2; step++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            a[step][i] = words[step][i] | zero;
            bits ^= a[step][i];
        }
    return bits;
}

// Adds the squares of a chunk's values of token g to sums [g][2t] and [g][2t + 1], each step's to its own: lane t = g /
// 2 gets what counts.
__device__ __forceinline__ void add_squares(float (&sums)[2][4], const uint4 &x) {
    u32 low[2] = {x.x, x.y}, high[2] = {x.z, x.w}, low_rows[4] = {x.x, 0, x.y, 0}, high_rows[4] = {x.z, 0, x.w, 0};
    mma_m16n8k16<ACT>(sums[0], low_rows, low);
    mma_m16n8k16<ACT>(sums[1], high_rows, high);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1)
    linear_once(const ACT *x, const ACT *w, const ACT *w_up, const float *norm, const float *bias, const float *bias_up,
                const OUT *residual, OUT *out, u32 x_stride, u32 residual_stride, u32 out_stride, u32 tokens, u32 n,
                u32 k, float norm_offset, float eps) {
    Few p = {x,          w,      w_up, norm, bias,        bias_up, residual, out, x_stride, residual_stride,
             out_stride, tokens, n,    k,    norm_offset, eps};
    extern __shared__ float sums_at[];
    float *squares_at = sums_at + kSums;
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    u32 first_token = blockIdx.y * kTokens, columns = min(p.tokens - first_token, kTokens);

    const ACT *rows[ROW_TILES][2];
    uint4 weights[DEPTH][ROW_TILES][2];
    find_rows(p, blockIdx.x, g, t, rows);
    auto depth_of = [&](u32 d) { return 32 * (warp + d * WARPS) + 8 * t; };
    float scale[NORM ? DEPTH : 1][8] = {};
#pragma unroll
    for (u32 d = 0; NORM && d < DEPTH; d++) load_norm(p, depth_of(d) < p.k ? depth_of(d) : 0, scale[NORM ? d : 0]);
#pragma unroll
    for (u32 d = 0; d < DEPTH; d++) load_rows(rows, depth_of(d) - 8 * t, depth_of(d) < p.k, weights[d]);
    let_next_start();
    // Behind the wait every instruction counts. No load of tokens hangs on a condition but the last, which may be past
    // the last depth: past the last token the last one is read again, and counts for nothing.
    Around first = around(p, blockIdx.x, threadIdx.x, first_token, columns);
    u32 bits = (u32)(u64)first.from;
    const ACT *from[TILES][kFits ? DEPTH : 1];
#pragma unroll
    for (u32 d = 0; d < (kFits ? DEPTH : 1); d++) {
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++)
            from[tile][d] = p.x + (u64)(first_token + min(8 * tile + g, columns - 1)) * p.x_stride + depth_of(d);
        bits ^= (u32)(u64)from[0][d];
    }
    Norm norms[NORM ? DEPTH : 1];
#pragma unroll
    for (u32 d = 0; NORM && d < DEPTH; d++) {
        u32 made = norms[NORM ? d : 0].set(scale[NORM ? d : 0]);
        if (kFits) bits ^= made;
    }
    float one_over_k = __fdividef(1.f, (float)p.k);
    bits ^= (u32)__float_as_int(one_over_k);
    u32 a[DEPTH][ROW_TILES][2][4];
#pragma unroll
    for (u32 d = 0; kFits && d < DEPTH; d++)
#pragma unroll
        for (u32 r = 0; r < ROW_TILES; r++) bits ^= fragments(weights[d][r], p.tokens >> 31, a[d][r]);
    settle(bits);
    wait_for_previous();

    // The tokens of a tile are loaded while the tile before it is multiplied.
    uint4 values[TILES > 1 ? 2 : 1][DEPTH];
    auto load_tile = [&](u32 tile) {
#pragma unroll
        for (u32 d = 0; d < DEPTH; d++) {
            const ACT *at = kFits ? from[tile][kFits ? d : 0] : from[tile][0] + 32 * d * WARPS;
            values[tile % (TILES > 1 ? 2 : 1)][d] = load_values(at, d + 1 < DEPTH || depth_of(d) < p.k);
        }
    };
    load_tile(0);
    ask_residual(first);
    float sums[ROW_TILES * TILES][4] = {}, others[kSplit ? ROW_TILES : 1][4] = {};
#pragma unroll
    for (u32 tile = 0; tile < TILES; tile++) {
        if (tile + 1 < TILES) load_tile(tile + 1);
        float squares[2][4] = {};
#pragma unroll
        for (u32 d = 0; d < DEPTH; d++) {
            uint4 v = values[tile % (TILES > 1 ? 2 : 1)][d], normed = NORM ? norms[NORM ? d : 0].times(v) : v;
            u32 low[2] = {normed.x, normed.y}, high[2] = {normed.z, normed.w};
#pragma unroll
            for (u32 r = 0; r < ROW_TILES; r++) {
                if (!kFits) fragments(weights[d][r], 0, a[d][r]);
                mma_m16n8k16<ACT>(sums[r * TILES + tile], a[d][r][0], low);
                mma_m16n8k16<ACT>(kSplit ? others[kSplit ? r : 0] : sums[r * TILES + tile], a[d][r][1], high);
            }
            if (NORM) add_squares(squares, v);
        }
        if (NORM && t == g / 2)
            squares_at[(8 * tile + g) * WARPS + warp] = g % 2 ? squares[0][1] + squares[1][1]
                                                              : squares[0][0] + squares[1][0];
    }
#pragma unroll
    for (u32 r = 0; kSplit && r < ROW_TILES; r++)
        for (u32 i = 0; i < 4; i++) sums[r][i] += others[kSplit ? r : 0][i];
#pragma unroll
    for (u32 tile = 0; tile < TILES; tile++) leave_sums(sums_at, tile, sums + tile);
    __syncthreads();
    // Nothing waits for the residual before.
    asm volatile("" : "+r"(first.residual));
    finish(p, blockIdx.x, sums_at, squares_at, one_over_k, first_token, columns, first);
}
