// Weights in blocks as the linear kernels hold them: planes of quants, high bits, scales and block scales, each row by
// row, in groups of four chunks of 32 values. Part t of four has eight values of a chunk, depths 4t .. 4t+3 and 16+4t
// .. 16+4t+3, and 16 bytes of nibbles hold its values of a whole group. The host computes the planes' sizes too
// (backends/gpu/src/ops/linear/layout.rs). CUDA C++ has the same groups in records instead (quantized.cuh).
//
// Value i of a part stands in nibble i / 2 (even i) or 4 + i / 2 (odd i) of its word. Fifth bits: one byte a chunk, bit
// i / 2 (even) or 4 + i / 2.
// Upper pairs (Q6_K): two bytes a chunk, bits 2·(i / 2) of the first (even) or second. Rows whose depth is no whole
// number of groups end in chunks with scale 0.
//
// Canonical formats (groups.h) have their codes so too, bytes as Q8_0's. Their scales are f32, as many a group of 128
// values as the format has; each is followed by its minimum where there is one.
//
// Here a work-item takes whole chunks: the four parts' words side by side give the depths in order, 16 at a time.
//
// Definition: FORMAT, `WeightFormat`'s code: 3 Q4_0, 4 Q4_1, 5 Q5_0, 6 Q8_0, 7 Q4_K, 8 Q6_K, 40 to 55 canonical.
// revision: 2
#ifndef HALYARD_QUANTIZED_H
#define HALYARD_QUANTIZED_H
#include "common.h"
#if FORMAT >= 40
#include "blocks.h"
#define BYTE_CODES (CODE_BITS == 8)
#define SCALE_BYTES (128 / GROUP_VALUES * 4 * SCALE_WORDS)
#else
#define BYTE_CODES (FORMAT == 6)
#define SCALE_BYTES (FORMAT == 4 ? 16 : 8)
#endif

// Bytes a group of 128 values in each plane.
#define QUANT_BYTES (BYTE_CODES ? 128 : 64)
#define HIGH_BYTES (FORMAT == 5 ? 16 : FORMAT == 8 ? 32 : 0)
// Whether there is a word for every two groups.
#define HAS_BLOCKS (FORMAT == 7 || FORMAT == 8)
// What the stored number exceeds the value's factor by.
#define OFFSET (FORMAT == 3 ? 8 : FORMAT == 5 ? 16 : FORMAT == 8 ? 32 : 0)
// The file's blocks.
#define FILE_BLOCK (HAS_BLOCKS ? 256 : 32)
#define FILE_BYTES (FORMAT == 3 ? 18 : FORMAT == 4 ? 20 : FORMAT == 5 ? 22 : FORMAT == 6 ? 34 : FORMAT == 7 ? 144 : 210)

// The planes of a matrix, and groups a row.
typedef struct {
    __global u8 *quants, *high, *scales, *blocks;
    u32 groups;
} Planes;

INLINE u64 plane_bytes(u64 bytes) { return (bytes + 255) / 256 * 256; }

INLINE Planes planes_of(__global u8 *packed, u32 n, u32 k) {
    Planes p;
    p.groups = (k + 127) / 128;
    u64 all = (u64)n * p.groups;
    p.quants = packed;
    p.high = p.quants + plane_bytes(all * QUANT_BYTES);
    p.scales = p.high + plane_bytes(all * HIGH_BYTES);
    p.blocks = p.scales + plane_bytes(all * SCALE_BYTES);
    return p;
}

// The 32 values of a chunk, depths 0 .. 15 and 16 .. 31.
typedef struct {
    float16 low, high;
} Chunk;

// A number of every part, four times.
#define SPREAD(a, b, c, d) (uint16)(a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d)
#define FOUR_TIMES(a, b, c, d) (uint16)(a, b, c, d, a, b, c, d, a, b, c, d, a, b, c, d)

// The numbers of 16 codes.
#if FORMAT >= 48
#define NUMBERS(c)                                                                                                  \
    (float16)(number_of(c.s0), number_of(c.s1), number_of(c.s2), number_of(c.s3), number_of(c.s4), number_of(c.s5), \
              number_of(c.s6), number_of(c.s7), number_of(c.s8), number_of(c.s9), number_of(c.sa), number_of(c.sb), \
              number_of(c.sc), number_of(c.sd), number_of(c.se), number_of(c.sf))
#elif BYTE_CODES
#define NUMBERS(c) convert_float16(c)
#else
#define NUMBERS(c) convert_float16(convert_int16(c) - OFFSET)
#endif

INLINE Chunk chunk_at(const Planes *p, u32 row, u32 chunk) {
    u64 at = (u64)row * p->groups + chunk / 4;
    u32 slot = chunk % 4;
    float16 low, high;
#if BYTE_CODES
    // Eight bytes a part: four of each half.
    const __global i8 *bytes = (const __global i8 *)p->quants + at * QUANT_BYTES + 8 * slot;
    char8 a = vload8(0, bytes), b = vload8(0, bytes + 32), c = vload8(0, bytes + 64), d = vload8(0, bytes + 96);
    char16 first = (char16)(a.lo, b.lo, c.lo, d.lo), second = (char16)(a.hi, b.hi, c.hi, d.hi);
#else
    const __global u32 *words = (const __global u32 *)(p->quants + at * QUANT_BYTES) + slot;
    uint16 word = SPREAD(words[0], words[4], words[8], words[12]);
    uint16 first = (word >> FOUR_TIMES(0, 16, 4, 20)) & 15, second = (word >> FOUR_TIMES(8, 24, 12, 28)) & 15;
#if FORMAT == 5
    const __global u8 *bits = p->high + at * HIGH_BYTES + slot;
    uint16 fifth = SPREAD(bits[0], bits[4], bits[8], bits[12]);
    first |= ((fifth >> FOUR_TIMES(0, 4, 1, 5)) & 1) << 4;
    second |= ((fifth >> FOUR_TIMES(2, 6, 3, 7)) & 1) << 4;
#elif FORMAT == 8
    const __global u16 *bits = (const __global u16 *)(p->high + at * HIGH_BYTES) + slot;
    uint16 pairs = SPREAD(bits[0], bits[4], bits[8], bits[12]);
    first |= ((pairs >> FOUR_TIMES(0, 8, 2, 10)) & 3) << 4;
    second |= ((pairs >> FOUR_TIMES(4, 12, 6, 14)) & 3) << 4;
#endif
#endif
    low = NUMBERS(first);
    high = NUMBERS(second);
    Chunk values;
#if FORMAT >= 40
    const __global float *scales = (const __global float *)(p->scales + at * SCALE_BYTES);
    const __global float *of_low = scales + 32 * slot / GROUP_VALUES * SCALE_WORDS;
    const __global float *of_high = scales + (32 * slot + 16) / GROUP_VALUES * SCALE_WORDS;
#if SCALE_WORDS == 2
    values.low = fma(low, of_low[0], of_low[1]);
    values.high = fma(high, of_high[0], of_high[1]);
#else
    values.low = low * of_low[0];
    values.high = high * of_high[0];
#endif
#elif FORMAT == 4
    const __global u16 *scales = (const __global u16 *)(p->scales + at * SCALE_BYTES) + 2 * slot;
    float scale = f16_to_f32(scales[0]), add = f16_to_f32(scales[1]);
    values.low = fma(low, scale, add);
    values.high = fma(high, scale, add);
#else
    u32 bits_of_scale = ((const __global u16 *)(p->scales + at * SCALE_BYTES))[slot];
#if HAS_BLOCKS
    const __global u16 *block = (const __global u16 *)(p->blocks + ((u64)row * (p->groups / 2) + chunk / 8) * 4);
    float factor = f16_to_f32(block[0]);
#endif
#if FORMAT == 7
    float scale = factor * (float)(bits_of_scale & 0xff), add = -(f16_to_f32(block[1]) * (float)(bits_of_scale >> 8));
    values.low = fma(low, scale, add);
    values.high = fma(high, scale, add);
#elif FORMAT == 8
    values.low = low * (factor * (float)(i8)(bits_of_scale & 0xff));
    values.high = high * (factor * (float)(i8)(bits_of_scale >> 8));
#else
    float scale = f16_to_f32((u16)bits_of_scale);
    values.low = low * scale;
    values.high = high * scale;
#endif
#endif
    return values;
}

#endif
