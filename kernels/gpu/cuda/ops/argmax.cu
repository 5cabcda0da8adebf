// `argmax`: memory-bound, so a row is shared out to as many blocks as fill the device. Where there are clusters they
// join in shared memory. No definitions.
// revision: 1
// check:
#include "logits.cuh"

// Elements outside of the row are −∞.
__device__ __forceinline__ float4 load4(const Row &row, i32 chunk) {
    i32 at = 4 * chunk - row.shift;
    if (at >= 0 && at + 4 <= row.vocab) return *(const float4 *)(row.logits + at);
    float v[4];
#pragma unroll
    for (i32 j = 0; j < 4; j++) v[j] = at + j >= 0 && at + j < row.vocab ? row.logits[at + j] : -INFINITY_F;
    return make_float4(v[0], v[1], v[2], v[3]);
}

#define ARGMAX_THREADS 1024

// The part of a row that block `part` of `parts` sees, over the block.
__device__ __forceinline__ u64 argmax_part_of(const float *logits, u32 vocab, u32 part, u32 parts, u64 *warps) {
    Row row = row_of(logits, (i32)vocab, 1.f);
    Best best = {-INFINITY_F, 0};
    i32 step = parts * ARGMAX_THREADS;
    for (i32 first = part * ARGMAX_THREADS + threadIdx.x; first < row.chunks; first += 4 * step) {
        float4 v[4];
#pragma unroll
        for (i32 u = 0; u < 4; u++) v[u] = load4(row, first + u * step);
#pragma unroll
        for (i32 u = 0; u < 4; u++) {
            i32 at = 4 * (first + u * step) - row.shift;
            best.take(v[u].x, at);
            best.take(v[u].y, at + 1);
            best.take(v[u].z, at + 2);
            best.take(v[u].w, at + 3);
        }
    }
    let_next_start();
    return block_max(best.key(), warps);
}

// A block a row.
extern "C" __global__ void __launch_bounds__(ARGMAX_THREADS)
    argmax_1(const float *logits, u32 stride, u32 vocab, i32 *out, u32 out_stride) {
    __shared__ u64 warps[32];
    wait_for_previous();
    u64 best = argmax_part_of(logits + (u64)blockIdx.y * stride, vocab, 0, 1, warps);
    if (threadIdx.x == 0) out[(u64)blockIdx.y * out_stride] = token_of(best);
}

// gridDim.x blocks a row, joined by a second launch: where there are no clusters.
extern "C" __global__ void __launch_bounds__(ARGMAX_THREADS)
    argmax_part(const float *logits, u32 stride, u32 vocab, u64 *parts) {
    __shared__ u64 warps[32];
    wait_for_previous();
    u64 best = argmax_part_of(logits + (u64)blockIdx.y * stride, vocab, blockIdx.x, gridDim.x, warps);
    if (threadIdx.x == 0) parts[blockIdx.y * gridDim.x + blockIdx.x] = best;
}
extern "C" __global__ void argmax_join(const u64 *parts, u32 num_parts, i32 *out, u32 out_stride) {
    wait_for_previous();
    u64 best = warp_max(threadIdx.x < num_parts ? parts[blockIdx.x * num_parts + threadIdx.x] : 0ull);
    if (threadIdx.x == 0) out[(u64)blockIdx.x * out_stride] = token_of(best);
}

#if !defined(PORTABLE) && (!defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900)
// A cluster a row: each block leaves its best in the first one's shared memory.
template <u32 PARTS>
__device__ __forceinline__ void argmax_cluster(const float *logits, u32 stride, u32 vocab, i32 *out, u32 out_stride) {
    __shared__ u64 warps[32];
    __shared__ u64 parts[PARTS];
    // The first block must run before others write to it; its start is waited for behind the reads.
    asm volatile("barrier.cluster.arrive.relaxed.aligned;");
    wait_for_previous();
    u64 best = argmax_part_of(logits + (u64)blockIdx.y * stride, vocab, blockIdx.x, PARTS, warps);
    asm volatile("barrier.cluster.wait.aligned;");
    if (threadIdx.x == 0) {
        u32 mine, first;
        asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(mine) : "l"(&parts[blockIdx.x]));
        asm("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(first) : "r"(mine));
        asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(first), "l"(best) : "memory");
    }
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    if (blockIdx.x == 0 && threadIdx.x < 32) {
        best = warp_max(threadIdx.x < PARTS ? parts[threadIdx.x] : 0ull);
        if (threadIdx.x == 0) out[(u64)blockIdx.y * out_stride] = token_of(best);
    }
}
#define ARGMAX_CLUSTER(parts)                                                                  \
    extern "C" __global__ void __cluster_dims__(parts, 1, 1) __launch_bounds__(ARGMAX_THREADS) \
        argmax_##parts(const float *logits, u32 stride, u32 vocab, i32 *out, u32 out_stride) { \
        argmax_cluster<parts>(logits, stride, vocab, out, out_stride);                         \
    }
ARGMAX_CLUSTER(2)
ARGMAX_CLUSTER(4)
ARGMAX_CLUSTER(8)
#endif
