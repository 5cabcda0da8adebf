// Logits to tokens: `argmax`, `sample`, `top_logprobs`. A row of logits is read a few times and never sorted: the kept tokens are described by
// one threshold (a key and, among its ties, an index), found among the few largest, which fit in shared memory, or by bisection over the
// bits of the floats. Probabilities are sums of integers (units of 2^-44 of the most likely), so no result depends on the order of a sum.
// Definitions: BLOCK (threads of `sample` and `top_logprobs`, a multiple of 32, at most 1024).
// check:
// check: -DBLOCK=256
#include "common.cuh"

#ifndef BLOCK
#define BLOCK 1024
#endif
#define WARPS (BLOCK / 32)
// Runs of 128 neighbours of a row; bounds the vocabulary.
#define MAX_GROUPS 4096
// The largest values that fit in shared memory.
#define MAX_LISTED 4096
#define ALL 0xffffffffu
// Keys of −∞ and of the lowest finite value.
#define KEY_NONE 0x007fffffu
#define KEY_FINITE 0x00800000u
// Weight of the most likely token.
#define ONE 17592186044416.f

// A row in pieces of four, aligned to 16 bytes: element j of chunk c is logit 4c + j − shift.
struct Row {
    const float *logits;
    i32 vocab;
    i32 shift;
    i32 chunks;
    float temperature;
};

__device__ __forceinline__ Row row_of(const float *logits, i32 vocab, float temperature) {
    i32 shift = (i32)((u64)logits >> 2 & 3);
    return {logits, vocab, shift, (vocab + shift + 3) >> 2, temperature};
}

// What lies outside of the row is −∞.
__device__ __forceinline__ float4 load4(const Row &row, i32 chunk) {
    i32 at = 4 * chunk - row.shift;
    if (at >= 0 && at + 4 <= row.vocab) return *(const float4 *)(row.logits + at);
    float v[4];
#pragma unroll
    for (i32 j = 0; j < 4; j++) v[j] = at + j >= 0 && at + j < row.vocab ? row.logits[at + j] : -INFINITY_F;
    return make_float4(v[0], v[1], v[2], v[3]);
}

// Order-preserving and back. −0 comes right before 0.
__device__ __forceinline__ u32 key_of(float x) {
    u32 bits = __float_as_uint(x);
    return bits ^ ((u32)((i32)bits >> 31) | 0x80000000u);
}
__device__ __forceinline__ float from_key(u32 key) {
    return __uint_as_float(key ^ (key & 0x80000000u ? 0x80000000u : ALL));
}

// At the row's temperature; NaN is −∞, −0 is 0.
__device__ __forceinline__ float scaled(const Row &row, float x) {
    x = fmaxf(x, -INFINITY_F);
    return (row.temperature == 1.f ? x : __fdiv_rn(x, row.temperature)) + 0.f;
}

// e^(x − max) in units of 2^-44. The difference is taken exactly, in two parts.
__device__ __forceinline__ u64 weight_of(float x, float max) {
    if (x == max) return (u64)ONE;
    float d = x - max;
    if (!(d > -31.f)) return 0;
    float b = d - x;
    float rest = (x - (d - b)) + (-max - b);
    float e = expf(d);
    return __float2ull_rn(__fmaf_rn(e, rest, e) * ONE);
}

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

// The sum over lower threads; `total`: over all.
__device__ __forceinline__ u64 block_scan(u64 x, u64 *warps, u64 &total) {
    i32 lane = threadIdx.x & 31;
    u64 upto = x;
    for (i32 step = 1; step < 32; step <<= 1) {
        u64 y = __shfl_up_sync(ALL, upto, step);
        if (lane >= step) upto += y;
    }
    __syncthreads();
    if (lane == 31) warps[threadIdx.x >> 5] = upto;
    __syncthreads();
    u64 before = 0;
    total = 0;
    for (i32 warp = 0; warp < WARPS; warp++) {
        if (warp < (i32)(threadIdx.x >> 5)) before += warps[warp];
        total += warps[warp];
    }
    return before + upto - x;
}

// Calls f(index, logit) for all four of each chunk, then g(chunk). Every thread makes the same number of calls; those past the end see −∞
// with an index outside of the row.
template <typename F, typename G> __device__ __forceinline__ void for_each(const Row &row, F f, G g) {
    for (i32 first = threadIdx.x; first - (i32)threadIdx.x < row.chunks; first += 4 * BLOCK) {
        float4 v[4];
#pragma unroll
        for (i32 u = 0; u < 4; u++) v[u] = load4(row, first + u * BLOCK);
#pragma unroll
        for (i32 u = 0; u < 4; u++) {
            i32 chunk = first + u * BLOCK, at = 4 * chunk - row.shift;
            f(at, v[u].x);
            f(at + 1, v[u].y);
            f(at + 2, v[u].z);
            f(at + 3, v[u].w);
            g(chunk);
        }
    }
}

// Shared memory of a row's block.
struct Shared {
    union {
        // Sums of 128 neighbours each.
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

// A thread's largest logit as key and inverted index; none above −∞: index 0.
struct Best {
    float value;
    u32 index;
    __device__ __forceinline__ void take(float x, i32 at) {
        if (x > value) {
            value = x;
            index = at;
        }
    }
    __device__ __forceinline__ u64 key() const { return (u64)key_of(value + 0.f) << 32 | (u32)~index; }
};

// The first index at which the running sum of f(index, logit) reaches target(total); 0 where the total is 0.
template <typename F, typename T> __device__ __forceinline__ i32 locate(const Row &row, Shared &s, F f, T target_of) {
    u64 sum = 0;
    __syncthreads();
    for_each(
        row, [&](i32 at, float x) { sum += f(at, x); },
        [&](i32 chunk) {
            u64 group = warp_sum(sum);
            if ((threadIdx.x & 31) == 0 && chunk >> 5 < MAX_GROUPS) s.groups[chunk >> 5] = group;
            sum = 0;
        });
    if (threadIdx.x == 0) s.found = ALL;
    __syncthreads();
    i32 num_groups = (row.chunks + 31) >> 5, per = (num_groups + BLOCK - 1) / BLOCK;
    i32 first = threadIdx.x * per, end = min(first + per, num_groups);
    u64 total;
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
    i32 chunk = 32 * s.found + (threadIdx.x & 31), at = 4 * chunk - row.shift;
    float4 v = load4(row, chunk);
    u64 w[4] = {f(at, v.x), f(at + 1, v.y), f(at + 2, v.z), f(at + 3, v.w)};
    u64 upto = w[0] + w[1] + w[2] + w[3];
    for (i32 step = 1; step < 32; step <<= 1) {
        u64 y = __shfl_up_sync(ALL, upto, step);
        if ((threadIdx.x & 31) >= step) upto += y;
    }
    upto += s.found_before;
    u32 reached = __ballot_sync(ALL, upto >= target);
    i32 j = 3;
    while (j > 0 && upto - w[j] >= target) upto -= w[j--];
    return __shfl_sync(ALL, at + j, __ffs(reached) - 1);
}

// The largest key K in lo .. hi with F(K) ≥ need, F(K) the number (MASS: the weight) of values with keys ≥ K; F(lo) ≥ need > F(hi).
// `above`: F(K + 1). Each pass cuts what is left into eight.
template <bool MASS>
__device__ __forceinline__ u32 select(const Row &row, Shared &s, float max, u32 lo, u32 hi, u64 need, u64 &above) {
    above = 0;
    while (hi - lo > 1) {
        u32 step = (hi - lo + 7) / 8;
        u64 acc[7] = {0, 0, 0, 0, 0, 0, 0};
        for_each(
            row,
            [&](i32, float logit) {
                float x = scaled(row, logit);
                u32 key = key_of(x);
                if (key < lo + step) return;
                u64 w = MASS ? weight_of(x, max) : 1;
#pragma unroll
                for (u32 t = 0; t < 7; t++) acc[t] += key >= lo + step * (t + 1) ? w : 0;
            },
            [](i32) {});
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

// The first position at which the running sum of f(entry) over the first `count` entries reaches target(total); `count` if none.
template <typename F, typename T> __device__ __forceinline__ u32 locate_listed(Shared &s, u32 count, F f, T target_of) {
    u32 per = (count + BLOCK - 1) / BLOCK, first = min(threadIdx.x * per, count), end = min(first + per, count);
    u64 sum = 0, total;
    for (u32 i = first; i < end; i++) sum += f(s.listed[i]);
    if (threadIdx.x == 0) s.found = count;
    u64 before = block_scan(sum, s.warps, total), target = target_of(total);
    if (before < target && target <= before + sum) {
        u32 i = first;
        while ((before += f(s.listed[i])) < target) i++;
        s.found = i;
    }
    __syncthreads();
    u32 found = s.found;
    __syncthreads();
    return found;
}

// The least key whose probability is min_p of the most likely one's.
__device__ __forceinline__ u32 min_p_key(float max, float min_p) {
    double least = (double)min_p, top = (double)max;
    u32 key = key_of((float)(top + log(least)));
    auto enough = [&](u32 k) { return exp((double)from_key(k) - top) >= least; };
    for (i32 i = 0; i < 16 && enough(key - 1); i++) key--;
    for (i32 i = 0; i < 16 && !enough(key); i++) key++;
    return key;
}

// A `SamplingRow`, as far as `sample` needs it.
struct Params {
    u32 seed_low, seed_high, prompt_len;
    float temperature;
    u32 top_k;
    float top_p, min_p;
};

// u of the sum, u = (word + ½)/2³²: rounded up to a whole.
__device__ __forceinline__ u64 part_of(u64 total, u32 word) {
    u64 odd = 2ull * word + 1, low = odd * total, high = __umul64hi(odd, total);
    u64 part = high << 31 | low >> 33;
    return part + ((low & 0x1ffffffffull) != 0);
}

__device__ __forceinline__ u64 top_p_part(u64 total, float top_p) {
    u64 part = (u64)ceil((double)top_p * (double)total);
    return part > 0 ? part : 1;
}

// Draws among the largest, if they are all that the filters leave; −1: they are not. `lower`: keys below are outside of the list, `least`:
// min_p's threshold.
__device__ __forceinline__ i32 draw_listed(const Row &row, Shared &s, const Params &p, float max, u32 lower, u32 least, u32 word) {
    bool all_mass = p.top_k == 0;
    u64 mass = 0;
    if (threadIdx.x == 0) s.num_listed = 0;
    __syncthreads();
    for_each(
        row,
        [&](i32 at, float logit) {
            float x = scaled(row, logit);
            u32 key = key_of(x);
            if (all_mass && key >= least) mass += weight_of(x, max);
            if (key < lower) return;
            u32 place = atomicAdd(&s.num_listed, 1);
            if (place < MAX_LISTED) s.listed[place] = (u64)key << 32 | (u32)~at;
        },
        [](i32) {});
    __syncthreads();
    u32 count = s.num_listed;
    if (count > MAX_LISTED || count == 0) return -1;
    sort_listed(s, count);
    if (p.top_k > 0 && p.top_k < count) {
        u32 kth = (u32)(s.listed[p.top_k - 1] >> 32);
        while (count > p.top_k && (u32)(s.listed[count - 1] >> 32) < kth) count--;
    }
    auto weight = [&](u64 entry) { return weight_of(from_key((u32)(entry >> 32)), max); };
    if (p.top_p < 1.f) {
        u64 whole = all_mass ? block_sum(mass, s.warps) : 0;
        u32 last = locate_listed(s, count, weight, [&](u64 total) { return top_p_part(all_mass ? whole : total, p.top_p); });
        if (last < count) {
            count = last + 1;
        } else if (all_mass) {
            return -1;
        }
    }
    // In index order.
    for (u32 i = threadIdx.x; i < count; i += BLOCK) s.listed[i] = s.listed[i] << 32 | s.listed[i] >> 32;
    sort_listed(s, count);
    u32 place = locate_listed(
        s, count, [&](u64 entry) { return weight_of(from_key((u32)entry), max); },
        [&](u64 total) { return part_of(total, word); });
    return (i32) ~(u32)(s.listed[min(place, count - 1)] >> 32);
}

// Draws after filters of any size.
__device__ __forceinline__ i32 draw_any(const Row &row, Shared &s, const Params &p, float max, u32 least, u32 word) {
    u32 last_tie = 0x7fffffffu;
    u64 above;
    if (p.top_k > 0 && p.top_k < (u32)row.vocab) {
        u32 kth = select<false>(row, s, max, KEY_NONE, key_of(max) + 1, p.top_k, above);
        least = kth > least ? kth : least;
    }
    if (p.top_p < 1.f) {
        u64 mass = 0;
        for_each(
            row,
            [&](i32, float logit) {
                float x = scaled(row, logit);
                if (key_of(x) >= least) mass += weight_of(x, max);
            },
            [](i32) {});
        u64 need = top_p_part(block_sum(mass, s.warps), p.top_p);
        u32 key = select<true>(row, s, max, least, key_of(max) + 1, need, above);
        u64 tie = weight_of(from_key(key), max);
        u64 ties = (need - above + tie - 1) / (tie > 0 ? tie : 1);
        last_tie = locate(
            row, s, [&](i32, float x) { return (u64)(key_of(scaled(row, x)) == key); },
            [&](u64 total) { return ties < total ? ties : total; });
        least = key;
    }
    return locate(
        row, s,
        [&](i32 at, float logit) {
            float x = scaled(row, logit);
            u32 key = key_of(x);
            return key > least || (key == least && at <= (i32)last_tie) ? weight_of(x, max) : 0ull;
        },
        [&](u64 total) { return part_of(total, word); });
}

__device__ __forceinline__ Best thread_best(const Row &row) {
    Best best = {-INFINITY_F, 0};
    for_each(row, [&](i32 at, float x) { best.take(x, at); }, [](i32) {});
    return best;
}

// One block a row.
extern "C" __global__ void __launch_bounds__(BLOCK)
    sample(const float *logits, u32 logits_stride, u32 vocab, const i32 *step_rows, u32 step_rows_stride, const u8 *row_sampling,
           u32 sampling_stride, u32 num_rows, const i32 *row_num_tokens, u32 num_tokens_stride, i32 *out, u32 out_stride) {
    __shared__ Shared s;
    wait_for_previous();
    u32 seq = blockIdx.x;
    i32 index = step_rows[(u64)seq * step_rows_stride];
    i32 *to = out + (u64)seq * out_stride;
    if (index < 0 || (u32)index >= num_rows) {
        if (threadIdx.x == 0) *to = -1;
        return;
    }
    const u32 *words = (const u32 *)(row_sampling + (u64)index * sampling_stride);
    Params p = {words[0], words[1], words[2], __uint_as_float(words[3]), words[4], __uint_as_float(words[5]), __uint_as_float(words[6])};
    Row row = row_of(logits + (u64)seq * logits_stride, (i32)vocab, p.temperature);
    Best best = thread_best(row);
    u64 top = block_max(best.key(), s.warps);
    i32 token = (i32) ~(u32)top;
    float max = scaled(row, from_key((u32)(top >> 32)));
    if (p.temperature != 0.f && max > -INFINITY_F) {
        u32 counter = (u32)row_num_tokens[(u64)index * num_tokens_stride] - p.prompt_len;
        u32 word = philox(counter, p.seed_low, p.seed_high).x;
        if (p.min_p > 0.f) {
            if (threadIdx.x == 0) s.found = min_p_key(max, p.min_p);
            __syncthreads();
        }
        u32 least = p.min_p > 0.f ? s.found : KEY_FINITE;
        token = -1;
        if (p.top_k > 0 ? p.top_k <= BLOCK / 2 : p.top_p < 1.f) {
            u32 lower = select_thread(key_of(scaled(row, best.value)), p.top_k > 0 ? p.top_k : BLOCK / 4);
            token = draw_listed(row, s, p, max, lower > least ? lower : least, least, word);
        }
        if (token < 0) token = draw_any(row, s, p, max, least, word);
    }
    let_next_start();
    if (threadIdx.x == 0) *to = token;
}

// One block a row: log-probability and rank of the chosen token, and the k most likely.
extern "C" __global__ void __launch_bounds__(BLOCK)
    top_logprobs(const float *logits, u32 logits_stride, u32 vocab, const i32 *chosen, u32 chosen_stride, float *chosen_logprobs,
                 u32 logprobs_stride, i32 *chosen_ranks, u32 ranks_stride, i32 *top_tokens, u32 top_tokens_stride, float *top_logprobs,
                 u32 top_logprobs_stride, u32 k) {
    __shared__ Shared s;
    wait_for_previous();
    u32 n = blockIdx.x;
    Row row = row_of(logits + (u64)n * logits_stride, (i32)vocab, 1.f);
    i32 token = chosen[(u64)n * chosen_stride];
    bool is_chosen = token >= 0 && (u32)token < vocab;
    float mine = is_chosen ? row.logits[token] : INFINITY_F;
    Best best = thread_best(row);
    float max = from_key((u32)(block_max(best.key(), s.warps) >> 32));
    bool few = k > 0 && k <= BLOCK / 2;
    u32 lower = few ? select_thread(key_of(best.value + 0.f), k) : ALL;
    if (threadIdx.x == 0) s.num_listed = 0;
    __syncthreads();
    auto list = [&](u32 key, i32 at) {
        u32 place = atomicAdd(&s.num_listed, 1);
        if (place < MAX_LISTED) s.listed[place] = (u64)key << 32 | (u32)~at;
    };
    u64 mass = 0, greater = 0;
    for_each(
        row,
        [&](i32 at, float logit) {
            float x = scaled(row, logit);
            mass += weight_of(x, max);
            greater += logit > mine;
            if (key_of(x) >= lower && (u32)at < vocab) list(key_of(x), at);
        },
        [](i32) {});
    float norm = (float)log((double)block_sum(mass, s.warps) * (1.0 / ONE));
    u64 rank = block_sum(greater, s.warps) + 1;
    if (threadIdx.x == 0) {
        chosen_logprobs[(u64)n * logprobs_stride] = is_chosen ? (mine - max) - norm : 0.f;
        chosen_ranks[(u64)n * ranks_stride] = is_chosen ? (i32)rank : 0;
    }
    if (k == 0) return;
    if (!few || s.num_listed > MAX_LISTED) {
        // Many ties, or many wanted: the k-th value first.
        u64 above;
        u32 kth = select<false>(row, s, max, KEY_NONE, key_of(max) + 1, k, above);
        i32 last_tie = locate(
            row, s, [&](i32 at, float x) { return (u64)(key_of(scaled(row, x)) == kth && (u32)at < vocab); },
            [&](u64) { return k - above; });
        __syncthreads();
        if (threadIdx.x == 0) s.num_listed = 0;
        __syncthreads();
        for_each(
            row,
            [&](i32 at, float logit) {
                u32 key = key_of(scaled(row, logit));
                if ((u32)at < vocab && (key > kth || (key == kth && at <= last_tie))) list(key, at);
            },
            [](i32) {});
        __syncthreads();
    }
    let_next_start();
    sort_listed(s, min(s.num_listed, MAX_LISTED));
    for (u32 i = threadIdx.x; i < k; i += BLOCK) {
        u64 entry = s.listed[i];
        top_tokens[(u64)n * top_tokens_stride + i] = (i32) ~(u32)entry;
        top_logprobs[(u64)n * top_logprobs_stride + i] = (from_key((u32)(entry >> 32)) - max) - norm;
    }
}

#define ARGMAX_THREADS 1024

// The part of a row that block `part` of `parts` sees, over the block.
__device__ __forceinline__ u64 argmax_part_of(const float *logits, u32 vocab, u32 part, u32 parts, u64 *warps) {
    Row row = row_of(logits, (i32)vocab, 1.f);
    Best best = {-INFINITY_F, 0};
    i32 step = parts * ARGMAX_THREADS;
    for (i32 first = part * ARGMAX_THREADS + threadIdx.x; first < row.chunks; first += 4 * step) {
        float4 v[4];
#pragma unroll
        for (i32 u = 0; u < 4; u++) v[u] = load4(row, first + u * step);
#pragma unroll
        for (i32 u = 0; u < 4; u++) {
            i32 at = 4 * (first + u * step) - row.shift;
            best.take(v[u].x, at);
            best.take(v[u].y, at + 1);
            best.take(v[u].z, at + 2);
            best.take(v[u].w, at + 3);
        }
    }
    let_next_start();
    return block_max(best.key(), warps);
}

// A block a row.
extern "C" __global__ void __launch_bounds__(ARGMAX_THREADS) argmax_1(const float *logits, u32 stride, u32 vocab, i32 *out, u32 out_stride) {
    __shared__ u64 warps[32];
    wait_for_previous();
    u64 best = argmax_part_of(logits + (u64)blockIdx.y * stride, vocab, 0, 1, warps);
    if (threadIdx.x == 0) out[(u64)blockIdx.y * out_stride] = (i32) ~(u32)best;
}

// gridDim.x blocks a row, joined by a second launch: where there are no clusters.
extern "C" __global__ void __launch_bounds__(ARGMAX_THREADS) argmax_part(const float *logits, u32 stride, u32 vocab, u64 *parts) {
    __shared__ u64 warps[32];
    wait_for_previous();
    u64 best = argmax_part_of(logits + (u64)blockIdx.y * stride, vocab, blockIdx.x, gridDim.x, warps);
    if (threadIdx.x == 0) parts[blockIdx.y * gridDim.x + blockIdx.x] = best;
}
extern "C" __global__ void argmax_join(const u64 *parts, u32 num_parts, i32 *out, u32 out_stride) {
    wait_for_previous();
    u64 best = warp_max(threadIdx.x < num_parts ? parts[blockIdx.x * num_parts + threadIdx.x] : 0ull);
    if (threadIdx.x == 0) out[(u64)blockIdx.x * out_stride] = (i32) ~(u32)best;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// A cluster a row: each block leaves its best in the first one's shared memory.
template <u32 PARTS> __device__ __forceinline__ void argmax_cluster(const float *logits, u32 stride, u32 vocab, i32 *out, u32 out_stride) {
    __shared__ u64 warps[32];
    __shared__ u64 parts[PARTS];
    // The first block must run before others write to it; its start is waited for behind the reads.
    asm volatile("barrier.cluster.arrive.relaxed.aligned;");
    wait_for_previous();
    u64 best = argmax_part_of(logits + (u64)blockIdx.y * stride, vocab, blockIdx.x, PARTS, warps);
    asm volatile("barrier.cluster.wait.aligned;");
    if (threadIdx.x == 0) {
        u32 mine, first;
        asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(mine) : "l"(&parts[blockIdx.x]));
        asm("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(first) : "r"(mine));
        asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(first), "l"(best) : "memory");
    }
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    if (blockIdx.x == 0 && threadIdx.x < 32) {
        best = warp_max(threadIdx.x < PARTS ? parts[threadIdx.x] : 0ull);
        if (threadIdx.x == 0) out[(u64)blockIdx.y * out_stride] = (i32) ~(u32)best;
    }
}
#define ARGMAX_CLUSTER(parts)                                                                                             \
    extern "C" __global__ void __cluster_dims__(parts, 1, 1) __launch_bounds__(ARGMAX_THREADS)                            \
        argmax_##parts(const float *logits, u32 stride, u32 vocab, i32 *out, u32 out_stride) {                            \
        argmax_cluster<parts>(logits, stride, vocab, out, out_stride);                                                    \
    }
ARGMAX_CLUSTER(2)
ARGMAX_CLUSTER(4)
ARGMAX_CLUSTER(8)
#endif
