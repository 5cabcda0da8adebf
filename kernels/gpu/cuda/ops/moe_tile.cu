// `moe_linear` where an expert has many tokens, on Hopper's matrix units: 256 rows of an expert's matrix by TOKENS of
// its choices, whose rows are gathered on the way to shared memory. With GATE a block has 128 gate and 128 up rows, and
// only activation(gate) · up is written.
//
// Two warpgroups multiply 128 rows each, straight from shared memory, while a ring of STAGES pieces of 64 values of
// depth is filled by asynchronous copies of all threads. Large tiles, as what limits them is how fast the second-level
// cache gives their operands; rows of 128 bytes with swapped units (see hopper.cuh), so that copies fill whole lines.
//
// Definitions: ACT (bf16, f16: x, matrices and out), TOKENS (64 or 128), STAGES, GATE (0: plain; else activate.cuh's
// number). Launch: grid (features in 256, 128 with GATE; experts that may be chosen; any number, which share an
// expert's tiles), 256 threads, dynamic shared memory 1024 + STAGES · (256 + TOKENS) · 128 bytes. Operands: `list` is
// moe_list's (see expert_list.cuh); without it choice j of each token takes matrix j, and blockIdx.y is j. Biases
// [experts, features] may be null. Choices of experts elsewhere become 0, with GATE they stay unwritten.
// Needs: width a multiple of 8, x, matrices and out 16-byte aligned, strides of x and out multiples of 8.
// check: -DACT=bf16 -DTOKENS=128 -DSTAGES=4 -DGATE=1
// check: -DACT=bf16 -DTOKENS=128 -DSTAGES=4 -DGATE=0
// check: -DACT=f16 -DTOKENS=64 -DSTAGES=5 -DGATE=2
// check: -DACT=bf16 -DTOKENS=64 -DSTAGES=5 -DGATE=4 -DGATE_LIMIT=7e0f -DGATE_ALPHA=1.702e0f -DGATE_OFFSET=1e0f
#include "activate.cuh"
#include "expert_list.cuh"
#include "hopper.cuh"

#define THREADS 256

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr u32 kRows = 256;
constexpr u32 kOut = GATE ? kRows / 2 : kRows;
constexpr u32 kDepth = 64;
constexpr u32 kStage = (kRows + TOKENS) * 128;
// Rows that all threads bring at a time, and features among them.
constexpr u32 kAtOnce = THREADS / 8;
constexpr u32 kFeaturesAtOnce = GATE ? kAtOnce / 2 : kAtOnce;
constexpr u32 kTokenParts = TOKENS / kAtOnce;
// Values of a token's results in shared memory, with padding.
constexpr u32 kPitch = kOut + 8;

__device__ __forceinline__ void copy_async(u32 to, const void *from, bool wanted) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(wanted ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    moe_tile(const ACT *x, u32 token_stride, u32 input_stride, const ACT *w, const ACT *w_up, const u32 *list, ACT *out,
             u32 out_token_stride, u32 out_choice_stride, const float *bias, const float *bias_up, u32 num_tokens,
             u32 top_k, u32 num_experts, u32 num_groups, u32 width, u32 features) {
    extern __shared__ uint4 shared[];
    u32 base = (shared_address(shared) + 1023) / 1024 * 1024, skipped = base - shared_address(shared);
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, group = threadIdx.x / 128;
    u32 row = threadIdx.x / 8, unit = threadIdx.x % 8;
    u32 first_row = blockIdx.x * kOut, pieces = (width + kDepth - 1) / kDepth;
    wait_for_previous();
    let_next_start();
    Chosen chosen = {blockIdx.y, 0, num_tokens};
    if (list) {
        if (blockIdx.y >= chosen_experts(list)) return;
        chosen = chosen_expert(list, blockIdx.y);
    }
    const u32 *choices = choices_of(list, num_groups);
    auto choice_at = [&](u32 i) { return list ? choices[i] : i * top_k + chosen.expert; };
    auto row_out = [&](u32 choice) {
        return out + (u64)(choice / top_k) * out_token_stride + (u64)(choice % top_k) * out_choice_stride;
    };
    if (chosen.expert == num_experts) {
        for (u32 begin = chosen.begin + blockIdx.z * TOKENS; !GATE && begin < chosen.end; begin += gridDim.z * TOKENS) {
            u32 count = min(chosen.end - begin, (u32)TOKENS);
            for (u32 i = threadIdx.x; i < count * (kOut / 8); i += THREADS) {
                u32 feature = first_row + i % (kOut / 8) * 8;
                ACT *to = row_out(choice_at(begin + i / (kOut / 8))) + feature;
                if (feature + 8 <= features) {
                    *(uint4 *)to = make_uint4(0, 0, 0, 0);
                } else {
                    for (u32 e = 0; feature + e < features; e++) to[e] = from_f32<ACT>(0.f);
                }
            }
        }
        return;
    }

    // This thread's unit of its first row of the matrix; where GATE, eight rows of gate and eight of up in turn.
    u32 own_feature = first_row + (GATE ? row / 16 * 8 + row % 8 : row);
    const ACT *matrix = (GATE && row / 8 % 2 ? w_up : w) + ((u64)chosen.expert * features + own_feature) * width;
    u32 own_place = row * 128 + (unit ^ row % 8) * 16;
    for (u32 begin = chosen.begin + blockIdx.z * TOKENS; begin < chosen.end; begin += gridDim.z * TOKENS) {
        u32 count = min(chosen.end - begin, (u32)TOKENS);
        const ACT *tokens[kTokenParts];
#pragma unroll
        for (u32 i = 0; i < kTokenParts; i++) {
            u32 at = row + i * kAtOnce, choice = at < count ? choice_at(begin + at) : 0;
            const ACT *from = x + (u64)(choice / top_k) * token_stride + (u64)(choice % top_k) * input_stride;
            tokens[i] = at < count ? from + 8 * unit : nullptr;
        }
        auto bring = [&](u32 piece) {
            u32 to = base + piece % STAGES * kStage + own_place, depth = piece * kDepth;
            bool inside = depth + 8 * unit < width;
            const ACT *from = matrix + depth + 8 * unit;
#pragma unroll
            for (u32 i = 0; i < kRows / kAtOnce; i++) {
                bool wanted = inside && own_feature + i * kFeaturesAtOnce < features;
                copy_async(to + i * kAtOnce * 128, wanted ? from + (u64)i * kFeaturesAtOnce * width : w, wanted);
            }
            to += kRows * 128;
#pragma unroll
            for (u32 i = 0; i < kTokenParts; i++) {
                bool wanted = inside && tokens[i];
                copy_async(to + i * kAtOnce * 128, wanted ? tokens[i] + depth : x, wanted);
            }
        };
        // Two pieces are multiplied or about to be: the rest of the ring is on its way.
#pragma unroll
        for (u32 piece = 0; piece < STAGES - 2; piece++) {
            if (piece < pieces) bring(piece);
            commit_copies();
        }
        float sums[2][TOKENS / 2] = {};
#pragma unroll 1
        for (u32 piece = 0; piece < pieces; piece++) {
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 3) : "memory");
            stores_before_products();
            __syncthreads();
            // Both warpgroups are done with the piece before the last one.
            if (piece + STAGES - 2 < pieces) bring(piece + STAGES - 2);
            commit_copies();
            u32 stage = base + piece % STAGES * kStage, rows = stage + group * 128 * 128, columns = stage + kRows * 128;
            wgmma_fence();
#pragma unroll
            for (u32 k = 0; k < kDepth / 16; k++) {
                u64 b = wgmma_swapped_operand(columns + 32 * k);
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    u64 a = wgmma_swapped_operand(rows + half * 64 * 128 + 32 * k);
                    Wgmma<ACT, TOKENS>::run(sums[half], a, b, 1);
                }
            }
            wgmma_commit();
            wgmma_wait<1>();
        }
        wgmma_wait<0>();
        pin(sums[0]);
        pin(sums[1]);
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        // Results by token, so that neighbours are written together.
        ACT *results = (ACT *)((u8 *)shared + skipped);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
#pragma unroll
            for (u32 part = 0; part < (GATE ? 1 : 2); part++) {
                u32 slab = group * 8 + half * 4 + warp % 4, own = GATE ? slab * 8 + g : slab * 16 + part * 8 + g;
                bool present = first_row + own < features;
                u64 at = (u64)chosen.expert * features + first_row + own;
                float add = bias && present ? bias[at] : 0.f, add_up = GATE && bias_up && present ? bias_up[at] : 0.f;
#pragma unroll
                for (u32 n = 0; n < TOKENS / 8; n++)
#pragma unroll
                    for (u32 e = 0; e < 2; e++) {
                        float sum = sums[half][4 * n + 2 * part + e] + add;
                        if (GATE) sum = gated<GATE>(sum, sums[half][4 * n + 2 + e] + add_up);
                        results[(8 * n + 2 * t + e) * kPitch + own] = from_f32<ACT>(sum);
                    }
            }
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < count * (kOut / 8); i += THREADS) {
            u32 token = i / (kOut / 8), at = i % (kOut / 8) * 8;
            ACT *to = row_out(choice_at(begin + token)) + first_row + at;
            const ACT *from = results + token * kPitch + at;
            if (first_row + at + 8 <= features) {
                *(uint4 *)to = *(const uint4 *)from;
            } else {
                for (u32 e = 0; first_row + at + e < features; e++) to[e] = from[e];
            }
        }
        __syncthreads();
    }
}
#endif
