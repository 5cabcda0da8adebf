// What a linear does with its sum before writing it, by the number that the host passes as the definition EPILOGUE.
// revision: 1
#ifndef ACTIVATE_GLSL
#define ACTIVATE_GLSL
#include "functions.glsl"

// 0: nothing, 1: silu, 2: gelu by tanh, 3: gelu by erf.
float activate(float x) {
#if EPILOGUE == 1
    return SILU_OF(x);
#elif EPILOGUE == 2
    return GELU_TANH_OF(x);
#elif EPILOGUE == 3
    return GELU_ERF_OF(x);
#else
    return x;
#endif
}

// Writes one value of a linear: bias and residual may be absent. The launch's parameters are at `p`.
#define WRITE_OUT(sum, token, row)                                                                                     \
    {                                                                                                                  \
        float value = sum;                                                                                             \
        if (p.bias != 0) value += Floats(p.bias).at[row];                                                              \
        value = activate(value);                                                                                       \
        if (p.residual != 0) value += LOAD(OUT, p.residual + (u64(token) * p.residual_stride + (row)) * SIZE(OUT), 0); \
        STORE(OUT, p.to + (u64(token) * p.to_stride + (row)) * SIZE(OUT), 0, value);                                   \
    }
#endif
