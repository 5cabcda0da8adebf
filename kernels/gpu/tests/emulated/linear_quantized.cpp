// linear_quantized of formats in blocks without matrix units: rows that fill no group of 128 values, packed and
// multiplied, and unpacked again, against values read from the rows by their description (weight_format.rs) in double
// precision.
#include "formats.h"

extern "C" void quantized_pack(const void *file, void *packed, unsigned n, unsigned k, unsigned first_row,
                               unsigned num_rows);
extern "C" void quantized_unpack(void *packed, void *out, unsigned n, unsigned k, unsigned first_row,
                                 unsigned num_rows);
extern "C" void linear_quantized_plain(const void *x, void *packed, const float *bias, const void *residual, void *out,
                                       unsigned x_stride, unsigned residual_stride, unsigned out_stride,
                                       unsigned tokens, unsigned n, unsigned k);

int main() {
    Verdict verdict;
    const Format &format = format_of(FORMAT);
    const unsigned n = 13, tokens = 11, k = depth_of(format, std::max(160u, 3 * format.group));
    const Matrix m = random_matrix(format, n, k);
    std::vector<std::uint64_t> packed(n * (k + 255) / 4 + 1024);
    const unsigned groups = (k + 127) / 128;
    launch((n * 4 * groups + 255) / 256, 1, 256, [&] { quantized_pack(m.file.data(), packed.data(), n, k, 0, n); });

    double step = sizeof(ACT) == 4 ? 1e-5 : 1 / 250.;
    std::vector<ACT> plain((n - 2) * k);
    launch((2 * groups * 32 + 255) / 256, 1, 256,
           [&] { quantized_unpack(packed.data(), plain.data(), n, k, 2, n - 2); });
    for (unsigned row = 2; row < n; row++)
        for (unsigned d = 0; d < k; d++) {
            double value = m.values[row * k + d];
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
                for (unsigned d = 0; d < k; d++) sum += (double)x[t * x_stride + d].value() * m.values[row * k + d];
            }
            double step = sizeof(OUT) == 4 ? 1e-5 : 1 / 250.;
            verdict.compare(found, sum, 2e-5 + step * std::fabs(sum), "token, row of", t, row, k);
        }
    return verdict.end(1000);
}
