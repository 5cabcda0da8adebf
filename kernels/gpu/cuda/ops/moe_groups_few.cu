// `moe_linear` where an expert has few tokens, over records: each chosen expert's records (quantized.cuh) are read
// once, straight from memory into registers, and their codes become operands of matrix units there. With GATE the
// experts' gate and up matrices are read together and only activation(gate) · up is written.
//
// A block has some rows of one expert and up to 8·TILES of its choices at a time; its warps share the groups of 128
// depths. groups_product.cuh says how lanes share rows, depths and tokens.
//
// Definitions: FORMAT (see groups_product.cuh), ACT (bf16, f16: x and out), TILES (8 choices each),
// WARPS, ROW_TILES (16 rows each; with GATE 8 of gate and 8 of up), DEPTH (groups in flight a warp), GATE (0: plain;
// else activate.cuh's number).
// Launch: grid (features in 16·ROW_TILES, 8·ROW_TILES with GATE; experts that may be chosen), 32·WARPS threads, dynamic
// shared memory WARPS·8·TILES·(16·ROW_TILES + 4) floats.
// Operands: those of moe_few, but w and w_up are the records of all experts' rows. Needs: features a multiple of 8, so
// that no record has rows of two experts; width one of 32. x is read fastest where it is 8-byte aligned and its strides
// are multiples of 4.
// check: -DFORMAT=43 -DACT=bf16 -DTILES=1 -DWARPS=4 -DROW_TILES=2 -DDEPTH=2 -DGATE=1
// check: -DFORMAT=43 -DACT=bf16 -DTILES=2 -DWARPS=2 -DROW_TILES=2 -DDEPTH=2 -DGATE=0
// check: -DFORMAT=40 -DACT=f16 -DTILES=1 -DWARPS=4 -DROW_TILES=1 -DDEPTH=2 -DGATE=2
// check: -DFORMAT=47 -DACT=f16 -DTILES=1 -DWARPS=4 -DROW_TILES=1 -DDEPTH=2 -DGATE=0
// check: -DFORMAT=48 -DACT=bf16 -DTILES=1 -DWARPS=4 -DROW_TILES=1 -DDEPTH=2 -DGATE=1
// check: -DFORMAT=49 -DACT=bf16 -DTILES=4 -DWARPS=4 -DROW_TILES=2 -DDEPTH=1 -DGATE=1
// check: -DFORMAT=55 -DACT=bf16 -DTILES=2 -DWARPS=4 -DROW_TILES=2 -DDEPTH=1 -DGATE=1
// check: -DFORMAT=49 -DACT=bf16 -DTILES=1 -DWARPS=4 -DROW_TILES=4 -DDEPTH=1 -DGATE=4 -DGATE_LIMIT=7e0f -DGATE_ALPHA=1.702e0f -DGATE_OFFSET=1e0f
// check: -DFORMAT=3 -DACT=bf16 -DTILES=1 -DWARPS=4 -DROW_TILES=2 -DDEPTH=1 -DGATE=1
// check: -DFORMAT=4 -DACT=f16 -DTILES=2 -DWARPS=4 -DROW_TILES=2 -DDEPTH=1 -DGATE=0
// check: -DFORMAT=5 -DACT=bf16 -DTILES=1 -DWARPS=4 -DROW_TILES=2 -DDEPTH=1 -DGATE=0
// check: -DFORMAT=6 -DACT=bf16 -DTILES=1 -DWARPS=4 -DROW_TILES=2 -DDEPTH=1 -DGATE=1
// check: -DFORMAT=7 -DACT=bf16 -DTILES=1 -DWARPS=4 -DROW_TILES=2 -DDEPTH=1 -DGATE=1
// check: -DFORMAT=7 -DACT=bf16 -DTILES=2 -DWARPS=4 -DROW_TILES=2 -DDEPTH=1 -DGATE=0
// check: -DFORMAT=8 -DACT=bf16 -DTILES=1 -DWARPS=4 -DROW_TILES=2 -DDEPTH=1 -DGATE=0
// check: -DFORMAT=8 -DACT=bf16 -DTILES=4 -DWARPS=4 -DROW_TILES=1 -DDEPTH=1 -DGATE=0
#include "groups_product.cuh"
#include "weights.cuh"

constexpr u32 kThreads = 32 * WARPS;
constexpr u32 kRows = 16 * ROW_TILES;
constexpr u32 kOut = GATE ? kRows / 2 : kRows;
constexpr u32 kTokens = 8 * TILES;
#include "few_choices.cuh"

// A lane's part of two rows of a group: g of the upper record and of the lower one.
struct Part {
    Group rows[2];

    __device__ __forceinline__ void load(const u8 *const (&records)[2], u32 group, bool wanted) {
        u32 lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            const u8 *record = records[h] + (u64)group * kRecord;
#pragma unroll
            for (u32 i = 0; i < kWords; i++)
                rows[h].codes.words[i] = load_weights(record + codes_in_record(g, t, i), wanted);
            if (!wanted) continue;
            rows[h].codes.high = load_high(record + high_in_record(g, t));
            load_scales(record + scales_in_record(g), rows[h].scales);
        }
    }
};

// A lane's four values at depth `at` of its token, as two words.
__device__ __forceinline__ uint2 load_four(const ACT *at, bool wanted, bool aligned) {
    if (aligned) return load_values8(at, wanted);
    const u16 *v = (const u16 *)at;
    return wanted ? make_uint2(v[0] | (u32)v[1] << 16, v[2] | (u32)v[3] << 16) : make_uint2(0, 0);
}

// The scaled products of a group, added to `sums`. `x`: the lane's values of each step.
__device__ __forceinline__ void multiply(const Part (&parts)[ROW_TILES], const uint2 (&x)[TILES][8],
                                         float (&sums)[ROW_TILES][TILES][4]) {
    Factors f[ROW_TILES][2];
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (u32 h = 0; h < 2; h++) f[r][h] = factors_of(parts[r].rows[h].scales);
    u32 one = pack2<ACT>(1.f, 1.f), ones[4] = {one, one, one, one};
    float part[ROW_TILES][TILES][4], totals[TILES][4];
#pragma unroll
    for (u32 step = 0; step < 8; step++) {
        u32 run = step / kRunSteps, chunk = step / 2, i = 2 * (step & 1);
        bool is_first = step % kRunSteps == 0, is_last = (step + 1) % kRunSteps == 0;
        auto add = [&](float(&d)[4], const u32(&a)[4], const u32(&b)[2]) {
            if (is_first) mma_from_zero<ACT>(d, a, b);
            else mma_m16n8k16<ACT>(d, a, b);
        };
#pragma unroll
        for (u32 n = 0; n < TILES && kNeedsSums; n++) {
            u32 b[2] = {x[n][step].x, x[n][step].y};
            add(totals[n], ones, b);
        }
#pragma unroll
        for (u32 r = 0; r < ROW_TILES; r++) {
            const Codes &low = parts[r].rows[0].codes, &high = parts[r].rows[1].codes;
            u32 a[4] = {operand_of<ACT>(low, chunk, i), operand_of<ACT>(high, chunk, i),
                        operand_of<ACT>(low, chunk, i + 1), operand_of<ACT>(high, chunk, i + 1)};
#pragma unroll
            for (u32 n = 0; n < TILES; n++) {
                u32 b[2] = {x[n][step].x, x[n][step].y};
                add(part[r][n], a, b);
            }
        }
        if (!is_last) continue;
#pragma unroll
        for (u32 r = 0; r < ROW_TILES; r++)
#pragma unroll
            for (u32 n = 0; n < TILES; n++)
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    float &sum = sums[r][n][j];
                    sum = fmaf(f[r][j / 2].scale[run], part[r][n][j], sum);
                    if (kNeedsSums) sum = fmaf(f[r][j / 2].add[run], totals[n][j & 1], sum);
                }
    }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    moe_groups_few(const ACT *x, u32 token_stride, u32 input_stride, u8 *w, u8 *w_up, const i32 *experts,
                   u32 experts_stride, const u32 *list, ACT *out, u32 out_token_stride, u32 out_choice_stride,
                   const float *bias, const float *bias_up, u32 num_tokens, u32 top_k, u32 first_expert,
                   u32 num_experts, u32 num_groups, u32 width, u32 features) {
    extern __shared__ float sums_at[];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    u32 first_row = blockIdx.x * kOut;
    wait_for_previous();
    let_next_start();
    Choices own;
    if (!find_choices(list, experts, experts_stride, num_tokens, top_k, first_expert, num_experts, num_groups, own))
        return;
    Results to = {out, out_token_stride, out_choice_stride, bias, bias_up, top_k, features};
    if (own.expert == num_experts) return write_zeros(to, own, first_row);

    Records plain = records_of(w, width), up = records_of(w_up, width);
    u32 groups = plain.groups, records = features / kRecordRows, first_record = first_row / kRecordRows;
    const u8 *rows[ROW_TILES][2];
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            u32 record = own.expert * records + min(first_record + (GATE ? r : 2 * r + h), records - 1);
            rows[r][h] = record_of(GATE && h ? up : plain, record, 0);
        }
    bool aligned = ((u64)x / sizeof(ACT) | token_stride | input_stride) % 4 == 0;
    do {
        u32 columns = min(own.end - own.begin, kTokens);
        Part parts[DEPTH][ROW_TILES];
        uint2 values[DEPTH][TILES][8];
        auto load_rows = [&](u32 d, u32 group) {
#pragma unroll
            for (u32 r = 0; r < ROW_TILES; r++) parts[d][r].load(rows[r], group, group < groups);
        };
#pragma unroll
        for (u32 d = 0; d < DEPTH; d++) load_rows(d, warp + d * WARPS);
        // The lane's tokens.
        const ACT *from[TILES];
#pragma unroll
        for (u32 n = 0; n < TILES; n++) {
            u32 choice = 8 * n + g < columns ? own.at(own.begin + 8 * n + g) : 0;
            from[n] = x + (u64)(choice / top_k) * token_stride + (u64)(choice % top_k) * input_stride + 4 * t;
        }
        auto load_x = [&](u32 d, u32 group) {
#pragma unroll
            for (u32 n = 0; n < TILES; n++)
#pragma unroll
                for (u32 step = 0; step < 8; step++) {
                    u32 depth = 128 * group + 16 * step;
                    values[d][n][step] = load_four(from[n] + depth, 8 * n + g < columns && depth < width, aligned);
                }
        };
#pragma unroll
        for (u32 d = 0; d < DEPTH; d++) load_x(d, warp + d * WARPS);
        float sums[ROW_TILES][TILES][4] = {};
#pragma unroll 1
        for (u32 first = warp; first < groups; first += WARPS * DEPTH)
#pragma unroll
            for (u32 d = 0; d < DEPTH; d++) {
                u32 group = first + d * WARPS, next = group + WARPS * DEPTH;
                if (group >= groups) break;
                multiply(parts[d], values[d], sums);
                load_rows(d, next);
                load_x(d, next);
            }
#pragma unroll
        for (u32 n = 0; n < TILES; n++)
#pragma unroll
            for (u32 r = 0; r < ROW_TILES; r++) leave_sums(sums_at, r, n, sums[r][n]);
        write_results(to, own, sums_at, first_row, columns);
        own.begin += kTokens;
    } while (own.begin < own.end);
}
