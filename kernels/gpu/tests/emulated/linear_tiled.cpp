// linear_tiled on the matrix units against sums in double precision: sizes that fill no tile, rows apart, bias and
// residual.
#include "checks.h"

extern "C" void linear_tiled(const void *x, const void *w, const float *bias, const void *residual, void *out,
                             unsigned x_stride, unsigned residual_stride, unsigned out_stride, unsigned tokens,
                             unsigned n, unsigned k);

int main() {
    Verdict verdict;
    const unsigned sizes[][3] = {{70, 100, 72}, {1, 3, 8}, {64, 64, 33}, {33, 129, 96}};
    for (auto [tokens, n, k] : sizes) {
        unsigned x_stride = k + 5, residual_stride = n + 2, out_stride = n + 3;
        auto x = units<ACT>(tokens * x_stride), w = units<ACT>(n * k);
        auto residual = units<OUT>(tokens * residual_stride);
        std::vector<float> bias(n);
        for (float &b : bias) b = unit();
        std::vector<OUT> out(tokens * out_stride, OUT::of(77));
        launch((n + 63) / 64, (tokens + 63) / 64, 256, [&, tokens = tokens, n = n, k = k] {
            linear_tiled(x.data(), w.data(), bias.data(), residual.data(), out.data(), x_stride, residual_stride,
                         out_stride, tokens, n, k);
        });
        for (unsigned t = 0; t < tokens; t++)
            for (unsigned row = 0; row < out_stride; row++) {
                double found = out[t * out_stride + row].value(), sum = 77;
                if (row < n) {
                    sum = (double)bias[row] + residual[t * residual_stride + row].value();
                    for (unsigned d = 0; d < k; d++)
                        sum += (double)x[t * x_stride + d].value() * w[row * k + d].value();
                }
                double step = sizeof(OUT) == 4                                      ? 1e-5
                              : OUT::of(1.f + 1 / 128.f).value() == 1.f + 1 / 128.f ? 1 / 250.
                                                                                    : 1. / 2000;
                verdict.compare(found, sum, 1e-5 + step * std::fabs(sum), "token, row of", t, row, k);
            }
    }
    return verdict.end(1000);
}
