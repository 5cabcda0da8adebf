// The adapters of a block's tokens: which slot each has, and which of them share one.
#pragma once
#include "common.cuh"

// Slot of token `t`; −1 where there is none, or it is past the end.
__device__ __forceinline__ i32 slot_of(const i32 *token_lora, u32 stride, u32 t, u32 num_tokens, u32 num_slots) {
    if (t >= num_tokens) return -1;
    i32 slot = token_lora[(u64)t * stride];
    return (u32)slot < num_slots ? slot : -1;
}

// The slots of a block's tokens, one group of equal ones after another: tokens of the next group as bits, 0 after the
// last.
template <u32 TOKENS> struct Groups {
    i32 slots[TOKENS];
    u32 left;

    __device__ __forceinline__ Groups(const i32 *token_lora, u32 stride, u32 first, u32 num_tokens, u32 num_slots)
        : left(0) {
#pragma unroll
        for (u32 i = 0; i < TOKENS; i++) {
            slots[i] = slot_of(token_lora, stride, first + i, num_tokens, num_slots);
            left |= (u32)(slots[i] >= 0) << i;
        }
    }
    __device__ __forceinline__ u32 next(i32 &slot) {
        slot = -1;
        u32 same = 0;
#pragma unroll
        for (u32 i = 0; i < TOKENS; i++) {
            if (!(left >> i & 1)) continue;
            if (slot < 0) slot = slots[i];
            same |= (u32)(slots[i] == slot) << i;
        }
        left &= ~same;
        return same;
    }
};
