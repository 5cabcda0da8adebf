// `linear` of few tokens by a small matrix: everything is in flight at once, and what counts is the time from the previous kernel's end to this one's.
//
// A block has one tile of rows, and a warp's share of its depth fits in registers. The weights are asked for before the previous kernel has ended; then each
// lane loads the values of the tokens that its own weights meet, norms them in registers, and multiplies. One barrier, behind which the warps' sums (and
// squares) are added up, is all that stands between the tokens' arrival and the result. See few_tokens.cuh for how lanes share rows and tokens.
//
// Definitions: ACT (bf16, f16: activations and weights), OUT (bf16, f16, f32), TILES (8 tokens each), WARPS, ROW_TILES (16 rows each), DEPTH (chunks of a
// warp: WARPS · DEPTH chunks of 32 cover k), EPILOGUE (see activate.cuh), GATE (0: plain; else the activation of the gate: then tiles are 8 gate and 8 up
// rows, and out = activate(gate) · up), NORM (1: x is normalised: out = W·(x·(norm + offset)) / rms(x)).
// Launch: grid (tiles of 16·ROW_TILES rows, 8·ROW_TILES gated; tiles of 8·TILES tokens), 32·WARPS threads. Dynamic shared memory: WARPS·8·TILES·(16·ROW_TILES
// + 5) floats. Needs: k and x_stride multiples of 8, x, w and norm 16-byte aligned.
// check: -DACT=bf16 -DOUT=bf16 -DTILES=1 -DWARPS=6 -DROW_TILES=1 -DDEPTH=3 -DEPILOGUE=0 -DGATE=0 -DNORM=1
// check: -DACT=bf16 -DOUT=bf16 -DTILES=1 -DWARPS=6 -DROW_TILES=2 -DDEPTH=3 -DEPILOGUE=0 -DGATE=1 -DNORM=1
// check: -DACT=bf16 -DOUT=bf16 -DTILES=1 -DWARPS=12 -DROW_TILES=1 -DDEPTH=4 -DEPILOGUE=0 -DGATE=0 -DNORM=0
// check: -DACT=bf16 -DOUT=bf16 -DTILES=2 -DWARPS=6 -DROW_TILES=2 -DDEPTH=3 -DEPILOGUE=0 -DGATE=2 -DNORM=1
// check: -DACT=f16 -DOUT=f32 -DTILES=4 -DWARPS=16 -DROW_TILES=2 -DDEPTH=4 -DEPILOGUE=3 -DGATE=0 -DNORM=0
#include "few_tokens.cuh"

// The two steps of a chunk go to sums of their own.
constexpr bool kSplit = TILES == 1;

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1)
linear_once(const ACT *x, const ACT *w, const ACT *w_up, const float *norm, const float *bias, const float *bias_up, const OUT *residual, OUT *out,
            u32 x_stride, u32 residual_stride, u32 out_stride, u32 tokens, u32 n, u32 k, float norm_offset, float eps) {
    Few p = {x, w, w_up, norm, bias, bias_up, residual, out, x_stride, residual_stride, out_stride, tokens, n, k, norm_offset, eps};
    extern __shared__ float sums_at[];
    float *squares_at = sums_at + kSums;
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    u32 first_token = blockIdx.y * kTokens, columns = min(p.tokens - first_token, kTokens);

    const ACT *rows[ROW_TILES][2];
    uint4 weights[DEPTH][ROW_TILES][2];
    find_rows(p, blockIdx.x, g, t, rows);
#pragma unroll
    for (u32 d = 0; d < DEPTH; d++) {
        u32 depth = 32 * (warp + d * WARPS);
        load_rows(rows, depth, depth + 8 * t < p.k, weights[d]);
    }
    let_next_start();
    float scale[NORM ? DEPTH : 1][8] = {};
#pragma unroll
    for (u32 d = 0; NORM && d < DEPTH; d++) load_norm(p, 32 * (warp + d * WARPS) + 8 * t, scale[NORM ? d : 0]);
    // Behind the wait every instruction counts: addresses are at hand by then, and the weights lie as the matrix units take them.
    float one_over_k = __fdividef(1.f, (float)p.k);
    const ACT *from[TILES];
#pragma unroll
    for (u32 tile = 0; tile < TILES; tile++) {
        from[tile] = p.x + (u64)(first_token + 8 * tile + g) * p.x_stride + 32 * warp + 8 * t;
        asm volatile("" : "+l"(from[tile]));
    }
    u32 a[DEPTH][ROW_TILES][2][4];
#pragma unroll
    for (u32 d = 0; d < DEPTH; d++)
#pragma unroll
        for (u32 r = 0; r < ROW_TILES; r++) fragments(weights[d][r], a[d][r]);
    wait_for_previous();

    // The tokens of a tile are asked for while the tile before it is multiplied.
    uint4 values[TILES > 1 ? 2 : 1][DEPTH];
    auto load_tile = [&](u32 tile) {
#pragma unroll
        for (u32 d = 0; d < DEPTH; d++)
            values[tile % (TILES > 1 ? 2 : 1)][d] =
                load_values(from[tile] + d * WARPS * 32, 8 * tile + g < columns && 32 * (warp + d * WARPS) + 8 * t < p.k);
    };
    load_tile(0);
    Around first = around(p, blockIdx.x, threadIdx.x, first_token, columns);
    float sums[ROW_TILES * TILES][4] = {}, others[kSplit ? ROW_TILES : 1][4] = {};
#pragma unroll
    for (u32 tile = 0; tile < TILES; tile++) {
        if (tile + 1 < TILES) load_tile(tile + 1);
        float squares = 0.f;
#pragma unroll
        for (u32 d = 0; d < DEPTH; d++) {
            uint4 v = values[tile % (TILES > 1 ? 2 : 1)][d];
            if (NORM) apply_norm(v, scale[NORM ? d : 0], squares);
            u32 low[2] = {v.x, v.y}, high[2] = {v.z, v.w};
#pragma unroll
            for (u32 r = 0; r < ROW_TILES; r++) {
                mma_m16n8k16<ACT>(sums[r * TILES + tile], a[d][r][0], low);
                mma_m16n8k16<ACT>(kSplit ? others[kSplit ? r : 0] : sums[r * TILES + tile], a[d][r][1], high);
            }
        }
        if (NORM) {
            squares += __shfl_xor_sync(0xffffffffu, squares, 1);
            squares += __shfl_xor_sync(0xffffffffu, squares, 2);
            if (t == 0) squares_at[(8 * tile + g) * WARPS + warp] = squares;
        }
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
