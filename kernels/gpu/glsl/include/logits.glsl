// What the ops over a row of logits share: keys that order floats, probabilities as integers, and the two ways of
// finding values without sorting the row: by place in the row (`survey`, `locate`) and by size (`select_key`). A
// workgroup of at least 256 threads has a row.
// revision: 1
#ifndef LOGITS_GLSL
#define LOGITS_GLSL
#include "functions.glsl"
#include "lanes.glsl"

#define LARGEST uintBitsToFloat(0x7f7fffffu)
// Keys of −∞ and of the lowest finite value.
#define KEY_NONE 0x007fffffu
#define KEY_FINITE 0x00800000u
// The key of +∞.
#define KEY_INFINITY 0xff800000u
// In place of a token: the row holds a NaN or +∞; the row holds −∞ alone.
#define NOT_FINITE 0xfffffffeu
#define NO_TOKEN 0xfffffffdu

// A row at its temperature.
struct Row {
    u64 logits;
    u32 vocab;
    float inverse;
};

// Order-preserving and back. −0 and 0 have one key.
u32 key_of(float x) {
    u32 bits = x == 0.0 ? 0 : floatBitsToUint(x);
    return bits ^ (u32(i32(bits) >> 31) | 0x80000000u);
}
float from_key(u32 key) { return uintBitsToFloat(key ^ ((key & 0x80000000u) != 0 ? 0x80000000u : 0xffffffffu)); }

// NaN is −∞, ∞ the largest number.
float at_temperature(float x, float inverse) { return is_nan(x) ? -INFINITY : min(min(x, LARGEST) * inverse, LARGEST); }
float scaled(Row row, u32 i) { return at_temperature(Floats(row.logits).at[i], row.inverse); }

// A probability in parts of the most likely one's, 2^-43 each: what e^(x − max) is cut off to, so that sums do not
// depend on their order. All steps but the power are exact.
u64 weight_of(float x, float largest) {
    float e = exp_of(x - largest) * 1048576.0;
    if (is_nan(e)) return 0ul;
    float high = floor(e);
    return (u64(u32(high)) << 23) + u32((e - high) * 8388608.0);
}

shared u64 exchange64[THREADS];
shared u64 partial64[32];

// Over the workgroup, for every thread.
u64 block_sum(u64 x) {
    u64 sum = 0;
    barrier();
    exchange64[THREAD] = x;
    barrier();
    if (THREAD < WARPS) {
        for (u32 i = 0; i < 32; i++) sum += exchange64[32 * THREAD + i];
        partial64[THREAD] = sum;
    }
    barrier();
    sum = 0;
    for (u32 i = 0; i < WARPS; i++) sum += partial64[i];
    return sum;
}
// The sum over lower threads; `total`: over all.
u64 block_scan(u64 x, out u64 total) {
    total = block_sum(x);
    u64 before = 0;
    for (u32 i = 0; i < THREAD / 32; i++) before += partial64[i];
    for (u32 i = THREAD & ~31u; i < THREAD; i++) before += exchange64[i];
    return before;
}
u32 block_max(u32 x) {
    barrier();
    exchange[THREAD] = x;
    barrier();
    u32 largest = 0;
    if (THREAD < WARPS) {
        for (u32 i = 0; i < 32; i++) largest = max(largest, exchange[32 * THREAD + i]);
        partial[THREAD] = largest;
    }
    barrier();
    largest = 0;
    for (u32 i = 0; i < WARPS; i++) largest = max(largest, partial[i]);
    return largest;
}
u64 block_max(u64 x) {
    u32 high = block_max(u32(x >> 32));
    u32 low = block_max(u32(x >> 32) == high ? u32(x) : 0u);
    return u64(high) << 32 | low;
}

// A row's token by its largest logit's key and inverted index, or the code for a row without a token.
bool has_token(u64 best) { return u32(best >> 32) > KEY_NONE && u32(best >> 32) < KEY_INFINITY; }
u32 token_of(u64 best) {
    return has_token(best) ? ~u32(best) : u32(best >> 32) >= KEY_INFINITY ? NOT_FINITE : NO_TOKEN;
}

// The largest of the values first, first + step, ..: its key, then its inverted index, so that the lowest of equals
// wins; none above −∞: index 0. A NaN counts as +∞, which no row may hold.
u64 best_of(u64 logits, u32 vocab, u32 first, u32 step) {
    float value = -INFINITY;
    u32 index = 0;
    for (u32 i = first; i < vocab; i += step) {
        float x = Floats(logits).at[i];
        if (is_nan(x)) x = INFINITY;
        if (x > value) {
            value = x;
            index = i;
        }
    }
    return u64(key_of(value)) << 32 | ~index;
}

// What `survey` adds up: weights of values above a threshold, and of equal ones up to an index; or the number of equal
// ones.
struct Part {
    bool count;
    float threshold;
    u32 last_tie;
    float largest;
};
u64 part_at(Row row, Part part, u32 i) {
    float x = scaled(row, i);
    if (part.count) return u64(x == part.threshold);
    return x > part.threshold || (x == part.threshold && i <= part.last_tie) ? weight_of(x, part.largest) : 0ul;
}

// A thread's run of neighbours, what it and the ones before add up to, and the row's sum.
struct Survey {
    u32 first, end;
    u64 before, mine, total;
};
Survey survey(Row row, Part part) {
    Survey found;
    u32 each = (row.vocab + THREADS - 1) / THREADS;
    found.first = min(THREAD * each, row.vocab);
    found.end = min(found.first + each, row.vocab);
    found.mine = 0;
    for (u32 i = found.first; i < found.end; i++) found.mine += part_at(row, part, i);
    found.before = block_scan(found.mine, found.total);
    return found;
}

shared u32 located;
shared u64 located_before;

// The first index at which the running sum reaches the target; 0 where there is none.
u32 locate(Row row, Part part, Survey found, u64 target) {
    barrier();
    if (THREAD == 0) located = 0;
    barrier();
    if (found.before < target && target <= found.before + found.mine) {
        u32 i = found.first;
        u64 sum = found.before + part_at(row, part, i);
        while (sum < target) sum += part_at(row, part, ++i);
        located = i;
    }
    barrier();
    return located;
}

// What values with one of 256 digits count: the upper word takes the carries.
shared u32 bins_low[256];
shared u32 bins_high[256];

// The largest key K with F(K) ≥ need, F(K) the number (mass: the weight) of values with keys ≥ K; `above`: F(K + 1). A
// digit of eight bits a pass.
u32 select_key(Row row, bool mass, float largest, u64 need, out u64 above) {
    u32 prefix = 0, known = 0;
    above = 0;
    for (i32 shift = 24; shift >= 0; shift -= 8) {
        barrier();
        for (u32 i = THREAD; i < 256; i += THREADS) bins_low[i] = bins_high[i] = 0;
        if (THREAD == 0) {
            located = 0;
            located_before = 0;
        }
        barrier();
        for (u32 i = THREAD; i < row.vocab; i += THREADS) {
            float x = scaled(row, i);
            u32 key = key_of(x);
            if ((key & known) != prefix) continue;
            u64 weight = mass ? weight_of(x, largest) : 1ul;
            u32 digit = key >> shift & 255u, low = u32(weight), high = u32(weight >> 32);
            if (atomicAdd(bins_low[digit], low) > 0xffffffffu - low) high++;
            if (high > 0) atomicAdd(bins_high[digit], high);
        }
        barrier();
        // Thread t has the digit 255 - t.
        u64 mine = 0, total;
        if (THREAD < 256) mine = u64(bins_high[255 - THREAD]) << 32 | bins_low[255 - THREAD];
        u64 before = above + block_scan(mine, total);
        if (before < need && need <= before + mine) {
            located = 255 - THREAD;
            located_before = before;
        }
        barrier();
        prefix |= located << shift;
        known |= 255u << shift;
        above = located_before;
    }
    return prefix;
}
#endif
