// Tokens rounded to 8-bit floats (E4M3) with a scale a token, for products with 8-bit weights: scale = max|x| / 448;
// tokens of zeros have codes of zero. Codes stand in the order of the weights' (scaled.cuh), so that their products add
// up over the same depths; with RECORDS in that of a record's (quantized.cuh). With NORM tokens are normed first, as
// rms_norm norms them, and rounded to ACT as it does.
//
// With RECORDS and without NORM also what a library's product of 128 depths a scale wants: tokens rounded so, and the
// codes and scales of records apart. Both in a record's order.
//
// Definitions: ACT (bf16, f16); KEPT (1 to 8: eights of values that a thread keeps; without NORM longer rows are read
// twice); NORM (0, 1); RECORDS (0, 1).
// scaled_tokens: grid tokens, 256 threads. `codes`: rows of k bytes; `scales`: one a token; `norm`: k weights. Needs: k
// and x_stride multiples of 16 (128 with RECORDS) and 8, with NORM k up to KEPT * 2048; x, codes and norm 16-byte
// aligned.
// scaled_groups: grid tokens, 256 threads; `scales` [k / 128][`columns`], the token's in its column. Needs: k a
// multiple of 128, x_stride one of 8, x and codes 16-byte aligned.
// rows_of_records: grid ⌈rows / 8⌉ · k / 512 rounded up, 256 threads: rows from `first_row`, a multiple of 8, to
// `codes` [rows][k] and `scales` [k / 128][rows]; with `blocks` [rows / 128][k / 128 rounded up to a multiple of four],
// and first_row and rows multiples of 128.
// check: -DACT=bf16 -DKEPT=8 -DNORM=0 -DRECORDS=0
// check: -DACT=f16 -DKEPT=1 -DNORM=0 -DRECORDS=0
// check: -DACT=bf16 -DKEPT=2 -DNORM=1 -DRECORDS=1
// check: -DACT=bf16 -DKEPT=1 -DNORM=0 -DRECORDS=1
#include "scaled.cuh"
#include "vector.cuh"

constexpr float kLargestCode = 448.f;
// Largest values below it count as zero: their factor would be no number.
constexpr float kLeast = 1e-30f;

__device__ __forceinline__ u32 codes_of(const float *v, float factor) {
    u32 file = pack2_e4m3(v[0] * factor, v[1] * factor) | (u32)pack2_e4m3(v[2] * factor, v[3] * factor) << 16;
    return RECORDS ? file : shuffle_codes(file);
}

// Codes of eight values from depth `at` on. A record's order is [half of four chunks][lane][chunk of the half][half of
// the chunk], each with the lane's four of 16 depths.
__device__ __forceinline__ void put_codes(u8 *codes, u32 at, const float *v, float factor) {
    u32 low = codes_of(v, factor), high = codes_of(v + 4, factor);
    if (!RECORDS) {
        *(uint2 *)(codes + at) = make_uint2(low, high);
        return;
    }
    u32 chunk = at / 32 % 4, lane = at % 16 / 4;
    u32 *to = (u32 *)(codes + at / 128 * 128 + chunk / 2 * 64 + lane * 16 + chunk % 2 * 8 + at % 32 / 16 * 4);
    to[0] = low;
    to[4] = high;
}

extern "C" __global__ void __launch_bounds__(256)
    scaled_tokens(const ACT *x, u32 x_stride, u8 *codes, float *scales, u32 k, const float *norm, float norm_offset,
                  float eps) {
    __shared__ float shared[32];
    x += (u64)blockIdx.x * x_stride;
    codes += (u64)blockIdx.x * k;
    Group<ACT, 8> kept[KEPT];
    float v[8];
#if NORM
    Group<float, 8> weights[KEPT];
#pragma unroll
    for (u32 i = 0; i < KEPT; i++) {
        u32 at = 8 * (threadIdx.x + i * blockDim.x);
        weights[i].zero();
        if (at < k) weights[i].load(norm + at);
    }
#endif
    let_next_start();
    wait_for_previous();
#pragma unroll
    for (u32 i = 0; i < KEPT; i++) {
        u32 at = 8 * (threadIdx.x + i * blockDim.x);
        kept[i].zero();
        if (at < k) kept[i].load(x + at);
    }
#if NORM
    float squares = 0.f;
#pragma unroll
    for (u32 i = 0; i < KEPT; i++) {
        kept[i].get(v);
#pragma unroll
        for (u32 j = 0; j < 8; j++) squares += v[j] * v[j];
    }
    float inverse = 1.f / sqrtf(block_sum(squares, shared) * (1.f / k) + eps);
#pragma unroll
    for (u32 i = 0; i < KEPT; i++) {
        float w[8];
        kept[i].get(v);
        weights[i].get(w);
#pragma unroll
        for (u32 j = 0; j < 8; j++) v[j] = v[j] * inverse * (w[j] + norm_offset);
        kept[i].set(v);
    }
#endif
    float largest = 0.f;
#pragma unroll
    for (u32 i = 0; i < KEPT; i++) {
        kept[i].get(v);
#pragma unroll
        for (u32 j = 0; j < 8; j++) largest = fmaxf(largest, fabsf(v[j]));
    }
    for (u32 at = 8 * (threadIdx.x + KEPT * blockDim.x); !NORM && at < k; at += 8 * blockDim.x) {
        Group<ACT, 8> group;
        group.load(x + at);
        group.get(v);
#pragma unroll
        for (u32 j = 0; j < 8; j++) largest = fmaxf(largest, fabsf(v[j]));
    }
    largest = block_max(largest, shared);
    float factor = largest > kLeast ? kLargestCode / largest : 0.f;
    if (threadIdx.x == 0) scales[blockIdx.x] = largest * (1.f / kLargestCode);
#pragma unroll
    for (u32 i = 0; i < KEPT; i++) {
        u32 at = 8 * (threadIdx.x + i * blockDim.x);
        kept[i].get(v);
        if (at < k) put_codes(codes, at, v, factor);
    }
    for (u32 at = 8 * (threadIdx.x + KEPT * blockDim.x); !NORM && at < k; at += 8 * blockDim.x) {
        Group<ACT, 8> group;
        group.load(x + at);
        group.get(v);
        put_codes(codes, at, v, factor);
    }
}

#if RECORDS && !NORM
// Sixteen threads have a group of 128 values.
extern "C" __global__ void __launch_bounds__(256)
    scaled_groups(const ACT *x, u32 x_stride, u8 *codes, float *scales, u32 k, u32 columns) {
    x += (u64)blockIdx.x * x_stride;
    codes += (u64)blockIdx.x * k;
    u32 mask = 0xffffu << threadIdx.x % 32 / 16 * 16;
    let_next_start();
    wait_for_previous();
    for (u32 at = 8 * threadIdx.x; at < k; at += 8 * blockDim.x) {
        Group<ACT, 8> group;
        float v[8], largest = 0.f;
        group.load(x + at);
        group.get(v);
#pragma unroll
        for (u32 j = 0; j < 8; j++) largest = fmaxf(largest, fabsf(v[j]));
#pragma unroll
        for (u32 lanes = 8; lanes > 0; lanes /= 2) largest = fmaxf(largest, __shfl_xor_sync(mask, largest, lanes));
        put_codes(codes, at, v, largest > kLeast ? kLargestCode / largest : 0.f);
        if (at % 128 == 0) scales[(u64)(at / 128) * columns + blockIdx.x] = largest * (1.f / kLargestCode);
    }
}

// 64 threads have a record: 16 bytes of its codes each, and eight of them a scale. Of blocks, whose 128 rows have the
// same scales, the first record has the block's.
extern "C" __global__ void __launch_bounds__(256)
    rows_of_records(const u8 *records, u8 *codes, float *scales, u32 k, u32 first_row, u32 num_rows, u32 blocks) {
    constexpr u32 kCodes = 1024, kRecord = kCodes + 32;
    u32 groups = k / 128, unit = threadIdx.x % 64, record = blockIdx.x * 4 + threadIdx.x / 64;
    u32 group = record % groups, block = record / groups, row = 8 * block + unit % 32 / 4, scaled = 8 * block + unit;
    let_next_start();
    wait_for_previous();
    if (8 * block >= num_rows) return;
    const u8 *from = records + ((u64)(first_row / 8 + block) * groups + group) * kRecord;
    u32 lane = unit % 4 ^ row % 8 / 2;
    uint4 word = load_streaming(from + 16 * unit);
    if (row < num_rows) *(uint4 *)(codes + (u64)row * k + 128 * group + 64 * (unit / 32) + 16 * lane) = word;
    float scale = ((const float *)(from + kCodes))[unit % 8];
    if (blocks && unit == 0 && row % 128 == 0) scales[row / 128 * ((groups + 3) / 4 * 4) + group] = scale;
    if (!blocks && unit < 8 && scaled < num_rows) scales[(u64)group * num_rows + scaled] = scale;
}
#endif
