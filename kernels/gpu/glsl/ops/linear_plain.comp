#version 460
#extension GL_GOOGLE_include_directive : enable
// `linear` of any type, size and stride, in f32: 32 threads for ROWS output rows, which share the depths, eight tokens
// at a time, by 16 bytes where addresses allow it; the conversion of weights to another type; and what follows or
// precedes a product of others (bias, activation, residual).
//
// Definitions: ACT, WEIGHT, OUT (f32, f16, bf16), EPILOGUE (see activate.glsl).
// linear_plain: grid (⌈n / 4⌉, ⌈tokens / 8⌉), 64 threads; in subgroups of 8 (⌈n / 32⌉, ⌈tokens / 8⌉), 8 threads, each
// four rows. convert_weights (WEIGHT to ACT): grid ⌈count / 1024⌉, 256 threads. linear_finish: grid (⌈n / 256⌉,
// ⌈tokens / 8⌉), 256 threads.
// revision: 2
// check: linear_plain convert_weights linear_finish -DACT=f32 -DWEIGHT=f32 -DOUT=f32 -DEPILOGUE=0
// check: linear_plain linear_finish -DACT=bf16 -DWEIGHT=bf16 -DOUT=bf16 -DEPILOGUE=1
// check: linear_plain convert_weights linear_finish -DACT=bf16 -DWEIGHT=f32 -DOUT=f32 -DEPILOGUE=3
// check: linear_plain convert_weights linear_finish -DACT=f16 -DWEIGHT=bf16 -DOUT=f16 -DEPILOGUE=2
// check: linear_plain -DACT=f32 -DWEIGHT=f16 -DOUT=f32 -DEPILOGUE=0
// check: linear_plain -DACT=f32 -DWEIGHT=f32 -DOUT=f32 -DEPILOGUE=0 -DSUBGROUP=8
// check: linear_plain -DACT=bf16 -DWEIGHT=f32 -DOUT=f16 -DEPILOGUE=3 -DSUBGROUP=8
#define N 8
#include "activate.glsl"

#if defined(ENTRY_linear_plain) && SUBGROUP == 8
#include "rows.glsl"

PARAMETERS(u64 x; u64 w; u64 bias; u64 residual; u64 to; u32 x_stride; u32 residual_stride; u32 to_stride; u32 tokens;
           u32 n; u32 k;)

// Adds the products of the depths below `end`, eight at a time.
void add_eights(in u64 rows[ROWS], u64 from, u64 pitch, u32 end, u32 count, const bool single, inout Sums sums) {
    for (u32 depth = 0; depth < end; depth += 8) {
        float w[ROWS][8];
        [[unroll]] for (u32 r = 0; r < ROWS; r++)
            [[unroll]] for (u32 i = 0; i < 8; i++) w[r][i] = LOAD(WEIGHT, rows[r], depth + i);
        multiply(w, from + depth * SIZE(ACT), pitch, count, single, sums);
    }
}

void main() {
    u32 first_token = gl_WorkGroupID.y * TOKENS, count = min(p.tokens - first_token, TOKENS), whole = p.k & ~7u;
    u64 pitch = u64(p.x_stride) * SIZE(ACT), values = p.x + first_token * pitch,
        from = values + gl_SubgroupInvocationID * SIZE(ACT);
    u64 rows[ROWS];
    [[unroll]] for (u32 r = 0; r < ROWS; r++) rows[r] = p.w + u64(row_of(r, p.n)) * p.k * SIZE(WEIGHT);
    Sums sums = no_sums();
    add_eights(rows, from, pitch, count == 1 ? whole : 0, count, true, sums);
    add_eights(rows, from, pitch, count == 1 ? 0 : whole, count, false, sums);
    for (u32 depth = whole; depth < p.k; depth++) {
        float w[ROWS];
        [[unroll]] for (u32 r = 0; r < ROWS; r++) w[r] = LOAD(WEIGHT, rows[r], depth);
        [[unroll]] for (u32 token = 0; token < TOKENS; token++) {
            float x = LOAD(ACT, values + min(token, count - 1) * pitch, depth);
            [[unroll]] for (u32 r = 0; r < ROWS; r++) sums.of[token][r] = fma(w[r], x, sums.of[token][r]);
        }
    }
    FINISH_ROWS(sums, first_token, count)
}

#elif defined(ENTRY_linear_plain)
// Output rows of 32 threads, and tokens that they take together.
#ifndef ROWS
#define ROWS 2
#endif
#define TOKENS 8
#define SUMS (ROWS * TOKENS)
// Vectors of a row that a thread of a single token has in flight.
#ifndef AHEAD
#define AHEAD 4
#endif
#include "lanes.glsl"
#include "vector.glsl"

PARAMETERS(u64 x; u64 w; u64 bias; u64 residual; u64 to; u32 x_stride; u32 residual_stride; u32 to_stride; u32 tokens;
           u32 n; u32 k;)

vec2 two_f16(u32 word) { return unpackHalf2x16(word); }
vec2 two_bf16(u32 word) { return uintBitsToFloat(uvec2(word << 16, word & 0xffff0000u)); }

float dot8(in float a[8], in float b[8], float sum) {
    UNROLLED for (u32 i = 0; i < 8; i++) sum = fma(a[i], b[i], sum);
    return sum;
}

void main() {
    // Rows past the end compute the last one again, for the barriers' sake, and leave it unwritten.
    u32 first_row = (gl_WorkGroupID.x * WARPS + WARP) * ROWS, first = gl_WorkGroupID.y * TOKENS,
        count = min(p.tokens - first, TOKENS), k = p.k;
    u64 weights[ROWS], values = p.x + u64(first) * p.x_stride * SIZE(ACT), pitch = u64(p.x_stride) * SIZE(ACT);
    UNROLLED for (u32 r = 0; r < ROWS; r++) weights[r] = p.w + u64(min(first_row + r, p.n - 1)) * k * SIZE(WEIGHT);
    u32 apart = u32(p.w | p.x | (u64(k) * SIZE(WEIGHT)) | (p.tokens > 1 ? pitch : 0)) & 15u,
        whole = apart == 0 ? k & ~7u : 0;
    // Of token t and row r: t · ROWS + r.
    float sums[SUMS];
    UNROLLED for (u32 i = 0; i < SUMS; i++) sums[i] = 0.0;
    float a[8], b[8];
    if (count == 1) {
        u32 i = LANE * 8;
#if ACT_BYTES == 2 && WEIGHT_BYTES == 2
        // Several at a time, all loads before the first use: a single token is bound by the loads in flight.
        for (; i + 256 * (AHEAD - 1) < whole; i += 256 * AHEAD) {
            uvec4 w[ROWS][AHEAD], x[AHEAD];
            UNROLLED for (u32 j = 0; j < AHEAD; j++)
                UNROLLED for (u32 r = 0; r < ROWS; r++) w[r][j] = Quads(weights[r] + (i + 256 * j) * 2).at[0];
            UNROLLED for (u32 j = 0; j < AHEAD; j++) x[j] = Quads(values + (i + 256 * j) * 2).at[0];
            UNROLLED for (u32 j = 0; j < AHEAD; j++) {
                UNROLLED for (u32 h = 0; h < 4; h++) {
                    vec2 d = JOIN(two_, ACT)(x[j][h]);
                    UNROLLED for (u32 r = 0; r < ROWS; r++) {
                        vec2 c = JOIN(two_, WEIGHT)(w[r][j][h]);
                        sums[r] = fma(c.y, d.y, fma(c.x, d.x, sums[r]));
                    }
                }
            }
        }
#endif
        for (; i < whole; i += 256) {
            GET(ACT, values + i * SIZE(ACT), b);
            UNROLLED for (u32 r = 0; r < ROWS; r++) {
                GET(WEIGHT, weights[r] + i * SIZE(WEIGHT), a);
                sums[r] = dot8(a, b, sums[r]);
            }
        }
    } else {
        for (u32 i = LANE * 8; i < whole; i += 256) {
            float w[ROWS][8];
            UNROLLED for (u32 r = 0; r < ROWS; r++) GET(WEIGHT, weights[r] + i * SIZE(WEIGHT), w[r]);
            UNROLLED for (u32 t = 0; t < TOKENS; t++) {
                if (t >= count) continue;
                GET(ACT, values + t * pitch + i * SIZE(ACT), b);
                UNROLLED for (u32 r = 0; r < ROWS; r++) sums[t * ROWS + r] = dot8(w[r], b, sums[t * ROWS + r]);
            }
        }
    }
    for (u32 i = whole + LANE; i < k; i += 32) {
        float w[ROWS];
        UNROLLED for (u32 r = 0; r < ROWS; r++) w[r] = LOAD(WEIGHT, weights[r], i);
        UNROLLED for (u32 t = 0; t < TOKENS; t++) {
            if (t >= count) continue;
            float x = LOAD(ACT, values + t * pitch, i);
            UNROLLED for (u32 r = 0; r < ROWS; r++) sums[t * ROWS + r] = fma(w[r], x, sums[t * ROWS + r]);
        }
    }
    float mine = sums32(sums, count * ROWS);
    u32 row = first_row + LANE % ROWS;
    if (LANE < count * ROWS && row < p.n) WRITE_OUT(mine, first + LANE / ROWS, row);
}

#elif defined(ENTRY_convert_weights)

// Rounds to the nearest value that the type holds: a weight beyond f16's range becomes its largest value, not an
// infinity. Infinities and NaN of the file stay.
float narrow_f32(float x) { return x; }
float narrow_bf16(float x) { return x; }
float narrow_f16(float x) { return abs(x) < INFINITY ? clamp(x, -65504.0, 65504.0) : x; }

PARAMETERS(u64 from; u64 to; u64 count;)
void main() {
    u64 first = u64(gl_WorkGroupID.x) * 1024 + gl_LocalInvocationIndex;
    for (u32 i = 0; i < 4; i++) {
        u64 at = first + 256 * i;
        if (at < p.count)
            STORE(ACT, p.to + at * SIZE(ACT), 0, JOIN(narrow_, ACT)(LOAD(WEIGHT, p.from + at * SIZE(WEIGHT), 0)));
    }
}

#else

// out = epilogue(product + bias) + residual, where each of product (f32 rows), bias and residual may be absent.
PARAMETERS(u64 product; u64 bias; u64 residual; u64 to; u32 product_stride; u32 residual_stride; u32 to_stride; u32 n;
           u32 tokens;)
void main() {
    u32 row = gl_WorkGroupID.x * 256 + gl_LocalInvocationIndex, first = gl_WorkGroupID.y * 8;
    if (row >= p.n) return;
    for (u32 token = first; token < min(first + 8, p.tokens); token++) {
        float sum = 0.0;
        if (p.product != 0) sum = Floats(p.product + (u64(token) * p.product_stride + row) * 4).at[0];
        WRITE_OUT(sum, token, row);
    }
}

#endif
