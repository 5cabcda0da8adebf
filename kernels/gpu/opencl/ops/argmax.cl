// `argmax`: memory-bound, so a row is shared out to as many groups as fill the device; a second launch joins what they
// found. No definitions.
// revision: 1
// check:
#include "common.h"
#define BLOCK 1024
#include "logits.h"

// The largest of first .. end of a row, over the group.
INLINE u64 argmax_of(const __global float *logits, u32 first, u32 end, __local u64 *words) {
    Row row = run_of(logits, first, end, get_local_id(0), BLOCK, 1.f);
    float value;
    return lanes_max_u64(best_of(&row, &value), words, get_local_id(0), BLOCK);
}

// A group a row.
KERNEL void argmax_1(const __global float *logits, u32 stride, u32 vocab, __global i32 *out, u32 out_stride) {
    __local u64 words[BLOCK];
    u64 row = get_group_id(1), best = argmax_of(logits + row * stride, 0, vocab, words);
    if (get_local_id(0) == 0) out[row * out_stride] = token_of(best);
}

// get_num_groups(0) groups a row.
KERNEL void argmax_part(const __global float *logits, u32 stride, u32 vocab, __global u64 *parts) {
    __local u64 words[BLOCK];
    u64 row = get_group_id(1);
    u32 part = get_group_id(0), count = get_num_groups(0), each = (vocab + count - 1) / count,
        first = min(part * each, vocab);
    u64 best = argmax_of(logits + row * stride, first, min(first + each, vocab), words);
    if (get_local_id(0) == 0) parts[row * count + part] = best;
}
KERNEL void argmax_join(const __global u64 *parts, u32 num_parts, __global i32 *out, u32 out_stride) {
    if (get_local_id(0) != 0) return;
    u64 row = get_group_id(0), best = 0;
    for (u32 i = 0; i < num_parts; i++) best = max(best, parts[row * num_parts + i]);
    out[row * out_stride] = token_of(best);
}
