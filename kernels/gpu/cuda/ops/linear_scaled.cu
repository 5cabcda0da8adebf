// `linear` over 8-bit weights with a scale a row, without matrix units: the packing of canonical rows, their unpacking
// for the library's product, and the product of any size and stride in f32. The layout is scaled.cuh's.
//
// Definitions: ACT, OUT (f32, f16, bf16), EPILOGUE (see activate.cuh).
// scaled_pack: grid rows, 128 threads. scaled_unpack: grid ⌈rows · k / 1024⌉, 256 threads; k is a multiple of 4.
// linear_scaled_plain: grid (⌈n / 8⌉, ⌈tokens / 8⌉), 256 threads.
// revision: 1
// check: -DACT=f32 -DOUT=f32 -DEPILOGUE=0
// check: -DACT=bf16 -DOUT=f32 -DEPILOGUE=3
// check: -DACT=f16 -DOUT=f16 -DEPILOGUE=2
#include "activate.cuh"
#include "scaled.cuh"

constexpr u32 kTokens = 8;

// Canonical rows: k codes, then the scale as four bytes at any address.
extern "C" __global__ void __launch_bounds__(128) scaled_pack(const u8 *from, u8 *packed, u32 n, u32 k, u32 first_row) {
    let_next_start();
    wait_for_previous();
    u32 row = first_row + blockIdx.x;
    const u8 *codes = from + (u64)blockIdx.x * (k + 4ull);
    u32 *to = (u32 *)(packed + row * codes_pitch(k));
    bool aligned = ((u64)codes & 3) == 0;
    __shared__ u32 nan;
    if (threadIdx.x == 0) nan = 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < codes_pitch(k) / 4; i += blockDim.x) {
        u32 word = 0;
        if (aligned && 4 * i + 4 <= k) {
            word = *(const u32 *)(codes + 4 * i);
        } else {
            for (u32 b = 0; b < 4; b++)
                if (4 * i + b < k) word |= (u32)codes[4 * i + b] << (8 * b);
        }
        for (u32 b = 0; b < 4; b++)
            if ((word >> (8 * b) & 0x7f) == 0x7f) nan = 1;
        to[i] = shuffle_codes(word);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 scale = 0x7fc00000;
        if (!nan) scale = codes[k] | (u32)codes[k + 1] << 8 | (u32)codes[k + 2] << 16 | (u32)codes[k + 3] << 24;
        ((u32 *)(packed + scales_at(n, k)))[row] = scale;
    }
}

// Four values of held codes, times their scale.
__device__ __forceinline__ void values_of(u32 held, float scale, float (&v)[4]) {
    u32 codes = file_codes(held);
#pragma unroll
    for (u32 b = 0; b < 4; b++) v[b] = scale * from_e4m3((u8)(codes >> (8 * b)));
}

extern "C" __global__ void __launch_bounds__(256)
    scaled_unpack(const u8 *packed, ACT *to, u32 n, u32 k, u32 first_row, u32 rows) {
    let_next_start();
    wait_for_previous();
    u32 words = k / 4;
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (u64)rows * words) return;
    u32 row = (u32)(i / words), word = (u32)(i - (u64)row * words), at = first_row + row;
    float scale = ((const float *)(packed + scales_at(n, k)))[at], v[4];
    values_of(*(const u32 *)(packed + at * codes_pitch(k) + 4 * word), scale, v);
    ACT *out = to + (u64)row * k + 4 * word;
#pragma unroll
    for (u32 b = 0; b < 4; b++) out[b] = from_f32<ACT>(v[b]);
}

extern "C" __global__ void __launch_bounds__(256)
    linear_scaled_plain(const ACT *x, const u8 *packed, const float *bias, const OUT *residual, OUT *out, u32 x_stride,
                        u32 residual_stride, u32 out_stride, u32 tokens, u32 n, u32 k) {
    u32 lane = threadIdx.x & 31, row = blockIdx.x * 8 + (threadIdx.x >> 5), first = blockIdx.y * kTokens;
    let_next_start();
    wait_for_previous();
    if (row >= n) return;
    const u32 *codes = (const u32 *)(packed + row * codes_pitch(k));
    const ACT *values = x + (u64)first * x_stride;
    u32 count = min(tokens - first, kTokens);
    float sums[kTokens] = {};
    for (u32 i = lane; i < (k + 3) / 4; i += 32) {
        float w[4];
        values_of(codes[i], 1.f, w);
#pragma unroll
        for (u32 b = 0; b < 4; b++) {
            if (4 * i + b >= k) break;
#pragma unroll
            for (u32 t = 0; t < kTokens; t++)
                if (t < count) sums[t] = fmaf(w[b], to_f32(values[(u64)t * x_stride + 4 * i + b]), sums[t]);
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
        mine *= ((const float *)(packed + scales_at(n, k)))[row];
        if (bias) mine += bias[row];
        mine = activate<EPILOGUE>(mine);
        if (residual) mine += to_f32(residual[(u64)token * residual_stride + row]);
        out[(u64)token * out_stride + row] = from_f32<OUT>(mine);
    }
}
