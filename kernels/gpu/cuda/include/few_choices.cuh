// What the kernels of few choices an expert share (moe_few, moe_groups_few): which choices a block has, and what
// follows its sums. A block has kOut features of one expert, from kRows rows of its matrices (with GATE half of gate
// and half of up, by turns of eight), and up to kTokens of its choices at a time; its warps share the depth.
//
// Before it: ACT, WARPS, GATE (0: plain; else the number of activate.cuh's `gated`), kRows, kOut, kTokens, kThreads.
#pragma once
#include "activate.cuh"
#include "expert_list.cuh"

// Floats of a choice's sums: padding keeps the lanes of a store in different banks.
constexpr u32 kColumn = kRows + 4;

// Choice i of a block is choices[i], or i times `step` and `offset`.
struct Choices {
    u32 expert, begin, end, step, offset;
    const u32 *list;

    __device__ __forceinline__ u32 at(u32 i) const { return list ? list[i] : i * step + offset; }
};

// Those of block blockIdx.y: of moe_list's list, or of one choice whose expert is found in `experts`, or of all tokens'
// choice of one matrix. False: there are none.
__device__ __forceinline__ bool find_choices(const u32 *list, const i32 *experts, u32 experts_stride, u32 num_tokens,
                                             u32 top_k, u32 first_expert, u32 num_experts, u32 num_groups,
                                             Choices &own) {
    own = {blockIdx.y, 0, num_tokens, top_k, blockIdx.y, nullptr};
    if (list) {
        if (blockIdx.y >= chosen_experts(list)) return false;
        Chosen chosen = chosen_expert(list, blockIdx.y);
        own.expert = chosen.expert, own.begin = chosen.begin, own.end = chosen.end;
        own.list = choices_of(list, num_groups);
    } else if (experts) {
        u32 expert = (u32)experts[(u64)(blockIdx.y / top_k) * experts_stride + blockIdx.y % top_k] - first_expert;
        own = {min(expert, num_experts), blockIdx.y, blockIdx.y + 1, 1, 0, nullptr};
    }
    return true;
}

// Where results go: a token's choices, `choice_stride` apart. Biases [experts, features] may be null.
struct Results {
    ACT *out;
    u32 token_stride, choice_stride;
    const float *bias, *bias_up;
    u32 top_k, features;

    __device__ __forceinline__ ACT *row(u32 choice) const {
        return out + (u64)(choice / top_k) * token_stride + (u64)(choice % top_k) * choice_stride;
    }
};

// Zeros for choices of experts elsewhere; with GATE nothing reads them.
__device__ __forceinline__ void write_zeros(const Results &to, const Choices &own, u32 first_row) {
    if (GATE) return;
    for (u32 i = threadIdx.x; i < (own.end - own.begin) * kOut; i += kThreads) {
        u32 row = first_row + i % kOut;
        if (row < to.features) to.row(own.at(own.begin + i / kOut))[row] = from_f32<ACT>(0.f);
    }
}

// Leaves a lane's sums of 16 rows by 8 choices, as mma_m16n8k16 has them, where write_results finds them.
__device__ __forceinline__ void leave_sums(float *sums_at, u32 row_tile, u32 tile, const float (&sums)[4]) {
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    float *to = sums_at + (warp * kTokens + 8 * tile + 2 * t) * kColumn + 16 * row_tile + g;
    to[0] = sums[0];
    to[kColumn] = sums[1];
    to[8] = sums[2];
    to[kColumn + 8] = sums[3];
}

// Adds up the warps' sums of `columns` choices from `own.begin` on, with what follows. All threads of the block.
__device__ __forceinline__ void write_results(const Results &to, const Choices &own, const float *sums_at,
                                              u32 first_row, u32 columns) {
    __syncthreads();
    for (u32 i = threadIdx.x; i < kOut * columns; i += kThreads) {
        u32 at = i % kOut, column = i / kOut, row = first_row + at;
        if (row >= to.features) continue;
        // Gate rows are the first eight of their tile, up rows the others.
        const float *part = sums_at + column * kColumn + (GATE ? at / 8 * 16 + at % 8 : at);
        u64 of_expert = (u64)own.expert * to.features + row;
        float sum = to.bias ? to.bias[of_expert] : 0.f;
        float up = GATE && to.bias_up ? to.bias_up[of_expert] : 0.f;
#pragma unroll
        for (u32 v = 0; v < WARPS; v++) {
            sum += part[v * kTokens * kColumn];
            if (GATE) up += part[v * kTokens * kColumn + 8];
        }
        if (GATE) sum = gated<GATE>(sum, up);
        to.row(own.at(own.begin + column))[row] = from_f32<ACT>(sum);
    }
    __syncthreads();
}
