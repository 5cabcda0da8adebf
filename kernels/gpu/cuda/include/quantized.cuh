// Weights in blocks as linears hold them, and experts those in canonical formats: planes of quants, high bits, scales
// and block scales, each row by row, in groups of four chunks of 32 values. Lane t of four has eight values of a chunk,
// depths 4t .. 4t+3 and 16+4t .. 16+4t+3 (so that a step of the matrix unit stays within 16 values, the finest scale of
// any format), and 16 bytes of nibbles hold its values of a whole group.
//
// Value i of a lane is in nibble i / 2 (even i) or 4 + i / 2 (odd i) of its word: masks then give pairs side by side.
// Fifth bits: one byte a chunk, bit i / 2 (even) or 4 + i / 2. Upper pairs (Q6_K): two bytes a chunk, bits 2·(i / 2) of
// the first (even) or second. Rows whose depth is no whole number of groups end in chunks with scale 0.
//
// Canonical formats (groups.h) have no planes but records, of eight rows' codes and scales of a group, so that a tile's
// weights are a few long runs of memory: [n / 8 rounded up][groups][`kRecord` bytes]. Codes lie as above, in words of
// 16 bytes: [words of a lane][row][lane], where lanes of rows 2, 3, 6 and 7 swap places with those two further on. Of
// 8-bit floats lane t of row r stands at t ^ (r / 2), so that Hopper's matrix units read a record as it lies (rows of
// 64 bytes with swapped units). Scales follow, [row], f32, as many as the format has for 128 values. Behind each stands
// its minimum as a multiple of it where there is one: a value is scale · (number + multiple). Zero points are whole
// numbers there.
//
// Definition: FORMAT, `WeightFormat`'s code: 3 Q4_0, 4 Q4_1, 5 Q5_0, 6 Q8_0, 7 Q4_K, 8 Q6_K, 40 to 55 canonical.
// revision: 2
#pragma once
#include "mma.cuh"
#if FORMAT >= 40
#include "blocks.cuh"
#else
// Of canonical formats; without use elsewhere.
#define GROUP_VALUES 32
#define CODE_BITS 4
#define SCALE_WORDS 1
__device__ __forceinline__ float number_of(u32 code) { return (float)code; }
#endif

constexpr bool kGroups = FORMAT >= 40;
constexpr bool kBytes = kGroups ? CODE_BITS == 8 : FORMAT == 6;
constexpr bool kHasMin = kGroups ? SCALE_WORDS == 2 : FORMAT == 4 || FORMAT == 7;
constexpr bool kFine = kGroups ? GROUP_VALUES == 16 : FORMAT == 8;
// Whether a code is the number that it counts, or names it.
constexpr bool kNamed = FORMAT >= 48;
constexpr bool kBlocks = FORMAT == 7 || FORMAT == 8;
// Bytes a group of 128 values in each plane.
constexpr u32 kQuants = kBytes ? 128 : 64;
constexpr u32 kHigh = FORMAT == 5 ? 16 : FORMAT == 8 ? 32 : 0;
constexpr u32 kFactors = 128 / GROUP_VALUES * SCALE_WORDS;
constexpr u32 kScales = kGroups ? 4 * kFactors : FORMAT == 4 ? 16 : 8;
// Rows of a record, and its bytes.
constexpr u32 kRecordRows = 8;
constexpr u32 kRecord = kRecordRows * (kQuants + kScales);
// What the stored number exceeds the value's factor by.
constexpr int kOffset = FORMAT == 3 ? 8 : FORMAT == 5 ? 16 : FORMAT == 8 ? 32 : 0;
// The file's blocks.
constexpr u32 kFileBlock = kBlocks ? 256 : 32;
constexpr u32 kFileBytes = FORMAT == 3   ? 18
                           : FORMAT == 4 ? 20
                           : FORMAT == 5 ? 22
                           : FORMAT == 6 ? 34
                           : FORMAT == 7 ? 144
                                         : 210;

// The planes of a matrix, and groups a row. The block plane has one word for two groups.
struct Planes {
    u8 *quants, *high, *scales, *blocks;
    u32 groups;
};

__device__ __forceinline__ u64 plane_bytes(u64 bytes) { return (bytes + 255) / 256 * 256; }

// The host computes the same sizes: ops/linear/layout.rs. Records begin at `quants`.
__device__ __forceinline__ Planes planes_of(u8 *packed, u32 n, u32 k) {
    Planes p;
    p.groups = (k + 127) / 128;
    u64 all = (u64)n * p.groups;
    p.quants = packed;
    p.high = p.quants + plane_bytes(all * kQuants);
    p.scales = p.high + plane_bytes(all * kHigh);
    p.blocks = p.scales + plane_bytes(all * kScales);
    return p;
}

// Where a record begins.
__device__ __forceinline__ u8 *record_of(const Planes &p, u32 block, u32 group) {
    return p.quants + ((u64)block * p.groups + group) * kRecord;
}
// Where in a record a lane's word of codes of a row stands, and the row's scales.
__device__ __forceinline__ u32 codes_in_record(u32 row, u32 lane, u32 word) {
    return 512 * word + 64 * row + 16 * (lane ^ (kBytes && kNamed ? row / 2 : row & 2));
}
__device__ __forceinline__ u32 scales_in_record(u32 row) { return kRecordRows * kQuants + row * kScales; }

// A lane's word (one of 16 bytes, of two in formats of bytes) of a group of a row, and the group's scales.
__device__ __forceinline__ u8 *codes_of(const Planes &p, u64 row, u32 group, u32 lane, u32 word) {
    if (kGroups) return record_of(p, (u32)(row / 8), group) + codes_in_record(row % 8, lane, word);
    return p.quants + (row * p.groups + group) * kQuants + lane * (kQuants / 4) + 16 * word;
}
__device__ __forceinline__ u8 *scales_of(const Planes &p, u64 row, u32 group) {
    if (kGroups) return record_of(p, (u32)(row / 8), group) + scales_in_record(row % 8);
    return p.scales + (row * p.groups + group) * kScales;
}

// What lane t holds of one group of a row. `factors` are canonical scales.
struct Group {
    uint4 quants[kBytes ? 2 : 1];
    uint2 high;
    uint4 scales;
    u32 block;
    float factors[kGroups ? kFactors : 1];
};

__device__ __forceinline__ uint2 load_streaming8(const void *p) {
#if defined(PORTABLE)
    return *(const uint2 *)p;
#else
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
#endif
}

__device__ __forceinline__ Group load_group(const Planes &p, u32 row, u32 group, u32 t) {
    Group v;
    u64 at = (u64)row * p.groups + group;
    v.quants[0] = load_streaming(codes_of(p, row, group, t, 0));
    if (kBytes) v.quants[kBytes] = load_streaming(codes_of(p, row, group, t, 1));
    if (FORMAT == 5) v.high.x = *(const u32 *)(p.high + at * kHigh + 4 * t);
    if (FORMAT == 8) v.high = load_streaming8(p.high + at * kHigh + 8 * t);
    if (kGroups) {
        const u8 *scales = scales_of(p, row, group);
        if (kFactors == 1) v.factors[0] = *(const float *)scales;
        if (kFactors == 2) {
            uint2 two = load_streaming8(scales);
            v.factors[0] = __uint_as_float(two.x);
            v.factors[kFactors - 1] = __uint_as_float(two.y);
        }
#pragma unroll
        for (u32 i = 0; i < kFactors / 4; i++) {
            uint4 four = load_streaming(scales + 16 * i);
            u32 bits[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (u32 j = 0; j < 4; j++) v.factors[4 * i + j] = __uint_as_float(bits[j]);
        }
    } else if (kScales == 16) {
        v.scales = load_streaming(p.scales + at * kScales);
    } else {
        uint2 s = load_streaming8(p.scales + at * kScales);
        v.scales.x = s.x;
        v.scales.y = s.y;
    }
    if (kBlocks) v.block = *(const u32 *)(p.blocks + ((u64)row * (p.groups / 2) + group / 2) * 4);
    return v;
}

__device__ __forceinline__ u32 word_of(const uint4 &v, u32 i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Canonical scale i; where the index is known to the compiler nothing is compared.
__device__ __forceinline__ float factor_of(const Group &v, u32 i) {
    float x = v.factors[0];
#pragma unroll
    for (u32 j = 1; j < (kGroups ? kFactors : 1); j++) x = i == j ? v.factors[j] : x;
    return x;
}

__device__ __forceinline__ float half_of(u32 bits) {
    f16 h;
    h.bits = (u16)bits;
    return to_f32(h);
}

// Scales of the two halves of a chunk, and what is added to the values of each.
__device__ __forceinline__ void scales_of(const Group &v, u32 chunk, float &first, float &second, float &add,
                                          float &second_add) {
    add = second_add = 0.f;
    if (kGroups) {
        u32 low = 32 * chunk / GROUP_VALUES * SCALE_WORDS, high = (32 * chunk + 16) / GROUP_VALUES * SCALE_WORDS;
        first = factor_of(v, low);
        second = factor_of(v, high);
        if (kHasMin) {
            add = first * factor_of(v, low + 1);
            second_add = second * factor_of(v, high + 1);
        }
        return;
    }
    if (FORMAT == 4) {
        u32 word = word_of(v.scales, chunk);
        first = second = half_of(word);
        add = second_add = half_of(word >> 16);
        return;
    }
    u32 bits = (chunk < 2 ? v.scales.x : v.scales.y) >> (16 * (chunk & 1)) & 0xffff;
    if (FORMAT == 7) {
        first = second = half_of(v.block) * (float)(bits & 0xff);
        add = second_add = -(half_of(v.block >> 16) * (float)(bits >> 8));
    } else if (FORMAT == 8) {
        float d = half_of(v.block);
        first = d * (float)(i8)(bits & 0xff);
        second = d * (float)(i8)(bits >> 8);
    } else {
        first = second = half_of(bits);
    }
}

// Pair i of a chunk as stored numbers: the even value in the lower half of the word.
__device__ __forceinline__ u32 pair_of(const Group &v, u32 chunk, u32 i) {
    u32 pair = word_of(v.quants[0], chunk) >> (4 * i) & 0x000f000f;
    if (FORMAT == 5) {
        u32 h = v.high.x >> (8 * chunk);
        pair |= (h >> i & 1) << 4 | (h >> (4 + i) & 1) << 20;
    }
    if (FORMAT == 8) {
        u32 h = (chunk < 2 ? v.high.x : v.high.y) >> (16 * (chunk & 1));
        pair |= (h >> (2 * i) & 3) << 4 | (h >> (8 + 2 * i) & 3) << 20;
    }
    return pair;
}

// Byte j of a lane's eight in a chunk, in formats of bytes.
__device__ __forceinline__ i8 byte_of(const Group &v, u32 chunk, u32 j) {
    u32 word = word_of(v.quants[kBytes && chunk >= 2 ? kBytes : 0], (chunk & 1) * 2 + j / 4);
    return (i8)(word >> (8 * (j & 3)));
}

// The eight values as floats, without their scale.
__device__ __forceinline__ void numbers_of(const Group &v, u32 chunk, float (&out)[8]) {
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
            out[2 * i] = (float)((int)(pair & 0xffff) - kOffset);
            out[2 * i + 1] = (float)((int)(pair >> 16) - kOffset);
        }
    }
}

#if !defined(PORTABLE)
// The four pairs as operands of the matrix unit, still without their scale: whole numbers up to 128, and floats of 8
// and of 4 bits, are exact in both types. A small number under the exponent of 128 (bf16) or 1024 (f16) is that power
// plus the number.
template <typename T> __device__ __forceinline__ void operands_of(const Group &v, u32 chunk, u32 (&out)[4]) {
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
