#version 460
#extension GL_GOOGLE_include_directive : enable
#extension GL_EXT_integer_dot_product : require
// `linear` of GGUF formats over tokens rounded to 8 bits, in blocks of 32 with a scale each (scale = max|x| / 127), as
// `quantize_act` rounds them: sums of four products of bytes by one instruction, scaled in f32. Weights are read as
// planes.glsl lays them out.
//
// A rounded token is a record for each group of 128 values: for each of four lanes its eight codes of each chunk, in
// the order in which bytes_of gives the weights', then the four chunks' scales.
//
// Definitions: FORMAT (see planes.glsl), ACT, OUT (f32, f16, bf16), EPILOGUE (see activate.glsl).
// dots_round: grid (⌈groups · 16 / 256⌉, tokens), 256 threads. linear_dots: x holds records; grid (⌈n / 16⌉, ⌈tokens /
// 8⌉), 256 threads. linear_dots_one: one token, which each workgroup rounds for itself in groups · 144 bytes of shared
// memory; grid ⌈n / 16⌉, 256 threads.
// revision: 1
// check: dots_round linear_dots linear_dots_one -DFORMAT=3 -DACT=f32 -DOUT=f32 -DEPILOGUE=0
// check: dots_round linear_dots linear_dots_one -DFORMAT=4 -DACT=f16 -DOUT=f16 -DEPILOGUE=1
// check: dots_round linear_dots linear_dots_one -DFORMAT=5 -DACT=bf16 -DOUT=bf16 -DEPILOGUE=0
// check: dots_round linear_dots linear_dots_one -DFORMAT=6 -DACT=bf16 -DOUT=f32 -DEPILOGUE=3
// check: dots_round linear_dots linear_dots_one -DFORMAT=7 -DACT=f32 -DOUT=f32 -DEPILOGUE=0
// check: dots_round linear_dots linear_dots_one -DFORMAT=8 -DACT=f16 -DOUT=f32 -DEPILOGUE=2

// Output rows of 32 threads, tokens that they take together, and output rows of a workgroup.
#define ROWS 2
#define TOKENS 8
#define WORKGROUP_ROWS 16

#ifdef ENTRY_linear_dots
#define SUMS (ROWS * TOKENS)
#else
#define SUMS ROWS
#endif
#include "activate.glsl"
#include "lanes.glsl"
#include "planes.glsl"

// Of a record: sixteen bytes each.
#define RECORD_QUADS 9
#define SCALES_AT 8

#ifndef ENTRY_linear_dots
float max4(float x) {
#if SUBGROUP >= 32
    return subgroupClusteredMax(x, 4);
#else
    offer(floatBitsToUint(x));
    u32 first = THREAD & ~3u;
    float largest = uintBitsToFloat(exchange[first]);
    for (u32 i = 1; i < 4; i++) largest = max(largest, uintBitsToFloat(exchange[first + i]));
    return largest;
#endif
}

u32 word_of(float a, float b, float c, float d) {
    ivec4 codes = ivec4(roundEven(vec4(a, b, c, d))) & 0xff;
    return u32(codes.x | codes.y << 8 | codes.z << 16 | codes.w << 24);
}

// Rounds the part of four threads' chunk that is thread `index`'s; chunks past the end are zeros. All threads call it
// together.
uvec2 codes_of(u64 x, u32 index, u32 k, out float scale) {
    u32 depth = index / 4 * 32 + 4 * (index & 3u);
    bool there = depth < k;
    float v[8], largest = 0.0;
    UNROLLED for (u32 i = 0; i < 8; i++) {
        v[i] = there ? LOAD(ACT, x, depth + (i < 4 ? 0 : 12) + i) : 0.0;
        // What is no number must not be lost: an infinite scale makes none of the block's sums one.
        largest = max(largest, is_nan(v[i]) ? INFINITY : abs(v[i]));
    }
    largest = max4(largest);
    scale = largest / 127.0;
    bool nothing = largest == 0.0 || floatBitsToUint(largest) == 0x7f800000u;
    UNROLLED for (u32 i = 0; i < 8; i++) v[i] = nothing ? 0.0 : clamp(v[i] / scale, -127.0, 127.0);
#if FORMAT == 6
    return uvec2(word_of(v[0], v[1], v[2], v[3]), word_of(v[4], v[5], v[6], v[7]));
#else
    return uvec2(word_of(v[0], v[4], v[1], v[5]), word_of(v[2], v[6], v[3], v[7]));
#endif
}
#endif

#ifdef ENTRY_dots_round

PARAMETERS(u64 x; u64 to; u32 x_stride; u32 groups; u32 k;)
void main() {
    u32 index = gl_WorkGroupID.x * THREADS + THREAD, token = gl_WorkGroupID.y, chunk = index / 4, part = index & 3u;
    float scale;
    uvec2 codes = codes_of(p.x + u64(token) * p.x_stride * SIZE(ACT), index, p.k, scale);
    if (chunk >= 4 * p.groups) return;
    u64 record = p.to + (u64(token) * p.groups + chunk / 4) * (16 * RECORD_QUADS);
    Pairs(record + part * 32 + (chunk & 3u) * 8).at[0] = codes;
    if (part == 0) Floats(record + 16 * SCALES_AT).at[chunk & 3u] = scale;
}

#else

PARAMETERS(u64 x; u64 w; u64 bias; u64 residual; u64 to; u32 x_stride; u32 residual_stride; u32 to_stride; u32 tokens;
           u32 n; u32 k;)

// sum + Σ aᵢ·bᵢ over the four signed bytes of each.
i32 add_dot(u32 a, u32 b, i32 sum) { return sum + dotPacked4x8EXT(i32(a), i32(b)); }

// A lane's eight weights of a chunk (0 .. 3) as signed bytes, without their scale.
uvec2 bytes_of(Group v, u32 chunk) {
#if FORMAT == 6
    uvec4 words = chunk >= 2 ? v.more : v.quants;
    return (chunk & 1u) == 0 ? words.xy : words.zw;
#else
    u32 word = v.quants[chunk];
    uvec2 bytes = uvec2(word, word >> 4) & 0x0f0f0f0fu;
#if FORMAT == 5
    // Every second bit to a byte of its own.
    uvec2 fifth = uvec2(v.high.x >> (8 * chunk), v.high.x >> (8 * chunk + 1)) & 0x55u;
    bytes |= (fifth * 0x41041u & 0x01010101u) << 4;
#elif FORMAT == 8
    // Every second pair.
    u32 pairs = v.high[chunk >> 1] >> (16 * (chunk & 1u));
    uvec2 high = uvec2(pairs, pairs >> 2) & 0x3333u;
    high = (high | high << 8) & 0x00ff00ffu;
    high = (high | high << 4) & 0x0f0f0f0fu;
    bytes |= high << 4;
#endif
#if OFFSET != 0
    // The top bit keeps each byte from borrowing of the next.
    bytes = ((bytes | 0x80808080u) - OFFSET * 0x01010101u) ^ 0x80808080u;
#endif
    return bytes;
#endif
}

// One row's weights of a group, ready to be multiplied. `second` counts in formats of two scales a chunk, `add` in
// those with a minimum.
struct Weights {
    uvec2 bytes[4];
    float first[4], second[4], add[4];
};

Weights weights_of(Group v) {
    Weights w;
    UNROLLED for (u32 c = 0; c < 4; c++) {
        w.bytes[c] = bytes_of(v, c);
        Scales s = scales_of(v, c);
        w.first[c] = s.first;
        w.second[c] = s.second;
        w.add[c] = s.add;
    }
    return w;
}

// The sum over a lane's part of a group: the codes of its four chunks, two by two, and the chunks' scales.
float product_of(Weights w, uvec4 low, uvec4 high, uvec4 scales) {
    float sum = 0.0;
    UNROLLED for (u32 c = 0; c < 4; c++) {
        uvec4 both = c >= 2 ? high : low;
        uvec2 codes = (c & 1u) == 0 ? both.xy : both.zw;
        float scale = uintBitsToFloat(scales[c]);
#if FORMAT == 8
        // Even bytes are of the chunk's first half.
        uvec2 even = codes & 0x00ff00ffu, odd = codes & 0xff00ff00u;
        i32 first = add_dot(w.bytes[c].x, even.x, add_dot(w.bytes[c].y, even.y, 0));
        i32 second = add_dot(w.bytes[c].x, odd.x, add_dot(w.bytes[c].y, odd.y, 0));
        sum = fma(scale, fma(w.first[c], float(first), w.second[c] * float(second)), sum);
#else
        float part = w.first[c] * float(add_dot(w.bytes[c].x, codes.x, add_dot(w.bytes[c].y, codes.y, 0)));
#if FORMAT == 4 || FORMAT == 7
        part = fma(w.add[c], float(add_dot(0x01010101u, codes.x, add_dot(0x01010101u, codes.y, 0))), part);
#endif
        sum = fma(scale, part, sum);
#endif
    }
    return sum;
}

// Groups of the rows of these threads. Past the end the last row is computed again, because all threads must reach the
// barriers; it is not written.
void load_groups(Planes planes, u32 first_row, u32 group, u32 t, out Group v[ROWS]) {
    UNROLLED for (u32 r = 0; r < ROWS; r++) v[r] = load_group(planes, min(first_row + r, p.n - 1), group, t);
}

#ifdef ENTRY_linear_dots

void main() {
    u32 first_row = gl_WorkGroupID.x * WORKGROUP_ROWS + WARP * ROWS, t = LANE & 3u;
    u32 first_token = gl_WorkGroupID.y * TOKENS, count = min(p.tokens - first_token, TOKENS);
    Planes planes = planes_of(p.w, p.n, p.k);
    u64 pitch = u64(planes.groups) * (16 * RECORD_QUADS), records = p.x + first_token * pitch;
    float sums[SUMS];
    UNROLLED for (u32 i = 0; i < SUMS; i++) sums[i] = 0.0;
    for (u32 group = LANE >> 2; group < planes.groups; group += 8) {
        Group v[ROWS];
        load_groups(planes, first_row, group, t, v);
        Weights w[ROWS];
        UNROLLED for (u32 r = 0; r < ROWS; r++) w[r] = weights_of(v[r]);
        UNROLLED for (u32 token = 0; token < TOKENS; token++) {
            if (token >= count) continue;
            Quads record = Quads(records + token * pitch + group * (16 * RECORD_QUADS));
            uvec4 low = record.at[2 * t], high = record.at[2 * t + 1], scales = record.at[SCALES_AT];
            UNROLLED for (u32 r = 0; r < ROWS; r++) sums[r * TOKENS + token] += product_of(w[r], low, high, scales);
        }
    }
    float mine = sums32(sums, SUMS);
    u32 row = first_row + LANE / TOKENS, token = LANE % TOKENS;
    if (LANE < SUMS && token < count && row < p.n) WRITE_OUT(mine, first_token + token, row);
}

#else

shared uvec4 staged[(SHARED_WORDS + 3) / 4];

void main() {
    u32 first_row = gl_WorkGroupID.x * WORKGROUP_ROWS + WARP * ROWS, t = LANE & 3u, group = LANE >> 2;
    Planes planes = planes_of(p.w, p.n, p.k);
    // The weights are on their way while the token is rounded.
    Group ahead[ROWS];
    load_groups(planes, first_row, min(group, planes.groups - 1), t, ahead);
    for (u32 start = 0; start < 16 * planes.groups; start += THREADS) {
        u32 index = start + THREAD, chunk = index / 4, part = index & 3u, at = chunk / 4 * RECORD_QUADS;
        float scale;
        uvec2 codes = codes_of(p.x, index, p.k, scale);
        if (index >= 16 * planes.groups) continue;
        u32 quad = at + 2 * part + (chunk & 3u) / 2;
        if ((chunk & 1u) == 0) staged[quad].xy = codes;
        else staged[quad].zw = codes;
        if (part == 0) staged[at + SCALES_AT][chunk & 3u] = floatBitsToUint(scale);
    }
    barrier();
    float sums[SUMS];
    UNROLLED for (u32 r = 0; r < ROWS; r++) sums[r] = 0.0;
    for (; group < planes.groups; group += 8) {
        Group v[ROWS] = ahead;
        if (group + 8 < planes.groups) load_groups(planes, first_row, group + 8, t, ahead);
        u32 at = group * RECORD_QUADS;
        uvec4 low = staged[at + 2 * t], high = staged[at + 2 * t + 1], scales = staged[at + SCALES_AT];
        UNROLLED for (u32 r = 0; r < ROWS; r++) sums[r] += product_of(weights_of(v[r]), low, high, scales);
    }
    float mine = sums32(sums, SUMS);
    u32 row = first_row + LANE;
    if (LANE < ROWS && row < p.n) WRITE_OUT(mine, 0, row);
}
#endif
#endif
