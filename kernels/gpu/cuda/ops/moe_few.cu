// `moe_linear` where an expert has few tokens: each chosen expert's matrix is read once, straight from memory into
// matrix units, as linear_small.cu reads a dense one. With GATE the experts' gate and up matrices are read together and
// only activation(gate) · up is written.
//
// A block has some rows of one expert and up to 8·TILES of its choices at a time; its warps share the depth. See
// few_tokens.cuh for how lanes share rows and tokens.
//
// Definitions: ACT (bf16, f16: x, matrices and out), TILES (8 choices each), WARPS, ROW_TILES (16 rows each; with GATE
// 8 of gate and 8 of up), DEPTH (chunks of 32 values in flight a warp), GATE (0: plain; else activate.cuh's number).
// Launch: grid (features in 16·ROW_TILES, 8·ROW_TILES with GATE; experts that may be chosen), 32·WARPS threads, dynamic
// shared memory WARPS·8·TILES·(16·ROW_TILES + 4) floats.
// Operands: `list` is moe_list's (see expert_list.cuh). Without it blockIdx.y is a choice, and its expert is found in
// `experts`; without those too choice j of each of the tokens takes matrix j. Biases [experts, features] may be null.
// Choices of experts elsewhere become 0, with GATE they stay unwritten. Needs: width a multiple of 8, x and matrices
// 16-byte aligned, strides of x multiples of 8.
// check: -DACT=bf16 -DTILES=1 -DWARPS=4 -DROW_TILES=1 -DDEPTH=4 -DGATE=1
// check: -DACT=bf16 -DTILES=1 -DWARPS=4 -DROW_TILES=2 -DDEPTH=3 -DGATE=0
// check: -DACT=bf16 -DTILES=2 -DWARPS=4 -DROW_TILES=2 -DDEPTH=3 -DGATE=2
// check: -DACT=bf16 -DTILES=4 -DWARPS=4 -DROW_TILES=4 -DDEPTH=2 -DGATE=1
// check: -DACT=f16 -DTILES=4 -DWARPS=4 -DROW_TILES=4 -DDEPTH=2 -DGATE=0
// check: -DACT=bf16 -DTILES=1 -DWARPS=2 -DROW_TILES=1 -DDEPTH=3 -DGATE=4 -DGATE_LIMIT=7e0f -DGATE_ALPHA=1.702e0f -DGATE_OFFSET=1e0f
#include "mma.cuh"
#include "weights.cuh"

constexpr u32 kThreads = 32 * WARPS;
constexpr u32 kRows = 16 * ROW_TILES;
constexpr u32 kOut = GATE ? kRows / 2 : kRows;
constexpr u32 kTokens = 8 * TILES;
#include "few_choices.cuh"

// A lane's 16 bytes of its two rows of each row tile, at `depth` of where the rows begin.
__device__ __forceinline__ void load_rows(const ACT *const (&rows)[ROW_TILES][2], u32 depth, bool wanted,
                                          uint4 (&w)[ROW_TILES][2]) {
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++) {
        w[r][0] = load_weights(rows[r][0] + depth, wanted);
        w[r][1] = load_weights(rows[r][1] + depth, wanted);
    }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    moe_few(const ACT *x, u32 token_stride, u32 input_stride, const ACT *w, const ACT *w_up, const i32 *experts,
            u32 experts_stride, const u32 *list, ACT *out, u32 out_token_stride, u32 out_choice_stride,
            const float *bias, const float *bias_up, u32 num_tokens, u32 top_k, u32 first_expert, u32 num_experts,
            u32 num_groups, u32 width, u32 features) {
    extern __shared__ float sums_at[];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    u32 first_row = blockIdx.x * kOut, chunks = (width + 31) / 32;
    wait_for_previous();
    let_next_start();
    Choices own;
    if (!find_choices(list, experts, experts_stride, num_tokens, top_k, first_expert, num_experts, num_groups, own))
        return;
    Results to = {out, out_token_stride, out_choice_stride, bias, bias_up, top_k, features};
    if (own.expert == num_experts) return write_zeros(to, own, first_row);

    const ACT *rows[ROW_TILES][2];
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++) {
        u32 row = first_row + r * (GATE ? 8 : 16) + g, last = features - 1;
        u64 first = (u64)own.expert * features;
        rows[r][0] = w + (first + min(row, last)) * width + 8 * t;
        rows[r][1] = GATE ? w_up + (first + min(row, last)) * width + 8 * t
                          : w + (first + min(row + 8, last)) * width + 8 * t;
    }
    u32 rounds = (chunks + WARPS * DEPTH - 1) / (WARPS * DEPTH);
    do {
        u32 columns = min(own.end - own.begin, kTokens);
        uint4 weights[DEPTH][ROW_TILES][2], values[DEPTH][TILES];
#pragma unroll
        for (u32 d = 0; d < DEPTH; d++) {
            u32 depth = 32 * (warp + d * WARPS);
            load_rows(rows, depth, depth + 8 * t < width, weights[d]);
        }
        // The lane's tokens.
        const ACT *from[TILES];
#pragma unroll
        for (u32 n = 0; n < TILES; n++) {
            u32 choice = 8 * n + g < columns ? own.at(own.begin + 8 * n + g) : 0;
            from[n] = x + (u64)(choice / top_k) * token_stride + (u64)(choice % top_k) * input_stride + 8 * t;
        }
        auto load_x = [&](uint4 (&v)[TILES], u32 depth) {
#pragma unroll
            for (u32 n = 0; n < TILES; n++)
                v[n] = load_values(from[n] + depth, 8 * n + g < columns && depth + 8 * t < width);
        };
#pragma unroll
        for (u32 d = 0; d < DEPTH; d++) load_x(values[d], 32 * (warp + d * WARPS));

        float sums[ROW_TILES][TILES][4] = {};
#pragma unroll 1
        for (u32 round = 0; round < rounds; round++) {
#pragma unroll
            for (u32 d = 0; d < DEPTH; d++) {
                u32 chunk = warp + (round * DEPTH + d) * WARPS, ahead = 32 * (chunk + DEPTH * WARPS);
                // A chunk behind the last one has zeros.
#pragma unroll
                for (u32 n = 0; n < TILES; n++) {
                    uint4 v = values[d][n];
                    u32 low[2] = {v.x, v.y}, high[2] = {v.z, v.w};
#pragma unroll
                    for (u32 r = 0; r < ROW_TILES; r++) {
                        uint4 a = weights[d][r][0], b = weights[d][r][1];
                        u32 first[4] = {a.x, b.x, a.y, b.y}, second[4] = {a.z, b.z, a.w, b.w};
                        mma_m16n8k16<ACT>(sums[r][n], first, low);
                        mma_m16n8k16<ACT>(sums[r][n], second, high);
                    }
                }
                bool more = ahead + 8 * t < width;
                load_rows(rows, ahead, more, weights[d]);
                load_x(values[d], ahead);
            }
        }
#pragma unroll
        for (u32 n = 0; n < TILES; n++)
#pragma unroll
            for (u32 r = 0; r < ROW_TILES; r++) leave_sums(sums_at, r, n, sums[r][n]);
        write_results(to, own, sums_at, first_row, columns);
        own.begin += kTokens;
    } while (own.begin < own.end);
}
