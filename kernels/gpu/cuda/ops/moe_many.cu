// `moe_linear` of so many tokens an expert that matrix units are the limit, on Hopper: tiles of 128 choices of an
// expert by 256 rows of its matrix. With GATE these are 128 gate and 128 up rows, and only activation(gate) · up is
// written.
//
// What would limit such tiles is how fast the second-level cache gives their operands. So two blocks, a cluster, take
// two tiles over the same rows: each brings half of the rows to the shared memory of both. Blocks stay and take one
// item (two tiles) after the other, and operands of the next one are on their way while results are written. Of a
// block's warps, eight multiply (each four 64 choices) and four bring: one thread asks the copy engine for rows, all of
// them gather the choices' values by asynchronous copies. A ring of STAGES pieces of 64 values of depth lies between;
// rows of 128 bytes with swapped units (see hopper.cuh).
//
// Definitions: ACT (bf16, f16: x, matrices and out), STAGES (4), GATE (0: plain; else activate.cuh's number). Launch:
// any even number of blocks, 384 threads, dynamic shared memory 2048 + STAGES · 384 · 128 + 16384 bytes. Operands:
// `rows` and `rows_up` are matrices in boxes of 128 rows by 64 values; `list` is moe_list's (see expert_list.cuh), of
// which `count` entries from `first_entry` on are taken; without it choice j of each token takes matrix j, of `count`.
// Matrices are the experts', or with `in_order` those of the entries taken. Biases [experts, features] may be null.
// Choices of experts elsewhere become 0, with GATE they stay unwritten. Needs: width a multiple of 8, x, matrices and
// out 16-byte aligned, strides of x and out multiples of 8.
// check: -DACT=bf16 -DSTAGES=4 -DGATE=1
// check: -DACT=bf16 -DSTAGES=4 -DGATE=0
// check: -DACT=f16 -DSTAGES=4 -DGATE=2
// check: -DACT=bf16 -DSTAGES=4 -DGATE=4 -DGATE_LIMIT=7e0f -DGATE_ALPHA=1.702e0f -DGATE_OFFSET=1e0f
#include "activate.cuh"
#include "copies.cuh"
#include "expert_list.cuh"
#include "hopper.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr u32 kMultiplying = 256, kBringing = 128, kThreads = kMultiplying + kBringing;
constexpr u32 kRows = 256, kTokens = 128, kDepth = 64;
constexpr u32 kOut = GATE ? kRows / 2 : kRows;
constexpr u32 kBox = kRows / 2;
constexpr u32 kStage = (kRows + kTokens) * 128;
// Features that a warp passes through shared memory at a time, 128 bytes of each of its 16 choices.
constexpr u32 kPart = 64, kPartBytes = 16 * 128;
// Items that warps which bring may be ahead: one for each piece of the ring, and the one at hand.
constexpr u32 kItems = 8;
constexpr u32 kEnd = 0xffffffff;
static_assert(STAGES < kItems && STAGES > 2, "items are written over while they are read");

// What a block's warps have between them. `full`: threads that bring, once for choices and one of them for rows too.
// `empty`: the eight warps that multiply, of both blocks.
struct Between {
    Barrier full[STAGES], empty[STAGES];
    // Of an item: its first row, this block's first choice and how many, and the expert (kEnd: no more).
    uint4 items[kItems];
};
static_assert(sizeof(Between) <= 1024, "it lies before the ring");

// Results to shared memory, four squares of eight by eight: lane l names row l % 8 of square l / 8.
__device__ __forceinline__ void store_squares(u32 to, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    moe_many(const __grid_constant__ Boxes rows, const __grid_constant__ Boxes rows_up, const ACT *x, u32 token_stride,
             u32 input_stride, const u32 *list, ACT *out, u32 out_token_stride, u32 out_choice_stride,
             const float *bias, const float *bias_up, u32 num_tokens, u32 top_k, u32 num_experts, u32 num_groups,
             u32 width, u32 features, u32 first_entry, u32 count, u32 in_order) {
    extern __shared__ uint4 shared[];
    u32 ring = (shared_address(shared) + sizeof(Between) + 1023) / 1024 * 1024, parts = ring + STAGES * kStage;
    Between &between = *(Between *)shared;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = block_of_cluster();
    u32 pieces = (width + kDepth - 1) / kDepth, blocks = (features + kOut - 1) / kOut;
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < STAGES; i++) {
            barrier_init(between.full[i], kBringing + 1);
            barrier_init(between.empty[i], 2 * kMultiplying / 32);
        }
        barrier_init_done();
    }
    meet_in_cluster();
    wait_for_previous();
    let_next_start();
    const u32 *choices = choices_of(list, num_groups);
    auto row_out = [&](u32 choice) {
        return out + (u64)(choice / top_k) * out_token_stride + (u64)(choice % top_k) * out_choice_stride;
    };
    if (list) count = chosen_experts(list) > first_entry ? min(count, chosen_experts(list) - first_entry) : 0;
    auto chosen = [&](u32 entry) {
        return list ? chosen_expert(list, first_entry + entry) : Chosen{entry, 0, num_tokens};
    };
    if (!GATE && list && count) {
        Chosen last = chosen(count - 1);
        if (last.expert == num_experts) {
            u64 units = (features + 7) / 8, all = (last.end - last.begin) * units;
            for (u64 i = blockIdx.x * kThreads + threadIdx.x; i < all; i += gridDim.x * kThreads) {
                u32 feature = i % units * 8;
                ACT *to = row_out(choices[last.begin + i / units]) + feature;
                if (feature + 8 <= features) {
                    *(uint4 *)to = make_uint4(0, 0, 0, 0);
                } else {
                    for (u32 e = 0; feature + e < features; e++) to[e] = from_f32<ACT>(0.f);
                }
            }
        }
    }

    if (warp >= kMultiplying / 32) {
        give_registers<88>();
        u32 thread = threadIdx.x - kMultiplying, row = thread / 8, unit = thread % 8;
        u32 own_place = ring + kRows * 128 + row * 128 + (unit ^ row % 8) * 16;
        // This cluster's items of an entry from `at` on, and the entry's tiles in twos times its blocks of rows.
        u32 entry = 0, at = blockIdx.x / 2, items = 0, piece = 0;
        Chosen now = {0, 0, 0};
        auto enter = [&]() {
            now = chosen(entry);
            items = now.expert == num_experts ? 0 : (now.end - now.begin + 2 * kTokens - 1) / (2 * kTokens) * blocks;
        };
        if (count) enter();
        auto wait_for_place = [&]() { barrier_wait(between.empty[piece % STAGES], piece / STAGES % 2 ^ 1); };
        for (u32 item = 0;; item++) {
            while (entry < count && at >= items) {
                at -= items;
                if (++entry < count) enter();
            }
            if (entry == count) {
                wait_for_place();
                if (thread == 0) {
                    between.items[item % kItems] = make_uint4(0, 0, 0, kEnd);
                    barrier_arrive(between.full[piece % STAGES]);
                }
                arrive_after_copies(between.full[piece % STAGES]);
                break;
            }
            // Few choices go to the blocks in 64s.
            u32 begin = now.begin + at / blocks * 2 * kTokens, first_row = at % blocks * kOut;
            u32 left = min(now.end - begin, 2 * kTokens), each = left > kTokens ? kTokens : kTokens / 2;
            u32 own = rank == 0 ? min(left, each) : left > each ? left - each : 0;
            begin += rank * each;
            const ACT *tokens[kTokens / 16];
#pragma unroll
            for (u32 i = 0; i < kTokens / 16; i++) {
                u32 token = row + 16 * i;
                u32 choice = token >= own ? 0 : list ? choices[begin + token] : (begin + token) * top_k + now.expert;
                const ACT *from = x + (u64)(choice / top_k) * token_stride + (u64)(choice % top_k) * input_stride;
                tokens[i] = token < own ? from + 8 * unit : nullptr;
            }
            u32 matrix_row = (in_order ? entry : now.expert) * features + first_row + (GATE ? 0 : rank * kBox);
#pragma unroll 1
            for (u32 p = 0; p < pieces; p++) {
                wait_for_place();
                u32 place = piece % STAGES * kStage;
                if (thread == 0) {
                    if (p == 0) between.items[item % kItems] = make_uint4(first_row, begin, own, now.expert);
                    barrier_arrive_expect(between.full[piece % STAGES], kRows * 128);
                    load_box_for_both(ring + place + rank * kBox * 128, GATE && rank ? rows_up : rows, p * kDepth,
                                      matrix_row, between.full[piece % STAGES]);
                }
                bool inside = p * kDepth + 8 * unit < width;
#pragma unroll
                for (u32 i = 0; i < kTokens / 16; i++) {
                    if (16 * i >= own) break;
                    bool wanted = inside && tokens[i];
                    copy_async<16>(own_place + place + i * 16 * 128, wanted ? tokens[i] + p * kDepth : x, wanted);
                }
                arrive_after_copies(between.full[piece % STAGES]);
                piece++;
            }
            at += gridDim.x / 2;
        }
        meet_in_cluster();
        return;
    }

    take_registers<208>();
    u32 group = warp / 4, t = lane % 4, other = in_block(shared_address(between.empty), rank ^ 1), piece = 0;
    auto release = [&](u32 which) {
        if (lane == 0) {
            barrier_arrive(between.empty[which % STAGES]);
            barrier_arrive_there(other + which % STAGES * sizeof(Barrier));
        }
    };
    auto wait_for_piece = [&]() { barrier_wait(between.full[piece % STAGES], piece / STAGES % 2); };
    // Where the warp's results pass: 16 choices of 128 bytes with swapped units. Lane l writes row l % 16 of a unit.
    u32 part = parts + warp * kPartBytes, part_row = part + lane % 16 * 128;
    for (u32 item = 0;; item++) {
        wait_for_piece();
        uint4 what = between.items[item % kItems];
        u32 first_row = what.x, begin = what.y, own = what.z, expert = what.w;
        if (expert == kEnd) break;
        bool busy = group * 64 < own;
        // The choices whose results this lane writes.
        u32 results_of[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 token = warp * 16 + 4 * i + lane / 8;
            results_of[i] = token >= own ? kEnd : list ? choices[begin + token] : (begin + token) * top_k + expert;
        }
        float sums[kRows / 2] = {};
#pragma unroll 1
        for (u32 p = 0; p < pieces; p++) {
            if (p) wait_for_piece();
            u32 stage = ring + piece % STAGES * kStage, tokens = stage + kRows * 128 + group * 64 * 128;
            if (busy) {
                copies_before_products();
                wgmma_fence();
#pragma unroll
                for (u32 k = 0; k < kDepth / 16; k++) {
                    u64 a = wgmma_swapped_operand(tokens + 32 * k), b = wgmma_swapped_operand(stage + 32 * k);
                    WgmmaShared<ACT, 256, 0>::run(sums, a, b, 1);
                }
                wgmma_commit();
                wgmma_wait<1>();
            }
            if (p) release(piece - 1);
            piece++;
        }
        wgmma_wait<0>();
        pin(sums);
        release(piece - 1);
        if (!busy) continue;
        u64 vector = (u64)expert * features + first_row;
#pragma unroll
        for (u32 from = 0; from < kOut; from += kPart) {
            __syncwarp();
#pragma unroll
            for (u32 pair = 0; pair < kPart / 16; pair++) {
                u32 packed[4];
#pragma unroll
                for (u32 i = 0; i < 2; i++) {
                    u32 n = from / 8 + 2 * pair + i;
                    float v[4];
#pragma unroll
                    for (u32 e = 0; e < 2; e++) {
                        u32 feature = 8 * n + 2 * t + e;
                        bool present = first_row + feature < features;
                        float add = bias && present ? bias[vector + feature] : 0.f;
                        float add_up = GATE && bias_up && present ? bias_up[vector + feature] : 0.f;
#pragma unroll
                        for (u32 half = 0; half < 2; half++) {
                            float sum = sums[4 * n + 2 * half + e] + add;
                            u32 up = 4 * (n + kOut / 8) % (kRows / 2) + 2 * half + e;
                            if (GATE) sum = gated<GATE>(sum, sums[up] + add_up);
                            v[2 * half + e] = sum;
                        }
                    }
                    packed[2 * i] = pack2<ACT>(v[0], v[1]);
                    packed[2 * i + 1] = pack2<ACT>(v[2], v[3]);
                }
                u32 unit = 2 * pair + lane / 16;
                store_squares(part_row + (unit ^ lane % 8) * 16, packed[0], packed[1], packed[2], packed[3]);
            }
            __syncwarp();
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                u32 token = 4 * i + lane / 8, feature = first_row + from + lane % 8 * 8;
                uint4 v = load_shared(part + token * 128 + (lane % 8 ^ token % 8) * 16);
                if (results_of[i] == kEnd || feature >= features) continue;
                ACT *to = row_out(results_of[i]) + feature;
                if (feature + 8 <= features) {
                    *(uint4 *)to = v;
                } else {
                    const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                    for (u32 e = 0; e < 8; e++)
                        if (feature + e < features) to[e].bits = (u16)(words[e / 2] >> 16 * (e % 2));
                }
            }
        }
    }
    meet_in_cluster();
}
#endif
