// m16n8k16 as PTX documents it (section "Matrix Fragments for mma.m16n8k16 with floating point type").
#pragma once
#include "common.cuh"

template <typename T> inline void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    struct Operands {
        u32 a[4], b[2];
    } mine, all[32];
    std::memcpy(mine.a, a, sizeof a);
    std::memcpy(mine.b, b, sizeof b);
    emulated_exchange(&mine, sizeof mine, all);
    u32 lane = threadIdx.x % 32;
    for (u32 i = 0; i < 4; i++) {
        u32 row = lane / 4 + (i >= 2 ? 8 : 0), column = lane % 4 * 2 + i % 2;
        float sum = 0;
        for (u32 k = 0; k < 16; k++) {
            const Operands &left = all[row % 8 * 4 + k % 8 / 2], &right = all[column * 4 + k % 8 / 2];
            sum += half_of<T>(left.a[row / 8 + 2 * (k / 8)], k % 2) * half_of<T>(right.b[k / 8], k % 2);
        }
        d[i] += sum;
    }
}
