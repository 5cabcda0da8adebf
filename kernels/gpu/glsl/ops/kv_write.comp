#version 460
#extension GL_GOOGLE_include_directive : enable
// Keys and values into their KV blocks (layout: kv.glsl). A block of threads a token; slots may come in any order.
// V is transposed in its block: where consecutive tokens fill a whole 16-byte row, the first of them (its leader)
// writes the row for all; other tokens write their elements one by one.
//
// Definitions: ACT (f32, f16, bf16: type of k and v), KV (those or e4m3: type held), HEAD_DIM, BLOCK (tokens of a KV
// block).
// Entry point: kv_write. Grid: T blocks of 128 threads. (The composite that rotates and norms first runs on matrix
// units only.)
// revision: 1
// check: kv_write -DACT=f32 -DKV=f32 -DHEAD_DIM=64 -DBLOCK=8
// check: kv_write -DACT=f16 -DKV=e4m3 -DHEAD_DIM=80 -DBLOCK=16
// check: kv_write -DACT=bf16 -DKV=bf16 -DHEAD_DIM=128 -DBLOCK=64
// check: kv_write -DACT=f32 -DKV=f16 -DHEAD_DIM=80 -DBLOCK=8
#include "kv.glsl"

PARAMETERS(u64 k; u32 k_token_stride; u32 k_head_stride; u64 v; u32 v_token_stride; u32 v_head_stride; u64 slots;
           u64 cache; u64 page_stride; u32 T; u32 num_kv_heads;)

// Stores v of token t, and of those after it that share its rows.
void store_values(u32 t, u64 page, i32 slot) {
    Ints slots = Ints(p.slots);
    u32 token = u32(slot) % BLOCK, inside = token % ROW;
    // An earlier token of the same rows is the leader.
    if (inside > 0 && t > 0) {
        if (slots.at[t - 1] == slot - 1) return;
    }
    u32 count = 1;
    while (inside + count < ROW && token + count < BLOCK && t + count < p.T) {
        if (slots.at[t + count] != slot + i32(count)) break;
        count++;
    }
    u64 source = p.v + u64(t) * p.v_token_stride * SIZE(ACT), step = u64(p.v_token_stride) * SIZE(ACT);
    for (u32 i = gl_LocalInvocationIndex; i < p.num_kv_heads * HEAD_DIM; i += THREADS) {
        u32 head = i / HEAD_DIM, dim = i % HEAD_DIM;
        u64 from = source + (u64(head) * p.v_head_stride + dim) * SIZE(ACT);
        u64 to = page + u64(head) * HEAD_BYTES + value_row(dim, token / ROW);
        if (count == ROW) {
            float v[ROW];
            UNROLLED for (u32 j = 0; j < ROW; j++) v[j] = LOAD(ACT, from + j * step, 0);
            Quads(to).at[0] = row_of(v);
        } else {
            for (u32 j = 0; j < count; j++) STORE(KV, to, inside + j, LOAD(ACT, from + j * step, 0));
        }
    }
}

void main() {
    u32 t = gl_WorkGroupID.x;
    i32 slot = Ints(p.slots).at[t];
    if (slot < 0) return;
    u64 page = p.cache + u64(u32(slot) / BLOCK) * p.page_stride, source = p.k + u64(t) * p.k_token_stride * SIZE(ACT);
    for (u32 i = gl_LocalInvocationIndex; i < p.num_kv_heads * KEY_ROWS; i += THREADS) {
        u32 head = i / KEY_ROWS, row = i % KEY_ROWS;
        u64 from = source + (u64(head) * p.k_head_stride + row * ROW) * SIZE(ACT);
        float v[ROW];
        UNROLLED for (u32 j = 0; j < ROW; j++) {
            v[j] = 0.0;
            if (row * ROW + j < HEAD_DIM) v[j] = LOAD(ACT, from, j);
        }
        Quads(page + u64(head) * HEAD_BYTES + key_row(u32(slot) % BLOCK, row)).at[0] = row_of(v);
    }
    store_values(t, page, slot);
}
