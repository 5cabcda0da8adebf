// `linear` of GGUF formats over tokens rounded to 8 bits, in blocks of 32 with a scale each (scale = max|x| / 127), as
// `quantize_act` rounds them: sums of four products of bytes by one instruction, scaled in f32. Weights are read as
// quantized.h lays them out.
//
// A rounded token is a record for each group of 128 values: the codes of its four chunks, each in the order in which
// weights_at gives the weights', then the four chunks' scales.
//
// Definitions: FORMAT (see quantized.h), ACT, OUT (f32, f16, bf16), EPILOGUE (see activate.h), NATIVE_DOTS (the
// language has the instruction). dots_round: grid (⌈groups · 16 / 256⌉, tokens), 256 work-items. linear_dots: x holds
// records; grid (⌈n / 16⌉, ⌈tokens / 8⌉), 256 work-items. linear_dots_one: one token, which each group rounds for
// itself in local memory; grid ⌈n / 16⌉, 256 work-items.
// revision: 1
// check: -DFORMAT=3 -DACT=f32 -DOUT=f32 -DEPILOGUE=0
// check: -DFORMAT=4 -DACT=f16 -DOUT=f16 -DEPILOGUE=1
// check: -DFORMAT=5 -DACT=bf16 -DOUT=bf16 -DEPILOGUE=0
// check: -DFORMAT=6 -DACT=bf16 -DOUT=f32 -DEPILOGUE=3
// check: -DFORMAT=7 -DACT=f32 -DOUT=f32 -DEPILOGUE=0
// check: -DFORMAT=8 -DACT=f16 -DOUT=f32 -DEPILOGUE=2
#include "product.h"
#include "quantized.h"

// Words of a record: eight of each chunk's codes, four scales.
#define RECORD_WORDS 36
#define SCALES_AT 32
// Output rows of a work-group: each work-item has one of either half.
#define GROUP_ROWS (2 * ROWS)
// Between the sums of one half and those of the other.
#if LANES == 1
#define LEAVE_SHARED
#else
#define LEAVE_SHARED barrier(CLK_LOCAL_MEM_FENCE);
#endif

// sum + Σ aᵢ·bᵢ over the four signed bytes of each.
INLINE i32 add_dot(u32 a, u32 b, i32 sum) {
#ifdef NATIVE_DOTS
    return sum + dot_4x8packed_ss_int(a, b);
#else
    int4 products = convert_int4(as_char4(a)) * convert_int4(as_char4(b));
    return sum + products.s0 + products.s1 + (products.s2 + products.s3);
#endif
}

// The codes of a chunk in two halves, and its scale. Chunks past the end are zeros.
typedef struct {
    uint4 low, high;
    float scale;
} Codes;

INLINE float max16(float16 x) {
    float8 a = fmax(x.lo, x.hi);
    float4 b = fmax(a.lo, a.hi);
    return fmax(fmax(b.s0, b.s1), fmax(b.s2, b.s3));
}

INLINE Codes round_chunk(const __global ACT *x, u32 chunk, u32 k) {
    Codes codes;
    codes.low = codes.high = (uint4)(0);
    codes.scale = 0.f;
    if (32 * chunk >= k) return codes;
    float16 a = LOADN(16, ACT, x, 32 * chunk), b = LOADN(16, ACT, x, 32 * chunk + 16);
    float largest = fmax(max16(fabs(a)), max16(fabs(b)));
    // What is no number must not be lost: an infinite scale makes none of the sums one.
    if (any(isnan(a)) || any(isnan(b))) largest = INFINITY;
    codes.scale = largest / 127.f;
    if (largest == 0.f || isinf(largest)) return codes;
    char16 first = convert_char16_sat_rte(a / codes.scale), second = convert_char16_sat_rte(b / codes.scale), low, high;
#if FORMAT == 6
    low = first;
    high = second;
#else
    low.even = first.s014589cd;
    low.odd = second.s014589cd;
    high.even = first.s2367abef;
    high.odd = second.s2367abef;
#endif
    codes.low = as_uint4(low);
    codes.high = as_uint4(high);
    return codes;
}

INLINE uint4 words_of_parts(const __global u8 *at, u32 pitch) {
    return (uint4)(*(const __global u32 *)at, *(const __global u32 *)(at + pitch),
                   *(const __global u32 *)(at + 2 * pitch), *(const __global u32 *)(at + 3 * pitch));
}

// The 32 weights of a chunk as signed bytes, a word of either half for each of the four parts, without their scale;
// `second` counts in formats of two scales a chunk, `add` in those with a minimum.
typedef struct {
    uint4 low, high;
    float first, second, add;
} Weights;

INLINE Weights weights_at(const Planes *p, u32 row, u32 chunk) {
    u64 at = (u64)row * p->groups + chunk / 4;
    u32 slot = chunk % 4;
    Weights w;
    w.second = w.add = 0.f;
#if FORMAT == 6
    const __global u8 *quants = p->quants + at * QUANT_BYTES + 8 * slot;
    w.low = words_of_parts(quants, 32);
    w.high = words_of_parts(quants + 4, 32);
#else
    uint4 words = words_of_parts(p->quants + at * QUANT_BYTES + 4 * slot, 16);
    w.low = words & 0x0f0f0f0fu;
    w.high = (words >> 4) & 0x0f0f0f0fu;
#if FORMAT == 5
    // Every second bit to a byte of its own.
    const __global u8 *bits = p->high + at * HIGH_BYTES + slot;
    uint4 fifth = (uint4)(bits[0], bits[4], bits[8], bits[12]);
    w.low |= (((fifth & 0x55u) * 0x41041u) & 0x01010101u) << 4;
    w.high |= ((((fifth >> 1) & 0x55u) * 0x41041u) & 0x01010101u) << 4;
#elif FORMAT == 8
    // Every second pair.
    const __global u16 *bits = (const __global u16 *)(p->high + at * HIGH_BYTES) + slot;
    uint4 pairs = (uint4)(bits[0], bits[4], bits[8], bits[12]), low = pairs & 0x3333u, high = (pairs >> 2) & 0x3333u;
    low = (low | low << 8) & 0x00ff00ffu;
    high = (high | high << 8) & 0x00ff00ffu;
    w.low |= ((low | low << 4) & 0x0f0f0f0fu) << 4;
    w.high |= ((high | high << 4) & 0x0f0f0f0fu) << 4;
#endif
#if OFFSET != 0
    // The top bit keeps each byte from borrowing of the next.
    w.low = ((w.low | 0x80808080u) - OFFSET * 0x01010101u) ^ 0x80808080u;
    w.high = ((w.high | 0x80808080u) - OFFSET * 0x01010101u) ^ 0x80808080u;
#endif
#endif
#if FORMAT == 4
    const __global u16 *scales = (const __global u16 *)(p->scales + at * SCALE_BYTES) + 2 * slot;
    w.first = f16_to_f32(scales[0]);
    w.add = f16_to_f32(scales[1]);
#else
    u32 scale = ((const __global u16 *)(p->scales + at * SCALE_BYTES))[slot];
#if HAS_BLOCKS
    const __global u16 *block = (const __global u16 *)(p->blocks + ((u64)row * (p->groups / 2) + chunk / 8) * 4);
    float factor = f16_to_f32(block[0]);
#endif
#if FORMAT == 7
    w.first = factor * (float)(scale & 0xff);
    w.add = -(f16_to_f32(block[1]) * (float)(scale >> 8));
#elif FORMAT == 8
    w.first = factor * (float)(i8)(scale & 0xff);
    w.second = factor * (float)(i8)(scale >> 8);
#else
    w.first = f16_to_f32((u16)scale);
#endif
#endif
    return w;
}

INLINE i32 dots(uint4 a, uint4 b, i32 sum) {
    return add_dot(a.s0, b.s0, add_dot(a.s1, b.s1, add_dot(a.s2, b.s2, add_dot(a.s3, b.s3, sum))));
}

INLINE float product_of(const Weights *w, uint4 low, uint4 high, float scale) {
#if FORMAT == 8
    // Even bytes are of the chunk's first half.
    i32 first = dots(w->low, low & 0x00ff00ffu, dots(w->high, high & 0x00ff00ffu, 0));
    i32 second = dots(w->low, low & 0xff00ff00u, dots(w->high, high & 0xff00ff00u, 0));
    return scale * fma(w->first, (float)first, w->second * (float)second);
#else
    float sum = w->first * (float)dots(w->low, low, dots(w->high, high, 0));
#if FORMAT == 4 || FORMAT == 7
    uint4 ones = 0x01010101u;
    sum = fma(w->add, (float)dots(ones, low, dots(ones, high, 0)), sum);
#endif
    return scale * sum;
#endif
}

// The first of every four work-items does a chunk.
KERNEL void dots_round(const __global ACT *x, __global u32 *to, u32 x_stride, u32 groups, u32 k) {
    u32 index = get_group_id(0) * get_local_size(0) + get_local_id(0), chunk = index / 4, token = get_group_id(1);
    if (index % 4 != 0 || chunk >= 4 * groups) return;
    Codes codes = round_chunk(x + (u64)token * x_stride, chunk, k);
    __global u32 *record = to + ((u64)token * groups + chunk / 4) * RECORD_WORDS;
    vstore4(codes.low, 2 * (chunk % 4), record);
    vstore4(codes.high, 2 * (chunk % 4) + 1, record);
    record[SCALES_AT + chunk % 4] = as_uint(codes.scale);
}

KERNEL void linear_dots(const __global u32 *x, __global u8 *packed, const __global float *bias,
                        const __global OUT *residual, __global OUT *out, u32 x_stride, u32 residual_stride,
                        u32 out_stride, u32 tokens, u32 n, u32 k) {
    __local float shared[SHARED_FLOATS];
    u32 lane = get_local_id(0) % LANES, first = get_group_id(1) * TOKENS, count = min(tokens - first, (u32)TOKENS);
    Planes p = planes_of(packed, n, k);
    const __global u32 *records = x + (u64)first * p.groups * RECORD_WORDS;
#if LANES == 1
    if (get_local_id(0) >= ROWS) return;
#endif
    for (u32 half_rows = 0; half_rows < GROUP_ROWS; half_rows += ROWS) {
        u32 first_row = get_group_id(0) * GROUP_ROWS + half_rows,
            row = min(first_row + (u32)get_local_id(0) / LANES, n - 1);
        float sums[TOKENS];
        for (u32 t = 0; t < TOKENS; t++) sums[t] = 0.f;
        for (u32 chunk = lane; 32 * chunk < k; chunk += LANES) {
            Weights w = weights_at(&p, row, chunk);
            for (u32 t = 0; t < count; t++) {
                const __global u32 *record = records + ((u64)t * p.groups + chunk / 4) * RECORD_WORDS;
                uint4 low = vload4(2 * (chunk % 4), record), high = vload4(2 * (chunk % 4) + 1, record);
                sums[t] += product_of(&w, low, high, as_float(record[SCALES_AT + chunk % 4]));
            }
        }
        finish_rows(sums, shared, bias, residual, out, residual_stride, out_stride, first_row, n, first, count);
        LEAVE_SHARED
    }
}

KERNEL void linear_dots_one(const __global ACT *x, __global u8 *packed, const __global float *bias,
                            const __global OUT *residual, __global OUT *out, u32 x_stride, u32 residual_stride,
                            u32 out_stride, u32 tokens, u32 n, u32 k, __local u32 *staged) {
    __local float shared[SHARED_FLOATS];
    u32 lane = get_local_id(0) % LANES;
    Planes p = planes_of(packed, n, k);
    for (u32 chunk = get_local_id(0); chunk < 4 * p.groups; chunk += get_local_size(0)) {
        Codes codes = round_chunk(x, chunk, k);
        __local u32 *record = staged + chunk / 4 * RECORD_WORDS;
        vstore4(codes.low, 2 * (chunk % 4), record);
        vstore4(codes.high, 2 * (chunk % 4) + 1, record);
        record[SCALES_AT + chunk % 4] = as_uint(codes.scale);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#if LANES == 1
    if (get_local_id(0) >= ROWS) return;
#endif
    for (u32 half_rows = 0; half_rows < GROUP_ROWS; half_rows += ROWS) {
        u32 first_row = get_group_id(0) * GROUP_ROWS + half_rows,
            row = min(first_row + (u32)get_local_id(0) / LANES, n - 1);
        float sums[TOKENS];
        sums[0] = 0.f;
        for (u32 chunk = lane; 32 * chunk < k; chunk += LANES) {
            Weights w = weights_at(&p, row, chunk);
            const __local u32 *record = staged + chunk / 4 * RECORD_WORDS;
            uint4 low = vload4(2 * (chunk % 4), record), high = vload4(2 * (chunk % 4) + 1, record);
            sums[0] += product_of(&w, low, high, as_float(record[SCALES_AT + chunk % 4]));
        }
        finish_rows(sums, shared, bias, residual, out, residual_stride, out_stride, first_row, n, 0, 1);
        LEAVE_SHARED
    }
}
