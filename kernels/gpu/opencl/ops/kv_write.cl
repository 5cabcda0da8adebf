// Keys and values into their KV blocks (layout: kv.h). A group a token; slots may come in any order.
//
// Definitions: ACT (f32, f16, bf16: type of k and v), KV (those or e4m3: type held), HEAD_DIM, BLOCK (tokens of a KV
// block).
// Entry point: kv_write. Grid: T groups of 128 threads.
// revision: 1
// check: -DACT=f32 -DKV=f32 -DHEAD_DIM=64 -DBLOCK=8
// check: -DACT=f16 -DKV=e4m3 -DHEAD_DIM=80 -DBLOCK=16
// check: -DACT=bf16 -DKV=bf16 -DHEAD_DIM=128 -DBLOCK=64
// check: -DACT=f32 -DKV=f16 -DHEAD_DIM=80 -DBLOCK=8
#include "kv.h"

KERNEL void kv_write(const __global ACT *k, u32 k_token_stride, u32 k_head_stride, const __global ACT *v,
                     u32 v_token_stride, u32 v_head_stride, const __global i32 *slots, __global u8 *cache,
                     u64 page_stride, u32 T, u32 num_kv_heads) {
    u32 t = get_group_id(0), step = get_local_size(0);
    i32 slot = slots[t];
    if (slot < 0) return;
    u32 token = (u32)slot % BLOCK;
    __global u8 *page = cache + (u64)((u32)slot / BLOCK) * page_stride;
    const __global ACT *keys = k + (u64)t * k_token_stride, *values = v + (u64)t * v_token_stride;
    for (u32 i = get_local_id(0); i < num_kv_heads * KEY_ROWS; i += step) {
        u32 head = i / KEY_ROWS, row = i % KEY_ROWS;
        const __global ACT *from = keys + (u64)head * k_head_stride + row * ROW;
        __global KV *to = (__global KV *)(page + (u64)head * HEAD_BYTES + key_row(token, row));
        for (u32 j = 0; j < ROW; j++) {
            float value = row * ROW + j < HEAD_DIM ? LOAD(ACT, from, j) : 0.f;
            STORE(KV, value, to, j);
        }
    }
    // V is transposed in its block: one element a dim.
    for (u32 i = get_local_id(0); i < num_kv_heads * HEAD_DIM; i += step) {
        u32 head = i / HEAD_DIM, dim = i % HEAD_DIM;
        __global KV *to = (__global KV *)(page + (u64)head * HEAD_BYTES + value_row(dim, token / ROW));
        float value = LOAD(ACT, values, (u64)head * v_head_stride + dim);
        STORE(KV, value, to, token % ROW);
    }
}
