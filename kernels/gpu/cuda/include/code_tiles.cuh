// Codes of keys and values as operands of the 16-bit matrix units (layout: kv_codes.cuh). Both products take codes as
// whole numbers, which the activations' type holds exactly. A key's scale and minimum go into its scores, in f32; a
// value is brought to its own scale in registers, where it is rounded to that type.
#pragma once
#include "kv_codes.cuh"
#include "mma.cuh"

// Numbers under the exponent of a power of two are that power plus the number.
template <typename T> struct Power;
template <> struct Power<bf16> {
    static constexpr u32 of = 0x43004300, one = 0x3f803f80; // 128
};
template <> struct Power<f16> {
    static constexpr u32 of = 0x64006400, one = 0x3c003c00; // 1024
};

// Pair `j` of a word: the codes at bits BITS * j of its two halves, as T.
template <typename T, int BITS> __device__ __forceinline__ u32 code_pair(u32 word, int j) {
    typedef Power<T> P;
    if constexpr (BITS == 4) {
        return fma2<T>(and_or<0x000f000f, P::of>(word >> 4 * j), P::one, P::of | 0x80008000);
    } else if constexpr (P::of == Power<f16>::of) {
        return fma2<T>(and_or<0x00ff00ff, P::of>((word ^ 0x80808080) >> 8 * j), P::one, 0xe480e480); // 1024 + 128
    } else {
        // Seven bits fit under the exponent. The eighth says whether 128 or 256 is too much.
        u32 codes = word >> 8 * j;
        return fma2<T>(and_or<0x007f007f, P::of>(codes), P::one, and_or<0x00800080, P::of | 0x80008000>(codes));
    }
}

// Scales and minima of two tokens, as T.
struct ScalePair {
    u32 scale, minimum;
};
template <typename T, int BITS> __device__ __forceinline__ ScalePair scale_pair(u32 first, u32 second) {
    CodeMap a = code_map<BITS>(first), b = code_map<BITS>(second);
    return {pack2<T>(a.scale, b.scale), pack2<T>(a.minimum, b.minimum)};
}
template <typename T, int BITS> __device__ __forceinline__ u32 value_pair(u32 word, int j, const ScalePair &map) {
    return fma2<T>(code_pair<T, BITS>(word, j), map.scale, map.minimum);
}

__device__ __forceinline__ u32 load_word(u32 address) {
    u32 word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
    return word;
}
__device__ __forceinline__ uint2 load_words(u32 address) {
    uint2 words;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(words.x), "=r"(words.y) : "r"(address) : "memory");
    return words;
}

// A score as if the key had been read: q · (scale · codes + minimum). `query` is the sum of the query's values.
template <int BITS> __device__ __forceinline__ float scaled_score(float score, const CodeMap &key, float query) {
    return BITS == 4 ? fmaf(key.scale, score, key.minimum * query) : key.scale * score;
}

// Turns D dims of a query that LANES lanes hold, 8 each, for keys of 4 bits. All lanes of the warp call it.
template <typename T, int D> __device__ __forceinline__ uint4 turned_query(uint4 words, u32 c) {
    float x[8];
    unpack2<T>(words.x, x[0], x[1]);
    unpack2<T>(words.y, x[2], x[3]);
    unpack2<T>(words.z, x[4], x[5]);
    unpack2<T>(words.w, x[6], x[7]);
#pragma unroll
    for (int apart = 1; apart < 8; apart *= 2)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (i & apart) continue;
            float a = x[i], b = x[i + apart];
            x[i] = a + b;
            x[i + apart] = a - b;
        }
#pragma unroll
    for (u32 lanes = 1; 8 * lanes < turn_run<D>; lanes *= 2)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float other = __shfl_xor_sync(0xffffffffu, x[i], lanes);
            x[i] = c & lanes ? other - x[i] : x[i] + other;
        }
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] *= turn_factor<D>;
    return make_uint4(pack2<T>(x[0], x[1]), pack2<T>(x[2], x[3]), pack2<T>(x[4], x[5]), pack2<T>(x[6], x[7]));
}

// The same of 16 rows as left operands of mma_m16n8k16: word 4k + i has of row g + 8 * (i % 2) dims 16k + 8 * (i / 2) +
// 2t and + 1.
template <typename T, int D> __device__ __forceinline__ void turn_operands(u32 (&q)[D / 4]) {
    float x[D / 4][2];
    u32 t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < D / 4; i++) {
        float a, b;
        unpack2<T>(q[i], a, b);
        x[i][0] = a + b;
        x[i][1] = a - b;
    }
#pragma unroll
    for (u32 lanes = 1; lanes < 4; lanes *= 2)
#pragma unroll
        for (int i = 0; i < D / 2; i++) {
            float &own = x[i / 2][i % 2], other = __shfl_xor_sync(0xffffffffu, own, lanes);
            own = t & lanes ? other - own : own + other;
        }
    // Words 2 apart are 8 dims apart.
#pragma unroll
    for (int apart = 2; 4 * apart < (int)turn_run<D>; apart *= 2)
#pragma unroll
        for (int i = 0; i < D / 2; i++) {
            if (i / 2 & apart) continue;
            float &a = x[i / 2][i % 2], &b = x[i / 2 + apart][i % 2], sum = a + b;
            b = a - b;
            a = sum;
        }
#pragma unroll
    for (int i = 0; i < D / 4; i++)
        q[i] = pack2<T>(x[i][0] * turn_factor<D>, x[i][1] * turn_factor<D>);
}
