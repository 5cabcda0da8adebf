#version 460
#extension GL_GOOGLE_include_directive : enable
// Elementwise ops over strided rows: `silu_mul` (plain, and bounded with a factor in the exponent and an offset),
// `gelu_mul`, `gelu`, `relu_squared`, `add`, `scale`, `softcap`. Each has two entry points: `_vector` moves 16 bytes a
// thread, `_scalar` single elements. One pass; out may be an input.
//
// Definitions: ACT = f32, f16 or bf16, the type of all operands.
// revision: 2
// check: silu_mul_vector silu_mul_scalar gelu_tanh_mul_vector gelu_tanh_mul_scalar gelu_erf_mul_vector gelu_erf_mul_scalar -DACT=f32
// check: gelu_tanh_vector gelu_tanh_scalar gelu_erf_vector gelu_erf_scalar add_vector add_scalar -DACT=f32
// check: scale_vector scale_scalar softcap_vector softcap_scalar -DACT=f32
// check: silu_mul_vector gelu_tanh_mul_vector gelu_erf_mul_vector add_vector scale_vector softcap_scalar -DACT=f16
// check: silu_mul_vector silu_mul_scalar gelu_tanh_scalar gelu_erf_vector add_scalar scale_scalar softcap_vector -DACT=bf16
// check: bounded_silu_mul_vector bounded_silu_mul_scalar relu_squared_vector relu_squared_scalar -DACT=f32
// check: bounded_silu_mul_vector relu_squared_scalar -DACT=f16
// check: bounded_silu_mul_scalar relu_squared_vector -DACT=bf16

#if defined(ENTRY_silu_mul_vector)
#define SILU_MUL
#define VECTOR
#elif defined(ENTRY_silu_mul_scalar)
#define SILU_MUL
#elif defined(ENTRY_bounded_silu_mul_vector)
#define BOUNDED_SILU_MUL
#define VECTOR
#elif defined(ENTRY_bounded_silu_mul_scalar)
#define BOUNDED_SILU_MUL
#elif defined(ENTRY_relu_squared_vector)
#define RELU_SQUARED
#define VECTOR
#elif defined(ENTRY_relu_squared_scalar)
#define RELU_SQUARED
#elif defined(ENTRY_gelu_tanh_mul_vector)
#define GELU_TANH_MUL
#define VECTOR
#elif defined(ENTRY_gelu_tanh_mul_scalar)
#define GELU_TANH_MUL
#elif defined(ENTRY_gelu_erf_mul_vector)
#define GELU_ERF_MUL
#define VECTOR
#elif defined(ENTRY_gelu_erf_mul_scalar)
#define GELU_ERF_MUL
#elif defined(ENTRY_gelu_tanh_vector)
#define GELU_TANH
#define VECTOR
#elif defined(ENTRY_gelu_tanh_scalar)
#define GELU_TANH
#elif defined(ENTRY_gelu_erf_vector)
#define GELU_ERF
#define VECTOR
#elif defined(ENTRY_gelu_erf_scalar)
#define GELU_ERF
#elif defined(ENTRY_add_vector)
#define ADD
#define VECTOR
#elif defined(ENTRY_add_scalar)
#define ADD
#elif defined(ENTRY_scale_vector)
#define SCALE
#define VECTOR
#elif defined(ENTRY_scale_scalar)
#define SCALE
#elif defined(ENTRY_softcap_vector)
#define SOFTCAP
#define VECTOR
#elif defined(ENTRY_softcap_scalar)
#define SOFTCAP
#endif

#include "common.glsl"
#ifdef VECTOR
#define N (16 / ACT_BYTES)
#else
#define N 1
#endif
#include "functions.glsl"
#include "vector.glsl"

float result(float a, float b, float first, float second, float third) {
#if defined(SILU_MUL)
    return SILU_OF(a) * b;
#elif defined(BOUNDED_SILU_MUL)
    return BOUNDED_SILU_OF(a, b, first, second, third);
#elif defined(RELU_SQUARED)
    return RELU_SQUARED_OF(a);
#elif defined(GELU_TANH_MUL)
    return GELU_TANH_OF(a) * b;
#elif defined(GELU_ERF_MUL)
    return GELU_ERF_OF(a) * b;
#elif defined(GELU_TANH)
    return GELU_TANH_OF(a);
#elif defined(GELU_ERF)
    return GELU_ERF_OF(a);
#elif defined(ADD)
    return a + b;
#elif defined(SCALE)
    return first * a;
#elif defined(SOFTCAP)
    return SOFTCAP_OF(a, first);
#endif
}
#if defined(SILU_MUL) || defined(BOUNDED_SILU_MUL) || defined(GELU_TANH_MUL) || defined(GELU_ERF_MUL) || defined(ADD)
#define BINARY
#endif

// Groups of a thread: the launch counts on it.
#define UNROLL 2

// `total` groups of N elements, `groups` of them a row; strides in elements.
PARAMETERS(u64 a; u64 a_stride; u64 b; u64 b_stride; u64 to; u64 to_stride; u32 groups; u32 total; float first;
           float second; float third;)
void main() {
    u32 first = gl_WorkGroupID.x * (THREADS * UNROLL) + gl_LocalInvocationIndex;
    for (u32 k = 0; k < UNROLL; k++) {
        u32 i = first + k * THREADS;
        if (i >= p.total) return;
        u32 row = i / p.groups, column = (i - row * p.groups) * N;
        float x[N], y[N];
        GET(ACT, p.a + (row * p.a_stride + column) * SIZE(ACT), x);
#ifdef BINARY
        GET(ACT, p.b + (row * p.b_stride + column) * SIZE(ACT), y);
#endif
        for (u32 j = 0; j < N; j++) {
#ifdef BINARY
            x[j] = result(x[j], y[j], p.first, p.second, p.third);
#else
            x[j] = result(x[j], 0.0, p.first, p.second, p.third);
#endif
        }
        PUT(ACT, p.to + (row * p.to_stride + column) * SIZE(ACT), x);
    }
}
