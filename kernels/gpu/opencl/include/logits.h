// What the ops over a row of logits share: keys that order floats, probabilities as integers, and the two ways of
// finding values without sorting the row: by place in the row (`locate`) and by size (`largest_key`; of many, a list in
// local memory).
//
// Work-item i of a group sees the i-th run of neighbours of the row, so that running sums follow from one scan over the
// group.
// Definitions: BLOCK (work-items of a row's group, a multiple of 32, at most 1024).
// revision: 1
#ifndef HALYARD_LOGITS_H
#define HALYARD_LOGITS_H
#include "common.h"

// Sums and quotients here round as they are written.
#pragma OPENCL FP_CONTRACT OFF

#ifndef BLOCK
#define BLOCK 1024
#endif
// The largest values that fit in local memory.
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
// 2^43: the weight of the most likely token.
#define WEIGHT_ONE 8796093022208.f

// This work-item's run, `first` .. `end` of a row.
typedef struct {
    const __global float *logits;
    u32 first, end;
    float temperature, inverse;
} Row;

// The run of work-item `id` of `count` in first .. end.
INLINE Row run_of(const __global float *logits, u32 first, u32 end, u32 id, u32 count, float temperature) {
    u32 each = (end - first + count - 1) / count, from = min(first + id * each, end);
    Row row = {logits, from, min(from + each, end), temperature, divide_exactly(1.f, temperature)};
    return row;
}
INLINE Row row_of(const __global float *logits, u32 vocab, float temperature) {
    return run_of(logits, 0, vocab, get_local_id(0), BLOCK, temperature);
}

// Order-preserving and back. −0 comes right before 0.
INLINE u32 key_of(float x) {
    u32 bits = as_uint(x);
    return bits ^ ((u32)((i32)bits >> 31) | 0x80000000u);
}
INLINE float from_key(u32 key) { return as_float(key ^ (key & 0x80000000u ? 0x80000000u : ALL)); }

// At the row's temperature; NaN is −∞, ∞ the largest number. The quotient is corrected once, and so rounded as a
// division rounds it.
INLINE float scaled(const Row *row, float x) {
    x = isnan(x) ? -INFINITY : fmin(x, LARGEST);
    float q = x * row->inverse;
    float better = fma(fma(-q, row->temperature, x), row->inverse, q);
    return isfinite(q) ? better : fmin(q, LARGEST);
}
// Its key; that of −0 is 0's.
INLINE u32 scaled_key(const Row *row, float x) { return key_of(scaled(row, x) + 0.f); }

// e^(x − max) in parts of 2^-43, cut off.
INLINE u64 weight_of(float x, float max) { return x > -INFINITY ? (u64)(exp(x - max) * WEIGHT_ONE) : 0; }

// Local memory of a row's group.
typedef struct {
    // Key, then inverted index: descending order is by value, then by index.
    u64 listed[MAX_LISTED];
    u64 words[BLOCK];
    u64 sums[BLOCK / 32];
    u32 num_listed;
    u32 found;
} Shared;

// Over the group, for every work-item.
INLINE u64 row_max(u64 x, __local Shared *s) {
    u32 id = get_local_id(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    s->words[id] = x;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (id % 32 == 0) {
        u64 best = 0;
        for (u32 i = id; i < id + 32; i++) best = max(best, s->words[i]);
        s->sums[id / 32] = best;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    u64 best = 0;
    for (u32 i = 0; i < BLOCK / 32; i++) best = max(best, s->sums[i]);
    return best;
}

// The sum over lower work-items; `total`: over all.
INLINE u64 block_scan(u64 x, __local Shared *s, u64 *total) {
    u32 id = get_local_id(0), run = id / 32;
    barrier(CLK_LOCAL_MEM_FENCE);
    s->words[id] = x;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (id % 32 == 0) {
        u64 sum = 0;
        for (u32 i = id; i < id + 32; i++) sum += s->words[i];
        s->sums[run] = sum;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    u64 before = 0, all = 0;
    for (u32 i = 0; i < BLOCK / 32; i++) {
        before += i < run ? s->sums[i] : 0;
        all += s->sums[i];
    }
    for (u32 i = 32 * run; i < id; i++) before += s->words[i];
    *total = all;
    return before;
}

INLINE u64 row_sum(u64 x, __local Shared *s) {
    u64 total;
    block_scan(x, s, &total);
    return total;
}

// A row's token by its largest logit's key and inverted index, or what stands in its place.
INLINE i32 token_of(u64 best) {
    u32 key = (u32)(best >> 32);
    return key >= KEY_INFINITY ? NOT_FINITE : key <= KEY_NONE ? NO_TOKEN : (i32) ~(u32)best;
}

// A run's largest logit as key and inverted index; none above −∞: index 0. A NaN counts as +∞, which no row may hold.
INLINE u64 best_of(const Row *row, float *value) {
    float best = -INFINITY;
    u32 index = 0;
    for (u32 i = row->first; i < row->end; i++) {
        float x = row->logits[i];
        x = isnan(x) ? INFINITY : x;
        if (x > best) {
            best = x;
            index = i;
        }
    }
    *value = best;
    return (u64)key_of(best + 0.f) << 32 | (u32)~index;
}

// What a value counts: its weight if it is above the threshold, or equal and not after `last_tie`; with TIES, one where
// it is equal.
#define MASS 0
#define TIES 1
INLINE u64 count_of(const Row *row, u32 kind, float max, float threshold, u32 last_tie, u32 i) {
    float x = scaled(row, row->logits[i]);
    if (kind == TIES) return x == threshold;
    return x > threshold || (x == threshold && i <= last_tie) ? weight_of(x, max) : 0;
}
INLINE u64 run_sum(const Row *row, u32 kind, float max, float threshold, u32 last_tie) {
    u64 sum = 0;
    for (u32 i = row->first; i < row->end; i++) sum += count_of(row, kind, max, threshold, last_tie, i);
    return sum;
}

// The first index at which the row's running sum reaches the target; 0 where it never does. `before` and `mine`: the
// sum before this run, and its own.
INLINE u32 locate(const Row *row, __local Shared *s, u32 kind, float max, float threshold, u32 last_tie, u64 before,
                  u64 mine, u64 target) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (get_local_id(0) == 0) s->found = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (before < target && target <= before + mine) {
        u32 i = row->first;
        while ((before += count_of(row, kind, max, threshold, last_tie, i)) < target) i++;
        s->found = i;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return s->found;
}

// The largest key K in lo .. hi with F(K) ≥ need, F(K) the number (is_mass: the weight) of values with keys ≥ K; F(lo)
// ≥ need > F(hi).
// `above`: F(K + 1). Each pass cuts what is left at CUTS places. Uses the list's memory.
#define CUTS 4
INLINE u32 largest_key(const Row *row, __local Shared *s, bool is_mass, float max_value, u32 lo, u32 hi, u64 need,
                       u64 *above) {
    u32 id = get_local_id(0);
    *above = 0;
    while (hi > lo && hi - lo > 1) {
        u32 step = (hi - lo + CUTS) / (CUTS + 1), from = lo;
        u64 counts[CUTS] = {0, 0, 0, 0};
        for (u32 i = row->first; i < row->end; i++) {
            float x = scaled(row, row->logits[i]);
            u32 key = key_of(x + 0.f);
            u64 weight = is_mass ? weight_of(x, max_value) : 1;
#pragma unroll
            for (u32 t = 0; t < CUTS; t++) counts[t] += key - from >= step * (t + 1) && key >= from ? weight : 0;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (u32 t = 0; t < CUTS; t++) s->listed[CUTS * id + t] = counts[t];
        barrier(CLK_LOCAL_MEM_FENCE);
        if (id < BLOCK / 32 * CUTS) {
            u64 sum = 0;
            for (u32 i = 0; i < 32; i++) sum += s->listed[CUTS * (id / CUTS * 32 + i) + id % CUTS];
            s->words[id] = sum;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        bool is_cut = false;
        for (u32 t = 0; t < CUTS; t++) {
            u64 sum = 0;
            for (u32 i = 0; i < BLOCK / 32; i++) sum += s->words[CUTS * i + t];
            u32 trial = from + step * (t + 1);
            if (is_cut || trial >= hi || trial < from) {
                is_cut = true;
            } else if (sum < need) {
                hi = trial;
                *above = sum;
                is_cut = true;
            } else {
                lo = trial;
            }
        }
    }
    return lo;
}

// The `rank`-th largest of the work-items' keys (1 ≤ rank ≤ BLOCK).
INLINE u32 ranked_key(u32 key, u32 rank, __local Shared *s) {
    u32 id = get_local_id(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    s->words[id] = key;
    barrier(CLK_LOCAL_MEM_FENCE);
    u32 above = 0, equal = 0;
    for (u32 i = 0; i < BLOCK; i++) {
        u32 other = (u32)s->words[i];
        above += other > key;
        equal += other == key;
    }
    // All that hold the key write the same.
    if (above < rank && rank <= above + equal) s->found = key;
    barrier(CLK_LOCAL_MEM_FENCE);
    return s->found;
}

// Sorts in descending order (bitonic); pads with 0.
INLINE void sort_listed(__local Shared *s, u32 count) {
    u32 size = 1, id = get_local_id(0);
    while (size < count) size <<= 1;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (u32 i = count + id; i < size; i += BLOCK) s->listed[i] = 0;
    for (u32 run = 2; run <= size; run <<= 1) {
        for (u32 stride = run >> 1; stride > 0; stride >>= 1) {
            barrier(CLK_LOCAL_MEM_FENCE);
            for (u32 i = id; i < size / 2; i += BLOCK) {
                u32 a = 2 * i - (i & (stride - 1));
                u64 x = s->listed[a], y = s->listed[a + stride];
                if (((a & run) == 0) == (x < y)) {
                    s->listed[a] = y;
                    s->listed[a + stride] = x;
                }
            }
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

INLINE void start_list(__local Shared *s) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (get_local_id(0) == 0) s->num_listed = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
}
// Notes a value.
INLINE void list_value(__local Shared *s, float x, u32 at) {
    u32 place = atomic_inc(&s->num_listed);
    if (place < MAX_LISTED) s->listed[place] = (u64)key_of(x + 0.f) << 32 | (u32)~at;
}

#endif
