// `linear` of many tokens where there are neither NVIDIA's matrix units nor a library: 64 output rows by 64 tokens a
// block, through shared memory.
//
// In f32 each thread sums 4 rows by 4 tokens over steps of 32 depths; the next step's values are on their way while one
// is multiplied. 16-bit activations over weights of their own type go to the matrix units of AMD's CDNA where the
// device has them, a quarter of the tile a wave. Any size and stride, as linear_plain. Every sum runs over the depths
// in order, whatever else is in the call.
//
// Definitions: ACT, WEIGHT, OUT (f32, f16, bf16), EPILOGUE (see activate.cuh). Grid (⌈n / 64⌉, ⌈tokens / 64⌉), 256
// threads.
// revision: 1
// check: -DACT=f32 -DWEIGHT=f32 -DOUT=f32 -DEPILOGUE=0
// check: -DACT=bf16 -DWEIGHT=bf16 -DOUT=bf16 -DEPILOGUE=1
// check: -DACT=f16 -DWEIGHT=f16 -DOUT=f32 -DEPILOGUE=3
#include "activate.cuh"
#include "common.cuh"
#include "mfma.cuh"

constexpr u32 kTile = 64, kDepths = 32, kThreads = 256;
// Values of a step that a thread loads, of each side.
constexpr u32 kMine = kTile * kDepths / kThreads;
// Rows of shared memory start 16 bytes apart modulo the banks, and at multiples of 16 bytes.
constexpr u32 kPitch = kTile + 4;

// A thread's part of a step: neighbours in a warp are neighbours in depth. Rows and depths beyond the matrix are zero.
template <typename T> struct Step {
    T values[kMine];

    __device__ __forceinline__ void load(const T *from, u32 stride, u32 rows, u32 first_depth, u32 k) {
        u32 depth = first_depth + threadIdx.x % kDepths, row = threadIdx.x / kDepths;
#pragma unroll
        for (u32 i = 0; i < kMine; i++, row += kThreads / kDepths)
            values[i] = depth < k && row < rows ? from[(u64)row * stride + depth] : from_f32<T>(0.f);
    }
    // As floats, transposed.
    __device__ __forceinline__ void keep(float (*to)[kPitch]) const {
        u32 row = threadIdx.x / kDepths;
#pragma unroll
        for (u32 i = 0; i < kMine; i++, row += kThreads / kDepths) to[threadIdx.x % kDepths][row] = to_f32(values[i]);
    }
#if defined(MFMA)
    // As they are, row by row.
    __device__ __forceinline__ void keep_bits(T *to) const {
        u32 row = threadIdx.x / kDepths;
#pragma unroll
        for (u32 i = 0; i < kMine; i++, row += kThreads / kDepths)
            to[row * (kDepths + 4) + threadIdx.x % kDepths] = values[i];
    }
#endif
};

// What becomes of a sum.
struct Outcome {
    const float *bias;
    const OUT *residual;
    OUT *out;
    u32 residual_stride, out_stride;

    __device__ __forceinline__ void write(float sum, u32 row, u64 token) const {
        if (bias) sum += bias[row];
        sum = activate<EPILOGUE>(sum);
        if (residual) sum += to_f32(residual[token * residual_stride + row]);
        out[token * out_stride + row] = from_f32<OUT>(sum);
    }
};

#if defined(MFMA)
template <typename A, typename B> struct Pair {
    static constexpr bool on_matrix_units = false;
};
template <> struct Pair<bf16, bf16> {
    static constexpr bool on_matrix_units = true;
};
template <> struct Pair<f16, f16> {
    static constexpr bool on_matrix_units = true;
};

// Rows of shared memory are 8 bytes longer than a step's 32 values, so that neighbouring rows begin in other banks.
constexpr u32 kRowWords = kDepths / 2 + 2;

// 32 tokens by 32 rows a wave: wave w takes rows 32 · (w % 2) .. and tokens 32 · (w / 2) .. of the tile.
template <typename T>
__device__ __forceinline__ void tile_on_matrix_units(const T *x, const T *w, u32 x_stride, u32 rows, u32 columns, u32 k,
                                                     u32 first_row, u32 first_token, const Outcome &outcome) {
    __shared__ u64 memory[2 * kTile * kRowWords / 2];
    u32 *left = (u32 *)memory, *right = left + kTile * kRowWords;
    Step<T> weights, values;
    weights.load(w, k, rows, 0, k);
    values.load(x, x_stride, columns, 0, k);
    u32 lane = threadIdx.x % 64, wave = threadIdx.x / 64, my_row = wave % 2 * 32 + lane % 32, my_token = wave / 2 * 32;
    // Four depths of this lane, of each step of eight.
    const uint2 *a = (const uint2 *)(right + (my_token + lane % 32) * kRowWords) + lane / 32;
    const uint2 *b = (const uint2 *)(left + my_row * kRowWords) + lane / 32;
    MfmaSums sums = {};
    for (u32 depth = 0; depth < k; depth += kDepths) {
        weights.keep_bits((T *)left);
        values.keep_bits((T *)right);
        __syncthreads();
        if (depth + kDepths < k) {
            weights.load(w, k, rows, depth + kDepths, k);
            values.load(x, x_stride, columns, depth + kDepths, k);
        }
#pragma unroll
        for (u32 step = 0; step < kDepths / 8; step++) sums = mfma_32x32x8<T>(a[2 * step], b[2 * step], sums);
        __syncthreads();
    }
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
        u32 token = my_token + mfma_row(lane, i);
        if (token < columns && my_row < rows) outcome.write(sums[i], first_row + my_row, first_token + token);
    }
}
#endif

extern "C" __global__ void __launch_bounds__(256)
    linear_tiled(const ACT *x, const WEIGHT *w, const float *bias, const OUT *residual, OUT *out, u32 x_stride,
                 u32 residual_stride, u32 out_stride, u32 tokens, u32 n, u32 k) {
    u32 first_row = blockIdx.x * kTile, first_token = blockIdx.y * kTile;
    u32 rows = min(n - first_row, kTile), columns = min(tokens - first_token, kTile);
    w += (u64)first_row * k;
    x += (u64)first_token * x_stride;
    Outcome outcome = {bias, residual, out, residual_stride, out_stride};
#if defined(MFMA)
    if constexpr (Pair<ACT, WEIGHT>::on_matrix_units) {
        tile_on_matrix_units<ACT>(x, w, x_stride, rows, columns, k, first_row, first_token, outcome);
        return;
    }
#endif
    __shared__ float4 memory[2 * kDepths * kPitch / 4];
    float(*left)[kPitch] = reinterpret_cast<float(*)[kPitch]>(memory), (*right)[kPitch] = left + kDepths;
    Step<WEIGHT> weights;
    Step<ACT> values;
    weights.load(w, k, rows, 0, k);
    let_next_start();
    wait_for_previous();
    values.load(x, x_stride, columns, 0, k);

    u32 my_row = threadIdx.x % 16 * 4, my_token = threadIdx.x / 16 * 4;
    float sums[4][4] = {};
    for (u32 depth = 0; depth < k; depth += kDepths) {
        weights.keep(left);
        values.keep(right);
        __syncthreads();
        if (depth + kDepths < k) {
            weights.load(w, k, rows, depth + kDepths, k);
            values.load(x, x_stride, columns, depth + kDepths, k);
        }
#pragma unroll
        for (u32 d = 0; d < kDepths; d++) {
            float4 a = *(const float4 *)&left[d][my_row], b = *(const float4 *)&right[d][my_token];
            float as[4] = {a.x, a.y, a.z, a.w}, bs[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
            for (u32 t = 0; t < 4; t++)
#pragma unroll
                for (u32 r = 0; r < 4; r++) sums[t][r] = fmaf(as[r], bs[t], sums[t][r]);
        }
        __syncthreads();
    }
#pragma unroll
    for (u32 t = 0; t < 4; t++)
#pragma unroll
        for (u32 r = 0; r < 4; r++)
            if (my_token + t < columns && my_row + r < rows)
                outcome.write(sums[t][r], first_row + my_row + r, first_token + my_token + t);
}
