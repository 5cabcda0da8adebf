// What products over records on matrix units share, of linears and of experts: codes as operands, asynchronous copies,
// and the steps of a group. The records' layout is quantized.cuh's; GGUF's formats, and canonical ones of whole
// numbers, E2M1 and E4M3 only.
//
// Sixteen rows are the A operand of m16n8k16, eight tokens the columns of B. Lane (g, t) holds 16 bytes of nibbles (32
// of bytes) of rows g and g + 8 of a group of 128 depths: eight steps, those of a chunk at depths 4t .. 4t + 3 and 16 +
// 4t .. 16 + 4t + 3. A run of steps that shares a scale is summed from zero, and the sum is scaled in f32. A minimum is
// multiplied by the sum of the tokens' values over its run.
//
// Four bits become 128 + code (bf16) or 1024 + code (f16) by their place under an exponent, without arithmetic: what
// operands exceed numbers by (`kExcess`) goes into the minimum.
#pragma once
#include "copies.cuh"
#include "quantized.cuh"

// Steps that share a scale.
constexpr u32 kRunSteps = kRun / 16;

template <typename T> struct Magic;
template <> struct Magic<bf16> {
    static constexpr u32 small = 0x43004300;
    static constexpr float excess = 128.f;
};
template <> struct Magic<f16> {
    static constexpr u32 small = 0x64006400;
    static constexpr float excess = 1024.f;
};
template <typename T> constexpr bool kIsBf16 = Magic<T>::excess == 128.f;
// What an operand exceeds the number of its code by.
constexpr float kExcess = !kBytes && kHasMin ? Magic<ACT>::excess : 0.f;
// Whether the sums of the tokens' values are needed.
constexpr bool kNeedsSums = kHasMin;

__device__ __forceinline__ u32 bytes_of_word(u32 word, u32 selector) { return __byte_perm(word, 0, selector); }

// Values 2i and 2i + 1 of a lane's eight in a chunk, as an operand. Fields of small floats, moved to their places in
// the wider type, are a power of two too small; the product with it is exact, subnormal numbers included.
template <typename T> __device__ __forceinline__ u32 operand_of(const Codes &codes, u32 chunk, u32 i) {
    constexpr u32 none = 0x80008000;
    if (!kBytes) {
        u32 pair = word_of(codes.words[0], chunk) >> (4 * i);
        if (!kNamed) {
            u32 above = and_or<0x000f000f, Magic<T>::small>(pair) | high_of(codes, chunk, i);
            if (kHasMin) return above;
            // 1, and 136, 144 or 160 (bf16), or 1032, 1040 or 1056 (f16), below zero.
            constexpr u32 less = kIsBf16<T> ? 0xc300u + kOffset : 0xe400u + kOffset;
            return fma2<T>(above, kIsBf16<T> ? 0x3f803f80 : 0x3c003c00, less << 16 | less);
        }
        u32 sign = (pair & 0x00080008) << 12, magnitude = pair & 0x00070007;
        return kIsBf16<T> ? fma2<T>(sign | magnitude << 6, 0x7e807e80, none)
                          : fma2<T>(sign | magnitude << 9, 0x74007400, none);
    }
    u32 word = word_of(codes.words[chunk >= 2 ? kWords - 1 : 0], (chunk & 1) * 2 + i / 2);
    if (!kNamed) {
        // Signed bytes: the lower seven bits under an exponent, less 128 or 256.
        u32 pair = bytes_of_word(word, i & 1 ? 0x4342 : 0x4140);
        if (kIsBf16<T>)
            return fma2<T>((pair & 0x007f007f) | 0x43004300, 0x3f803f80, (pair & 0x00800080) | 0xc300c300);
        return fma2<T>((pair ^ 0x00800080) | 0x64006400, 0x3c003c00, 0xe480e480);
    }
    u32 pair = bytes_of_word(word, i & 1 ? 0x3424 : 0x1404), sign = pair & 0x80008000;
    return kIsBf16<T> ? fma2<T>(sign | (pair >> 4 & 0x07f007f0), 0x7b807b80, none)
                      : fma2<T>(sign | (pair >> 1 & 0x3f803f80), 0x5c005c00, none);
}

// A lane's codes of a row of a record in shared memory.
__device__ __forceinline__ Codes codes_at(const u8 *record, u32 row, u32 lane) {
    Codes codes;
#pragma unroll
    for (u32 w = 0; w < kWords; w++) codes.words[w] = *(const uint4 *)(record + codes_in_record(row, lane, w));
    codes.high = load_high(record + high_in_record(row, lane));
    return codes;
}

// The left operands of a group's eight steps, from the codes of two rows.
template <typename T>
__device__ __forceinline__ void left_of(const Codes &low, const Codes &high, u32 (&a)[8][4]) {
#pragma unroll
    for (u32 step = 0; step < 8; step++) {
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            a[step][2 * i] = operand_of<T>(low, step / 2, 2 * (step & 1) + i);
            a[step][2 * i + 1] = operand_of<T>(high, step / 2, 2 * (step & 1) + i);
        }
    }
}

// Scales and what is added a value of a row's runs; where not SCALED, what is added to a code before it is scaled.
struct Factors {
    float scale[kRuns], add[kRuns];
};
// Of the words that a row has for a group. Not SCALED: canonical formats only.
template <bool SCALED = true> __device__ __forceinline__ Factors factors_of(const u32 (&words)[kScaleWords]) {
    static_assert(SCALED || kGroups, "minima of GGUF's formats are no multiples of their scales");
    Factors f;
#pragma unroll
    for (u32 run = 0; run < kRuns; run++) {
        float scale = scale_of(words, run), min = min_of(words, run);
        f.scale[run] = scale;
        if (!kHasMin) f.add[run] = 0.f;
        else if (!kGroups) f.add[run] = fmaf(scale, -kExcess, min);
        else f.add[run] = (min - kExcess) * (SCALED ? scale : 1.f);
    }
    return f;
}
template <bool SCALED = true> __device__ __forceinline__ Factors factors_at(const u8 *from) {
    u32 words[kScaleWords];
    load_scales(from, words);
    return factors_of<SCALED>(words);
}

// The scaled products of a group with TILES_ times eight tokens, added to `sums`. `chunk_at(tile, chunk, b)` gives the
// right operands of a chunk's two steps. The matrix unit takes long for one product and starts the next one soon, so
// the tiles' products take turns; a single one is split into two sums.
template <typename T, int ROW_TILES_, int TILES_, typename F>
__device__ __forceinline__ void multiply_group(const u32 (&a)[ROW_TILES_][8][4], const Factors (&f)[ROW_TILES_][2],
                                               F chunk_at, float (*sums)[ROW_TILES_][4]) {
    constexpr u32 kSplit = ROW_TILES_ * TILES_ <= 2 && kRunSteps >= 4 ? 2 : 1;
    float part[TILES_][ROW_TILES_][kSplit][4];
#pragma unroll
    for (u32 chunk = 0; chunk < 4; chunk++) {
        u32 b[TILES_][2][2];
#pragma unroll
        for (u32 n = 0; n < TILES_; n++) chunk_at(n, chunk, b[n]);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            u32 step = 2 * chunk + half, run = step / kRunSteps, split = half % kSplit;
#pragma unroll
            for (u32 n = 0; n < TILES_; n++)
#pragma unroll
                for (u32 r = 0; r < ROW_TILES_; r++) {
                    float(&d)[4] = part[n][r][split];
                    if (step % kRunSteps < kSplit) mma_from_zero<T>(d, a[r][step], b[n][half]);
                    else mma_m16n8k16<T>(d, a[r][step], b[n][half]);
                }
            if (step % kRunSteps != kRunSteps - 1) continue;
#pragma unroll
            for (u32 n = 0; n < TILES_; n++)
#pragma unroll
                for (u32 r = 0; r < ROW_TILES_; r++)
#pragma unroll
                    for (u32 j = 0; j < 4; j++) {
                        float sum = part[n][r][0][j] + (kSplit == 2 ? part[n][r][kSplit - 1][j] : 0.f);
                        sums[n][r][j] = fmaf(f[r][j / 2].scale[run], sum, sums[n][r][j]);
                    }
        }
    }
}

// The sums of the tokens' values over each run, as a product with ones: columns 2t and 2t + 1.
template <typename T, typename F> __device__ __forceinline__ void sum_group(F chunk_at, float2 (&totals)[kRuns]) {
    u32 one = pack2<T>(1.f, 1.f), ones[4] = {one, one, one, one};
    float part[4];
#pragma unroll
    for (u32 chunk = 0; chunk < 4; chunk++) {
        u32 b[2][2];
        chunk_at(chunk, b);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            u32 step = 2 * chunk + half;
            if (step % kRunSteps == 0) part[0] = part[1] = part[2] = part[3] = 0.f;
            mma_m16n8k16<T>(part, ones, b[half]);
            if (step % kRunSteps == kRunSteps - 1) totals[step / kRunSteps] = make_float2(part[0], part[1]);
        }
    }
}

// Minima times those sums.
template <int ROW_TILES_>
__device__ __forceinline__ void add_minima(const Factors (&f)[ROW_TILES_][2], const float2 (&totals)[kRuns],
                                           float (&sums)[ROW_TILES_][4]) {
#pragma unroll
    for (u32 run = 0; run < kRuns; run++)
#pragma unroll
        for (u32 r = 0; r < ROW_TILES_; r++)
#pragma unroll
            for (u32 j = 0; j < 4; j++)
                sums[r][j] = fmaf(f[r][j / 2].add[run], j & 1 ? totals[run].y : totals[run].x, sums[r][j]);
}
