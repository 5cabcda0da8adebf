#version 460
#extension GL_GOOGLE_include_directive : enable
// out[t, n] = Σₖ x[t, k] · w[n, k] (+ out[t, n]) by cooperative matrices of a whole workgroup
// (VK_NV_cooperative_matrix2), with sums in f32: the driver's compiler lays out shared memory, copies and tensor
// instructions. What linears of many tokens run on where the device has them.
//
// Definitions: ACT (f16 or bf16: x and w), OUT (f32, f16, bf16), ACCUMULATE (0, 1), TOKENS, ROWS, DEPTH (sides of a
// workgroup's tile and depths of a step). Rows of x, w and out start at multiples of 16 bytes.
// product_wide: grid (⌈tokens / TOKENS⌉, ⌈n / ROWS⌉). k is a multiple of 8. THREADS are those that the device names for
// the sides.
// check: product_wide -DACT=f16 -DOUT=f16 -DACCUMULATE=0 -DTOKENS=128 -DROWS=128 -DDEPTH=64
// check: product_wide -DACT=f16 -DOUT=f32 -DACCUMULATE=1 -DTOKENS=128 -DROWS=128 -DDEPTH=64
// check: product_wide -DACT=bf16 -DOUT=bf16 -DACCUMULATE=1 -DTOKENS=128 -DROWS=128 -DDEPTH=64
// check: product_wide -DACT=bf16 -DOUT=f32 -DACCUMULATE=0 -DTOKENS=64 -DROWS=64 -DDEPTH=32
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_NV_cooperative_matrix2 : require
#include "common.glsl"

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

layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Elements { Element at[]; };

#define Sums coopmat<float, gl_ScopeWorkgroup, TOKENS, ROWS, gl_MatrixUseAccumulator>

// Writes a sum, or adds it: the driver's own conversion of a matrix cuts bf16 off where this rounds to nearest.
float write(const in uint row, const in uint column, const in float value) {
    u32 token = gl_WorkGroupID.x * TOKENS + row, place = gl_WorkGroupID.y * ROWS + column;
    if (token < p.tokens && place < p.n) {
        u64 to = p.to + (u64(token) * p.to_stride + place) * SIZE(OUT);
        float sum = value;
#if ACCUMULATE
        sum += LOAD(OUT, to, 0);
#endif
        STORE(OUT, to, 0, sum);
    }
    return value;
}

// Adds the product's depths to `sums`. A row of weights is a column of the right side.
#define ADD_DEPTHS(layout_x, layout_w)                                                                              \
    [[dont_unroll]] for (u32 depth = 0; depth < p.k; depth += DEPTH) {                                              \
        coopmat<Element, gl_ScopeWorkgroup, TOKENS, DEPTH, gl_MatrixUseA> a;                                        \
        coopmat<Element, gl_ScopeWorkgroup, DEPTH, ROWS, gl_MatrixUseB> b;                                          \
        coopMatLoadTensorNV(a, x.at, 0, sliceTensorLayoutNV(layout_x, first_token, TOKENS, depth, DEPTH));          \
        coopMatLoadTensorNV(b, w.at, 0, sliceTensorLayoutNV(layout_w, first_row, ROWS, depth, DEPTH), across);      \
        sums = coopMatMulAdd(a, b, sums);                                                                           \
    }

void main() {
    u32 first_token = gl_WorkGroupID.x * TOKENS, first_row = gl_WorkGroupID.y * ROWS;
    Elements x = Elements(p.x), w = Elements(p.w);
    // What is a multiple of 8 anyway: the compiler takes from it that it may copy 16 bytes at a time.
    u32 x_stride = p.x_stride & ~7u, w_stride = p.k & ~7u;
    tensorViewNV<2, false, 1, 0> across = createTensorViewNV(2, false, 1, 0);
    Sums sums = Sums(0.0);
    if (first_token + TOKENS <= p.tokens && first_row + ROWS <= p.n && p.k % DEPTH == 0) {
        tensorLayoutNV<2> inner_x = createTensorLayoutNV(2), inner_w = createTensorLayoutNV(2);
        inner_x = setTensorLayoutDimensionNV(inner_x, p.tokens, p.k);
        inner_x = setTensorLayoutStrideNV(inner_x, x_stride, 1);
        inner_w = setTensorLayoutDimensionNV(inner_w, p.n, p.k);
        inner_w = setTensorLayoutStrideNV(inner_w, w_stride, 1);
        ADD_DEPTHS(inner_x, inner_w)
    } else {
        tensorLayoutNV<2, gl_CooperativeMatrixClampModeConstantNV> edge_x = createTensorLayoutNV(
            2, gl_CooperativeMatrixClampModeConstantNV);
        tensorLayoutNV<2, gl_CooperativeMatrixClampModeConstantNV> edge_w = createTensorLayoutNV(
            2, gl_CooperativeMatrixClampModeConstantNV);
        edge_x = setTensorLayoutDimensionNV(edge_x, p.tokens, p.k);
        edge_x = setTensorLayoutStrideNV(edge_x, x_stride, 1);
        edge_w = setTensorLayoutDimensionNV(edge_w, p.n, p.k);
        edge_w = setTensorLayoutStrideNV(edge_w, w_stride, 1);
        ADD_DEPTHS(edge_x, edge_w)
    }
    coopMatPerElementNV(sums, sums, write);
}
