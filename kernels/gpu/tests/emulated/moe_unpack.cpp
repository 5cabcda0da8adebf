// moe_unpack: the matrices of a list's last two entries, of which the second one has none, against values read from the
// rows by their description in double precision.
#include "formats.h"

extern "C" void moe_unpack(void *w, void *w_up, const unsigned *list, void *out, unsigned first_entry,
                           unsigned num_experts, unsigned width, unsigned features);

int main() {
    Verdict verdict;
    const Format &format = format_of(FORMAT);
    const unsigned experts = 3, n = 24, k = depth_of(format, 128 * 2 + std::max(format.group, 32u));
    const unsigned groups = (k + 127) / 128, entries = PARTS, matrices = 2;
    const Matrix gate = random_matrix(format, experts * n, k), up = random_matrix(format, experts * n, k);
    auto rows = records_of(format, gate, experts * n, k), rows_up = records_of(format, up, experts * n, k);
    // Entries: experts 0 and 2, and choices elsewhere.
    std::vector<unsigned> list = {3, 0, 0, 0, 0, 0, 1, 0, 2, 1, 2, 0, experts, 2, 3, 0, 0, 1, 2};
    std::vector<ACT> out(matrices * entries * n * k, ACT::of(77));
    launch(
        (groups * n * 4 + 255) / 256, entries, 256,
        [&] { moe_unpack(rows.data(), rows_up.data(), list.data(), out.data(), 1, experts, k, n); }, matrices);
    for (unsigned m = 0; m < matrices; m++)
        for (unsigned entry = 0; entry < entries; entry++)
            for (unsigned at = 0; at < n * k; at++) {
                double value = entry == 0 ? (m ? up : gate).values[(std::size_t)2 * n * k + at] : 77;
                verdict.compare(out[(std::size_t)(m * entries + entry) * n * k + at].value(), value,
                                1e-6 + std::fabs(value) / 250, "matrix, entry, value", m, entry, at);
            }
    return verdict.end(1000);
}
