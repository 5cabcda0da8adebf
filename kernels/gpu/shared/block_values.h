// Weight formats in blocks as rows hold them, value by value, one text for every language: for kernels that dequantise
// as they read. GGUF's (ggml's ggml-common.h) stand here, the canonical ones in groups.h.
//
// Definition: FORMAT, the contract's code: 3 Q4_0, 4 Q4_1, 5 Q5_0, 6 Q8_0, 7 Q4_K, 8 Q6_K, 40 to 55 canonical. The
// including file (blocks.*) defines ADDRESS, the type of an address in a row; BYTE(p), the byte there as u32;
// WORD_AT(p), the u32 there; HALF(p) and FLOAT_AT(p), the f16 and the f32 there as float. All but bytes stand at
// multiples of their size.
#if FORMAT >= 40
#include "groups.h"
#else

// Nibble j of 32: low ones first.
FUNCTION u32 nibble(ADDRESS p, u32 j) { return j < 16 ? BYTE(p + j) & 15u : BYTE(p + (j - 16)) >> 4; }

// Value i of a row. Products of f16 scales and small integers are exact, so a fused multiply-add rounds as the two
// steps do.
FUNCTION float value_at(ADDRESS row, u32 i) {
#if FORMAT == 3
    ADDRESS block = row + i / 32 * 18;
    return HALF(block) * (FLOAT(nibble(block + 2, i % 32)) - 8.f);
#elif FORMAT == 4
    ADDRESS block = row + i / 32 * 20;
    return HALF(block) * FLOAT(nibble(block + 4, i % 32)) + HALF(block + 2);
#elif FORMAT == 5
    ADDRESS block = row + i / 32 * 22;
    u32 j = i % 32, fifth = BYTE(block + (2 + j / 8)) >> (j % 8) & 1u;
    return HALF(block) * (FLOAT(nibble(block + 6, j) | fifth << 4) - 16.f);
#elif FORMAT == 6
    ADDRESS block = row + i / 32 * 34;
    return HALF(block) * SIGNED(BYTE(block + (2 + i % 32)));
#elif FORMAT == 7
    ADDRESS block = row + i / 256 * 144;
    ADDRESS packed = block + 4;
    u32 group = i % 256 / 32, scale, low;
    if (group < 4) {
        scale = BYTE(packed + group) & 63u;
        low = BYTE(packed + (group + 4)) & 63u;
    } else {
        scale = (BYTE(packed + (group + 4)) & 15u) | BYTE(packed + (group - 4)) >> 6 << 4;
        low = BYTE(packed + (group + 4)) >> 4 | BYTE(packed + group) >> 6 << 4;
    }
    u32 quants = BYTE(block + (16 + group / 2 * 32 + i % 32));
    float q = FLOAT(group % 2 == 1 ? quants >> 4 : quants & 15u);
    return (HALF(block) * FLOAT(scale)) * q - HALF(block + 2) * FLOAT(low);
#else
    ADDRESS block = row + i / 256 * 210;
    u32 part = i % 256 / 128, quarter = i % 128 / 32, l = i % 32;
    u32 quants = BYTE(block + (part * 64 + quarter % 2 * 32 + l));
    u32 low = quarter < 2 ? quants & 15u : quants >> 4;
    u32 high = BYTE(block + (128 + part * 32 + l)) >> (2 * quarter) & 3u;
    float scale = SIGNED(BYTE(block + (192 + part * 8 + quarter * 2 + l / 16)));
    return HALF(block + 208) * scale * (FLOAT(low | high << 4) - 32.f);
#endif
}

// Values i .. i + 7 of a row into w[0 .. 7].
#define VALUES8_AT(row, i, w) \
    for (u32 e = 0; e < 8; e++) w[e] = value_at(row, i + e);
#endif
