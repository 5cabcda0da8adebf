// moe_groups_few against sums in double precision: experts with few and many choices, one without any, rows that fill
// no block, a bias, and where GATE the product of the activated gate and up.
#include "formats.h"

struct alignas(16) Unit {
    std::uint32_t words[4];
};
Unit shared[(227 << 10) / 16];
float sums_at[16 << 10];

#if !defined(HOPPER)
constexpr unsigned kOut = 16 * ROW_TILES / (GATE ? 2 : 1), kThreads = 32 * WARPS, kFeatures = 5 * 8;
constexpr unsigned kTokens = 8 * TILES;
extern "C" void moe_groups_few(const void *x, unsigned token_stride, unsigned input_stride, void *w, void *w_up,
                               const int *experts, unsigned experts_stride, const unsigned *list, void *out,
                               unsigned out_token_stride, unsigned out_choice_stride, const float *bias,
                               const float *bias_up, unsigned num_tokens, unsigned top_k, unsigned first_expert,
                               unsigned num_experts, unsigned num_groups, unsigned width, unsigned features);
#else
constexpr unsigned kOut = GATE ? 128 : 256, kThreads = 640, kFeatures = kOut + 24, kTokens = TOKENS;
extern "C" void moe_groups_hopper(const void *x, unsigned token_stride, unsigned input_stride, void *w, void *w_up,
                                  const unsigned *list, void *out, unsigned out_token_stride,
                                  unsigned out_choice_stride, const float *bias, const float *bias_up,
                                  unsigned num_tokens, unsigned top_k, unsigned num_experts, unsigned num_groups,
                                  unsigned width, unsigned features);
#endif

#if !defined(GATE_LIMIT)
#define GATE_LIMIT 0
#define GATE_ALPHA 0
#define GATE_OFFSET 0
#endif
double bounded(double gate, double up) {
    gate = std::fmin(gate, GATE_LIMIT), up = std::fmax(std::fmin(up, GATE_LIMIT), -GATE_LIMIT);
    return gate / (1 + std::exp(-GATE_ALPHA * gate)) * (up + GATE_OFFSET);
}

int main() {
    Verdict verdict;
    const Format &format = format_of(FORMAT);
    const unsigned experts = 4, top_k = 2, k = depth_of(format, 128 * 4 + std::max(format.group, 32u)), n = kFeatures;
    // One expert has all tokens' first choices, another a few of the second ones, the next the rest, the last none.
    const unsigned tokens = 2 * kTokens + 3, token_stride = k + 8;
    std::vector<std::vector<unsigned>> choices(experts);
    std::vector<int> chosen(tokens * top_k);
    for (unsigned t = 0; t < tokens; t++) {
        const unsigned second = t < 3 ? 2 : 0;
        choices[1].push_back(2 * t), choices[second].push_back(2 * t + 1);
        chosen[2 * t] = 1, chosen[2 * t + 1] = (int)second;
    }
    std::vector<unsigned> list(4 + 4 * experts);
    unsigned begin = 0;
    for (unsigned e = 0; e < experts; e++) {
        if (choices[e].empty()) continue;
        unsigned *entry = &list[4 + 4 * list[0]++];
        entry[0] = e, entry[1] = begin, entry[2] = begin += choices[e].size();
    }
    for (const auto &of : choices) list.insert(list.end(), of.begin(), of.end());
    const Matrix gate = random_matrix(format, experts * n, k), up = random_matrix(format, experts * n, k);
    auto rows = records_of(format, gate, experts * n, k), rows_up = records_of(format, up, experts * n, k);
    auto x = units<ACT>(tokens * token_stride);
    std::vector<float> bias(experts * n), bias_up(experts * n);
    for (float &b : bias) b = unit();
    for (float &b : bias_up) b = unit();
    const unsigned choice_stride = n + 8, out_token_stride = 2 * choice_stride;
    auto check = [&](const std::vector<ACT> &out, unsigned of_tokens) {
        for (unsigned c = 0; c < of_tokens * top_k; c++)
            for (unsigned row = 0; row < choice_stride; row++) {
                double expected = 77, sums[2] = {};
                if (row < n) {
                    unsigned at = chosen[c] * n + row;
                    for (unsigned d = 0; d < k; d++) {
                        double v = x[c / top_k * token_stride + d].value();
                        sums[0] += v * gate.values[(std::size_t)at * k + d];
                        sums[1] += v * up.values[(std::size_t)at * k + d];
                    }
                    sums[0] += bias[at], sums[1] += bias_up[at];
                    expected = GATE == 4   ? bounded(sums[0], sums[1])
                               : GATE == 1 ? sums[0] / (1 + std::exp(-sums[0])) * sums[1]
                                           : sums[0];
                }
                double allowed = 1e-3 * (1 + std::fabs(sums[0]) + std::fabs(sums[1])) + std::fabs(expected) / 250;
                verdict.compare(out[c / top_k * out_token_stride + c % top_k * choice_stride + row].value(), expected,
                                allowed, "choice, row of", c, row, k);
            }
    };
    const unsigned blocks = (n + kOut - 1) / kOut;
    auto run = [&](unsigned of_tokens, const unsigned *by, unsigned shares) {
        std::vector<ACT> out(tokens * out_token_stride, ACT::of(77));
        launch(
            blocks, by ? experts : of_tokens * top_k, kThreads,
            [&] {
#if !defined(HOPPER)
                moe_groups_few(x.data(), token_stride, 0, rows.data(), rows_up.data(), chosen.data(), top_k, by,
                               out.data(), out_token_stride, choice_stride, bias.data(), bias_up.data(), of_tokens,
                               top_k, 0, experts, experts, k, n);
#else
                moe_groups_hopper(x.data(), token_stride, 0, rows.data(), rows_up.data(), by, out.data(),
                                  out_token_stride, choice_stride, bias.data(), bias_up.data(), of_tokens, top_k,
                                  experts, experts, k, n);
#endif
            },
            shares);
        check(out, of_tokens);
    };
#if !defined(HOPPER)
    run(tokens, list.data(), 1);
    run(1, nullptr, 1);
#else
    run(tokens, list.data(), 1);
    run(tokens, list.data(), 2);
#endif
    return verdict.end(1000);
}
