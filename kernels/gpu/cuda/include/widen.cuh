// Caches of 8-bit floats on 16-bit matrix units: elements are widened between shared memory and the product. Codes:
// code_tiles.cuh.
#pragma once
#include "code_tiles.cuh"

// The type in which elements of the cache meet activations of type A on the matrix units. 8-bit floats become f16 (one
// instruction for two of them, and exact) whatever the activations are: probabilities fit f16 too, and queries are
// brought to its range (`Query`).
template <typename T, typename A> struct FactorOf {
    typedef T type;
};
template <typename A> struct FactorOf<e4m3, A> {
    typedef f16 type;
};
template <int BITS, typename A> struct FactorOf<Code<BITS>, A> {
    typedef A type;
};

// Four 8-bit elements as two words of f16: those of the lower half-word, and those of the upper one.
__device__ __forceinline__ void widen(u32 word, u32 &low, u32 &high) {
#if __CUDA_ARCH__ >= 890
    asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %2;\ncvt.rn.f16x2.e4m3x2 %0, a;\ncvt.rn.f16x2.e4m3x2 %1, b;\n}"
        : "=r"(low), "=r"(high)
        : "r"(word));
#else
    // The bits of E4M3 within those of f16 are the value over 2^8: its subnormals are subnormals there.
    u32 pairs[2] = {__byte_perm(word, 0, 0x1404), __byte_perm(word, 0, 0x3424)};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 small = (pairs[i] & 0x80008000u) | (pairs[i] >> 1 & 0x3f803f80u);
        asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(pairs[i]) : "r"(small), "r"(0x5c005c00u));
    }
    u32 nan = ((word & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u;
    if (nan) {
        pairs[0] |= (nan & 0x80u ? 0x7fffu : 0) | (nan & 0x8000u ? 0x7fff0000u : 0);
        pairs[1] |= (nan & 0x800000u ? 0x7fffu : 0) | (nan & 0x80000000u ? 0x7fff0000u : 0);
    }
    low = pairs[0];
    high = pairs[1];
#endif
}

// Two neighbours of type T as 8-bit elements.
template <typename T> __device__ __forceinline__ u16 narrow(u32 word) {
    float low, high;
    unpack2<T>(word, low, high);
    return pack2_e4m3(low, high);
}

// How queries of type A meet a cache of T on the matrix units, two neighbours a word: what f16 must hold of bf16 is
// divided by `scale`, so that queries up to 2^20 fit; scores are multiplied by it.
template <typename A, typename T> struct Query {
    static constexpr float scale = 1.f;
    static __device__ __forceinline__ u32 factor(u32 word) { return word; }
};
template <> struct Query<bf16, e4m3> {
    static constexpr float scale = 16.f;
    static __device__ __forceinline__ u32 factor(u32 word) {
        float low, high;
        unpack2<bf16>(word, low, high);
        return pack2<f16>(low * (1.f / scale), high * (1.f / scale));
    }
};
