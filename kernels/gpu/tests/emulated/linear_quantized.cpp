// linear_quantized of canonical formats without matrix units: rows that fill no group of 128 values, packed and
// multiplied, and unpacked again, against values read from the rows by their description (weight_format.rs) in double
// precision.
#include <algorithm>

#include "checks.h"

extern "C" void quantized_pack(const void *file, void *packed, unsigned n, unsigned k, unsigned first_row,
                               unsigned num_rows);
extern "C" void quantized_unpack(void *packed, void *out, unsigned n, unsigned k, unsigned first_row,
                                 unsigned num_rows);
extern "C" void linear_quantized_plain(const void *x, void *packed, const float *bias, const void *residual, void *out,
                                       unsigned x_stride, unsigned residual_stride, unsigned out_stride,
                                       unsigned tokens, unsigned n, unsigned k);

enum Kind { U4, I8, E2M1, NF4, FP4, IQ4_NL, F8 };

struct Format {
    unsigned code;
    Kind kind;
    unsigned group;
};

const Format FORMATS[] = {{40, U4, 16},     {41, U4, 32},   {42, U4, 64},  {43, U4, 128},
                          {44, I8, 16},     {45, I8, 32},   {46, I8, 64},  {47, I8, 128},
                          {48, E2M1, 16},   {49, E2M1, 32}, {50, NF4, 64}, {51, FP4, 64},
                          {52, IQ4_NL, 32}, {53, F8, 32},   {54, F8, 64},  {55, F8, 128}};

double e4m3(unsigned code) {
    int exponent = code >> 3 & 15;
    double mantissa = (code & 7) / 8., sign = code & 0x80 ? -1 : 1;
    return sign * (exponent ? std::ldexp(1 + mantissa, exponent - 7) : std::ldexp(mantissa, -6));
}

double number(Kind kind, unsigned code) {
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

unsigned random_byte() { return (unsigned)((unit() + 1) * 128) & 255; }

int main() {
    Verdict verdict;
    const Format format = *std::find_if(std::begin(FORMATS), std::end(FORMATS),
                                        [](const Format &f) { return f.code == FORMAT; });
    const bool bytes = format.kind == I8 || format.kind == F8, has_min = format.kind <= I8;
    const double largest = format.kind == U4       ? 15
                           : format.kind == I8     ? 128
                           : format.kind == E2M1   ? 6
                           : format.kind == IQ4_NL ? 127
                           : format.kind == F8     ? 448
                                                   : 1;
    const unsigned n = 13, tokens = 11, k = std::max(160u, 3 * format.group);
    const unsigned head = has_min ? 8 : 4, block = head + format.group * (bytes ? 8 : 4) / 8;
    const unsigned row_bytes = k / format.group * block;
    std::vector<std::uint8_t> file(n * row_bytes);
    std::vector<double> values(n * k);
    for (unsigned row = 0; row < n; row++)
        for (unsigned g = 0; g < k / format.group; g++) {
            std::uint8_t *at = &file[row * row_bytes + g * block];
            float scale = (float)((1 + 0.25 * unit()) / largest), min = has_min ? 0.5f * unit() : 0.f;
            std::memcpy(at, &scale, 4);
            if (has_min) std::memcpy(at + 4, &min, 4);
            for (unsigned j = 0; j < block - head; j++) {
                at[head + j] = (std::uint8_t)random_byte();
                if (format.kind == F8 && (at[head + j] & 0x7f) == 0x7f) at[head + j] = 0;
            }
            unsigned run = std::min(format.group, 32u);
            for (unsigned i = 0; i < format.group; i++) {
                unsigned in_run = i % run, byte = at[head + (bytes ? i : i / run * (run / 2) + in_run % (run / 2))];
                unsigned code = bytes ? byte : in_run < run / 2 ? byte & 15 : byte >> 4;
                values[row * k + g * format.group + i] = scale * number(format.kind, code) + min;
            }
        }
    std::vector<std::uint64_t> packed(n * (k + 255) / 4 + 1024);
    const unsigned groups = (k + 127) / 128;
    launch((n * 4 * groups + 255) / 256, 1, 256, [&] { quantized_pack(file.data(), packed.data(), n, k, 0, n); });

    double step = sizeof(ACT) == 4 ? 1e-5 : 1 / 250.;
    std::vector<ACT> plain((n - 2) * k);
    launch(((n - 2) * groups * 16 + 255) / 256, 1, 256,
           [&] { quantized_unpack(packed.data(), plain.data(), n, k, 2, n - 2); });
    for (unsigned row = 2; row < n; row++)
        for (unsigned d = 0; d < k; d++) {
            double value = values[row * k + d];
            verdict.compare(plain[(row - 2) * k + d].value(), value, 1e-6 + step * std::fabs(value), "row, depth of",
                            row, d, k);
        }

    unsigned x_stride = k + 4, residual_stride = n + 2, out_stride = n + 3;
    auto x = units<ACT>(tokens * x_stride);
    auto residual = units<OUT>(tokens * residual_stride);
    std::vector<float> bias(n);
    for (float &b : bias) b = unit();
    std::vector<OUT> out(tokens * out_stride, OUT::of(77));
    launch((n + 7) / 8, (tokens + 7) / 8, 256, [&] {
        linear_quantized_plain(x.data(), packed.data(), bias.data(), residual.data(), out.data(), x_stride,
                               residual_stride, out_stride, tokens, n, k);
    });
    for (unsigned t = 0; t < tokens; t++)
        for (unsigned row = 0; row < out_stride; row++) {
            double found = out[t * out_stride + row].value(), sum = 77;
            if (row < n) {
                sum = (double)bias[row] + residual[t * residual_stride + row].value();
                for (unsigned d = 0; d < k; d++) sum += (double)x[t * x_stride + d].value() * values[row * k + d];
            }
            double step = sizeof(OUT) == 4 ? 1e-5 : 1 / 250.;
            verdict.compare(found, sum, 2e-5 + step * std::fabs(sum), "token, row of", t, row, k);
        }
    return verdict.end(1000);
}
