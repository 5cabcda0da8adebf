#version 460
#extension GL_GOOGLE_include_directive : enable
// `linear` of many tokens without matrix units, in f32: a workgroup computes 64 tokens of 64 output rows from tiles in
// shared memory, each thread 4 x 4 of them.
//
// Definitions: ACT, WEIGHT, OUT (f32, f16, bf16), EPILOGUE (see activate.glsl).
// linear_tiled: grid (⌈n / 64⌉, ⌈tokens / 64⌉), 256 threads.
// revision: 1
// check: linear_tiled -DACT=f32 -DWEIGHT=f32 -DOUT=f32 -DEPILOGUE=0
// check: linear_tiled -DACT=bf16 -DWEIGHT=bf16 -DOUT=bf16 -DEPILOGUE=1
// check: linear_tiled -DACT=f16 -DWEIGHT=f16 -DOUT=f32 -DEPILOGUE=2
// check: linear_tiled -DACT=f32 -DWEIGHT=bf16 -DOUT=f32 -DEPILOGUE=3
#include "activate.glsl"

// Depths of a tile, and its rows; a column more keeps the threads' writes apart.
#define DEPTH 16
#define TILE 64
shared float values[DEPTH][TILE + 1];
shared float weights[DEPTH][TILE + 1];

PARAMETERS(u64 x; u64 w; u64 bias; u64 residual; u64 to; u32 x_stride; u32 residual_stride; u32 to_stride; u32 tokens;
           u32 n; u32 k;)
void main() {
    u32 thread = gl_LocalInvocationIndex, column = thread & 15u, line = thread >> 4;
    u32 first_row = gl_WorkGroupID.x * TILE, first_token = gl_WorkGroupID.y * TILE;
    // This thread's loads: four depths of one token and of one row. Rows past the end repeat the last one.
    u32 mine = thread >> 2, depth = (thread & 3u) * 4;
    u64 from = p.x + u64(min(first_token + mine, p.tokens - 1)) * p.x_stride * SIZE(ACT);
    u64 row = p.w + u64(min(first_row + mine, p.n - 1)) * p.k * SIZE(WEIGHT);
    float sums[4][4];
    UNROLLED for (u32 i = 0; i < 4; i++)
        UNROLLED for (u32 j = 0; j < 4; j++) sums[i][j] = 0.0;
    for (u32 start = 0; start < p.k; start += DEPTH) {
        UNROLLED for (u32 i = 0; i < 4; i++) {
            u32 at = start + depth + i;
            bool inside = at < p.k;
            values[depth + i][mine] = inside ? LOAD(ACT, from, at) : 0.0;
            weights[depth + i][mine] = inside ? LOAD(WEIGHT, row, at) : 0.0;
        }
        barrier();
        UNROLLED for (u32 d = 0; d < DEPTH; d++) {
            float a[4], b[4];
            UNROLLED for (u32 i = 0; i < 4; i++) {
                a[i] = values[d][line + 16 * i];
                b[i] = weights[d][column + 16 * i];
            }
            UNROLLED for (u32 i = 0; i < 4; i++)
                UNROLLED for (u32 j = 0; j < 4; j++) sums[i][j] = fma(a[i], b[j], sums[i][j]);
        }
        barrier();
    }
    UNROLLED for (u32 i = 0; i < 4; i++) {
        UNROLLED for (u32 j = 0; j < 4; j++) {
            u32 token = first_token + line + 16 * i, feature = first_row + column + 16 * j;
            if (token < p.tokens && feature < p.n) WRITE_OUT(sums[i][j], token, feature);
        }
    }
}
