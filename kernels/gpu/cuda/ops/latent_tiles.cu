// `latent_attention` of many rows a sequence (prompts, and decode of many heads) on matrix units: tiles of 64
// (token, head) rows share each row of the cache. How the work is divided: latent_work.cuh. latent_join puts cut tiles
// together.
//
// Warp w has rows 16 · (w % 4) .. + 15, and of these with w / 4 one half of each stage's keys and one half of the
// latents' columns. The halves' maxima meet in shared memory, and so do their weights. On sm_90 four warps multiply
// together (wgmma, all operands in shared memory), elsewhere each on its own (mma_m16n8k16). The sums lie alike.
//
// Definitions: ACT (f16, bf16; the cache's type too), LATENT (a multiple of 64, at most 512), ROPE (of 16), BLOCK, KEYS
// (64, or 32 where shared memory is short). Grid: any number of blocks; 256 threads; dynamic shared memory:
// ⌈(LATENT + ROPE) / 64⌉ · 128 · (64 + 2 · KEYS) + 9216 bytes.
// Needs: cache, pages and rows of it, and heads of q, aligned to 16 bytes; heads of out to 4.
// check: -DACT=bf16 -DLATENT=512 -DROPE=64 -DBLOCK=64 -DKEYS=64
// check: -DACT=f16 -DLATENT=512 -DROPE=64 -DBLOCK=16 -DKEYS=32
// check: -DACT=f16 -DLATENT=64 -DROPE=16 -DBLOCK=16 -DKEYS=64
#define ROWS 64
#include "hopper.cuh"
#include "latent_work.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && LATENT == 512 && KEYS == 64
#define TOGETHER 1
#else
#define TOGETHER 0
#endif
#define QUERY_PANEL_BYTES (ROWS * 128)
#define QUERY_BYTES (PANELS * QUERY_PANEL_BYTES)
// Tiles of 8 keys of a warp.
#define KEY_TILES (KEYS / 16)

struct Shared {
    u8 weights[ROWS * 128];
    float marks[2][ROWS];
    Finding found;
};

// Thread 8r + c copies unit c of all panels of rows r and r + 32.
__device__ __forceinline__ void ask_queries(const Params &p, const Piece &piece, u32 to) {
    u32 unit = threadIdx.x % 8;
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        u32 row = threadIdx.x / 8 + 32 * i, token, head;
        place_of(p, piece, row, token, head);
        token += piece.q.first_token;
        const ACT *latent = p.q_latent + (u64)token * p.q_latent_token_stride + (u64)head * p.q_latent_head_stride,
                  *rope = p.q_rope + (u64)token * p.q_rope_token_stride + (u64)head * p.q_rope_head_stride;
        u32 at = to + row * 128 + ((unit ^ (row & 7)) << 4);
#pragma unroll
        for (u32 panel = 0; panel < PANELS; panel++)
            if (panel < WIDTH / 64 || (int)unit < WIDTH % 64 / 8)
                copy_async(at + panel * QUERY_PANEL_BYTES,
                           (panel < LATENT / 64 ? latent + 64 * panel : rope + 64 * (panel - LATENT / 64)) + 8 * unit,
                           true);
    }
}

// Scores of 16 rows and half of the stage's keys.
__device__ __forceinline__ void multiply_keys(float (&s)[4 * KEY_TILES], u32 queries, u32 keys, u32 warp, u32 lane) {
#if TOGETHER
    u64 a = wgmma_swizzled(queries, 16, 1024), b = wgmma_swizzled(keys + warp / 4 * (KEYS / 2) * 128, 16, 1024);
    pin(s);
    wgmma_fence();
#pragma unroll
    for (u32 k = 0; k < WIDTH / 16; k++) {
        u32 in_panel = k % 4 * 32;
        WgmmaShared<ACT, 32, 0>::run(s, a + ((k / 4 * QUERY_PANEL_BYTES + in_panel) >> 4),
                                     b + ((k / 4 * PANEL_BYTES + in_panel) >> 4), k > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    pin(s);
#else
    u32 r = lane & 7;
#pragma unroll
    for (u32 i = 0; i < 4 * KEY_TILES; i++) s[i] = 0.f;
    queries += (warp % 4 * 16 + (lane & 15)) * 128;
    keys += (warp / 4 * (KEYS / 2) + (lane >> 4) * 8 + r) * 128;
#pragma unroll 4
    for (u32 k = 0; k < WIDTH / 16; k++) {
        u32 a[4], unit = k % 4 * 2;
        load_pieces(a, queries + k / 4 * QUERY_PANEL_BYTES + (((unit + (lane >> 4)) ^ r) << 4));
#pragma unroll
        for (u32 i = 0; i < KEY_TILES; i += 2) {
            u32 b[4];
            load_pieces(b, keys + k / 4 * PANEL_BYTES + i * 1024 + (((unit + (lane >> 3 & 1)) ^ r) << 4));
            u32 left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
            mma_m16n8k16<ACT>(*reinterpret_cast<float(*)[4]>(&s[4 * i]), a, left);
            mma_m16n8k16<ACT>(*reinterpret_cast<float(*)[4]>(&s[4 * i + 4]), a, right);
        }
    }
#endif
}

// sums += weights · latents over 16 rows and half of the columns.
__device__ __forceinline__ void multiply_values(float (&sums)[LATENT / 4], u32 weights, u32 values, u32 warp,
                                                u32 lane) {
#if TOGETHER
    u64 a = wgmma_swizzled(weights, 16, 1024),
        b = wgmma_swizzled(values + warp / 4 * (LATENT / 128) * PANEL_BYTES, PANEL_BYTES, 1024);
    pin(sums);
    wgmma_fence();
#pragma unroll
    for (u32 k = 0; k < KEYS / 16; k++)
        WgmmaShared<ACT, LATENT / 2, 1>::run(sums, a + (k * 32 >> 4), b + (k * 2048 >> 4), 1);
    wgmma_commit();
    wgmma_wait<0>();
    pin(sums);
#else
    u32 r = lane & 7, first = warp / 4 * (LATENT / 16);
    weights += (warp % 4 * 16 + (lane & 15)) * 128;
    values += ((lane >> 3 & 1) * 8 + r) * 128;
#pragma unroll
    for (u32 k = 0; k < KEYS / 16; k++) {
        u32 a[4];
        load_pieces(a, weights + (((2 * k + (lane >> 4)) ^ r) << 4));
#pragma unroll
        for (u32 i = 0; i < LATENT / 16; i += 2) {
            u32 b[4], unit = first + i;
            load_pieces_transposed(b, values + unit / 8 * PANEL_BYTES + k * 2048 +
                                          (((unit % 8 + (lane >> 4)) ^ r) << 4));
            u32 left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
            mma_m16n8k16<ACT>(*reinterpret_cast<float(*)[4]>(&sums[4 * i]), a, left);
            mma_m16n8k16<ACT>(*reinterpret_cast<float(*)[4]>(&sums[4 * i + 4]), a, right);
        }
    }
#endif
}

// What was copied or stored by threads is there for products of several warps, once all threads have passed a barrier.
__device__ __forceinline__ void before_products() {
#if TOGETHER
    stores_before_products();
#endif
}

// `slot`: 0 or 1, that of the stage that is multiplied next.
__device__ __forceinline__ void attend(const Params &p, const Piece &piece, u32 base, u32 &slot, Ahead &ahead,
                                       Shared &shared) {
    u32 thread = threadIdx.x, lane = thread & 31, warp = thread / 32, g = lane >> 2, t = lane & 3, half = warp / 4;
    u32 ring = base + QUERY_BYTES, weights = address_in_shared(shared.weights);
    ask_queries(p, piece, base);
    copies_commit();
    float sums[LATENT / 4];
#pragma unroll
    for (u32 i = 0; i < LATENT / 4; i++) sums[i] = 0.f;
    // The last key that this thread's rows see; all rows see the keys before `clear`.
    u32 last[2], token, head, row = warp % 4 * 16 + g;
#pragma unroll
    for (u32 e = 0; e < 2; e++) {
        place_of(p, piece, row + 8 * e, token, head);
        last[e] = piece.q.prefix + token;
    }
    place_of(p, piece, 0, token, head);
    u32 clear = piece.q.prefix + token + 1;
    float highest[2] = {-INFINITY_F, -INFINITY_F}, total[2] = {0.f, 0.f}, scale = p.scale * LOG2E;
#pragma unroll 1
    for (u32 stage = piece.first; stage < piece.end; stage++) {
        u32 here = ring + slot * STAGE_BYTES;
        slot ^= 1;
        copies_wait<0>();
        before_products();
        __syncthreads();
        // All warps are done with the stage before.
        ask_keys(p, ahead, ring + slot * STAGE_BYTES);
        copies_commit();
        float s[4 * KEY_TILES];
        multiply_keys(s, base, here, warp, lane);
        u32 first_key = stage * KEYS + half * (KEYS / 2) + 2 * t;
#pragma unroll
        for (u32 i = 0; i < 4 * KEY_TILES; i++) s[i] *= scale;
        if ((stage + 1) * KEYS > clear) {
#pragma unroll
            for (u32 i = 0; i < 4 * KEY_TILES; i++)
                if (first_key + i / 4 * 8 + i % 2 > last[i / 2 % 2]) s[i] = -INFINITY_F;
        }
        float above[2] = {highest[0], highest[1]};
#pragma unroll
        for (u32 i = 0; i < 4 * KEY_TILES; i++) above[i / 2 % 2] = fmaxf(above[i / 2 % 2], s[i]);
#pragma unroll
        for (u32 e = 0; e < 2; e++) {
            above[e] = fmaxf(above[e], __shfl_xor_sync(0xffffffffu, above[e], 1));
            above[e] = fmaxf(above[e], __shfl_xor_sync(0xffffffffu, above[e], 2));
            if (t == 0) shared.marks[half][row + 8 * e] = above[e];
        }
        // The two warps that share rows.
        barrier_of(1 + warp % 4, 64);
        float offset[2], factor[2];
#pragma unroll
        for (u32 e = 0; e < 2; e++) {
            above[e] = fmaxf(above[e], shared.marks[half ^ 1][row + 8 * e]);
            // A row that has seen no key yet has maximum −inf: its weights must come out 0, not NaN.
            offset[e] = above[e] == -INFINITY_F ? 0.f : above[e];
            factor[e] = exp2_approx(highest[e] - offset[e]);
            total[e] *= factor[e];
            highest[e] = above[e];
        }
#pragma unroll
        for (u32 i = 0; i < 2 * KEY_TILES; i++) {
            u32 e = i % 2;
            float x = exp2_approx(s[2 * i] - offset[e]), y = exp2_approx(s[2 * i + 1] - offset[e]);
            total[e] += x + y;
            store_shared(weights + (row + 8 * e) * 128 + (((half * KEY_TILES + i / 2) ^ g) << 4) + 4 * t,
                         pack2<ACT>(x, y));
        }
        if (__any_sync(0xffffffffu, factor[0] != 1.f || factor[1] != 1.f)) {
#pragma unroll
            for (u32 i = 0; i < LATENT / 4; i++) sums[i] *= factor[i / 2 % 2];
        }
        before_products();
        __syncthreads();
        multiply_values(sums, weights, here, warp, lane);
    }
#pragma unroll
    for (u32 e = 0; e < 2; e++) {
        total[e] += __shfl_xor_sync(0xffffffffu, total[e], 1);
        total[e] += __shfl_xor_sync(0xffffffffu, total[e], 2);
        if (t == 0) shared.marks[half][row + 8 * e] = total[e];
    }
    __syncthreads(); // all warps are done with this tile's queries, too
#pragma unroll
    for (u32 e = 0; e < 2; e++) {
        total[e] += shared.marks[half ^ 1][row + 8 * e];
        if (half == 0 && t == 0) put_mark(p, piece, row + 8 * e, highest[e], total[e]);
        float factor = piece.slot < 0 ? 1.f / total[e] : 1.f;
#pragma unroll
        for (u32 i = 0; i < LATENT / 16; i++)
            put(p, piece, row + 8 * e, half * (LATENT / 2) + 8 * i + 2 * t, sums[4 * i + 2 * e] * factor,
                sums[4 * i + 2 * e + 1] * factor);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    latent_tiles(const ACT *q_latent, u32 q_latent_token_stride, u32 q_latent_head_stride, const ACT *q_rope,
                 u32 q_rope_token_stride, u32 q_rope_head_stride, const u8 *cache, u64 page_stride,
                 const i32 *block_table, u32 table_stride, const i32 *step_rows, const i32 *starts, const i32 *seq_lens,
                 ACT *out, u32 out_token_stride, u32 out_head_stride, float *pieces, float *marks, u32 *cuts,
                 u32 num_cuts, u32 by_tile, u32 num_seqs, u32 num_heads, u32 least_stages, float scale) {
    extern __shared__ __align__(1024) u8 memory[];
    Params p = {q_latent,     q_latent_token_stride, q_latent_head_stride,
                q_rope,       q_rope_token_stride,   q_rope_head_stride,
                cache,        page_stride,           block_table,
                table_stride, step_rows,             starts,
                seq_lens,     out,                   out_token_stride,
                out_head_stride, pieces,             marks,
                cuts,         num_cuts,              by_tile,
                num_seqs,     num_heads,             least_stages,
                scale};
    Shared &shared = *(Shared *)(memory + QUERY_BYTES + 2 * STAGE_BYTES);
    Work work;
    wait_for_previous();
    let_next_start();
    if (!find_work(p, shared.found, work)) return;
    u32 base = address_in_shared(memory), slot = 0;
    Ahead ahead = ahead_of(p, work);
    ask_keys(p, ahead, base + QUERY_BYTES);
    copies_commit();
    each_piece(p, work, [&](const Piece &piece) { attend(p, piece, base, slot, ahead, shared); });
    copies_wait<0>();
}
