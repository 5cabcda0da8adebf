// Block formats as model files hold them, in the words of block_values.h.
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
#define SIGNED(byte) (float)(i8)(byte)
#include "block_values.h"
