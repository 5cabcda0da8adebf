#version 460
#extension GL_GOOGLE_include_directive : enable
// out[t, n] = Σₖ x[t, k] · w[n, k] (+ out[t, n]) on matrix units, by cooperative matrices of 16 x 16 x 16 with sums in
// f32: what linears of many tokens run on. The next tiles are on their way from memory to registers while the present
// ones are multiplied from shared memory.
//
// Definitions: ACT (f16 or bf16: x and w), OUT (f32, f16, bf16), ACCUMULATE (0, 1); of `product`: TOKENS, ROWS, DEPTH
// (sides of a workgroup's tile, depths of a step), WARPS_DOWN, WARPS_ACROSS (subgroups over tokens and over rows),
// STAGES (steps in shared memory: 1 or 2). Needs SUBGROUP = 32. Rows of x, w and out start at multiples of 16 bytes.
// product: grid (⌈tokens / TOKENS⌉, ⌈n / ROWS⌉), 32 · WARPS_DOWN · WARPS_ACROSS threads. k is a multiple of 8.
// product_few, for up to 16 tokens: grid n / 16, 256 threads. n is a multiple of 16, k of 64.
// check: product product_few -DACT=f16 -DOUT=f16 -DACCUMULATE=0 -DTOKENS=128 -DROWS=128 -DDEPTH=32 -DSTAGES=2 -DWARPS_DOWN=2 -DWARPS_ACROSS=4 -DSUBGROUP=32
// check: product -DACT=f16 -DOUT=f32 -DACCUMULATE=1 -DTOKENS=128 -DROWS=128 -DDEPTH=64 -DSTAGES=1 -DWARPS_DOWN=2 -DWARPS_ACROSS=2 -DSUBGROUP=32
// check: product product_few -DACT=bf16 -DOUT=bf16 -DACCUMULATE=1 -DTOKENS=128 -DROWS=128 -DDEPTH=32 -DSTAGES=2 -DWARPS_DOWN=2 -DWARPS_ACROSS=2 -DSUBGROUP=32
// check: product -DACT=bf16 -DOUT=f32 -DACCUMULATE=0 -DTOKENS=64 -DROWS=64 -DDEPTH=64 -DSTAGES=2 -DWARPS_DOWN=2 -DWARPS_ACROSS=2 -DSUBGROUP=32
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#define N 8
#include "lanes.glsl"
#include "vector.glsl"

#define f16 1
#define bf16 2
#if ACT == 1
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#define Element float16_t
#else
#extension GL_EXT_bfloat16 : require
#define Element bfloat16_t
#endif
#undef f16
#undef bf16

PARAMETERS(u64 x; u64 w; u64 to; u32 x_stride; u32 to_stride; u32 tokens; u32 n; u32 k;)

#define SIDE 16

#if defined(ENTRY_product_few)

// Depths of a subgroup's step, in vectors of eight; a vector more keeps the rows of shared memory on different banks.
#define STEP 64
#define VECTORS (STEP / 8)
#define PITCH (VECTORS + 1)
#define QUADS (SIDE * PITCH)
// A subgroup's tokens, and its rows of weights.
shared uvec4 values[8][QUADS];
shared uvec4 weights[8][QUADS];

// Vectors of a step that a thread loads, of each side.
#define MINE (SIDE * VECTORS / 32)

// Those at `depth` of this subgroup, with zeros for tokens that are not there.
void bring(u64 w, u64 x_pitch, u32 depth, out uvec4 held_w[MINE], out uvec4 held_x[MINE]) {
    [[unroll]] for (u32 i = 0; i < MINE; i++) {
        u32 at = LANE + 32 * i;
        held_w[i] = Quads(w + (u64(at / VECTORS) * p.k + depth + at % VECTORS * 8) * 2).at[0];
    }
    [[unroll]] for (u32 i = 0; i < MINE; i++) {
        u32 at = LANE + 32 * i, token = at / VECTORS;
        held_x[i] = uvec4(0);
        if (token < p.tokens) held_x[i] = Quads(p.x + token * x_pitch + (depth + at % VECTORS * 8) * 2).at[0];
    }
}

// A workgroup has 16 output rows. Its subgroups share the depths and add up at the end; until then each goes its own
// way, with the next step on its way from memory to registers while the present one is multiplied from shared memory.
void main() {
    u32 first_row = gl_WorkGroupID.x * SIDE;
    u64 x_pitch = u64(p.x_stride) * 2, w = p.w + u64(first_row) * p.k * 2;
    coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator> sums =
        coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator>(0.0);
    uvec4 held_w[MINE], held_x[MINE];
    if (WARP * STEP < p.k) bring(w, x_pitch, WARP * STEP, held_w, held_x);
    for (u32 depth = WARP * STEP; depth < p.k; depth += 8 * STEP) {
        [[unroll]] for (u32 i = 0; i < MINE; i++) {
            u32 at = LANE + 32 * i, place = at / VECTORS * PITCH + at % VECTORS;
            weights[WARP][place] = held_w[i];
            values[WARP][place] = held_x[i];
        }
        subgroupMemoryBarrierShared();
        subgroupBarrier();
        if (depth + 8 * STEP < p.k) bring(w, x_pitch, depth + 8 * STEP, held_w, held_x);
        [[unroll]] for (u32 part = 0; part < STEP / SIDE; part++) {
            coopmat<Element, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseA> a;
            coopmat<Element, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseB> b;
            coopMatLoad(a, values[WARP], part * 2, PITCH, gl_CooperativeMatrixLayoutRowMajor);
            // A row of weights is a column of the product's right side.
            coopMatLoad(b, weights[WARP], part * 2, PITCH, gl_CooperativeMatrixLayoutColumnMajor);
            sums = coopMatMulAdd(a, b, sums);
        }
        subgroupMemoryBarrierShared();
        subgroupBarrier();
    }
    // The sums of a subgroup take the place of its weights.
    coopMatStore(sums, weights[WARP], 0, SIDE / 4, gl_CooperativeMatrixLayoutRowMajor);
    barrier();
    u32 token = THREAD / SIDE, row = first_row + THREAD % SIDE;
    if (token >= p.tokens) return;
    float sum = 0.0;
    [[unroll]] for (u32 part = 0; part < 8; part++) sum += uintBitsToFloat(weights[part][THREAD / 4][THREAD % 4]);
    u64 to = p.to + (u64(token) * p.to_stride + row) * SIZE(OUT);
#if ACCUMULATE
    sum += LOAD(OUT, to, 0);
#endif
    STORE(OUT, to, 0, sum);
}

#else

// Depths of a step, in vectors of eight; a vector more keeps the rows of shared memory on different banks.
#define VECTORS (DEPTH / 8)
#define PITCH (VECTORS + 1)
#define SUBGROUPS (WARPS_DOWN * WARPS_ACROSS)
#define TILE_QUADS ((TOKENS + ROWS) * PITCH)
// Sixteen tokens of a subgroup's rows pass through shared memory on their way out, in memory of its own.
#define STAGE_VECTORS (ROWS / WARPS_ACROSS / 8)
#define STAGE_PITCH (2 * STAGE_VECTORS + 1)
#define STAGE_QUADS (SIDE * STAGE_PITCH)
// Of two steps one is multiplied while the other is written; a single one is written between barriers.
shared uvec4 tiles[STAGES * TILE_QUADS > SUBGROUPS * STAGE_QUADS ? STAGES * TILE_QUADS : SUBGROUPS * STAGE_QUADS];

// A subgroup has TOKENS / WARPS_DOWN tokens of ROWS / WARPS_ACROSS rows, in squares of 16.
#define DOWN (TOKENS / WARPS_DOWN / SIDE)
#define ACROSS (ROWS / WARPS_ACROSS / SIDE)

// Vectors of a step that a thread loads, of each side.
#define MINE_X (TOKENS * VECTORS / (32 * SUBGROUPS))
#define MINE_W (ROWS * VECTORS / (32 * SUBGROUPS))

// Vectors of `rows` rows from depth `depth` on; zeros beyond the matrix.
#define BRING(held, count, from, pitch, rows, depth)                                                         \
    [[unroll]] for (u32 i = 0; i < count; i++) {                                                             \
        u32 at = THREAD + 32 * SUBGROUPS * i, row = at / VECTORS, first = (depth) + at % VECTORS * 8;            \
        held[i] = uvec4(0);                                                                                  \
        if (row < rows && first < p.k) held[i] = Quads(from + row * pitch + first * 2).at[0];                \
    }

// Stores them into a step's tile, whose side of `count` vectors a thread begins at `start`.
#define LEAVE(held, count, start)                                          \
    [[unroll]] for (u32 i = 0; i < count; i++) {                           \
        u32 at = THREAD + 32 * SUBGROUPS * i;                                  \
        tiles[(start) + at / VECTORS * PITCH + at % VECTORS] = held[i];    \
    }

void main() {
    u32 first_token = gl_WorkGroupID.x * TOKENS, first_row = gl_WorkGroupID.y * ROWS;
    u32 rows = min(p.n - first_row, ROWS), columns = min(p.tokens - first_token, TOKENS);
    u64 x_pitch = u64(p.x_stride) * 2, w_pitch = u64(p.k) * 2;
    u64 x = p.x + first_token * x_pitch, w = p.w + first_row * w_pitch;
    u32 my_token = WARP / WARPS_ACROSS * (TOKENS / WARPS_DOWN), my_row = WARP % WARPS_ACROSS * (ROWS / WARPS_ACROSS);

    coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator> sums[DOWN][ACROSS];
    [[unroll]] for (u32 i = 0; i < DOWN; i++)
        [[unroll]] for (u32 j = 0; j < ACROSS; j++)
            sums[i][j] = coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator>(0.0);

    uvec4 held_x[MINE_X], held_w[MINE_W];
    BRING(held_x, MINE_X, x, x_pitch, columns, 0)
    BRING(held_w, MINE_W, w, w_pitch, rows, 0)
    u32 tile = 0;
    LEAVE(held_x, MINE_X, 0)
    LEAVE(held_w, MINE_W, TOKENS * PITCH)
    barrier();
    for (u32 depth = 0; depth < p.k; depth += DEPTH) {
        bool more = depth + DEPTH < p.k;
        if (more) {
            BRING(held_x, MINE_X, x, x_pitch, columns, depth + DEPTH)
            BRING(held_w, MINE_W, w, w_pitch, rows, depth + DEPTH)
        }
        [[unroll]] for (u32 part = 0; part < DEPTH / SIDE; part++) {
            coopmat<Element, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseA> a[DOWN];
            coopmat<Element, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseB> b;
            [[unroll]] for (u32 i = 0; i < DOWN; i++)
                coopMatLoad(a[i], tiles, tile + (my_token + SIDE * i) * PITCH + part * 2, PITCH,
                            gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (u32 j = 0; j < ACROSS; j++) {
                // A row of weights is a column of the product's right side.
                coopMatLoad(b, tiles, tile + (TOKENS + my_row + SIDE * j) * PITCH + part * 2, PITCH,
                            gl_CooperativeMatrixLayoutColumnMajor);
                [[unroll]] for (u32 i = 0; i < DOWN; i++) sums[i][j] = coopMatMulAdd(a[i], b, sums[i][j]);
            }
        }
#if STAGES == 2
        tile = TILE_QUADS - tile;
#else
        barrier();
#endif
        if (more) {
            LEAVE(held_x, MINE_X, tile)
            LEAVE(held_w, MINE_W, tile + TOKENS * PITCH)
        }
        barrier();
    }

    // A thread takes eight neighbours of a row at a time. The loop stays one: sixteen copies of it cost the sums their
    // registers.
    u32 stage = WARP * STAGE_QUADS;
    [[unroll]] for (u32 i = 0; i < DOWN; i++) {
        [[unroll]] for (u32 j = 0; j < ACROSS; j++)
            coopMatStore(sums[i][j], tiles, stage + j * (SIDE / 4), STAGE_PITCH, gl_CooperativeMatrixLayoutRowMajor);
        subgroupMemoryBarrierShared();
        subgroupBarrier();
        [[dont_unroll]] for (u32 at = LANE; at < SIDE * STAGE_VECTORS; at += 32) {
            u32 down = at / STAGE_VECTORS, across = at % STAGE_VECTORS;
            u32 token = my_token + SIDE * i + down, row = my_row + 8 * across;
            if (token >= columns || row >= rows) continue;
            uvec4 low = tiles[stage + down * STAGE_PITCH + 2 * across],
                  high = tiles[stage + down * STAGE_PITCH + 2 * across + 1];
            float eight[8];
            [[unroll]] for (u32 c = 0; c < 8; c++) eight[c] = uintBitsToFloat(c < 4 ? low[c] : high[c - 4]);
            u64 to = p.to + (u64(first_token + token) * p.to_stride + first_row + row) * SIZE(OUT);
            if (row + 8 <= rows) {
#if ACCUMULATE
                float before[8];
                GET(OUT, to, before);
                [[unroll]] for (u32 c = 0; c < 8; c++) eight[c] += before[c];
#endif
                PUT(OUT, to, eight);
            } else {
                [[unroll]] for (u32 c = 0; c < 8; c++) {
                    if (c >= rows - row) continue;
#if ACCUMULATE
                    eight[c] += LOAD(OUT, to, c);
#endif
                    STORE(OUT, to, c, eight[c]);
                }
            }
        }
        subgroupMemoryBarrierShared();
        subgroupBarrier();
    }
}
#endif
