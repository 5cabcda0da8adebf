// What the ops over a row of logits share: keys that order floats, probabilities as integers, and the two ways of
// finding values without sorting the row: by place in the row (`locate`) and by size (`select`, or a list of the
// largest in shared memory).
// Definitions: BLOCK (threads of a row's block, a multiple of 32, at most 1024).
// revision: 1
#pragma once
#include "common.cuh"

#ifndef BLOCK
#define BLOCK 1024
#endif
#define WARPS (BLOCK / 32)
// Runs of 512 neighbours of a row: what a warp reads at a time. Bounds the vocabulary.
#define MAX_GROUPS 1024
// The largest values that fit in shared memory.
#define MAX_LISTED 4096
#define ALL 0xffffffffu
// Keys of −∞ and of the lowest finite value.
#define KEY_NONE 0x007fffffu
#define KEY_FINITE 0x00800000u
// The key of +∞.
#define KEY_INFINITY 0xff800000u
// In place of a token: the row holds a NaN or +∞; the row holds −∞ alone.
#define NOT_FINITE (-2)
#define NO_TOKEN (-3)
#define LARGEST 3.402823466e38f
// A power of two to add, after which a number's last bit counts ones.
#define COUNTING 8388608.f

// A row in pieces of four, aligned to 16 bytes: element j of chunk c is logit 4c + j − shift.
struct Row {
    const float *logits;
    i32 vocab;
    i32 shift;
    i32 chunks;
    float temperature, inverse;
};

__device__ __forceinline__ Row row_of(const float *logits, i32 vocab, float temperature) {
    i32 shift = (i32)((u64)logits >> 2 & 3);
    return {logits, vocab, shift, (vocab + shift + 3) >> 2, temperature, __fdiv_rn(1.f, temperature)};
}

// Order-preserving and back. −0 comes right before 0.
__device__ __forceinline__ u32 key_of(float x) {
    u32 bits = __float_as_uint(x);
    return bits ^ ((u32)((i32)bits >> 31) | 0x80000000u);
}
__device__ __forceinline__ float from_key(u32 key) {
    return __uint_as_float(key ^ (key & 0x80000000u ? 0x80000000u : ALL));
}

// At the row's temperature; NaN is −∞, ∞ the largest number. The quotient is corrected once, and so rounded as a
// division rounds it.
__device__ __forceinline__ float scaled(const Row &row, float x) {
    x = fminf(fmaxf(x, -INFINITY_F), LARGEST);
    float q = x * row.inverse;
    float better = __fmaf_rn(__fmaf_rn(-q, row.temperature, x), row.inverse, q);
    return fabsf(q) < INFINITY_F ? better : fminf(q, LARGEST);
}
// Its key; that of −0 is 0's.
__device__ __forceinline__ u32 scaled_key(const Row &row, float x) { return key_of(scaled(row, x) + 0.f); }

// A probability in parts of the most likely one's: high · 2^-20 + low · 2^-43, low below 2^23. 512 of them add up
// without a carry.
struct Weight {
    u32 high, low;
    __device__ __forceinline__ u64 value() const { return ((u64)high << 23) + low; }
    __device__ __forceinline__ void add(Weight w, bool is_used) {
        high += is_used ? w.high : 0;
        low += is_used ? w.low : 0;
    }
};

// COUNTING and the whole part of x · y, which is exact.
__device__ __forceinline__ float whole(float x, float y) {
#if defined(PORTABLE)
    return floorf(x * y) + COUNTING;
#else
    return __fmaf_rd(x, y, COUNTING);
#endif
}

// e^(x − max), cut off. Products with powers of two and the rest of a sum that counts ones are exact.
__device__ __forceinline__ Weight weight_of(float x, float max) {
    float e = expf(x - max) * 1048576.f;
    float high = whole(e, 1.f);
    float low = whole(e - (high - COUNTING), COUNTING);
    return {__float_as_uint(high) - __float_as_uint(COUNTING), __float_as_uint(low) - __float_as_uint(COUNTING)};
}

__device__ __forceinline__ u32 warp_add(u32 x) { return __reduce_add_sync(ALL, x); }
__device__ __forceinline__ u64 warp_sum(u64 x) {
    for (i32 mask = 16; mask > 0; mask >>= 1) x += __shfl_xor_sync(ALL, x, mask);
    return x;
}
__device__ __forceinline__ u64 warp_max(u64 x) {
    for (i32 mask = 16; mask > 0; mask >>= 1) {
        u64 y = __shfl_xor_sync(ALL, x, mask);
        x = x < y ? y : x;
    }
    return x;
}

// Over the block, for every thread. `warps` holds 32 words.
__device__ __forceinline__ u64 block_sum(u64 x, u64 *warps) {
    x = warp_sum(x);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = x;
    __syncthreads();
    return warp_sum((threadIdx.x & 31) < (blockDim.x >> 5) ? warps[threadIdx.x & 31] : 0ull);
}
__device__ __forceinline__ u64 block_max(u64 x, u64 *warps) {
    x = warp_max(x);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = x;
    __syncthreads();
    return warp_max((threadIdx.x & 31) < (blockDim.x >> 5) ? warps[threadIdx.x & 31] : 0ull);
}

__device__ __forceinline__ u64 warp_scan(u64 x) {
    for (i32 step = 1; step < 32; step <<= 1) {
        u64 y = __shfl_up_sync(ALL, x, step);
        if ((i32)(threadIdx.x & 31) >= step) x += y;
    }
    return x;
}
// The sum over lower threads; `total`: over all.
__device__ __forceinline__ u64 block_scan(u64 x, u64 *warps, u64 &total) {
    i32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u64 upto = warp_scan(x);
    __syncthreads();
    if (lane == 31) warps[warp] = upto;
    __syncthreads();
    u64 all = warp_scan(lane < WARPS ? warps[lane] : 0ull);
    u64 before = __shfl_sync(ALL, all, warp > 0 ? warp - 1 : 0);
    total = __shfl_sync(ALL, all, 31);
    return (warp > 0 ? before : 0) + upto - x;
}

// A group: 512 neighbours, which a warp reads together. Element e of this thread's sixteen is logit `place(e)`.
struct Group {
    i32 index;
    i32 first;
    float v[16];
    __device__ __forceinline__ i32 place(i32 e) const { return first + 128 * (e >> 2) + (e & 3); }
};

// Elements outside of the row are −∞.
__device__ __forceinline__ void load(const Row &row, i32 index, Group &group) {
    i32 start = 512 * index - row.shift;
    group.index = index;
    group.first = start + 4 * (threadIdx.x & 31);
    if (start >= 0 && start + 512 <= row.vocab) {
#pragma unroll
        for (i32 u = 0; u < 4; u++) {
            float4 v = *(const float4 *)(row.logits + group.first + 128 * u);
            group.v[4 * u] = v.x, group.v[4 * u + 1] = v.y, group.v[4 * u + 2] = v.z, group.v[4 * u + 3] = v.w;
        }
        return;
    }
#pragma unroll
    for (i32 e = 0; e < 16; e++) {
        i32 at = group.place(e);
        group.v[e] = at >= 0 && at < row.vocab ? row.logits[at] : -INFINITY_F;
    }
}

// Calls f for every group, all threads of a warp together.
template <typename F> __device__ __forceinline__ void for_each(const Row &row, F f) {
    Group group;
    for (i32 index = threadIdx.x >> 5; 128 * index < row.chunks; index += WARPS) {
        load(row, index, group);
        f(group);
    }
}

// Shared memory of a row's block.
struct Shared {
    union {
        // Sums of 512 neighbours each.
        u64 groups[MAX_GROUPS];
        // Key, then inverted index: descending order is by value, then by index.
        u64 listed[MAX_LISTED];
        u64 sums[7][32];
    };
    u64 warps[32];
    u32 num_listed;
    u32 found;
    u64 found_before;
};

// A thread's largest logit as key and inverted index; none above −∞: index 0. A NaN counts as +∞, which no row may
// hold.
struct Best {
    float value;
    u32 index;
    __device__ __forceinline__ void take(float x, i32 at) {
        // The minimum of a NaN and a number is the number.
        x = fminf(x, INFINITY_F);
        if (x > value) {
            value = x;
            index = at;
        }
    }
    __device__ __forceinline__ u64 key() const { return (u64)key_of(value + 0.f) << 32 | (u32)~index; }
};

// A row's token by its largest logit's key and inverted index, or the code for a row without a token.
__device__ __forceinline__ i32 token_of(u64 best) {
    u32 key = (u32)(best >> 32);
    return key >= KEY_INFINITY ? NOT_FINITE : key <= KEY_NONE ? NO_TOKEN : (i32) ~(u32)best;
}

__device__ __forceinline__ Best thread_best(const Row &row) {
    Best best = {-INFINITY_F, 0};
    for_each(row, [&](const Group &group) {
#pragma unroll
        for (i32 e = 0; e < 16; e++) best.take(group.v[e], group.place(e));
    });
    return best;
}

// The sum of f(index, logit) over this thread's values of a group.
template <typename F> __device__ __forceinline__ Weight sum_of(const Group &group, F f) {
    Weight sum = {0, 0};
#pragma unroll
    for (i32 e = 0; e < 16; e++) {
        Weight w = f(group.place(e), group.v[e]);
        sum.add(w, true);
    }
    return sum;
}

// The sum of f(index, logit) over the row, for every thread.
template <typename F> __device__ __forceinline__ u64 row_sum(const Row &row, Shared &s, F f) {
    u64 sum = 0;
    for_each(row, [&](const Group &group) { sum += sum_of(group, f).value(); });
    return block_sum(sum, s.warps);
}

// The first index at which the running sum of f(index, logit) reaches target(total); 0 where the total is 0.
template <typename F, typename T> __device__ __forceinline__ i32 locate(const Row &row, Shared &s, F f, T target_of) {
    i32 lane = threadIdx.x & 31;
    __syncthreads();
    for_each(row, [&](const Group &group) {
        Weight sum = sum_of(group, f);
        sum = {warp_add(sum.high), warp_add(sum.low)};
        if (lane == 0 && group.index < MAX_GROUPS) s.groups[group.index] = sum.value();
    });
    if (threadIdx.x == 0) s.found = ALL;
    __syncthreads();
    i32 num_groups = (row.chunks + 127) >> 7, per = (num_groups + BLOCK - 1) / BLOCK;
    i32 first = threadIdx.x * per, end = min(first + per, num_groups);
    u64 total, sum = 0;
    for (i32 g = first; g < end; g++) sum += s.groups[g];
    u64 before = block_scan(sum, s.warps, total), target = target_of(total);
    if (before < target && target <= before + sum) {
        for (i32 g = first; g < end; before += s.groups[g++]) {
            if (target <= before + s.groups[g]) {
                s.found = g;
                s.found_before = before;
                break;
            }
        }
    }
    __syncthreads();
    if (s.found == ALL) return 0;
    // Every warp finds the same within the group.
    Group group;
    load(row, s.found, group);
    before = s.found_before;
    i32 found = 0;
#pragma unroll
    for (i32 u = 0; u < 4; u++) {
        u64 w[4], mine = 0;
#pragma unroll
        for (i32 j = 0; j < 4; j++) mine += w[j] = f(group.place(4 * u + j), group.v[4 * u + j]).value();
        u64 upto = warp_scan(mine) + before;
        bool is_here = before < target;
        before = __shfl_sync(ALL, upto, 31);
        u32 reached = __ballot_sync(ALL, upto >= target);
        if (!is_here || reached == 0) continue;
        i32 j = 3;
#pragma unroll
        for (i32 i = 3; i > 0; i--) {
            if (j == i && upto - w[i] >= target) {
                upto -= w[i];
                j = i - 1;
            }
        }
        found = __shfl_sync(ALL, group.place(4 * u) + j, __ffs(reached) - 1);
    }
    return found;
}

// The largest key K in lo .. hi with F(K) ≥ need, F(K) the number (MASS: the weight) of values with keys ≥ K; F(lo) ≥
// need > F(hi).
// `above`: F(K + 1). Each pass divides the remaining range by eight. A K with F(K) ≤ enough is accepted: the first one
// found.
template <bool MASS>
__device__ __forceinline__ u32 select(const Row &row, Shared &s, float max, u32 lo, u32 hi, u64 need, u64 enough,
                                      u64 &above) {
    u64 found = ~0ull;
    above = 0;
    while (hi > lo && hi - lo > 1 && found > enough) {
        u32 step = (hi - lo + 7) / 8;
        u64 acc[7] = {0, 0, 0, 0, 0, 0, 0};
        for_each(row, [&](const Group &group) {
#pragma unroll
            for (i32 e = 0; e < 16; e++) {
                float x = scaled(row, group.v[e]);
                u32 key = key_of(x + 0.f);
                u64 w = MASS ? weight_of(x, max).value() : 1;
#pragma unroll
                for (u32 t = 0; t < 7; t++) {
                    if (key >= lo + step * (t + 1)) acc[t] += w;
                }
            }
        });
        __syncthreads();
#pragma unroll
        for (u32 t = 0; t < 7; t++) {
            acc[t] = warp_sum(acc[t]);
            if ((threadIdx.x & 31) == 0) s.sums[t][threadIdx.x >> 5] = acc[t];
        }
        __syncthreads();
        u32 from = lo;
        for (u32 t = 0; t < 7; t++) {
            u64 sum = warp_sum((threadIdx.x & 31) < WARPS ? s.sums[t][threadIdx.x & 31] : 0ull);
            u32 trial = from + step * (t + 1);
            if (trial >= hi) break;
            if (sum < need) {
                hi = trial;
                above = sum;
                break;
            }
            lo = trial;
            found = sum;
        }
    }
    return lo;
}

// The `rank`-th largest of the threads' keys (rank ≤ BLOCK).
__device__ __forceinline__ u32 select_thread(u32 key, u32 rank) {
    u32 found = 0;
    for (u32 bit = 0x80000000u; bit > 0; bit >>= 1) {
        if ((u32)__syncthreads_count(key >= (found | bit)) >= rank) found |= bit;
    }
    return found;
}

// Sorts in descending order (bitonic); pads with 0.
__device__ __forceinline__ void sort_listed(Shared &s, u32 count) {
    u32 size = 1;
    while (size < count) size <<= 1;
    __syncthreads();
    for (u32 i = count + threadIdx.x; i < size; i += BLOCK) s.listed[i] = 0;
    for (u32 run = 2; run <= size; run <<= 1) {
        for (u32 stride = run >> 1; stride > 0; stride >>= 1) {
            __syncthreads();
            for (u32 i = threadIdx.x; i < size / 2; i += BLOCK) {
                u32 a = 2 * i - (i & (stride - 1));
                u64 x = s.listed[a], y = s.listed[a + stride];
                if (((a & run) == 0) == (x < y)) {
                    s.listed[a] = y;
                    s.listed[a + stride] = x;
                }
            }
        }
    }
    __syncthreads();
}

// Notes a value that reaches the bound.
__device__ __forceinline__ void list(Shared &s, float x, float lower, i32 at) {
    if (!(x >= lower)) return;
    u32 place = atomicAdd(&s.num_listed, 1);
    if (place < MAX_LISTED) s.listed[place] = (u64)key_of(x + 0.f) << 32 | (u32)~at;
}
