// Tokens rounded to 8-bit floats (E4M3) with a scale a token, for the library's product with 8-bit weights: scale =
// max|x| / 448, or 0 for a token of zeros. Codes stand in the order of the weights' (scaled.cuh), so that their
// products add up over the same depths.
//
// Definitions: ACT (bf16, f16).
// scaled_tokens: grid tokens, 256 threads. `codes`: rows of k bytes; `scales`: one a token. Needs: k and x_stride
// multiples of 16 and 8, x and codes 16-byte aligned.
// check: -DACT=bf16
// check: -DACT=f16
#include "scaled.cuh"
#include "vector.cuh"

constexpr float kLargestCode = 448.f;
// Eights of values that a thread keeps; longer rows are read twice.
constexpr u32 kKept = 8;

__device__ __forceinline__ u32 codes_of(const float *v, float factor) {
    u32 file = pack2_e4m3(v[0] * factor, v[1] * factor) | (u32)pack2_e4m3(v[2] * factor, v[3] * factor) << 16;
    return shuffle_codes(file);
}

extern "C" __global__ void __launch_bounds__(256)
    scaled_tokens(const ACT *x, u32 x_stride, u8 *codes, float *scales, u32 k) {
    __shared__ float shared[32];
    x += (u64)blockIdx.x * x_stride;
    codes += (u64)blockIdx.x * k;
    let_next_start();
    wait_for_previous();
    Group<ACT, 8> kept[kKept];
    float largest = 0.f, v[8];
#pragma unroll
    for (u32 i = 0; i < kKept; i++) {
        u32 at = 8 * (threadIdx.x + i * blockDim.x);
        kept[i].zero();
        if (at < k) kept[i].load(x + at);
    }
#pragma unroll
    for (u32 i = 0; i < kKept; i++) {
        kept[i].get(v);
#pragma unroll
        for (u32 j = 0; j < 8; j++) largest = fmaxf(largest, fabsf(v[j]));
    }
    for (u32 at = 8 * (threadIdx.x + kKept * blockDim.x); at < k; at += 8 * blockDim.x) {
        Group<ACT, 8> group;
        group.load(x + at);
        group.get(v);
#pragma unroll
        for (u32 j = 0; j < 8; j++) largest = fmaxf(largest, fabsf(v[j]));
    }
    largest = block_max(largest, shared);
    float factor = largest > 0.f ? kLargestCode / largest : 0.f;
    if (threadIdx.x == 0) scales[blockIdx.x] = largest * (1.f / kLargestCode);
#pragma unroll
    for (u32 i = 0; i < kKept; i++) {
        u32 at = 8 * (threadIdx.x + i * blockDim.x);
        kept[i].get(v);
        if (at < k) *(uint2 *)(codes + at) = make_uint2(codes_of(v, factor), codes_of(v + 4, factor));
    }
    for (u32 at = 8 * (threadIdx.x + kKept * blockDim.x); at < k; at += 8 * blockDim.x) {
        Group<ACT, 8> group;
        group.load(x + at);
        group.get(v);
        *(uint2 *)(codes + at) = make_uint2(codes_of(v, factor), codes_of(v + 4, factor));
    }
}
