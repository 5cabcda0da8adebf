// `linear` of a batch of tokens over 8-bit weights with a scale a row: tiles of 128 weight rows and TOKENS tokens,
// whose codes and tokens stream through shared memory (a ring of STAGES pieces of 64 depths) and whose codes are
// widened between shared memory and matrix units. Few tiles share the depth among several blocks: each leaves its sums,
// and scaled_finish adds them in order. The layout of the weights is scaled.cuh's.
//
// As in linear_scaled_small.cu lane (g, t) takes depths 16t .. 16t + 15 of both operands; the warps are four by rows
// and two by tokens. A token's 16-byte units are swapped in pairs where its number is odd, so that the two tokens that
// lanes read together lie in different banks.
//
// Definitions: ACT (bf16, f16), OUT (bf16, f16, f32), TOKENS (64 or 128), STAGES, MIN_BLOCKS, EPILOGUE (see
// activate.cuh). linear_scaled_tile: grid (⌈n / 128⌉, ⌈tokens / TOKENS⌉, splits), 256 threads; dynamic shared memory:
// STAGES · (8192 + 128·TOKENS), at least TOKENS · 132 · 4 bytes. `depth`: depths of a split, a multiple of 64.
// `partials` (null where there is one split): [splits, tokens, n] floats. scaled_finish: grid (⌈n / 256⌉, tokens), 256
// threads.
// Needs: k a multiple of 64, x_stride one of 8, x and codes 16-byte aligned.
// check: -DACT=bf16 -DOUT=bf16 -DTOKENS=64 -DSTAGES=5 -DMIN_BLOCKS=2 -DEPILOGUE=0
// check: -DACT=bf16 -DOUT=f32 -DTOKENS=128 -DSTAGES=4 -DMIN_BLOCKS=1 -DEPILOGUE=1
// check: -DACT=f16 -DOUT=f16 -DTOKENS=128 -DSTAGES=4 -DMIN_BLOCKS=2 -DEPILOGUE=3
#include "activate.cuh"
#include "copies.cuh"
#include "mma.cuh"
#include "scaled.cuh"

constexpr u32 kRows = 128;
constexpr u32 kDepth = 64;
constexpr u32 kCodeBytes = kRows * kDepth;
constexpr u32 kStageBytes = kCodeBytes + TOKENS * kDepth * 2;
// Tiles of 8 tokens of a warp.
constexpr u32 kTiles = TOKENS / 16;
// Floats of a token's sums in shared memory: neighbours in rows, tokens in different banks.
constexpr u32 kPitch = kRows + 4;

struct Tile {
    const ACT *x;
    const u8 *codes;
    const float *scales, *bias;
    const OUT *residual;
    OUT *out;
    float *partials;
    u32 x_stride, residual_stride, out_stride;
    u32 tokens, n, k, depth;
};

__device__ __forceinline__ void copy_async(u32 to, const void *from, bool wanted) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(wanted ? 16 : 0) : "memory");
}

// Asks for the codes (four 16-byte units a row) and the tokens (eight) of one piece.
__device__ __forceinline__ void ask_codes(const Tile &p, u32 to, u32 first_row, u32 depth) {
#pragma unroll
    for (u32 i = threadIdx.x; i < kRows * 4; i += 256) {
        u32 row = min(first_row + i / 4, p.n - 1);
        copy_async(to + 16 * i, p.codes + (u64)row * p.k + depth + 16 * (i % 4), true);
    }
}
__device__ __forceinline__ void ask_tokens(const Tile &p, u32 to, u32 first_token, u32 depth) {
#pragma unroll
    for (u32 i = threadIdx.x; i < TOKENS * 8; i += 256) {
        u32 token = i / 8, unit = i % 8;
        bool wanted = first_token + token < p.tokens;
        const ACT *from = p.x + (u64)(wanted ? first_token + token : 0) * p.x_stride + depth + 8 * unit;
        copy_async(to + kCodeBytes + 128 * token + 16 * (unit ^ (token & 1)), from, wanted);
    }
}

// Multiplies one piece.
__device__ __forceinline__ void multiply(u32 stage, u32 first_row, u32 first_token, float (&sums)[2][kTiles][4]) {
    u32 lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    u32 a[2][4][4];
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        u32 at = stage + (first_row + 16 * r + g) * kDepth + 16 * t;
        uint4 low = load_shared(at), high = load_shared(at + 8 * kDepth);
        u32 lows[4] = {low.x, low.y, low.z, low.w}, highs[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            widen_codes<ACT>(lows[i], a[r][i][0], a[r][i][2]);
            widen_codes<ACT>(highs[i], a[r][i][1], a[r][i][3]);
        }
    }
#pragma unroll
    for (u32 tile = 0; tile < kTiles; tile++) {
        u32 token = first_token + 8 * tile + g, at = stage + kCodeBytes + 128 * token;
        uint4 first = load_shared(at + 16 * (2 * t ^ (token & 1))),
              second = load_shared(at + 16 * ((2 * t + 1) ^ (token & 1)));
        u32 b[4][2] = {{first.x, first.y}, {first.z, first.w}, {second.x, second.y}, {second.z, second.w}};
#pragma unroll
        for (u32 i = 0; i < 4; i++)
#pragma unroll
            for (u32 r = 0; r < 2; r++) mma_m16n8k16<ACT>(sums[r][tile], a[r][i], b[i]);
    }
}

// A finished sum: scaled, with what follows.
__device__ __forceinline__ void put(const Tile &p, u32 token, u32 row, float sum) {
    sum *= __ldg(p.scales + row);
    if (p.bias) sum += __ldg(p.bias + row);
    sum = activate<EPILOGUE>(sum);
    if (p.residual) sum += to_f32(p.residual[(u64)token * p.residual_stride + row]);
    p.out[(u64)token * p.out_stride + row] = from_f32<OUT>(sum);
}

__device__ __forceinline__ void product(const Tile &p) {
    extern __shared__ uint4 shared[];
    u32 base = (u32)__cvta_generic_to_shared(shared), lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u32 first_row = blockIdx.x * kRows, first_token = blockIdx.y * TOKENS, begin = blockIdx.z * p.depth,
        end = min(p.k, begin + p.depth);
    u32 pieces = (end - begin) / kDepth;
    // The first codes are constants: load them before the previous kernel has ended.
#pragma unroll
    for (u32 s = 0; s < STAGES - 1; s++)
        if (s < pieces) ask_codes(p, base + s * kStageBytes, first_row, begin + s * kDepth);
    let_next_start();
    wait_for_previous();
#pragma unroll
    for (u32 s = 0; s < STAGES - 1; s++) {
        if (s < pieces) ask_tokens(p, base + s * kStageBytes, first_token, begin + s * kDepth);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    float sums[2][kTiles][4] = {};
    u32 warp_row = warp / 2 * 32, warp_token = warp % 2 * (TOKENS / 2), slot = 0, next = STAGES - 1;
#pragma unroll 1
    for (u32 piece = 0; piece < pieces; piece++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        // All threads are done with the piece that was in the next slot.
        if (piece + STAGES - 1 < pieces) {
            u32 depth = begin + (piece + STAGES - 1) * kDepth;
            ask_codes(p, base + next * kStageBytes, first_row, depth);
            ask_tokens(p, base + next * kStageBytes, first_token, depth);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        multiply(base + slot * kStageBytes, warp_row, warp_token, sums);
        slot = slot + 1 == STAGES ? 0 : slot + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    float *all = (float *)shared;
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
#pragma unroll
        for (u32 tile = 0; tile < kTiles; tile++) {
            float *to = all + (warp_token + 8 * tile + 2 * (lane & 3)) * kPitch + warp_row + 16 * r + (lane >> 2);
            to[0] = sums[r][tile][0];
            to[kPitch] = sums[r][tile][1];
            to[8] = sums[r][tile][2];
            to[kPitch + 8] = sums[r][tile][3];
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < kRows * TOKENS; i += 256) {
        u32 row = first_row + i % kRows, token = first_token + i / kRows;
        if (row >= p.n || token >= p.tokens) continue;
        float sum = all[i / kRows * kPitch + i % kRows];
        if (p.partials) {
            p.partials[((u64)blockIdx.z * p.tokens + token) * p.n + row] = sum;
        } else {
            put(p, token, row, sum);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256, MIN_BLOCKS)
    linear_scaled_tile(const ACT *x, const u8 *codes, const float *scales, const float *bias, const OUT *residual,
                       OUT *out, float *partials, u32 x_stride, u32 residual_stride, u32 out_stride, u32 tokens, u32 n,
                       u32 k, u32 depth) {
    product(
        {x, codes, scales, bias, residual, out, partials, x_stride, residual_stride, out_stride, tokens, n, k, depth});
}

extern "C" __global__ void __launch_bounds__(256)
    scaled_finish(const float *partials, const float *scales, const float *bias, const OUT *residual, OUT *out,
                  u32 residual_stride, u32 out_stride, u32 tokens, u32 n, u32 splits) {
    u32 row = blockIdx.x * 256 + threadIdx.x, token = blockIdx.y;
    wait_for_previous();
    let_next_start();
    if (row >= n) return;
    float sum = 0.f;
#pragma unroll 4
    for (u32 split = 0; split < splits; split++) sum += partials[((u64)split * tokens + token) * n + row];
    Tile p = {nullptr, nullptr, scales, bias, residual, out, nullptr, 0, residual_stride, out_stride, tokens, n, 0, 0};
    put(p, token, row, sum);
}
