// What sequences of a batch have in common, as find_common.cu leaves it for attention_decode.cu: a team is sequences of
// one token each whose block tables begin with the same pages.
#pragma once
#include "common.cuh"

struct __align__(16) Team {
    u32 first, others, tiles, _pad; // place of its first member, members behind it, tiles of 64 keys that all share
};
// Teams, and the most tiles of one | teams [S / 2] | common tiles of each sequence [S] u16 | the sequence of each place
// [S] u16. Where there are no teams the rest means nothing.
struct __align__(16) Teams {
    u32 count, most_tiles, _pad[2];

    __device__ __forceinline__ const Team *list() const { return (const Team *)(this + 1); }
    __device__ __forceinline__ const u16 *tiles(u32 S) const { return (const u16 *)(list() + S / 2); }
    __device__ __forceinline__ const u16 *order(u32 S) const { return tiles(S) + S; }
};

#define LEAST_COMMON 4 // tiles: as much as the sums cost
