#version 460
#extension GL_GOOGLE_include_directive : enable
// `copy` (units of 16 to 1 bytes, any type); with ACT defined `fill_random`.
//
// Definitions: none; or ACT = f32, f16 or bf16.
// revision: 1
// check: copy_16 copy_8 copy_4 copy_2 copy_1
// check: fill_random_vector fill_random_scalar -DACT=f32
// check: fill_random_vector fill_random_scalar -DACT=f16
// check: fill_random_vector fill_random_scalar -DACT=bf16
#include "common.glsl"

#if defined(ACT)

// Elements of 16 bytes, which a thread makes at once: its share of whole Philox blocks.
#define N (16 / ACT_BYTES)
#include "vector.glsl"

// `counter` belongs to the first element.
PARAMETERS(u64 to; u64 count; u32 counter; u32 key_low; u32 key_high; float scale;)
void main() {
    u64 groups = (p.count + N - 1) / N;
    for (u64 i = u64(gl_WorkGroupID.x) * THREADS + gl_LocalInvocationIndex; i < groups;
         i += u64(gl_NumWorkGroups.x) * THREADS) {
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

#if defined(ENTRY_copy_16)
#define UNIT 16
#define Units Quads
#elif defined(ENTRY_copy_8)
#define UNIT 8
#define Units Pairs
#elif defined(ENTRY_copy_4)
#define UNIT 4
#define Units Words
#elif defined(ENTRY_copy_2)
#define UNIT 2
#define Units Halves
#elif defined(ENTRY_copy_1)
#define UNIT 1
#define Units Bytes
#endif

// Units of a thread: the launch counts on it.
#define UNROLL 4

// Byte of unit i of a tensor of three axes: it lies at (i / (n1 * n2), i / n2 mod n1, i mod n2); strides count units.
u64 place(u32 i, u64 s0, u64 s1, u64 s2, u32 n1, u32 n2) {
    u32 row = i / n2, column = i - row * n2, outer = row / n1;
    return (outer * s0 + (row - outer * n1) * s1 + column * s2) * UNIT;
}

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

#endif
