// `latent_write` and `latent_attention`: a cache with a row a token, the latent and behind it the key that was turned.
//
// Attention: a block a token and HEADS heads, which share each row of the cache: eight rows at a time come to shared
// memory as f32, every (head, key) product is summed by four threads, and each thread sums some dims of the latents
// for all heads. Online softmax in f32.
//
// Definitions: ACT (f32, f16, bf16: queries, latents, keys and out), KV (those or e4m3: the cache), LATENT and ROPE
// (values of a latent and of a key), BLOCK (tokens of a KV block).
// latent_write: grid T blocks of 128 threads. latent_attention: grid T * ceil(num_heads / 4) blocks of 128 threads.
// Tokens that belong to no sequence write nothing.
// revision: 1
// check: -DACT=f32 -DKV=f32 -DLATENT=64 -DROPE=16 -DBLOCK=8
// check: -DACT=f16 -DKV=e4m3 -DLATENT=80 -DROPE=24 -DBLOCK=16
// check: -DACT=bf16 -DKV=bf16 -DLATENT=512 -DROPE=64 -DBLOCK=64
#include "kv.cuh"

#define WIDTH (LATENT + ROPE)
#define HEADS 4
#define KEYS 8
// Dims of a thread: its number, 128 later, ...
#define DIMS ((LATENT + 127) / 128)
#define LOG2E 1.4426950408889634f

extern "C" __global__ void __launch_bounds__(128)
    latent_write(const ACT *latent, u32 latent_stride, const ACT *key, u32 key_stride, const i32 *slots, u8 *cache,
                 u64 page_stride) {
    wait_for_previous();
    let_next_start();
    u32 t = blockIdx.x;
    i32 slot = slots[t];
    if (slot < 0) return;
    KV *row = (KV *)(cache + (u64)((u32)slot / BLOCK) * page_stride) + (u32)slot % BLOCK * WIDTH;
    for (u32 i = threadIdx.x; i < WIDTH; i += 128) {
        const ACT *from = i < LATENT ? latent + (u64)t * latent_stride + i : key + (u64)t * key_stride + (i - LATENT);
        row[i] = from_f32<KV>(to_f32(*from));
    }
}

// The sequence that token t belongs to: the last s with start[s] <= t. Empty sequences share their start with the next.
__device__ __forceinline__ u32 sequence_of(const i32 *starts, u32 S, i32 t) {
    u32 low = 0, high = S - 1;
    while (low < high) {
        u32 middle = (low + high + 1) / 2;
        if (starts[middle] <= t) low = middle;
        else high = middle - 1;
    }
    return low;
}

extern "C" __global__ void __launch_bounds__(128)
    latent_attention(const ACT *q_latent, u32 q_latent_token_stride, u32 q_latent_head_stride, const ACT *q_rope,
                     u32 q_rope_token_stride, u32 q_rope_head_stride, const u8 *cache, u64 page_stride,
                     const i32 *block_table, u32 table_stride, const i32 *step_rows, const i32 *starts,
                     const i32 *seq_lens, ACT *out, u32 out_token_stride, u32 out_head_stride, u32 S, u32 num_heads,
                     float scale) {
    __shared__ float tile[KEYS][WIDTH];
    __shared__ float queries[HEADS][WIDTH];
    __shared__ float parts[128], scores[HEADS * KEYS], weights[HEADS * KEYS];
    u32 id = threadIdx.x, groups = (num_heads + HEADS - 1) / HEADS;
    u32 t = blockIdx.x / groups, first_head = blockIdx.x % groups * HEADS;
    wait_for_previous();
    let_next_start();
    if ((i32)t >= starts[S] || (i32)t < starts[0]) return;
    u32 s = sequence_of(starts, S, (i32)t);
    i32 row = step_rows[s];
    if (row < 0) return;
    // Position of the token, which sees the keys 0 ..= last.
    i32 last = seq_lens[s] - starts[s + 1] + (i32)t;
    const i32 *pages = block_table + (u64)row * table_stride;
    for (u32 i = id; i < HEADS * WIDTH; i += 128) {
        // A head past the end repeats the last one, and is not written.
        u32 h = i / WIDTH, d = i % WIDTH, head = min(first_head + h, num_heads - 1);
        const ACT *latent = q_latent + (u64)t * q_latent_token_stride + (u64)head * q_latent_head_stride;
        const ACT *rope = q_rope + (u64)t * q_rope_token_stride + (u64)head * q_rope_head_stride;
        queries[h][d] = to_f32(d < LATENT ? latent[d] : rope[d - LATENT]);
    }
    float highest[HEADS], total[HEADS], sum[DIMS][HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        highest[h] = -INFINITY_F;
        total[h] = 0.f;
#pragma unroll
        for (int e = 0; e < DIMS; e++) sum[e][h] = 0.f;
    }
    for (i32 first = 0; first <= last; first += KEYS) {
        __syncthreads();
        for (u32 i = id; i < KEYS * WIDTH; i += 128) {
            i32 position = first + (i32)(i / WIDTH);
            float value = 0.f;
            if (position <= last) {
                const u8 *page = cache + (u64)pages[position / BLOCK] * page_stride;
                value = to_f32(((const KV *)page)[(u32)position % BLOCK * WIDTH + i % WIDTH]);
            }
            tile[i / WIDTH][i % WIDTH] = value;
        }
        __syncthreads();
        float part = 0.f;
        for (u32 d = id % 4; d < WIDTH; d += 4) part = fmaf(queries[id / 4 / KEYS][d], tile[id / 4 % KEYS][d], part);
        parts[id] = part;
        __syncthreads();
        if (id < HEADS * KEYS) {
            float score = (parts[4 * id] + parts[4 * id + 1] + parts[4 * id + 2] + parts[4 * id + 3]) * scale;
            scores[id] = first + (i32)(id % KEYS) <= last ? score : -INFINITY_F;
        }
        __syncthreads();
        float kept[HEADS];
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            float above = highest[h];
            for (int k = 0; k < KEYS; k++) above = fmaxf(above, scores[h * KEYS + k]);
            kept[h] = highest[h] == above ? 1.f : exp2f((highest[h] - above) * LOG2E);
            highest[h] = above;
            if (id / KEYS == h) weights[id] = exp2f((scores[id] - above) * LOG2E);
        }
        __syncthreads();
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            total[h] *= kept[h];
            for (int k = 0; k < KEYS; k++) total[h] += weights[h * KEYS + k];
#pragma unroll
            for (int e = 0; e < DIMS; e++) sum[e][h] *= kept[h];
        }
#pragma unroll
        for (int e = 0; e < DIMS; e++) {
            u32 d = id + 128 * e;
            if (d >= LATENT) continue;
            for (int k = 0; k < KEYS; k++) {
                float value = tile[k][d];
#pragma unroll
                for (int h = 0; h < HEADS; h++) sum[e][h] = fmaf(weights[h * KEYS + k], value, sum[e][h]);
            }
        }
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        u32 head = first_head + h;
        if (head >= num_heads) continue;
#pragma unroll
        for (int e = 0; e < DIMS; e++) {
            u32 d = id + 128 * e;
            if (d < LATENT)
                out[(u64)t * out_token_stride + (u64)head * out_head_stride + d] = from_f32<ACT>(sum[e][h] / total[h]);
        }
    }
}
