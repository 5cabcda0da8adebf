// linear_groups_tile against sums in double precision: rows and tokens that fill no tile, one part of the depth and
// several, bias and residual.
#include "formats.h"

struct alignas(16) Unit {
    std::uint32_t words[4];
};
Unit shared[(227 << 10) / 16];

extern "C" void linear_groups_tile(const void *x, void *weights, const float *bias, const void *residual, void *out,
                                   float *partials, unsigned x_stride, unsigned residual_stride, unsigned out_stride,
                                   unsigned tokens, unsigned n, unsigned k, unsigned depth);
extern "C" void groups_finish(const float *partials, const float *bias, const void *residual, void *out,
                              unsigned residual_stride, unsigned out_stride, unsigned tokens, unsigned n,
                              unsigned splits);

#if !defined(MORE_THREADS)
#define MORE_THREADS 0
#endif

int main() {
    Verdict verdict;
    const Format &format = format_of(FORMAT);
    const unsigned n = 32 * ROW_WARPS + 5, tokens = TOKENS + 3;
    const unsigned k = depth_of(format, 128 * 5 + std::max(format.group, 32u));
    const unsigned groups = (k + 127) / 128;
    const Matrix m = random_matrix(format, n, k);
    auto records = records_of(format, m, n, k);
    const unsigned x_stride = k + 8, residual_stride = n + 2, out_stride = n + 3;
    auto x = units<ACT>(tokens * x_stride);
    auto residual = units<OUT>(tokens * residual_stride);
    std::vector<float> bias(n);
    for (float &b : bias) b = unit();
    for (unsigned depth : {groups, 2u}) {
        const unsigned splits = (groups + depth - 1) / depth;
        std::vector<float> partials(splits * tokens * n, 1e30f);
        std::vector<OUT> out(tokens * out_stride, OUT::of(77));
        launch(
            2, 2, 32 * ROW_WARPS * TOKEN_WARPS + MORE_THREADS,
            [&] {
                linear_groups_tile(x.data(), records.data(), bias.data(), residual.data(), out.data(),
                                   splits > 1 ? partials.data() : nullptr, x_stride, residual_stride, out_stride,
                                   tokens, n, k, depth);
            },
            splits);
        if (splits > 1)
            launch((n + 255) / 256, tokens, 256, [&] {
                groups_finish(partials.data(), bias.data(), residual.data(), out.data(), residual_stride, out_stride,
                              tokens, n, splits);
            });
        for (unsigned t = 0; t < tokens; t++)
            for (unsigned row = 0; row < out_stride; row++) {
                double expected = 77;
                if (row < n) {
                    expected = (double)bias[row] + residual[t * residual_stride + row].value();
                    for (unsigned d = 0; d < k; d++)
                        expected += (double)x[t * x_stride + d].value() * m.values[row * k + d];
                }
                double step = sizeof(OUT) == 4 ? 1e-4 : 1 / 250.;
                verdict.compare(out[t * out_stride + row].value(), expected, 1e-3 + step * std::fabs(expected),
                                "token, row of", t, row, k);
            }
    }
    return verdict.end(1000);
}
