// `latent_attention` of few rows a sequence (decode) with mma_m16n8k16: 16 (token, head) rows share each row of the
// cache, which is read once. How the work is divided: latent_work.cuh. latent_join puts cut tiles together.
//
// Scores: each warp takes half of a stage's keys and a quarter of each panel of 64 values, whose part of the queries
// stays in registers; the four quarters meet in shared memory, where 16 threads a row make weights of them. Results:
// each warp takes panels of the latents.
//
// Definitions: ACT (f16, bf16; the cache's type too), LATENT (a multiple of 64, at most 512), ROPE (of 16), BLOCK,
// STAGES (2 and more: ring of stages of 32 keys), MIN_BLOCKS (of a multiprocessor). Grid: any number of blocks; 256
// threads; dynamic shared memory: STAGES · 4096 · ⌈(LATENT + ROPE) / 64⌉ + 12800 bytes.
// Needs: cache, pages and rows of it aligned to 16 bytes; heads of q and out to 4.
// check: -DACT=bf16 -DLATENT=512 -DROPE=64 -DBLOCK=64 -DSTAGES=5 -DMIN_BLOCKS=1
// check: -DACT=f16 -DLATENT=512 -DROPE=64 -DBLOCK=16 -DSTAGES=2 -DMIN_BLOCKS=2
// check: -DACT=f16 -DLATENT=64 -DROPE=16 -DBLOCK=16 -DSTAGES=4 -DMIN_BLOCKS=1
#define ROWS 16
#define KEYS 32
#include "latent_work.cuh"

// Floats between rows of scores: four rows of eight lie in different banks.
#define PITCH (KEYS + 8)
#define VALUE_PANELS (LATENT / 64)
// Panels of latents that a warp sums.
#define OWN ((VALUE_PANELS + 7) / 8)

struct Shared {
    float scores[4][ROWS][PITCH];
    u8 weights[ROWS * 128];
    float factors[ROWS];
    Finding found;
};

// The ring of stages: the slot of the stage that is multiplied next, and that of the one before it.
struct Ring {
    u32 base, slot, next;
};

__device__ __forceinline__ void attend(const Params &p, const Piece &piece, Ring &ring, Ahead &ahead, Shared &shared) {
    u32 thread = threadIdx.x, lane = thread & 31, warp = thread / 32, g = lane >> 2, t = lane & 3;
    // The warp's part of the queries: of each panel values 16 · part .. 16 · part + 15.
    u32 half = warp & 1, part = warp >> 1, queries[PANELS][4];
#pragma unroll
    for (u32 e = 0; e < 2; e++) {
        u32 token, head;
        place_of(p, piece, g + 8 * e, token, head);
        token += piece.q.first_token;
        const ACT *latent = p.q_latent + (u64)token * p.q_latent_token_stride + (u64)head * p.q_latent_head_stride,
                  *rope = p.q_rope + (u64)token * p.q_rope_token_stride + (u64)head * p.q_rope_head_stride;
#pragma unroll
        for (u32 j = 0; j < PANELS; j++) {
            const ACT *from = (j < VALUE_PANELS ? latent + 64 * j : rope + 64 * (j - VALUE_PANELS)) + 16 * part + 2 * t;
            bool inside = 4 * j + part < WIDTH / 16;
            queries[j][e] = inside ? *(const u32 *)from : 0;
            queries[j][2 + e] = inside ? *(const u32 *)(from + 8) : 0;
        }
    }
    // Where lanes read keys (pieces: low and high depths of eight keys, then of the next eight) and latents (low and
    // high keys of eight columns, then of the next eight).
    u32 r = lane & 7, keys_at = (16 * half + (lane >> 4) * 8 + r) * 128 + (((2 * part + (lane >> 3 & 1)) ^ r) << 4),
        values_at = ((lane >> 3 & 1) * 8 + r) * 128, weights = address_in_shared(shared.weights);
    float sums[OWN][8][4];
#pragma unroll
    for (u32 v = 0; v < OWN; v++)
#pragma unroll
        for (u32 i = 0; i < 8; i++)
#pragma unroll
            for (u32 e = 0; e < 4; e++) sums[v][i][e] = 0.f;
    // This thread's row of weights, and the last key that it sees.
    u32 row = thread / 16, column = thread % 16 * 2, token, head;
    place_of(p, piece, row, token, head);
    u32 last = piece.q.prefix + token;
    float highest = -INFINITY_F, total = 0.f, scale = p.scale * LOG2E;
#pragma unroll 1
    for (u32 stage = piece.first; stage < piece.end; stage++) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        // All warps are done with the stage that was in the next slot.
        ask_keys(p, ahead, ring.base + ring.next * STAGE_BYTES);
        copies_commit();
        u32 here = ring.base + ring.slot * STAGE_BYTES;
        float s[2][4] = {};
#pragma unroll
        for (u32 j = 0; j < PANELS; j++) {
            if (j >= WIDTH / 64 && 4 * j + part >= WIDTH / 16) continue;
            u32 b[4];
            load_pieces(b, here + j * PANEL_BYTES + keys_at);
            u32 left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
            mma_m16n8k16<ACT>(s[0], queries[j], left);
            mma_m16n8k16<ACT>(s[1], queries[j], right);
        }
#pragma unroll
        for (u32 i = 0; i < 2; i++)
#pragma unroll
            for (u32 e = 0; e < 2; e++)
                *(float2 *)&shared.scores[part][g + 8 * e][16 * half + 8 * i + 2 * t] =
                    make_float2(s[i][2 * e], s[i][2 * e + 1]);
        __syncthreads();
        float x[2] = {0.f, 0.f};
#pragma unroll
        for (u32 q = 0; q < 4; q++) {
            float2 two = *(const float2 *)&shared.scores[q][row][column];
            x[0] += two.x;
            x[1] += two.y;
        }
#pragma unroll
        for (u32 e = 0; e < 2; e++) x[e] = stage * KEYS + column + e <= last ? x[e] * scale : -INFINITY_F;
        float above = fmaxf(highest, fmaxf(x[0], x[1]));
#pragma unroll
        for (u32 lanes = 1; lanes < 16; lanes *= 2) above = fmaxf(above, __shfl_xor_sync(0xffffffffu, above, lanes));
        // A row that has seen no key yet has maximum −inf: its weights must come out 0, not NaN.
        float offset = above == -INFINITY_F ? 0.f : above, factor = exp2_approx(highest - offset);
        highest = above;
        x[0] = exp2_approx(x[0] - offset);
        x[1] = exp2_approx(x[1] - offset);
        total = total * factor + (x[0] + x[1]);
        store_shared(weights + row * 128 + ((column / 8 ^ (row & 7)) << 4) + column % 8 * 2, pack2<ACT>(x[0], x[1]));
        if (thread % 16 == 0) shared.factors[row] = factor;
        __syncthreads();
        float factors[2] = {shared.factors[g], shared.factors[g + 8]};
#pragma unroll
        for (u32 v = 0; v < OWN; v++)
#pragma unroll
            for (u32 i = 0; i < 8; i++)
#pragma unroll
                for (u32 e = 0; e < 4; e++) sums[v][i][e] *= factors[e / 2];
#pragma unroll
        for (u32 k = 0; k < KEYS / 16; k++) {
            u32 a[4];
            load_pieces(a, weights + (lane & 15) * 128 + (((2 * k + (lane >> 4)) ^ r) << 4));
#pragma unroll
            for (u32 v = 0; v < OWN; v++) {
                if (VALUE_PANELS % 8 && warp + 8 * v >= VALUE_PANELS) continue;
                u32 from = here + (warp + 8 * v) * PANEL_BYTES + k * 2048 + values_at;
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    u32 b[4];
                    load_pieces_transposed(b, from + (((2 * i + (lane >> 4)) ^ r) << 4));
                    u32 left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
                    mma_m16n8k16<ACT>(sums[v][2 * i], a, left);
                    mma_m16n8k16<ACT>(sums[v][2 * i + 1], a, right);
                }
            }
        }
        ring.next = ring.slot;
        ring.slot = ring.slot + 1 == STAGES ? 0 : ring.slot + 1;
    }
#pragma unroll
    for (u32 lanes = 1; lanes < 16; lanes *= 2) total += __shfl_xor_sync(0xffffffffu, total, lanes);
    if (thread % 16 == 0) put_mark(p, piece, row, highest, total);
    __syncthreads(); // all warps have read the factors
    if (thread % 16 == 0) shared.factors[row] = piece.slot < 0 ? 1.f / total : 1.f;
    __syncthreads();
    float factors[2] = {shared.factors[g], shared.factors[g + 8]};
#pragma unroll
    for (u32 v = 0; v < OWN; v++) {
        if (VALUE_PANELS % 8 && warp + 8 * v >= VALUE_PANELS) continue;
#pragma unroll
        for (u32 i = 0; i < 8; i++)
#pragma unroll
            for (u32 e = 0; e < 2; e++)
                put(p, piece, g + 8 * e, 64 * (warp + 8 * v) + 8 * i + 2 * t, sums[v][i][2 * e] * factors[e],
                    sums[v][i][2 * e + 1] * factors[e]);
    }
    __syncthreads(); // the factors may change again
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    latent_decode(const ACT *q_latent, u32 q_latent_token_stride, u32 q_latent_head_stride, const ACT *q_rope,
                  u32 q_rope_token_stride, u32 q_rope_head_stride, const u8 *cache, u64 page_stride,
                  const i32 *block_table, u32 table_stride, const i32 *step_rows, const i32 *starts,
                  const i32 *seq_lens, ACT *out, u32 out_token_stride, u32 out_head_stride, float *pieces, float *marks,
                  u32 *cuts, u32 num_cuts, u32 by_tile, u32 num_seqs, u32 num_heads, u32 least_stages, float scale) {
    extern __shared__ __align__(1024) u8 memory[];
    Params p = {q_latent,    q_latent_token_stride, q_latent_head_stride,
                q_rope,      q_rope_token_stride,   q_rope_head_stride,
                cache,       page_stride,           block_table,
                table_stride, step_rows,            starts,
                seq_lens,    out,                   out_token_stride,
                out_head_stride, pieces,            marks,
                cuts,        num_cuts,              by_tile,
                num_seqs,    num_heads,             least_stages,
                scale};
    Shared &shared = *(Shared *)(memory + STAGES * STAGE_BYTES);
    Work work;
    wait_for_previous();
    let_next_start();
    if (!find_work(p, shared.found, work)) return;
    Ring ring = {address_in_shared(memory), 0, STAGES - 1};
    Ahead ahead = ahead_of(p, work);
#pragma unroll 1
    for (u32 s = 0; s < STAGES - 1; s++) {
        ask_keys(p, ahead, ring.base + s * STAGE_BYTES);
        copies_commit();
    }
    each_piece(p, work, [&](const Piece &piece) { attend(p, piece, ring, ahead, shared); });
    copies_wait<0>();
}
