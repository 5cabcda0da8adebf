// kv_write of codes of 8 and 4 bits against the contract's formula (docs/ops.md), code by code: heads of ordinary
// values, of zeroes, of one large value, of one value throughout, and with a value that is not finite; tokens in no
// order, and one that is not stored.
#include "checks.h"

#include <algorithm>

extern "C" void kv_write(const void *k, unsigned k_token_stride, unsigned k_head_stride, const void *v,
                         unsigned v_token_stride, unsigned v_head_stride, const int *slots, void *cache,
                         unsigned long long page_stride, unsigned T, unsigned num_kv_heads);

namespace {

struct code8 {
    static constexpr unsigned bits = 8;
};
struct code4 {
    static constexpr unsigned bits = 4;
};
constexpr unsigned BITS = KV::bits, HEADS = 3, TOKENS = 7, PAGES = 4, PER_ROW = 128 / BITS;
// As kv_codes.cuh describes a block.
constexpr unsigned ROWS = (HEAD_DIM + PER_ROW - 1) / PER_ROW, WORDS_AT = ROWS * BLOCK * 16,
                   PART = WORDS_AT + BLOCK * 4, PAGE = HEADS * 2 * PART + 64;

unsigned code_of(const unsigned char *part, unsigned token, unsigned dim) {
    const unsigned char *row = part + (dim / PER_ROW * (BLOCK / 8) + token / 8) * 128 + token % 8 * 16;
    unsigned inside = dim % PER_ROW, piece = row[inside % 8 * 2] | row[inside % 8 * 2 + 1] << 8;
    return piece >> (inside / 8 * BITS) & ((1u << BITS) - 1);
}
unsigned word_of(const unsigned char *part, unsigned token) {
    unsigned word;
    std::memcpy(&word, part + WORDS_AT + 4 * token, 4);
    return word;
}
unsigned bits_of(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}
float from_bits(unsigned bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

// The largest bf16 that is not above x.
float rounded_down(float x) {
    float down = from_bits(bits_of(x) & 0xffff0000u);
    return down > x ? from_bits((bits_of(x) & 0xffff0000u) + 0x10000u) : down;
}

// Word and codes of a head.
unsigned encode(std::vector<float> x, bool is_key, std::vector<unsigned> &codes) {
    codes.assign(HEAD_DIM, 0);
    if (BITS == 4 && is_key) {
        unsigned n = HEAD_DIM & -HEAD_DIM;
        for (unsigned apart = 1; apart < n; apart *= 2)
            for (unsigned i = 0; i < HEAD_DIM; i++) {
                if (i & apart) continue;
                float a = x[i], b = x[i + apart];
                x[i] = a + b;
                x[i + apart] = a - b;
            }
        float factor = 1.f / std::sqrt((float)n);
        for (float &value : x) value *= factor;
    }
    float least = x[0], most = x[0], largest = 0;
    bool finite = true;
    for (float value : x) {
        finite = finite && std::isfinite(value);
        least = std::min(least, value), most = std::max(most, value), largest = std::max(largest, std::fabs(value));
    }
    if (!finite) return 0;
    float minimum = BITS == 4 ? rounded_down(least) : 0.f;
    float scale = BITS == 4 ? -rounded_down(-((most - minimum) / 15.f)) : largest / 127.f;
    for (unsigned d = 0; d < HEAD_DIM && scale != 0; d++)
        codes[d] = (unsigned)(int)std::nearbyint((x[d] - minimum) / scale) & ((1u << BITS) - 1);
    return BITS == 4 ? bits_of(scale) >> 16 | bits_of(minimum) : bits_of(scale);
}

float value_for(unsigned token, unsigned head, unsigned dim) {
    switch (token) {
    case 1: return 0.f;
    case 2: return dim == head ? 100.f : 0.001f * unit();
    case 3: return -0.75f;
    case 4: return dim == head + 1 ? std::numeric_limits<float>::infinity() : unit();
    default: return (head + 1) * unit();
    }
}

} // namespace

int main() {
    Verdict verdict;
    const unsigned head_stride = HEAD_DIM + 8, token_stride = HEADS * head_stride + 16;
    const std::vector<int> slots = {BLOCK + 3, BLOCK + 4, 2 * BLOCK - 1, 0, 3 * BLOCK + 5, -1, 1};
    std::vector<ACT> k(TOKENS * token_stride), v(TOKENS * token_stride);
    for (unsigned t = 0; t < TOKENS; t++)
        for (unsigned head = 0; head < HEADS; head++)
            for (unsigned d = 0; d < HEAD_DIM; d++) {
                k[t * token_stride + head * head_stride + d] = ACT::of(value_for(t, head, d));
                v[t * token_stride + head * head_stride + d] = ACT::of(value_for(t, head, d));
            }
    const unsigned char before = 0xa5;
    std::vector<unsigned char> cache(PAGES * PAGE, before);
    launch(TOKENS, 1, 128, [&] {
        kv_write(k.data(), token_stride, head_stride, v.data(), token_stride, head_stride, slots.data(), cache.data(),
                 PAGE, TOKENS, HEADS);
    });
    std::vector<bool> stored(PAGES * BLOCK);
    for (unsigned t = 0; t < TOKENS; t++) {
        if (slots[t] < 0) continue;
        stored[(unsigned)slots[t]] = true;
        for (unsigned head = 0; head < HEADS; head++)
            for (unsigned part = 0; part < 2; part++) {
                const unsigned char *at = &cache[(unsigned)slots[t] / BLOCK * PAGE + (2 * head + part) * PART];
                std::vector<float> x;
                for (unsigned d = 0; d < HEAD_DIM; d++)
                    x.push_back((part ? v : k)[t * token_stride + head * head_stride + d].value());
                std::vector<unsigned> codes;
                unsigned token = (unsigned)slots[t] % BLOCK, word = encode(x, part == 0, codes),
                         found = word_of(at, token);
                if (t == 4) {
                    // NaN as a whole.
                    bool nan = std::isnan(from_bits(BITS == 4 ? found << 16 : found));
                    verdict.compare(nan, 1, 0.5, "NaN of token, head, part", t, head, part);
                    continue;
                }
                verdict.compare(found, word, 0.5, "word of token, head, part", t, head, part);
                for (unsigned d = 0; d < HEAD_DIM; d++)
                    verdict.compare(code_of(at, token, d), codes[d], 0.5, "code of token, head, dim", t, head, d);
            }
    }
    for (unsigned slot = 0; slot < PAGES * BLOCK; slot++)
        for (unsigned part = 0; part < 2 * HEADS && !stored[slot]; part++)
            verdict.compare(word_of(&cache[slot / BLOCK * PAGE + part * PART], slot % BLOCK), before * 0x1010101u, 0.5,
                            "untouched slot, part", slot, part, 0);
    return verdict.end(5 * 2 * HEADS * HEAD_DIM);
}
