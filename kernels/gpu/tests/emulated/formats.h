// Random matrices of canonical formats: rows as their description says (weight_format.rs), and their values in double
// precision.
#pragma once
#include <algorithm>

#include "checks.h"

enum Kind { U4, I8, E2M1, NF4, FP4, IQ4_NL, F8 };

struct Format {
    unsigned code;
    Kind kind;
    unsigned group;
};

inline const Format FORMATS[] = {{40, U4, 16},     {41, U4, 32},   {42, U4, 64},  {43, U4, 128},
                          {44, I8, 16},     {45, I8, 32},   {46, I8, 64},  {47, I8, 128},
                          {48, E2M1, 16},   {49, E2M1, 32}, {50, NF4, 64}, {51, FP4, 64},
                          {52, IQ4_NL, 32}, {53, F8, 32},   {54, F8, 64},  {55, F8, 128}};

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
};

inline Matrix random_matrix(const Format &format, unsigned n, unsigned k) {
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

// The records of a matrix (quantized.cuh): eight rows' codes of 128 values lane by lane, then scales and minima, those
// as multiples of their scales; groups of one value have it as scale, multiple 1 and codes 0.
// What belongs to no row is not zero.
inline std::vector<std::uint64_t> planes_of(const Format &format, const Matrix &m, unsigned n, unsigned k) {
    const unsigned groups = (k + 127) / 128, quants = m.bytes ? 128 : 64, words = m.has_min ? 2 : 1;
    const unsigned runs = 128 / format.group, scales = 4 * runs * words, record = 8 * (quants + scales);
    std::vector<std::uint64_t> planes((std::size_t)(n + 7) / 8 * groups * record / 8, ~0ull);
    for (unsigned row = 0; row < n; row++) {
        auto record_of = [&](unsigned group) {
            return (std::uint8_t *)planes.data() + ((std::size_t)(row / 8) * groups + group) * record;
        };
        for (unsigned group = 0; group < groups; group++) {
            for (unsigned word = 0; word < quants / 64; word++)
                std::memset(record_of(group) + 512 * word + 64 * (row % 8), 0, 64);
            std::memset(record_of(group) + 8 * quants + scales * (row % 8), 0, scales);
        }
        for (unsigned d = 0; d < k; d++) {
            unsigned chunk = d % 128 / 32, in = d % 32, lane = in % 16 / 4, i = in % 4 + in / 16 * 4;
            // A row has 64 bytes of each word of its four lanes; pairs of lanes are swapped in every second pair of
            // rows. Of 8-bit floats every pair of rows has another order.
            unsigned swapped = row % 4 < 2 ? lane : (lane + 2) % 4;
            unsigned place = format.kind == F8 ? lane ^ (row % 8 / 2) : swapped, word = m.bytes ? chunk / 2 : 0;
            std::uint8_t *of = record_of(d / 128) + 512 * word + 64 * (row % 8) + 16 * place;
            bool flat = m.scales[row * (k / format.group) + d / format.group] == 0.f;
            unsigned code = flat ? 0 : m.codes[row * k + d], nibble = i / 2 + (i & 1) * 4;
            if (m.bytes) {
                of[8 * (chunk % 2) + i] = (std::uint8_t)code;
            } else {
                of[4 * chunk + nibble / 2] |= code << (4 * (nibble & 1));
            }
        }
        for (unsigned g = 0; g < k / format.group; g++) {
            float *at = (float *)(record_of(g / runs) + 8 * quants + scales * (row % 8)) + g % runs * words;
            at[0] = m.scales[row * (k / format.group) + g];
            if (m.has_min) at[1] = at[0] == 0.f ? 1.f : m.minima[row * (k / format.group) + g] / at[0];
            if (at[0] == 0.f) at[0] = m.minima[row * (k / format.group) + g];
        }
    }
    return planes;
}
