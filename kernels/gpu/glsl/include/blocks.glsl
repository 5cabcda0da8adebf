// Block formats as model files hold them (ggml's, ggml-common.h), value by value: for kernels that dequantise as they
// read.
// Definition: FORMAT, the contract's code: 3 Q4_0, 4 Q4_1, 5 Q5_0, 6 Q8_0, 7 Q4_K, 8 Q6_K.
// revision: 1
#ifndef BLOCKS_GLSL
#define BLOCKS_GLSL
#include "common.glsl"

u32 byte_at(u64 address) { return u32(Bytes(address).at[0]); }
float half_at(u64 address) { return f16_value(u32(Halves(address).at[0])); }
float signed_byte(u32 bits) { return float(i32(bits << 24) >> 24); }
// Nibble j of 32: low ones first.
u32 nibble(u64 address, u32 j) { return j < 16 ? byte_at(address + j) & 15u : byte_at(address + j - 16) >> 4; }

// Value i of a row. Products of f16 scales and small integers are exact, so a fused multiply-add rounds as the two
// steps do.
float value_at(u64 row, u32 i) {
#if FORMAT == 3
    u64 block = row + i / 32 * 18;
    return half_at(block) * (float(nibble(block + 2, i % 32)) - 8.0);
#elif FORMAT == 4
    u64 block = row + i / 32 * 20;
    return half_at(block) * float(nibble(block + 4, i % 32)) + half_at(block + 2);
#elif FORMAT == 5
    u64 block = row + i / 32 * 22;
    u32 j = i % 32, fifth = byte_at(block + 2 + j / 8) >> (j % 8) & 1u;
    return half_at(block) * (float(nibble(block + 6, j) | fifth << 4) - 16.0);
#elif FORMAT == 6
    u64 block = row + i / 32 * 34;
    return half_at(block) * signed_byte(byte_at(block + 2 + i % 32));
#elif FORMAT == 7
    u64 block = row + i / 256 * 144, packed = block + 4;
    u32 group = i % 256 / 32, scale, low;
    if (group < 4) {
        scale = byte_at(packed + group) & 63u;
        low = byte_at(packed + group + 4) & 63u;
    } else {
        scale = (byte_at(packed + group + 4) & 15u) | byte_at(packed + group - 4) >> 6 << 4;
        low = byte_at(packed + group + 4) >> 4 | byte_at(packed + group) >> 6 << 4;
    }
    u32 quants = byte_at(block + 16 + group / 2 * 32 + i % 32);
    float q = float(group % 2 == 1 ? quants >> 4 : quants & 15u);
    return (half_at(block) * float(scale)) * q - half_at(block + 2) * float(low);
#else
    u64 block = row + i / 256 * 210;
    u32 part = i % 256 / 128, quarter = i % 128 / 32, l = i % 32;
    u32 quants = byte_at(block + part * 64 + quarter % 2 * 32 + l);
    u32 low = quarter < 2 ? quants & 15u : quants >> 4,
        high = byte_at(block + 128 + part * 32 + l) >> (2 * quarter) & 3u;
    float scale = signed_byte(byte_at(block + 192 + part * 8 + quarter * 2 + l / 16));
    return half_at(block + 208) * scale * (float(low | high << 4) - 32.0);
#endif
}
#endif
