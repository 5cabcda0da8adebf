// Attention of few query tokens a sequence over the paged cache, at the speed of memory: every block of threads streams an equal share of
// all keys and values of the batch through shared memory.
//
// The work is a line of tiles of 64 keys: sequence by sequence, query token by query token, KV head by KV head. Blocks cut the line into
// equal shares, found on the device from seq_lens, so one long sequence and hundreds of short ones both fill the machine. Within a share,
// warp w takes tiles w, w + WARPS, ...; it has a ring of buffers of its own that hold keys and values in turn, and refills each as it
// empties. At the end of an item (a query token and a KV head) the warps' sums meet in shared memory; where shares cut an item, the sums go
// to scratch, and whichever block comes last adds them up.
//
// Matrix units (m16n8k16): scores = K * Qt with 16 keys as rows and up to 8 query heads of the group as columns, then out-transposed =
// Vt * P, where P is the transposed scores. Units of the cache (kv.cuh) are exactly the 8x8 tiles that ldmatrix loads.
//
// Definitions: ACT (bf16, f16; the cache's type too), HEAD_DIM (multiple of 16), GROUP (query heads of a KV head), BLOCK (16, 32, 64, 128),
// WARPS, RING (buffers of a warp), SOFTCAP (0, 1), ROPE (0, 1: the fused form, see below); with ROPE: ROTARY_DIM, INTERLEAVED (0, 1), NORM (0, 1).
//
// The fused form takes q, k and v as projected: it norms and rotates q on its way in, and the keys and values of this step do not come from the cache but
// from k and v; the block that reads a token's own key stores both. It leaves q and k as they are.
//
// Entry point: attention_decode. Grid: any number of blocks (one a multiprocessor), WARPS * 32 threads. Dynamic shared memory: SHARED_BYTES below +
// 16 * (S + 1). Scratch: partials, 2 * blocks * GROUP * (HEAD_DIM + 2) f32. counters: u32 a block, zero before the first launch; every launch leaves them zero.
// Sequences whose query_len is not below `query_len_end` are left to another kernel.
#include "kv_stream.cuh"
#include "mma.cuh"

#define LOG2E 1.4426950408889634f
#define NT ((GROUP + 7) / 8)          // columns of 8 query heads
#define DT (HEAD_DIM / 16)            // 16 dims
#define HEAD_STRIDE (HEAD_DIM + 4)    // of the warps' sums: no bank conflicts
// Shared memory: rings | sums [WARPS][GROUP][HEAD_STRIDE] f32 | stats [WARPS][GROUP][2] f32 | barriers [WARPS][RING] u64 | sequences [S + 1]
#define SUMS_AT (WARPS * RING * UNIT_BYTES)
#define STATS_AT (SUMS_AT + WARPS * GROUP * HEAD_STRIDE * 4)
#define BARRIERS_AT (STATS_AT + WARPS * GROUP * 2 * 4)
#define SHARED_BYTES ((BARRIERS_AT + WARPS * RING * 8 + 15) / 16 * 16)

// --- One tile -------------------------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void load_matrix(u32 (&a)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(address) : "memory");
}
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

// Byte of 8 tokens (`eighth` of the tile) and 8 dims (`octet`) within a unit of keys, and of values.
__device__ __forceinline__ constexpr u32 key_unit(u32 octet, u32 eighth) {
    return eighth / (PIECE_TOKENS / 8) * (UNIT_BYTES / PIECES) + (octet * (PIECE_TOKENS / 8) + eighth % (PIECE_TOKENS / 8)) * 128;
}
__device__ __forceinline__ constexpr u32 value_unit(u32 octet, u32 eighth) {
    return eighth / (PIECE_TOKENS / 8) * (UNIT_BYTES / PIECES) + (eighth % (PIECE_TOKENS / 8) * (HEAD_DIM / 8) + octet) * 128;
}

// Running softmax of a warp: of head columns 8n + 2t and 8n + 2t + 1 (lane = 4g + t). `highest` is in units of log2.
struct Softmax {
    float highest[NT][2], total[NT][2];
    float sum[DT][NT][4]; // rows: dims 16d + g and + 8; columns: the two heads
};

__device__ __forceinline__ void clear(Softmax &softmax) {
#pragma unroll
    for (int n = 0; n < NT; n++) {
        softmax.highest[n][0] = softmax.highest[n][1] = -INFINITY_F;
        softmax.total[n][0] = softmax.total[n][1] = 0.f;
#pragma unroll
        for (int d = 0; d < DT; d++)
#pragma unroll
            for (int i = 0; i < 4; i++) softmax.sum[d][n][i] = 0.f;
    }
}

// Scores of the tile's 64 keys: scores[m][n] are keys 16m + g and + 8 against head columns 8n + 2t and + 1.
__device__ __forceinline__ void multiply_keys(float (&scores)[4][NT][4], const u32 (&query)[NT][DT][2], u32 keys) {
    u32 lane = threadIdx.x % 32;
    u32 at = keys + key_unit(lane >> 4, lane >> 3 & 1) + (lane & 7) * 16;
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) scores[m][n][i] = 0.f;
#pragma unroll
    for (int d = 0; d < DT; d++)
#pragma unroll
        for (int m = 0; m < 4; m++) {
            u32 a[4];
            load_matrix(a, at + key_unit(2 * d, 2 * m));
#pragma unroll
            for (int n = 0; n < NT; n++) mma_m16n8k16<ACT>(scores[m][n], a, query[n][d]);
        }
}

// Turns scores into probabilities (16-bit, transposed: the second operand of the values' product) and keeps the softmax running.
template <bool MASKED>
__device__ __forceinline__ void weigh(Softmax &softmax, u32 (&p)[4][NT][2], float (&scores)[4][NT][4], float scale, float softcap, i32 first, i32 last) {
    i32 g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int n = 0; n < NT; n++) {
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
            for (int mask = 4; mask < 32; mask <<= 1) above[c] = fmaxf(above[c], __shfl_xor_sync(0xffffffffu, above[c], mask));
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
            p[m][n][0] = transposed(pack2<ACT>(e[0], e[1]));
            p[m][n][1] = transposed(pack2<ACT>(e[2], e[3]));
        }
    }
}

// Adds the tile's values. Tokens outside first ..= last do not count, whatever their bytes hold.
template <bool MASKED>
__device__ __forceinline__ void multiply_values(Softmax &softmax, const u32 (&p)[4][NT][2], u32 values, i32 first, i32 last) {
    u32 lane = threadIdx.x % 32;
    u32 at = values + value_unit(lane >> 3 & 1, lane >> 4) + (lane & 7) * 16;
#pragma unroll
    for (int m = 0; m < 4; m++) {
        u32 keep[2] = {0xffffffffu, 0xffffffffu};
        if (MASKED) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                i32 key = 16 * m + 8 * half + 2 * (i32)(lane & 3);
                keep[half] = (key >= first && key <= last ? 0xffffu : 0) | (key + 1 >= first && key + 1 <= last ? 0xffff0000u : 0);
            }
        }
#pragma unroll
        for (int d = 0; d < DT; d++) {
            u32 a[4];
            load_matrix(a, at + value_unit(2 * d, 2 * m));
            if (MASKED) {
                a[0] &= keep[0];
                a[1] &= keep[0];
                a[2] &= keep[1];
                a[3] &= keep[1];
            }
#pragma unroll
            for (int n = 0; n < NT; n++) mma_m16n8k16<ACT>(softmax.sum[d][n], a, p[m][n]);
        }
    }
}

// --- Query, and the step's own keys and values ----------------------------------------------------------------------------------------

struct Inputs {
    const ACT *q, *k, *v;
    u32 q_token_stride, q_head_stride, k_token_stride, k_head_stride, v_token_stride, v_head_stride;
    const i32 *positions, *slots;
    const float *table, *q_norm, *k_norm;
    float q_eps, k_eps, q_offset, k_offset;
};

// A pair of neighbouring values of every 8 dims of a head, as floats: dims 16d + 2t (+ 1), and + 8.
#if ROPE
__device__ __forceinline__ void turn(float (&x)[DT][4], const Inputs &in, u32 token) {
    u32 t = threadIdx.x & 3;
#if NORM
    float squares = 0.f;
#pragma unroll
    for (int d = 0; d < DT; d++)
#pragma unroll
        for (int i = 0; i < 4; i++) squares += x[d][i] * x[d][i];
    squares += __shfl_xor_sync(0xffffffffu, squares, 1);
    squares += __shfl_xor_sync(0xffffffffu, squares, 2);
    float factor = rsqrtf(squares / HEAD_DIM + in.q_eps);
#pragma unroll
    for (int d = 0; d < DT; d++)
#pragma unroll
        for (int i = 0; i < 4; i++) x[d][i] *= factor * (in.q_norm[16 * d + 2 * t + (i & 1) + (i & 2) * 4] + in.q_offset);
#endif
    const float *angles = in.table + (u64)(u32)in.positions[token] * ROTARY_DIM;
#if INTERLEAVED
#pragma unroll
    for (int d = 0; d < ROTARY_DIM / 16; d++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float c = angles[8 * d + 4 * half + t], s = angles[ROTARY_DIM / 2 + 8 * d + 4 * half + t];
            float a = x[d][2 * half], b = x[d][2 * half + 1];
            x[d][2 * half] = a * c - b * s;
            x[d][2 * half + 1] = b * c + a * s;
        }
#else
    // Both values of a pair are this lane's: half of the rotated dims is a multiple of 16.
#pragma unroll
    for (int d = 0; d < ROTARY_DIM / 32; d++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float2 c = *(const float2 *)(angles + 16 * d + 8 * half + 2 * t), s = *(const float2 *)(angles + ROTARY_DIM / 2 + 16 * d + 8 * half + 2 * t);
            float(&first)[4] = x[d], (&second)[4] = x[d + ROTARY_DIM / 32];
            float a = first[2 * half], b = second[2 * half];
            first[2 * half] = a * c.x - b * s.x;
            second[2 * half] = b * c.x + a * s.x;
            a = first[2 * half + 1], b = second[2 * half + 1];
            first[2 * half + 1] = a * c.y - b * s.y;
            second[2 * half + 1] = b * c.y + a * s.y;
        }
#endif
}
#endif

// The query heads of an item as the second operand of the scores' product: column g of 8n, dims 16d + 2t (+ 1), and + 8.
__device__ __forceinline__ void load_query(u32 (&query)[NT][DT][2], const Inputs &in, u32 token, u32 kv_head) {
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane & 3;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        bool there = 8 * n + g < GROUP;
        const ACT *head = in.q + (u64)token * in.q_token_stride + (u64)(kv_head * GROUP + (there ? 8 * n + g : 0)) * in.q_head_stride + 2 * t;
#pragma unroll
        for (int d = 0; d < DT; d++) {
            query[n][d][0] = *(const u32 *)(head + 16 * d);
            query[n][d][1] = *(const u32 *)(head + 16 * d + 8);
        }
#if ROPE
        float x[DT][4];
#pragma unroll
        for (int d = 0; d < DT; d++) {
            unpack2<ACT>(query[n][d][0], x[d][0], x[d][1]);
            unpack2<ACT>(query[n][d][1], x[d][2], x[d][3]);
        }
        turn(x, in, token);
#pragma unroll
        for (int d = 0; d < DT; d++) {
            query[n][d][0] = pack2<ACT>(x[d][0], x[d][1]);
            query[n][d][1] = pack2<ACT>(x[d][2], x[d][3]);
        }
#endif
#pragma unroll
        for (int d = 0; d < DT; d++) {
            if (!there) query[n][d][0] = query[n][d][1] = 0;
        }
    }
}

#if ROPE
// The key of `token`, normed and rotated: lane c has dims 8c ..+ 8 (lanes past the head: nothing of use).
__device__ __forceinline__ uint4 new_key(const Inputs &in, u32 token, u32 kv_head) {
    u32 c = threadIdx.x % 32;
    bool there = c < HEAD_DIM / 8;
    uint4 words = make_uint4(0, 0, 0, 0);
    if (there) words = *(const uint4 *)(in.k + (u64)token * in.k_token_stride + (u64)kv_head * in.k_head_stride + 8 * c);
    float x[8];
    unpack2<ACT>(words.x, x[0], x[1]);
    unpack2<ACT>(words.y, x[2], x[3]);
    unpack2<ACT>(words.z, x[4], x[5]);
    unpack2<ACT>(words.w, x[6], x[7]);
#if NORM
    float squares = 0.f;
#pragma unroll
    for (int i = 0; i < 8; i++) squares += x[i] * x[i];
    float factor = rsqrtf(warp_sum(squares) / HEAD_DIM + in.k_eps);
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (there) x[i] *= factor * (in.k_norm[8 * c + i] + in.k_offset);
#endif
    const float *angles = in.table + (u64)(u32)in.positions[token] * ROTARY_DIM;
#if INTERLEAVED
    if (8 * c < ROTARY_DIM) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float cosine = angles[4 * c + i], sine = angles[ROTARY_DIM / 2 + 4 * c + i];
            float a = x[2 * i], b = x[2 * i + 1];
            x[2 * i] = a * cosine - b * sine;
            x[2 * i + 1] = b * cosine + a * sine;
        }
    }
#else
    const u32 half = ROTARY_DIM / 16; // lanes that hold the first values of the pairs
    bool first = c < half;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float other = __shfl_sync(0xffffffffu, x[i], first ? c + half : c - half);
        if (c < 2 * half) {
            u32 pair = 8 * (first ? c : c - half) + i;
            float cosine = angles[pair], sine = angles[ROTARY_DIM / 2 + pair];
            x[i] = first ? x[i] * cosine - other * sine : x[i] * cosine + other * sine;
        }
    }
#endif
    return make_uint4(pack2<ACT>(x[0], x[1]), pack2<ACT>(x[2], x[3]), pack2<ACT>(x[4], x[5]), pack2<ACT>(x[6], x[7]));
}

// Puts the keys of this step's tokens into a tile that was copied without them; stores that of `own` (token of the item) in the cache.
__device__ __forceinline__ void patch_keys(const Inputs &in, u8 *cache, u64 page_stride, u8 *unit, u32 kv_head, i32 tile_key, i32 first_new, i32 keys,
                                           i32 first_token, u32 own) {
    u32 c = threadIdx.x % 32;
    for (i32 key = first_new > tile_key ? first_new : tile_key; key < keys && key < tile_key + TILE; key++) {
        u32 token = (u32)(first_token + key - first_new), inside = (u32)(key - tile_key);
        uint4 words = new_key(in, token, kv_head);
        if (c < HEAD_DIM / 8) {
            *(uint4 *)(unit + key_unit(c, inside / 8) + inside % 8 * 16) = words;
            i32 slot = in.slots[token];
            if (token == own && slot >= 0)
                *(uint4 *)(cache + (u64)((u32)slot / BLOCK) * page_stride + (u64)kv_head * Layout::HEAD_BYTES + Layout::key_row((u32)slot % BLOCK, c)) = words;
        }
    }
    order_stores_before_copies();
    __syncwarp();
}

// The same for values. What is stored is the whole row of 8 tokens around the own one, as the tile holds it: lines instead of single elements.
__device__ __forceinline__ void patch_values(const Inputs &in, u8 *cache, u64 page_stride, u8 *unit, u32 kv_head, i32 tile_key, i32 first_new, i32 keys,
                                             i32 first_token, u32 own) {
    u32 lane = threadIdx.x % 32;
    for (i32 key = first_new > tile_key ? first_new : tile_key; key < keys && key < tile_key + TILE; key++) {
        u32 token = (u32)(first_token + key - first_new), inside = (u32)(key - tile_key);
        if (lane < HEAD_DIM / 8) {
            uint4 words = *(const uint4 *)(in.v + (u64)token * in.v_token_stride + (u64)kv_head * in.v_head_stride + 8 * lane);
            u16 *to = (u16 *)(unit + value_unit(lane, inside / 8) + inside % 8 * 2);
            u32 word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
            for (int i = 0; i < 8; i++) to[8 * i] = (u16)(word[i / 2] >> (i & 1) * 16);
        }
    }
    order_stores_before_copies();
    __syncwarp();
    i32 slot = in.slots[own], key = first_new + (i32)own - first_token;
    if (slot < 0 || key < tile_key || key >= tile_key + TILE) return;
    const uint4 *from = (const uint4 *)(unit + value_unit(0, (u32)(key - tile_key) / 8));
    uint4 *to = (uint4 *)(cache + (u64)((u32)slot / BLOCK) * page_stride + (u64)kv_head * Layout::HEAD_BYTES + Layout::value_row(0, (u32)slot % BLOCK / 8));
    for (u32 dim = lane; dim < HEAD_DIM; dim += 32) to[dim] = from[dim];
}
#endif

// --- The end of an item ---------------------------------------------------------------------------------------------------------------

struct Output {
    ACT *out;
    u32 token_stride, head_stride;
    const float *sinks;
    float *partials;
    u32 *counters;
};

// Adds a sink and writes two neighbouring dims of a head.
__device__ __forceinline__ void write_out(const Output &output, u32 token, u32 head, u32 dim, float a, float b, float highest, float total) {
    if (output.sinks) {
        float sink = output.sinks[head] * LOG2E, above = fmaxf(highest, sink);
        float kept = exp2_fast(highest - above);
        total = total * kept + exp2_fast(sink - above);
        a *= kept;
        b *= kept;
    }
    float inverse = 1.f / total;
    *(u32 *)(output.out + (u64)token * output.token_stride + (u64)head * output.head_stride + dim) = pack2<ACT>(a * inverse, b * inverse);
}

// Leaves a warp's sums in shared memory.
__device__ __forceinline__ void leave_sums(u8 *shared, Softmax &softmax, bool any) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane & 3;
    float *sums = (float *)(shared + SUMS_AT) + warp * GROUP * HEAD_STRIDE;
    float *stats = (float *)(shared + STATS_AT) + warp * GROUP * 2;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float total = softmax.total[n][c];
#pragma unroll
            for (int mask = 4; mask < 32; mask <<= 1) total += __shfl_xor_sync(0xffffffffu, total, mask);
            u32 head = 8 * n + 2 * t + c;
            if (head < GROUP) {
                if (g == 0) {
                    stats[2 * head] = any ? softmax.highest[n][c] : -INFINITY_F;
                    stats[2 * head + 1] = total;
                }
                if (any) {
#pragma unroll
                    for (int d = 0; d < DT; d++) {
                        sums[head * HEAD_STRIDE + 16 * d + g] = softmax.sum[d][n][c];
                        sums[head * HEAD_STRIDE + 16 * d + g + 8] = softmax.sum[d][n][c + 2];
                    }
                }
            }
        }
}

// The warps' sums of a head and two dims, relative to the highest score of any.
__device__ __forceinline__ void gather_sums(const u8 *shared, u32 head, u32 dim, float &a, float &b, float &highest, float &total) {
    const float *sums = (const float *)(shared + SUMS_AT) + head * HEAD_STRIDE + dim;
    const float *stats = (const float *)(shared + STATS_AT) + 2 * head;
    highest = -INFINITY_F;
#pragma unroll
    for (int w = 0; w < WARPS; w++) highest = fmaxf(highest, stats[w * GROUP * 2]);
    a = b = total = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        float own = stats[w * GROUP * 2];
        if (own == -INFINITY_F) continue;
        float weight = exp2_fast(own - highest);
        float2 sum = *(const float2 *)(sums + w * GROUP * HEAD_STRIDE);
        a += weight * sum.x;
        b += weight * sum.y;
        total += weight * stats[w * GROUP * 2 + 1];
    }
}

#define PARTIAL (GROUP * (HEAD_DIM + 2)) // f32 of a block's part of an item: sums, then highest and total of each head

// An item that shares cut: leaves this block's part in scratch; the last of the item's blocks adds all parts up.
__device__ void join_partials(const u8 *shared, const Output &output, u32 token, u32 kv_head, u32 first_block, u32 last_block) {
    __shared__ u32 arrived;
    u32 block = blockIdx.x;
    float *mine = output.partials + (u64)(2 * block + (block == first_block)) * PARTIAL;
    for (u32 e = threadIdx.x; e < GROUP * HEAD_DIM / 2; e += THREADS) {
        u32 head = e / (HEAD_DIM / 2), dim = e % (HEAD_DIM / 2) * 2;
        float a, b, highest, total;
        gather_sums(shared, head, dim, a, b, highest, total);
        __stcg((float2 *)(mine + head * HEAD_DIM + dim), make_float2(a, b));
        if (dim == 0) __stcg((float2 *)(mine + GROUP * HEAD_DIM + 2 * head), make_float2(highest, total));
    }
    __threadfence();
    __syncthreads();
    u32 parts = last_block - first_block + 1;
    // Wraps to zero with the last arrival, ready for the next launch.
    if (threadIdx.x == 0) arrived = atomicInc(output.counters + first_block, parts - 1);
    __syncthreads();
    if (arrived != parts - 1) return;
    __threadfence();
    for (u32 e = threadIdx.x; e < GROUP * HEAD_DIM / 2; e += THREADS) {
        u32 head = e / (HEAD_DIM / 2), dim = e % (HEAD_DIM / 2) * 2;
        float a = 0.f, b = 0.f, highest = -INFINITY_F, total = 0.f;
        for (u32 i = first_block; i <= last_block; i++) {
            const float *part = output.partials + (u64)(2 * i + (i == first_block)) * PARTIAL;
            float2 stats = __ldcg((const float2 *)(part + GROUP * HEAD_DIM + 2 * head));
            float2 sum = __ldcg((const float2 *)(part + head * HEAD_DIM + dim));
            if (stats.x == -INFINITY_F) continue;
            float above = fmaxf(highest, stats.x);
            float kept = exp2_fast(highest - above), weight = exp2_fast(stats.x - above);
            a = a * kept + sum.x * weight;
            b = b * kept + sum.y * weight;
            total = total * kept + stats.y * weight;
            highest = above;
        }
        write_out(output, token, kv_head * GROUP + head, dim, a, b, highest, total);
    }
}

// --- The kernel -----------------------------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(THREADS)
attention_decode(const ACT *q, u32 q_token_stride, u32 q_head_stride, u8 *cache, u64 page_stride, const i32 *block_table, u32 table_stride,
                 const i32 *step_rows, const i32 *starts, const i32 *seq_lens, const float *sinks, ACT *out, u32 out_token_stride, u32 out_head_stride,
                 float *partials, u32 *counters, u32 S, u32 num_kv_heads, float scale, float softcap, u32 window, u32 query_len_end
#if ROPE
                 ,
                 const ACT *k, u32 k_token_stride, u32 k_head_stride, const ACT *v, u32 v_token_stride, u32 v_head_stride, const i32 *positions,
                 const i32 *slots, const float *table, const float *q_norm, const float *k_norm, float q_eps, float k_eps, float q_offset, float k_offset
#endif
) {
    extern __shared__ __align__(128) u8 shared[];
    u32 warp = threadIdx.x / 32;
    Inputs in = {};
    in.q = q;
    in.q_token_stride = q_token_stride;
    in.q_head_stride = q_head_stride;
#if ROPE
    in.k = k;
    in.v = v;
    in.k_token_stride = k_token_stride;
    in.k_head_stride = k_head_stride;
    in.v_token_stride = v_token_stride;
    in.v_head_stride = v_head_stride;
    in.positions = positions;
    in.slots = slots;
    in.table = table;
    in.q_norm = q_norm;
    in.k_norm = k_norm;
    in.q_eps = q_eps;
    in.k_eps = k_eps;
    in.q_offset = q_offset;
    in.k_offset = k_offset;
#endif
    Output output = {out, out_token_stride, out_head_stride, sinks, partials, counters};
    Sequence *sequences = (Sequence *)(shared + SHARED_BYTES);
    Work work = {sequences, S, num_kv_heads, window};
    Ring ring = {shared_address(shared) + warp * RING * UNIT_BYTES, shared_address(shared + BARRIERS_AT) + warp * RING * 8, 0, 0};
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 == 0) {
        for (u32 i = 0; i < RING; i++) barrier_init(ring.barriers + i * 8);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
#endif
    wait_for_previous();
    lay_out(sequences, (u32 *)(shared + STATS_AT), step_rows, starts, seq_lens, S, window, query_len_end);

    u32 total = sequences[S].before * num_kv_heads;
    u32 share = (total + gridDim.x - 1) / gridDim.x;
    if (share < WARPS) share = WARPS;
    if (share > 8 * WARPS) share = (share + WARPS - 1) / WARPS * WARPS;
    u32 begin = blockIdx.x * share;
    if (begin >= total) return;
    u32 end = total - begin < share ? total : begin + share;

    u32 s = sequence_at(work, begin, 0);
    Fetch fetch = {};
    fetch.x = begin + warp;
    fetch.end = end;
    fetch.s = s;
    look_up(fetch, work, block_table, table_stride);
    auto refill = [&]() {
        if (fetch.x >= fetch.end) return;
        bool values = ring.issued & 1;
        copy_part(ring, cache, page_stride, fetch.page, fetch.head, fetch.tile, fetch.keys, values);
        if (values) {
            fetch.x += WARPS;
            look_up(fetch, work, block_table, table_stride);
        }
    };
    for (u32 i = 0; i < RING; i++) refill();
    let_next_start();

    float factor = SOFTCAP ? scale : scale * LOG2E;
    for (u32 x = begin; x < end;) {
        while (s + 1 < S && sequences[s + 1].before * num_kv_heads <= x) s++;
        Place place = place_of(work, x, s);
        u32 segment_end = end - x < place.tiles - place.tile ? end : x + place.tiles - place.tile;
        u32 y = x + (warp + WARPS - (x - begin) % WARPS) % WARPS;
        u32 kv_head = place.item % num_kv_heads, index = place.item / num_kv_heads;
        i32 keys = sequences[s].keys, query_len = query_len_of(work, s), first_token = sequences[s].start;
        u32 token = (u32)first_token + index;
        i32 last = keys - query_len + (i32)index;
        i32 first = window > 0 && last + 1 > (i32)window ? last + 1 - (i32)window : 0;
        bool any = y < segment_end;
        u32 query[NT][DT][2];
        Softmax softmax;
        clear(softmax);
        if (any) load_query(query, in, token, kv_head);
        for (; y < segment_end; y += WARPS) {
            i32 tile_key = (i32)((place.first_tile + place.tile + (y - x)) * TILE);
            i32 from = first - tile_key, to = last - tile_key;
            bool masked = from > 0 || to < TILE - 1;
            float scores[4][NT][4];
            u32 p[4][NT][2];
            u32 unit = take(ring);
#if ROPE
            bool patched = tile_key + TILE > keys - query_len;
            if (patched)
                patch_keys(in, cache, page_stride, shared + (unit - shared_address(shared)), kv_head, tile_key, keys - query_len, keys, first_token, token);
#endif
            multiply_keys(scores, query, unit);
            if (masked) weigh<true>(softmax, p, scores, factor, softcap, from, to);
            else weigh<false>(softmax, p, scores, factor, softcap, from, to);
            __syncwarp();
            refill();
            unit = take(ring);
#if ROPE
            if (patched)
                patch_values(in, cache, page_stride, shared + (unit - shared_address(shared)), kv_head, tile_key, keys - query_len, keys, first_token, token);
#endif
            if (masked) multiply_values<true>(softmax, p, unit, from, to);
            else multiply_values<false>(softmax, p, unit, from, to);
            __syncwarp();
            refill();
        }
        leave_sums(shared, softmax, any);
        __syncthreads();
        u32 item_begin = x - place.tile, item_end = item_begin + place.tiles;
        if (item_begin >= begin && item_end <= end) {
            for (u32 e = threadIdx.x; e < GROUP * HEAD_DIM / 2; e += THREADS) {
                u32 head = e / (HEAD_DIM / 2), dim = e % (HEAD_DIM / 2) * 2;
                float a, b, highest, sum;
                gather_sums(shared, head, dim, a, b, highest, sum);
                write_out(output, token, kv_head * GROUP + head, dim, a, b, highest, sum);
            }
        } else {
            join_partials(shared, output, token, kv_head, item_begin / share, (item_end - 1) / share);
        }
        __syncthreads();
        x = segment_end;
    }
}
