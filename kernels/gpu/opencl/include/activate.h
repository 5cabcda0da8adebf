// What a linear does with its sum before writing it, by the number that the host passes as the definition EPILOGUE: 0
// nothing, 1 silu, 2 gelu by tanh, 3 gelu by erf.
// revision: 1
#ifndef HALYARD_ACTIVATE_H
#define HALYARD_ACTIVATE_H
#include "common.h"

#define SIGMOID_TIMES(x, u) ((x) / (1.f + exp(-(u))))
#define ERFC(x) erfc(x)
#include "formulas.h"

INLINE float activate(float x) {
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

#endif
