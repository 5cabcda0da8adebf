// Neighbouring elements as one load or store: 16-byte pieces where addresses allow it, single elements elsewhere. Which
// of the two a kernel runs is settled where it is launched, from pointers and strides.
// revision: 1
#pragma once
#include "common.cuh"

// Elements of T in 16 bytes.
template <typename T> constexpr int per_vector = 16 / (int)sizeof(T);

// The elements of a 32-bit word as floats, and back.
template <typename T> struct Word {
    static constexpr int count = 2;
    static __device__ __forceinline__ void split(u32 word, float *x) { unpack2<T>(word, x[0], x[1]); }
    static __device__ __forceinline__ u32 join(const float *x) { return pack2<T>(x[0], x[1]); }
};
template <> struct Word<float> {
    static constexpr int count = 1;
    static __device__ __forceinline__ void split(u32 word, float *x) { x[0] = __uint_as_float(word); }
    static __device__ __forceinline__ u32 join(const float *x) { return __float_as_uint(x[0]); }
};

// N neighbours as they lie in memory. N * sizeof(T) is a multiple of 16 and so is their address.
template <typename T, int N> struct Group {
    static constexpr int words = N * (int)sizeof(T) / 4;
    u32 raw[words];

    __device__ __forceinline__ void zero() {
#pragma unroll
        for (int i = 0; i < words; i++) raw[i] = 0;
    }
    __device__ __forceinline__ void load(const T *p) {
#pragma unroll
        for (int i = 0; i < words; i += 4) {
            uint4 v = reinterpret_cast<const uint4 *>(p)[i / 4];
            raw[i] = v.x, raw[i + 1] = v.y, raw[i + 2] = v.z, raw[i + 3] = v.w;
        }
    }
    __device__ __forceinline__ void store(T *p) const {
#pragma unroll
        for (int i = 0; i < words; i += 4)
            reinterpret_cast<uint4 *>(p)[i / 4] = make_uint4(raw[i], raw[i + 1], raw[i + 2], raw[i + 3]);
    }
    __device__ __forceinline__ void get(float (&x)[N]) const {
#pragma unroll
        for (int i = 0; i < words; i++) Word<T>::split(raw[i], x + i * Word<T>::count);
    }
    __device__ __forceinline__ void set(const float (&x)[N]) {
#pragma unroll
        for (int i = 0; i < words; i++) raw[i] = Word<T>::join(x + i * Word<T>::count);
    }
};

// One element, at any address.
template <typename T> struct Group<T, 1> {
    T raw;

    __device__ __forceinline__ void zero() { raw = from_f32<T>(0.f); }
    __device__ __forceinline__ void load(const T *p) { raw = *p; }
    __device__ __forceinline__ void store(T *p) const { *p = raw; }
    __device__ __forceinline__ void get(float (&x)[1]) const { x[0] = to_f32(raw); }
    __device__ __forceinline__ void set(const float (&x)[1]) { raw = from_f32<T>(x[0]); }
};
