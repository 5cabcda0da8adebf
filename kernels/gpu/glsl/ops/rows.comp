#version 460
#extension GL_GOOGLE_include_directive : enable
// `gather_rows` and `scatter_rows` (bytes, any type), and with ACT defined `quantize_act` and `pool`.
//
// Definitions: none, or ACT = f32, f16 or bf16, the type of x.
// revision: 1
// check: move_rows_16 move_rows_4 move_rows_1
// check: quantize_int8_vector quantize_int8_scalar quantize_fp8_vector quantize_fp8_scalar -DACT=f32
// check: quantize_block32_vector quantize_block32_scalar pool_rows pool_normalize -DACT=f32
// check: quantize_int8_vector quantize_int8_scalar quantize_fp8_vector quantize_fp8_scalar -DACT=f16
// check: quantize_block32_vector quantize_block32_scalar pool_rows pool_normalize -DACT=f16
// check: quantize_int8_vector quantize_int8_scalar quantize_fp8_vector quantize_fp8_scalar -DACT=bf16
// check: quantize_block32_vector quantize_block32_scalar pool_rows pool_normalize -DACT=bf16
#include "common.glsl"

#ifndef ACT

#if defined(ENTRY_move_rows_16)
#define UNIT 16
#define Units Quads
#elif defined(ENTRY_move_rows_4)
#define UNIT 4
#define Units Words
#else
#define UNIT 1
#define Units Bytes
#endif

// Row i of `count`: gather writes out[i] = x[index[i]], scatter out[index[i]] = x[i]. `other_rows`: rows that an index
// may name; -1 and indices outside (a caller's bug) move nothing. Pitches and `units` of a row count units.
PARAMETERS(u64 x; u64 x_pitch; u64 index; u64 to; u64 to_pitch; u32 count; u32 units; u32 other_rows; u32 scatter;)
void main() {
    u32 i = gl_WorkGroupID.x * THREADS + gl_LocalInvocationIndex, row = i / p.units, unit = i - row * p.units;
    if (row >= p.count) return;
    u32 other = Words(p.index).at[row];
    if (other >= p.other_rows) return;
    u64 from = p.x + (p.scatter != 0 ? row : other) * p.x_pitch * UNIT,
        to = p.to + (p.scatter != 0 ? other : row) * p.to_pitch * UNIT;
    Units(to).at[unit] = Units(from).at[unit];
}

#elif defined(ENTRY_pool_rows)

shared float parts[8][33];

// 32 columns of a sequence a block; its eight groups of 32 threads share the tokens. `mode`: 0 last, 1 mean, 2 first.
// Starts are kept inside 0 .. num_tokens.
PARAMETERS(u64 x; u64 x_stride; u32 num_tokens; u64 query_start_loc; u64 to; u64 to_stride; u32 width; u32 mode;)
void main() {
    u32 sequence = gl_WorkGroupID.x;
    i32 start = max(0, Ints(p.query_start_loc).at[sequence]),
        end = min(i32(p.num_tokens), Ints(p.query_start_loc).at[sequence + 1]);
    i32 count = max(0, end - start);
    if (count > 0 && p.mode != 1) {
        start = p.mode == 0 ? end - 1 : start;
        end = start + 1;
    }
    u32 lane = gl_LocalInvocationIndex & 31u, part = gl_LocalInvocationIndex >> 5,
        column = gl_WorkGroupID.y * 32 + lane;
    float sum = 0.0;
    if (column < p.width) {
        for (i32 t = start + i32(part); t < end; t += 8)
            sum += LOAD(ACT, p.x + (u64(t) * p.x_stride + column) * SIZE(ACT), 0);
    }
    parts[part][lane] = sum;
    barrier();
    if (part > 0 || column >= p.width) return;
    for (u32 i = 1; i < 8; i++) sum += parts[i][lane];
    Floats(p.to + (sequence * p.to_stride + column) * 4).at[0] = p.mode == 1 && count > 0 ? sum / float(count) : sum;
}

#elif defined(ENTRY_pool_normalize)
#include "lanes.glsl"

// A block a row: divides by the Euclidean norm, at least 1e-12.
PARAMETERS(u64 to; u64 to_stride; u32 width;)
void main() {
    Floats row = Floats(p.to + gl_WorkGroupID.x * p.to_stride * 4);
    float part = 0.0;
    for (u32 i = THREAD; i < p.width; i += THREADS) part += row.at[i] * row.at[i];
    float norm = max(sqrt(block_sum(part)), 1e-12);
    for (u32 i = THREAD; i < p.width; i += THREADS) row.at[i] /= norm;
}

#else

#if defined(ENTRY_quantize_int8_vector) || defined(ENTRY_quantize_fp8_vector) || defined(ENTRY_quantize_block32_vector)
#define N (16 / ACT_BYTES)
#else
#define N 1
#endif
#include "lanes.glsl"
#include "vector.glsl"

#if defined(ENTRY_quantize_fp8_vector) || defined(ENTRY_quantize_fp8_scalar)
#define LIMIT 448.0
u32 code_of(float x) { return e4m3_bits(x); }
#else
#define LIMIT 127.0
u32 code_of(float x) { return is_nan(x) ? 0u : u32(i32(roundEven(clamp(x, -127.0, 127.0)))) & 0xffu; }
#endif

// Codes of x / scale at `to`, which is aligned to N.
void store_codes(u64 to, in float x[N], float scale) {
    u32 codes[N];
    for (u32 i = 0; i < N; i++) codes[i] = code_of(scale == 0.0 ? 0.0 : x[i] / scale);
#if N == 1
    Bytes(to).at[0] = uint8_t(codes[0]);
#else
    UNROLLED for (u32 i = 0; i < N; i += 4) Words(to).at[i / 4] = codes[i] | codes[i + 1] << 8 | codes[i + 2] << 16 |
                                                                  codes[i + 3] << 24;
#endif
}

float largest_of(in float v[N]) {
    float largest = 0.0;
    for (u32 k = 0; k < N; k++) largest = max(largest, abs(v[k]));
    return largest;
}

#if defined(ENTRY_quantize_block32_vector) || defined(ENTRY_quantize_block32_scalar)
// 32 / N neighbouring threads a group of 32 values; `groups` threads a row, `total` threads.
PARAMETERS(u64 x; u64 x_stride; u64 q; u64 q_stride; u64 scales; u64 scale_stride; u32 groups; u32 total;)
void main() {
    u32 i = gl_WorkGroupID.x * THREADS + THREAD;
    bool live = i < p.total;
    u32 row = live ? i / p.groups : 0, column = live ? (i - row * p.groups) * N : 0;
    float v[N], largest = 0.0;
    if (live) {
        GET(ACT, p.x + (row * p.x_stride + column) * SIZE(ACT), v);
        largest = largest_of(v);
    }
#if SUBGROUP >= 32
    UNROLLED for (u32 mask = 16 / N; mask > 0; mask >>= 1) largest = max(largest, subgroupShuffleXor(largest, mask));
#else
    offer(floatBitsToUint(largest));
    u32 first = THREAD & ~(32 / N - 1);
    for (u32 k = 0; k < 32 / N; k++) largest = max(largest, uintBitsToFloat(exchange[first + k]));
#endif
    if (!live) return;
    float scale = largest / LIMIT;
    store_codes(p.q + row * p.q_stride + column, v, scale);
    if (column % 32 == 0) Floats(p.scales + (row * p.scale_stride + column / 32) * 4).at[0] = scale;
}
#else
// A block a row, one scale a row; the second pass finds the row in the cache.
PARAMETERS(u64 x; u64 x_stride; u64 q; u64 q_stride; u64 scales; u64 scale_stride; u32 width;)
void main() {
    u64 x = p.x + gl_WorkGroupID.x * p.x_stride * SIZE(ACT), q = p.q + gl_WorkGroupID.x * p.q_stride;
    float v[N], largest = 0.0;
    for (u32 i = THREAD; i < p.width / N; i += THREADS) {
        GET(ACT, x + i * N * SIZE(ACT), v);
        largest = max(largest, largest_of(v));
    }
    float scale = block_max(largest) / LIMIT;
    for (u32 i = THREAD; i < p.width / N; i += THREADS) {
        GET(ACT, x + i * N * SIZE(ACT), v);
        store_codes(q + i * N, v, scale);
    }
    if (THREAD == 0) Floats(p.scales + gl_WorkGroupID.x * p.scale_stride * 4).at[0] = scale;
}
#endif
#endif
