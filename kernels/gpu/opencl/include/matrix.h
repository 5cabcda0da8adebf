// Matrix units of Intel's GPUs (cl_intel_subgroup_matrix_multiply_accumulate): products of 8 (or 4) by 16 and 16 by
// SUBGROUP values of 16 bits by a subgroup, sums in f32. The lane layout is that of the extension's text:
//
//   left, a row a component: lane l brings the 16-bit value at depth l where subgroups have 16 lanes, those at depths
//   2l and 2l + 1 in a word where they have 8;
//   right: lane l brings column l, depths 2i and 2i + 1 in component i;
//   sums: lane l has column l, a row a component.
//
// Definitions: DPAS (8 or 16, which is SUBGROUP: the smallest subgroups of the device), DPAS_EMULATED (for devices
// without the units: the same by plain operations, to test what is built on it).
#ifndef HALYARD_MATRIX_H
#define HALYARD_MATRIX_H
#include "common.h"

#if DPAS == 16
typedef short left1;
typedef short4 left4;
typedef short8 left8;
#else
typedef int left1;
typedef int4 left4;
typedef int8 left8;
#endif
// 16-bit values of a row that a lane brings.
#define LEFT_VALUES (16 / DPAS)

// MULTIPLY8(T, left, right, sums) and MULTIPLY4: sums + left · right, of values of type T (f16, bf16) and so many rows.
// UNROLLED loops go over products: sums stay in registers. Emulated products are so long that a compiler for processors
// would work on copies for minutes.
#ifdef DPAS_EMULATED
#define UNROLLED __attribute__((opencl_unroll_hint(1)))
// Two neighbours in depth.
INLINE float add_pair_f16(u32 a, u32 b, float sum) {
    return fma(f16_to_f32((u16)(a >> 16)), f16_to_f32((u16)(b >> 16)),
               fma(f16_to_f32((u16)a), f16_to_f32((u16)b), sum));
}
INLINE float add_pair_bf16(u32 a, u32 b, float sum) {
    return fma(bf16_to_f32((u16)(a >> 16)), bf16_to_f32((u16)(b >> 16)),
               fma(bf16_to_f32((u16)a), bf16_to_f32((u16)b), sum));
}
// Depths 2i and 2i + 1 of a row, from the lanes that brought them.
INLINE u32 pair_of(left1 left, u32 i) {
#if DPAS == 16
    u32 word = (u16)left;
    return sub_group_broadcast(word, 2 * i) | sub_group_broadcast(word, 2 * i + 1) << 16;
#else
    return sub_group_broadcast((u32)left, i);
#endif
}
#define MULTIPLIER(T, ROWS)                                                                               \
    INLINE float##ROWS multiply##ROWS##_##T(left##ROWS left, int8 right, float##ROWS sums) {              \
        left1 lefts[ROWS];                                                                                \
        i32 rights[8];                                                                                    \
        float sum[ROWS];                                                                                  \
        vstore##ROWS(left, 0, lefts);                                                                     \
        vstore8(right, 0, rights);                                                                        \
        vstore##ROWS(sums, 0, sum);                                                                       \
        UNROLLED for (u32 at = 0; at < 8 * ROWS; at++)                                                    \
            sum[at / 8] = add_pair_##T(pair_of(lefts[at / 8], at % 8), (u32)rights[at % 8], sum[at / 8]); \
        return vload##ROWS(0, sum);                                                                       \
    }
#define MULTIPLIERS(T) MULTIPLIER(T, 4) MULTIPLIER(T, 8)
MULTIPLIERS(f16)
MULTIPLIERS(bf16)
#define MULTIPLY4(T, left, right, sums) CAT(multiply4_, T)(left, right, sums)
#define MULTIPLY8(T, left, right, sums) CAT(multiply8_, T)(left, right, sums)
#else
#define UNROLLED _Pragma("unroll")
#define DPAS_f16 intel_sub_group_f16_f16_matrix_mad_k16
#define DPAS_bf16 intel_sub_group_bf16_bf16_matrix_mad_k16
#define MULTIPLY4(T, left, right, sums) CAT(DPAS_, T)(left, right, sums)
#define MULTIPLY8(T, left, right, sums) CAT(DPAS_, T)(left, right, sums)
#endif

#endif
