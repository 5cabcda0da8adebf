#version 460
#extension GL_GOOGLE_include_directive : enable
// `linear` of weights in blocks, GGUF's and canonical ones: packing them into planes, unpacking them, and the product
// that reads the packed planes once and never writes a weight, in f32. The planes' layout stands in planes.glsl.
//
// Definitions: FORMAT (see planes.glsl), ACT, OUT (f32, f16, bf16), MATRIX (not used here), EPILOGUE (see
// activate.glsl). quantized_pack: grid ⌈rows · 4 · groups / 256⌉, 256 threads. quantized_unpack: grid ⌈rows · groups ·
// 16 / 256⌉, 256 threads. linear_quantized_plain: grid (⌈n / 4⌉, ⌈tokens / 8⌉), 64 threads; in subgroups of 8 (⌈n /
// 32⌉, ⌈tokens / 8⌉), 8 threads, each four rows.
// revision: 2
// check: quantized_pack quantized_unpack linear_quantized_plain -DFORMAT=3 -DACT=f32 -DOUT=f32 -DMATRIX=0 -DEPILOGUE=0
// check: quantized_pack quantized_unpack linear_quantized_plain -DFORMAT=4 -DACT=f16 -DOUT=f16 -DMATRIX=1 -DEPILOGUE=1
// check: quantized_pack quantized_unpack linear_quantized_plain -DFORMAT=5 -DACT=bf16 -DOUT=bf16 -DMATRIX=1 -DEPILOGUE=0
// check: quantized_pack quantized_unpack linear_quantized_plain -DFORMAT=6 -DACT=bf16 -DOUT=f32 -DMATRIX=1 -DEPILOGUE=3
// check: quantized_pack quantized_unpack linear_quantized_plain -DFORMAT=7 -DACT=f32 -DOUT=f32 -DMATRIX=0 -DEPILOGUE=0
// check: quantized_pack quantized_unpack linear_quantized_plain -DFORMAT=8 -DACT=f16 -DOUT=f32 -DMATRIX=1 -DEPILOGUE=2
// check: linear_quantized_plain -DFORMAT=4 -DACT=f32 -DOUT=f32 -DMATRIX=0 -DEPILOGUE=0 -DSUBGROUP=8
// check: linear_quantized_plain -DFORMAT=5 -DACT=f16 -DOUT=f16 -DMATRIX=0 -DEPILOGUE=0 -DSUBGROUP=8
// check: linear_quantized_plain -DFORMAT=6 -DACT=bf16 -DOUT=bf16 -DMATRIX=0 -DEPILOGUE=1 -DSUBGROUP=8
// check: linear_quantized_plain -DFORMAT=7 -DACT=f32 -DOUT=f32 -DMATRIX=0 -DEPILOGUE=0 -DSUBGROUP=8
// check: linear_quantized_plain -DFORMAT=8 -DACT=f32 -DOUT=f32 -DMATRIX=0 -DEPILOGUE=2 -DSUBGROUP=8
// check: quantized_pack quantized_unpack linear_quantized_plain -DFORMAT=40 -DACT=f16 -DOUT=f16 -DMATRIX=0 -DEPILOGUE=0
// check: quantized_pack quantized_unpack linear_quantized_plain -DFORMAT=43 -DACT=bf16 -DOUT=bf16 -DMATRIX=0 -DEPILOGUE=0
// check: quantized_pack quantized_unpack linear_quantized_plain -DFORMAT=45 -DACT=f32 -DOUT=f32 -DMATRIX=0 -DEPILOGUE=0
// check: quantized_pack quantized_unpack linear_quantized_plain -DFORMAT=48 -DACT=bf16 -DOUT=f32 -DMATRIX=0 -DEPILOGUE=0
// check: quantized_pack quantized_unpack linear_quantized_plain -DFORMAT=50 -DACT=f16 -DOUT=f16 -DMATRIX=0 -DEPILOGUE=0
// check: quantized_pack quantized_unpack linear_quantized_plain -DFORMAT=55 -DACT=f32 -DOUT=f32 -DMATRIX=0 -DEPILOGUE=0
// check: linear_quantized_plain -DFORMAT=40 -DACT=f32 -DOUT=f32 -DMATRIX=0 -DEPILOGUE=0 -DSUBGROUP=8
// check: linear_quantized_plain -DFORMAT=47 -DACT=bf16 -DOUT=bf16 -DMATRIX=0 -DEPILOGUE=0 -DSUBGROUP=8
// check: linear_quantized_plain -DFORMAT=52 -DACT=f32 -DOUT=f32 -DMATRIX=0 -DEPILOGUE=0 -DSUBGROUP=8
#include "activate.glsl"
#include "planes.glsl"

#if defined(ENTRY_quantized_pack)

#if FORMAT < 40
u32 byte_at(u64 address) { return u32(Bytes(address).at[0]); }
u32 half_bits(u64 address) { return byte_at(address) | byte_at(address + 1) << 8; }

// The stored number of value `j` (0 .. 31) of chunk `chunk` of a file's block.
u32 number_in_file(u64 block, u32 chunk, u32 j) {
#if FORMAT == 3
    return byte_at(block + 2 + (j & 15u)) >> (j / 16 * 4) & 15u;
#elif FORMAT == 4
    return byte_at(block + 4 + (j & 15u)) >> (j / 16 * 4) & 15u;
#elif FORMAT == 5
    return (byte_at(block + 6 + (j & 15u)) >> (j / 16 * 4) & 15u) | (byte_at(block + 2 + j / 8) >> (j & 7u) & 1u) << 4;
#elif FORMAT == 6
    return byte_at(block + 2 + j);
#elif FORMAT == 7
    return byte_at(block + 16 + chunk / 2 * 32 + j) >> ((chunk & 1u) * 4) & 15u;
#else
    u32 part = chunk / 4, quarter = chunk & 3u;
    u32 low = byte_at(block + part * 64 + (quarter & 1u) * 32 + j) >> (quarter / 2 * 4) & 15u;
    return low | (byte_at(block + 128 + part * 32 + j) >> (2 * quarter) & 3u) << 4;
#endif
}

// The scale word of a chunk: 16 bits, or 32 for a scale and a minimum of their own.
u32 scale_in_file(u64 block, u32 chunk) {
#if FORMAT == 4
    return half_bits(block) | half_bits(block + 2) << 16;
#elif FORMAT == 7
    // Six bits each: the first four chunks plainly, the others in the spare bits.
    u64 s = block + 4;
    if (chunk < 4) return (byte_at(s + chunk) & 63u) | (byte_at(s + chunk + 4) & 63u) << 8;
    u32 scale = (byte_at(s + chunk + 4) & 15u) | byte_at(s + chunk - 4) >> 6 << 4;
    return scale | (byte_at(s + chunk + 4) >> 4 | byte_at(s + chunk) >> 6 << 4) << 8;
#elif FORMAT == 8
    return half_bits(block + 192 + 2 * chunk);
#else
    return half_bits(block);
#endif
}
#endif

// Rows `first_row ..` of the matrix from canonical bytes. One thread a chunk.
PARAMETERS(u64 file; u64 packed; u32 n; u32 k; u32 first_row; u32 num_rows;)
void main() {
    Planes planes = planes_of(p.packed, p.n, p.k);
    u64 index = u64(gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
    u32 chunks = 4 * planes.groups, chunk = u32(index % chunks);
    u64 row = index / chunks;
    if (row >= p.num_rows) return;
    u64 at = (p.first_row + row) * planes.groups + chunk / 4;
    u32 slot = chunk & 3u;
    bool present = 32 * chunk < p.k;
#if FORMAT >= 40
    u64 from = p.file + row * (p.k / FILE_BLOCK) * FILE_BYTES;
#define NUMBER_IN_FILE(j) code_at(from, 32 * chunk + (j))
#else
    u32 in_block = chunk % (FILE_BLOCK / 32);
    u64 block = p.file + (row * (p.k / FILE_BLOCK) + 32 * chunk / FILE_BLOCK) * FILE_BYTES;
#define NUMBER_IN_FILE(j) number_in_file(block, in_block, j)
#endif
    for (u32 t = 0; t < 4; t++) {
        u32 word = 0, fifth = 0, pairs = 0, bytes[2] = u32[2](0, 0);
        for (u32 i = 0; i < 8 && present; i++) {
            u32 number = NUMBER_IN_FILE((i < 4 ? 0 : 16) + 4 * t + (i & 3u)), odd = i & 1u, pair = i / 2;
            bytes[i / 4] |= (number & 255u) << (8 * (i & 3u));
            word |= (number & 15u) << (4 * (pair + 4 * odd));
            fifth |= (number >> 4 & 1u) << (pair + 4 * odd);
            pairs |= (number >> 4 & 3u) << (2 * pair + 8 * odd);
        }
        u64 quants = planes.quants + at * QUANTS + t * (QUANTS / 4);
#if BYTE_CODES
        Words(quants).at[2 * slot] = bytes[0];
        Words(quants).at[2 * slot + 1] = bytes[1];
#else
        Words(quants).at[slot] = word;
#endif
#if FORMAT == 5
        Bytes(planes.high + at * HIGH).at[4 * t + slot] = uint8_t(fifth);
#elif FORMAT == 8
        Halves(planes.high + at * HIGH).at[4 * t + slot] = uint16_t(pairs);
#endif
    }
#if FORMAT >= 40
    // The scales of groups that begin in this chunk.
    for (u32 first = 32 * slot; first < 32 * slot + 32; first += 16) {
        if (first % GROUP_VALUES != 0) continue;
        u64 group = from + (128 * (chunk / 4) + first) / GROUP_VALUES * GROUP_BYTES,
            to = planes.scales + at * SCALES + first / GROUP_VALUES * SCALE_WORDS * 4;
        for (u32 w = 0; w < SCALE_WORDS; w++) {
            u32 word = 0;
            if (present) word = WORD_AT(group + 4 * w);
            Words(to).at[w] = word;
        }
    }
#else
    u32 scale = present ? scale_in_file(block, in_block) : 0;
#if SCALES == 16
    Words(planes.scales + at * SCALES).at[slot] = scale;
#else
    Halves(planes.scales + at * SCALES).at[slot] = uint16_t(scale);
#endif
#endif
#if FORMAT == 7 || FORMAT == 8
    if (in_block == 0) {
#if FORMAT == 7
        u32 factors = half_bits(block) | half_bits(block + 2) << 16;
#else
        u32 factors = half_bits(block + 208);
#endif
        Words(planes.blocks + ((p.first_row + row) * (planes.groups / 2) + chunk / 8) * 4).at[0] = factors;
    }
#endif
}

#elif defined(ENTRY_quantized_unpack)

// Rows `first_row ..` as plain values, row-major. One thread a lane's part of a chunk.
PARAMETERS(u64 packed; u64 to; u32 n; u32 k; u32 first_row; u32 num_rows;)
void main() {
    Planes planes = planes_of(p.packed, p.n, p.k);
    u64 index = u64(gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
    u32 t = u32(index & 3), parts = 4 * planes.groups, chunk = u32(index / 4 % parts);
    u64 row = index / 4 / parts;
    if (row >= p.num_rows || 32 * chunk >= p.k) return;
    Group v = load_group(planes, p.first_row + u32(row), chunk / 4, t);
    float numbers[8];
    numbers_of(v, chunk & 3u, numbers);
    Scales s = scales_of(v, chunk & 3u);
    u64 to = p.to + (row * p.k + 32 * chunk + 4 * t) * SIZE(ACT);
    for (u32 i = 0; i < 4; i++) {
        STORE(ACT, to, i, fma(s.first, numbers[i], s.add));
        STORE(ACT, to, 16 + i, fma(s.second, numbers[4 + i], s.second_add));
    }
}

#elif SUBGROUP == 8
#include "rows.glsl"

PARAMETERS(u64 x; u64 w; u64 bias; u64 residual; u64 to; u32 x_stride; u32 residual_stride; u32 to_stride; u32 tokens;
           u32 n; u32 k;)

// The eight values of part `t` of a row's chunk, which is chunk `slot` of group `at`, scaled.
void weights_of(Planes planes, u64 at, u32 slot, u32 t, Scales scales, out float w[8]) {
    // The group holds this chunk alone, as its first.
    Group v;
    u64 quants = planes.quants + at * QUANTS + t * (QUANTS / 4);
#if BYTE_CODES
    v.quants.xy = uvec2(Words(quants).at[2 * slot], Words(quants).at[2 * slot + 1]);
#else
    v.quants.x = Words(quants).at[slot];
#endif
#if FORMAT == 5
    v.high.x = u32(Bytes(planes.high + at * HIGH).at[4 * t + slot]);
#elif FORMAT == 8
    v.high.x = u32(Halves(planes.high + at * HIGH).at[4 * t + slot]);
#endif
    numbers_of(v, 0, w);
    [[unroll]] for (u32 i = 0; i < 4; i++) w[i] = fma(scales.first, w[i], scales.add);
    [[unroll]] for (u32 i = 4; i < 8; i++) w[i] = fma(scales.second, w[i], scales.second_add);
}

// The scales of the halves of a row's chunk, and what is added to their values.
Scales chunk_scales(Planes planes, u32 row, u32 chunk) {
    Group v;
    u64 at = planes.scales + (u64(row) * planes.groups + chunk / 4) * SCALES;
#if FORMAT >= 40
    // As scales of the group's first chunk.
    u32 slot = chunk & 3u, first = 32 * slot / GROUP_VALUES, count = (32 * slot + 16) / GROUP_VALUES - first + 1;
    for (u32 i = 0; i < count * SCALE_WORDS; i++) v.factors[i] = Floats(at).at[first * SCALE_WORDS + i];
#elif SCALES == 16
    v.scales.x = Words(at).at[chunk & 3u];
#else
    v.scales.x = u32(Halves(at).at[chunk & 3u]);
#endif
#if FORMAT == 7 || FORMAT == 8
    v.block = Words(planes.blocks + (u64(row) * (planes.groups / 2) + chunk / 8) * 4).at[0];
#endif
    return scales_of(v, 0);
}

// Adds the first `chunks` chunks of each row to the sums of `count` tokens.
void add_chunks(Planes planes, in u32 rows[ROWS], u32 chunks, u64 from, u64 pitch, u32 count, const bool single,
                inout Sums sums) {
    for (u32 chunk = 0; chunk < chunks; chunk++) {
        Scales scales[ROWS];
        float w[ROWS][8];
        [[unroll]] for (u32 r = 0; r < ROWS; r++) scales[r] = chunk_scales(planes, rows[r], chunk);
        for (u32 t = 0; t < 4; t++) {
            [[unroll]] for (u32 r = 0; r < ROWS; r++)
                weights_of(planes, u64(rows[r]) * planes.groups + chunk / 4, chunk & 3u, t, scales[r], w[r]);
            multiply(w, from + (32 * chunk + 4 * t) * SIZE(ACT), pitch, count, single, sums);
        }
    }
}

void main() {
    u32 first_token = gl_WorkGroupID.y * TOKENS, count = min(p.tokens - first_token, TOKENS),
        lane = gl_SubgroupInvocationID;
    u32 chunks = p.k / 32, rows[ROWS];
    Planes planes = planes_of(p.w, p.n, p.k);
    // A part's depths: 4t .. 4t + 3 and 16 + 4t .. 16 + 4t + 3.
    u64 pitch = u64(p.x_stride) * SIZE(ACT),
        from = p.x + first_token * pitch + (lane < 4 ? lane : 12 + lane) * SIZE(ACT);
    [[unroll]] for (u32 r = 0; r < ROWS; r++) rows[r] = row_of(r, p.n);
    Sums sums = no_sums();
    add_chunks(planes, rows, count == 1 ? chunks : 0, from, pitch, count, true, sums);
    add_chunks(planes, rows, count == 1 ? 0 : chunks, from, pitch, count, false, sums);
    FINISH_ROWS(sums, first_token, count)
}

#else
// Output rows of 32 threads, and tokens that they take together.
#ifndef ROWS
#define ROWS 2
#endif
#define TOKENS 8
#define SUMS (ROWS * TOKENS)
#include "lanes.glsl"

PARAMETERS(u64 x; u64 w; u64 bias; u64 residual; u64 to; u32 x_stride; u32 residual_stride; u32 to_stride; u32 tokens;
           u32 n; u32 k;)

// Four neighbours, from a multiple of their size on.
vec4 four_f32(u64 address) { return uintBitsToFloat(Quads(address).at[0]); }
vec4 four_f16(u64 address) {
    uvec2 both = Pairs(address).at[0];
    return vec4(unpackHalf2x16(both.x), unpackHalf2x16(both.y));
}
vec4 four_bf16(u64 address) {
    uvec2 both = Pairs(address).at[0];
    return uintBitsToFloat(uvec4(both.x << 16, both.x & 0xffff0000u, both.y << 16, both.y & 0xffff0000u));
}

// A lane's eight activations of a chunk.
void values_of(u64 from, bool vectors, out vec4 low, out vec4 high) {
    if (vectors) {
        low = JOIN(four_, ACT)(from);
        high = JOIN(four_, ACT)(from + 16 * SIZE(ACT));
    } else {
        UNROLLED for (u32 i = 0; i < 4; i++) low[i] = LOAD(ACT, from, i);
        UNROLLED for (u32 i = 0; i < 4; i++) high[i] = LOAD(ACT, from, 16 + i);
    }
}

// Adds the products of a group's chunks to the sums of the tokens that are there: weights are scaled once for all of
// them.
#define ADD_GROUP                                                                                                 \
    UNROLLED for (u32 c = 0; c < 4; c++) {                                                                        \
        u32 depth = 128 * group + 32 * c + 4 * t;                                                                 \
        if (depth >= p.k) break;                                                                                  \
        float numbers[ROWS][8];                                                                                   \
        UNROLLED for (u32 r = 0; r < ROWS; r++) {                                                                 \
            numbers_of(v[r], c, numbers[r]);                                                                      \
            Scales s = scales_of(v[r], c);                                                                        \
            UNROLLED for (u32 i = 0; i < 4; i++) numbers[r][i] = fma(s.first, numbers[r][i], s.add);              \
            UNROLLED for (u32 i = 4; i < 8; i++) numbers[r][i] = fma(s.second, numbers[r][i], s.second_add);      \
        }                                                                                                         \
        UNROLLED for (u32 token = 0; token < TOKENS; token++) {                                                   \
            if (token >= count) continue;                                                                         \
            vec4 low, high;                                                                                       \
            values_of(values + token * pitch + depth * SIZE(ACT), vectors, low, high);                            \
            UNROLLED for (u32 r = 0; r < ROWS; r++) {                                                             \
                float sum = sums[token * ROWS + r];                                                               \
                UNROLLED for (u32 i = 0; i < 4; i++) sum = fma(numbers[r][i], low[i], sum);                       \
                UNROLLED for (u32 i = 0; i < 4; i++) sum = fma(numbers[r][4 + i], high[i], sum);                  \
                sums[token * ROWS + r] = sum;                                                                     \
            }                                                                                                     \
        }                                                                                                         \
    }

// The same for a single token, whose sums are scaled instead.
void add_group_of_one(in Group v[ROWS], u32 group, u32 t, u64 values, bool vectors, inout float sums[SUMS]) {
    UNROLLED for (u32 c = 0; c < 4; c++) {
        u32 depth = 128 * group + 32 * c + 4 * t;
        if (depth >= p.k) break;
        vec4 low, high;
        values_of(values + depth * SIZE(ACT), vectors, low, high);
        UNROLLED for (u32 r = 0; r < ROWS; r++) {
            float numbers[8], part = 0.0;
            numbers_of(v[r], c, numbers);
            Scales s = scales_of(v[r], c);
            UNROLLED for (u32 i = 0; i < 4; i++) part = fma(numbers[i], low[i], part);
#if IS_FINE
            sums[r] = fma(s.first, part, sums[r]);
            part = 0.0;
#endif
            UNROLLED for (u32 i = 0; i < 4; i++) part = fma(numbers[4 + i], high[i], part);
            sums[r] = fma(s.second, part, sums[r]);
#if HAS_MIN
            float lows = low.x + low.y + low.z + low.w, highs = high.x + high.y + high.z + high.w;
#if IS_FINE
            sums[r] = fma(s.add, lows, fma(s.second_add, highs, sums[r]));
#else
            sums[r] = fma(s.add, lows + highs, sums[r]);
#endif
#endif
        }
    }
}

// Groups of the rows of these threads. Past the end the last row is computed again, because all threads must reach the
// barriers; it is not written.
void load_groups(Planes planes, u32 first_row, u32 group, u32 t, out Group v[ROWS]) {
    UNROLLED for (u32 r = 0; r < ROWS; r++) v[r] = load_group(planes, min(first_row + r, p.n - 1), group, t);
}

// Any stride. 32 threads for ROWS rows, eight tokens at a time: each four threads take a group of 128 values, while the
// next is on its way.
void main() {
    u32 first_row = (gl_WorkGroupID.x * WARPS + WARP) * ROWS, first_token = gl_WorkGroupID.y * TOKENS;
    u32 count = min(p.tokens - first_token, TOKENS), t = LANE & 3u, group = LANE >> 2;
    Planes planes = planes_of(p.w, p.n, p.k);
    Group ahead[ROWS];
    load_groups(planes, first_row, min(group, planes.groups - 1), t, ahead);
    u64 pitch = u64(p.x_stride) * SIZE(ACT), values = p.x + first_token * pitch;
    bool vectors = ((values | pitch) & (4 * SIZE(ACT) - 1)) == 0;
    // Of token t and row r: t · ROWS + r.
    float sums[SUMS];
    UNROLLED for (u32 i = 0; i < SUMS; i++) sums[i] = 0.0;
    for (; group < planes.groups; group += 8) {
        Group v[ROWS] = ahead;
        if (group + 8 < planes.groups) load_groups(planes, first_row, group + 8, t, ahead);
        if (count == 1) {
            add_group_of_one(v, group, t, values, vectors, sums);
        } else {
            ADD_GROUP
        }
    }
    float mine = sums32(sums, count * ROWS);
    u32 row = first_row + LANE % ROWS;
    if (LANE < count * ROWS && row < p.n) WRITE_OUT(mine, first_token + LANE / ROWS, row);
}
#endif
