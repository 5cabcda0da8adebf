// `embedding`: rows of the table, dequantised as they are gathered. The table is the file's bytes, row by row, each row
// padded to `pitch` bytes (a multiple of 16).
//
// Definitions: WEIGHT = the contract's code of the table's format (0 f32, 1 f16, 2 bf16, else one of block_values.h);
// OUT = f32, f16 or bf16.
// revision: 1
// check: -DWEIGHT=0 -DOUT=f32
// check: -DWEIGHT=0 -DOUT=f16
// check: -DWEIGHT=0 -DOUT=bf16
// check: -DWEIGHT=1 -DOUT=f32
// check: -DWEIGHT=1 -DOUT=f16
// check: -DWEIGHT=1 -DOUT=bf16
// check: -DWEIGHT=2 -DOUT=f32
// check: -DWEIGHT=2 -DOUT=f16
// check: -DWEIGHT=2 -DOUT=bf16
// check: -DWEIGHT=3 -DOUT=f32
// check: -DWEIGHT=3 -DOUT=f16
// check: -DWEIGHT=3 -DOUT=bf16
// check: -DWEIGHT=4 -DOUT=f32
// check: -DWEIGHT=4 -DOUT=f16
// check: -DWEIGHT=4 -DOUT=bf16
// check: -DWEIGHT=5 -DOUT=f32
// check: -DWEIGHT=5 -DOUT=f16
// check: -DWEIGHT=5 -DOUT=bf16
// check: -DWEIGHT=6 -DOUT=f32
// check: -DWEIGHT=6 -DOUT=f16
// check: -DWEIGHT=6 -DOUT=bf16
// check: -DWEIGHT=7 -DOUT=f32
// check: -DWEIGHT=7 -DOUT=f16
// check: -DWEIGHT=7 -DOUT=bf16
// check: -DWEIGHT=8 -DOUT=f32
// check: -DWEIGHT=8 -DOUT=f16
// check: -DWEIGHT=8 -DOUT=bf16
// check: -DWEIGHT=40 -DOUT=f32
// check: -DWEIGHT=41 -DOUT=f32
// check: -DWEIGHT=42 -DOUT=f32
// check: -DWEIGHT=43 -DOUT=f32
// check: -DWEIGHT=44 -DOUT=f32
// check: -DWEIGHT=45 -DOUT=f32
// check: -DWEIGHT=46 -DOUT=f32
// check: -DWEIGHT=47 -DOUT=f32
// check: -DWEIGHT=48 -DOUT=f32
// check: -DWEIGHT=49 -DOUT=f32
// check: -DWEIGHT=50 -DOUT=f32
// check: -DWEIGHT=51 -DOUT=f32
// check: -DWEIGHT=52 -DOUT=f32
// check: -DWEIGHT=53 -DOUT=f32
// check: -DWEIGHT=54 -DOUT=f32
// check: -DWEIGHT=55 -DOUT=f32
#include "vector.cuh"

#if WEIGHT == 0
typedef float Plain;
#elif WEIGHT == 1
typedef f16 Plain;
#elif WEIGHT == 2
typedef bf16 Plain;
#else
#define FORMAT WEIGHT
#include "blocks.cuh"
#endif

template <int N> __device__ __forceinline__ void values_at(const u8 *row, u32 i, float (&v)[N]) {
#if WEIGHT <= 2
    Group<Plain, N> group;
    group.load((const Plain *)row + i);
    group.get(v);
#else
#pragma unroll
    for (int k = 0; k < N; k++) v[k] = value_at(row, i + k);
#endif
}

// `groups` threads a row of N values each, `total` threads. An id outside the table gives zeros.
template <int N>
__device__ __forceinline__ void embed(const i32 *ids, const u8 *table, u64 pitch, u32 num_rows, OUT *out,
                                      u64 out_stride, u32 groups, u32 total, float scale) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    u32 token = i / groups, column = (i - token * groups) * N;
    wait_for_previous();
    if (i >= total) return;
    u32 id = (u32)ids[token];
    float v[N];
    if (id < num_rows) {
        values_at(table + id * pitch, column, v);
    } else {
#pragma unroll
        for (int k = 0; k < N; k++) v[k] = 0.f;
    }
    let_next_start();
#pragma unroll
    for (int k = 0; k < N; k++) v[k] *= scale;
    Group<OUT, N> group;
    group.set(v);
    group.store(out + token * out_stride + column);
}

extern "C" __global__ void __launch_bounds__(128)
    embedding_vector(const i32 *ids, const u8 *table, u64 pitch, u32 num_rows, OUT *out, u64 out_stride, u32 groups,
                     u32 total, float scale) {
    embed<8>(ids, table, pitch, num_rows, out, out_stride, groups, total, scale);
}
extern "C" __global__ void __launch_bounds__(128)
    embedding_scalar(const i32 *ids, const u8 *table, u64 pitch, u32 num_rows, OUT *out, u64 out_stride, u32 groups,
                     u32 total, float scale) {
    embed<1>(ids, table, pitch, num_rows, out, out_stride, groups, total, scale);
}
