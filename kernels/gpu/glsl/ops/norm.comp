#version 460
#extension GL_GOOGLE_include_directive : enable
// `rms_norm` and `layer_norm`: each row is read once, kept in registers, and scaled by its own sum. Wide rows take a
// block, narrow ones (the heads of q and k) a part of 32 threads; unaligned or very wide ones take a block that reads
// them again. Blocks walk over rows. Row r of [T, G, width] is (r / G, r mod G). Of layer_norm each
// group may have a weight and a bias of its own, weight_inner floats apart (0: the same for all).
//
// Definitions: ACT = f32, f16 or bf16, the type of x and out; LAYER = 0 (rms_norm) or 1 (layer_norm).
// revision: 2
// check: norm_block_1 norm_block_2 norm_block_4 norm_lanes_1 norm_lanes_2 norm_any -DACT=f32 -DLAYER=0
// check: norm_block_1 norm_block_2 norm_block_4 norm_lanes_1 norm_lanes_2 norm_any -DACT=f16 -DLAYER=0
// check: norm_block_1 norm_block_2 norm_block_4 norm_lanes_1 norm_lanes_2 norm_any -DACT=bf16 -DLAYER=0
// check: norm_block_1 norm_block_2 norm_block_4 norm_lanes_1 norm_lanes_2 norm_any -DACT=f32 -DLAYER=1
// check: norm_block_1 norm_block_4 norm_lanes_2 norm_any -DACT=f16 -DLAYER=1
// check: norm_block_2 norm_lanes_1 norm_any -DACT=bf16 -DLAYER=1
#include "common.glsl"
#include "lanes.glsl"

// Groups of 16 bytes that a thread holds of a row.
#if defined(ENTRY_norm_block_2) || defined(ENTRY_norm_lanes_2)
#define HELD 2
#elif defined(ENTRY_norm_block_4)
#define HELD 4
#else
#define HELD 1
#endif
#if defined(ENTRY_norm_lanes_1) || defined(ENTRY_norm_lanes_2)
#define BY_LANES
#endif

#if defined(ENTRY_norm_any)
#define N 1
#else
#define N (16 / ACT_BYTES)
#endif
#include "vector.glsl"

PARAMETERS(u64 x; u64 x_outer; u64 x_inner; u64 weight; u64 bias; u64 to; u64 to_outer; u64 to_inner; u32 rows;
           u32 inner; u32 width; float eps; float weight_offset; u32 weight_inner; u32 lanes;)

u64 source(u32 row) {
    u32 t = row / p.inner;
    return p.x + (t * p.x_outer + (row - t * p.inner) * p.x_inner) * SIZE(ACT);
}
// Byte of a row's own weight, and of its own bias.
u64 own_weight(u32 row) {
#if LAYER
    return u64(row % p.inner) * p.weight_inner * 4;
#else
    return 0;
#endif
}
u64 target(u32 row) {
    u32 t = row / p.inner;
    return p.to + (t * p.to_outer + (row - t * p.inner) * p.to_inner) * SIZE(ACT);
}

// Over the threads that share a row: all of a block, or `p.lanes` neighbours of 32 (a power of two).
float row_sum(float x) {
#if !defined(BY_LANES)
    return block_sum(x);
#elif SUBGROUP >= 32
    for (u32 mask = p.lanes / 2; mask > 0; mask >>= 1) x += subgroupShuffleXor(x, mask);
    return x;
#else
    offer(floatBitsToUint(x));
    u32 first = THREAD & ~(p.lanes - 1);
    float sum = 0.0;
    for (u32 i = 0; i < p.lanes; i++) sum += uintBitsToFloat(exchange[first + i]);
    return sum;
#endif
}

#if defined(ENTRY_norm_any)
// Any width and alignment: a block a row, element by element, reading the row again for each pass.
void main() {
    for (u32 row = gl_WorkGroupID.x; row < p.rows; row += gl_NumWorkGroups.x) {
        u64 from = source(row), to = target(row), own = own_weight(row);
        float part = 0.0, mean = 0.0;
#if LAYER
        for (u32 i = THREAD; i < p.width; i += THREADS) part += LOAD(ACT, from, i);
        mean = row_sum(part) / float(p.width);
        part = 0.0;
#endif
        for (u32 i = THREAD; i < p.width; i += THREADS) {
            float v = LOAD(ACT, from, i) - mean;
            part += v * v;
        }
        float inverse = 1.0 / sqrt(row_sum(part) / float(p.width) + p.eps);
        for (u32 i = THREAD; i < p.width; i += THREADS) {
            float y = (LOAD(ACT, from, i) - mean) * inverse * (Floats(p.weight + own).at[i] + p.weight_offset);
#if LAYER
            if (p.bias != 0) y += Floats(p.bias + own).at[i];
#endif
            STORE(ACT, to, i, y);
        }
    }
}

#else
// Thread `lane` of `lanes` holds groups lane, lane + lanes, .. of a row; rows first, first + step, ... Every thread
// takes part in every round: rows past the end are zeros, which are not written.
void main() {
#ifdef BY_LANES
    u32 lanes = p.lanes, lane = THREAD % lanes, at_once = THREADS / lanes;
    u32 first = gl_WorkGroupID.x * at_once + THREAD / lanes, step = gl_NumWorkGroups.x * at_once;
#else
    u32 lanes = THREADS, lane = THREAD, first = gl_WorkGroupID.x, step = gl_NumWorkGroups.x;
#endif
    u32 n = p.width / N, rounds = (p.rows + step - 1) / step;
    float inverse_width = 1.0 / float(p.width);
    for (u32 round = 0; round < rounds; round++) {
        u32 row = first + round * step;
        bool live = row < p.rows;
        float x[HELD][N], part = 0.0, mean = 0.0;
        UNROLLED for (u32 k = 0; k < HELD; k++) {
            u32 i = lane + k * lanes;
            if (live && i < n) {
                GET(ACT, source(row) + i * 16, x[k]);
            } else {
                for (u32 j = 0; j < N; j++) x[k][j] = 0.0;
            }
            for (u32 j = 0; j < N; j++) part += LAYER == 1 ? x[k][j] : x[k][j] * x[k][j];
        }
#if LAYER
        mean = row_sum(part) * inverse_width;
        part = 0.0;
        UNROLLED for (u32 k = 0; k < HELD; k++) {
            if (lane + k * lanes >= n) continue;
            for (u32 j = 0; j < N; j++) part += (x[k][j] - mean) * (x[k][j] - mean);
        }
#endif
        float inverse = 1.0 / sqrt(row_sum(part) * inverse_width + p.eps);
        if (!live) continue;
        u64 own = own_weight(row);
        UNROLLED for (u32 k = 0; k < HELD; k++) {
            u32 i = lane + k * lanes;
            if (i >= n) continue;
            float y[N], w[N];
            UNROLLED for (u32 j = 0; j < N; j += 4) {
                vec4 four = uintBitsToFloat(Quads(p.weight + own + u64(i * N + j) * 4).at[0]);
                w[j] = four.x, w[j + 1] = four.y, w[j + 2] = four.z, w[j + 3] = four.w;
            }
            for (u32 j = 0; j < N; j++) {
                y[j] = (x[k][j] - mean) * inverse * (w[j] + p.weight_offset);
#if LAYER
                if (p.bias != 0) y[j] += Floats(p.bias + own).at[i * N + j];
#endif
            }
            PUT(ACT, target(row) + i * 16, y);
        }
    }
}
#endif
