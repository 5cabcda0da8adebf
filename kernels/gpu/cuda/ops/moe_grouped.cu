// `moe_linear` of many tokens over weights of any type and format: each expert's choices are one product on matrix
// units. So a prompt reads an expert's matrix once for every 64 of its tokens, not once a token.
//
// Definitions: ACT (f16, bf16: x and out) and WEIGHT (experts' matrices): f32, f16, bf16; instead of WEIGHT, FORMAT (a
// block format: see blocks.cuh), with RECORDS where all experts' rows lie as records (see quantized.cuh). Weights of
// another type are rounded to ACT.
//
// Launch: grid (features in 64, experts that may be chosen, any number), 128 threads. Needs moe_list's list, width a
// multiple of 8, and inputs and rows of weights aligned to 16 bytes (rows of block formats as stored need no
// alignment), features a multiple of 8 with RECORDS. `bias` may be null. Results of choices of experts elsewhere become
// 0.
// check: -DACT=bf16 -DWEIGHT=bf16
// check: -DACT=f16 -DWEIGHT=f16
// check: -DACT=bf16 -DWEIGHT=f32
// check: -DACT=f16 -DFORMAT=4
// check: -DACT=bf16 -DFORMAT=8
// check: -DACT=bf16 -DFORMAT=43
// check: -DACT=f16 -DFORMAT=48
// check: -DACT=bf16 -DFORMAT=51
// check: -DACT=bf16 -DFORMAT=43 -DRECORDS
// check: -DACT=f16 -DFORMAT=48 -DRECORDS
// check: -DACT=bf16 -DFORMAT=55 -DRECORDS
// check: -DACT=bf16 -DFORMAT=4 -DRECORDS
// check: -DACT=bf16 -DFORMAT=5 -DRECORDS
// check: -DACT=bf16 -DFORMAT=6 -DRECORDS
// check: -DACT=bf16 -DFORMAT=7 -DRECORDS
// check: -DACT=bf16 -DFORMAT=8 -DRECORDS
#ifdef RECORDS
#include "records.cuh"
#else
#include "eights.cuh"
#endif
#include "expert_list.cuh"
#include "mma.cuh"

#define ROWS 64
#define COLUMNS 64
#define DEPTH 64
#define PITCH (DEPTH + 8) // elements: 8 rows lie in different banks
#define THREADS 128

template <typename A, typename B> struct Same {
    static constexpr bool value = false;
};
template <typename A> struct Same<A, A> {
    static constexpr bool value = true;
};

// Eight weights as the product takes them. This thread's rows stand at the same place of their eights.
__device__ __forceinline__ uint4 eight(const u8 *row, u32 k) {
#ifndef FORMAT
    if constexpr (Same<ACT, WEIGHT>::value) return load_streaming(row + k * sizeof(ACT));
#endif
    float w[8];
#ifdef RECORDS
    weights8_of_records(row, threadIdx.x / 8 % 8, k, w);
#else
    weights8(row, k, w);
#endif
    return make_uint4(pack2<ACT>(w[0], w[1]), pack2<ACT>(w[2], w[3]), pack2<ACT>(w[4], w[5]), pack2<ACT>(w[6], w[7]));
}

__device__ __forceinline__ void load_pieces(u32 (&pieces)[4], const ACT *row) {
    load_pieces(pieces, (u32)__cvta_generic_to_shared(row));
}

// A warp's 16 rows against all columns, over DEPTH.
__device__ __forceinline__ void multiply(float (&sums)[COLUMNS / 8][4], const ACT *inputs, const ACT *matrix) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (u32 k = 0; k < DEPTH; k += 16) {
        u32 a[4];
        load_pieces(a, inputs + (16 * warp + (lane & 15)) * PITCH + k + (lane >> 4) * 8);
#pragma unroll
        for (u32 n = 0; n < COLUMNS / 8; n += 2) {
            u32 units[4];
            load_pieces(units, matrix + (8 * n + (lane >> 4) * 8 + (lane & 7)) * PITCH + k + (lane >> 3 & 1) * 8);
            u32 left[2] = {units[0], units[1]}, right[2] = {units[2], units[3]};
            mma_m16n8k16<ACT>(sums[n], a, left);
            mma_m16n8k16<ACT>(sums[n + 1], a, right);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    moe_linear_grouped(const ACT *x, u32 token_stride, u32 input_stride, const u8 *weight, u64 row_bytes,
                       const u32 *list, ACT *out, u32 out_token_stride, u32 out_choice_stride, const float *bias,
                       u32 top_k, u32 num_experts, u32 num_groups, u32 width, u32 features) {
    __shared__ __align__(16) ACT inputs[ROWS * PITCH];
    __shared__ __align__(16) ACT matrix[COLUMNS * PITCH];
    __shared__ u32 choices[ROWS];
    wait_for_previous();
    let_next_start();
    if (blockIdx.y >= chosen_experts(list)) return;
    Chosen chosen = chosen_expert(list, blockIdx.y);
    u32 expert = chosen.expert, begin = chosen.begin, end = chosen.end, first_feature = blockIdx.x * COLUMNS;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, eighth = threadIdx.x % 8;
    for (u32 first = begin + blockIdx.z * ROWS; first < end; first += gridDim.z * ROWS) {
        u32 count = end - first < ROWS ? end - first : ROWS;
        __syncthreads();
        if (threadIdx.x < count) choices[threadIdx.x] = choices_of(list, num_groups)[first + threadIdx.x];
        __syncthreads();
        if (expert == num_experts) {
            for (u32 i = threadIdx.x; i < count * COLUMNS; i += THREADS) {
                u32 choice = choices[i / COLUMNS], feature = first_feature + i % COLUMNS;
                ACT *to = out + (u64)(choice / top_k) * out_token_stride + (u64)(choice % top_k) * out_choice_stride;
                if (feature < features) to[feature] = from_f32<ACT>(0.f);
            }
            continue;
        }
        // This thread brings eighth `eighth` of DEPTH of these rows, and of these columns.
        const ACT *from[4];
        const u8 *rows[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 row = threadIdx.x / 8 + 16 * i, choice = row < count ? choices[row] : 0;
            from[i] = row < count ? x + (u64)(choice / top_k) * token_stride + (u64)(choice % top_k) * input_stride : 0;
            u64 in_all = (u64)expert * features + first_feature + row;
#ifdef RECORDS
            const u8 *own = weight + in_all / 8 * ((width + 127) / 128) * kRecord;
#else
            const u8 *own = weight + in_all * row_bytes;
#endif
            rows[i] = first_feature + row < features ? own : 0;
        }
        uint4 next_inputs[4], next_weights[4];
        auto bring = [&](u32 k) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                next_inputs[i] = next_weights[i] = make_uint4(0, 0, 0, 0);
                if (from[i] && k < width) next_inputs[i] = *(const uint4 *)(from[i] + k);
                if (rows[i] && k < width) next_weights[i] = eight(rows[i], k);
            }
        };
        float sums[COLUMNS / 8][4];
#pragma unroll
        for (u32 n = 0; n < COLUMNS / 8; n++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) sums[n][i] = 0.f;
        bring(8 * eighth);
        for (u32 k = 0; k < width; k += DEPTH) {
            __syncthreads();
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                u32 at = (threadIdx.x / 8 + 16 * i) * PITCH + 8 * eighth;
                *(uint4 *)(inputs + at) = next_inputs[i];
                *(uint4 *)(matrix + at) = next_weights[i];
            }
            __syncthreads();
            if (k + DEPTH < width) bring(k + DEPTH + 8 * eighth);
            multiply(sums, inputs, matrix);
        }
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            u32 row = 16 * warp + lane / 4 + 8 * half;
            if (row >= count) continue;
            u32 choice = choices[row];
            ACT *to = out + (u64)(choice / top_k) * out_token_stride + (u64)(choice % top_k) * out_choice_stride;
#pragma unroll
            for (u32 n = 0; n < COLUMNS / 8; n++)
#pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    u32 feature = first_feature + 8 * n + 2 * (lane & 3) + e;
                    if (feature >= features) continue;
                    float sum = sums[n][2 * half + e];
                    if (bias) sum += bias[(u64)expert * features + feature];
                    to[feature] = from_f32<ACT>(sum);
                }
        }
    }
}
