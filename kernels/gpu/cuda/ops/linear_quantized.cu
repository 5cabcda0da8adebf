// `linear` of weights in blocks, GGUF's and canonical ones: packing them into records, unpacking them for a library
// product, and the product with few tokens, which reads the records once and never writes a weight. The records' layout
// stands in quantized.cuh.
//
// 16-bit activations go to the matrix units: the stored numbers are exact there, and each chunk's sum is scaled in f32.
// f32 activations are multiplied in f32, one warp a row; so are those of NF4 and FP4, whose numbers take 24 bits.
//
// Definitions: FORMAT (see quantized.cuh), ACT, OUT (f32, f16, bf16), MATRIX (1: ACT is a 16-bit type and there are
// matrix units), EPILOGUE (see activate.cuh). quantized_pack: grid ⌈rows · 4 · groups / 256⌉, 256 threads.
// quantized_unpack: grid ⌈records of the rows · groups · 32 / 256⌉, 256 threads. linear_quantized_n (MATRIX): grid (⌈n
// / 16⌉, ⌈tokens / 8n⌉), 256 threads, 8 · 8n · 20 · 4 bytes of dynamic shared memory. linear_quantized_plain: grid (⌈n
// / 8⌉, ⌈tokens / 8⌉), 256 threads.
// Needs x 8-byte aligned with a stride that is a multiple of 4 (MATRIX).
// revision: 2
// check: -DFORMAT=3 -DACT=bf16 -DOUT=bf16 -DMATRIX=1 -DEPILOGUE=0
// check: -DFORMAT=4 -DACT=f16 -DOUT=f16 -DMATRIX=1 -DEPILOGUE=1
// check: -DFORMAT=5 -DACT=bf16 -DOUT=bf16 -DMATRIX=1 -DEPILOGUE=0
// check: -DFORMAT=6 -DACT=bf16 -DOUT=f32 -DMATRIX=1 -DEPILOGUE=0
// check: -DFORMAT=7 -DACT=bf16 -DOUT=bf16 -DMATRIX=1 -DEPILOGUE=0
// check: -DFORMAT=8 -DACT=f16 -DOUT=f32 -DMATRIX=1 -DEPILOGUE=0
// check: -DFORMAT=3 -DACT=f32 -DOUT=f32 -DMATRIX=0 -DEPILOGUE=0
// check: -DFORMAT=8 -DACT=f32 -DOUT=f32 -DMATRIX=0 -DEPILOGUE=2
// check: -DFORMAT=4 -DACT=bf16 -DOUT=bf16 -DMATRIX=0 -DEPILOGUE=0
// check: -DFORMAT=40 -DACT=bf16 -DOUT=bf16 -DMATRIX=1 -DEPILOGUE=0
// check: -DFORMAT=41 -DACT=f16 -DOUT=f16 -DMATRIX=1 -DEPILOGUE=0
// check: -DFORMAT=42 -DACT=bf16 -DOUT=bf16 -DMATRIX=1 -DEPILOGUE=0
// check: -DFORMAT=43 -DACT=bf16 -DOUT=bf16 -DMATRIX=1 -DEPILOGUE=0
// check: -DFORMAT=44 -DACT=f16 -DOUT=f16 -DMATRIX=1 -DEPILOGUE=0
// check: -DFORMAT=47 -DACT=bf16 -DOUT=f32 -DMATRIX=1 -DEPILOGUE=1
// check: -DFORMAT=48 -DACT=bf16 -DOUT=bf16 -DMATRIX=1 -DEPILOGUE=0
// check: -DFORMAT=49 -DACT=f16 -DOUT=f16 -DMATRIX=1 -DEPILOGUE=0
// check: -DFORMAT=52 -DACT=bf16 -DOUT=bf16 -DMATRIX=1 -DEPILOGUE=0
// check: -DFORMAT=55 -DACT=bf16 -DOUT=bf16 -DMATRIX=1 -DEPILOGUE=0
// check: -DFORMAT=40 -DACT=f32 -DOUT=f32 -DMATRIX=0 -DEPILOGUE=0
// check: -DFORMAT=43 -DACT=bf16 -DOUT=bf16 -DMATRIX=0 -DEPILOGUE=0
// check: -DFORMAT=46 -DACT=f32 -DOUT=f32 -DMATRIX=0 -DEPILOGUE=0
// check: -DFORMAT=48 -DACT=f16 -DOUT=f16 -DMATRIX=0 -DEPILOGUE=2
// check: -DFORMAT=50 -DACT=bf16 -DOUT=bf16 -DMATRIX=0 -DEPILOGUE=0
// check: -DFORMAT=51 -DACT=f16 -DOUT=f16 -DMATRIX=0 -DEPILOGUE=0
// check: -DFORMAT=53 -DACT=f32 -DOUT=f32 -DMATRIX=0 -DEPILOGUE=0
#include "activate.cuh"
#include "common.cuh"
#include "mma.cuh"
#include "records.cuh"
#include "weights.cuh"

#if FORMAT < 40
// The stored number of value `j` (0 .. 31) of chunk `chunk` of a file's block.
__device__ __forceinline__ u32 number_in_file(const u8 *block, u32 chunk, u32 j) {
    if (FORMAT == 3) return block[2 + (j & 15)] >> (j / 16 * 4) & 15;
    if (FORMAT == 4) return block[4 + (j & 15)] >> (j / 16 * 4) & 15;
    if (FORMAT == 5) return (block[6 + (j & 15)] >> (j / 16 * 4) & 15) | (block[2 + j / 8] >> (j & 7) & 1) << 4;
    if (FORMAT == 6) return block[2 + j];
    if (FORMAT == 7) return block[16 + chunk / 2 * 32 + j] >> ((chunk & 1) * 4) & 15;
    u32 part = chunk / 4, quarter = chunk & 3;
    u32 low = block[part * 64 + (quarter & 1) * 32 + j] >> (quarter / 2 * 4) & 15;
    return low | (block[128 + part * 32 + j] >> (2 * quarter) & 3) << 4;
}

__device__ __forceinline__ u32 half_in_file(const u8 *at) { return at[0] | (u32)at[1] << 8; }

// The scale word of a chunk: 16 bits, or 32 for a scale and a minimum of their own.
__device__ __forceinline__ u32 scale_in_file(const u8 *block, u32 chunk) {
    if (FORMAT == 4) return half_in_file(block) | half_in_file(block + 2) << 16;
    if (FORMAT == 7) {
        // Six bits each: the first four chunks plainly, the others in the spare bits.
        const u8 *s = block + 4;
        u32 scale = chunk < 4 ? s[chunk] & 63 : (s[chunk + 4] & 15) | s[chunk - 4] >> 6 << 4;
        u32 min = chunk < 4 ? s[chunk + 4] & 63 : s[chunk + 4] >> 4 | s[chunk] >> 6 << 4;
        return scale | min << 8;
    }
    if (FORMAT == 8) return half_in_file(block + 192 + 2 * chunk);
    return half_in_file(block);
}
#endif

#if FORMAT >= 40
// A group's scale, and its minimum as a multiple of it (quantized.cuh). Multiples that a rounded minimum is next to are
// whole. Where the scale is nothing beside the minimum, all values are that: codes are zero then.
struct Grain {
    float scale, multiple;
    bool flat;
};
__device__ __forceinline__ Grain grain_in_file(const u8 *group) {
    float scale = __uint_as_float(WORD_AT(group)), low = __uint_as_float(WORD_AT(group + 4 * (SCALE_WORDS - 1)));
    if (SCALE_WORDS == 1) return {scale, 0.f, false};
    if (fabsf(scale) * 1073741824.f <= fabsf(low)) return {low, 1.f, true};
    float multiple = low / scale, whole = floorf(multiple + 0.5f);
    bool is_whole = fabsf(fmaf(-whole, scale, low)) <= 1.1920929e-7f * fabsf(low);
    return {scale, is_whole ? whole : multiple, false};
}

// Whether one of a group's codes is no number. Then the scale is none either: a row's products are the same, and
// operands need no NaN among their codes.
__device__ __forceinline__ bool has_nan(const u8 *row, u32 first) {
    bool found = false;
    for (u32 i = 0; i < GROUP_VALUES && FORMAT >= 53; i++) found |= (code_at(row, first + i) & 0x7f) == 0x7f;
    return found;
}
#endif

// Rows `first_row ..` of the matrix from canonical bytes. One thread a chunk.
extern "C" __global__ void __launch_bounds__(256)
    quantized_pack(const u8 *file, u8 *packed, u32 n, u32 k, u32 first_row, u32 num_rows) {
    wait_for_previous();
    Records all = records_of(packed, k);
    u64 index = (u64)blockIdx.x * 256 + threadIdx.x;
    u32 chunks = 4 * all.groups, chunk = (u32)(index % chunks);
    u64 local = index / chunks;
    if (local >= num_rows) return;
    u8 *record = record_of(all, (u32)((first_row + local) / kRecordRows), chunk / 4);
    u32 slot = chunk & 3, row_of_record = (u32)((first_row + local) % kRecordRows);
    bool present = 32 * chunk < k;
#if FORMAT >= 40
    const u8 *row = file + local * (k / GROUP_VALUES) * GROUP_BYTES;
    // Of each half of the chunk.
    bool flat[2] = {};
    for (u32 half = 0; half < 2 && present; half++)
        flat[half] = grain_in_file(row + (32 * chunk + 16 * half) / GROUP_VALUES * GROUP_BYTES).flat;
#define NUMBER_IN_FILE(j) (flat[(j) / 16] ? 0 : code_at(row, 32 * chunk + (j)))
#else
    u32 in_block = chunk % (kFileBlock / 32);
    const u8 *block = file + (local * (k / kFileBlock) + 32 * chunk / kFileBlock) * kFileBytes;
#define NUMBER_IN_FILE(j) number_in_file(block, in_block, j)
#endif
    for (u32 t = 0; t < 4; t++) {
        u32 word = 0, fifth = 0, pairs = 0;
        u8 bytes[8] = {};
        for (u32 i = 0; i < 8 && present; i++) {
            u32 number = NUMBER_IN_FILE((i < 4 ? 0 : 16) + 4 * t + (i & 3));
            u32 odd = i & 1, pair = i / 2;
            bytes[i] = (u8)number;
            word |= (number & 15) << (4 * (pair + 4 * odd));
            fifth |= (number >> 4 & 1) << (pair + 4 * odd);
            pairs |= (number >> 4 & 3) << (2 * pair + 8 * odd);
        }
        u8 *quants = record + codes_in_record(row_of_record, t, kBytes ? slot / 2 : 0);
        u8 *high = record + high_in_record(row_of_record, t);
        if (kBytes) {
            for (u32 i = 0; i < 8; i++) quants[8 * (slot % 2) + i] = bytes[i];
        } else {
            *(u32 *)(quants + 4 * slot) = word;
        }
        if (FORMAT == 5) high[slot] = (u8)fifth;
        if (FORMAT == 8) ((u16 *)high)[slot] = (u16)pairs;
    }
    u32 *scales = (u32 *)(record + scales_in_record(row_of_record));
#if FORMAT >= 40
    // The scales of groups that begin in this chunk.
    for (u32 first = 32 * slot; first < 32 * slot + 32; first += 16) {
        if (first % GROUP_VALUES != 0) continue;
        const u8 *group = row + (128 * (chunk / 4) + first) / GROUP_VALUES * GROUP_BYTES;
        u32 *to = scales + first / GROUP_VALUES * SCALE_WORDS;
        Grain grain = {0.f, 0.f, false};
        if (present) grain = grain_in_file(group);
        bool is_nan = present && has_nan(row, 128 * (chunk / 4) + first);
        to[0] = is_nan ? 0x7fc00000 : __float_as_uint(grain.scale);
        if (SCALE_WORDS == 2) to[SCALE_WORDS - 1] = __float_as_uint(grain.multiple);
    }
#else
    u32 scale = present ? scale_in_file(block, in_block) : 0;
    if (FORMAT == 4) scales[slot] = scale;
    else ((u16 *)scales)[slot] = (u16)scale;
    if (kFileBlock == 256 && slot == 0)
        scales[2] = FORMAT == 7 ? half_in_file(block) | half_in_file(block + 2) << 16 : half_in_file(block + 208);
#endif
}

// Rows `first_row ..` as plain values, row-major. One thread a lane's part of a group; a warp has a record.
extern "C" __global__ void __launch_bounds__(256)
    quantized_unpack(u8 *packed, ACT *out, u32 n, u32 k, u32 first_row, u32 num_rows) {
    let_next_start();
    wait_for_previous();
    Records all = records_of(packed, k);
    u32 index = blockIdx.x * 256 + threadIdx.x, t = index & 3, group = index / 32 % all.groups;
    u32 row = first_row / kRecordRows * kRecordRows + index / 32 / all.groups * kRecordRows + index / 4 % kRecordRows;
    if (row < first_row || row >= first_row + num_rows) return;
    unpack_part(all, row, group, t, out + (u64)(row - first_row) * k, k);
}

__device__ __forceinline__ void write_out(float sum, const float *bias, const OUT *residual, OUT *out,
                                          u32 residual_stride, u32 out_stride, u64 token, u32 row) {
    if (bias) sum += bias[row];
    sum = activate<EPILOGUE>(sum);
    if (residual) sum += to_f32(residual[token * residual_stride + row]);
    out[token * out_stride + row] = from_f32<OUT>(sum);
}

#if MATRIX
constexpr u32 kWarps = 8, kColumn = 20;
// Whether a chunk has two scales.
constexpr bool kFine = kRun == 16;

template <int TILES>
__device__ __forceinline__ void product(const ACT *x, u8 *packed, const float *bias, const OUT *residual, OUT *out,
                                        u32 x_stride, u32 residual_stride, u32 out_stride, u32 tokens, u32 n, u32 k) {
    extern __shared__ float shared[];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    Records all = records_of(packed, k);
    u32 rows[2] = {min(blockIdx.x * 16 + g, n - 1), min(blockIdx.x * 16 + g + 8, n - 1)};
    Group ahead[2];
    if (warp < all.groups)
        for (int h = 0; h < 2; h++) ahead[h] = load_group(all, rows[h], warp, t);
    let_next_start();
    wait_for_previous();

    u32 first_token = blockIdx.y * 8 * TILES;
    const ACT *values[TILES];
    bool present[TILES];
#pragma unroll
    for (u32 i = 0; i < TILES; i++) {
        u32 token = first_token + 8 * i + g;
        present[i] = token < tokens;
        values[i] = x + (u64)token * x_stride + 4 * t;
    }
    u32 one = pack2<ACT>(1.f, 1.f), ones[4] = {one, one, one, one};
    float sums[TILES][4] = {};
#pragma unroll 1
    for (u32 group = warp; group < all.groups; group += kWarps) {
        Group v[2] = {ahead[0], ahead[1]};
        if (group + kWarps < all.groups)
            for (int h = 0; h < 2; h++) ahead[h] = load_group(all, rows[h], group + kWarps, t);
        uint2 low[4][TILES], high[4][TILES];
#pragma unroll
        for (u32 c = 0; c < 4; c++)
#pragma unroll
            for (u32 i = 0; i < TILES; i++) {
                u32 depth = 128 * group + 32 * c;
                low[c][i] = load_values8(values[i] + depth, present[i] && depth < k);
                high[c][i] = load_values8(values[i] + depth + 16, present[i] && depth < k);
            }
#pragma unroll
        for (u32 c = 0; c < 4; c++) {
            u32 a[4], b[4];
            operands_of<ACT>(v[0].codes, c, a);
            operands_of<ACT>(v[1].codes, c, b);
            float scale[2][2], add[2][2];
#pragma unroll
            for (u32 h = 0; h < 2; h++)
#pragma unroll
                for (u32 upper = 0; upper < 2; upper++) {
                    u32 run = (32 * c + 16 * upper) / kRun;
                    scale[h][upper] = scale_of(v[h].scales, run);
                    add[h][upper] = min_of(v[h].scales, run) * (kGroups ? scale[h][upper] : 1.f);
                }
            u32 first_step[4] = {a[0], b[0], a[1], b[1]}, second_step[4] = {a[2], b[2], a[3], b[3]};
#pragma unroll
            for (u32 i = 0; i < TILES; i++) {
                u32 x0[2] = {low[c][i].x, low[c][i].y}, x1[2] = {high[c][i].x, high[c][i].y};
                float part[4] = {}, other[4] = {}, plain[4] = {}, other_plain[4] = {};
                mma_m16n8k16<ACT>(part, first_step, x0);
                mma_m16n8k16<ACT>(kFine ? other : part, second_step, x1);
                if (kHasMin) {
                    mma_m16n8k16<ACT>(plain, ones, x0);
                    mma_m16n8k16<ACT>(kFine ? other_plain : plain, ones, x1);
                }
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    sums[i][j] = fmaf(scale[j / 2][0], part[j], sums[i][j]);
                    if (kFine) sums[i][j] = fmaf(scale[j / 2][1], other[j], sums[i][j]);
                    if (kHasMin) sums[i][j] = fmaf(add[j / 2][0], plain[j], sums[i][j]);
                    if (kHasMin && kFine) sums[i][j] = fmaf(add[j / 2][1], other_plain[j], sums[i][j]);
                }
            }
        }
    }
#pragma unroll
    for (u32 i = 0; i < TILES; i++) {
        float *to = shared + (warp * 8 * TILES + 8 * i + 2 * t) * kColumn + g;
        to[0] = sums[i][0];
        to[kColumn] = sums[i][1];
        to[8] = sums[i][2];
        to[kColumn + 8] = sums[i][3];
    }
    __syncthreads();
    u32 columns = min(tokens - first_token, 8u * TILES);
    for (u32 i = threadIdx.x; i < 16 * columns; i += kWarps * 32) {
        u32 row = blockIdx.x * 16 + i % 16, column = i / 16;
        if (row >= n) continue;
        float sum = 0.f;
#pragma unroll
        for (u32 w = 0; w < kWarps; w++) sum += shared[(w * 8 * TILES + column) * kColumn + i % 16];
        write_out(sum, bias, residual, out, residual_stride, out_stride, first_token + column, row);
    }
}

#define ENTRY(tiles)                                                                                            \
    extern "C" __global__ void __launch_bounds__(256)                                                           \
        linear_quantized_##tiles(const ACT *x, u8 *packed, const float *bias, const OUT *residual, OUT *out,    \
                                 u32 x_stride, u32 residual_stride, u32 out_stride, u32 tokens, u32 n, u32 k) { \
        product<tiles>(x, packed, bias, residual, out, x_stride, residual_stride, out_stride, tokens, n, k);    \
    }
ENTRY(1)
ENTRY(2)
#endif

// In f32, any stride. One warp a row, eight tokens at a time.
extern "C" __global__ void __launch_bounds__(256)
    linear_quantized_plain(const ACT *x, u8 *packed, const float *bias, const OUT *residual, OUT *out, u32 x_stride,
                           u32 residual_stride, u32 out_stride, u32 tokens, u32 n, u32 k) {
    constexpr u32 kTokens = 8;
    u32 lane = threadIdx.x & 31, row = blockIdx.x * 8 + (threadIdx.x >> 5), first_token = blockIdx.y * kTokens;
    let_next_start();
    wait_for_previous();
    if (row >= n) return;
    Records all = records_of(packed, k);
    u32 count = min(tokens - first_token, kTokens), t = lane & 3;
    const ACT *values = x + (u64)first_token * x_stride;
    float sums[kTokens] = {};
    // Eight lanes-of-four a warp: each takes a group.
    for (u32 group = lane >> 2; group < all.groups; group += 8) {
        Group v = load_group(all, row, group, t);
#pragma unroll
        for (u32 c = 0; c < 4; c++) {
            u32 depth = 128 * group + 32 * c + 4 * t;
            if (depth >= k) break;
            float weights[8];
            values_of(v, c, weights);
#pragma unroll
            for (u32 token = 0; token < kTokens; token++) {
                if (token >= count) continue;
                const ACT *from = values + (u64)token * x_stride + depth;
#pragma unroll
                for (u32 i = 0; i < 8; i++)
                    sums[token] = fmaf(weights[i], to_f32(from[(i < 4 ? 0 : 12) + i]), sums[token]);
            }
        }
    }
    float mine = 0.f;
#pragma unroll
    for (u32 token = 0; token < kTokens; token++) {
        float sum = warp_sum(sums[token]);
        if (lane == token) mine = sum;
    }
    if (lane < count) write_out(mine, bias, residual, out, residual_stride, out_stride, first_token + lane, row);
}
