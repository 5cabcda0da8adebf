// `latent_write` and `latent_attention`: a cache with a row a token, the latent and behind it the key that was turned.
//
// Attention: a group a token and HEADS heads, which share each row of the cache: eight rows at a time come to local
// memory as f32, every (head, key) product is summed by four work-items, and each work-item sums some dims of the
// latents for all heads. Online softmax in f32.
//
// Definitions: ACT (f32, f16, bf16: queries, latents, keys and out), KV (those or e4m3: the cache), LATENT and ROPE
// (values of a latent and of a key), BLOCK (tokens of a KV block).
// latent_write: grid T groups of 128 threads. latent_attention: grid T * ceil(num_heads / 4) groups of 128 threads.
// Tokens that belong to no sequence write nothing.
// revision: 1
// check: -DACT=f32 -DKV=f32 -DLATENT=64 -DROPE=16 -DBLOCK=8
// check: -DACT=f16 -DKV=e4m3 -DLATENT=80 -DROPE=24 -DBLOCK=16
// check: -DACT=bf16 -DKV=bf16 -DLATENT=512 -DROPE=64 -DBLOCK=64
#include "common.h"

#define WIDTH (LATENT + ROPE)
#define HEADS 4
#define KEYS 8
#define THREADS 128
// Dims of a work-item: its number, 128 later, ...
#define DIMS ((LATENT + THREADS - 1) / THREADS)

KERNEL void latent_write(const __global ACT *latent, u32 latent_stride, const __global ACT *key, u32 key_stride,
                         const __global i32 *slots, __global u8 *cache, u64 page_stride) {
    u32 t = get_group_id(0);
    i32 slot = slots[t];
    if (slot < 0) return;
    __global KV *row = (__global KV *)(cache + (u64)((u32)slot / BLOCK) * page_stride) + (u32)slot % BLOCK * WIDTH;
    for (u32 i = get_local_id(0); i < WIDTH; i += get_local_size(0)) {
        float value = i < LATENT ? LOAD(ACT, latent, (u64)t * latent_stride + i)
                                 : LOAD(ACT, key, (u64)t * key_stride + (i - LATENT));
        STORE(KV, value, row, i);
    }
}

// The sequence that token t belongs to: the last s with start[s] <= t. Empty sequences share their start with the next.
INLINE u32 sequence_of(const __global i32 *starts, u32 S, i32 t) {
    u32 low = 0, high = S - 1;
    while (low < high) {
        u32 middle = (low + high + 1) / 2;
        if (starts[middle] <= t) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

KERNEL void latent_attention(const __global ACT *q_latent, u32 q_latent_token_stride, u32 q_latent_head_stride,
                             const __global ACT *q_rope, u32 q_rope_token_stride, u32 q_rope_head_stride,
                             const __global u8 *cache, u64 page_stride, const __global i32 *block_table,
                             u32 table_stride, const __global i32 *step_rows, const __global i32 *starts,
                             const __global i32 *seq_lens, __global ACT *out, u32 out_token_stride,
                             u32 out_head_stride, u32 S, u32 num_heads, float scale) {
    __local float tile[KEYS * WIDTH], queries[HEADS * WIDTH];
    __local float parts[THREADS], scores[HEADS * KEYS], weights[HEADS * KEYS];
    u32 id = get_local_id(0), groups = (num_heads + HEADS - 1) / HEADS;
    u32 t = get_group_id(0) / groups, first_head = get_group_id(0) % groups * HEADS;
    bool live = (i32)t < starts[S] && (i32)t >= starts[0];
    u32 s = live ? sequence_of(starts, S, (i32)t) : 0;
    i32 row = live ? step_rows[s] : -1;
    // Position of the token, which sees the keys 0 ..= last; without a sequence none.
    i32 last = row >= 0 ? seq_lens[s] - starts[s + 1] + (i32)t : -1;
    const __global i32 *pages = block_table + (u64)max(row, 0) * table_stride;
    for (u32 i = id; last >= 0 && i < HEADS * WIDTH; i += THREADS) {
        // A head past the end repeats the last one, and is not written.
        u32 d = i % WIDTH, head = min(first_head + i / WIDTH, num_heads - 1);
        queries[i] = d < LATENT
            ? LOAD(ACT, q_latent, (u64)t * q_latent_token_stride + (u64)head * q_latent_head_stride + d)
            : LOAD(ACT, q_rope, (u64)t * q_rope_token_stride + (u64)head * q_rope_head_stride + (d - LATENT));
    }
    float highest[HEADS], total[HEADS], sum[DIMS * HEADS];
    for (u32 h = 0; h < HEADS; h++) {
        highest[h] = -INFINITY;
        total[h] = 0.f;
    }
    for (u32 i = 0; i < DIMS * HEADS; i++) sum[i] = 0.f;
    for (i32 first = 0; first <= last; first += KEYS) {
        barrier(CLK_LOCAL_MEM_FENCE);
        for (u32 i = id; i < KEYS * WIDTH; i += THREADS) {
            i32 position = first + (i32)(i / WIDTH);
            float value = 0.f;
            if (position <= last) {
                const __global u8 *page = cache + (u64)pages[position / BLOCK] * page_stride;
                value = LOAD(KV, (const __global KV *)page, (u32)position % BLOCK * WIDTH + i % WIDTH);
            }
            tile[i] = value;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        float part = 0.f;
        for (u32 d = id % 4; d < WIDTH; d += 4)
            part = fma(queries[id / 4 / KEYS * WIDTH + d], tile[id / 4 % KEYS * WIDTH + d], part);
        parts[id] = part;
        barrier(CLK_LOCAL_MEM_FENCE);
        if (id < HEADS * KEYS) {
            float score = (parts[4 * id] + parts[4 * id + 1] + parts[4 * id + 2] + parts[4 * id + 3]) * scale;
            scores[id] = first + (i32)(id % KEYS) <= last ? score : -INFINITY;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        float kept[HEADS];
        for (u32 h = 0; h < HEADS; h++) {
            float above = highest[h];
            for (u32 k = 0; k < KEYS; k++) above = fmax(above, scores[h * KEYS + k]);
            kept[h] = highest[h] == above ? 1.f : exp(highest[h] - above);
            highest[h] = above;
            if (id / KEYS == h) weights[id] = exp(scores[id] - above);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (u32 h = 0; h < HEADS; h++) {
            total[h] *= kept[h];
            for (u32 k = 0; k < KEYS; k++) total[h] += weights[h * KEYS + k];
        }
        for (u32 e = 0, d = id; d < LATENT; e++, d += THREADS) {
            for (u32 h = 0; h < HEADS; h++) {
                float of_head = sum[e * HEADS + h] * kept[h];
                for (u32 k = 0; k < KEYS; k++) of_head = fma(weights[h * KEYS + k], tile[k * WIDTH + d], of_head);
                sum[e * HEADS + h] = of_head;
            }
        }
    }
    if (last < 0) return;
    // The bound is the loop's: pocl 3.1 stored past a guard inside of it.
    for (u32 e = 0, d = id; d < LATENT; e++, d += THREADS) {
        for (u32 h = 0; h < HEADS; h++) {
            u32 head = first_head + h;
            if (head < num_heads)
                STORE(ACT, sum[e * HEADS + h] / total[h], out,
                      (u64)t * out_token_stride + (u64)head * out_head_stride + d);
        }
    }
}
