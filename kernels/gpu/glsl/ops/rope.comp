#version 460
#extension GL_GOOGLE_include_directive : enable
// `rope`: rotates pairs of each head by table values of the token's position, in place. A thread turns some
// neighbouring pairs of one head; `_vector` needs rotary_dim / 2 (halves) or rotary_dim (neighbours) in whole 16-byte
// groups, `_scalar` turns a pair.
//
// Definitions: ACT = f32, f16 or bf16, the type of x; INTERLEAVED = 0: pairs (i, i + rotary_dim / 2), 1: pairs (2i, 2i
// + 1).
// revision: 1
// check: rope_vector rope_scalar -DACT=f32 -DINTERLEAVED=0
// check: rope_vector rope_scalar -DACT=f16 -DINTERLEAVED=0
// check: rope_vector rope_scalar -DACT=bf16 -DINTERLEAVED=0
// check: rope_vector rope_scalar -DACT=f32 -DINTERLEAVED=1
// check: rope_vector rope_scalar -DACT=f16 -DINTERLEAVED=1
// check: rope_vector rope_scalar -DACT=bf16 -DINTERLEAVED=1
#include "common.glsl"

#if defined(ENTRY_rope_vector)
#define N (16 / ACT_BYTES)
#else
#define N 1
#endif
#include "vector.glsl"

// Pairs of a thread: two groups of N values hold them, or one of neighbours.
#if INTERLEAVED && N > 1
#define PAIRS (N / 2)
#else
#define PAIRS N
#endif

// `groups` threads a head, `total` threads. A position outside the table (a caller's bug) leaves its head as it is.
PARAMETERS(u64 positions; u64 table; u32 num_positions; u64 x; u64 token_stride; u64 head_stride; u32 heads;
           u32 half_dim; u32 groups; u32 total;)
void main() {
    u32 i = gl_WorkGroupID.x * THREADS + gl_LocalInvocationIndex;
    if (i >= p.total) return;
    u32 head = i / p.groups, pair = (i - head * p.groups) * PAIRS, token = head / p.heads;
    head -= token * p.heads;
    u32 position = Words(p.positions).at[token];
    if (position >= p.num_positions) return;
    u64 cosines = p.table + (u64(position) * (2 * p.half_dim) + pair) * 4, sines = cosines + u64(p.half_dim) * 4;
    u64 at = p.x + (token * p.token_stride + head * p.head_stride) * SIZE(ACT);
#if INTERLEAVED && N > 1
    u64 place = at + 2 * pair * SIZE(ACT);
    float v[N];
    GET(ACT, place, v);
    for (u32 k = 0; k < PAIRS; k++) {
        float c = Floats(cosines).at[k], s = Floats(sines).at[k], a = v[2 * k], b = v[2 * k + 1];
        v[2 * k] = a * c - b * s;
        v[2 * k + 1] = b * c + a * s;
    }
    PUT(ACT, place, v);
#else
#if INTERLEAVED
    u64 low = at + 2 * pair * SIZE(ACT), high = low + SIZE(ACT);
#else
    u64 low = at + pair * SIZE(ACT), high = low + p.half_dim * SIZE(ACT);
#endif
    float a[N], b[N];
    GET(ACT, low, a);
    GET(ACT, high, b);
    for (u32 k = 0; k < PAIRS; k++) {
        float c = Floats(cosines).at[k], s = Floats(sines).at[k], turned = a[k] * c - b[k] * s;
        b[k] = b[k] * c + a[k] * s;
        a[k] = turned;
    }
    PUT(ACT, low, a);
    PUT(ACT, high, b);
#endif
}
