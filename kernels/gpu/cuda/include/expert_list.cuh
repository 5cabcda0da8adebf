// The list that moe_list makes of a step's choices (token · top_k + j): which experts are chosen, and by which.
//
// Words: how many experts are chosen, three unused, an entry of four words an expert (its number, where its choices
// begin and end, one unused; experts in order, those without a choice left out), and the choices, expert by expert.
// Where some experts are elsewhere one entry, the last, has all choices of those, unless nothing reads their results:
// then they are not in the list. That entry's number is `num_experts`.
#pragma once
#include "common.cuh"

struct Chosen {
    u32 expert, begin, end;
};

__device__ __forceinline__ u32 chosen_experts(const u32 *list) { return list[0]; }
__device__ __forceinline__ Chosen chosen_expert(const u32 *list, u32 i) {
    uint4 entry = *(const uint4 *)(list + 4 + 4 * i);
    return {entry.x, entry.y, entry.z};
}
__device__ __forceinline__ const u32 *choices_of(const u32 *list, u32 num_groups) { return list + 4 + 4 * num_groups; }
