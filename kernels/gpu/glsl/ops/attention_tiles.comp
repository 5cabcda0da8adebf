#version 460
#extension GL_GOOGLE_include_directive : enable
// Attention of prompts over the paged cache on matrix units: 64 neighbouring tokens of a query head a workgroup, 16 a
// subgroup of 32, and 32 keys at a time, which all subgroups share; products of cooperative matrices with sums in f32,
// online softmax in between. A workgroup may hold tokens of several sequences: it then goes through the keys of each.
//
// Definitions: ACT and KV (the same: f16 or bf16), HEAD_DIM (a multiple of 16, up to 128), BLOCK (a multiple of 32).
// Needs SUBGROUP = 32 and 40 KiB of shared memory. Queries start at multiples of 16 bytes. Parameters are those of
// attention_plain. attention_tiles: grid (⌈T / 64⌉, num_heads), 128 threads. Tokens that belong to no sequence write
// nothing.
// revision: 1
// check: attention_tiles -DACT=f16 -DKV=f16 -DHEAD_DIM=64 -DBLOCK=32 -DSUBGROUP=32
// check: attention_tiles -DACT=bf16 -DKV=bf16 -DHEAD_DIM=128 -DBLOCK=64 -DSUBGROUP=32
// check: attention_tiles -DACT=bf16 -DKV=bf16 -DHEAD_DIM=80 -DBLOCK=128 -DSUBGROUP=32
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_vote : require
#include "functions.glsl"
#include "kv.glsl"
#include "lanes.glsl"

#define f16 1
#define bf16 2
#if ACT == 1
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#define Element float16_t
#else
#extension GL_EXT_bfloat16 : require
#define Element bfloat16_t
#endif
#undef f16
#undef bf16

#define SIDE 16
#define TOKENS 64
#define KEYS 32
#define DIM_SIDES (HEAD_DIM / SIDE)
#define Sums coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator>

// Vectors of eight; one more keeps the rows of shared memory on different banks. Keys lie in rows of dims, values in
// rows of keys, as the cache has them; queries pass through the same memory first.
#define DIM_VECTORS (HEAD_DIM / 8)
#define DIM_PITCH (DIM_VECTORS + 1)
#define KEY_PITCH (KEYS / 8 + 1)
#define VALUES_AT (KEYS * DIM_PITCH)
#define OF_KEYS (VALUES_AT + HEAD_DIM * KEY_PITCH)
#define OF_QUERIES (TOKENS * DIM_PITCH)
shared uvec4 tile[OF_KEYS > OF_QUERIES ? OF_KEYS : OF_QUERIES];

// Each subgroup's own.
#define SCORE_PITCH (KEYS / 4 + 1)
shared vec4 scores[4][SIDE * SCORE_PITCH];
shared uvec4 weights[4][SIDE * KEY_PITCH];
shared float factors[4][SIDE * SIDE];
shared u32 alive[4][SIDE];

PARAMETERS(u64 q; u32 q_token_stride; u32 q_head_stride; u64 cache; u64 page_stride; u64 block_table; u32 table_stride;
           u64 step_rows; u64 starts; u64 seq_lens; u64 sinks; u64 to; u32 to_token_stride; u32 to_head_stride; u32 T;
           u32 S; u32 num_heads; u32 group; float scale; float softcap; u32 window;)

// The first sequence that ends behind token t.
u32 sequence_at(i32 t) {
    u32 low = 0, high = p.S;
    while (low < high) {
        u32 middle = (low + high) / 2;
        if (Ints(p.starts).at[middle + 1] > t) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

// What a subgroup has written is there for all of it.
void settle() {
    subgroupMemoryBarrierShared();
    subgroupBarrier();
}

void bring_queries(u32 first_token) {
    u64 from = p.q + u64(gl_WorkGroupID.y) * p.q_head_stride * 2;
    for (u32 at = THREAD; at < TOKENS * DIM_VECTORS; at += THREADS) {
        u32 token = at / DIM_VECTORS, vector = at % DIM_VECTORS;
        uvec4 eight = uvec4(0);
        if (first_token + token < p.T)
            eight = Quads(from + u64(first_token + token) * p.q_token_stride * 2 + vector * 16).at[0];
        tile[token * DIM_PITCH + vector] = eight;
    }
}

// Vectors of a step that a thread loads.
#define MINE_KEYS ((KEYS * DIM_VECTORS + 127) / 128)
#define MINE_VALUES ((HEAD_DIM * (KEYS / 8) + 127) / 128)

// Keys from token `token` of a page on with their values, on their way from memory.
void bring_keys(u64 piece, u32 token, out uvec4 keys[MINE_KEYS], out uvec4 values[MINE_VALUES]) {
    [[unroll]] for (u32 i = 0; i < MINE_KEYS; i++) {
        u32 at = THREAD + 128 * i;
        keys[i] = uvec4(0);
        if (at < KEYS * DIM_VECTORS) keys[i] = Quads(piece + key_row(token + at % KEYS, at / KEYS)).at[0];
    }
    [[unroll]] for (u32 i = 0; i < MINE_VALUES; i++) {
        u32 at = THREAD + 128 * i;
        values[i] = uvec4(0);
        if (at < HEAD_DIM * (KEYS / 8))
            values[i] = Quads(piece + value_row(at % HEAD_DIM, token / 8 + at / HEAD_DIM)).at[0];
    }
}

// Leaves them for the workgroup: keys `first` .. `first` + 31. Values outside of `least` .. `last` become 0: they may
// be anything, and 0 · NaN is NaN.
void leave_keys(in uvec4 keys[MINE_KEYS], in uvec4 values[MINE_VALUES], i32 first, i32 least, i32 last) {
    [[unroll]] for (u32 i = 0; i < MINE_KEYS; i++) {
        u32 at = THREAD + 128 * i;
        if (at < KEYS * DIM_VECTORS) tile[at % KEYS * DIM_PITCH + at / KEYS] = keys[i];
    }
    bool whole = first >= least && first + KEYS - 1 <= last;
    [[unroll]] for (u32 i = 0; i < MINE_VALUES; i++) {
        u32 at = THREAD + 128 * i, dim = at % HEAD_DIM, vector = at / HEAD_DIM;
        if (at >= HEAD_DIM * (KEYS / 8)) continue;
        uvec4 eight = values[i];
        if (!whole) {
            i32 start = first + i32(8 * vector);
            [[unroll]] for (u32 j = 0; j < 8; j++) {
                i32 key = start + i32(j);
                if (key < least || key > last) eight[j / 2] &= j % 2 == 0 ? 0xffff0000u : 0x0000ffffu;
            }
        }
        tile[VALUES_AT + dim * KEY_PITCH + vector] = eight;
    }
}

// Two weights, of 0 to 1, as they are multiplied.
u32 two_bits_f16(float a, float b) { return packHalf2x16(vec2(a, b)); }
u32 two_bits_bf16(float a, float b) {
    u32 low = floatBitsToUint(a), high = floatBitsToUint(b);
    return (low + 0x7fffu + (low >> 16 & 1u)) >> 16 | (high + 0x7fffu + (high >> 16 & 1u) & 0xffff0000u);
}

// The same factor for all of a row's columns; two lanes have a row.
void put_factor(u32 row, u32 side, float factor) {
    [[unroll]] for (u32 i = 0; i < SIDE / 2; i++) factors[WARP][row * SIDE + side * (SIDE / 2) + i] = factor;
}

void main() {
    u32 first_token = gl_WorkGroupID.x * TOKENS, head = gl_WorkGroupID.y, end_token = min(first_token + TOKENS, p.T);
    // Two lanes have a token, each half of its keys.
    u32 row = LANE / 2, side = LANE & 1u;
    i32 t = i32(first_token + WARP * SIDE + row);
    bring_queries(first_token);
    barrier();
    coopmat<Element, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseA> queries[DIM_SIDES];
    Sums sums[DIM_SIDES];
    [[unroll]] for (u32 d = 0; d < DIM_SIDES; d++) {
        coopMatLoad(queries[d], tile, WARP * SIDE * DIM_PITCH + 2 * d, DIM_PITCH, gl_CooperativeMatrixLayoutRowMajor);
        sums[d] = Sums(0.0);
    }
    float highest = -INFINITY, total = 0.0;
    bool live = false;
    for (u32 s = sequence_at(i32(first_token)); s < p.S; s++) {
        i32 begin = max(Ints(p.starts).at[s], i32(first_token)), after = Ints(p.starts).at[s + 1],
            end = min(after, i32(end_token));
        if (begin >= i32(end_token)) break;
        i32 table = Ints(p.step_rows).at[s];
        if (begin >= end || table < 0) continue;
        // Positions are a token's number and this.
        i32 offset = Ints(p.seq_lens).at[s] - after, window = i32(p.window);
        i32 least = p.window > 0 ? max(begin + offset + 1 - window, 0) : 0, most = end - 1 + offset;
        bool mine = t >= begin && t < end;
        i32 last = t + offset, first = p.window > 0 ? last + 1 - window : 0;
        live = live || mine;
        Words pages = Words(p.block_table + u64(table) * p.table_stride * 4);
#define PIECE(token) (p.cache + u64(pages.at[u32(token) / BLOCK]) * p.page_stride + u64(head / p.group) * HEAD_BYTES)
        i32 begin_keys = least & ~(KEYS - 1);
        uvec4 held_keys[MINE_KEYS], held_values[MINE_VALUES];
        bring_keys(PIECE(begin_keys), u32(begin_keys) % BLOCK, held_keys, held_values);
        for (i32 start = begin_keys; start <= most; start += KEYS) {
            barrier();
            leave_keys(held_keys, held_values, start, least, most);
            barrier();
            // The next ones are loaded while these are multiplied.
            i32 next = start + KEYS;
            if (next <= most) bring_keys(PIECE(next), u32(next) % BLOCK, held_keys, held_values);
            [[unroll]] for (u32 j = 0; j < KEYS / SIDE; j++) {
                Sums product = Sums(0.0);
                [[unroll]] for (u32 d = 0; d < DIM_SIDES; d++) {
                    coopmat<Element, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseB> keys;
                    coopMatLoad(keys, tile, j * SIDE * DIM_PITCH + 2 * d, DIM_PITCH,
                                gl_CooperativeMatrixLayoutColumnMajor);
                    product = coopMatMulAdd(queries[d], keys, product);
                }
                coopMatStore(product, scores[WARP], j * SIDE / 4, SCORE_PITCH, gl_CooperativeMatrixLayoutRowMajor);
            }
            settle();
            float x[SIDE], above = highest, sum = 0.0;
            [[unroll]] for (u32 i = 0; i < SIDE / 4; i++) {
                vec4 four = scores[WARP][row * SCORE_PITCH + side * (SIDE / 4) + i] * p.scale;
                [[unroll]] for (u32 j = 0; j < 4; j++) {
                    i32 key = start + i32(side * SIDE + 4 * i + j);
                    float score = four[j];
                    if (p.softcap > 0.0) score = p.softcap * tanh_of(score / p.softcap);
                    x[4 * i + j] = mine && key >= first && key <= last ? score : -INFINITY;
                    above = max(above, x[4 * i + j]);
                }
            }
            above = max(above, subgroupShuffleXor(above, 1));
            float kept = highest == above ? 1.0 : exp(highest - above);
            [[unroll]] for (u32 v = 0; v < 2; v++) {
                uvec4 eight = uvec4(0);
                [[unroll]] for (u32 i = 0; i < 8; i += 2) {
                    float two[2];
                    [[unroll]] for (u32 j = 0; j < 2; j++) {
                        float score = x[8 * v + i + j];
                        two[j] = score == -INFINITY ? 0.0 : exp(score - above);
                        sum += two[j];
                    }
                    eight[i / 2] = JOIN(two_bits_, KV)(two[0], two[1]);
                }
                weights[WARP][row * KEY_PITCH + 2 * side + v] = eight;
            }
            total = total * kept + sum + subgroupShuffleXor(sum, 1);
            highest = above;
            // Seldom once a few keys have been seen.
            bool changes = !subgroupAll(kept == 1.0);
            if (changes) put_factor(row, side, kept);
            settle();
            if (changes) {
                Sums factor;
                coopMatLoad(factor, factors[WARP], 0, SIDE, gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (u32 d = 0; d < DIM_SIDES; d++) sums[d] = sums[d] * factor;
            }
            [[unroll]] for (u32 j = 0; j < KEYS / SIDE; j++) {
                coopmat<Element, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseA> part;
                coopMatLoad(part, weights[WARP], 2 * j, KEY_PITCH, gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (u32 d = 0; d < DIM_SIDES; d++) {
                    coopmat<Element, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseB> values;
                    // A row of values is a dim, so a column of the product's right side.
                    coopMatLoad(values, tile, VALUES_AT + d * SIDE * KEY_PITCH + 2 * j, KEY_PITCH,
                                gl_CooperativeMatrixLayoutColumnMajor);
                    sums[d] = coopMatMulAdd(part, values, sums[d]);
                }
            }
        }
    }
    float kept = 1.0;
    if (p.sinks != 0) {
        float sink = Floats(p.sinks).at[head], above = max(highest, sink);
        kept = exp(highest - above);
        total = total * kept + exp(sink - above);
    }
    settle();
    put_factor(row, side, live ? kept / total : 0.0);
    if (side == 0) alive[WARP][row] = live ? 1 : 0;
    settle();
    Sums factor;
    coopMatLoad(factor, factors[WARP], 0, SIDE, gl_CooperativeMatrixLayoutRowMajor);
    [[unroll]] for (u32 d = 0; d < DIM_SIDES; d++) {
        sums[d] = sums[d] * factor;
        coopMatStore(sums[d], scores[WARP], 0, SCORE_PITCH, gl_CooperativeMatrixLayoutRowMajor);
        settle();
        for (u32 at = LANE; at < SIDE * SIDE; at += 32) {
            u32 of = at / SIDE, token = first_token + WARP * SIDE + of;
            if (alive[WARP][of] == 0) continue;
            u64 to = p.to + (u64(token) * p.to_token_stride + u64(head) * p.to_head_stride) * 2;
            STORE(ACT, to, d * SIDE + at % SIDE, scores[WARP][of * SCORE_PITCH + at % SIDE / 4][at % 4]);
        }
        settle();
    }
}
