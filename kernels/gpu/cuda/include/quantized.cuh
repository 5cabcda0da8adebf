// Weights in blocks, GGUF's and canonical ones, as linears hold them, and experts on matrix units: records of eight
// rows' codes and scales of a group of 128 values, so that a tile's weights are a few long runs of memory: [n / 8
// rounded up][groups][`kRecord` bytes]. Rows whose depth is no whole number of groups end in chunks with scale 0.
//
// Four lanes share a group. Lane t has eight values of each chunk of 32, depths 4t .. 4t+3 and 16+4t .. 16+4t+3 (so
// that a step of the matrix unit stays within 16 values, the finest scale of any format), and 16 bytes of nibbles hold
// its values of a whole group. Value i of a lane is in nibble i / 2 (even i) or 4 + i / 2 (odd i) of a chunk's word:
// masks then give pairs side by side.
//
// A record has the codes in words of 16 bytes, [words of a lane][row][lane], where lanes of rows 2, 3, 6 and 7 swap
// places with those two further on. Of 8-bit floats lane t of row r stands at t ^ (r / 2), so that Hopper's matrix
// units read a record as it lies (rows of 64 bytes with swapped units).
//
// Higher bits follow, [row][lane]. Fifth ones (Q5_0): one byte a chunk, bit i / 2 (even) or 4 + i / 2. Upper pairs
// (Q6_K): two bytes a chunk, bits 2·(i / 2) of the first (even) or second.
//
// Scales follow, [row]. Of canonical formats (groups.h) they are f32, as many as the format has for 128 values, and
// behind each stands its minimum as a multiple of it where there is one: a value is scale · (number + multiple), and
// zero points are whole numbers there. GGUF's are the file's own: an f16 a chunk (Q4_1: two, scale and minimum); of
// Q4_K the 6 bits of scale and of minimum as two bytes a chunk, then d and dmin as f16; of Q6_K eight bytes, then d.
//
// Definition: FORMAT, `WeightFormat`'s code: 3 Q4_0, 4 Q4_1, 5 Q5_0, 6 Q8_0, 7 Q4_K, 8 Q6_K, 40 to 55 canonical.
// revision: 2
#pragma once
#include "mma.cuh"
#if FORMAT >= 40
#include "blocks.cuh"
#else
#if FORMAT == 8
#define GROUP_VALUES 16
#else
#define GROUP_VALUES 32
#endif
// Of canonical formats; without use elsewhere.
#define CODE_BITS 4
#define SCALE_WORDS 1
__device__ __forceinline__ float number_of(u32 code) { return (float)code; }
#endif

constexpr bool kGroups = FORMAT >= 40;
constexpr bool kBytes = kGroups ? CODE_BITS == 8 : FORMAT == 6;
constexpr bool kHasMin = kGroups ? SCALE_WORDS == 2 : FORMAT == 4 || FORMAT == 7;
// Whether a code is the number that it counts, or names it.
constexpr bool kNamed = FORMAT >= 48;
// Depths that share a scale, and how often that is in a group.
constexpr u32 kRun = GROUP_VALUES;
constexpr u32 kRuns = 128 / kRun;
// 16-byte words of a lane's codes of one row of a group.
constexpr u32 kWords = kBytes ? 2 : 1;
// Bytes of a row of a record.
constexpr u32 kQuants = 64 * kWords;
constexpr u32 kHigh = FORMAT == 5 ? 16 : FORMAT == 8 ? 32 : 0;
constexpr u32 kScales = kGroups ? 4 * kRuns * SCALE_WORDS : FORMAT == 4 ? 16 : FORMAT == 7 || FORMAT == 8 ? 12 : 8;
constexpr u32 kScaleWords = kScales / 4;
// Rows of a record, and its bytes.
constexpr u32 kRecordRows = 8;
constexpr u32 kRecord = kRecordRows * (kQuants + kHigh + kScales);
// What the stored number exceeds the value's factor by.
constexpr int kOffset = FORMAT == 3 ? 8 : FORMAT == 5 ? 16 : FORMAT == 8 ? 32 : 0;
// The file's blocks.
constexpr u32 kFileBlock = FORMAT == 7 || FORMAT == 8 ? 256 : 32;
constexpr u32 kFileBytes = FORMAT == 3   ? 18
                           : FORMAT == 4 ? 20
                           : FORMAT == 5 ? 22
                           : FORMAT == 6 ? 34
                           : FORMAT == 7 ? 144
                                         : 210;

// The records of a matrix, and groups a row.
struct Records {
    u8 *first;
    u32 groups;
};

__device__ __forceinline__ Records records_of(u8 *packed, u32 k) { return {packed, (k + 127) / 128}; }

// Where a record begins.
__device__ __forceinline__ u8 *record_of(const Records &of, u32 block, u32 group) {
    return of.first + ((u64)block * of.groups + group) * kRecord;
}
// Where in a record a lane's word of codes of a row stands, the lane's higher bits, and the row's scales.
__device__ __forceinline__ u32 codes_in_record(u32 row, u32 lane, u32 word) {
    return 512 * word + 64 * row + 16 * (lane ^ (kBytes && kNamed ? row / 2 : row & 2));
}
__device__ __forceinline__ u32 high_in_record(u32 row, u32 lane) {
    return kRecordRows * kQuants + row * kHigh + lane * (kHigh / 4);
}
__device__ __forceinline__ u32 scales_in_record(u32 row) {
    return kRecordRows * (kQuants + kHigh) + row * kScales;
}

// A lane's higher bits, and a row's scales, at their place.
__device__ __forceinline__ uint2 load_high(const u8 *from) {
    if (FORMAT == 5) return make_uint2(*(const u32 *)from, 0);
    if (FORMAT == 8) return *(const uint2 *)from;
    return make_uint2(0, 0);
}
__device__ __forceinline__ void load_scales(const u8 *from, u32 (&words)[kScaleWords]) {
    if (kScaleWords == 2) {
        uint2 two = *(const uint2 *)from;
        words[0] = two.x;
        words[kScaleWords - 1] = two.y;
    }
#pragma unroll
    for (u32 i = 0; i < kScaleWords && kScaleWords % 2 == 1; i++) words[i] = ((const u32 *)from)[i];
#pragma unroll
    for (u32 i = 0; i < kScaleWords / 4; i++) {
        uint4 four = ((const uint4 *)from)[i];
        words[4 * i] = four.x;
        words[4 * i + 1] = four.y;
        words[4 * i + 2] = four.z;
        words[4 * i + 3] = four.w;
    }
}

// What a lane holds of one group of a row.
struct Codes {
    uint4 words[kWords];
    uint2 high;
};
struct Group {
    Codes codes;
    u32 scales[kScaleWords];
};

__device__ __forceinline__ Group load_group(const Records &of, u32 row, u32 group, u32 t) {
    Group v;
    const u8 *record = record_of(of, row / kRecordRows, group);
    row %= kRecordRows;
#pragma unroll
    for (u32 i = 0; i < kWords; i++) v.codes.words[i] = load_streaming(record + codes_in_record(row, t, i));
    v.codes.high = load_high(record + high_in_record(row, t));
    load_scales(record + scales_in_record(row), v.scales);
    return v;
}

__device__ __forceinline__ u32 word_of(const uint4 &v, u32 i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}
// Word i of several; where the index is known to the compiler nothing is compared.
__device__ __forceinline__ u32 word_of(const u32 (&words)[kScaleWords], u32 i) {
    u32 x = words[0];
#pragma unroll
    for (u32 j = 1; j < kScaleWords; j++) x = i == j ? words[j] : x;
    return x;
}

__device__ __forceinline__ float half_of(u32 bits) {
    f16 h;
    h.bits = (u16)bits;
    return to_f32(h);
}

// The scale of a run, and its minimum: of canonical formats as a multiple of the scale, of others as it is.
__device__ __forceinline__ float scale_of(const u32 (&words)[kScaleWords], u32 run) {
    if (kGroups) return __uint_as_float(word_of(words, run * SCALE_WORDS));
    if (FORMAT == 4) return half_of(word_of(words, run));
    if (FORMAT == 8) return half_of(words[kScaleWords - 1]) * (float)(i8)(word_of(words, run / 4) >> (8 * (run & 3)));
    u32 bits = word_of(words, run / 2) >> (16 * (run & 1));
    if (FORMAT == 7) return half_of(words[kScaleWords - 1]) * (float)(bits & 0xff);
    return half_of(bits);
}
__device__ __forceinline__ float min_of(const u32 (&words)[kScaleWords], u32 run) {
    if (!kHasMin) return 0.f;
    if (kGroups) return __uint_as_float(word_of(words, run * SCALE_WORDS + SCALE_WORDS - 1));
    if (FORMAT == 4) return half_of(word_of(words, run) >> 16);
    u32 bits = word_of(words, run / 2) >> (16 * (run & 1));
    return -(half_of(words[kScaleWords - 1] >> 16) * (float)(bits >> 8 & 0xff));
}
// The value of a number under a scale and a minimum of such a kind.
__device__ __forceinline__ float value_of(float number, float scale, float min) {
    return kGroups ? scale * (number + min) : fmaf(scale, number, min);
}

// Bits above the lower four of pair i of a chunk, at their places in the pair.
__device__ __forceinline__ u32 high_of(const Codes &v, u32 chunk, u32 i) {
    if (FORMAT == 5) {
        u32 h = v.high.x >> (8 * chunk);
        return (h >> i & 1) << 4 | (h >> (4 + i) & 1) << 20;
    }
    if (FORMAT == 8) {
        u32 h = (chunk < 2 ? v.high.x : v.high.y) >> (16 * (chunk & 1));
        return (h >> (2 * i) & 3) << 4 | (h >> (8 + 2 * i) & 3) << 20;
    }
    return 0;
}

// Pair i of a chunk as stored numbers: the even value in the lower half of the word.
__device__ __forceinline__ u32 pair_of(const Codes &v, u32 chunk, u32 i) {
    return (word_of(v.words[0], chunk) >> (4 * i) & 0x000f000f) | high_of(v, chunk, i);
}

// Byte j of a lane's eight in a chunk, in formats of bytes.
__device__ __forceinline__ i8 byte_of(const Codes &v, u32 chunk, u32 j) {
    u32 word = word_of(v.words[chunk >= 2 ? kWords - 1 : 0], (chunk & 1) * 2 + j / 4);
    return (i8)(word >> (8 * (j & 3)));
}

// A number from its code, which is small: the lowest bits of 2²³, less that and the offset.
__device__ __forceinline__ float small_number(u32 code) {
    return __uint_as_float(0x4b000000 | code) - (8388608.f + (float)kOffset);
}

// The eight values as floats, without their scale.
__device__ __forceinline__ void numbers_of(const Codes &v, u32 chunk, float (&out)[8]) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        if (kBytes && kNamed) {
            out[2 * i] = number_of((u8)byte_of(v, chunk, 2 * i));
            out[2 * i + 1] = number_of((u8)byte_of(v, chunk, 2 * i + 1));
        } else if (kBytes) {
            out[2 * i] = (float)byte_of(v, chunk, 2 * i);
            out[2 * i + 1] = (float)byte_of(v, chunk, 2 * i + 1);
        } else if (kNamed) {
            u32 pair = pair_of(v, chunk, i);
            out[2 * i] = number_of(pair & 15);
            out[2 * i + 1] = number_of(pair >> 16);
        } else {
            u32 pair = pair_of(v, chunk, i);
            out[2 * i] = small_number(pair & 0xffff);
            out[2 * i + 1] = small_number(pair >> 16);
        }
    }
}
// And as values.
__device__ __forceinline__ void values_of(const Group &v, u32 chunk, float (&out)[8]) {
    numbers_of(v.codes, chunk, out);
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        u32 run = (32 * chunk + 16 * half) / kRun;
        float scale = scale_of(v.scales, run), min = min_of(v.scales, run);
#pragma unroll
        for (u32 i = 0; i < 4; i++) out[4 * half + i] = value_of(out[4 * half + i], scale, min);
    }
}

#if !defined(PORTABLE)
// The four pairs as operands of the matrix unit, still without their scale: whole numbers up to 128, and floats of 8
// and of 4 bits, are exact in both types. A small number under the exponent of 128 (bf16) or 1024 (f16) is that power
// plus the number.
template <typename T> __device__ __forceinline__ void operands_of(const Codes &v, u32 chunk, u32 (&out)[4]) {
    if (kBytes || kNamed) {
        float numbers[8];
        numbers_of(v, chunk, numbers);
#pragma unroll
        for (u32 i = 0; i < 4; i++) out[i] = pack2<T>(numbers[2 * i], numbers[2 * i + 1]);
    } else {
        constexpr bool wide = sizeof(T) == 2;
        static_assert(wide, "matrix units take 16-bit types");
        u32 one = pack2<T>(1.f, 1.f);
        u32 power = pack2<T>(1.f, 2.f) == 0x40003f80 ? 0x43004300 : 0x64006400;
        float base = power == 0x43004300 ? 128.f : 1024.f;
        u32 less = pack2<T>(-(base + kOffset), -(base + kOffset));
#pragma unroll
        for (u32 i = 0; i < 4; i++) out[i] = fma2<T>(pair_of(v, chunk, i) | power, one, less);
    }
}
#endif
