// Weights of a matrix in any stored form, eight neighbours of a row at a time.
// Definitions: WEIGHT (f32, f16, bf16) or FORMAT (a block format: see blocks.cuh).
#pragma once
#include "common.cuh"
#ifdef FORMAT
#include "blocks.cuh"
#endif

// Eight neighbours as f32. 16-byte aligned.
template <typename T> __device__ __forceinline__ void load8(const T *p, float (&v)[8]) {
    uint4 w = *(const uint4 *)p;
    unpack2<T>(w.x, v[0], v[1]);
    unpack2<T>(w.y, v[2], v[3]);
    unpack2<T>(w.z, v[4], v[5]);
    unpack2<T>(w.w, v[6], v[7]);
}
template <> __device__ __forceinline__ void load8<float>(const float *p, float (&v)[8]) {
    float4 a = *(const float4 *)p, b = *(const float4 *)(p + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

// Eight weights of a row from value k on, and one.
#ifdef FORMAT
__device__ __forceinline__ void weights8(const u8 *row, u32 k, float (&w)[8]) {
    VALUES8_AT(row, k, w)
}
__device__ __forceinline__ float weight1(const u8 *row, u32 k) { return value_at(row, k); }
constexpr bool kBlocks = true;
#else
__device__ __forceinline__ void weights8(const u8 *row, u32 k, float (&w)[8]) { load8((const WEIGHT *)row + k, w); }
__device__ __forceinline__ float weight1(const u8 *row, u32 k) { return to_f32(((const WEIGHT *)row)[k]); }
constexpr bool kBlocks = false;
#endif
