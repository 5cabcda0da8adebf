// What a library's product of 128 depths a scale takes: rows of a matrix's records, and tokens rounded likewise, both
// in a record's order, against the matrix's codes and the tokens' values.
#include "formats.h"

extern "C" void rows_of_records(const void *records, unsigned char *codes, float *scales, unsigned k,
                                unsigned first_row, unsigned num_rows, unsigned blocks);
extern "C" void scaled_groups(const void *x, unsigned x_stride, unsigned char *codes, float *scales, unsigned k,
                              unsigned columns);

// Where a depth's code stands in a row.
static unsigned place_of(unsigned depth) {
    unsigned chunk = depth % 128 / 32, in = depth % 32;
    return depth / 128 * 128 + chunk / 2 * 64 + in % 16 / 4 * 16 + chunk % 2 * 8 + in / 16 * 4 + in % 4;
}

int main() {
    Verdict verdict;
    const Format &format = format_of(55);
    const unsigned n = 29, k = 128 * 3, groups = k / 128, first = 8, rows = n - first;
    const Matrix matrix = random_matrix(format, n, k);
    auto records = records_of(format, matrix, n, k);
    std::vector<std::uint8_t> codes((rows + 1) * k, 77);
    std::vector<float> scales(groups * rows + 1, 77);
    launch(((rows + 7) / 8 * groups + 3) / 4, 1, 256,
           [&] { rows_of_records(records.data(), codes.data(), scales.data(), k, first, rows, 0); });
    for (unsigned row = 0; row < rows; row++)
        for (unsigned d = 0; d < k; d++)
            verdict.compare(codes[row * k + place_of(d)], matrix.codes[(first + row) * k + d], 0.5, "row, depth", row,
                            d, 0);
    for (unsigned row = 0; row < rows; row++)
        for (unsigned g = 0; g < groups; g++) {
            float expected = matrix.scales[(first + row) * groups + g];
            verdict.compare(scales[g * rows + row], expected, 1e-9, "row, group", row, g, 0);
        }
    verdict.compare(codes[rows * k], 77, 0.5, "behind the last row", 0, 0, 0);
    verdict.compare(scales[groups * rows], 77, 0.5, "behind the last scale", 0, 0, 0);

    // Of blocks the scale of their first rows, in rows of a multiple of four.
    const unsigned more = 3 * 128, begin = 128, blocks = (more - begin) / 128, padded = (groups + 3) / 4 * 4;
    const Matrix large = random_matrix(format, more, k);
    auto of_large = records_of(format, large, more, k);
    std::vector<std::uint8_t> large_codes((more - begin) * k, 77);
    std::vector<float> of_blocks(blocks * padded + 1, 77);
    launch(((more - begin) / 8 * groups + 3) / 4, 1, 256, [&] {
        rows_of_records(of_large.data(), large_codes.data(), of_blocks.data(), k, begin, more - begin, 1);
    });
    for (unsigned block = 0; block < blocks; block++)
        for (unsigned g = 0; g < padded; g++) {
            float expected = g < groups ? large.scales[(begin + 128 * block) * groups + g] : 77;
            verdict.compare(of_blocks[block * padded + g], expected, 1e-9, "block, group", block, g, 0);
        }
    verdict.compare(of_blocks[blocks * padded], 77, 0.5, "behind the last block", 0, 0, 0);
    for (unsigned row = 0; row < more - begin; row++)
        for (unsigned d = 0; d < k; d++)
            verdict.compare(large_codes[row * k + place_of(d)], large.codes[(begin + row) * k + d], 0.5,
                            "row, depth of blocks", row, d, 0);

    // More depths than a block has threads for at a time.
    const unsigned depth = 128 * 18, runs = depth / 128, tokens = 3, stride = depth + 8, columns = 4;
    auto x = units<ACT>(tokens * stride);
    // A group of zeros, and in bf16 one of values whose quotient would be no number.
    for (unsigned d = 128; d < 256; d++) x[stride + d] = ACT::of(0), x[d] = ACT::of(d % 2 ? 1e-38f : 0);
    std::vector<std::uint8_t> rounded(tokens * depth, 77);
    std::vector<float> of_groups(runs * columns, 77);
    launch(tokens, 1, 256, [&] { scaled_groups(x.data(), stride, rounded.data(), of_groups.data(), depth, columns); });
    for (unsigned t = 0; t < tokens; t++)
        for (unsigned g = 0; g < runs; g++) {
            const ACT *values = &x[t * stride + 128 * g];
            double largest = 0, scale = of_groups[g * columns + t];
            for (unsigned d = 0; d < 128; d++) largest = std::max(largest, std::fabs((double)values[d].value()));
            verdict.compare(scale, largest / 448, largest * 1e-6 + 1e-12, "token, group", t, g, 0);
            // Half of the last of four bits, and below the least normal number half of the least step.
            for (unsigned d = 0; d < 128; d++) {
                double value = values[d].value(), code = e4m3(rounded[t * depth + place_of(128 * g + d)]);
                double allowed = std::fabs(value) * 0.0626 + scale / 1023 + 1e-12;
                verdict.compare(code * scale, value, allowed, "token, group, depth", t, g, d);
            }
        }
    for (unsigned g = 0; g < runs; g++) verdict.compare(of_groups[g * columns + tokens], 77, 0.5, "no token", g, 0, 0);
    return verdict.end(1000);
}
