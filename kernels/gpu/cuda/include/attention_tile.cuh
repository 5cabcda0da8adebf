// One tile of decode attention on matrix units: 64 keys and values in shared memory against up to 16 query heads, with
// a running softmax. attention_decode.cu explains the definitions.
#pragma once
#include "kv_stream.cuh"
#include "mma.cuh"
#include "widen.cuh"

typedef FactorOf<KV, ACT>::type FACTOR;

#define LOG2E 1.4426950408889634f
#define NT ((GROUP + 7) / 8)          // columns of 8 query heads
#define DT (HEAD_DIM / 16)            // 16 dims

__device__ __forceinline__ u32 transposed(u32 x) {
    u32 y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Four neighbouring dims of a part, by its weight.
__device__ __forceinline__ void add_weighted(float4 &sum, float weight, const float4 &part) {
    sum.x += weight * part.x;
    sum.y += weight * part.y;
    sum.z += weight * part.z;
    sum.w += weight * part.w;
}

// Byte of 8 tokens (`eighth` of the tile) and the dims of row `row` within the keys of a tile; of 8 dims (`octet`) and
// the tokens of row `row` within its values.
__device__ __forceinline__ constexpr u32 key_unit(u32 row, u32 eighth) {
    return eighth / (PIECE_TOKENS / 8) * (UNIT_BYTES / PIECES) +
           (row * (PIECE_TOKENS / 8) + eighth % (PIECE_TOKENS / 8)) * 128;
}
__device__ __forceinline__ constexpr u32 value_unit(u32 octet, u32 row) {
    constexpr u32 rows = PIECE_TOKENS > Layout::ROW ? PIECE_TOKENS / Layout::ROW : 1;
    return row / rows * (UNIT_BYTES / PIECES) + (row % rows * (HEAD_DIM / 8) + octet) * 128;
}

// Byte of the word of a token (codes only) within keys or values of a tile.
template <typename L> __device__ __forceinline__ constexpr u32 word_of_token(u32 token) {
    return token / PIECE_TOKENS * (UNIT_BYTES / PIECES) + L::WORDS_AT + token % PIECE_TOKENS * 4;
}

// Running softmax of a warp: of head columns 8n + 2t and 8n + 2t + 1 (lane = 4g + t). `highest` is in units of log2.
template <int N> struct SoftmaxOf {
    float highest[N][2], total[N][2];
    float sum[DT][N][4]; // rows: dims 16d + g and + 8; columns: the two heads
};
typedef SoftmaxOf<NT> Softmax;

template <int N> __device__ __forceinline__ void clear(SoftmaxOf<N> &softmax) {
#pragma unroll
    for (int n = 0; n < N; n++) {
        softmax.highest[n][0] = softmax.highest[n][1] = -INFINITY_F;
        softmax.total[n][0] = softmax.total[n][1] = 0.f;
#pragma unroll
        for (int d = 0; d < DT; d++)
#pragma unroll
            for (int i = 0; i < 4; i++) softmax.sum[d][n][i] = 0.f;
    }
}

// All lanes of a column have its total.
template <int N> __device__ __forceinline__ void add_totals(SoftmaxOf<N> &softmax) {
#pragma unroll
    for (int mask = 4; mask < 32; mask <<= 1)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int c = 0; c < 2; c++) softmax.total[n][c] += __shfl_xor_sync(0xffffffffu, softmax.total[n][c], mask);
}

// The query heads that a warp works on, units in shared memory, as the second operand of the scores' product: columns
// 8n + g, dims 16d + 2t (+ 1), and + 8.
template <int N> __device__ __forceinline__ void load_query(u32 (&query)[N][DT][2], u32 buffer) {
    u32 at = buffer + threadIdx.x % 32 * 16;
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int d = 0; d + 1 < DT; d += 2) {
            u32 units[4];
            load_pieces(units, at + (n * (HEAD_DIM / 8) + 2 * d) * 128);
            query[n][d][0] = units[0];
            query[n][d][1] = units[1];
            query[n][d + 1][0] = units[2];
            query[n][d + 1][1] = units[3];
        }
        if (DT % 2) {
            // Two units are left: the upper lanes' addresses count for nothing, but must be readable.
            u32 units[4];
            load_pieces(units, buffer + threadIdx.x % 16 * 16 + (n * (HEAD_DIM / 8) + 2 * (DT - 1)) * 128);
            query[n][DT - 1][0] = units[0];
            query[n][DT - 1][1] = units[1];
        }
    }
}

// The sum of a query's values, of head columns 8n + 2t and 8n + 2t + 1.
template <int N>
__device__ __forceinline__ void sum_queries(float (&sums)[N][2], const u32 (&query)[N][DT][2]) {
    u32 one = pack2<FACTOR>(1.f, 1.f), ones[4] = {one, one, one, one};
#pragma unroll
    for (int n = 0; n < N; n++) {
        float sum[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
        for (int d = 0; d < DT; d++) mma_m16n8k16<FACTOR>(sum, ones, query[n][d]);
        sums[n][0] = sum[0];
        sums[n][1] = sum[1];
    }
}

// The scores of codes (as `multiply_keys` leaves them), which a load brings for 32 keys and the dims of a row.
template <typename L, int N>
__device__ __forceinline__ void multiply_coded_keys(float (&scores)[4][N][4], const u32 (&query)[N][DT][2], u32 keys,
                                                    const float (&query_sums)[N][2]) {
    constexpr int STEPS = L::ROW / 16; // of the product in a row
    u32 lane = threadIdx.x % 32, at = keys + key_unit(0, lane >> 3) + (lane & 7) * 16;
#pragma unroll
    for (int row = 0; row < L::KEY_ROWS; row++)
#pragma unroll
        for (int m = 0; m < 4; m += 2) {
            u32 units[4];
            load_pieces(units, at + key_unit(row, 2 * m));
#pragma unroll
            for (int step = 0; step < STEPS && row * STEPS + step < DT; step++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    u32 a[4];
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        a[i] = code_pair<FACTOR, CODE_BITS>(units[2 * half + i % 2], 2 * step + i / 2);
#pragma unroll
                    for (int n = 0; n < N; n++)
                        mma_m16n8k16<FACTOR>(scores[m + half][n], a, query[n][row * STEPS + step]);
                }
        }
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            CodeMap key = code_map<CODE_BITS>(load_word(keys + word_of_token<L>(16 * m + 8 * half + lane / 4)));
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    float &score = scores[m][n][2 * half + c];
                    score = scaled_score<CODE_BITS>(score, key, query_sums[n][c]);
                }
        }
}

// Scores of the tile's 64 keys: scores[m][n] are keys 16m + g and + 8 against head columns 8n + 2t and + 1.
template <int N>
__device__ __forceinline__ void multiply_keys(float (&scores)[4][N][4], const u32 (&query)[N][DT][2], u32 keys,
                                              const float (&query_sums)[N][2]) {
    u32 lane = threadIdx.x % 32;
    u32 at = keys + key_unit(lane >> 4, lane >> 3 & 1) + (lane & 7) * 16;
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) scores[m][n][i] = 0.f;
    if constexpr (CODE_BITS > 0) {
        multiply_coded_keys<Layout>(scores, query, keys, query_sums);
    } else if constexpr (KV_BYTES == 1) {
        // A row holds 16 dims: one load fetches two steps of the product. In an odd last row the upper lanes' units are
        // not used.
        u32 last = keys + key_unit(0, lane >> 3 & 1) + (lane & 7) * 16;
#pragma unroll
        for (int d = 0; d < DT; d += 2)
#pragma unroll
            for (int m = 0; m < 4; m++) {
                u32 words[4];
                load_pieces(words, (d + 1 < DT ? at : last) + key_unit(d, 2 * m));
#pragma unroll
                for (int step = 0; step < 2 && d + step < DT; step++) {
                    u32 a[4];
                    widen(words[2 * step], a[0], a[2]);
                    widen(words[2 * step + 1], a[1], a[3]);
#pragma unroll
                    for (int n = 0; n < N; n++) mma_m16n8k16<FACTOR>(scores[m][n], a, query[n][d + step]);
                }
            }
    } else {
#pragma unroll
        for (int d = 0; d < DT; d++)
#pragma unroll
            for (int m = 0; m < 4; m++) {
                u32 a[4];
                load_pieces(a, at + key_unit(2 * d, 2 * m));
#pragma unroll
                for (int n = 0; n < N; n++) mma_m16n8k16<FACTOR>(scores[m][n], a, query[n][d]);
            }
    }
}

// Turns scores into probabilities (16-bit, transposed: the second operand of the values' product) and keeps the softmax
// running.
template <bool MASKED, int N>
__device__ __forceinline__ void weigh(SoftmaxOf<N> &softmax, u32 (&p)[4][N][2], float (&scores)[4][N][4], float scale,
                                      float softcap, i32 first, i32 last) {
    i32 g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int n = 0; n < N; n++) {
        float above[2] = {softmax.highest[n][0], softmax.highest[n][1]};
#pragma unroll
        for (int m = 0; m < 4; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float x = scores[m][n][i] * scale;
                if (SOFTCAP) x = softcap * LOG2E * tanhf(x / softcap);
                if (MASKED) {
                    i32 key = 16 * m + g + (i >= 2 ? 8 : 0);
                    if (key < first || key > last) x = -INFINITY_F;
                }
                scores[m][n][i] = x;
                above[i & 1] = fmaxf(above[i & 1], x);
            }
#pragma unroll
        for (int c = 0; c < 2; c++) {
#pragma unroll
            for (int mask = 4; mask < 32; mask <<= 1)
                above[c] = fmaxf(above[c], __shfl_xor_sync(0xffffffffu, above[c], mask));
        }
        float base[2], kept[2];
#pragma unroll
        for (int c = 0; c < 2; c++) {
            base[c] = above[c] == -INFINITY_F ? 0.f : above[c]; // nothing seen yet: no inf - inf
            kept[c] = exp2_fast(softmax.highest[n][c] - base[c]);
            softmax.highest[n][c] = above[c];
            softmax.total[n][c] *= kept[c];
        }
        if (__any_sync(0xffffffffu, kept[0] != 1.f || kept[1] != 1.f)) {
#pragma unroll
            for (int d = 0; d < DT; d++)
#pragma unroll
                for (int i = 0; i < 4; i++) softmax.sum[d][n][i] *= kept[i & 1];
        }
#pragma unroll
        for (int m = 0; m < 4; m++) {
            float e[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                e[i] = exp2_fast(scores[m][n][i] - base[i & 1]);
                softmax.total[n][i & 1] += e[i];
            }
            p[m][n][0] = transposed(pack2<FACTOR>(e[0], e[1]));
            p[m][n][1] = transposed(pack2<FACTOR>(e[2], e[3]));
        }
    }
}

// Adds the product of 16 dims and the 16 tokens 16m .. of the tile. Tokens outside first ..= last do not count,
// whatever `a` holds of them.
template <bool MASKED, int N>
__device__ __forceinline__ void add_values(SoftmaxOf<N> &softmax, u32 (&a)[4], const u32 (&p)[4][N][2], int d, int m,
                                           i32 first, i32 last) {
    if (MASKED) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            i32 key = 16 * m + 8 * half + 2 * (i32)(threadIdx.x & 3);
            u32 keep = (key >= first && key <= last ? 0xffffu : 0) |
                       (key + 1 >= first && key + 1 <= last ? 0xffff0000u : 0);
            a[2 * half] &= keep;
            a[2 * half + 1] &= keep;
        }
    }
#pragma unroll
    for (int n = 0; n < N; n++) mma_m16n8k16<FACTOR>(softmax.sum[d][n], a, p[m][n]);
}

// The same as `multiply_values` of codes: a load brings 32 tokens and the dims of a row.
template <bool MASKED, typename L, int N>
__device__ __forceinline__ void multiply_coded_values(SoftmaxOf<N> &softmax, const u32 (&p)[4][N][2], u32 values,
                                                      i32 first, i32 last) {
    constexpr int STEPS = L::ROW / 16;
    u32 lane = threadIdx.x % 32, at = values + key_unit(0, lane >> 3) + (lane & 7) * 16;
#pragma unroll
    for (int m = 0; m < 4; m += 2) {
        ScalePair maps[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint2 words = load_words(values + word_of_token<L>(16 * m + 8 * i + 2 * (lane & 3)));
            maps[i] = scale_pair<FACTOR, CODE_BITS>(words.x, words.y);
        }
#pragma unroll
        for (int row = 0; row < L::KEY_ROWS; row++) {
            u32 units[4];
            load_pieces_transposed(units, at + key_unit(row, 2 * m));
#pragma unroll
            for (int step = 0; step < STEPS && row * STEPS + step < DT; step++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    u32 a[4];
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        a[i] = value_pair<FACTOR, CODE_BITS>(units[2 * half + i / 2], 2 * step + i % 2,
                                                             maps[2 * half + i / 2]);
                    add_values<MASKED>(softmax, a, p, row * STEPS + step, m + half, first, last);
                }
        }
    }
}

// Adds the tile's values. Tokens outside first ..= last do not count, whatever their bytes hold.
template <bool MASKED, int N>
__device__ __forceinline__ void multiply_values(SoftmaxOf<N> &softmax, const u32 (&p)[4][N][2], u32 values, i32 first,
                                                i32 last) {
    u32 lane = threadIdx.x % 32;
    u32 at = values + value_unit(lane >> 3 & 1, lane >> 4) + (lane & 7) * 16;
    if constexpr (CODE_BITS > 0) {
        multiply_coded_values<MASKED, Layout>(softmax, p, values, first, last);
    } else if constexpr (KV_BYTES == 1) {
        // A row holds 16 tokens: one load brings two steps of the product.
#pragma unroll
        for (int m = 0; m < 4; m += 2)
#pragma unroll
            for (int d = 0; d < DT; d++) {
                u32 words[4];
                load_pieces(words, at + value_unit(2 * d, m));
#pragma unroll
                for (int step = 0; step < 2; step++) {
                    u32 a[4];
                    widen(words[2 * step], a[0], a[2]);
                    widen(words[2 * step + 1], a[1], a[3]);
                    add_values<MASKED>(softmax, a, p, d, m + step, first, last);
                }
            }
    } else {
#pragma unroll
        for (int m = 0; m < 4; m++)
#pragma unroll
            for (int d = 0; d < DT; d++) {
                u32 a[4];
                load_pieces(a, at + value_unit(2 * d, 2 * m));
                add_values<MASKED>(softmax, a, p, d, m, first, last);
            }
    }
}
