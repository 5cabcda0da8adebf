// `linear` of any type, size and stride without matrix units, in f32; the conversion of weights to another type; and
// what follows or precedes a library product (bias, activation, residual).
//
// One warp an output row: its lanes share the depths, eight tokens at a time; eight neighbouring depths a lane where
// addresses allow it. It serves f32, odd sizes and odd strides, and all small batches where there are no matrix units.
//
// Definitions: ACT, WEIGHT, OUT (f32, f16, bf16), EPILOGUE (see activate.cuh).
// linear_plain: grid (⌈n / 8⌉, ⌈tokens / 8⌉), 256 threads. convert_weights (WEIGHT to ACT): grid ⌈count / 1024⌉, 256
// threads. linear_finish: grid (⌈n / 256⌉, ⌈tokens / 8⌉), 256 threads.
// revision: 2
// check: -DACT=f32 -DWEIGHT=f32 -DOUT=f32 -DEPILOGUE=0
// check: -DACT=bf16 -DWEIGHT=f32 -DOUT=f32 -DEPILOGUE=3
// check: -DACT=f16 -DWEIGHT=bf16 -DOUT=f16 -DEPILOGUE=2
#include "activate.cuh"
#include "common.cuh"
#include "vector.cuh"

constexpr u32 kTokens = 8;
// Neighbours that a lane takes at a time.
constexpr u32 kDepths = 8;

__device__ __forceinline__ bool is_aligned(const void *p, u64 row_bytes) { return (((u64)p | row_bytes) & 15) == 0; }

// This lane's part of the sums of up to COUNT tokens, by whole vectors.
template <u32 COUNT>
__device__ __forceinline__ void add_vectors(float (&sums)[kTokens], const WEIGHT *weights, const ACT *values,
                                            u32 x_stride, u32 count, u32 k) {
#pragma unroll COUNT == 1 ? 4 : 1
    for (u32 i = kDepths * (threadIdx.x & 31); i < k; i += 32 * kDepths) {
        Group<WEIGHT, kDepths> row;
        float w[kDepths];
        row.load(weights + i);
        row.get(w);
#pragma unroll
        for (u32 t = 0; t < COUNT; t++) {
            if (t >= count) continue;
            Group<ACT, kDepths> x;
            float v[kDepths];
            x.load(values + (u64)t * x_stride + i);
            x.get(v);
#pragma unroll
            for (u32 j = 0; j < kDepths; j++) sums[t] = fmaf(w[j], v[j], sums[t]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    linear_plain(const ACT *x, const WEIGHT *w, const float *bias, const OUT *residual, OUT *out, u32 x_stride,
                 u32 residual_stride, u32 out_stride, u32 tokens, u32 n, u32 k) {
    u32 lane = threadIdx.x & 31, row = blockIdx.x * 8 + (threadIdx.x >> 5), first = blockIdx.y * kTokens;
    let_next_start();
    wait_for_previous();
    if (row >= n) return;
    const WEIGHT *weights = w + (u64)row * k;
    const ACT *values = x + (u64)first * x_stride;
    u32 count = min(tokens - first, kTokens);
    float sums[kTokens] = {};
    bool by_vectors = k % kDepths == 0 && is_aligned(w, (u64)k * sizeof(WEIGHT)) &&
                      is_aligned(x, (u64)x_stride * sizeof(ACT));
    if (by_vectors && count == 1) {
        add_vectors<1>(sums, weights, values, x_stride, count, k);
    } else if (by_vectors) {
        add_vectors<kTokens>(sums, weights, values, x_stride, count, k);
    } else if (count == 1) {
#pragma unroll 4
        for (u32 i = lane; i < k; i += 32) sums[0] = fmaf(to_f32(weights[i]), to_f32(values[i]), sums[0]);
    } else {
#pragma unroll 2
        for (u32 i = lane; i < k; i += 32) {
            float weight = to_f32(weights[i]);
#pragma unroll
            for (u32 t = 0; t < kTokens; t++)
                if (t < count) sums[t] = fmaf(weight, to_f32(values[(u64)t * x_stride + i]), sums[t]);
        }
    }
    float mine = 0.f;
#pragma unroll
    for (u32 t = 0; t < kTokens; t++) {
        float sum = warp_sum(sums[t]);
        if (lane == t) mine = sum;
    }
    if (lane < count) {
        u32 token = first + lane;
        if (bias) mine += bias[row];
        mine = activate<EPILOGUE>(mine);
        if (residual) mine += to_f32(residual[(u64)token * residual_stride + row]);
        out[(u64)token * out_stride + row] = from_f32<OUT>(mine);
    }
}

// Rounds to the nearest value that the type holds: a weight beyond f16's range becomes its largest value, not an
// infinity.
template <typename T> __device__ __forceinline__ T narrow(float x) { return from_f32<T>(x); }
template <> __device__ __forceinline__ f16 narrow<f16>(float x) {
    // Comparisons keep infinities and NaN of the file as they are.
    if (x > 65504.f && x < INFINITY_F) x = 65504.f;
    if (x < -65504.f && x > -INFINITY_F) x = -65504.f;
    return from_f32<f16>(x);
}

extern "C" __global__ void __launch_bounds__(256) convert_weights(const WEIGHT *from, ACT *to, u64 count) {
    let_next_start();
    wait_for_previous();
    u64 first = (u64)blockIdx.x * 1024 + threadIdx.x;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u64 at = first + 256 * i;
        if (at < count) to[at] = narrow<ACT>(to_f32(from[at]));
    }
}

// out = epilogue(product + bias) + residual, where each of product (f32 rows), bias and residual may be absent.
extern "C" __global__ void __launch_bounds__(256)
    linear_finish(const float *product, const float *bias, const OUT *residual, OUT *out, u32 product_stride,
                  u32 residual_stride, u32 out_stride, u32 n, u32 tokens) {
    let_next_start();
    wait_for_previous();
    u32 row = blockIdx.x * 256 + threadIdx.x, first = blockIdx.y * 8, count = min(tokens - first, 8u);
    if (row >= n) return;
    // −0 changes no value, not even its own.
    float add = bias ? bias[row] : -0.f, sums[8], rest[8];
    // All loads before the first store, which the compiler has to keep behind them: out may be residual.
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        u64 token = first + i;
        sums[i] = product && i < count ? product[token * product_stride + row] : 0.f;
        rest[i] = residual && i < count ? to_f32(residual[token * residual_stride + row]) : 0.f;
    }
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        if (i == count) break;
        float sum = activate<EPILOGUE>(sums[i] + add);
        if (residual) sum += rest[i];
        out[(u64)(first + i) * out_stride + row] = from_f32<OUT>(sum);
    }
}
