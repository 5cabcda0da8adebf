// Before and behind the products of a layer's experts: the list of choices by expert, and the sum of a token's results.
//
// Definition: ACT (f16, bf16: moe_combine_add's x, residual and out).
// moe_list: one block of 1024 threads, shared memory 12 · num_groups bytes, and any number of blocks more, which bring
// the first `near_bytes` of two matrices to the second-level cache: memory is idle then. moe_list_parts
// (where there are clusters): PARTS blocks, for many choices. Groups are the experts from first_expert on; with one
// more group than experts, that one has all choices of other experts, which are left out without it. moe_combine_add:
// grid (values of a token in 8 · 256, tokens up to a bound, then in strides), 256 threads; width a multiple of 8, rows
// at multiples of 16 bytes. It rounds as moe_combine and add do one after another; without a residual it is the former.
// With `experts` it does not read the results of other experts than those from first_expert on: nobody has written
// them, and they count as zeros.
// check: -DACT=f16
// check: -DACT=bf16
#include "copies.cuh"
#include "expert_list.cuh"

#define THREADS 1024
// Choices of a thread whose loads are on their way together.
#define AT_ONCE 8
// Blocks of a cluster.
#define PARTS 8
// Results of a token that a thread of moe_combine_add has on their way together.
#define RESULTS 4

// The count that block `part` of the cluster has at `count`.
__device__ __forceinline__ u32 count_of(const u32 *count, u32 part) {
    u32 own = (u32)__cvta_generic_to_shared(count), there, value;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(part));
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(there) : "memory");
    return value;
}

// Each of `parts` blocks takes some of the choices: it counts them, learns what the blocks before it have of each
// group, and writes them behind those.
template <u32 parts>
__device__ __forceinline__ void make_list(const i32 *experts, u32 experts_stride, u32 *list, u32 num_choices, u32 top_k,
                                          u32 first_expert, u32 num_experts, u32 num_groups) {
    extern __shared__ u32 counts[];
    u32 *totals = counts + num_groups, *next = totals + num_groups, part = parts > 1 ? blockIdx.x : 0;
    u32 *choices = list + 4 + 4 * num_groups;
    wait_for_previous();
    for (u32 e = threadIdx.x; e < num_groups; e += THREADS) counts[e] = 0;
    __syncthreads();
    for (u32 phase = 0; phase < 2; phase++) {
        for (u32 base = part * THREADS + threadIdx.x; base < num_choices; base += AT_ONCE * parts * THREADS) {
            u32 group[AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) {
                u32 c = base + i * parts * THREADS;
                group[i] = num_groups;
                if (c >= num_choices) continue;
                u32 e = (u32)experts[(u64)(c / top_k) * experts_stride + c % top_k] - first_expert;
                group[i] = min(e, num_experts);
            }
            // The order within a group depends on the threads; each choice is a row of its own.
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) {
                if (group[i] >= num_groups) continue;
                if (phase == 0) {
                    atomicAdd(&counts[group[i]], 1u);
                } else {
                    choices[atomicAdd(&next[group[i]], 1u)] = base + i * parts * THREADS;
                }
            }
        }
        if (phase == 1) break;
        if (parts > 1) {
            asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
            asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
        } else {
            __syncthreads();
        }
        for (u32 e = threadIdx.x; e < num_groups; e += THREADS) {
            u32 total = 0, before = 0;
#pragma unroll
            for (u32 p = 0; p < parts; p++) {
                u32 count = parts > 1 ? count_of(&counts[e], p) : counts[e];
                total += count;
                if (p < part) before += count;
            }
            totals[e] = total, next[e] = before;
        }
        // No block ends while others read its counts.
        if (parts > 1) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
        __syncthreads();
        if (threadIdx.x < 32) {
            u32 before = 0, chosen = 0;
            for (u32 base = 0; base < num_groups; base += 32) {
                u32 e = base + threadIdx.x, own = e < num_groups ? totals[e] : 0, sum = own;
                for (u32 distance = 1; distance < 32; distance *= 2) {
                    u32 other = __shfl_up_sync(0xffffffffu, sum, distance);
                    if (threadIdx.x >= distance) sum += other;
                }
                u32 begin = before + sum - own, present = __ballot_sync(0xffffffffu, own != 0);
                if (e < num_groups) next[e] += begin;
                if (own && part == 0) {
                    u32 entry = chosen + __popc(present & ((1u << threadIdx.x) - 1));
                    *(uint4 *)(list + 4 + 4 * entry) = make_uint4(e, begin, begin + own, 0);
                }
                before += __shfl_sync(0xffffffffu, sum, 31);
                chosen += __popc(present);
            }
            if (threadIdx.x == 0 && part == 0) list[0] = chosen;
        }
        __syncthreads();
    }
    if (parts > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    let_next_start();
}

extern "C" __global__ void __launch_bounds__(THREADS)
    moe_list(const i32 *experts, u32 experts_stride, u32 *list, u32 num_choices, u32 top_k, u32 first_expert,
             u32 num_experts, u32 num_groups, const u8 *matrix, const u8 *matrix_up, u32 near_bytes) {
    if (blockIdx.x > 0) {
        for (u32 at = ((blockIdx.x - 1) * THREADS + threadIdx.x) * 128; at < near_bytes;
             at += (gridDim.x - 1) * THREADS * 128) {
            bring_near(matrix + at);
            bring_near(matrix_up + at);
        }
        return;
    }
    make_list<1>(experts, experts_stride, list, num_choices, top_k, first_expert, num_experts, num_groups);
}

#if __CUDA_ARCH__ >= 900
extern "C" __global__ void __cluster_dims__(PARTS, 1, 1) __launch_bounds__(THREADS)
    moe_list_parts(const i32 *experts, u32 experts_stride, u32 *list, u32 num_choices, u32 top_k, u32 first_expert,
                   u32 num_experts, u32 num_groups) {
    make_list<PARTS>(experts, experts_stride, list, num_choices, top_k, first_expert, num_experts, num_groups);
}
#endif

extern "C" __global__ void __launch_bounds__(256)
    moe_combine_add(const ACT *x, u32 token_stride, u32 choice_stride, const float *weights, u32 weights_stride,
                    const i32 *experts, u32 experts_stride, u32 first_expert, u32 num_experts, const ACT *residual,
                    u32 residual_stride, ACT *out, u32 out_stride, u32 num_tokens, u32 top_k, u32 width) {
    wait_for_previous();
    let_next_start();
    u32 at = 8 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (at >= width) return;
    for (u32 t = blockIdx.y; t < num_tokens; t += gridDim.y) {
        float sums[8] = {};
        for (u32 first = 0; first < top_k; first += RESULTS) {
            bool here[RESULTS];
            float weight[RESULTS];
            uint4 v[RESULTS];
#pragma unroll
            for (u32 r = 0; r < RESULTS; r++) {
                u32 j = first + r;
                here[r] = j < top_k;
                if (here[r] && experts)
                    here[r] = (u32)experts[(u64)t * experts_stride + j] - first_expert < num_experts;
            }
#pragma unroll
            for (u32 r = 0; r < RESULTS; r++) {
                u32 j = first + r;
                weight[r] = here[r] ? weights[(u64)t * weights_stride + j] : 0.f;
                v[r] = make_uint4(0, 0, 0, 0);
                if (here[r]) v[r] = *(const uint4 *)(x + (u64)t * token_stride + (u64)j * choice_stride + at);
            }
            // In the order of the choices.
#pragma unroll
            for (u32 r = 0; r < RESULTS; r++) {
                if (!here[r]) continue;
                u32 words[4] = {v[r].x, v[r].y, v[r].z, v[r].w};
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    float low, high;
                    unpack2<ACT>(words[i], low, high);
                    sums[2 * i] += weight[r] * low;
                    sums[2 * i + 1] += weight[r] * high;
                }
            }
        }
        uint4 other = residual ? *(const uint4 *)(residual + (u64)t * residual_stride + at) : make_uint4(0, 0, 0, 0);
        u32 others[4] = {other.x, other.y, other.z, other.w}, words[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            float low, high, left, right;
            u32 word = pack2<ACT>(sums[2 * i], sums[2 * i + 1]);
            unpack2<ACT>(word, low, high);
            unpack2<ACT>(others[i], left, right);
            words[i] = residual ? pack2<ACT>(left + low, right + high) : word;
        }
        *(uint4 *)(out + (u64)t * out_stride + at) = make_uint4(words[0], words[1], words[2], words[3]);
    }
}
