// `linear` of weights in blocks, GGUF's and canonical ones: packing them into planes, unpacking them for a library
// product, and the product with few tokens, which reads the packed planes once and never writes a weight. The planes'
// layout stands in quantized.h.
//
// LANES work-items an output row (see product.h): each takes chunks of 32 values, eight tokens at a time, in f32.
//
// Definitions: FORMAT (see quantized.h), ACT, OUT (f32, f16, bf16), EPILOGUE (see activate.h); MATRIX has no meaning
// here. quantized_pack: grid ⌈rows · 4 · groups / 256⌉, 256 threads. quantized_unpack: grid ⌈rows · groups · 16 / 256⌉,
// 256 threads. linear_quantized_plain: grid (⌈n / 8⌉, ⌈tokens / 8⌉), 256 threads.
// revision: 2
// check: -DFORMAT=3 -DACT=bf16 -DOUT=bf16 -DMATRIX=0 -DEPILOGUE=0
// check: -DFORMAT=4 -DACT=f16 -DOUT=f16 -DMATRIX=0 -DEPILOGUE=1
// check: -DFORMAT=5 -DACT=bf16 -DOUT=bf16 -DMATRIX=0 -DEPILOGUE=0
// check: -DFORMAT=6 -DACT=bf16 -DOUT=f32 -DMATRIX=0 -DEPILOGUE=0
// check: -DFORMAT=7 -DACT=f32 -DOUT=f32 -DMATRIX=0 -DEPILOGUE=0
// check: -DFORMAT=8 -DACT=f32 -DOUT=f32 -DMATRIX=0 -DEPILOGUE=2
// check: -DFORMAT=4 -DACT=f32 -DOUT=f32 -DMATRIX=0 -DEPILOGUE=0 -DHALYARD_CPU
// check: -DFORMAT=40 -DACT=f16 -DOUT=f16 -DMATRIX=0 -DEPILOGUE=0
// check: -DFORMAT=43 -DACT=bf16 -DOUT=bf16 -DMATRIX=0 -DEPILOGUE=0
// check: -DFORMAT=45 -DACT=f32 -DOUT=f32 -DMATRIX=0 -DEPILOGUE=0
// check: -DFORMAT=48 -DACT=bf16 -DOUT=f32 -DMATRIX=0 -DEPILOGUE=0
// check: -DFORMAT=50 -DACT=f16 -DOUT=f16 -DMATRIX=0 -DEPILOGUE=0
// check: -DFORMAT=55 -DACT=bf16 -DOUT=bf16 -DMATRIX=0 -DEPILOGUE=0
// check: -DFORMAT=52 -DACT=f32 -DOUT=f32 -DMATRIX=0 -DEPILOGUE=0 -DHALYARD_CPU
#include "product.h"
#include "quantized.h"

#if FORMAT < 40
// The stored number of value `j` (0 .. 31) of chunk `chunk` of a file's block.
INLINE u32 number_in_file(const __global u8 *block, u32 chunk, u32 j) {
#if FORMAT == 3
    return block[2 + (j & 15)] >> (j / 16 * 4) & 15;
#elif FORMAT == 4
    return block[4 + (j & 15)] >> (j / 16 * 4) & 15;
#elif FORMAT == 5
    return (block[6 + (j & 15)] >> (j / 16 * 4) & 15) | (block[2 + j / 8] >> (j & 7) & 1) << 4;
#elif FORMAT == 6
    return block[2 + j];
#elif FORMAT == 7
    return block[16 + chunk / 2 * 32 + j] >> ((chunk & 1) * 4) & 15;
#else
    u32 part = chunk / 4, quarter = chunk & 3;
    u32 low = block[part * 64 + (quarter & 1) * 32 + j] >> (quarter / 2 * 4) & 15;
    return low | (block[128 + part * 32 + j] >> (2 * quarter) & 3) << 4;
#endif
}

INLINE u32 half_in_file(const __global u8 *at) { return at[0] | (u32)at[1] << 8; }

// The scale word of a chunk: 16 bits, or 32 for a scale and a minimum of their own.
INLINE u32 scale_in_file(const __global u8 *block, u32 chunk) {
#if FORMAT == 4
    return half_in_file(block) | half_in_file(block + 2) << 16;
#elif FORMAT == 7
    // Six bits each: the first four chunks plainly, the others in the spare bits.
    const __global u8 *s = block + 4;
    u32 scale = chunk < 4 ? s[chunk] & 63 : (s[chunk + 4] & 15) | s[chunk - 4] >> 6 << 4;
    u32 low = chunk < 4 ? s[chunk + 4] & 63 : s[chunk + 4] >> 4 | s[chunk] >> 6 << 4;
    return scale | low << 8;
#elif FORMAT == 8
    return half_in_file(block + 192 + 2 * chunk);
#else
    return half_in_file(block);
#endif
}
#endif

// Rows `first_row ..` of the matrix from canonical bytes. A work-item a chunk.
KERNEL void quantized_pack(const __global u8 *file, __global u8 *packed, u32 n, u32 k, u32 first_row, u32 num_rows) {
    Planes p = planes_of(packed, n, k);
    u64 index = (u64)get_group_id(0) * 256 + get_local_id(0);
    u32 chunks = 4 * p.groups, chunk = (u32)(index % chunks);
    u64 local_row = index / chunks;
    if (local_row >= num_rows) return;
    u64 at = (first_row + local_row) * p.groups + chunk / 4;
    u32 slot = chunk & 3;
    bool present = 32 * chunk < k;
#if FORMAT >= 40
    const __global u8 *row = file + local_row * (k / GROUP_VALUES) * GROUP_BYTES;
#define NUMBER_IN_FILE(j) code_at(row, 32 * chunk + (j))
#else
    u32 in_block = chunk % (FILE_BLOCK / 32);
    const __global u8 *block = file + (local_row * (k / FILE_BLOCK) + 32 * chunk / FILE_BLOCK) * FILE_BYTES;
#define NUMBER_IN_FILE(j) number_in_file(block, in_block, j)
#endif
    for (u32 t = 0; t < 4; t++) {
        u32 word = 0, fifth = 0, pairs = 0;
        __global u8 *quants = p.quants + at * QUANT_BYTES + t * (QUANT_BYTES / 4);
        for (u32 i = 0; i < 8; i++) {
            u32 number = present ? NUMBER_IN_FILE((i < 4 ? 0 : 16) + 4 * t + (i & 3)) : 0;
            u32 odd = i & 1, pair = i / 2;
            if (BYTE_CODES) quants[8 * slot + i] = (u8)number;
            word |= (number & 15) << (4 * (pair + 4 * odd));
            fifth |= (number >> 4 & 1) << (pair + 4 * odd);
            pairs |= (number >> 4 & 3) << (2 * pair + 8 * odd);
        }
        if (!BYTE_CODES) ((__global u32 *)quants)[slot] = word;
        if (FORMAT == 5) p.high[at * HIGH_BYTES + 4 * t + slot] = (u8)fifth;
        if (FORMAT == 8) ((__global u16 *)(p.high + at * HIGH_BYTES))[4 * t + slot] = (u16)pairs;
    }
#if FORMAT >= 40
    // The scales of groups that begin in this chunk.
    for (u32 first = 32 * slot; first < 32 * slot + 32; first += 16) {
        if (first % GROUP_VALUES != 0) continue;
        u32 group = (128 * (chunk / 4) + first) / GROUP_VALUES;
        __global u32 *to = (__global u32 *)(p.scales + at * SCALE_BYTES) + first / GROUP_VALUES * SCALE_WORDS;
        for (u32 w = 0; w < SCALE_WORDS; w++) to[w] = present ? WORD_AT(row + group * GROUP_BYTES + 4 * w) : 0;
    }
#else
    u32 scale = present ? scale_in_file(block, in_block) : 0;
    if (SCALE_BYTES == 16) {
        ((__global u32 *)(p.scales + at * SCALE_BYTES))[slot] = scale;
    } else {
        ((__global u16 *)(p.scales + at * SCALE_BYTES))[slot] = (u16)scale;
    }
    if (HAS_BLOCKS && in_block == 0 && present) {
        u32 factors = FORMAT == 7 ? half_in_file(block) | half_in_file(block + 2) << 16 : half_in_file(block + 208);
        ((__global u32 *)p.blocks)[(first_row + local_row) * (p.groups / 2) + chunk / 8] = factors;
    }
#endif
}

// Rows `first_row ..` as plain values, row-major. The first of every four work-items does a chunk.
KERNEL void quantized_unpack(__global u8 *packed, __global ACT *out, u32 n, u32 k, u32 first_row, u32 num_rows) {
    Planes p = planes_of(packed, n, k);
    u64 index = (u64)get_group_id(0) * 256 + get_local_id(0);
    u32 chunks = 4 * p.groups, chunk = (u32)(index / 4 % chunks);
    u64 local_row = index / 4 / chunks;
    if (index % 4 != 0 || local_row >= num_rows || 32 * chunk >= k) return;
    Chunk values = chunk_at(&p, first_row + (u32)local_row, chunk);
    STOREN(16, ACT, values.low, out, local_row * k + 32 * chunk);
    STOREN(16, ACT, values.high, out, local_row * k + 32 * chunk + 16);
}

// Any stride.
KERNEL void linear_quantized_plain(const __global ACT *x, __global u8 *packed, const __global float *bias,
                                   const __global OUT *residual, __global OUT *out, u32 x_stride, u32 residual_stride,
                                   u32 out_stride, u32 tokens, u32 n, u32 k) {
    __local float shared[SHARED_FLOATS];
    u32 lane = get_local_id(0) % LANES, first_row = get_group_id(0) * ROWS, first = get_group_id(1) * TOKENS;
    u32 row = min(first_row + (u32)get_local_id(0) / LANES, n - 1), count = min(tokens - first, (u32)TOKENS);
    Planes p = planes_of(packed, n, k);
    const __global ACT *values = x + (u64)first * x_stride;
#if LANES == 1
    if (get_local_id(0) >= ROWS) return;
#endif
    float sums[TOKENS];
    if (count == 1) {
        float16 sum = 0.f;
        for (u32 chunk = lane; 32 * chunk < k; chunk += LANES) {
            Chunk weights = chunk_at(&p, row, chunk);
            sum = fma(weights.low, LOADN(16, ACT, values, 32 * chunk), sum);
            sum = fma(weights.high, LOADN(16, ACT, values, 32 * chunk + 16), sum);
        }
        sums[0] = sum16(sum);
    } else {
        SUM(16) sum[TOKENS];
        for (u32 t = 0; t < TOKENS; t++) sum[t] = 0.f;
        for (u32 chunk = lane; 32 * chunk < k; chunk += LANES) {
            Chunk weights = chunk_at(&p, row, chunk);
            // A token past the end repeats the last one.
#pragma unroll
            for (u32 t = 0; t < TOKENS; t++)
                sum[t] = ADD_VALUES(weights.low, ACT, values, (u64)min(t, count - 1) * x_stride + 32 * chunk, sum[t]);
#pragma unroll
            for (u32 t = 0; t < TOKENS; t++)
                sum[t] = ADD_VALUES(weights.high, ACT, values, (u64)min(t, count - 1) * x_stride + 32 * chunk + 16,
                                    sum[t]);
        }
        for (u32 t = 0; t < TOKENS; t++) sums[t] = TOTAL(16, sum[t]);
    }
    finish_rows(sums, shared, bias, residual, out, residual_stride, out_stride, first_row, n, first, count);
}
