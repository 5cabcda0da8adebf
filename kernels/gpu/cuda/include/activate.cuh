// What a linear does with its sum before writing it, by the number that the host passes as a definition.
// revision: 1
#pragma once
#include "common.cuh"

// Beyond 2^126 the quick quotient is 0, and so is the true one but for 1e-36.
#define SIGMOID_TIMES(x, u) __fdividef(x, 1.f + __expf(-(u)))
#define ERFC(x) erfcf(x)
#include "formulas.h"

// 0: nothing, 1: silu, 2: gelu by tanh, 3: gelu by erf.
template <int KIND> __device__ __forceinline__ float activate(float x) {
    if (KIND == 1) return SILU_OF(x);
    if (KIND == 2) return GELU_TANH_OF(x);
    if (KIND == 3) return GELU_ERF_OF(x);
    return x;
}

// activate(gate) · up; 4: the bounded silu of GATE_LIMIT, GATE_ALPHA and GATE_OFFSET (formulas.h).
template <int KIND> __device__ __forceinline__ float gated(float gate, float up) {
#if defined(GATE_LIMIT)
    if (KIND == 4) return BOUNDED_SILU_OF(gate, up, GATE_LIMIT, GATE_ALPHA, GATE_OFFSET);
#endif
    return activate<KIND>(gate) * up;
}
