#version 460
#extension GL_GOOGLE_include_directive : enable
// `linear` over 8-bit weights (E4M3) with a scale a row: the packing of canonical rows, their unpacking for a product
// of others, and the product of any size and stride in f32. Held are rows of codes in the file's order, each padded
// with zeros to a multiple of 16 bytes, and behind all rows, at a multiple of 256 bytes, the scales.
//
// Definitions: ACT, OUT (f32, f16, bf16), EPILOGUE (see activate.glsl).
// scaled_pack: grid rows, 128 threads. scaled_unpack: grid ⌈rows · k / 1024⌉, 256 threads; k is a multiple of 4.
// linear_scaled_plain: grid (⌈n / 8⌉, ⌈tokens / 8⌉), 256 threads.
// revision: 1
// check: scaled_pack scaled_unpack linear_scaled_plain -DACT=f32 -DOUT=f32 -DEPILOGUE=0
// check: scaled_pack scaled_unpack linear_scaled_plain -DACT=bf16 -DOUT=f32 -DEPILOGUE=3
// check: scaled_pack scaled_unpack linear_scaled_plain -DACT=f16 -DOUT=f16 -DEPILOGUE=2
#include "activate.glsl"

// Bytes between rows of codes, and where the scales begin; the host computes the same.
u64 codes_pitch(u32 k) { return (u64(k) + 15) / 16 * 16; }
u64 scales_at(u32 n, u32 k) { return (n * codes_pitch(k) + 255) / 256 * 256; }

#if defined(ENTRY_scaled_pack)

// Canonical rows: k codes, then the scale as four bytes at any address.
PARAMETERS(u64 from; u64 packed; u32 n; u32 k; u32 first_row;)
void main() {
    u32 row = p.first_row + gl_WorkGroupID.x, k = p.k;
    Bytes codes = Bytes(p.from + gl_WorkGroupID.x * (u64(k) + 4));
    Words to = Words(p.packed + row * codes_pitch(k));
    for (u32 i = gl_LocalInvocationIndex; i < u32(codes_pitch(k)) / 4; i += THREADS) {
        u32 word = 0;
        for (u32 b = 0; b < 4; b++)
            if (4 * i + b < k) word |= u32(codes.at[4 * i + b]) << (8 * b);
        to.at[i] = word;
    }
    if (gl_LocalInvocationIndex == 0) {
        u32 scale = 0;
        for (u32 b = 0; b < 4; b++) scale |= u32(codes.at[k + b]) << (8 * b);
        Words(p.packed + scales_at(p.n, k)).at[row] = scale;
    }
}

#elif defined(ENTRY_scaled_unpack)

PARAMETERS(u64 packed; u64 to; u32 n; u32 k; u32 first_row; u32 rows;)
void main() {
    u32 words = p.k / 4;
    u64 i = u64(gl_WorkGroupID.x) * THREADS + gl_LocalInvocationIndex;
    if (i >= u64(p.rows) * words) return;
    u32 row = u32(i / words), word = u32(i - u64(row) * words), at = p.first_row + row;
    float scale = Floats(p.packed + scales_at(p.n, p.k)).at[at];
    u32 codes = Words(p.packed + at * codes_pitch(p.k)).at[word];
    u64 to = p.to + (u64(row) * p.k + 4 * word) * SIZE(ACT);
    for (u32 b = 0; b < 4; b++) STORE(ACT, to, b, scale * e4m3_value(codes >> (8 * b) & 0xffu));
}

#else
#define SUMS 8
#include "lanes.glsl"

PARAMETERS(u64 x; u64 w; u64 bias; u64 residual; u64 to; u32 x_stride; u32 residual_stride; u32 to_stride; u32 tokens;
           u32 n; u32 k;)
void main() {
    // Rows past the end compute the last one again, for the barriers' sake, and leave it unwritten.
    u32 row = gl_WorkGroupID.x * 8 + WARP, held = min(row, p.n - 1), first = gl_WorkGroupID.y * SUMS,
        count = min(p.tokens - first, SUMS);
    Words codes = Words(p.w + held * codes_pitch(p.k));
    u64 pitch = u64(p.x_stride) * SIZE(ACT), values = p.x + first * pitch;
    float sums[SUMS] = float[SUMS](0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
    for (u32 i = LANE; i < (p.k + 3) / 4; i += 32) {
        u32 four = codes.at[i];
        UNROLLED for (u32 b = 0; b < 4; b++) {
            if (4 * i + b >= p.k) continue;
            float weight = e4m3_value(four >> (8 * b) & 0xffu);
            UNROLLED for (u32 t = 0; t < SUMS; t++)
                if (t < count) sums[t] = fma(weight, LOAD(ACT, values + t * pitch, 4 * i + b), sums[t]);
        }
    }
    float mine = sums32(sums, count);
    if (LANE < count && row < p.n) {
        mine *= Floats(p.w + scales_at(p.n, p.k)).at[row];
        WRITE_OUT(mine, first + LANE, row);
    }
}
#endif
