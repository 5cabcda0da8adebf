// `gather_rows` and `scatter_rows` (bytes, any type), and with ACT defined `quantize_act` and `pool`.
//
// Definitions: none, or ACT = f32, f16 or bf16, the type of x.
// revision: 1
// check:
// check: -DACT=f32
// check: -DACT=f16
// check: -DACT=bf16
#include "vector.cuh"

#ifndef ACT

// Row i of `count`: gather writes out[i] = x[index[i]], scatter out[index[i]] = x[i]. `other_rows`: rows that an index
// may name; -1 and indices outside (a caller's bug) move nothing. Pitches and `units` of a row count units.
template <typename Unit>
__device__ __forceinline__ void move_rows(const Unit *x, u64 x_pitch, const i32 *index, Unit *out, u64 out_pitch,
                                          u32 count, u32 units, u32 other_rows, u32 scatter) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    u32 row = i / units, unit = i - row * units;
    wait_for_previous();
    if (row >= count) return;
    u32 other = (u32)index[row];
    if (other >= other_rows) return;
    Unit value = x[(scatter ? row : other) * x_pitch + unit];
    let_next_start();
    out[(scatter ? other : row) * out_pitch + unit] = value;
}

#define ENTRY(name, Unit)                                                                                  \
    extern "C" __global__ void __launch_bounds__(128)                                                      \
        name(const Unit *x, u64 x_pitch, const i32 *index, Unit *out, u64 out_pitch, u32 count, u32 units, \
             u32 other_rows, u32 scatter) {                                                                \
        move_rows<Unit>(x, x_pitch, index, out, out_pitch, count, units, other_rows, scatter);             \
    }

ENTRY(move_rows_16, uint4)
ENTRY(move_rows_4, u32)
ENTRY(move_rows_1, u8)

#else

// Quotients as 8-bit codes, N together.
struct Int8 {
    static constexpr float limit = 127.f;
    template <int N> static __device__ __forceinline__ void codes(const float (&x)[N], u8 (&code)[N]) {
#pragma unroll
        for (int i = 0; i < N; i++) code[i] = (u8)(i8)max(-127, min(127, __float2int_rn(x[i])));
    }
};
struct Fp8 {
    static constexpr float limit = 448.f;
    template <int N> static __device__ __forceinline__ void codes(const float (&x)[N], u8 (&code)[N]) {
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            u16 pair = pack2_e4m3(x[i], x[i + 1 < N ? i + 1 : i]);
            code[i] = (u8)pair;
            if (i + 1 < N) code[i + 1] = (u8)(pair >> 8);
        }
    }
};

// Codes of x / scale at q, which is aligned to N.
template <typename Code, int N> __device__ __forceinline__ void store_codes(u8 *q, float (&x)[N], float scale) {
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = scale == 0.f ? 0.f : x[i] / scale;
    u8 code[N];
    Code::codes(x, code);
    if constexpr (N == 1) {
        q[0] = code[0];
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 4)
            *(u32 *)(q + i) = code[i] | (u32)code[i + 1] << 8 | (u32)code[i + 2] << 16 | (u32)code[i + 3] << 24;
    }
}

// A block a row, one scale a row; the second pass finds the row in the cache.
template <typename Code, int N>
__device__ __forceinline__ void quantize_row(const ACT *x, u64 x_stride, u8 *q, u64 q_stride, float *scales,
                                             u64 scale_stride, u32 width) {
    __shared__ float shared[32];
    wait_for_previous();
    x += blockIdx.x * x_stride;
    q += blockIdx.x * q_stride;
    float largest = 0.f;
    for (u32 i = threadIdx.x; i < width / N; i += blockDim.x) {
        Group<ACT, N> group;
        float v[N];
        group.load(x + i * N);
        group.get(v);
#pragma unroll
        for (int k = 0; k < N; k++) largest = fmaxf(largest, fabsf(v[k]));
    }
    float scale = block_max(largest, shared) / Code::limit;
    let_next_start();
    for (u32 i = threadIdx.x; i < width / N; i += blockDim.x) {
        Group<ACT, N> group;
        float v[N];
        group.load(x + i * N);
        group.get(v);
        store_codes<Code>(q + i * N, v, scale);
    }
    if (threadIdx.x == 0) scales[blockIdx.x * scale_stride] = scale;
}

// 32 / N neighbouring threads a group of 32 values; `groups` threads a row, `total` threads.
template <int N>
__device__ __forceinline__ void quantize_block(const ACT *x, u64 x_stride, u8 *q, u64 q_stride, float *scales,
                                               u64 scale_stride, u32 groups, u32 total) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    bool live = i < total;
    u32 row = live ? i / groups : 0, column = live ? (i - row * groups) * N : 0;
    wait_for_previous();
    Group<ACT, N> group;
    float v[N], largest = 0.f;
    group.zero();
    if (live) group.load(x + row * x_stride + column);
    let_next_start();
    group.get(v);
#pragma unroll
    for (int k = 0; k < N; k++) largest = fmaxf(largest, fabsf(v[k]));
#pragma unroll
    for (int mask = 16 / N; mask > 0; mask >>= 1) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, mask));
    if (!live) return;
    float scale = largest / Int8::limit;
    store_codes<Int8>(q + row * q_stride + column, v, scale);
    if (column % 32 == 0) scales[row * scale_stride + column / 32] = scale;
}

#define ROW_ENTRY(name, Code, N)                                                                            \
    extern "C" __global__ void __launch_bounds__(256)                                                       \
        name(const ACT *x, u64 x_stride, u8 *q, u64 q_stride, float *scales, u64 scale_stride, u32 width) { \
        quantize_row<Code, N>(x, x_stride, q, q_stride, scales, scale_stride, width);                       \
    }
ROW_ENTRY(quantize_int8_vector, Int8, per_vector<ACT>)
ROW_ENTRY(quantize_int8_scalar, Int8, 1)
ROW_ENTRY(quantize_fp8_vector, Fp8, per_vector<ACT>)
ROW_ENTRY(quantize_fp8_scalar, Fp8, 1)

#define BLOCK_ENTRY(name, N)                                                                                         \
    extern "C" __global__ void __launch_bounds__(256) name(const ACT *x, u64 x_stride, u8 *q, u64 q_stride,          \
                                                           float *scales, u64 scale_stride, u32 groups, u32 total) { \
        quantize_block<N>(x, x_stride, q, q_stride, scales, scale_stride, groups, total);                            \
    }
BLOCK_ENTRY(quantize_block32_vector, per_vector<ACT>)
BLOCK_ENTRY(quantize_block32_scalar, 1)

// 32 columns of a sequence a block; its eight warps share the tokens. `mode`: 0 last, 1 mean, 2 first. Starts are kept
// inside 0 .. num_tokens.
extern "C" __global__ void __launch_bounds__(256)
    pool_rows(const ACT *x, u64 x_stride, u32 num_tokens, const i32 *query_start_loc, float *out, u64 out_stride,
              u32 width, u32 mode) {
    __shared__ float parts[8][33];
    wait_for_previous();
    i32 start = max(0, query_start_loc[blockIdx.x]), end = min((i32)num_tokens, query_start_loc[blockIdx.x + 1]);
    i32 count = max(0, end - start);
    if (count > 0 && mode != 1) {
        start = mode == 0 ? end - 1 : start;
        end = start + 1;
    }
    u32 column = blockIdx.y * 32 + (threadIdx.x & 31), warp = threadIdx.x >> 5;
    float sum = 0.f;
    if (column < width) {
        for (i32 t = start + (i32)warp; t < end; t += 8) sum += to_f32(x[t * x_stride + column]);
    }
    let_next_start();
    parts[warp][threadIdx.x & 31] = sum;
    __syncthreads();
    if (warp > 0 || column >= width) return;
    for (int i = 1; i < 8; i++) sum += parts[i][threadIdx.x];
    out[blockIdx.x * out_stride + column] = mode == 1 && count > 0 ? sum / (float)count : sum;
}

// A block a row: divides by the Euclidean norm, at least 1e-12.
extern "C" __global__ void __launch_bounds__(256) pool_normalize(float *out, u64 out_stride, u32 width) {
    __shared__ float shared[32];
    wait_for_previous();
    float *row = out + blockIdx.x * out_stride, part = 0.f;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) part += row[i] * row[i];
    float norm = fmaxf(sqrtf(block_sum(part, shared)), 1e-12f);
    let_next_start();
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) row[i] /= norm;
}

#endif
