// What kernel files take from common.cuh, for a processor: warps of 32 lanes, each thread a fiber (emulator32.cpp).
// Shuffles, votes and products of a warp meet there. Kernel files and latent_work.cuh are compiled as they are, with
// the headers of this folder in place of those that hold PTX.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef int i32;
typedef long long i64;

#define __device__
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(...)
#define __align__(x)
#define INFINITY_F __builtin_inff()

struct Index {
    unsigned x, y, z;
};
extern Index threadIdx_of(), blockIdx, gridDim;
#define threadIdx threadIdx_of()

// Dynamic shared memory, and what threads do with one another.
extern "C" u8 memory[];
void emulated_barrier(u32 number, u32 threads);
// What lane `from` of this warp brings, of `bytes`.
void emulated_exchange(const void *mine, u32 bytes, void *all);
void emulated_copy(u32 to, const void *from, bool wanted);
void emulated_commit();
void emulated_wait(u32 groups);

inline void __syncthreads() { emulated_barrier(0, 0); }
template <typename T> inline T shuffled(T mine, u32 from) {
    T all[32];
    emulated_exchange(&mine, sizeof(T), all);
    return all[from % 32];
}
template <typename T> inline T __shfl_xor_sync(u32, T mine, u32 mask) {
    return shuffled(mine, (threadIdx.x % 32) ^ mask);
}
template <typename T> inline T __shfl_up_sync(u32, T mine, u32 step) {
    u32 lane = threadIdx.x % 32;
    return shuffled(mine, lane >= step ? lane - step : lane);
}
inline int __any_sync(u32, int says) {
    int all[32], any = 0;
    emulated_exchange(&says, sizeof(int), all);
    for (int x : all) any |= x;
    return any != 0;
}
inline float warp_sum(float x) {
    for (u32 mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(~0u, x, mask);
    return x;
}
inline float warp_max(float x) {
    for (u32 mask = 16; mask > 0; mask /= 2) x = std::fmax(x, __shfl_xor_sync(~0u, x, mask));
    return x;
}

inline u32 min(u32 a, u32 b) { return a < b ? a : b; }
inline u32 max(u32 a, u32 b) { return a > b ? a : b; }
inline i32 max(i32 a, i32 b) { return a > b ? a : b; }

struct float2 {
    float x, y;
};
struct float4 {
    float x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

struct bf16 {
    u16 bits;
    static bf16 of(float x) {
        u32 word;
        std::memcpy(&word, &x, 4);
        return {(u16)(x == x ? (word + 0x7fff + (word >> 16 & 1)) >> 16 : word >> 16 | 0x40)};
    }
    float value() const {
        u32 word = (u32)bits << 16;
        float x;
        std::memcpy(&x, &word, 4);
        return x;
    }
};
struct f16 {
    u16 bits;
    static f16 of(float x) {
        _Float16 half = (_Float16)x;
        f16 y;
        std::memcpy(&y, &half, 2);
        return y;
    }
    float value() const {
        _Float16 half;
        std::memcpy(&half, &bits, 2);
        return (float)half;
    }
};
template <typename T> inline u32 pack2(float low, float high) {
    return (u32)T::of(low).bits | (u32)T::of(high).bits << 16;
}
template <typename T> inline float half_of(u32 word, u32 i) { return T{(u16)(word >> 16 * i)}.value(); }

inline void wait_for_previous() {}
inline void let_next_start() {}
