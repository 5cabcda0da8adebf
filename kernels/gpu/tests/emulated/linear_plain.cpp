// linear_finish against the same sums in double precision: tokens that fill no block, rows apart, each operand present
// and absent, and a residual that is the output.
#include "checks.h"

extern "C" void linear_finish(const float *product, const float *bias, const void *residual, void *out,
                              unsigned product_stride, unsigned residual_stride, unsigned out_stride, unsigned n,
                              unsigned tokens);

int main() {
    Verdict verdict;
    const unsigned sizes[][2] = {{1, 5}, {8, 300}, {19, 256}};
    for (auto [tokens, n] : sizes)
        for (unsigned present = 0; present < 8; present++)
            for (bool in_place : {false, true}) {
                bool has_product = present & 1, has_bias = present & 2, has_residual = present & 4;
                if (in_place && !has_residual) continue;
                unsigned product_stride = n + 1, residual_stride = n + 3, out_stride = in_place ? n + 3 : n + 2;
                std::vector<float> product(tokens * product_stride), bias(n);
                for (float &value : product) value = unit();
                for (float &value : bias) value = unit();
                auto residual = units<OUT>(tokens * residual_stride);
                std::vector<OUT> out(tokens * out_stride, OUT::of(77));
                if (in_place) out = residual;
                launch((n + 255) / 256, (tokens + 7) / 8, 256, [&, tokens = tokens, n = n] {
                    linear_finish(has_product ? product.data() : nullptr, has_bias ? bias.data() : nullptr,
                                  !has_residual ? nullptr : in_place ? (const void *)out.data() : residual.data(),
                                  out.data(), product_stride, residual_stride, out_stride, n, tokens);
                });
                for (unsigned t = 0; t < tokens; t++)
                    for (unsigned row = 0; row < out_stride; row++) {
                        double found = out[t * out_stride + row].value();
                        double expected = in_place ? residual[t * residual_stride + row].value() : 77;
                        if (row < n) {
                            expected = has_product ? product[t * product_stride + row] : 0.f;
                            if (has_bias) expected += bias[row];
                            if (has_residual) expected += residual[t * residual_stride + row].value();
                        }
                        double step = sizeof(OUT) == 4 ? 1e-6 : 1. / 250;
                        verdict.compare(found, expected, 1e-6 + step * std::fabs(expected), "token, row of", t, row, n);
                    }
            }
    return verdict.end(10000);
}
