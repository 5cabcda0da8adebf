// The same as linear_groups_tile on Hopper's matrix units: 256 weight rows by TOKENS tokens a block. Codes become left
// operands in registers, tokens are read from shared memory by the matrix unit itself.
//
// Four warpgroups have 64 rows each. A run of depths that shares a scale is one asynchronous set of products, summed
// from zero and added when it is done; meanwhile the other warpgroups make their operands, as they meet every second
// piece only. A lane's codes for the unit's order of depths lie with two other lanes of the planes' order
// (quantized.cuh), at their even pairs for even lanes and at their odd pairs for odd ones.
//
// Where the format has minima, warps sum the values of eight tokens of a piece each, and all add them one pair of
// pieces later.
//
// Definitions: FORMAT (canonical; see quantized.cuh), ACT (bf16, f16), OUT (bf16, f16, f32), TOKENS (32 or 64), STAGES
// (4 or more, even), EPILOGUE (see activate.cuh).
// linear_groups_hopper: grid (⌈n / 256⌉, ⌈tokens / TOKENS⌉, splits), 512 threads, dynamic shared memory 1024 +
// STAGES·`kStageBytes` + 4·`kRuns`·TOKENS·4 bytes. Operands, groups_finish and needs are those of linear_groups_tile.
// check: -DFORMAT=43 -DACT=bf16 -DOUT=bf16 -DTOKENS=64 -DSTAGES=6 -DEPILOGUE=0
// check: -DFORMAT=43 -DACT=f16 -DOUT=f32 -DTOKENS=32 -DSTAGES=6 -DEPILOGUE=1
// check: -DFORMAT=42 -DACT=bf16 -DOUT=bf16 -DTOKENS=64 -DSTAGES=4 -DEPILOGUE=0
// check: -DFORMAT=47 -DACT=f16 -DOUT=f16 -DTOKENS=64 -DSTAGES=4 -DEPILOGUE=0
// check: -DFORMAT=49 -DACT=bf16 -DOUT=bf16 -DTOKENS=64 -DSTAGES=4 -DEPILOGUE=0
// check: -DFORMAT=55 -DACT=bf16 -DOUT=bf16 -DTOKENS=64 -DSTAGES=4 -DEPILOGUE=0
#include "groups_product.cuh"
#include "hopper.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr u32 kRows = 256;
constexpr u32 kThreads = 512;
#include "groups_tile.cuh"

// A piece: tokens in two parts of 64 depths, rows of 128 bytes with swapped units (hopper.cuh), then codes and scales.
constexpr u32 kTokenBytes = TOKENS * 256;
constexpr u32 kCodeBytes = kRows * kQuants;
constexpr u32 kStageBytes = (kTokenBytes + kCodeBytes + kRows * kScales + 1023) / 1024 * 1024;
// Copies of 16 bytes that a thread makes for a piece.
constexpr u32 kUnits = kQuants / 16;
constexpr u32 kCodeCopies = kRows * kUnits / kThreads;
constexpr u32 kTokenCopies = TOKENS * 16 / kThreads;
// Steps whose operands are made at a time.
constexpr u32 kAtOnce = kRunSteps < 4 ? kRunSteps : 4;

// Where a row's unit of 16 bytes of codes stands: swapped, so that what lanes read together lies in different banks.
__device__ __forceinline__ u32 place_of(u32 row, u32 unit) {
    return row * kQuants + 16 * (unit ^ (row & (kBytes ? 1 : 2)));
}

// Brings pieces, one after the other: what this thread copies of each.
struct Feed {
    const u8 *codes[kCodeCopies], *scales;
    const ACT *tokens[kTokenCopies];
    u32 codes_to, scales_to, tokens_to, depth, k;

    __device__ __forceinline__ Feed(const Tile &p, u32 base, u32 first_row, u32 first_token, u32 group) {
        u32 unit = threadIdx.x % kUnits, row = threadIdx.x / kUnits;
        codes_to = base + kTokenBytes + place_of(row, unit);
#pragma unroll
        for (u32 i = 0; i < kCodeCopies; i++) {
            u64 at = (u64)min(first_row + row + i * (kThreads / kUnits), p.n - 1) * p.planes.groups + group;
            codes[i] = p.planes.quants + at * kQuants + 16 * unit;
        }
        u64 at = (u64)min(first_row + threadIdx.x % kRows, p.n - 1) * p.planes.groups + group;
        scales = p.planes.scales + at * kScales;
        scales_to = base + kTokenBytes + kCodeBytes + threadIdx.x % kRows * kScales;
        u32 token = threadIdx.x / 16, part = threadIdx.x % 16 / 8, token_unit = threadIdx.x % 8;
        tokens_to = base + part * TOKENS * 128 + token * 128 + 16 * (token_unit ^ token % 8);
        depth = 128 * group + 64 * part + 8 * token_unit;
        k = p.k;
#pragma unroll
        for (u32 i = 0; i < kTokenCopies; i++) {
            u32 of = first_token + token + i * (kThreads / 16);
            tokens[i] = of < p.tokens ? p.x + (u64)of * p.x_stride + depth : nullptr;
        }
    }
    __device__ __forceinline__ void weights(u32 slot) {
#pragma unroll
        for (u32 i = 0; i < kCodeCopies; i++) {
            copy_async<16>(codes_to + slot * kStageBytes + i * (kThreads / kUnits) * kQuants, codes[i], true);
            codes[i] += kQuants;
        }
        if (threadIdx.x < kRows) copy_scales(scales_to + slot * kStageBytes, scales, true);
        scales += kScales;
    }
    __device__ __forceinline__ void values(u32 slot) {
#pragma unroll
        for (u32 i = 0; i < kTokenCopies; i++) {
            bool wanted = tokens[i] && depth < k;
            copy_async<16>(tokens_to + slot * kStageBytes + i * (kThreads / 16) * 128, wanted ? tokens[i] : nullptr,
                           wanted);
            tokens[i] += tokens[i] ? 128 : 0;
        }
        depth += 128;
    }
};

// The operands of kAtOnce steps from two rows, `low` and `low` + 8: of one half of the lanes' codes.
__device__ __forceinline__ void left_of_steps(const u8 *codes_at, u32 low, u32 first, u32 t, u32 (&a)[kAtOnce][4]) {
    u32 shift = t % 2 * (kBytes ? 16 : 4), half = first / 4;
#pragma unroll
    for (u32 upper = 0; upper < 2; upper++) {
#pragma unroll
        for (u32 v = 0; v < 2; v++) {
            u32 unit = kWords * (2 * v + t / 2) + (kBytes ? half : 0);
            const u8 *from = codes_at + place_of(low + 8 * upper, unit);
            uint4 codes[kWords];
            if (kBytes) {
                uint4 four = *(const uint4 *)from;
                codes[half % kWords] = {four.x >> shift, four.y >> shift, four.z >> shift, four.w >> shift};
            } else {
                uint2 two = *(const uint2 *)(from + 8 * half);
                two = {two.x >> shift, two.y >> shift};
                if (half == 0) codes[0].x = two.x, codes[0].y = two.y;
                else codes[0].z = two.x, codes[0].w = two.y;
            }
#pragma unroll
            for (u32 s = 0; s < kAtOnce; s++)
                a[s][2 * v + upper] = operand_of<ACT>(codes, (first + s) / 2, 2 * ((first + s) % 2));
        }
    }
}

// The sums of eight tokens' values over each run of a piece, as a product with ones. Which lane brings which unit of a
// run does not matter.
__device__ __forceinline__ void sum_tokens(const u8 *tokens, u32 tile, float *totals) {
    static_assert(!kNeedsSums || kRun >= 32, "runs of 16 are not summed by themselves");
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, one = pack2<ACT>(1.f, 1.f), ones[4] = {one, one, one, one};
    float part[4] = {};
#pragma unroll
    for (u32 chunk = 0; chunk < 4; chunk++) {
        u32 unit = chunk % 2 * 4 + t;
        uint4 v = *(const uint4 *)(tokens + chunk / 2 * TOKENS * 128 + (8 * tile + g) * 128 + 16 * (unit ^ g));
        u32 b[2][2] = {{v.x, v.y}, {v.z, v.w}};
        mma_m16n8k16<ACT>(part, ones, b[0]);
        mma_m16n8k16<ACT>(part, ones, b[1]);
        if ((chunk + 1) * 32 % kRun != 0) continue;
        if (g == 0) *(float2 *)(totals + chunk * 32 / kRun * TOKENS + 8 * tile + 2 * t) = make_float2(part[0], part[1]);
        part[0] = part[1] = part[2] = part[3] = 0.f;
    }
}

__device__ __forceinline__ void product(const Tile &p) {
    extern __shared__ uint4 shared[];
    u32 base = (shared_address(shared) + 1023) / 1024 * 1024;
    u8 *ring = (u8 *)shared + (base - shared_address(shared));
    // Two pairs' worth, in turns: [turn][piece][run][token].
    float *totals = (float *)(ring + STAGES * kStageBytes);
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, own_row = warp * 16 + g;
    u32 first_row = blockIdx.x * kRows, first_token = blockIdx.y * TOKENS;
    u32 begin = blockIdx.z * p.depth, end = min(p.planes.groups, begin + p.depth);
    Feed feed(p, base, first_row, first_token, begin);
    // The first weights are constants: ask for them before the previous kernel has ended.
#pragma unroll
    for (u32 s = 0; s < STAGES - 2; s++)
        if (begin + s < end) feed.weights(s);
    let_next_start();
    wait_for_previous();
#pragma unroll
    for (u32 s = 0; s < STAGES - 2; s++) {
        if (begin + s < end) feed.values(s);
        end_of_copies();
    }

    float sums[TOKENS / 2] = {}, part[TOKENS / 2], add[2][kRuns][2] = {};
    u32 a[2][kAtOnce][4];
    // The minima of the pair before.
    auto add_minima = [&](const float *from) {
#pragma unroll
        for (u32 i = 0; i < 2 * kRuns; i++)
#pragma unroll
            for (u32 n8 = 0; n8 < TOKENS / 8; n8++) {
                float2 total = *(const float2 *)(from + i * TOKENS + 8 * n8 + 2 * t);
#pragma unroll
                for (u32 j = 0; j < 4; j++)
                    sums[4 * n8 + j] =
                        fmaf(add[i / kRuns][i % kRuns][j / 2], j & 1 ? total.y : total.x, sums[4 * n8 + j]);
            }
    };
    // Before the first pair nothing is added, and of a missing second piece neither.
    for (u32 i = threadIdx.x; i < 4 * kRuns * TOKENS; i += kThreads) totals[i] = 0.f;
    u32 slot = 0, next = STAGES - 2, turn = 0, group = begin;
#pragma unroll 1
    do {
        wait_for_copies<STAGES - 4>();
        stores_before_products();
        __syncthreads();
        // All products with the pieces that were in the next two slots are done.
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            if (group + STAGES - 2 + i < end) {
                feed.weights(next + i);
                feed.values(next + i);
            }
            end_of_copies();
        }
        u32 of_pair = warp / (TOKENS / 8);
        if (kNeedsSums && of_pair < 2 && group + of_pair < end)
            sum_tokens(ring + (slot + of_pair) * kStageBytes, warp % (TOKENS / 8),
                       totals + (turn + of_pair * kRuns) * TOKENS);
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            if (i == 1 && group + 1 >= end) {
#pragma unroll
                for (u32 run = 0; run < kRuns; run++) add[1][run][0] = add[1][run][1] = 0.f;
                break;
            }
            const u8 *codes_at = ring + (slot + i) * kStageBytes + kTokenBytes;
            u32 columns = base + (slot + i) * kStageBytes;
            Factors f[2];
#pragma unroll
            for (u32 r = 0; r < 2; r++)
                f[r] = factors_at((const float *)(codes_at + kCodeBytes + (own_row + 8 * r) * kScales));
#pragma unroll
            for (u32 run = 0; run < kRuns; run++) {
#pragma unroll
                for (u32 set = 0; set < kRunSteps / kAtOnce; set++) {
                    u32 first = run * kRunSteps + set * kAtOnce;
                    left_of_steps(codes_at, own_row, first, t, a[set % 2]);
                    wgmma_fence();
#pragma unroll
                    for (u32 s = 0; s < kAtOnce; s++) {
                        u32 step = first + s;
                        u32(&left)[4] = a[set % 2][s];
                        u64 b = wgmma_swapped_operand(columns + step / 4 * TOKENS * 128 + step % 4 * 32);
                        Wgmma<ACT, TOKENS>::run(part, left[0], left[1], left[2], left[3], b, set + s > 0);
                    }
                    wgmma_commit();
                }
                if (kNeedsSums && i + run == 0) add_minima(totals + (2 * kRuns - turn) * TOKENS);
                wgmma_wait<0>();
                pin(part);
#pragma unroll
                for (u32 j = 0; j < TOKENS / 2; j++) sums[j] = fmaf(f[j / 2 % 2].scale[run], part[j], sums[j]);
                add[i][run][0] = f[0].add[run], add[i][run][1] = f[1].add[run];
            }
        }
        slot = slot + 2 == STAGES ? 0 : slot + 2;
        next = next + 2 == STAGES ? 0 : next + 2;
        turn = 2 * kRuns - turn;
        group += 2;
    } while (group < end);
    wait_for_copies<0>();
    __syncthreads();
    if (kNeedsSums) add_minima(totals + (2 * kRuns - turn) * TOKENS);
    float *all = (float *)ring;
#pragma unroll
    for (u32 n8 = 0; n8 < TOKENS / 8; n8++) {
        float *to = all + (8 * n8 + 2 * t) * kPitch + own_row;
        to[0] = sums[4 * n8];
        to[kPitch] = sums[4 * n8 + 1];
        to[8] = sums[4 * n8 + 2];
        to[kPitch + 8] = sums[4 * n8 + 3];
    }
    __syncthreads();
    write_sums(p, all, first_row, first_token);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    linear_groups_hopper(const ACT *x, u8 *weights, const float *bias, const OUT *residual, OUT *out, float *partials,
                         u32 x_stride, u32 residual_stride, u32 out_stride, u32 tokens, u32 n, u32 k, u32 depth) {
    product({x, planes_of(weights, n, k), bias, residual, out, partials, x_stride, residual_stride, out_stride, tokens,
             n, k, depth});
}
#endif
