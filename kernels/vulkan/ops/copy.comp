#version 460
#extension GL_GOOGLE_include_directive : enable
// `copy`, `fill`, `copy_blocks` (units of 16 to 1 bytes, any type); with FROM and TO defined `cast`; with ACT defined `fill_random`.
//
// Definitions: none; or FROM and TO = f32, f16 or bf16; or ACT = f32, f16 or bf16.
// check: copy_16 copy_8 copy_4 copy_2 copy_1 fill_16 fill_8 fill_4 fill_2 fill_1
// check: copy_blocks_16 copy_blocks_8 copy_blocks_4 copy_blocks_2 copy_blocks_1
// check: cast_vector cast_scalar -DFROM=f32 -DTO=f32
// check: cast_vector cast_scalar -DFROM=f32 -DTO=f16
// check: cast_vector cast_scalar -DFROM=f32 -DTO=bf16
// check: cast_vector cast_scalar -DFROM=f16 -DTO=f32
// check: cast_vector cast_scalar -DFROM=f16 -DTO=f16
// check: cast_vector cast_scalar -DFROM=f16 -DTO=bf16
// check: cast_vector cast_scalar -DFROM=bf16 -DTO=f32
// check: cast_vector cast_scalar -DFROM=bf16 -DTO=f16
// check: cast_vector cast_scalar -DFROM=bf16 -DTO=bf16
// check: fill_random_vector fill_random_scalar -DACT=f32
// check: fill_random_vector fill_random_scalar -DACT=f16
// check: fill_random_vector fill_random_scalar -DACT=bf16
#include "common.glsl"

#if defined(FROM)

#if defined(ENTRY_cast_vector)
#define N CAST_GROUP
#else
#define N 1
#endif
#include "vector.glsl"

// `total` groups of N elements, `groups` of them a row.
PARAMETERS(u64 x; u64 x_stride; u64 to; u64 to_stride; u32 groups; u32 total;)
void main() {
    u32 i = gl_WorkGroupID.x * THREADS + gl_LocalInvocationIndex;
    if (i >= p.total) return;
    u32 row = i / p.groups, column = (i - row * p.groups) * N;
    float v[N];
    GET(FROM, p.x + (row * p.x_stride + column) * SIZE(FROM), v);
    PUT(TO, p.to + (row * p.to_stride + column) * SIZE(TO), v);
}

#elif defined(ACT)

// Elements of 16 bytes, which a thread makes at once: its share of whole Philox blocks.
#define N (16 / ACT_BYTES)
#include "vector.glsl"

// `counter` belongs to the first element.
PARAMETERS(u64 to; u64 count; u32 counter; u32 key_low; u32 key_high; float scale;)
void main() {
    u64 groups = (p.count + N - 1) / N;
    for (u64 i = u64(gl_WorkGroupID.x) * THREADS + gl_LocalInvocationIndex; i < groups; i += u64(gl_NumWorkGroups.x) * THREADS) {
        float v[N];
        for (u32 k = 0; k < N; k += 4) {
            uvec4 words = philox(p.counter + u32(i * (N / 4)) + k / 4, p.key_low, p.key_high);
            for (u32 j = 0; j < 4; j++) v[k + j] = (float(words[j] >> 8) * (1.0 / 8388608.0) - 1.0) * p.scale;
        }
        u64 to = p.to + i * 16;
#if defined(ENTRY_fill_random_vector)
        if ((i + 1) * N <= p.count) {
            PUT(ACT, to, v);
            continue;
        }
#endif
        for (u32 k = 0; k < N; k++)
            if (i * N + k < p.count) STORE(ACT, to, k, v[k]);
    }
}

#else

#if defined(ENTRY_copy_16) || defined(ENTRY_fill_16) || defined(ENTRY_copy_blocks_16)
#define UNIT 16
#define Units Quads
#elif defined(ENTRY_copy_8) || defined(ENTRY_fill_8) || defined(ENTRY_copy_blocks_8)
#define UNIT 8
#define Units Pairs
#elif defined(ENTRY_copy_4) || defined(ENTRY_fill_4) || defined(ENTRY_copy_blocks_4)
#define UNIT 4
#define Units Words
#define Unit uint
#elif defined(ENTRY_copy_2) || defined(ENTRY_fill_2) || defined(ENTRY_copy_blocks_2)
#define UNIT 2
#define Units Halves
#define Unit uint16_t
#else
#define UNIT 1
#define Units Bytes
#define Unit uint8_t
#endif

// Units of a thread: the launch counts on it.
#define UNROLL 4

// Byte of unit i of a tensor of three axes: it lies at (i / (n1 * n2), i / n2 mod n1, i mod n2); strides count units.
u64 place(u32 i, u64 s0, u64 s1, u64 s2, u32 n1, u32 n2) {
    u32 row = i / n2, column = i - row * n2, outer = row / n1;
    return (outer * s0 + (row - outer * n1) * s1 + column * s2) * UNIT;
}

#if defined(ENTRY_copy_16) || defined(ENTRY_copy_8) || defined(ENTRY_copy_4) || defined(ENTRY_copy_2) || defined(ENTRY_copy_1)

PARAMETERS(u64 x; u64 f0; u64 f1; u64 f2; u64 to; u64 t0; u64 t1; u64 t2; u32 n1; u32 n2; u32 total;)
void main() {
    u32 first = gl_WorkGroupID.x * (THREADS * UNROLL) + gl_LocalInvocationIndex;
    for (u32 k = 0; k < UNROLL; k++) {
        u32 i = first + k * THREADS;
        if (i >= p.total) return;
        u64 from = p.x + place(i, p.f0, p.f1, p.f2, p.n1, p.n2), to = p.to + place(i, p.t0, p.t1, p.t2, p.n1, p.n2);
        Units(to).at[0] = Units(from).at[0];
    }
}

#elif defined(ENTRY_fill_16) || defined(ENTRY_fill_8) || defined(ENTRY_fill_4) || defined(ENTRY_fill_2) || defined(ENTRY_fill_1)

// The nearest whole number within bounds, ties to even; NaN is 0.
i32 whole(float value, float low, float high) { return is_nan(value) ? 0 : i32(roundEven(clamp(value, low, high))); }

// The value in every element of eight bytes. `dtype` is the contract's code.
uvec2 pattern_of(float value, u32 dtype) {
    switch (dtype) {
    case 1: return uvec2(floatBitsToUint(value));
    case 2: return uvec2(f16_bits(value) * 0x10001u);
    case 3: return uvec2(bf16_bits(value) * 0x10001u);
    // The largest float below 2^31.
    case 4: return uvec2(value >= 2147483648.0 ? 0x7fffffffu : u32(whole(value, -2147483648.0, 2147483520.0)));
    case 5: return uvec2((u32(whole(value, -128.0, 127.0)) & 0xffu) * 0x01010101u);
    case 6: return uvec2(e4m3_bits(value) * 0x01010101u);
    case 7: {
        // Whole numbers beyond 2^31 are floats without a fraction.
        int64_t wide = abs(value) < 2147483648.0 ? int64_t(whole(value, -2147483648.0, 2147483520.0)) : int64_t(value);
        return uvec2(u32(wide), u32(wide >> 32));
    }
    default: return uvec2((u32(whole(value, 0.0, 255.0)) & 0xffu) * 0x01010101u);
    }
}

PARAMETERS(u64 to; u64 t0; u64 t1; u64 t2; u32 n1; u32 n2; u32 total; float value; u32 dtype;)
void main() {
    uvec2 pattern = pattern_of(p.value, p.dtype);
    u32 first = gl_WorkGroupID.x * (THREADS * UNROLL) + gl_LocalInvocationIndex;
    for (u32 k = 0; k < UNROLL; k++) {
        u32 i = first + k * THREADS;
        if (i >= p.total) return;
        u64 to = p.to + place(i, p.t0, p.t1, p.t2, p.n1, p.n2);
#if UNIT == 16
        Quads(to).at[0] = pattern.xyxy;
#elif UNIT == 8
        Pairs(to).at[0] = pattern;
#else
        // The lowest bytes of the pattern.
        Units(to).at[0] = Unit(pattern.x);
#endif
    }
}

#else

// A pair names a source and a destination page; a page outside the cache (-1, or a caller's bug) copies nothing. A block of `units`
// each; `pitch` in units.
PARAMETERS(u64 pairs; u32 pair_stride; u64 cache; u64 pitch; u32 units; u32 pages;)
void main() {
    u64 pair = p.pairs + u64(gl_WorkGroupID.x) * p.pair_stride * 4;
    u32 from = Words(pair).at[0], to = Words(pair).at[1];
    if (from >= p.pages || to >= p.pages) return;
    u64 source = p.cache + from * p.pitch * UNIT, target = p.cache + to * p.pitch * UNIT;
    u32 step = gl_NumWorkGroups.y * THREADS;
    for (u32 i = gl_WorkGroupID.y * THREADS + gl_LocalInvocationIndex; i < p.units; i += step)
        Units(target).at[i] = Units(source).at[i];
}

#endif
#endif
