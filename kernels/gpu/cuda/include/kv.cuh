// The layout of keys and values in a KV block, which kv_write and all attention kernels follow.
//
// A block holds, for each KV head, its K part and then its V part, so one head of one block is one contiguous piece.
// Both parts consist of units of 128 bytes: 8 rows of 16 bytes, the 8x8 (16-bit) tile that the matrix units load. With
// ROW elements in 16 bytes:
//   K: units [HEAD_DIM / ROW][BLOCK / 8]; a unit's rows are 8 tokens, a row is ROW dims of one token;
//   V: units [BLOCK / ROW][HEAD_DIM / 8]; a unit's rows are 8 dims, a row is ROW tokens of one dim (transposed).
// Sizes that do not divide round the number of units up.
//
// Rows of 8-bit elements are 16 long, and their elements are permuted (see `place`): the word that ldmatrix gives a
// lane holds the lane's elements of two rows of 8. After widening, a unit of 8-bit elements gives the same fragments as
// units of 16-bit elements.
// revision: 1
#pragma once
#include "common.cuh"

// An 8-bit float (OCP E4M3) as bits; scale 1.
struct e4m3 {
    u8 bits;
};
__device__ __forceinline__ float to_f32(e4m3 x) { return from_e4m3(x.bits); }
template <> __device__ __forceinline__ e4m3 from_f32<e4m3>(float x) {
    e4m3 y;
    y.bits = (u8)pack2_e4m3(x, 0.f);
    return y;
}

// The layout for elements T, heads of D values and blocks of B tokens.
template <typename T, int D, int B> struct KvLayout {
    static constexpr int ROW = 16 / (int)sizeof(T);
    static constexpr int TOKEN_UNITS = (B + 7) / 8;
    static constexpr int DIM_UNITS = (D + 7) / 8;
    // Rows of 16 bytes that hold one token's key, and one dim's values.
    static constexpr int KEY_ROWS = (D + ROW - 1) / ROW;
    static constexpr int VALUE_ROWS = (B + ROW - 1) / ROW;
    static constexpr int K_BYTES = KEY_ROWS * TOKEN_UNITS * 128;
    static constexpr int V_BYTES = VALUE_ROWS * DIM_UNITS * 128;
    static constexpr int HEAD_BYTES = K_BYTES + V_BYTES;

    // The place of element `index` in a row. 8-bit: word w of a row holds elements 2w, 2w + 1, 2w + 8 and 2w + 9.
    static __device__ __forceinline__ constexpr u32 place(u32 index) {
        return sizeof(T) == 1 ? index % 8 / 2 * 4 + index / 8 * 2 + index % 2 : index;
    }
    // Byte of row `row` (dims row * ROW ...) of a token's key within the head's piece.
    static __device__ __forceinline__ u32 key_row(u32 token, u32 row) {
        return (row * TOKEN_UNITS + token / 8) * 128 + token % 8 * 16;
    }
    // Byte of row `row` (tokens row * ROW ...) of a dim's values within the head's piece.
    static __device__ __forceinline__ u32 value_row(u32 dim, u32 row) {
        return K_BYTES + (row * DIM_UNITS + dim / 8) * 128 + dim % 8 * 16;
    }
};
