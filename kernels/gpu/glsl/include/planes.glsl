// Weights in blocks as the linear kernels hold them: planes of quants, high bits, scales and block scales, each row by
// row, in groups of four chunks of 32 values. Lane t of four has eight values of a chunk, depths 4t .. 4t+3 and 16+4t
// .. 16+4t+3, and 16 bytes of nibbles hold its values of a whole group. The host computes the planes' sizes too
// (backends/gpu/src/ops/linear/layout.rs). CUDA C++ has the same groups in records instead (quantized.cuh).
//
// Value i of a lane is in nibble i / 2 (even i) or 4 + i / 2 (odd i) of its word. Fifth bits: one byte a chunk, bit i /
// 2 (even) or 4 + i / 2. Upper pairs (Q6_K): two bytes a chunk, bits 2·(i / 2) of the first (even) or second. Rows
// whose depth is no whole number of groups end in chunks with scale 0.
//
// Canonical formats (groups.h) have their codes so too, bytes as Q8_0's. Their scales are f32, as many a group of 128
// values as the format has; each is followed by its minimum where there is one.
//
// Definition: FORMAT, `WeightFormat`'s code: 3 Q4_0, 4 Q4_1, 5 Q5_0, 6 Q8_0, 7 Q4_K, 8 Q6_K, 40 to 55 canonical.
#ifndef PLANES_GLSL
#define PLANES_GLSL
#include "common.glsl"
#if FORMAT >= 40
#include "blocks.glsl"
#endif

// Whether codes are bytes; whether the halves of a chunk have scales of their own; whether values have a minimum.
#if FORMAT >= 40
#define BYTE_CODES (CODE_BITS == 8)
#define IS_FINE (GROUP_VALUES == 16)
#define HAS_MIN (SCALE_WORDS == 2)
#else
#define BYTE_CODES (FORMAT == 6)
#define IS_FINE (FORMAT == 8)
#define HAS_MIN (FORMAT == 4 || FORMAT == 7)
#endif

// Bytes a group of 128 values in each plane; what the stored number exceeds the value's factor by; the file's blocks.
#if FORMAT >= 40
#define QUANTS (16 * CODE_BITS)
#define HIGH 0
#define SCALES (128 / GROUP_VALUES * 4 * SCALE_WORDS)
#define OFFSET 0
#define FILE_BLOCK GROUP_VALUES
#define FILE_BYTES GROUP_BYTES
#elif FORMAT == 3
#define QUANTS 64
#define HIGH 0
#define SCALES 8
#define OFFSET 8
#define FILE_BLOCK 32
#define FILE_BYTES 18
#elif FORMAT == 4
#define QUANTS 64
#define HIGH 0
#define SCALES 16
#define OFFSET 0
#define FILE_BLOCK 32
#define FILE_BYTES 20
#elif FORMAT == 5
#define QUANTS 64
#define HIGH 16
#define SCALES 8
#define OFFSET 16
#define FILE_BLOCK 32
#define FILE_BYTES 22
#elif FORMAT == 6
#define QUANTS 128
#define HIGH 0
#define SCALES 8
#define OFFSET 0
#define FILE_BLOCK 32
#define FILE_BYTES 34
#elif FORMAT == 7
#define QUANTS 64
#define HIGH 0
#define SCALES 8
#define OFFSET 0
#define FILE_BLOCK 256
#define FILE_BYTES 144
#else
#define QUANTS 64
#define HIGH 32
#define SCALES 8
#define OFFSET 32
#define FILE_BLOCK 256
#define FILE_BYTES 210
#endif

// Where the planes of a matrix start, and groups a row. The block plane (formats with blocks of 256) has one word for
// two groups.
struct Planes {
    u64 quants, high, scales, blocks;
    u32 groups;
};

u64 plane_bytes(u64 bytes) { return (bytes + 255) / 256 * 256; }

Planes planes_of(u64 packed, u32 n, u32 k) {
    Planes planes;
    planes.groups = (k + 127) / 128;
    u64 all = u64(n) * planes.groups;
    planes.quants = packed;
    planes.high = planes.quants + plane_bytes(all * QUANTS);
    planes.scales = planes.high + plane_bytes(all * HIGH);
    planes.blocks = planes.scales + plane_bytes(all * SCALES);
    return planes;
}

// What lane t holds of one group of a row: codes of 8 bits fill both vectors. `factors` are canonical scales.
struct Group {
    uvec4 quants, more;
    uvec2 high;
    uvec4 scales;
    u32 block;
#if FORMAT >= 40
    float factors[SCALES / 4];
#endif
};

Group load_group(Planes planes, u32 row, u32 group, u32 t) {
    Group v;
    u64 at = u64(row) * planes.groups + group, quants = planes.quants + at * QUANTS + t * (QUANTS / 4);
    v.quants = Quads(quants).at[0];
#if BYTE_CODES
    v.more = Quads(quants).at[1];
#endif
#if FORMAT == 5
    v.high.x = Words(planes.high + at * HIGH).at[t];
#elif FORMAT == 8
    v.high = Pairs(planes.high + at * HIGH).at[t];
#endif
#if FORMAT >= 40
    u64 scales = planes.scales + at * SCALES;
#if SCALES >= 16
    [[unroll]] for (u32 i = 0; i < SCALES / 16; i++) {
        vec4 four = uintBitsToFloat(Quads(scales).at[i]);
        [[unroll]] for (u32 j = 0; j < 4; j++) v.factors[4 * i + j] = four[j];
    }
#else
    [[unroll]] for (u32 i = 0; i < SCALES / 4; i++) v.factors[i] = Floats(scales).at[i];
#endif
#elif SCALES == 16
    v.scales = Quads(planes.scales + at * SCALES).at[0];
#else
    v.scales.xy = Pairs(planes.scales + at * SCALES).at[0];
#endif
#if FILE_BLOCK == 256
    v.block = Words(planes.blocks + (u64(row) * (planes.groups / 2) + group / 2) * 4).at[0];
#endif
    return v;
}

float signed_byte(u32 bits) { return float(i32(bits << 24) >> 24); }

// The scales of a chunk's halves, and what is added to their values.
struct Scales {
    float first, second, add, second_add;
};

// Scales of a chunk (0 .. 3).
Scales scales_of(Group v, u32 chunk) {
    Scales s;
    s.add = s.second_add = 0.0;
#if FORMAT >= 40
    u32 first = 32 * chunk / GROUP_VALUES * SCALE_WORDS, second = (32 * chunk + 16) / GROUP_VALUES * SCALE_WORDS;
    s.first = v.factors[first];
    s.second = v.factors[second];
#if HAS_MIN
    s.add = v.factors[first + 1];
    s.second_add = v.factors[second + 1];
#endif
#elif FORMAT == 4
    vec2 both = unpackHalf2x16(v.scales[chunk]);
    s.first = s.second = both.x;
    s.add = s.second_add = both.y;
#else
    u32 bits = v.scales[chunk >> 1] >> (16 * (chunk & 1u)) & 0xffffu;
#if FORMAT == 7
    vec2 both = unpackHalf2x16(v.block);
    s.first = s.second = both.x * float(bits & 0xffu);
    s.add = s.second_add = -(both.y * float(bits >> 8));
#elif FORMAT == 8
    float scale = f16_value(v.block & 0xffffu);
    s.first = scale * signed_byte(bits);
    s.second = scale * signed_byte(bits >> 8);
#else
    s.first = s.second = f16_value(bits);
#endif
#endif
    return s;
}

// A number below 2^23 less `offset`, by one addition: conversions run at a quarter of its rate and less.
float whole(u32 number, float offset) { return uintBitsToFloat(0x4b000000u | number) - (8388608.0 + offset); }

// The eight values of a chunk as numbers, without their scale.
void numbers_of(Group v, u32 chunk, out float numbers[8]) {
#if FORMAT >= 48 && BYTE_CODES
    uvec4 words = chunk >= 2 ? v.more : v.quants;
    uvec2 both = (chunk & 1u) == 0 ? words.xy : words.zw;
    UNROLLED for (u32 j = 0; j < 8; j++) numbers[j] = number_of(both[j / 4] >> (8 * (j & 3u)) & 255u);
#elif BYTE_CODES
    uvec4 words = chunk >= 2 ? v.more : v.quants;
    // Flipped top bits make signed bytes ones of 0 to 255.
    uvec2 both = ((chunk & 1u) == 0 ? words.xy : words.zw) ^ 0x80808080u;
    UNROLLED for (u32 j = 0; j < 8; j++) numbers[j] = whole(both[j / 4] >> (8 * (j & 3u)) & 255u, 128.0);
#else
    u32 word = v.quants[chunk];
    UNROLLED for (u32 i = 0; i < 4; i++) {
        u32 even = word >> (4 * i) & 15u, odd = word >> (4 * i + 16) & 15u;
#if FORMAT == 5
        u32 h = v.high.x >> (8 * chunk);
        even |= (h >> i & 1u) << 4;
        odd |= (h >> (4 + i) & 1u) << 4;
#elif FORMAT == 8
        u32 h = v.high[chunk >> 1] >> (16 * (chunk & 1u));
        even |= (h >> (2 * i) & 3u) << 4;
        odd |= (h >> (8 + 2 * i) & 3u) << 4;
#endif
#if FORMAT >= 48
        numbers[2 * i] = number_of(even);
        numbers[2 * i + 1] = number_of(odd);
#else
        numbers[2 * i] = whole(even, float(OFFSET));
        numbers[2 * i + 1] = whole(odd, float(OFFSET));
#endif
    }
#endif
}
#endif
