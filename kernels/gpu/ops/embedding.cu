// `embedding`: rows of the table, dequantised as they are gathered. The table is the file's bytes, row by row, each row padded to `pitch`
// bytes (a multiple of 16). Block formats are ggml's (ggml-common.h).
//
// Definitions: WEIGHT = the contract's code of the table's format (0 f32, 1 f16, 2 bf16, 3 Q4_0, 4 Q4_1, 5 Q5_0, 6 Q8_0, 7 Q4_K, 8 Q6_K);
// OUT = f32, f16 or bf16.
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
#include "vector.cuh"

__device__ __forceinline__ float half_at(const u8 *p) {
    f16 h;
    h.bits = *(const u16 *)p;
    return to_f32(h);
}
// Nibble j of 32: low ones first.
__device__ __forceinline__ u32 nibble(const u8 *p, u32 j) { return j < 16 ? p[j] & 15 : p[j - 16] >> 4; }

#if WEIGHT == 0
typedef float Plain;
#elif WEIGHT == 1
typedef f16 Plain;
#elif WEIGHT == 2
typedef bf16 Plain;
#else
// Value i of a row. Products of f16 scales and small integers are exact, so a fused multiply-add rounds as the two steps do.
__device__ __forceinline__ float value_at(const u8 *row, u32 i) {
#if WEIGHT == 3
    const u8 *block = row + i / 32 * 18;
    return half_at(block) * ((float)nibble(block + 2, i % 32) - 8.f);
#elif WEIGHT == 4
    const u8 *block = row + i / 32 * 20;
    return half_at(block) * (float)nibble(block + 4, i % 32) + half_at(block + 2);
#elif WEIGHT == 5
    const u8 *block = row + i / 32 * 22;
    u32 j = i % 32, fifth = block[2 + j / 8] >> (j % 8) & 1;
    return half_at(block) * ((float)(nibble(block + 6, j) | fifth << 4) - 16.f);
#elif WEIGHT == 6
    const u8 *block = row + i / 32 * 34;
    return half_at(block) * (float)(i8)block[2 + i % 32];
#elif WEIGHT == 7
    const u8 *block = row + i / 256 * 144, *packed = block + 4;
    u32 group = i % 256 / 32, scale, low;
    if (group < 4) {
        scale = packed[group] & 63;
        low = packed[group + 4] & 63;
    } else {
        scale = (packed[group + 4] & 15) | (packed[group - 4] >> 6 << 4);
        low = (packed[group + 4] >> 4) | (packed[group] >> 6 << 4);
    }
    u8 byte = block[16 + group / 2 * 32 + i % 32];
    float q = (float)(group % 2 ? byte >> 4 : byte & 15);
    return (half_at(block) * (float)scale) * q - half_at(block + 2) * (float)low;
#else
    const u8 *block = row + i / 256 * 210;
    u32 part = i % 256 / 128, quarter = i % 128 / 32, l = i % 32;
    u8 byte = block[part * 64 + quarter % 2 * 32 + l];
    u32 low = quarter < 2 ? byte & 15 : byte >> 4, high = block[128 + part * 32 + l] >> (2 * quarter) & 3;
    float scale = (float)(i8)block[192 + part * 8 + quarter * 2 + l / 16];
    return half_at(block + 208) * scale * ((float)(low | high << 4) - 32.f);
#endif
}
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
__device__ __forceinline__ void embed(const i32 *ids, const u8 *table, u64 pitch, u32 num_rows, OUT *out, u64 out_stride, u32 groups,
                                      u32 total, float scale) {
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

extern "C" __global__ void __launch_bounds__(128) embedding_vector(const i32 *ids, const u8 *table, u64 pitch, u32 num_rows, OUT *out,
                                                                   u64 out_stride, u32 groups, u32 total, float scale) {
    embed<8>(ids, table, pitch, num_rows, out, out_stride, groups, total, scale);
}
extern "C" __global__ void __launch_bounds__(128) embedding_scalar(const i32 *ids, const u8 *table, u64 pitch, u32 num_rows, OUT *out,
                                                                   u64 out_stride, u32 groups, u32 total, float scale) {
    embed<1>(ids, table, pitch, num_rows, out, out_stride, groups, total, scale);
}
