// The last part of `latent_attention` on matrix units: results of tiles whose keys several blocks have taken
// (latent_work.cuh). A cut tile begins in block `first` and ends in block `last`; its sums lie in piece 2 · first + 1
// and in pieces 2 · (first + 1), .., 2 · last, each relative to a maximum of its own.
//
// A warp takes 128 columns of a row, four a lane: an item. All warps of a block share an item, some pieces each
// (items_each 1), or each has one of its own (items_each 16).
//
// Definitions: ACT (f16, bf16), LATENT (a multiple of 4), ROWS (of 16). Grid (cuts, ROWS · ⌈LATENT / 128⌉ /
// items_each), 512 threads.
// check: -DACT=bf16 -DLATENT=512 -DROWS=16
// check: -DACT=f16 -DLATENT=64 -DROWS=64
#include "common.cuh"

#define WARPS 16
#define CHUNKS ((LATENT + 127) / 128)
// Pieces that a lane loads at once.
#define BATCH 8

struct Pieces {
    const float *sums, *marks;
    u32 first, row;

    __device__ __forceinline__ u32 at(u32 i) const { return (i == 0 ? 2 * first + 1 : 2 * (first + i)) * ROWS + row; }
    __device__ __forceinline__ float highest(u32 i) const { return marks[2 * at(i)]; }
    __device__ __forceinline__ float total(u32 i) const { return marks[2 * at(i) + 1]; }
    __device__ __forceinline__ float4 values(u32 i, u32 column) const {
        return *(const float4 *)(sums + (u64)at(i) * LATENT + column);
    }
};

__device__ __forceinline__ void add(float4 &sum, const float4 &x, float factor) {
    sum.x += x.x * factor;
    sum.y += x.y * factor;
    sum.z += x.z * factor;
    sum.w += x.w * factor;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    latent_join(const float *pieces, const float *marks, const u32 *cuts, ACT *out, u32 out_token_stride,
                u32 out_head_stride, u32 num_heads, u32 items_each) {
    __shared__ float4 parts[WARPS][32];
    wait_for_previous();
    let_next_start();
    const u32 *cut = cuts + 4 * blockIdx.x;
    u32 first_row = cut[0], rows = cut[1], first = cut[2], count = cut[3] - cut[2] + 1;
    u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    bool together = items_each == 1;
    u32 item = blockIdx.y * items_each + (together ? 0 : warp), row = item / CHUNKS,
        column = item % CHUNKS * 128 + 4 * lane;
    // The same for all threads where they share an item.
    if (row >= rows) return;
    Pieces all = {pieces, marks, first, row};
    u32 begin = together ? warp : 0, step = together ? WARPS : 1;
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
    float highest = -INFINITY_F, total = 0.f;
    for (u32 i = lane; i < count; i += 32) highest = fmaxf(highest, all.highest(i));
    highest = warp_max(highest);
    for (u32 i = lane; i < count; i += 32) total += all.total(i) * exp2f(all.highest(i) - highest);
    total = warp_sum(total);
#pragma unroll 1
    for (u32 base = begin; base < count; base += BATCH * step) {
        float4 x[BATCH];
        float factor[BATCH];
#pragma unroll
        for (u32 j = 0; j < BATCH; j++) {
            u32 i = base + j * step;
            bool inside = i < count && column < LATENT;
            factor[j] = inside ? all.highest(i) : -INFINITY_F;
            x[j] = inside ? all.values(i, column) : make_float4(0.f, 0.f, 0.f, 0.f);
        }
#pragma unroll
        for (u32 j = 0; j < BATCH; j++) add(sum, x[j], exp2f(factor[j] - highest));
    }
    if (together) {
        parts[warp][lane] = sum;
        __syncthreads();
        if (warp > 0) return;
#pragma unroll
        for (u32 other = 1; other < WARPS; other++) add(sum, parts[other][lane], 1.f);
    }
    if (column >= LATENT) return;
    u32 i = first_row + row;
    u32 *to = (u32 *)(out + (u64)(i / num_heads) * out_token_stride + (u64)(i % num_heads) * out_head_stride + column);
    to[0] = pack2<ACT>(sum.x / total, sum.y / total);
    to[1] = pack2<ACT>(sum.z / total, sum.w / total);
}
