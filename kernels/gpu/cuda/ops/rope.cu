// `rope`: rotates pairs of each head by table values of the token's position, in place. A thread turns some
// neighbouring pairs of one head; `_vector` needs rotary_dim / 2 (halves) or rotary_dim (neighbours) in whole 16-byte
// groups, `_scalar` turns a pair.
//
// Definitions: ACT = f32, f16 or bf16, the type of x; INTERLEAVED = 0: pairs (i, i + rotary_dim / 2), 1: pairs (2i, 2i
// + 1).
// revision: 1
// check: -DACT=f32 -DINTERLEAVED=0
// check: -DACT=f16 -DINTERLEAVED=0
// check: -DACT=bf16 -DINTERLEAVED=0
// check: -DACT=f32 -DINTERLEAVED=1
// check: -DACT=f16 -DINTERLEAVED=1
// check: -DACT=bf16 -DINTERLEAVED=1
#include "vector.cuh"

// `groups` threads a head, `total` threads. A position outside the table (a caller's bug) leaves its head as it is.
template <int PAIRS>
__device__ __forceinline__ void rotate(const i32 *positions, const float *table, u32 num_positions, ACT *x,
                                       u64 token_stride, u64 head_stride, u32 heads, u32 half, u32 groups, u32 total) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    wait_for_previous();
    if (i >= total) return;
    u32 head = i / groups, pair = (i - head * groups) * PAIRS;
    u32 token = head / heads;
    head -= token * heads;
    u32 position = (u32)positions[token];
    if (position >= num_positions) return;
    const float *cosines = table + (u64)position * (2 * half) + pair, *sines = cosines + half;
    ACT *at = x + token * token_stride + head * head_stride;
    float c[PAIRS], s[PAIRS];
#pragma unroll
    for (int k = 0; k < PAIRS; k++) c[k] = cosines[k], s[k] = sines[k];
#if INTERLEAVED
    // With one pair a thread the two neighbours are loaded singly: their address may be odd.
    constexpr int N = PAIRS == 1 ? 1 : 2 * PAIRS, GROUPS = 2 * PAIRS / N;
    Group<ACT, N> group[GROUPS];
    float v[2 * PAIRS];
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        group[g].load(at + 2 * pair + g * N);
        float part[N];
        group[g].get(part);
#pragma unroll
        for (int k = 0; k < N; k++) v[g * N + k] = part[k];
    }
    let_next_start();
#pragma unroll
    for (int k = 0; k < PAIRS; k++) {
        float a = v[2 * k], b = v[2 * k + 1];
        v[2 * k] = a * c[k] - b * s[k];
        v[2 * k + 1] = b * c[k] + a * s[k];
    }
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        float part[N];
#pragma unroll
        for (int k = 0; k < N; k++) part[k] = v[g * N + k];
        group[g].set(part);
        group[g].store(at + 2 * pair + g * N);
    }
#else
    Group<ACT, PAIRS> low, high;
    low.load(at + pair);
    high.load(at + half + pair);
    let_next_start();
    float a[PAIRS], b[PAIRS];
    low.get(a);
    high.get(b);
#pragma unroll
    for (int k = 0; k < PAIRS; k++) {
        float turned = a[k] * c[k] - b[k] * s[k];
        b[k] = b[k] * c[k] + a[k] * s[k];
        a[k] = turned;
    }
    low.set(a);
    high.set(b);
    low.store(at + pair);
    high.store(at + half + pair);
#endif
}

#define ENTRY(name, PAIRS)                                                                                           \
    extern "C" __global__ void __launch_bounds__(128)                                                                \
        name(const i32 *positions, const float *table, u32 num_positions, ACT *x, u64 token_stride, u64 head_stride, \
             u32 heads, u32 half, u32 groups, u32 total) {                                                           \
        rotate<PAIRS>(positions, table, num_positions, x, token_stride, head_stride, heads, half, groups, total);    \
    }

ENTRY(rope_vector, per_vector<ACT> / (INTERLEAVED ? 2 : 1))
ENTRY(rope_scalar, 1)
