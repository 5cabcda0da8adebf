// attention_tiles against attention in double precision: prompts and chunks behind a prefix that share tiles, sequences
// of one token, none and none that counts, tokens of no sequence, windows, caps and sinks. Values that a kernel must
// not read are NaN, or on a page that does not exist.
#include "checks.h"

extern "C" void attention_tiles(const void *q, unsigned q_token_stride, unsigned q_head_stride, const void *cache,
                                unsigned long long page_stride, const int *block_table, unsigned table_stride,
                                const int *step_rows, const int *starts, const int *seq_lens, const float *sinks,
                                void *out, unsigned out_token_stride, unsigned out_head_stride, unsigned T, unsigned S,
                                unsigned num_heads, unsigned group, float scale, float softcap, unsigned window);

namespace {

constexpr unsigned HEADS = 4, GROUP = 2, KV_HEADS = HEADS / GROUP;
// As kv.cuh describes a block: of each head keys, [HEAD_DIM / 8][BLOCK / 8] units of 8 tokens by 8 dims, then values,
// [BLOCK / 8][HEAD_DIM / 8] units of 8 dims by 8 tokens.
constexpr unsigned PART = HEAD_DIM * BLOCK, PAGE = KV_HEADS * 2 * PART + 64;

unsigned key_at(unsigned head, unsigned token, unsigned dim) {
    return head * 2 * PART + (dim / 8 * (BLOCK / 8) + token / 8) * 64 + token % 8 * 8 + dim % 8;
}
unsigned value_at(unsigned head, unsigned token, unsigned dim) {
    return head * 2 * PART + PART + (token / 8 * (HEAD_DIM / 8) + dim / 8) * 64 + dim % 8 * 8 + token % 8;
}

// New tokens, and all of them; in a row of the table, or in none.
struct Sequence {
    int tokens, length, row;
};

struct Options {
    float softcap;
    int window;
    bool sinks;
};

void attend(const std::vector<Sequence> &sequences, const Options &options, Verdict &verdict) {
    const unsigned tail = 3, most_pages = 256 / BLOCK + 2, rows = 8;
    int T = tail, longest = 0, pages_used = 0;
    std::vector<int> starts = {0}, lengths, step_rows, table(rows * most_pages, 1 << 28);
    for (auto &sequence : sequences) {
        T += sequence.tokens;
        starts.push_back(T - (int)tail);
        lengths.push_back(sequence.length);
        step_rows.push_back(sequence.row);
        longest = std::max(longest, sequence.length);
    }
    const unsigned q_head = HEAD_DIM + 8, q_token = HEADS * q_head + 16, o_head = HEAD_DIM + 3,
                   o_token = HEADS * o_head + 5;
    auto q = units<ACT>((unsigned)T * q_token);
    std::vector<float> sinks(HEADS);
    for (float &sink : sinks) sink = 2 * unit();
    // Pages in no order; a window's tokens need no page before it.
    std::vector<KV> cache((std::size_t)(rows * most_pages) * PAGE, KV::of(std::numeric_limits<float>::quiet_NaN()));
    std::vector<std::vector<float>> keys, values;
    for (auto &[tokens, length, row] : sequences) {
        auto k = units<KV>((unsigned)length * KV_HEADS * HEAD_DIM),
             v = units<KV>((unsigned)length * KV_HEADS * HEAD_DIM);
        int least = options.window > 0 ? std::max(0, length - tokens + 1 - options.window) : 0;
        for (int t = least; row >= 0 && t < length; t++) {
            int &page = table[row * most_pages + t / BLOCK];
            if (page == 1 << 28) page = pages_used++ * 7 % (rows * most_pages);
            for (unsigned head = 0; head < KV_HEADS; head++)
                for (unsigned d = 0; d < HEAD_DIM; d++) {
                    unsigned at = ((unsigned)t * KV_HEADS + head) * HEAD_DIM + d;
                    cache[(std::size_t)page * PAGE + key_at(head, t % BLOCK, d)] = k[at];
                    cache[(std::size_t)page * PAGE + value_at(head, t % BLOCK, d)] = v[at];
                }
        }
        keys.emplace_back(), values.emplace_back();
        for (auto &x : k) keys.back().push_back(x.value());
        for (auto &x : v) values.back().push_back(x.value());
    }
    std::vector<ACT> out((unsigned)T * o_token, ACT::of(77));
    float scale = 2.f / std::sqrt((float)HEAD_DIM);
    launch(((unsigned)T + 63) / 64, HEADS, 128, [&] {
        attention_tiles(q.data(), q_token, q_head, cache.data(), PAGE * sizeof(KV), table.data(), most_pages,
                        step_rows.data(), starts.data(), lengths.data(), options.sinks ? sinks.data() : nullptr,
                        out.data(), o_token, o_head, (unsigned)T, (unsigned)sequences.size(), HEADS, GROUP, scale,
                        options.softcap, (unsigned)options.window);
    });
    std::vector<bool> written(out.size());
    for (std::size_t s = 0; s < sequences.size(); s++) {
        auto &[tokens, length, row] = sequences[s];
        for (int i = 0; row >= 0 && i < tokens; i++)
            for (unsigned head = 0; head < HEADS; head++) {
                int t = starts[s] + i, last = length - tokens + i,
                    first = options.window > 0 ? std::max(0, last + 1 - options.window) : 0;
                std::vector<double> weights(last + 1), sum(HEAD_DIM);
                double highest = options.sinks ? sinks[head] : -1e30, total = 0;
                for (int key = first; key <= last; key++) {
                    double score = 0;
                    for (unsigned d = 0; d < HEAD_DIM; d++)
                        score += (double)q[t * q_token + head * q_head + d].value() *
                                 keys[s][((unsigned)key * KV_HEADS + head / GROUP) * HEAD_DIM + d];
                    score *= scale;
                    if (options.softcap > 0) score = options.softcap * std::tanh(score / options.softcap);
                    weights[key] = score;
                    highest = std::max(highest, score);
                }
                if (options.sinks) total = std::exp(sinks[head] - highest);
                for (int key = first; key <= last; key++) {
                    double weight = std::exp(weights[key] - highest);
                    total += weight;
                    for (unsigned d = 0; d < HEAD_DIM; d++)
                        sum[d] += weight * values[s][((unsigned)key * KV_HEADS + head / GROUP) * HEAD_DIM + d];
                }
                for (unsigned d = 0; d < HEAD_DIM; d++) {
                    unsigned at = t * o_token + head * o_head + d;
                    written[at] = true;
                    // Weights and outputs are rounded to the type: 8 bits of bf16, 11 of f16; values lie below 1.
                    double rounding = KV::of(1.f + 1 / 512.f).value() == 1.f ? 1 / 128. : 1. / 1024;
                    verdict.compare(out[at].value(), sum[d] / total, rounding, "token, head, dim", t, head, d);
                }
            }
    }
    for (std::size_t at = 0; at < out.size(); at++)
        if (!written[at]) verdict.compare(out[at].value(), 77, 1e-9, "unowned element", (long)at, 0, 0);
}

} // namespace

int main() {
    Verdict verdict;
    const Options plain = {0, 0, false};
    // A prompt; chunks that meet in a tile, one of one token, one of none, one that counts not; a long prefix.
    attend({{70, 70, 0}}, plain, verdict);
    attend({{5, 41, 2}, {1, 90, 0}, {0, 7, 1}, {21, 21, -1}, {37, 133, 3}, {2, 2, 4}}, plain, verdict);
    attend({{9, 200, 1}, {64, 64, 0}}, {5.f, 0, true}, verdict);
    attend({{40, 150, 1}, {33, 33, 0}}, {0, 19, false}, verdict);
    attend({{3, 130, 5}, {66, 97, 0}}, {3.f, 64, true}, verdict);
    return verdict.end(90000);
}
