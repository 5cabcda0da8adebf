// `embedding`: rows of the table, dequantised as they are gathered. The table is the file's bytes, row by row, each row
// padded to `pitch` bytes (a multiple of 16).
//
// Definitions: WEIGHT = the contract's code of the table's format (0 f32, 1 f16, 2 bf16, else one of block_values.h);
// OUT = f32, f16 or bf16.
// revision: 1
// check: -DWEIGHT=0 -DOUT=f32
// check: -DWEIGHT=1 -DOUT=f32
// check: -DWEIGHT=2 -DOUT=f32
// check: -DWEIGHT=3 -DOUT=f32
// check: -DWEIGHT=4 -DOUT=f32
// check: -DWEIGHT=5 -DOUT=f32
// check: -DWEIGHT=6 -DOUT=f32
// check: -DWEIGHT=7 -DOUT=f32
// check: -DWEIGHT=8 -DOUT=f32
// check: -DWEIGHT=1 -DOUT=f16
// check: -DWEIGHT=4 -DOUT=bf16
// check: -DWEIGHT=40 -DOUT=f16
// check: -DWEIGHT=43 -DOUT=f32
// check: -DWEIGHT=47 -DOUT=bf16
// check: -DWEIGHT=48 -DOUT=f32
// check: -DWEIGHT=50 -DOUT=bf16
// check: -DWEIGHT=55 -DOUT=f16
#include "common.h"

#if WEIGHT == 0
#define PLAIN f32
#elif WEIGHT == 1
#define PLAIN f16
#elif WEIGHT == 2
#define PLAIN bf16
#else
#define FORMAT WEIGHT
#include "blocks.h"
#endif

// `groups` work-items a row of `each` values each, `total` in all. An id outside the table gives zeros.
INLINE void embed(const __global i32 *ids, const __global u8 *table, u64 pitch, u32 num_rows, __global OUT *out,
                  u64 out_stride, u32 groups, u32 total, float scale, u32 each) {
    u32 i = global_index();
    if (i >= total) return;
    u32 token = i / groups, column = (i - token * groups) * each, id = (u32)ids[token];
    const __global u8 *row = table + (id < num_rows ? id : 0) * pitch;
    for (u32 k = column; k < column + each; k++) {
#ifdef PLAIN
        float value = LOAD(PLAIN, (const __global PLAIN *)row, k);
#else
        float value = value_at(row, k);
#endif
        STORE(OUT, (id < num_rows ? value : 0.f) * scale, out, token * out_stride + k);
    }
}

KERNEL void embedding_vector(const __global i32 *ids, const __global u8 *table, u64 pitch, u32 num_rows,
                             __global OUT *out, u64 out_stride, u32 groups, u32 total, float scale) {
    embed(ids, table, pitch, num_rows, out, out_stride, groups, total, scale, 8);
}
KERNEL void embedding_scalar(const __global i32 *ids, const __global u8 *table, u64 pitch, u32 num_rows,
                             __global OUT *out, u64 out_stride, u32 groups, u32 total, float scale) {
    embed(ids, table, pitch, num_rows, out, out_stride, groups, total, scale, 1);
}
