// The layout of keys and values in a KV block, for kv_write and attention. It is that of the CUDA kernels' kv.cuh,
// except that 8-bit elements are in order within a row.
//
// A block holds, for each KV head, its K part and then its V part, so one head of one block is one contiguous piece.
// Both parts consist of units of 128 bytes: 8 rows of 16 bytes. With ROW elements in 16 bytes:
//   K: units [HEAD_DIM / ROW][BLOCK / 8]; a unit's rows are 8 tokens, a row is ROW dims of one token;
//   V: units [BLOCK / ROW][HEAD_DIM / 8]; a unit's rows are 8 dims, a row is ROW tokens of one dim (transposed).
// Sizes that do not divide round the number of units up.
// Definitions: KV (f32, f16, bf16 or e4m3), HEAD_DIM, BLOCK (tokens of a KV block).
// revision: 1
#ifndef HALYARD_KV_H
#define HALYARD_KV_H
#include "common.h"

#define ROW PER_VECTOR(KV)
#define TOKEN_UNITS ((BLOCK + 7) / 8)
#define DIM_UNITS ((HEAD_DIM + 7) / 8)
// Rows of 16 bytes that hold one token's key, and one dim's values.
#define KEY_ROWS ((HEAD_DIM + ROW - 1) / ROW)
#define VALUE_ROWS ((BLOCK + ROW - 1) / ROW)
#define K_BYTES (KEY_ROWS * TOKEN_UNITS * 128)
#define V_BYTES (VALUE_ROWS * DIM_UNITS * 128)
#define HEAD_BYTES (K_BYTES + V_BYTES)

// Byte of row `row` (dims row * ROW ...) of a token's key within the head's piece.
INLINE u32 key_row(u32 token, u32 row) { return (row * TOKEN_UNITS + token / 8) * 128 + token % 8 * 16; }
// Byte of row `row` (tokens row * ROW ...) of a dim's values within the head's piece.
INLINE u32 value_row(u32 dim, u32 row) { return K_BYTES + (row * DIM_UNITS + dim / 8) * 128 + dim % 8 * 16; }

#endif
