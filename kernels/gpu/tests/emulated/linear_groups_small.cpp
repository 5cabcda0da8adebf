// linear_groups_small and linear_groups_streamed against sums in double precision: rows that fill no tile, few blocks
// for many tiles, norm, gate, bias and residual.
#include "formats.h"

struct alignas(16) Unit {
    std::uint32_t words[4];
};
Unit shared[(227 << 10) / 16];

typedef void Kernel(const void *x, void *weights, void *weights_up, const float *norm, const float *bias,
                    const float *bias_up, const void *residual, void *out, unsigned x_stride, unsigned residual_stride,
                    unsigned out_stride, unsigned tokens, unsigned n, unsigned k, unsigned matrix_rows,
                    unsigned first_up, float norm_offset, float eps);
extern "C" Kernel linear_groups_small;
#if !NORM
extern "C" Kernel linear_groups_streamed;
#endif

int main() {
    Verdict verdict;
    const Format &format = format_of(FORMAT);
    // Depths that fill all warps' spans more than once, and a part of one.
    // The up part begins with a record of its own.
    // Of one token, as many tiles that all buffers of sums are used again.
    const unsigned n = MOST == 1 ? 149 : 37, first_up = (n + 7) / 8 * 8, rows = GATE ? first_up + n : n;
    const unsigned tokens = MOST + 3;
    const unsigned unit_depth = std::max(format.group, 32u);
    for (unsigned least : {128 * SPAN * WARPS + 128 * (SPAN + 1) + unit_depth, 4 * unit_depth}) {
        const unsigned k = depth_of(format, least);
        const Matrix m = random_matrix(format, rows, k);
        auto records = records_of(format, m, rows, k);
        const unsigned x_stride = k + 8, residual_stride = n + 2, out_stride = n + 3;
        auto x = units<ACT>(tokens * x_stride);
        auto residual = units<OUT>(tokens * residual_stride);
        std::vector<float> bias(rows), norm(k);
        for (float &b : bias) b = unit();
        for (float &w : norm) w = 0.1f * unit();
        const float offset = 1, eps = 0.01f;
        std::vector<Kernel *> kernels = {linear_groups_small};
#if !NORM
        kernels.push_back(linear_groups_streamed);
#endif
        for (Kernel *kernel : kernels) {
            std::memset(shared, 0xff, sizeof shared);
            std::vector<OUT> out(tokens * out_stride, OUT::of(77));
            launch(2, (tokens + MOST - 1) / MOST, 32 * WARPS, [&] {
                kernel(x.data(), records.data(), records.data(), NORM ? norm.data() : nullptr, bias.data(),
                       GATE ? bias.data() + first_up : nullptr, residual.data(), out.data(), x_stride, residual_stride,
                       out_stride, tokens, n, k, rows, GATE ? first_up : 0, offset, eps);
            });
            for (unsigned t = 0; t < tokens; t++) {
                double square = 0;
                std::vector<double> normed(k);
                for (unsigned d = 0; d < k; d++) {
                    double value = x[t * x_stride + d].value();
                    square += value * value;
                    normed[d] = NORM ? (double)ACT::of((float)value * (norm[d] + offset)).value() : value;
                }
                const double rms = NORM ? 1 / std::sqrt(square / k + eps) : 1;
                auto sum_of = [&](unsigned row) {
                    double sum = 0;
                    for (unsigned d = 0; d < k; d++) sum += normed[d] * m.values[row * k + d];
                    return sum * rms + bias[row];
                };
                for (unsigned row = 0; row < out_stride; row++) {
                    double expected = 77;
                    if (row < n) {
                        expected = sum_of(row);
                        if (GATE) expected = expected / (1 + std::exp(-expected)) * sum_of(first_up + row);
                        expected += residual[t * residual_stride + row].value();
                    }
                    double step = sizeof(OUT) == 4 ? 1e-4 : 1 / 250.;
                    verdict.compare(out[t * out_stride + row].value(), expected, 1e-3 + step * std::fabs(expected),
                                    "token, row of", t, row, k);
                }
            }
        }
    }
    return verdict.end(100);
}
