// The layout of keys and values in a KV block, the same as in kv.cuh.
//
// A block holds, for each KV head, its K part and then its V part, so one head of one block is one contiguous piece.
// Both parts consist of units of 128 bytes: 8 rows of 16 bytes. With ROW elements in 16 bytes:
//   K: units [HEAD_DIM / ROW][BLOCK / 8]; a unit's rows are 8 tokens, a row is ROW dims of one token;
//   V: units [BLOCK / ROW][HEAD_DIM / 8]; a unit's rows are 8 dims, a row is ROW tokens of one dim (transposed).
// Sizes that do not divide round the number of units up.
//
// Definitions: KV (f32, f16, bf16 or e4m3: an 8-bit float of scale 1), HEAD_DIM, BLOCK (tokens of a KV block).
// revision: 1
#ifndef KV_GLSL
#define KV_GLSL
#include "common.glsl"

#define ROW (16 / KV_BYTES)
#define TOKEN_UNITS ((BLOCK + 7) / 8)
#define DIM_UNITS ((HEAD_DIM + 7) / 8)
// Rows of 16 bytes that hold one token's key, and one dim's values.
#define KEY_ROWS ((HEAD_DIM + ROW - 1) / ROW)
#define VALUE_ROWS ((BLOCK + ROW - 1) / ROW)
#define K_BYTES (KEY_ROWS * TOKEN_UNITS * 128)
#define V_BYTES (VALUE_ROWS * DIM_UNITS * 128)
#define HEAD_BYTES (K_BYTES + V_BYTES)

// Byte of row `row` (dims row * ROW ...) of a token's key within the head's piece.
u32 key_row(u32 token, u32 row) { return (row * TOKEN_UNITS + token / 8) * 128 + token % 8 * 16; }
// Byte of row `row` (tokens row * ROW ...) of a dim's values within the head's piece.
u32 value_row(u32 dim, u32 row) { return K_BYTES + (row * DIM_UNITS + dim / 8) * 128 + dim % 8 * 16; }

// A row as it lies in memory, and as floats.
u32 bits_f32(float x) { return floatBitsToUint(x); }
u32 bits_f16(float x) { return f16_bits(x); }
u32 bits_bf16(float x) { return bf16_bits(x); }
u32 bits_e4m3(float x) { return e4m3_bits(x); }
float value_f32(u32 bits) { return uintBitsToFloat(bits); }
float value_f16(u32 bits) { return f16_value(bits); }
float value_bf16(u32 bits) { return bf16_value(bits); }
float value_e4m3(u32 bits) { return e4m3_value(bits); }

uvec4 row_of(in float v[ROW]) {
    uvec4 words = uvec4(0);
    UNROLLED for (u32 i = 0; i < ROW; i++) words[i * KV_BYTES / 4] |= JOIN(bits_, KV)(v[i]) << (i * KV_BYTES % 4 * 8);
    return words;
}
void values_of(uvec4 words, out float v[ROW]) {
    UNROLLED for (u32 i = 0; i < ROW; i++) {
        u32 bits = words[i * KV_BYTES / 4] >> (i * KV_BYTES % 4 * 8);
#if KV_BYTES == 2
        bits &= 0xffffu;
#elif KV_BYTES == 1
        bits &= 0xffu;
#endif
        v[i] = JOIN(value_, KV)(bits);
    }
}
#endif
