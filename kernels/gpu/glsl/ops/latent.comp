#version 460
#extension GL_GOOGLE_include_directive : enable
// `latent_write` and `latent_attention`: a cache with a row a token, the latent and behind it the key that was turned.
//
// Attention: a workgroup a token and HEADS heads, which share each row of the cache: eight rows at a time come to
// shared memory as f32, every (head, key) product is summed by four threads, and each thread sums some dims of the
// latents for all heads. Online softmax in f32.
//
// Definitions: ACT (f32, f16, bf16: queries, latents, keys and out), KV (those or e4m3: the cache), LATENT and ROPE
// (values of a latent and of a key), BLOCK (tokens of a KV block).
// latent_write: grid T, 128 threads. latent_attention: grid T · ⌈num_heads / 4⌉, 128 threads. Tokens that belong to
// no sequence write nothing.
// revision: 1
// check: latent_write latent_attention -DACT=f32 -DKV=f32 -DLATENT=64 -DROPE=16 -DBLOCK=8
// check: latent_write latent_attention -DACT=f16 -DKV=e4m3 -DLATENT=80 -DROPE=24 -DBLOCK=16
// check: latent_write latent_attention -DACT=bf16 -DKV=bf16 -DLATENT=512 -DROPE=64 -DBLOCK=64
#include "functions.glsl"
#include "common.glsl"

#define WIDTH (LATENT + ROPE)

#if defined(ENTRY_latent_write)

PARAMETERS(u64 latent; u32 latent_stride; u64 key; u32 key_stride; u64 slots; u64 cache; u64 page_stride;)

void main() {
    u32 t = gl_WorkGroupID.x;
    i32 slot = Ints(p.slots).at[t];
    if (slot < 0) return;
    u64 row = p.cache + u64(u32(slot) / BLOCK) * p.page_stride + u64(u32(slot) % BLOCK * WIDTH) * SIZE(KV),
        latent = p.latent + u64(t) * p.latent_stride * SIZE(ACT), key = p.key + u64(t) * p.key_stride * SIZE(ACT);
    for (u32 i = gl_LocalInvocationIndex; i < LATENT; i += 128) STORE(KV, row, i, LOAD(ACT, latent, i));
    for (u32 i = gl_LocalInvocationIndex; i < ROPE; i += 128) STORE(KV, row, LATENT + i, LOAD(ACT, key, i));
}

#else

#define HEADS 4
#define KEYS 8
// Dims of a thread: its number, 128 later, ...
#define DIMS ((LATENT + 127) / 128)

shared float tile[KEYS * WIDTH];
shared float queries[HEADS * WIDTH];
shared float parts[128];
shared float scores[HEADS * KEYS];
shared float weights[HEADS * KEYS];

PARAMETERS(u64 q_latent; u32 q_latent_token_stride; u32 q_latent_head_stride; u64 q_rope; u32 q_rope_token_stride;
           u32 q_rope_head_stride; u64 cache; u64 page_stride; u64 block_table; u32 table_stride; u64 step_rows;
           u64 starts; u64 seq_lens; u64 to; u32 to_token_stride; u32 to_head_stride; u32 S; u32 num_heads;
           float scale;)

// The sequence that token t belongs to: the last s with start[s] <= t. Empty sequences share their start with the next.
u32 sequence_of(i32 t) {
    u32 low = 0, high = p.S - 1;
    while (low < high) {
        u32 middle = (low + high + 1) / 2;
        if (Ints(p.starts).at[middle] <= t) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

void main() {
    u32 id = gl_LocalInvocationIndex, groups = (p.num_heads + HEADS - 1) / HEADS;
    u32 t = gl_WorkGroupID.x / groups, first_head = gl_WorkGroupID.x % groups * HEADS;
    // Position of the token, which sees the keys 0 ..= last; without a sequence none.
    i32 row = -1, last = -1;
    if (i32(t) < Ints(p.starts).at[p.S] && i32(t) >= Ints(p.starts).at[0]) {
        u32 s = sequence_of(i32(t));
        row = Ints(p.step_rows).at[s];
        if (row >= 0) last = Ints(p.seq_lens).at[s] - Ints(p.starts).at[s + 1] + i32(t);
    }
    if (last < 0) return; // the whole workgroup
    Words pages = Words(p.block_table + u64(row) * p.table_stride * 4);
    for (u32 i = id; i < HEADS * WIDTH; i += 128) {
        // A head past the end repeats the last one, and is not written.
        u32 d = i % WIDTH, head = min(first_head + i / WIDTH, p.num_heads - 1);
        if (d < LATENT) {
            u64 from = p.q_latent + (u64(t) * p.q_latent_token_stride + u64(head) * p.q_latent_head_stride) * SIZE(ACT);
            queries[i] = LOAD(ACT, from, d);
        } else {
            u64 from = p.q_rope + (u64(t) * p.q_rope_token_stride + u64(head) * p.q_rope_head_stride) * SIZE(ACT);
            queries[i] = LOAD(ACT, from, d - LATENT);
        }
    }
    float highest[HEADS], total[HEADS], sum[DIMS * HEADS];
    UNROLLED for (u32 h = 0; h < HEADS; h++) {
        highest[h] = -INFINITY;
        total[h] = 0.0;
    }
    UNROLLED for (u32 i = 0; i < DIMS * HEADS; i++) sum[i] = 0.0;
    for (i32 first = 0; first <= last; first += KEYS) {
        barrier();
        for (u32 i = id; i < KEYS * WIDTH; i += 128) {
            i32 position = first + i32(i / WIDTH);
            float value = 0.0;
            if (position <= last) {
                u64 page = p.cache + u64(pages.at[u32(position) / BLOCK]) * p.page_stride;
                value = LOAD(KV, page, u32(position) % BLOCK * WIDTH + i % WIDTH);
            }
            tile[i] = value;
        }
        barrier();
        float part = 0.0;
        for (u32 d = id % 4; d < WIDTH; d += 4)
            part = fma(queries[id / 4 / KEYS * WIDTH + d], tile[id / 4 % KEYS * WIDTH + d], part);
        parts[id] = part;
        barrier();
        if (id < HEADS * KEYS) {
            float score = (parts[4 * id] + parts[4 * id + 1] + parts[4 * id + 2] + parts[4 * id + 3]) * p.scale;
            scores[id] = first + i32(id % KEYS) <= last ? score : -INFINITY;
        }
        barrier();
        float kept[HEADS];
        UNROLLED for (u32 h = 0; h < HEADS; h++) {
            float above = highest[h];
            for (u32 k = 0; k < KEYS; k++) above = max(above, scores[h * KEYS + k]);
            kept[h] = highest[h] == above ? 1.0 : exp_of(highest[h] - above);
            highest[h] = above;
            if (id / KEYS == h) weights[id] = exp_of(scores[id] - above);
        }
        barrier();
        UNROLLED for (u32 h = 0; h < HEADS; h++) {
            total[h] *= kept[h];
            for (u32 k = 0; k < KEYS; k++) total[h] += weights[h * KEYS + k];
        }
        UNROLLED for (u32 e = 0; e < DIMS; e++) {
            u32 d = id + 128 * e;
            if (d < LATENT) {
                UNROLLED for (u32 h = 0; h < HEADS; h++) {
                    float of_head = sum[e * HEADS + h] * kept[h];
                    for (u32 k = 0; k < KEYS; k++) of_head = fma(weights[h * KEYS + k], tile[k * WIDTH + d], of_head);
                    sum[e * HEADS + h] = of_head;
                }
            }
        }
    }
    UNROLLED for (u32 e = 0; e < DIMS; e++) {
        u32 d = id + 128 * e;
        UNROLLED for (u32 h = 0; h < HEADS; h++) {
            u32 head = first_head + h;
            u64 to = p.to + (u64(t) * p.to_token_stride + u64(head) * p.to_head_stride) * SIZE(ACT);
            if (d < LATENT && head < p.num_heads) STORE(ACT, to, d, sum[e * HEADS + h] / total[h]);
        }
    }
}
#endif
