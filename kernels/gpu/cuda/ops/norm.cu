// `rms_norm` and `layer_norm`: each row is read once, kept in registers, and scaled by its own sum. Wide rows take a
// block, narrow ones (the heads of q and k) a part of a warp; unaligned or very wide ones take a block that reads them
// again. Blocks walk over rows with the weight in registers and the next row on its way. Row r of [T, G, width] is (r /
// G, r mod G). Of layer_norm each group may have a weight and a bias of its own, weight_inner floats apart (0: the same
// for all); they are then loaded for every row.
//
// Definitions: ACT = f32, f16 or bf16, the type of x and out; LAYER = 0 (rms_norm) or 1 (layer_norm).
// revision: 2
// check: -DACT=f32 -DLAYER=0
// check: -DACT=f16 -DLAYER=0
// check: -DACT=bf16 -DLAYER=0
// check: -DACT=f32 -DLAYER=1
// check: -DACT=f16 -DLAYER=1
// check: -DACT=bf16 -DLAYER=1
#include "vector.cuh"

constexpr int V = per_vector<ACT>;

struct Rows {
    const ACT *x;
    u64 x_outer, x_inner;
    ACT *out;
    u64 out_outer, out_inner;
    u32 rows, inner;

    __device__ __forceinline__ const ACT *from(u32 row) const {
        u32 t = inner == 1 ? row : row / inner;
        return x + t * x_outer + (row - t * inner) * x_inner;
    }
    __device__ __forceinline__ u32 group(u32 row) const { return row % inner; }
    __device__ __forceinline__ ACT *to(u32 row) const {
        u32 t = inner == 1 ? row : row / inner;
        return out + t * out_outer + (row - t * inner) * out_inner;
    }
};

// Sums over the threads that share a row: all of a block, or `lanes` neighbours of a warp (a power of two).
struct BlockSum {
    float *shared;
    __device__ __forceinline__ float operator()(float x) const { return block_sum(x, shared); }
};
struct LaneSum {
    u32 lanes;
    __device__ __forceinline__ float operator()(float x) const {
        for (u32 mask = lanes / 2; mask > 0; mask >>= 1) x += __shfl_xor_sync(0xffffffffu, x, mask);
        return x;
    }
};

// Thread `lane` of `lanes` holds groups lane, lane + lanes, .. (NV of them) of `n` in a row; rows first, first + step,
// ... All threads of a warp take part in every round, with rows past the end left out.
template <int NV, typename Sum>
__device__ __forceinline__ void norm_rows(const Rows &rows, const float *weight, const float *bias, u32 width,
                                          float eps, float weight_offset, u32 weight_inner, u32 lane, u32 lanes,
                                          u32 first, u32 step, Sum sum) {
    u32 n = width / V;
    float w[NV][V];
    auto load_weight = [&](const float *from) {
#pragma unroll
        for (int k = 0; k < NV; k++) {
            u32 i = lane + k * lanes;
            Group<float, V> group;
            group.zero();
            if (i < n) group.load(from + i * V);
            group.get(w[k]);
        }
    };
    load_weight(weight);
    float inverse_width = 1.f / width;
    wait_for_previous();
    Group<ACT, V> now[NV], next[NV];
    auto load = [&](Group<ACT, V>(&to)[NV], u32 row) {
#pragma unroll
        for (int k = 0; k < NV; k++) {
            u32 i = lane + k * lanes;
            to[k].zero();
            if (i < n && row < rows.rows) to[k].load(rows.from(row) + i * V);
        }
    };
    load(now, first);
    // `first` may differ within a warp: the number of rounds must not.
    u32 rounds = (rows.rows + step - 1) / step;
    for (u32 round = 0; round < rounds; round++) {
        u32 row = first + round * step;
        if (round + 1 < rounds) {
            load(next, row + step);
        } else {
            let_next_start();
        }
        float x[NV][V], part = 0.f, mean = 0.f;
#pragma unroll
        for (int k = 0; k < NV; k++) {
            now[k].get(x[k]);
#pragma unroll
            for (int j = 0; j < V; j++) part += LAYER ? x[k][j] : x[k][j] * x[k][j];
        }
        if (LAYER) {
            mean = sum(part) * inverse_width;
            part = 0.f;
#pragma unroll
            for (int k = 0; k < NV; k++) {
                if (lane + k * lanes >= n) continue;
#pragma unroll
                for (int j = 0; j < V; j++) part += (x[k][j] - mean) * (x[k][j] - mean);
            }
        }
        float inverse = 1.f / sqrtf(sum(part) * inverse_width + eps);
        if (row < rows.rows) {
            ACT *out = rows.to(row);
            u64 own = 0;
            if (LAYER && weight_inner) {
                own = (u64)rows.group(row) * weight_inner;
                load_weight(weight + own);
            }
#pragma unroll
            for (int k = 0; k < NV; k++) {
                u32 i = lane + k * lanes;
                if (i >= n) continue;
                float y[V];
#pragma unroll
                for (int j = 0; j < V; j++) {
                    y[j] = (x[k][j] - mean) * inverse * (w[k][j] + weight_offset);
                    if (LAYER && bias) y[j] += bias[own + i * V + j];
                }
                now[k].set(y);
                now[k].store(out + i * V);
            }
        }
#pragma unroll
        for (int k = 0; k < NV; k++) now[k] = next[k];
    }
}

#define PARAMETERS                                                                                           \
    const ACT *x, u64 x_outer, u64 x_inner, const float *weight, const float *bias, ACT *out, u64 out_outer, \
        u64 out_inner, u32 rows, u32 inner, u32 width, float eps, float weight_offset, u32 weight_inner

// A block a row: blockDim.x * NV * V >= width, up to 512 threads.
#define BLOCK_ENTRY(name, NV)                                                                                       \
    extern "C" __global__ void __launch_bounds__(512) name(PARAMETERS) {                                            \
        __shared__ float shared[32];                                                                                \
        Rows all = {x, x_outer, x_inner, out, out_outer, out_inner, rows, inner};                                   \
        norm_rows<NV>(all, weight, bias, width, eps, weight_offset, weight_inner, threadIdx.x, blockDim.x,          \
                      blockIdx.x, gridDim.x, BlockSum{shared});                                                     \
    }
// `lanes` threads a row: lanes * NV * V >= width.
#define LANE_ENTRY(name, NV)                                                                            \
    extern "C" __global__ void __launch_bounds__(128) name(PARAMETERS, u32 lanes) {                     \
        Rows all = {x, x_outer, x_inner, out, out_outer, out_inner, rows, inner};                       \
        u32 at_once = blockDim.x / lanes;                                                               \
        norm_rows<NV>(all, weight, bias, width, eps, weight_offset, weight_inner, threadIdx.x % lanes,  \
                      lanes, blockIdx.x * at_once + threadIdx.x / lanes, gridDim.x * at_once,           \
                      LaneSum{lanes});                                                                  \
    }

BLOCK_ENTRY(norm_block_1, 1)
BLOCK_ENTRY(norm_block_2, 2)
BLOCK_ENTRY(norm_block_4, 4)
LANE_ENTRY(norm_lanes_1, 1)
LANE_ENTRY(norm_lanes_2, 2)

// Any width and alignment: a block a row, element by element, reading the row again for each pass.
extern "C" __global__ void __launch_bounds__(256) norm_any(PARAMETERS) {
    __shared__ float shared[32];
    wait_for_previous();
    Rows all = {x, x_outer, x_inner, out, out_outer, out_inner, rows, inner};
    for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
        const ACT *from = all.from(row);
        ACT *to = all.to(row);
        u64 own = (u64)all.group(row) * weight_inner;
        float part = 0.f, mean = 0.f;
        if (LAYER) {
            for (u32 i = threadIdx.x; i < width; i += blockDim.x) part += to_f32(from[i]);
            mean = block_sum(part, shared) / width;
            part = 0.f;
        }
        for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
            float v = to_f32(from[i]) - mean;
            part += v * v;
        }
        float inverse = 1.f / sqrtf(block_sum(part, shared) / width + eps);
        for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
            float y = (to_f32(from[i]) - mean) * inverse * (weight[own + i] + weight_offset);
            if (LAYER && bias) y += bias[own + i];
            to[i] = from_f32<ACT>(y);
        }
    }
    let_next_start();
}
