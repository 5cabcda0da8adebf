#version 460
#extension GL_GOOGLE_include_directive : enable
// Attention of any shape and type over the paged cache, without matrix units: 32 threads a (token, query head), online
// softmax in f32.
//
// Definitions: ACT (f32, f16, bf16: q and out), KV (those or e4m3: the cache), HEAD_DIM, BLOCK (a multiple of 8).
// attention_plain: grid ⌈T · num_heads / 4⌉, 128 threads. Tokens that belong to no sequence write nothing.
// attention_split, for few tokens: the same with a part of the keys a workgroup in the grid's second extent; out is f32
// memory for each (token, head) and part: HEAD_DIM sums, the highest score, and the sum of the weights. attention_join
// makes the result of them: grid ⌈T · num_heads / 4⌉, 128 threads.
// revision: 1
// check: attention_split attention_join -DACT=bf16 -DKV=bf16 -DHEAD_DIM=128 -DBLOCK=64
// check: attention_split attention_join -DACT=f32 -DKV=f16 -DHEAD_DIM=80 -DBLOCK=16
// check: attention_plain -DACT=f32 -DKV=f32 -DHEAD_DIM=64 -DBLOCK=8
// check: attention_plain -DACT=f16 -DKV=e4m3 -DHEAD_DIM=80 -DBLOCK=16
// check: attention_plain -DACT=bf16 -DKV=bf16 -DHEAD_DIM=128 -DBLOCK=64
// check: attention_plain -DACT=bf16 -DKV=f32 -DHEAD_DIM=16 -DBLOCK=8
// check: attention_plain -DACT=bf16 -DKV=e4m3 -DHEAD_DIM=256 -DBLOCK=64
#include "functions.glsl"
#include "kv.glsl"
#include "lanes.glsl"

#if defined(ENTRY_attention_join)

// Floats of a part: sums, the highest score, the weights.
#define PART_FLOATS (HEAD_DIM + 2)

PARAMETERS(u64 parts; u32 num_parts; u64 sinks; u64 to; u32 to_token_stride; u32 to_head_stride; u32 T; u32 num_heads;)
void main() {
    u32 job = gl_WorkGroupID.x * 4 + gl_LocalInvocationIndex / 32, lane = gl_LocalInvocationIndex & 31u,
        t = job / p.num_heads, head = job % p.num_heads;
    Floats parts = Floats(p.parts + u64(job) * p.num_parts * PART_FLOATS * 4);
    // A token of no sequence leaves weights below zero.
    if (t >= p.T || parts.at[HEAD_DIM + 1] < 0.0) return;
    float highest = -INFINITY, total = 0.0;
    if (p.sinks != 0) highest = Floats(p.sinks).at[head];
    for (u32 part = 0; part < p.num_parts; part++) highest = max(highest, parts.at[part * PART_FLOATS + HEAD_DIM]);
    if (p.sinks != 0) total = exp_of(Floats(p.sinks).at[head] - highest);
    for (u32 part = 0; part < p.num_parts; part++) {
        Floats of_part = Floats(p.parts + (u64(job) * p.num_parts + part) * PART_FLOATS * 4);
        if (of_part.at[HEAD_DIM + 1] > 0.0) total += of_part.at[HEAD_DIM + 1] * exp_of(of_part.at[HEAD_DIM] - highest);
    }
    u64 to = p.to + (u64(t) * p.to_token_stride + u64(head) * p.to_head_stride) * SIZE(ACT);
    for (u32 dim = lane; dim < HEAD_DIM; dim += 32) {
        float sum = 0.0;
        for (u32 part = 0; part < p.num_parts; part++) {
            u32 at = part * PART_FLOATS;
            if (parts.at[at + HEAD_DIM + 1] > 0.0)
                sum += parts.at[at + dim] * exp_of(parts.at[at + HEAD_DIM] - highest);
        }
        STORE(ACT, to, dim, sum / total);
    }
}

#else

// Dims of a lane: lane, lane + 32, ...
#define DIMS ((HEAD_DIM + 31) / 32)

shared float queries[4][HEAD_DIM];
shared float scores[4][32];
shared float weights[4][32];

PARAMETERS(u64 q; u32 q_token_stride; u32 q_head_stride; u64 cache; u64 page_stride; u64 block_table; u32 table_stride;
           u64 step_rows; u64 starts; u64 seq_lens; u64 sinks; u64 to; u32 to_token_stride; u32 to_head_stride; u32 T;
           u32 S; u32 num_heads; u32 group; float scale; float softcap; u32 window;)

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

// The query's product with the key at `piece`, `token` of its block.
float product_of(u64 piece, u32 token) {
    float sum = 0.0, v[ROW];
    UNROLLED for (u32 r = 0; r < KEY_ROWS; r++) {
        values_of(Quads(piece + key_row(token, r)).at[0], v);
        UNROLLED for (u32 j = 0; j < ROW; j++)
            if (r * ROW + j < HEAD_DIM) sum = fma(queries[WARP][r * ROW + j], v[j], sum);
    }
    return sum;
}

// Sum of the values of a dim at tokens `token` .. `token` + 7 of a block, weighted by weights `first` and on; tokens
// with weight 0 do not count, whatever they hold.
float weighted_values(u64 piece, u32 dim, u32 token, u32 first) {
    float sum = 0.0, v[ROW];
#if ROW < 8
    for (u32 part = 0; part < 8; part += ROW) {
        values_of(Quads(piece + value_row(dim, (token + part) / ROW)).at[0], v);
        UNROLLED for (u32 j = 0; j < ROW; j++) {
            float weight = weights[WARP][first + part + j];
            sum += weight == 0.0 ? 0.0 : weight * v[j];
        }
    }
#else
    values_of(Quads(piece + value_row(dim, token / ROW)).at[0], v);
    bool upper = token % ROW != 0;
    UNROLLED for (u32 j = 0; j < 8; j++) {
        float weight = weights[WARP][first + j];
#if ROW == 16
        float value = upper ? v[8 + j] : v[j];
#else
        float value = v[j];
#endif
        sum += weight == 0.0 ? 0.0 : weight * value;
    }
#endif
    return sum;
}

void main() {
    u32 job = gl_WorkGroupID.x * 4 + WARP, t = job / p.num_heads, head = job % p.num_heads;
    bool live = t < p.T && i32(t) >= Ints(p.starts).at[0] && i32(t) < Ints(p.starts).at[p.S];
    // Position of the token, and the keys first ..= last that it sees.
    i32 first = 0, last = -1, row = -1;
    if (live) {
        u32 s = sequence_of(i32(t));
        row = Ints(p.step_rows).at[s];
        live = row >= 0;
        last = Ints(p.seq_lens).at[s] - Ints(p.starts).at[s + 1] + i32(t);
        if (p.window > 0 && last + 1 > i32(p.window)) first = last + 1 - i32(p.window);
    }
    Words pages = Words(p.block_table + (live ? u64(row) : 0) * p.table_stride * 4);
    u64 piece_offset = p.cache + u64(head / p.group) * HEAD_BYTES,
        from = p.q + (u64(t) * p.q_token_stride + u64(head) * p.q_head_stride) * SIZE(ACT);
    if (live) {
        for (u32 d = LANE; d < HEAD_DIM; d += 32) queries[WARP][d] = LOAD(ACT, from, d);
    }
    // Tiles of 32 keys: this part's, as many for all threads of the block, as they meet at barriers.
    i32 start = first & ~31;
    u32 tiles = live && last >= first ? u32(last - start) / 32 + 1 : 0;
#if defined(ENTRY_attention_split)
    u32 each = (tiles + gl_NumWorkGroups.y - 1) / gl_NumWorkGroups.y, skipped = min(gl_WorkGroupID.y * each, tiles);
    start += 32 * i32(skipped);
    tiles = min(each, tiles - skipped);
    last = min(last, start + 32 * i32(tiles) - 1);
#endif
    u32 rounds = u32(block_max(float(tiles)));
    barrier();
    float highest = -INFINITY, total = 0.0, sum[DIMS];
    UNROLLED for (u32 i = 0; i < DIMS; i++) sum[i] = 0.0;
    for (u32 round = 0; round < rounds; round++) {
        i32 tile = start + 32 * i32(round);
        // Scores: a lane a key.
        i32 key = tile + i32(LANE);
        bool seen = live && key >= first && key <= last;
        float score = -INFINITY;
        if (seen) {
            score = product_of(piece_offset + u64(pages.at[u32(key) / BLOCK]) * p.page_stride, u32(key) % BLOCK) *
                    p.scale;
            if (p.softcap > 0.0) score = p.softcap * tanh_of(score / p.softcap);
        }
#if SUBGROUP >= 32
        float above = max(highest, max32(score));
#else
        scores[WARP][LANE] = score;
        barrier();
        float above = highest;
        for (u32 i = 0; i < 32; i++) above = max(above, scores[WARP][i]);
#endif
        float kept = highest == above ? 1.0 : exp_of(highest - above), weight = seen ? exp_of(score - above) : 0.0,
              sum_of_tile = 0.0;
        highest = above;
        // With shared memory, after the barrier above no thread reads the last tile's weights any more.
#if SUBGROUP >= 32
        barrier();
#endif
        weights[WARP][LANE] = weight;
        barrier();
        for (u32 i = 0; i < 32; i++) sum_of_tile += weights[WARP][i];
        total = total * kept + sum_of_tile;
        // Values: a lane a dim, 8 tokens at a time.
        UNROLLED for (u32 i = 0; i < DIMS; i++) sum[i] *= kept;
#if BLOCK >= 32
        // A tile lies in one block. Past the last key weights are 0.
        if (live && tile <= last) {
            u64 piece = piece_offset + u64(pages.at[u32(tile) / BLOCK]) * p.page_stride;
            UNROLLED for (u32 eighth = 0; eighth < 32; eighth += 8) {
                UNROLLED for (u32 i = 0; i < DIMS; i++) {
                    u32 dim = LANE + 32 * i;
                    if (dim < HEAD_DIM) sum[i] += weighted_values(piece, dim, u32(tile) % BLOCK + eighth, eighth);
                }
            }
        }
#else
        for (i32 eighth = 0; eighth < 32; eighth += 8) {
            i32 token = tile + eighth;
            if (!live || token + 7 < first || token > last) continue;
            u64 piece = piece_offset + u64(pages.at[u32(token) / BLOCK]) * p.page_stride;
            UNROLLED for (u32 i = 0; i < DIMS; i++) {
                u32 dim = LANE + 32 * i;
                if (dim < HEAD_DIM) sum[i] += weighted_values(piece, dim, u32(token) % BLOCK, u32(eighth));
            }
        }
#endif
    }
#if defined(ENTRY_attention_split)
    if (t >= p.T) return;
    Floats part = Floats(p.to + (u64(job) * gl_NumWorkGroups.y + gl_WorkGroupID.y) * ((HEAD_DIM + 2) * 4));
    UNROLLED for (u32 i = 0; i < DIMS; i++) {
        u32 dim = LANE + 32 * i;
        if (dim < HEAD_DIM) part.at[dim] = sum[i];
    }
    if (LANE == 0) {
        part.at[HEAD_DIM] = highest;
        part.at[HEAD_DIM + 1] = live ? total : -1.0;
    }
#else
    if (!live) return;
    if (p.sinks != 0) {
        float sink = Floats(p.sinks).at[head], above = max(highest, sink), kept = exp_of(highest - above);
        total = total * kept + exp_of(sink - above);
        UNROLLED for (u32 i = 0; i < DIMS; i++) sum[i] *= kept;
    }
    u64 to = p.to + (u64(t) * p.to_token_stride + u64(head) * p.to_head_stride) * SIZE(ACT);
    UNROLLED for (u32 i = 0; i < DIMS; i++) {
        u32 dim = LANE + 32 * i;
        if (dim < HEAD_DIM) STORE(ACT, to, dim, sum[i] / total);
    }
#endif
}
#endif
