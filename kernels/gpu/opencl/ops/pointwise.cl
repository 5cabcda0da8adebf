// Elementwise ops over strided rows: `silu_mul` (plain, and bounded with a factor in the exponent and an offset),
// `gelu_mul`, `gelu`, `relu_squared`, `add`, `scale`, `softcap`. Each has two entry points: `_vector` moves 16 bytes at
// a time, `_scalar` single elements. One pass; out may be an input.
//
// Definitions: ACT = f32, f16 or bf16, the type of all operands.
// revision: 2
// check: -DACT=f32
// check: -DACT=f16
// check: -DACT=bf16
#include "common.h"

#define SIGMOID_TIMES(x, u) ((x) / (1.f + exp(-(u))))
#define ERFC(x) erfc(x)
#define TANH(x) tanh(x)
#include "formulas.h"

// Of two inputs and three parameters, all as wide as a piece.
#define SILU_MUL(a, b, p, q, r) (SILU_OF(a) * (b))
#define BOUNDED_SILU_MUL(a, b, p, q, r) BOUNDED_SILU_OF(a, b, p, q, r)
#define GELU_TANH_MUL(a, b, p, q, r) (GELU_TANH_OF(a) * (b))
#define GELU_ERF_MUL(a, b, p, q, r) (GELU_ERF_OF(a) * (b))
#define GELU_TANH(a, b, p, q, r) GELU_TANH_OF(a)
#define GELU_ERF(a, b, p, q, r) GELU_ERF_OF(a)
#define RELU_SQUARED(a, b, p, q, r) RELU_SQUARED_OF(a)
#define ADD(a, b, p, q, r) ((a) + (b))
#define SCALE(a, b, p, q, r) ((p) * (a))
#define SOFTCAP(a, b, p, q, r) SOFTCAP_OF(a, p)

// Groups that a work-item takes, a group of work-items apart.
#define UNROLL 2

// `total` groups of N elements, `groups` of them a row; strides in elements. An op of one input leaves b alone.
#define ENTRY(name, OP, N)                                                                                          \
    KERNEL void name(const __global ACT *a, u64 a_stride, const __global ACT *b, u64 b_stride, __global ACT *out,   \
                     u64 out_stride, u32 groups, u32 total, float first_parameter, float second_parameter,          \
                     float third_parameter) {                                                                       \
        u32 first = get_group_id(0) * (get_local_size(0) * UNROLL) + get_local_id(0);                               \
        FLOATN(N) p = first_parameter, q = second_parameter, r = third_parameter;                                   \
        for (u32 k = 0; k < UNROLL; k++) {                                                                          \
            u32 i = first + k * get_local_size(0), row = i / groups, column = (i - row * groups) * N;               \
            if (i >= total) continue;                                                                               \
            FLOATN(N) x = LOADN(N, ACT, a, row * a_stride + column), y = LOADN(N, ACT, b, row * b_stride + column); \
            STOREN(N, ACT, OP(x, y, p, q, r), out, row *out_stride + column);                                       \
        }                                                                                                           \
    }
#define ENTRIES(name, OP)                     \
    ENTRY(name##_vector, OP, PER_VECTOR(ACT)) \
    ENTRY(name##_scalar, OP, 1)

ENTRIES(silu_mul, SILU_MUL)
ENTRIES(bounded_silu_mul, BOUNDED_SILU_MUL)
ENTRIES(relu_squared, RELU_SQUARED)
ENTRIES(gelu_tanh_mul, GELU_TANH_MUL)
ENTRIES(gelu_erf_mul, GELU_ERF_MUL)
ENTRIES(gelu_tanh, GELU_TANH)
ENTRIES(gelu_erf, GELU_ERF)
ENTRIES(add, ADD)
ENTRIES(scale, SCALE)
ENTRIES(softcap, SOFTCAP)
