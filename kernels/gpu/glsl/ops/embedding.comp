#version 460
#extension GL_GOOGLE_include_directive : enable
// `embedding`: rows of the table, dequantised as they are gathered. The table is the file's bytes, row by row, each row
// padded to `pitch` bytes (a multiple of 16).
//
// Definitions: WEIGHT = the contract's code of the table's format (0 f32, 1 f16, 2 bf16, else one of block_values.h);
// OUT = f32, f16 or bf16.
// revision: 1
// check: embedding_vector embedding_scalar -DWEIGHT=0 -DOUT=f32
// check: embedding_vector embedding_scalar -DWEIGHT=0 -DOUT=bf16
// check: embedding_vector embedding_scalar -DWEIGHT=1 -DOUT=f16
// check: embedding_vector embedding_scalar -DWEIGHT=1 -DOUT=f32
// check: embedding_vector embedding_scalar -DWEIGHT=2 -DOUT=bf16
// check: embedding_vector embedding_scalar -DWEIGHT=2 -DOUT=f16
// check: embedding_vector embedding_scalar -DWEIGHT=3 -DOUT=f32
// check: embedding_vector embedding_scalar -DWEIGHT=4 -DOUT=f16
// check: embedding_vector embedding_scalar -DWEIGHT=5 -DOUT=bf16
// check: embedding_vector embedding_scalar -DWEIGHT=6 -DOUT=f32
// check: embedding_vector embedding_scalar -DWEIGHT=7 -DOUT=bf16
// check: embedding_vector embedding_scalar -DWEIGHT=8 -DOUT=f16
// check: embedding_vector embedding_scalar -DWEIGHT=40 -DOUT=f16
// check: embedding_vector embedding_scalar -DWEIGHT=43 -DOUT=f32
// check: embedding_vector embedding_scalar -DWEIGHT=47 -DOUT=bf16
// check: embedding_vector embedding_scalar -DWEIGHT=48 -DOUT=f32
// check: embedding_vector embedding_scalar -DWEIGHT=50 -DOUT=bf16
// check: embedding_vector embedding_scalar -DWEIGHT=55 -DOUT=f16
#if defined(ENTRY_embedding_vector)
#define N 8
#else
#define N 1
#endif
#include "vector.glsl"

#if WEIGHT == 0
#define PLAIN f32
#elif WEIGHT == 1
#define PLAIN f16
#elif WEIGHT == 2
#define PLAIN bf16
#else
#define FORMAT WEIGHT
#include "blocks.glsl"
#endif

// `groups` threads a row of N values each, `total` threads. An id outside the table gives zeros.
PARAMETERS(u64 ids; u64 table; u64 pitch; u32 num_rows; u64 to; u64 to_stride; u32 groups; u32 total; float scale;)
void main() {
    u32 i = gl_WorkGroupID.x * THREADS + gl_LocalInvocationIndex;
    if (i >= p.total) return;
    u32 token = i / p.groups, column = (i - token * p.groups) * N, id = Words(p.ids).at[token];
    float v[N];
    if (id < p.num_rows) {
        u64 row = p.table + id * p.pitch;
#ifdef PLAIN
        GET(PLAIN, row + u64(column) * SIZE(PLAIN), v);
#else
#if N == 8
        VALUES8_AT(row, column, v)
#else
        v[0] = value_at(row, column);
#endif
#endif
    } else {
        for (u32 k = 0; k < N; k++) v[k] = 0.0;
    }
    for (u32 k = 0; k < N; k++) v[k] *= p.scale;
    PUT(OUT, p.to + (token * p.to_stride + column) * SIZE(OUT), v);
}
