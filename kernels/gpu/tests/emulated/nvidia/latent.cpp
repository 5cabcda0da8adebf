// latent_decode, latent_tiles and latent_join against attention in double precision. Built for one of the first two
// (KERNEL), with its definitions. Prompts and chunks behind a prefix, several sequences in a tile's worth of rows,
// sequences of one token, none and none that counts, tokens of no sequence; more and fewer blocks than work. Values
// that a kernel must not read are NaN, or on a page that does not exist.
#include "common.cuh"
#include "emulator32.h"

#include <limits>
#include <vector>

extern "C" void KERNEL(const ACT *q_latent, u32 q_latent_token_stride, u32 q_latent_head_stride, const ACT *q_rope,
                       u32 q_rope_token_stride, u32 q_rope_head_stride, const u8 *cache, u64 page_stride,
                       const i32 *block_table, u32 table_stride, const i32 *step_rows, const i32 *starts,
                       const i32 *seq_lens, ACT *out, u32 out_token_stride, u32 out_head_stride, float *pieces,
                       float *marks, u32 *cuts, u32 num_cuts, u32 by_tile, u32 num_seqs, u32 num_heads,
                       u32 least_stages, float scale);
extern "C" void latent_join(const float *pieces, const float *marks, const u32 *cuts, ACT *out, u32 out_token_stride,
                            u32 out_head_stride, u32 num_heads, u32 items_each);

namespace {

constexpr u32 WIDTH = LATENT + ROPE;

float unit() {
    static u64 state = 0x9e3779b97f4a7c15;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(state >> 33) / (1u << 30) - 1.);
}

double worst;
long count;
void compare(double found, double expected, double allowed, const char *where, long a, long b, long c) {
    double distance = std::fabs(found - expected) / allowed;
    count++;
    if (!(distance <= 1) && worst <= 1)
        std::printf("%s %ld %ld %ld: %g, expected %g\n", where, a, b, c, found, expected);
    worst = std::isnan(distance) ? 1e30 : std::fmax(worst, distance);
}

// Row of the table or −1, new tokens, all of them.
struct Sequence {
    int row, tokens, length;
};
struct Grid {
    u32 blocks, by_tile, least_stages, items_each;
};

void attend(const std::vector<Sequence> &sequences, u32 heads, Grid grid) {
    const u32 head_of_all = 2, tail = 3, most_pages = 512 / BLOCK + 2, rows = 8, page = BLOCK * WIDTH + 64;
    std::vector<i32> starts = {(i32)head_of_all}, lengths, step_rows, table(rows * most_pages, 1 << 24);
    u32 pages_used = 0;
    for (auto &[row, tokens, length] : sequences) {
        starts.push_back(starts.back() + tokens);
        lengths.push_back(length);
        step_rows.push_back(row);
    }
    u32 T = (u32)starts.back() + tail;
    const u32 l_head = LATENT + 8, l_token = heads * l_head + 16, r_head = ROPE + 24, r_token = heads * r_head,
              o_head = LATENT + 4, o_token = heads * o_head + 2;
    auto units = [](std::size_t size) {
        std::vector<ACT> values(size);
        for (ACT &value : values) value = ACT::of(unit());
        return values;
    };
    auto ql = units(T * l_token), qr = units(T * r_token);
    std::vector<ACT> cache((std::size_t)(rows * most_pages) * page, ACT::of(std::numeric_limits<float>::quiet_NaN()));
    std::vector<std::vector<ACT>> keys;
    for (auto &[row, tokens, length] : sequences) {
        keys.push_back(units((std::size_t)length * WIDTH));
        for (int t = 0; row >= 0 && t < length; t++) {
            i32 &at = table[row * most_pages + t / BLOCK];
            if (at == 1 << 24) at = (i32)(pages_used++ * 7 % (rows * most_pages));
            std::memcpy(&cache[(std::size_t)at * page + t % BLOCK * WIDTH], &keys.back()[(std::size_t)t * WIDTH],
                        2 * WIDTH);
        }
    }
    std::vector<ACT> out(T * o_token, ACT::of(77));
    float scale = 2.f / std::sqrt((float)WIDTH), nan = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> pieces((std::size_t)2 * grid.blocks * ROWS * LATENT, nan),
        marks(2 * grid.blocks * ROWS * 2, nan);
    u32 S = (u32)sequences.size(), tiles = T * heads / ROWS + S, num_cuts = grid.by_tile ? tiles : grid.blocks;
    std::vector<u32> cuts(4 * num_cuts, 99);
    launch(grid.blocks, 1, 256, [&] {
        KERNEL(ql.data(), l_token, l_head, qr.data(), r_token, r_head, (const u8 *)cache.data(), 2 * page, table.data(),
               most_pages, step_rows.data(), starts.data(), lengths.data(), out.data(), o_token, o_head, pieces.data(),
               marks.data(), cuts.data(), num_cuts, grid.by_tile, S, heads, grid.least_stages, scale);
    });
    launch(num_cuts, ROWS * ((LATENT + 127) / 128) / grid.items_each, 512, [&] {
        latent_join(pieces.data(), marks.data(), cuts.data(), out.data(), o_token, o_head, heads, grid.items_each);
    });
    std::vector<bool> written(out.size());
    for (u32 s = 0; s < S; s++) {
        auto &[row, tokens, length] = sequences[s];
        for (int i = 0; row >= 0 && i < tokens; i++)
            for (u32 head = 0; head < heads; head++) {
                u32 t = (u32)(starts[s] + i), last = (u32)(length - tokens + i);
                std::vector<double> weights(last + 1), sum(LATENT);
                double highest = -1e30, total = 0;
                for (u32 key = 0; key <= last; key++) {
                    double score = 0;
                    for (u32 d = 0; d < WIDTH; d++)
                        score += (double)(d < LATENT ? ql[t * l_token + head * l_head + d]
                                                     : qr[t * r_token + head * r_head + d - LATENT])
                                     .value() *
                                 keys[s][(std::size_t)key * WIDTH + d].value();
                    weights[key] = score * scale;
                    highest = std::fmax(highest, weights[key]);
                }
                for (u32 key = 0; key <= last; key++) {
                    double weight = std::exp(weights[key] - highest);
                    total += weight;
                    for (u32 d = 0; d < LATENT; d++) sum[d] += weight * keys[s][(std::size_t)key * WIDTH + d].value();
                }
                for (u32 d = 0; d < LATENT; d++) {
                    u32 at = t * o_token + head * o_head + d;
                    written[at] = true;
                    // Weights and outputs are rounded to the type: 8 bits of bf16, 11 of f16; values lie below 1.
                    double rounding = ACT::of(1.f + 1 / 512.f).value() == 1.f ? 1 / 128. : 1. / 1024;
                    compare(out[at].value(), sum[d] / total, rounding, "token, head, dim", t, head, d);
                }
            }
    }
    for (std::size_t at = 0; at < out.size(); at++)
        if (!written[at]) compare(out[at].value(), 77, 1e-9, "unowned element", (long)at, 0, 0);
}

} // namespace

int main() {
    for (bool late : {false, true}) {
        copies_are_late = late;
        // Decodes of all lengths around a stage's, more blocks than work.
        attend({{0, 1, 1}, {1, 1, 31}, {2, 1, 32}, {3, 1, 33}, {4, 1, 64}, {5, 1, 65}, {6, 1, 200}}, 16, {24, 1, 1, 1});
        attend({{3, 1, 300}}, 8, {3, 1, 1, 16});
        // Chunks and decodes; sequences that do not count.
        attend({{3, 7, 7}, {0, 1, 40}, {-1, 0, 0}, {2, 19, 133}, {-1, 4, 9}, {4, 1, 1}, {5, 0, 5}}, 4, {5, 0, 1, 16});
        attend({{6, 30, 170}, {1, 5, 5}}, 5, {9, 0, 1, 1});
        attend({{6, 3, 150}, {1, 1, 70}}, 40, {4, 1, 2, 16});
        attend({{-1, 2, 2}}, 4, {2, 0, 1, 16});
    }
    std::printf("%ld values, worst %.3f of what is allowed\n", count, worst);
    return worst <= 1 && count > 100000 ? 0 : 1;
}
