// Products of a warpgroup with both operands in shared memory, 128-byte swizzle, as PTX documents their descriptors
// ("Asynchronous Warpgroup Level Matrix Instructions", canonical layouts). Each thread makes its own results.
#pragma once
#include "common.cuh"

inline void stores_before_products() {}
inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int N> inline void wgmma_wait() {}
template <int N> inline void pin(float (&)[N]) {}

inline u64 wgmma_swizzled(u32 address, u32 lead, u32 step) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)(lead >> 4) << 16 | (u64)(step >> 4) << 32 | 1ull << 62;
}
// The byte at `offset` of what begins at `start`, where bits 4 .. 6 of an address are changed by bits 7 .. 9.
inline u16 swizzled_value(u32 at) {
    u16 value;
    std::memcpy(&value, memory + (at ^ (at >> 3 & 0x70)), 2);
    return value;
}
// Value (i, k) of an operand: row i of a (column i of b) at depth k.
template <typename T> inline float along_depth(u64 operand, u32 i, u32 k) {
    u32 start = (u32)(operand & 0x3fff) << 4, step = (u32)(operand >> 32 & 0x3fff) << 4;
    return T{swizzled_value(start + i / 8 * step + i % 8 * 128 + 2 * k)}.value();
}
template <typename T> inline float across_depth(u64 operand, u32 i, u32 k) {
    u32 start = (u32)(operand & 0x3fff) << 4, lead = (u32)(operand >> 16 & 0x3fff) << 4,
        step = (u32)(operand >> 32 & 0x3fff) << 4;
    return T{swizzled_value(start + i / 64 * lead + i % 64 * 2 + k / 8 * step + k % 8 * 128)}.value();
}
template <typename T, int N, int TRANSPOSED> struct WgmmaShared {
    static void run(float (&d)[N / 2], u64 a, u64 b, int accumulate) {
        u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        for (u32 e = 0; e < 2; e++) {
            u32 row = 16 * warp + lane / 4 + 8 * e;
            float left[16];
            for (u32 k = 0; k < 16; k++) left[k] = along_depth<T>(a, row, k);
            for (u32 i = 0; i < N / 8 * 2; i++) {
                u32 column = i / 2 * 8 + lane % 4 * 2 + i % 2;
                float &sum = d[i / 2 * 4 + 2 * e + i % 2];
                if (!accumulate) sum = 0;
                for (u32 k = 0; k < 16; k++)
                    sum += left[k] * (TRANSPOSED ? across_depth<T>(b, column, k) : along_depth<T>(b, column, k));
            }
        }
    }
};
