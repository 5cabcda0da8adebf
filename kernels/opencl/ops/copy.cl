// `copy`, `fill`, `copy_blocks` (units of 16 to 1 bytes, any type); with FROM and TO defined `cast`; with ACT defined `fill_random`.
//
// Definitions: none; or FROM and TO = f32, f16 or bf16; or ACT = f32, f16 or bf16.
// check:
// check: -DFROM=f32 -DTO=f32
// check: -DFROM=f32 -DTO=f16
// check: -DFROM=f16 -DTO=bf16
// check: -DFROM=bf16 -DTO=f32
// check: -DACT=f32
// check: -DACT=f16
// check: -DACT=bf16
#include "common.h"

#if defined(FROM)

// `total` groups of N elements, `groups` of them a row.
#define CAST(name, N)                                                                                                      \
    KERNEL void name(const __global FROM *x, u64 x_stride, __global TO *out, u64 out_stride, u32 groups, u32 total) {    \
        u32 i = global_index(), row = i / groups, column = (i - row * groups) * N;                                         \
        if (i < total) STOREN(N, TO, LOADN(N, FROM, x, row * x_stride + column), out, row * out_stride + column);          \
    }
// Two types of four bytes move four elements at a time, all others eight.
#if CAT(IS_WIDE_, FROM) && CAT(IS_WIDE_, TO)
CAST(cast_vector, 4)
#else
CAST(cast_vector, 8)
#endif
CAST(cast_scalar, 1)

#elif defined(ACT)

// A work-item makes 16 bytes at once: its share of whole Philox blocks. `counter` belongs to the first element.
INLINE void fill_values(__global ACT *out, u64 count, u32 counter, u32 key_low, u32 key_high, float scale) {
    const u32 each = PER_VECTOR(ACT);
    u64 groups = (count + each - 1) / each, step = get_global_size(0);
    for (u64 i = get_global_id(0); i < groups; i += step) {
        for (u32 k = 0; k < each; k += 4) {
            uint4 words = philox(counter + (u32)(i * (each / 4)) + k / 4, key_low, key_high);
            float4 values = (convert_float4(words >> 8) * (1.f / 8388608.f) - 1.f) * scale;
            u64 at = i * each + k;
            if (at + 4 <= count) {
                STOREN(4, ACT, values, out, at);
            } else {
                float part[4] = {values.s0, values.s1, values.s2, values.s3};
                for (u32 j = 0; at + j < count; j++) STORE(ACT, part[j], out, at + j);
            }
        }
    }
}

KERNEL void fill_random_vector(__global ACT *out, u64 count, u32 counter, u32 key_low, u32 key_high, float scale) {
    fill_values(out, count, counter, key_low, key_high, scale);
}
KERNEL void fill_random_scalar(__global ACT *out, u64 count, u32 counter, u32 key_low, u32 key_high, float scale) {
    fill_values(out, count, counter, key_low, key_high, scale);
}

#else

// Units that a work-item takes, a group of work-items apart.
#define UNROLL 4

// Unit i of a tensor of three axes lies at (i / (n1 * n2), i / n2 mod n1, i mod n2); strides count units.
INLINE u64 place_of(u32 i, u32 n1, u32 n2, u64 s0, u64 s1, u64 s2) {
    u32 row = i / n2, column = i - row * n2, outer = row / n1;
    return outer * s0 + (row - outer * n1) * s1 + column * s2;
}

// The value in every element of eight bytes. `dtype` is the contract's code.
INLINE u64 pattern_of(float value, u32 dtype) {
    switch (dtype) {
    case 1: return 0x0000000100000001ul * as_uint(value);
    case 2: return 0x0001000100010001ul * f32_to_f16(value);
    case 3: return 0x0001000100010001ul * f32_to_bf16(value);
    case 4: return 0x0000000100000001ul * (u32)convert_int_sat_rte(value);
    case 5: return 0x0101010101010101ul * (u8)convert_char_sat_rte(value);
    case 6: return 0x0101010101010101ul * f32_to_e4m3(value);
    case 7: return (u64)convert_long_sat_rte(value);
    default: return 0x0101010101010101ul * convert_uchar_sat_rte(value);
    }
}
#define SIXTEEN(pattern) as_uint4((ulong2)(pattern))
#define EIGHT(pattern) (pattern)
#define FOUR(pattern) (u32)(pattern)
#define TWO(pattern) (u16)(pattern)
#define ONE(pattern) (u8)(pattern)

// copy_blocks: pair p names a source and a destination page; a page outside the cache (-1, or a caller's bug) copies nothing. A block of
// `units` each; `pitch` in units.
#define ENTRIES(size, UNIT, OF_PATTERN)                                                                                    \
    KERNEL void copy_##size(const __global UNIT *x, u64 f0, u64 f1, u64 f2, __global UNIT *out, u64 t0, u64 t1, u64 t2,  \
                              u32 n1, u32 n2, u32 total) {                                                                 \
        u32 first = get_group_id(0) * (get_local_size(0) * UNROLL) + get_local_id(0);                                      \
        for (u32 k = 0; k < UNROLL; k++) {                                                                                 \
            u32 i = first + k * get_local_size(0);                                                                         \
            if (i < total) out[place_of(i, n1, n2, t0, t1, t2)] = x[place_of(i, n1, n2, f0, f1, f2)];                      \
        }                                                                                                                  \
    }                                                                                                                      \
    KERNEL void fill_##size(__global UNIT *out, u64 t0, u64 t1, u64 t2, u32 n1, u32 n2, u32 total, float value, u32 dtype) { \
        u64 pattern = pattern_of(value, dtype);                                                                            \
        u32 first = get_group_id(0) * (get_local_size(0) * UNROLL) + get_local_id(0);                                      \
        for (u32 k = 0; k < UNROLL; k++) {                                                                                 \
            u32 i = first + k * get_local_size(0);                                                                         \
            if (i < total) out[place_of(i, n1, n2, t0, t1, t2)] = OF_PATTERN(pattern);                                     \
        }                                                                                                                  \
    }                                                                                                                      \
    KERNEL void copy_blocks_##size(const __global i32 *pairs, u32 pair_stride, __global UNIT *cache, u64 pitch, u32 units, \
                                     u32 pages) {                                                                          \
        u64 pair = get_group_id(0) * (u64)pair_stride;                                                                     \
        u32 from = (u32)pairs[pair], to = (u32)pairs[pair + 1], step = get_num_groups(1) * get_local_size(0);              \
        if (from >= pages || to >= pages) return;                                                                          \
        for (u32 i = get_group_id(1) * get_local_size(0) + get_local_id(0); i < units; i += step)                          \
            cache[to * pitch + i] = cache[from * pitch + i];                                                               \
    }

ENTRIES(16, uint4, SIXTEEN)
ENTRIES(8, u64, EIGHT)
ENTRIES(4, u32, FOUR)
ENTRIES(2, u16, TWO)
ENTRIES(1, u8, ONE)

#endif
