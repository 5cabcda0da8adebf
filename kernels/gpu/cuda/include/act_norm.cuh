// Multiplies activations by a norm's weights before a product; the product is then divided by their root mean square.
// ACT: their type (bf16, f16).
#pragma once
#include "common.cuh"

// Values (two a word) times the norm's weights; their squares are added to `squares`.
__device__ __forceinline__ void apply_norm(uint4 &x, const float (&scale)[8], float &squares) {
    u32 *words = (u32 *)&x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float a, b;
        unpack2<ACT>(words[i], a, b);
        squares = fmaf(a, a, fmaf(b, b, squares));
        words[i] = pack2<ACT>(a * scale[2 * i], b * scale[2 * i + 1]);
    }
}
