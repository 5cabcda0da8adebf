// CUDA's warp, rounding and block functions that the kernels use, for amdgcn.
//
// A warp is 32 lanes here too. On a device whose waves have 64, a wave holds two of them, which share the instruction
// stream: shuffles and votes stay within a lane's half, and a half whose lanes have returned is not waited for. So
// kernels, grids and shared memory are the same for waves of 32 and of 64.
//
// Needs clang's builtins only. The run-time compiler (hiprtc) declares the language and the mathematics; elsewhere
// hip_language.cuh does.
#pragma once

#if !defined(__HIPCC_RTC__)
#include "hip_language.cuh"
#endif

#define __grid_constant__

#if defined(__GFX9__)
#define HIP_WAVE 64
#else
#define HIP_WAVE 32
#endif

namespace hip {

__device__ __forceinline__ u32 wave_lane() {
    return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
}

__device__ __forceinline__ u32 word_from(u32 x, u32 lane) {
    return (u32)__builtin_amdgcn_ds_bpermute((int)(lane << 2), (int)x);
}

// The value of another lane of this warp's half; `lane` counts from 0 to 31.
template <typename T> __device__ __forceinline__ T value_from(T x, u32 lane) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move words");
    lane += wave_lane() & (HIP_WAVE - 32);
    if constexpr (sizeof(T) == 4) {
        return __builtin_bit_cast(T, word_from(__builtin_bit_cast(u32, x), lane));
    } else {
        u64 bits = __builtin_bit_cast(u64, x);
        return __builtin_bit_cast(T, (u64)word_from((u32)(bits >> 32), lane) << 32 | word_from((u32)bits, lane));
    }
}
template <typename T> __device__ __forceinline__ T shuffle(T x, int from, int width = 32) {
    u32 lane = wave_lane() & 31;
    return value_from(x, (lane & ~(u32)(width - 1)) | ((u32)from & (u32)(width - 1)));
}
template <typename T> __device__ __forceinline__ T shuffle_xor(T x, int mask) {
    return value_from(x, (wave_lane() ^ (u32)mask) & 31);
}
template <typename T> __device__ __forceinline__ T shuffle_up(T x, u32 distance) {
    u32 lane = wave_lane() & 31;
    return value_from(x, lane < distance ? lane : lane - distance);
}

// Ballot: the lanes of the warp for which it holds. Lanes that have returned count as no.
__device__ __forceinline__ u32 votes(bool x) {
#if !__has_builtin(__builtin_amdgcn_ballot_w64)
    u64 wave = __builtin_amdgcn_uicmp((u32)x, 0u, 33); // compilers before ROCm 5.4: lanes where x is not 0
#elif HIP_WAVE == 64
    u64 wave = __builtin_amdgcn_ballot_w64(x);
#else
    u64 wave = __builtin_amdgcn_ballot_w32(x);
#endif
    return (u32)(wave >> (wave_lane() & (HIP_WAVE - 32)));
}

// Orders the warp's memory accesses; its lanes run together anyway.
__device__ __forceinline__ void warp_barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

__device__ __forceinline__ u32 warp_total(u32 x) {
    for (int mask = 16; mask > 0; mask >>= 1) x += shuffle_xor(x, mask);
    return x;
}

// The number of threads of the block for which it holds, returned to every thread.
__device__ __forceinline__ int block_count(bool x) {
    __shared__ u32 warps[32];
    u32 warp = threadIdx.x >> 5, all = votes(x), count = 0;
    __syncthreads();
    if ((threadIdx.x & 31) == 0) warps[warp] = (u32)__builtin_popcount(all);
    __syncthreads();
    for (u32 i = 0; i < blockDim.x >> 5; i++) count += warps[i];
    return (int)count;
}

// Rounded by themselves, whatever the compiler may otherwise contract.
__device__ __forceinline__ float product(float a, float b) {
#pragma clang fp contract(off)
    return a * b;
}
__device__ __forceinline__ float difference(float a, float b) {
#pragma clang fp contract(off)
    return a - b;
}
__device__ __forceinline__ float quotient(float a, float b) {
#pragma clang fp contract(off)
    return a / b;
}

} // namespace hip

// Some versions of the run-time compiler have functions of these names for masks of 64 lanes.
#define __shfl_sync(mask, ...) hip::shuffle(__VA_ARGS__)
#define __shfl_xor_sync(mask, ...) hip::shuffle_xor(__VA_ARGS__)
#define __shfl_up_sync(mask, ...) hip::shuffle_up(__VA_ARGS__)
#define __ballot_sync(mask, x) hip::votes(x)
#define __any_sync(mask, x) (hip::votes(x) != 0)
#define __all_sync(mask, x) (hip::votes(!(x)) == 0)
#define __reduce_add_sync(mask, x) hip::warp_total(x)
#define __syncwarp() hip::warp_barrier()
#define __syncthreads_count(x) hip::block_count(x)
#define __fmul_rn(a, b) hip::product(a, b)
#define __fadd_rn(a, b) hip::difference(a, -(b))
#define __fsub_rn(a, b) hip::difference(a, b)
#define __fdiv_rn(a, b) hip::quotient(a, b)
#define __fmaf_rn(a, b, c) __builtin_fmaf(a, b, c)
