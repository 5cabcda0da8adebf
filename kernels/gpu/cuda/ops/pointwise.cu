// Elementwise ops over strided rows: `silu_mul` (plain, and bounded with a factor in the exponent and an offset),
// `gelu_mul`, `gelu`, `relu_squared`, `add`, `scale`, `softcap`. Each has two entry points: `_vector` moves 16 bytes a
// thread, `_scalar` single elements. One pass; out may be an input.
//
// Definitions: ACT = f32, f16 or bf16, the type of all operands.
// revision: 2
// check: -DACT=f32
// check: -DACT=f16
// check: -DACT=bf16
#include "vector.cuh"

// x / (1 + e^-argument), with the quotient's limit where the power overflows. The fast forms err by a few 1e-7 of the
// result, which 16-bit types do not see.
__device__ __forceinline__ float sigmoid_times(float x, float argument) {
    if constexpr (sizeof(ACT) == 4) return x / (1.f + expf(-argument));
    return __fdividef(x, 1.f + __expf(-argument));
}

#define SIGMOID_TIMES(x, u) sigmoid_times(x, u)
#define ERFC(x) erfcf(x)
#define TANH(x) tanhf(x)
#include "formulas.h"

#define OP(Name, BINARY, value)                                                                                   \
    struct Name {                                                                                                 \
        static constexpr bool binary = BINARY;                                                                    \
        static __device__ __forceinline__ float of(float a, float b, float p, float q, float r) { return value; } \
    };
OP(BoundedSiluMul, true, BOUNDED_SILU_OF(a, b, p, q, r))
OP(ReluSquared, false, RELU_SQUARED_OF(a))
OP(SiluMul, true, SILU_OF(a) * b)
OP(GeluTanhMul, true, GELU_TANH_OF(a) * b)
OP(GeluErfMul, true, GELU_ERF_OF(a) * b)
OP(GeluTanh, false, GELU_TANH_OF(a))
OP(GeluErf, false, GELU_ERF_OF(a))
OP(Add, true, a + b)
OP(Scale, false, p * a)
OP(Softcap, false, SOFTCAP_OF(a, p))

// Groups that a thread has in flight.
#define UNROLL 2

// `total` groups of N elements, `groups` of them a row; strides in elements.
template <typename Op, int N>
__device__ __forceinline__ void apply(const ACT *a, u64 a_stride, const ACT *b, u64 b_stride, ACT *out, u64 out_stride,
                                      u32 groups, u32 total, float first_parameter, float second_parameter,
                                      float third_parameter) {
    Group<ACT, N> x[UNROLL], y[UNROLL];
    u32 row[UNROLL], column[UNROLL];
    u32 first = blockIdx.x * (blockDim.x * UNROLL) + threadIdx.x;
#pragma unroll
    for (int k = 0; k < UNROLL; k++) {
        u32 i = first + k * blockDim.x;
        row[k] = i / groups;
        column[k] = (i - row[k] * groups) * N;
    }
    wait_for_previous();
#pragma unroll
    for (int k = 0; k < UNROLL; k++) {
        if (first + k * blockDim.x >= total) continue;
        x[k].load(a + row[k] * a_stride + column[k]);
        if (Op::binary) y[k].load(b + row[k] * b_stride + column[k]);
    }
    let_next_start();
#pragma unroll
    for (int k = 0; k < UNROLL; k++) {
        if (first + k * blockDim.x >= total) continue;
        float p[N], q[N];
        x[k].get(p);
        if (Op::binary) y[k].get(q);
#pragma unroll
        for (int j = 0; j < N; j++) {
            p[j] = Op::of(p[j], Op::binary ? q[j] : 0.f, first_parameter, second_parameter, third_parameter);
        }
        x[k].set(p);
        x[k].store(out + row[k] * out_stride + column[k]);
    }
}

#define ENTRY(name, Op, N)                                                                                            \
    extern "C" __global__ void __launch_bounds__(256)                                                                 \
        name(const ACT *a, u64 a_stride, const ACT *b, u64 b_stride, ACT *out, u64 out_stride, u32 groups, u32 total, \
             float first, float second, float third) {                                                                \
        apply<Op, N>(a, a_stride, b, b_stride, out, out_stride, groups, total, first, second, third);                 \
    }
#define ENTRIES(name, Op)                     \
    ENTRY(name##_vector, Op, per_vector<ACT>) \
    ENTRY(name##_scalar, Op, 1)

ENTRIES(silu_mul, SiluMul)
ENTRIES(bounded_silu_mul, BoundedSiluMul)
ENTRIES(relu_squared, ReluSquared)
ENTRIES(gelu_tanh_mul, GeluTanhMul)
ENTRIES(gelu_erf_mul, GeluErfMul)
ENTRIES(gelu_tanh, GeluTanh)
ENTRIES(gelu_erf, GeluErf)
ENTRIES(add, Add)
ENTRIES(scale, Scale)
ENTRIES(softcap, Softcap)
