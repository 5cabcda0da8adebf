// What a linear does with its sum before writing it, by the number that the host passes as the definition EPILOGUE: 0
// nothing, 1 silu, 2 gelu by tanh, 3 gelu by erf.
// revision: 1
#ifndef HALYARD_ACTIVATE_H
#define HALYARD_ACTIVATE_H
#include "common.h"

INLINE float activate(float x) {
#if EPILOGUE == 1
    return x / (1.f + exp(-x));
#elif EPILOGUE == 2
    // (1 + tanh u) / 2 = 1 / (1 + e^-2u): where tanh is nearly -1 their sum keeps nothing.
    return x / (1.f + exp(-1.5957691216057308f * (x + 0.044715f * x * x * x)));
#elif EPILOGUE == 3
    // 1 + erf(u) = erfc(-u): where erf is nearly -1 their sum keeps nothing.
    return 0.5f * x * erfc(x * -0.7071067811865476f);
#else
    return x;
#endif
}

#endif
