// What a linear does with its sum before writing it, by the number that the host passes as a definition.
// revision: 1
#pragma once
#include "common.cuh"

// 0: nothing, 1: silu, 2: gelu by tanh, 3: gelu by erf.
template <int KIND> __device__ __forceinline__ float activate(float x) {
    // Beyond 2^126 the quick quotient is 0, and so is the true one but for 1e-36.
    if (KIND == 1) return __fdividef(x, 1.f + __expf(-x));
    if (KIND == 2) {
        // (1 + tanh u) / 2 = 1 / (1 + e^-2u): where tanh is nearly -1 their sum keeps nothing.
        float inner = 1.5957691216057308f * (x + 0.044715f * x * x * x);
        return __fdividef(x, 1.f + __expf(-inner));
    }
    // 1 + erf u = erfc(-u), for the same reason.
    if (KIND == 3) return 0.5f * x * erfcf(x * -0.7071067811865476f);
    return x;
}
