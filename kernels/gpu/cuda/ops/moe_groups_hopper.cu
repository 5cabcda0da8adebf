// `moe_linear` over records where an expert has several tokens, on Hopper's matrix units: 256 rows of an expert's
// records by TOKENS of its choices, as groups_hopper.cuh says. With GATE a block has 128 gate and 128 up rows, by turns
// of eight, and only activation(gate) · up is written.
//
// Definitions: FORMAT (see groups_product.cuh; with minima groups of 32 or more), ACT (bf16, f16: x
// and out), TOKENS (32 or 64; 32 of short runs), GROUPS (1 or more), STAGES (2 or more), GATE (0: plain; else
// activate.cuh's number).
// Launch: grid (features in 256, 128 with GATE; experts that may be chosen; any number, which share an expert's tiles),
// 640 threads, dynamic shared memory 1024 + STAGES·(`kStageBytes` + `kSumBytes` + `kPartBytes` + 16) + 8·TOKENS bytes.
// Operands: those of moe_tile, but w and w_up are the records of all experts' rows. Needs: features a multiple of 8, so
// that no record has rows of two experts; width one of 32; x and out 16-byte aligned, their strides multiples of 8.
// check: -DFORMAT=43 -DACT=bf16 -DTOKENS=64 -DGROUPS=1 -DSTAGES=4 -DGATE=1
// check: -DFORMAT=43 -DACT=f16 -DTOKENS=32 -DGROUPS=2 -DSTAGES=3 -DGATE=0
// check: -DFORMAT=47 -DACT=bf16 -DTOKENS=64 -DGROUPS=1 -DSTAGES=3 -DGATE=1
// check: -DFORMAT=48 -DACT=bf16 -DTOKENS=32 -DGROUPS=1 -DSTAGES=4 -DGATE=2
// check: -DFORMAT=49 -DACT=bf16 -DTOKENS=32 -DGROUPS=2 -DSTAGES=3 -DGATE=1
// check: -DFORMAT=55 -DACT=bf16 -DTOKENS=64 -DGROUPS=1 -DSTAGES=3 -DGATE=1
// check: -DFORMAT=55 -DACT=f16 -DTOKENS=64 -DGROUPS=1 -DSTAGES=3 -DGATE=0
// check: -DFORMAT=49 -DACT=bf16 -DTOKENS=32 -DGROUPS=2 -DSTAGES=4 -DGATE=4 -DGATE_LIMIT=7e0f -DGATE_ALPHA=1.702e0f -DGATE_OFFSET=1e0f
// check: -DFORMAT=3 -DACT=bf16 -DTOKENS=32 -DGROUPS=2 -DSTAGES=4 -DGATE=1
// check: -DFORMAT=4 -DACT=f16 -DTOKENS=32 -DGROUPS=2 -DSTAGES=3 -DGATE=0
// check: -DFORMAT=5 -DACT=bf16 -DTOKENS=32 -DGROUPS=1 -DSTAGES=4 -DGATE=0
// check: -DFORMAT=6 -DACT=bf16 -DTOKENS=32 -DGROUPS=1 -DSTAGES=4 -DGATE=1
// check: -DFORMAT=7 -DACT=bf16 -DTOKENS=32 -DGROUPS=2 -DSTAGES=4 -DGATE=1
// check: -DFORMAT=8 -DACT=bf16 -DTOKENS=32 -DGROUPS=1 -DSTAGES=5 -DGATE=0
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "activate.cuh"
#include "expert_list.cuh"
#include "groups_hopper.cuh"

constexpr u32 kOut = GATE ? kRows / 2 : kRows;

__device__ __forceinline__ uint4 *block_memory() {
    extern __shared__ uint4 shared[];
    return shared;
}

extern "C" __global__ void __launch_bounds__(kAll, 1)
    moe_groups_hopper(const ACT *x, u32 token_stride, u32 input_stride, u8 *w, u8 *w_up, const u32 *list, ACT *out,
                      u32 out_token_stride, u32 out_choice_stride, const float *bias, const float *bias_up,
                      u32 num_tokens, u32 top_k, u32 num_experts, u32 num_groups, u32 width, u32 features) {
    u32 warp = threadIdx.x / 32, first_row = blockIdx.x * kOut;
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
    u32 step = gridDim.z * TOKENS, first_choice = chosen.begin + blockIdx.z * TOKENS;
    if (chosen.expert == num_experts) {
        for (u32 begin = first_choice; !GATE && begin < chosen.end; begin += step) {
            u32 count = min(chosen.end - begin, (u32)TOKENS);
            for (u32 i = threadIdx.x; i < count * (kOut / 8); i += kAll) {
                u32 feature = first_row + i % (kOut / 8) * 8;
                if (feature < features)
                    *(uint4 *)(row_out(choice_at(begin + i / (kOut / 8))) + feature) = make_uint4(0, 0, 0, 0);
            }
        }
        return;
    }
    if (first_choice >= chosen.end) return;
    Ring ring(block_memory());
    Turn turn = {0, 0};
    const ACT **rows = (const ACT **)(ring.empty + STAGES);
    u32 groups = (width + 127) / 128;
    if (warp >= kThreads / 32) {
        give_registers<BRING_REGISTERS>();
        Records plain = records_of(w, width), up = records_of(w_up, width);
        u32 records = features / kRecordRows, first = first_row / kRecordRows, lane = threadIdx.x % 32;
        u32 which = warp - kThreads / 32;
        for (u32 begin = first_choice; begin < chosen.end; begin += step) {
            // This warp's own tokens; behind the last one, that one again.
            if (lane < kOwnTokens) {
                u32 i = which * kOwnTokens + lane, choice = choice_at(min(begin + i, chosen.end - 1));
                rows[i] = x + (u64)(choice / top_k) * token_stride + (u64)(choice % top_k) * input_stride;
            }
            __syncwarp();
            bring(
                ring, turn, which, 0, groups, width,
                [&](u32 block, u32 group) {
                    u32 record = chosen.expert * records + min(first + (GATE ? block / 2 : block), records - 1);
                    return record_of(GATE && block % 2 ? up : plain, record, group);
                },
                [&](u32 i) { return rows[i]; });
            // The sums are written where the next stages come.
            barrier_of<kAll>(2);
        }
    } else {
        take_registers<kMultiplyRegisters>();
        float *all = (float *)ring.stages;
        for (u32 begin = first_choice; begin < chosen.end; begin += step) {
            float sums[TOKENS / 2] = {};
            multiply(ring, turn, 0, groups, sums);
            leave_sums(sums, all);
            u32 count = min(chosen.end - begin, (u32)TOKENS);
            for (u32 i = threadIdx.x; i < count * (kOut / 8); i += kThreads) {
                u32 token = i / (kOut / 8), eighth = i % (kOut / 8), feature = first_row + 8 * eighth;
                if (feature >= features) continue;
                const float *from = all + token * kPitch + (GATE ? 16 : 8) * eighth;
                u64 at = (u64)chosen.expert * features + feature;
                float v[8];
#pragma unroll
                for (u32 e = 0; e < 8; e++) {
                    v[e] = from[e] + (bias ? bias[at + e] : 0.f);
                    if (GATE) v[e] = gated<GATE>(v[e], from[8 + e] + (bias_up ? bias_up[at + e] : 0.f));
                }
                *(uint4 *)(row_out(choice_at(begin + token)) + feature) =
                    make_uint4(pack2<ACT>(v[0], v[1]), pack2<ACT>(v[2], v[3]), pack2<ACT>(v[4], v[5]),
                               pack2<ACT>(v[6], v[7]));
            }
            stores_before_products();
            barrier_of<kAll>(2);
        }
    }
}
#endif
