// `copy` (units of 16 to 1 bytes, any type); with ACT defined `fill_random`.
//
// Definitions: none; or ACT = f32, f16 or bf16.
// revision: 1
// check:
// check: -DACT=f32
// check: -DACT=f16
// check: -DACT=bf16
#include "common.h"

#if defined(ACT)

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

#define ENTRY(size, UNIT)                                                                                              \
    KERNEL void copy_##size(const __global UNIT *x, u64 f0, u64 f1, u64 f2, __global UNIT *out, u64 t0, u64 t1,        \
                            u64 t2, u32 n1, u32 n2, u32 total) {                                                       \
        u32 first = get_group_id(0) * (get_local_size(0) * UNROLL) + get_local_id(0);                                  \
        for (u32 k = 0; k < UNROLL; k++) {                                                                             \
            u32 i = first + k * get_local_size(0);                                                                     \
            if (i < total) out[place_of(i, n1, n2, t0, t1, t2)] = x[place_of(i, n1, n2, f0, f1, f2)];                  \
        }                                                                                                              \
    }

ENTRY(16, uint4)
ENTRY(8, u64)
ENTRY(4, u32)
ENTRY(2, u16)
ENTRY(1, u8)

#endif
