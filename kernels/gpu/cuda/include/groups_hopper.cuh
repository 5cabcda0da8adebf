// What Hopper's products over records share (linear_groups_hopper, moe_groups_hopper): 256 weight rows by
// TOKENS tokens a block. Codes become left operands in registers, tokens are read from shared memory by the matrix unit
// itself.
//
// Four warpgroups multiply, 64 rows each; four more warps bring what they need, in stages of GROUPS groups of 128
// depths: records of weights by the copy engine, tokens by asynchronous copies, as their units are swapped on the way.
// Where the format has minima, those four also sum the tokens' values. Nobody meets anybody but at the barriers of a
// stage, full and empty, so that warpgroups make operands while others wait for products. A run of depths that shares a
// scale is summed from zero, and added when it is done. Runs of less than 64 depths are too short for that: where there
// are no minima the products of the next run are under way meanwhile (kShortRuns).
//
// A minimum counts as a multiple of its scale, less what operands exceed codes by: bf16 holds it where zero points are
// whole numbers, and then one more product of that by the tokens' sums, in three parts that hold them exactly, is all
// there is to do. What bf16 does not hold is multiplied by the sums in f32, and so is all of it in f16, whose range the
// sums leave, and of GGUF's formats, whose minima are no multiples.
//
// A lane's codes for the unit's order of depths lie with two other lanes of the records' order (quantized.cuh), at
// their even pairs for even lanes and at their odd pairs for odd ones.
//
// Before it: FORMAT, ACT, TOKENS (32 or 64; 32 where kShortRuns), GROUPS (1 or more), STAGES (2 or more).
#pragma once
#include "groups_product.cuh"
#include "hopper.cuh"

#if !defined(BRING_REGISTERS)
#define BRING_REGISTERS 64
#endif
constexpr u32 kRows = 256;
// Threads that multiply, warps that bring, and all.
constexpr u32 kThreads = 512;
constexpr u32 kBringers = 4;
constexpr u32 kAll = kThreads + 32 * kBringers;
constexpr u32 kMultiplyRegisters = (480 - BRING_REGISTERS) / 4 / 8 * 8;
constexpr bool kShortRuns = kRun < 64 && !kHasMin;
static_assert(!kShortRuns || TOKENS == 32, "registers hold two runs' sums of 32 tokens");

// A stage: tokens of each group in two parts of 64 depths, rows of 128 bytes with swapped units (hopper.cuh), then each
// eight rows' records.
constexpr u32 kBlocks8 = kRows / kRecordRows;
constexpr u32 kGroupTokens = TOKENS * 256;
constexpr u32 kTokenBytes = GROUPS * kGroupTokens;
constexpr u32 kStageBytes = (kTokenBytes + GROUPS * kBlocks8 * kRecord + 1023) / 1024 * 1024;
// The sums of its tokens' values: [group][run][token].
constexpr u32 kSumBytes = kNeedsSums ? GROUPS * kRuns * TOKENS * 4 : 0;
// The same in three parts, as a right operand: [group][run][upper or lower 8 depths][token][8]; the rest are zeros.
constexpr bool kByProduct = kGroups && kNeedsSums && kIsBf16<ACT>;
constexpr u32 kRunParts = TOKENS * 32;
constexpr u32 kPartBytes = kByProduct ? GROUPS * kRuns * kRunParts : 0;
// Chunks of 32 depths whose codes are loaded at a time, and those of a run.
constexpr u32 kAhead = kBytes ? 1 : 2;
constexpr u32 kRunChunks = kRun / 32;
constexpr u32 kOwnTokens = TOKENS / kBringers;

// Floats of a token's sums in shared memory: neighbours in rows, tokens in different banks.
constexpr u32 kPitch = kRows + 4;

// Where in the ring a warp is.
struct Turn {
    u32 slot, phase;

    __device__ __forceinline__ void go_on() {
        if (++slot == STAGES) slot = 0, phase ^= 1;
    }
};

// What all warps know of the ring.
struct Ring {
    u8 *stages;
    u32 base;
    float *totals;
    u8 *all_parts;
    Barrier *full, *empty;

    // In the block's dynamic shared memory, ready for use. All threads.
    __device__ __forceinline__ Ring(uint4 *shared) {
        base = (shared_address(shared) + 1023) / 1024 * 1024;
        stages = (u8 *)shared + (base - shared_address(shared));
        totals = (float *)(stages + STAGES * kStageBytes);
        all_parts = (u8 *)(totals + STAGES * kSumBytes / 4);
        full = (Barrier *)(all_parts + STAGES * kPartBytes);
        empty = full + STAGES;
        if (threadIdx.x == 0) {
            // Those that bring arrive once with the bytes that they ask for, and once when their tokens are there.
#pragma unroll
            for (u32 s = 0; s < STAGES; s++) {
                barrier_init(full[s], 2 * kBringers);
                barrier_init(empty[s], kThreads / 32);
            }
            barrier_init_done();
        }
        if (kByProduct) {
            for (u32 i = threadIdx.x; i < STAGES * kPartBytes / 16; i += kAll)
                ((uint4 *)all_parts)[i] = make_uint4(0, 0, 0, 0);
            stores_before_products();
        }
        __syncthreads();
    }

    __device__ __forceinline__ u8 *stage(u32 slot) const { return stages + slot * kStageBytes; }
    __device__ __forceinline__ float *sums(u32 slot) const { return totals + slot * (kSumBytes / 4); }
    __device__ __forceinline__ u8 *parts(u32 slot) const { return all_parts + slot * kPartBytes; }
};

// Where a lane's codes and higher bits stand in a record, and how far its own are from their lower ends.
struct Place {
    u32 codes, high, shift, high_shift;
};
__device__ __forceinline__ Place own_place() {
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, odd = t % 2;
    u32 shift = kBytes ? 16 : 4, high_shift = FORMAT == 8 ? 2 : 1;
    return {codes_in_record(g, t / 2, 0), high_in_record(g, t / 2), odd * shift, odd * high_shift};
}

// Codes of two rows, g of each record, for the operands of kAhead chunks: [row][half of the lanes].
struct Ahead {
    uint2 words[2][2];
    u32 high[2][2];

    __device__ __forceinline__ void load(const u8 *low, const u8 *upper_rows, const Place &place, u32 chunk) {
#pragma unroll
        for (u32 upper = 0; upper < 2; upper++)
#pragma unroll
            for (u32 v = 0; v < 2; v++) {
                const u8 *record = upper ? upper_rows : low;
                const u8 *from = record + (place.codes ^ 32 * v), *more = record + place.high + kHigh / 2 * v;
                uint2 two = *(const uint2 *)(from + (kBytes ? 512 * (chunk / 2) + 8 * (chunk % 2) : 4 * chunk));
                words[upper][v] = {two.x >> place.shift, two.y >> place.shift};
                // Of two chunks.
                u32 bits = 0;
                if (FORMAT == 5) bits = (u32)((const u16 *)more)[chunk / 2] * 0x10001;
                if (FORMAT == 8) bits = ((const u32 *)more)[chunk / 2];
                high[upper][v] = bits >> place.high_shift;
            }
    }
    // The operands of a chunk's two steps.
    __device__ __forceinline__ void expand(u32 chunk, u32 (&a)[2][4]) const {
#pragma unroll
        for (u32 upper = 0; upper < 2; upper++)
#pragma unroll
            for (u32 v = 0; v < 2; v++) {
                uint2 two = words[upper][v];
                Codes codes;
                codes.words[kBytes ? chunk / 2 % kWords : 0] = {two.x, two.y, two.x, two.y};
                codes.high = {high[upper][v], high[upper][v]};
#pragma unroll
                for (u32 s = 0; s < 2; s++) a[s][2 * v + upper] = operand_of<ACT>(codes, chunk, 2 * s);
            }
    }
};

// The sums of a group's values of this warp's tokens over each run, as products with ones. Which lane brings which unit
// of a run does not matter.
__device__ __forceinline__ void sum_tokens(const u8 *tokens, u32 first, float *totals, u8 *parts) {
    constexpr u32 kTiles = kOwnTokens / 8;
    static_assert(!kNeedsSums || kRun >= 32, "runs of 16 are not summed by themselves");
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, one = pack2<ACT>(1.f, 1.f), ones[4] = {one, one, one, one};
    float part[kTiles][4];
#pragma unroll
    for (u32 chunk = 0; chunk < 4; chunk++) {
        u32 unit = chunk % 2 * 4 + t;
#pragma unroll
        for (u32 tile = 0; tile < kTiles; tile++) {
            uint4 v = *(const uint4 *)(tokens + chunk / 2 * TOKENS * 128 + (first + 8 * tile + g) * 128 +
                                       16 * (unit ^ g));
            u32 b[2][2] = {{v.x, v.y}, {v.z, v.w}};
            if (chunk * 32 % kRun == 0) mma_from_zero<ACT>(part[tile], ones, b[0]);
            else mma_m16n8k16<ACT>(part[tile], ones, b[0]);
            mma_m16n8k16<ACT>(part[tile], ones, b[1]);
        }
        if ((chunk + 1) * 32 % kRun != 0) continue;
        if (g != 0) continue;
        u32 run = chunk * 32 / kRun;
#pragma unroll
        for (u32 tile = 0; tile < kTiles; tile++) {
            u32 token = first + 8 * tile + 2 * t;
            *(float2 *)(totals + run * TOKENS + token) = make_float2(part[tile][0], part[tile][1]);
#pragma unroll
            for (u32 i = 0; i < 2 && kByProduct; i++) {
                // Cut off, not rounded, so that three times eight bits hold all.
                u32 high = __float_as_uint(part[tile][i]) & 0xffff0000u;
                float rest = part[tile][i] - __uint_as_float(high);
                u32 middle = __float_as_uint(rest) & 0xffff0000u;
                u32 low = __float_as_uint(rest - __uint_as_float(middle));
                *(uint2 *)(parts + run * kRunParts + (token + i) * 16) = make_uint2(high >> 16 | middle, low >> 16);
            }
        }
    }
}

// What one of the warps does that bring: its part of each stage's records, tokens and sums, for groups `begin` to `end`
// of depth `k`. `record_at(block, group)`: the record of eight of the block's rows; `row_at(i)`: token i of the tile,
// or any other where there is none: columns are apart from one another, and those are not written. All slots are free.
template <typename W, typename T>
__device__ __forceinline__ void bring(const Ring &ring, Turn &turn, u32 which, u32 begin, u32 end, u32 k, W record_at,
                                      T row_at) {
    constexpr u32 kOwnBlocks = kBlocks8 / kBringers;
    u32 lane = threadIdx.x % 32, first_own = which * kOwnTokens;
    auto weights = [&](u32 slot, u32 group) {
        if (lane != 0) return;
        u32 bytes = min((u32)GROUPS, end - group) * kRecord;
        barrier_arrive_expect(ring.full[slot], kOwnBlocks * bytes);
#pragma unroll 4
        for (u32 i = 0; i < kOwnBlocks; i++) {
            u32 block = which * kOwnBlocks + i;
            bulk_load(ring.stage(slot) + kTokenBytes + block * GROUPS * kRecord, record_at(block, group), bytes,
                      ring.full[slot]);
        }
    };
    // A lane copies one of a group's 16 units of every second token.
    u32 unit = lane % 16, odd = lane / 16;
    u32 place = unit / 8 * TOKENS * 128 + (first_own + odd) * 128 + 16 * (unit % 8 ^ odd);
    auto tokens = [&](u32 slot, u32 group) {
        u32 to = ring.base + slot * kStageBytes;
#pragma unroll
        for (u32 g = 0; g < GROUPS; g++) {
            u32 depth = 128 * (group + g) + 8 * unit;
            bool inside = group + g < end && depth < k;
#pragma unroll
            for (u32 i = 0; i < kOwnTokens; i += 2)
                copy_async<16>(to + g * kGroupTokens + i * 128 + (place ^ i % 8 * 16),
                               row_at(first_own + i + odd) + (inside ? depth : 0), inside);
        }
    };
    Turn ahead = turn;
#pragma unroll 1
    for (u32 group = begin; group < begin + STAGES * GROUPS && group < end; group += GROUPS, ahead.go_on())
        weights(ahead.slot, group);
    let_next_start();
    wait_for_previous();
    tokens(turn.slot, begin);
    end_of_copies();
#pragma unroll 1
    for (u32 group = begin; group < end; group += GROUPS) {
        u32 following = group + GROUPS;
        Turn next = turn;
        next.go_on();
        if (following < end) {
            if (following >= begin + STAGES * GROUPS) {
                // All are done with what was there.
                barrier_wait(ring.empty[next.slot], next.phase ^ 1);
                weights(next.slot, following);
            }
            tokens(next.slot, following);
        }
        end_of_copies();
        wait_for_copies<1>();
        __syncwarp();
        if (kNeedsSums) {
#pragma unroll
            for (u32 g = 0; g < GROUPS; g++)
                sum_tokens(ring.stage(turn.slot) + g * kGroupTokens, first_own,
                           ring.sums(turn.slot) + g * kRuns * TOKENS, ring.parts(turn.slot) + g * kRuns * kRunParts);
        }
        stores_before_products();
        __syncwarp();
        if (lane == 0) barrier_arrive(ring.full[turn.slot]);
        turn = next;
    }
    wait_for_copies<0>();
}

// Step `step` of a group whose tokens stand at `columns` (an operand's lower word), as a right operand.
__device__ __forceinline__ u64 tokens_operand(u32 columns, u32 step) {
    u32 at = columns + (step / 4 * TOKENS * 128 + step % 4 * 32) / 16;
    return wgmma_swapped_operand(0) & 0xffffffff00000000 | at;
}

__device__ __forceinline__ void multiply_step(float (&to)[TOKENS / 2], const u32 (&left)[4], u64 b, int accumulate) {
    Wgmma<ACT, TOKENS>::run(to, left[0], left[1], left[2], left[3], b, accumulate);
}

// Adds the sums of a run whose products are over, scaled.
__device__ __forceinline__ void add_run(const Factors (&f)[2], u32 run, float (&part)[TOKENS / 2],
                                        float (&sums)[TOKENS / 2]) {
    pin(part);
#pragma unroll
    for (u32 n8 = 0; n8 < TOKENS / 8; n8++)
#pragma unroll
        for (u32 j = 0; j < 4; j++)
            sums[4 * n8 + j] = fmaf(f[j / 2].scale[run], part[4 * n8 + j], sums[4 * n8 + j]);
}

// The products of a group of short runs: those of a run are under way while the sums of the run before are added.
__device__ __forceinline__ void short_runs(const u8 *low, const u8 *high, const Place &place, u32 columns,
                                           const Factors (&f)[2], float (&even)[TOKENS / 2], float (&odd)[TOKENS / 2],
                                           float (&sums)[TOKENS / 2]) {
    Ahead codes;
    u32 a[2][2][4];
#pragma unroll
    for (u32 run = 0; run < kRuns; run++) {
        float(&own)[TOKENS / 2] = run % 2 ? odd : even, (&before)[TOKENS / 2] = run % 2 ? even : odd;
        u32 first = run * kRunSteps;
        if (first % 2 == 0) {
            if (first / 2 % kAhead == 0) codes.load(low, high, place, first / 2);
            codes.expand(first / 2, a[first / 2 % 2]);
        }
        wgmma_fence();
#pragma unroll
        for (u32 step = first; step < first + kRunSteps; step++)
            multiply_step(own, a[step / 2 % 2][step % 2], tokens_operand(columns, step), step > first);
        wgmma_commit();
        if (run == 0) continue;
        wgmma_wait<1>();
        add_run(f, run - 1, before, sums);
    }
    wgmma_wait<0>();
    add_run(f, kRuns - 1, kRuns % 2 ? even : odd, sums);
}

// What a warp does that multiplies 16 rows: their sums over this block's depths.
__device__ __forceinline__ void multiply(const Ring &ring, Turn &turn, u32 begin, u32 end,
                                         float (&sums)[TOKENS / 2]) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    Place place = own_place();
    float part[TOKENS / 2], other[TOKENS / 2];
    u32 a[2][2][4];
    Ahead codes;
    // The right operands' words: of the lower one only the address differs, and never leaves it.
    u32 operand = (u32)wgmma_swapped_operand(ring.base);
    u32 parts = (u32)wgmma_operand(shared_address(ring.all_parts), 0, 0);
#pragma unroll 1
    for (u32 group = begin; group < end; group += GROUPS) {
        u32 slot = turn.slot;
        barrier_wait(ring.full[slot], turn.phase);
        const u8 *records = ring.stage(slot) + kTokenBytes + 2 * warp * GROUPS * kRecord;
        const float *totals = ring.sums(slot) + 2 * t;
        u32 columns = operand + slot * (kStageBytes / 16);
#pragma unroll
        for (u32 i = 0; i < GROUPS; i++) {
            if (i > 0 && group + i >= end) break;
            const u8 *low = records + i * kRecord, *high = low + GROUPS * kRecord;
            Factors f[2] = {factors_at<!kByProduct>(low + scales_in_record(g)),
                            factors_at<!kByProduct>(high + scales_in_record(g))};
            if (kShortRuns) {
                short_runs(low, high, place, columns + i * (kGroupTokens / 16), f, part, other, sums);
                continue;
            }
#pragma unroll
            for (u32 run = 0; run < kRuns; run++) {
#pragma unroll
                for (u32 set = 0; set < kRunChunks; set++) {
                    u32 chunk = run * kRunChunks + set;
                    if (chunk % kAhead == 0) codes.load(low, high, place, chunk);
                    // The products before the last ones have read their operands.
                    if (set >= 2) wgmma_wait<1>();
                    codes.expand(chunk, a[set % 2]);
                    bool last = set == kRunChunks - 1;
                    // Multiples as bf16, cut off, for all three parts of the sums.
                    u32 less[2] = {__byte_perm(__float_as_uint(f[0].add[run]), 0, 0x3232),
                                   __byte_perm(__float_as_uint(f[1].add[run]), 0, 0x3232)};
                    wgmma_fence();
#pragma unroll
                    for (u32 s = 0; s < 2; s++) {
                        u64 b = tokens_operand(columns + i * (kGroupTokens / 16), 2 * chunk + s);
                        multiply_step(part, a[set % 2][s], b, set + s > 0);
                    }
                    if (kByProduct && last) {
                        u32 at = parts + slot * (kPartBytes / 16) + (i * kRuns + run) * (kRunParts / 16);
                        u64 b = wgmma_operand(0, TOKENS * 16, 128) | at;
                        Wgmma<ACT, TOKENS>::run(part, less[0], less[1], 0, 0, b, 1);
                    }
                    wgmma_commit();
                }
                wgmma_wait<0>();
                add_run(f, run, part, sums);
                float add[2] = {f[0].add[run], f[1].add[run]};
                if (kByProduct) {
                    // What bf16 cut off.
                    u32 words[2] = {__float_as_uint(add[0]), __float_as_uint(add[1])};
                    if (!__any_sync(0xffffffffu, (words[0] | words[1]) & 0xffff)) continue;
#pragma unroll
                    for (u32 h = 0; h < 2; h++)
                        add[h] = f[h].scale[run] * (add[h] - __uint_as_float(words[h] & 0xffff0000u));
                }
#pragma unroll
                for (u32 n8 = 0; n8 < TOKENS / 8 && kNeedsSums; n8++) {
                    float2 total = *(const float2 *)(totals + (i * kRuns + run) * TOKENS + 8 * n8);
#pragma unroll
                    for (u32 j = 0; j < 4; j++)
                        sums[4 * n8 + j] = fmaf(add[j / 2], j & 1 ? total.y : total.x, sums[4 * n8 + j]);
                }
            }
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(ring.empty[slot]);
        turn.go_on();
    }
}

// Leaves those sums in `all` by token (kPitch floats each) and row, when all who multiply are done with the ring.
__device__ __forceinline__ void leave_sums(const float (&sums)[TOKENS / 2], float *all) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, own_row = warp * 16 + g;
    barrier_of<kThreads>(1);
#pragma unroll
    for (u32 n8 = 0; n8 < TOKENS / 8; n8++) {
        float *to = all + (8 * n8 + 2 * t) * kPitch + own_row;
        to[0] = sums[4 * n8];
        to[kPitch] = sums[4 * n8 + 1];
        to[8] = sums[4 * n8 + 2];
        to[kPitch + 8] = sums[4 * n8 + 3];
    }
    barrier_of<kThreads>(1);
}
