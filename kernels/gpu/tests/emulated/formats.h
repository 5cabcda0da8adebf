// Random matrices of formats in blocks, GGUF's and canonical ones: rows as their description says (weight_format.rs),
// their values in double precision, and their records (quantized.cuh).
#pragma once
#include <algorithm>

#include "checks.h"

enum Kind { U4, I8, E2M1, NF4, FP4, IQ4_NL, F8, GGUF };

// `group`: values of a block.
struct Format {
    unsigned code;
    Kind kind;
    unsigned group;
};

inline const Format FORMATS[] = {{40, U4, 16},     {41, U4, 32},   {42, U4, 64},  {43, U4, 128},
                          {44, I8, 16},     {45, I8, 32},   {46, I8, 64},  {47, I8, 128},
                          {48, E2M1, 16},   {49, E2M1, 32}, {50, NF4, 64}, {51, FP4, 64},
                          {52, IQ4_NL, 32}, {53, F8, 32},   {54, F8, 64},  {55, F8, 128},
                          {3, GGUF, 32},    {4, GGUF, 32},  {5, GGUF, 32}, {6, GGUF, 32},
                          {7, GGUF, 256},   {8, GGUF, 256}};

inline double e4m3(unsigned code) {
    int exponent = code >> 3 & 15;
    double mantissa = (code & 7) / 8., sign = code & 0x80 ? -1 : 1;
    return sign * (exponent ? std::ldexp(1 + mantissa, exponent - 7) : std::ldexp(mantissa, -6));
}

inline double number(Kind kind, unsigned code) {
    static const double e2m1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    static const double nf4[16] = {-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
                                   -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0,
                                   0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
                                   0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1};
    static const double fp4[8] = {0, 0.0625 / 12, 8. / 12, 1, 4. / 12, 6. / 12, 2. / 12, 3. / 12};
    static const double iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    switch (kind) {
    case U4: return code;
    case I8: return (signed char)code;
    case E2M1: return code < 8 ? e2m1[code] : -e2m1[code - 8];
    case NF4: return nf4[code];
    case FP4: return code < 8 ? fp4[code] : -fp4[code - 8];
    case IQ4_NL: return iq4[code];
    default: return e4m3(code);
    }
}

inline unsigned random_byte() { return (unsigned)((unit() + 1) * 128) & 255; }

inline const Format &format_of(unsigned code) {
    return *std::find_if(std::begin(FORMATS), std::end(FORMATS), [=](const Format &f) { return f.code == code; });
}

struct Matrix {
    bool bytes, has_min;
    unsigned head, block, row_bytes;
    std::vector<std::uint8_t> file;
    // Of each value: its code and what it stands for; of each group its scale and minimum.
    std::vector<unsigned> codes;
    std::vector<double> values;
    std::vector<float> scales, minima;
    // GGUF's: what a record has of scales, [row][group of 128][`record_scales` bytes].
    unsigned record_scales;
    std::vector<std::uint8_t> in_records;
};

// A depth for a test: at least `k`, in whole blocks.
inline unsigned depth_of(const Format &format, unsigned k) {
    return (k + format.group - 1) / format.group * format.group;
}

inline double half_at(const std::uint8_t *at) {
    f16 half;
    std::memcpy(&half, at, 2);
    return half.value();
}

inline Matrix random_gguf(const Format &format, unsigned n, unsigned k) {
    const unsigned code = format.code, groups = (k + 127) / 128;
    const unsigned bytes[] = {18, 20, 22, 34, 144, 210}, scales[] = {8, 16, 8, 8, 12, 12};
    Matrix m = {};
    m.bytes = code == 6, m.has_min = code == 4 || code == 7;
    m.block = bytes[code - 3], m.row_bytes = k / format.group * m.block, m.record_scales = scales[code - 3];
    m.file.resize(n * m.row_bytes), m.codes.resize(n * k), m.values.resize(n * k);
    m.in_records.resize(n * groups * m.record_scales);
    for (std::uint8_t &byte : m.file) byte = (std::uint8_t)random_byte();
    for (unsigned row = 0; row < n; row++)
        for (unsigned first = 0; first < k; first += format.group) {
            std::uint8_t *b = &m.file[row * m.row_bytes + first / format.group * m.block];
            auto put_half = [&](unsigned at, double largest) {
                f16 half = f16::of((float)((1 + 0.25 * unit()) / largest));
                std::memcpy(b + at, &half, 2);
            };
            const double largest[] = {8, 15, 16, 128, 15 * 63, 32 * 128};
            put_half(code == 8 ? 208 : 0, largest[code - 3]);
            if (m.has_min) put_half(2, code == 4 ? 2 : 63);
            auto nibble = [&](unsigned at, unsigned j) { return j < 16 ? b[at + j] & 15u : b[at + j - 16] >> 4; };
            for (unsigned i = 0; i < format.group; i++) {
                unsigned at = row * k + first + i, g = i / 32, q, chunk = (first + i) / 32;
                std::uint8_t *kept = &m.in_records[(row * groups + chunk / 4) * m.record_scales];
                auto keep = [&](unsigned to, const void *from, unsigned count) { std::memcpy(kept + to, from, count); };
                double value;
                if (code <= 6) {
                    double d = half_at(b);
                    q = code == 3 ? nibble(2, i) : code == 4 ? nibble(4, i) : nibble(6, i);
                    if (code == 5) q |= (b[2 + i / 8] >> (i % 8) & 1u) << 4;
                    if (code == 6) q = b[2 + i];
                    value = code == 3   ? d * ((int)q - 8)
                            : code == 4 ? d * q + half_at(b + 2)
                            : code == 5 ? d * ((int)q - 16)
                                        : d * (signed char)q;
                    keep((code == 4 ? 4 : 2) * (chunk % 4), b, code == 4 ? 4 : 2);
                } else if (code == 7) {
                    const std::uint8_t *s = b + 4;
                    std::uint8_t six[2] = {(std::uint8_t)(s[g] & 63), (std::uint8_t)(s[g + 4] & 63)};
                    if (g >= 4) {
                        six[0] = (std::uint8_t)((s[g + 4] & 15) | s[g - 4] >> 6 << 4);
                        six[1] = (std::uint8_t)(s[g + 4] >> 4 | s[g] >> 6 << 4);
                    }
                    q = b[16 + g / 2 * 32 + i % 32] >> (g % 2 * 4) & 15;
                    value = half_at(b) * six[0] * q - half_at(b + 2) * six[1];
                    keep(2 * (chunk % 4), six, 2), keep(8, b, 4);
                } else {
                    unsigned half = i / 128, quarter = i % 128 / 32, l = i % 32, scale = 192 + 8 * half + 2 * quarter;
                    q = b[64 * half + 32 * (quarter % 2) + l] >> (quarter / 2 * 4) & 15;
                    q |= (b[128 + 32 * half + l] >> (2 * quarter) & 3u) << 4;
                    value = half_at(b + 208) * (signed char)b[scale + l / 16] * ((int)q - 32);
                    keep(2 * (chunk % 4), b + scale, 2), keep(8, b + 208, 2);
                }
                m.codes[at] = q, m.values[at] = value;
            }
        }
    return m;
}

inline Matrix random_matrix(const Format &format, unsigned n, unsigned k) {
    if (format.kind == GGUF) return random_gguf(format, n, k);
    Matrix m;
    m.bytes = format.kind == I8 || format.kind == F8, m.has_min = format.kind <= I8;
    const double largest = format.kind == U4       ? 15
                           : format.kind == I8     ? 128
                           : format.kind == E2M1   ? 6
                           : format.kind == IQ4_NL ? 127
                           : format.kind == F8     ? 448
                                                   : 1;
    m.head = m.has_min ? 8 : 4, m.block = m.head + format.group * (m.bytes ? 8 : 4) / 8;
    m.row_bytes = k / format.group * m.block;
    m.file.resize(n * m.row_bytes);
    m.codes.resize(n * k), m.values.resize(n * k);
    for (unsigned row = 0; row < n; row++)
        for (unsigned g = 0; g < k / format.group; g++) {
            std::uint8_t *at = &m.file[row * m.row_bytes + g * m.block];
            float scale = (float)((1 + 0.25 * unit()) / largest), min = m.has_min ? 0.5f * unit() : 0.f;
            // Zero points in every second group, and now and then a group of one value.
            if (m.has_min && g % 2) min = -scale * (float)(random_byte() % 16);
            if (m.has_min && row % 7 == 3 && g == 2) scale = 0.f;
            m.scales.push_back(scale), m.minima.push_back(min);
            std::memcpy(at, &scale, 4);
            if (m.has_min) std::memcpy(at + 4, &min, 4);
            for (unsigned j = 0; j < m.block - m.head; j++) {
                at[m.head + j] = (std::uint8_t)random_byte();
                if (format.kind == F8 && (at[m.head + j] & 0x7f) == 0x7f) at[m.head + j] = 0;
            }
            unsigned run = std::min(format.group, 32u);
            for (unsigned i = 0; i < format.group; i++) {
                unsigned in_run = i % run,
                         byte = at[m.head + (m.bytes ? i : i / run * (run / 2) + in_run % (run / 2))];
                unsigned code = m.bytes ? byte : in_run < run / 2 ? byte & 15 : byte >> 4;
                m.codes[row * k + g * format.group + i] = code;
                m.values[row * k + g * format.group + i] = scale * number(format.kind, code) + min;
            }
        }
    return m;
}

// The records of a matrix (quantized.cuh): eight rows' codes of 128 values lane by lane, higher bits, then scales and
// minima, those of canonical formats as multiples of their scales; groups of one value have it as scale, multiple 1 and
// codes 0. What belongs to no row is not zero.
inline std::vector<std::uint64_t> records_of(const Format &format, const Matrix &m, unsigned n, unsigned k) {
    const unsigned groups = (k + 127) / 128, quants = m.bytes ? 128 : 64, words = m.has_min ? 2 : 1;
    const bool gguf = format.kind == GGUF;
    const unsigned high = format.code == 5 ? 16 : format.code == 8 ? 32 : 0, runs = std::max(1u, 128 / format.group);
    const unsigned scales = gguf ? m.record_scales : 4 * runs * words, record = 8 * (quants + high + scales);
    std::vector<std::uint64_t> records((std::size_t)(n + 7) / 8 * groups * record / 8, ~0ull);
    for (unsigned row = 0; row < n; row++) {
        auto record_of = [&](unsigned group) {
            return (std::uint8_t *)records.data() + ((std::size_t)(row / 8) * groups + group) * record;
        };
        const unsigned high_at = 8 * quants + high * (row % 8), scales_at = 8 * (quants + high) + scales * (row % 8);
        for (unsigned group = 0; group < groups; group++) {
            for (unsigned word = 0; word < quants / 64; word++)
                std::memset(record_of(group) + 512 * word + 64 * (row % 8), 0, 64);
            std::memset(record_of(group) + high_at, 0, high);
            std::memset(record_of(group) + scales_at, 0, scales);
            if (gguf) std::memcpy(record_of(group) + scales_at, &m.in_records[(row * groups + group) * scales], scales);
        }
        for (unsigned d = 0; d < k; d++) {
            unsigned chunk = d % 128 / 32, in = d % 32, lane = in % 16 / 4, i = in % 4 + in / 16 * 4;
            // A row has 64 bytes of each word of its four lanes; pairs of lanes are swapped in every second pair of
            // rows. Of 8-bit floats every pair of rows has another order.
            unsigned swapped = row % 4 < 2 ? lane : (lane + 2) % 4;
            unsigned place = format.kind == F8 ? lane ^ (row % 8 / 2) : swapped, word = m.bytes ? chunk / 2 : 0;
            std::uint8_t *of = record_of(d / 128) + 512 * word + 64 * (row % 8) + 16 * place;
            bool flat = !gguf && m.scales[row * (k / format.group) + d / format.group] == 0.f;
            unsigned code = flat ? 0 : m.codes[row * k + d], nibble = i / 2 + (i & 1) * 4;
            if (m.bytes) {
                of[8 * (chunk % 2) + i] = (std::uint8_t)code;
            } else {
                of[4 * chunk + nibble / 2] |= (code & 15) << (4 * (nibble & 1));
            }
            std::uint8_t *above = record_of(d / 128) + high_at + lane * (high / 4);
            if (high == 16) above[chunk] |= code >> 4 << nibble;
            if (high == 32) above[2 * chunk + (i & 1)] |= code >> 4 << (2 * (i / 2));
        }
        for (unsigned g = 0; g < k / format.group && !gguf; g++) {
            float *at = (float *)(record_of(g / runs) + scales_at) + g % runs * words;
            at[0] = m.scales[row * (k / format.group) + g];
            if (m.has_min) at[1] = at[0] == 0.f ? 1.f : m.minima[row * (k / format.group) + g] / at[0];
            if (at[0] == 0.f) at[0] = m.minima[row * (k / format.group) + g];
        }
    }
    return records;
}
