#version 460
#extension GL_GOOGLE_include_directive : enable
// out[t, n] = Σₖ x[t, k] · w[n, k] (+ out[t, n]) on matrix units, by cooperative matrices of 16 x 16 x 16 with sums in f32: what linears of many
// tokens run on. The next tiles are on their way from memory to registers while the present ones are multiplied from shared memory.
//
// Definitions: ACT (f16 or bf16: x and w), OUT (f32, f16, bf16), ACCUMULATE (0, 1), TILE (64 or 128: tokens and output rows of a workgroup).
// Needs SUBGROUP = 32. Rows of x and w start at multiples of 16 bytes.
// product: grid (⌈n / TILE⌉, ⌈tokens / TILE⌉), 256 threads. k is a multiple of 8.
// product_few, for up to 16 tokens: grid n / 16, 256 threads. n is a multiple of 16, k of 64; TILE has no meaning.
// check: product product_few -DACT=f16 -DOUT=f16 -DACCUMULATE=0 -DTILE=128 -DSUBGROUP=32
// check: product -DACT=f16 -DOUT=f32 -DACCUMULATE=1 -DTILE=64 -DSUBGROUP=32
// check: product product_few -DACT=bf16 -DOUT=bf16 -DACCUMULATE=1 -DTILE=128 -DSUBGROUP=32
// check: product -DACT=bf16 -DOUT=f32 -DACCUMULATE=0 -DTILE=64 -DSUBGROUP=32
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#include "lanes.glsl"

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
#define DEPTH 64
#define VECTORS (DEPTH / 8)
#define PITCH (VECTORS + 1)
shared uvec4 values[8][SIDE * PITCH];
shared float parts[8][SIDE * SIDE];

// A workgroup has 16 output rows. Its subgroups share the depths and add up at the end; until then each goes its own way: weights come straight
// from memory, as nobody else needs them, tokens through shared memory of the subgroup's own, with zeros for those that are not there.
void main() {
    u32 first_row = gl_WorkGroupID.x * SIDE;
    u64 x_pitch = u64(p.x_stride) * 2, w = p.w + u64(first_row) * p.k * 2;
    coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator> sums =
        coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator>(0.0);
    for (u32 depth = WARP * DEPTH; depth < p.k; depth += 8 * DEPTH) {
        coopmat<Element, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseB> b[DEPTH / SIDE];
        // A row of weights is a column of the product's right side.
        [[unroll]] for (u32 part = 0; part < DEPTH / SIDE; part++)
            coopMatLoad(b[part], Quads(w).at, (depth + SIDE * part) / 8, p.k / 8, gl_CooperativeMatrixLayoutColumnMajor);
        [[unroll]] for (u32 at = LANE; at < SIDE * VECTORS; at += 32) {
            u32 token = at / VECTORS, vector = at % VECTORS;
            uvec4 eight = uvec4(0);
            if (token < p.tokens) eight = Quads(p.x + token * x_pitch + (depth + vector * 8) * 2).at[0];
            values[WARP][token * PITCH + vector] = eight;
        }
        subgroupMemoryBarrierShared();
        subgroupBarrier();
        [[unroll]] for (u32 part = 0; part < DEPTH / SIDE; part++) {
            coopmat<Element, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseA> a;
            coopMatLoad(a, values[WARP], part * 2, PITCH, gl_CooperativeMatrixLayoutRowMajor);
            sums = coopMatMulAdd(a, b[part], sums);
        }
        subgroupMemoryBarrierShared();
        subgroupBarrier();
    }
    coopMatStore(sums, parts[WARP], 0, SIDE, gl_CooperativeMatrixLayoutRowMajor);
    barrier();
    u32 token = THREAD / SIDE, row = first_row + THREAD % SIDE;
    if (token >= p.tokens) return;
    float sum = 0.0;
    [[unroll]] for (u32 part = 0; part < 8; part++) sum += parts[part][THREAD];
    u64 to = p.to + (u64(token) * p.to_stride + row) * SIZE(OUT);
#if ACCUMULATE
    sum += LOAD(OUT, to, 0);
#endif
    STORE(OUT, to, 0, sum);
}

#else

// Depths of a step, in vectors of eight; a vector more keeps the rows of shared memory on different banks.
#define DEPTH 32
#define VECTORS (DEPTH / 8)
#define PITCH (VECTORS + 1)
shared uvec4 values[TILE * PITCH];
shared uvec4 weights[TILE * PITCH];

// Eight subgroups of 32, four by two: each has TILE / 4 tokens of TILE / 2 rows, in squares of 16.
#define DOWN (TILE / 4 / SIDE)
#define ACROSS (TILE / 2 / SIDE)
#define STAGE_PITCH 20
shared float stage[8][SIDE * STAGE_PITCH];

// Vectors of a step that a thread brings, of each side.
#define MINE (TILE * VECTORS / 256)

// Vectors of `rows` rows from depth `depth` on; zeros beyond the matrix.
void bring(u64 from, u64 pitch, u32 rows, u32 depth, out uvec4 held[MINE]) {
    [[unroll]] for (u32 i = 0; i < MINE; i++) {
        u32 at = THREAD + 256 * i, row = at / VECTORS, first = depth + at % VECTORS * 8;
        held[i] = uvec4(0);
        if (row < rows && first < p.k) held[i] = Quads(from + row * pitch + first * 2).at[0];
    }
}

void main() {
    u32 first_row = gl_WorkGroupID.x * TILE, first_token = gl_WorkGroupID.y * TILE;
    u32 rows = min(p.n - first_row, TILE), columns = min(p.tokens - first_token, TILE);
    u64 x_pitch = u64(p.x_stride) * 2, w_pitch = u64(p.k) * 2;
    u64 x = p.x + first_token * x_pitch, w = p.w + first_row * w_pitch;
    u32 my_token = WARP / 2 * (TILE / 4), my_row = WARP % 2 * (TILE / 2);

    coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator> sums[DOWN][ACROSS];
    [[unroll]] for (u32 i = 0; i < DOWN; i++)
        [[unroll]] for (u32 j = 0; j < ACROSS; j++)
            sums[i][j] = coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator>(0.0);

    uvec4 held_x[MINE], held_w[MINE];
    bring(x, x_pitch, columns, 0, held_x);
    bring(w, w_pitch, rows, 0, held_w);
    for (u32 depth = 0; depth < p.k; depth += DEPTH) {
        [[unroll]] for (u32 i = 0; i < MINE; i++) {
            u32 at = THREAD + 256 * i, place = at / VECTORS * PITCH + at % VECTORS;
            values[place] = held_x[i];
            weights[place] = held_w[i];
        }
        barrier();
        if (depth + DEPTH < p.k) {
            bring(x, x_pitch, columns, depth + DEPTH, held_x);
            bring(w, w_pitch, rows, depth + DEPTH, held_w);
        }
        [[unroll]] for (u32 part = 0; part < DEPTH / SIDE; part++) {
            coopmat<Element, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseA> a[DOWN];
            coopmat<Element, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseB> b;
            [[unroll]] for (u32 i = 0; i < DOWN; i++)
                coopMatLoad(a[i], values, (my_token + SIDE * i) * PITCH + part * 2, PITCH, gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (u32 j = 0; j < ACROSS; j++) {
                // A row of weights is a column of the product's right side.
                coopMatLoad(b, weights, (my_row + SIDE * j) * PITCH + part * 2, PITCH, gl_CooperativeMatrixLayoutColumnMajor);
                [[unroll]] for (u32 i = 0; i < DOWN; i++) sums[i][j] = coopMatMulAdd(a[i], b, sums[i][j]);
            }
        }
        barrier();
    }

    [[unroll]] for (u32 i = 0; i < DOWN; i++) {
        [[unroll]] for (u32 j = 0; j < ACROSS; j++) {
            // All subgroups pass each square together: the barriers order a subgroup's own stores and loads.
            coopMatStore(sums[i][j], stage[WARP], 0, STAGE_PITCH, gl_CooperativeMatrixLayoutRowMajor);
            barrier();
            for (u32 at = LANE; at < SIDE * SIDE; at += 32) {
                u32 token = my_token + SIDE * i + at / SIDE, row = my_row + SIDE * j + at % SIDE;
                if (token >= columns || row >= rows) continue;
                float sum = stage[WARP][at / SIDE * STAGE_PITCH + at % SIDE];
                u64 to = p.to + (u64(first_token + token) * p.to_stride + first_row + row) * SIZE(OUT);
#if ACCUMULATE
                sum += LOAD(OUT, to, 0);
#endif
                STORE(OUT, to, 0, sum);
            }
            barrier();
        }
    }
}
#endif
