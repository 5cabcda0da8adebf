// Formats in blocks as rows hold them, in the words of block_values.h.
// revision: 1
#pragma once
#include "common.cuh"

__device__ __forceinline__ float half_at(const u8 *p) {
    f16 h;
    h.bits = *(const u16 *)p;
    return to_f32(h);
}
#define ADDRESS const u8 *
#define BYTE(p) (u32)(*(p))
#define HALF(p) half_at(p)
#define WORD_AT(p) (*(const u32 *)(p))
#define FLOAT_AT(p) (*(const float *)(p))
#include "block_values.h"
