// What every kernel uses: element types and their conversions, overlap with the previous kernel, warp and block
// reductions, vector loads, Philox. Only this file and mma.cuh depend on the compiler.
// revision: 1
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef int i32;
typedef long long i64;

#if defined(__HIP__)
#include "hip.cuh"
// C++ instead of PTX. May be defined for CUDA as well, to run the other GPUs' code there.
#define PORTABLE
#endif

// Words of the texts that all languages share (../../shared).
#define FUNCTION __device__ __forceinline__
#define FLOAT(x) (float)(x)
#define SIGNED(byte) (float)(i8)(byte)
#define E4M3(code) from_e4m3((u8)(code))
#define CONSTANT __device__ const
#define FLOATS16(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p) {a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p}

#define INFINITY_F __int_as_float(0x7f800000)

// bfloat16 and binary16 as bits: the compilers' own headers are not at hand at run time.
struct bf16 {
    u16 bits;
};
struct f16 {
    u16 bits;
};

// Positions in `DType`'s code order, for definitions such as -DACT=bf16.
typedef float f32;

__device__ __forceinline__ float to_f32(float x) { return x; }
__device__ __forceinline__ float to_f32(bf16 x) { return __int_as_float((u32)x.bits << 16); }
__device__ __forceinline__ float to_f32(f16 x) {
#if defined(__HIP__)
    return (float)__builtin_bit_cast(_Float16, x.bits);
#else
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
#endif
}

// Rounds to nearest even.
template <typename T> __device__ __forceinline__ T from_f32(float x);
template <> __device__ __forceinline__ float from_f32<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 from_f32<bf16>(float x) {
    bf16 y;
#if defined(PORTABLE)
    u32 bits = __float_as_uint(x);
    // A NaN keeps a bit of its mantissa: rounding could carry it into an infinity.
    y.bits = (u16)(x == x ? (bits + 0x7fff + (bits >> 16 & 1)) >> 16 : bits >> 16 | 0x40);
#else
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#endif
    return y;
}
template <> __device__ __forceinline__ f16 from_f32<f16>(float x) {
    f16 y;
#if defined(__HIP__)
    y.bits = __builtin_bit_cast(u16, (_Float16)x);
#else
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#endif
    return y;
}

// Two values side by side in a 32-bit word, `low` at the lower address.
#if defined(PORTABLE)
template <typename T> __device__ __forceinline__ u32 pack2(float low, float high) {
    return (u32)from_f32<T>(low).bits | (u32)from_f32<T>(high).bits << 16;
}
#else
template <typename T> __device__ __forceinline__ u32 pack2(float low, float high);
template <> __device__ __forceinline__ u32 pack2<bf16>(float low, float high) {
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
template <> __device__ __forceinline__ u32 pack2<f16>(float low, float high) {
    u32 y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
#endif
template <typename T> __device__ __forceinline__ void unpack2(u32 word, float &low, float &high) {
    T a, b;
    a.bits = (u16)word;
    b.bits = (u16)(word >> 16);
    low = to_f32(a);
    high = to_f32(b);
}

// a·b rounded, and then c added.
__device__ __forceinline__ float multiply_then_add(float a, float b, float c) { return __fadd_rn(__fmul_rn(a, b), c); }

// 8-bit floats (E4M3), two at a time.
__device__ __forceinline__ u16 pack2_e4m3(float low, float high) {
#if __CUDA_ARCH__ >= 890 && !defined(PORTABLE)
    u16 y;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(y) : "f"(high), "f"(low));
    return y;
#else
    float v[2] = {low, high};
    u16 y = 0;
    for (int i = 0; i < 2; i++) {
        float a = fminf(fabsf(v[i]), 448.f);
        u32 code;
        if (v[i] != v[i]) {
            code = 0x7f;
        } else if (a < 0.015625f) {
            code = (u32)__float2int_rn(a * 512.f);
        } else {
            u32 bits = __float_as_int(a);
            bits += 0x7ffff + (bits >> 20 & 1);
            code = (bits >> 20) - (120 << 3);
            code = code > 0x7e ? 0x7e : code;
        }
        y |= (u16)((code | (__float_as_int(v[i]) >> 24 & 0x80)) << (8 * i));
    }
    return y;
#endif
}
__device__ __forceinline__ float from_e4m3(u8 code) {
    u32 sign = (u32)(code & 0x80) << 24, magnitude = code & 0x7f;
    if (magnitude == 0x7f) return __int_as_float(0x7fc00000);
    // Exponent bias 7 against 127; subnormals are sixteenths of 2^-5.
    float value = magnitude < 8 ? magnitude * (1.f / 512.f) : __int_as_float((magnitude << 20) + (120 << 23));
    return __int_as_float(__float_as_int(value) | sign);
}

// Launches are chained: a kernel may start while its predecessor ends. Nothing that earlier work writes may be read,
// and nothing that it reads may be written, before `wait_for_previous`; constants (weights, tables) may be prefetched.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel may start to prefetch: call once the bulk of this one's memory traffic is under way.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Has the values that `bits` was made of (by xor) at hand before what follows it: the compiler otherwise makes them
// when they are first used, which may be on a path where every instruction counts. The sleep is of no time, and as good
// as never.
__device__ __forceinline__ void settle(u32 bits) {
#if __CUDA_ARCH__ >= 900
    if (bits == 0x9e3779b9u) asm volatile("nanosleep.u32 0;");
#endif
}

__device__ __forceinline__ float warp_sum(float x) {
    for (int mask = 16; mask > 0; mask >>= 1) x += __shfl_xor_sync(0xffffffffu, x, mask);
    return x;
}
__device__ __forceinline__ float warp_max(float x) {
    for (int mask = 16; mask > 0; mask >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, mask));
    return x;
}

// Sum over the block, for every thread. `shared` holds 32 floats; blockDim.x is a multiple of 32. Two barriers.
__device__ __forceinline__ float block_sum(float x, float *shared) {
    x = warp_sum(x);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = x;
    __syncthreads();
    float y = (threadIdx.x & 31) < (blockDim.x >> 5) ? shared[threadIdx.x & 31] : 0.f;
    return warp_sum(y);
}
__device__ __forceinline__ float block_max(float x, float *shared) {
    x = warp_max(x);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = x;
    __syncthreads();
    float y = (threadIdx.x & 31) < (blockDim.x >> 5) ? shared[threadIdx.x & 31] : -INFINITY_F;
    return warp_max(y);
}

// 16 bytes of weights: read once, so they should not push activations out of the first-level cache.
__device__ __forceinline__ uint4 load_streaming(const void *p) {
    uint4 v;
#if defined(PORTABLE)
    v = *(const uint4 *)p;
#else
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
#endif
    return v;
}

// Philox4x32-10 (Salmon et al. 2011) with counter (counter, 0, 0, 0).
__device__ __forceinline__ uint4 philox(u32 counter, u32 key_low, u32 key_high) {
    u32 c[4] = {counter, 0, 0, 0};
    for (int round = 0; round < 10; round++) {
        u32 hi0 = __umulhi(0xD2511F53u, c[0]), lo0 = 0xD2511F53u * c[0];
        u32 hi1 = __umulhi(0xCD9E8D57u, c[2]), lo1 = 0xCD9E8D57u * c[2];
        u32 n0 = hi1 ^ c[1] ^ key_low, n2 = hi0 ^ c[3] ^ key_high;
        c[0] = n0;
        c[1] = lo1;
        c[2] = n2;
        c[3] = lo0;
        key_low += 0x9E3779B9u;
        key_high += 0xBB67AE85u;
    }
    return make_uint4(c[0], c[1], c[2], c[3]);
}
