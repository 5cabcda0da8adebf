// `sample`: a token per row. The tokens that the filters keep are described by one threshold (a key and, among its
// ties, an index), which is found among the few largest, where these are all that is kept, or by bisection.
// Probabilities are sums of integers, so that no draw depends on the order of a sum.
// Definitions: as logits.cuh.
// revision: 1
// check:
// check: -DBLOCK=256
#include "logits.cuh"

// The first position at which the running sum of f(entry) over the first `count` entries reaches target(total); `count`
// if none.
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

// Draws among the largest, if they are all that the filters leave; −1: they are not. `lower`: keys below are outside of
// the list, `least`: min_p's threshold.
__device__ __forceinline__ i32 draw_listed(const Row &row, Shared &s, const Params &p, float max, u32 lower, u32 least,
                                           u32 word) {
    bool all_mass = p.top_k == 0;
    float least_value = from_key(least), lower_value = from_key(lower);
    u64 mass = 0;
    if (threadIdx.x == 0) s.num_listed = 0;
    __syncthreads();
    for_each(row, [&](const Group &group) {
        Weight sum = {0, 0};
        float top = -INFINITY_F;
#pragma unroll
        for (i32 e = 0; e < 16; e++) {
            float x = scaled(row, group.v[e]);
            top = fmaxf(top, x);
            if (all_mass) sum.add(weight_of(x, max), x >= least_value);
        }
        mass += sum.value();
        if (top < lower_value) return;
#pragma unroll
        for (i32 e = 0; e < 16; e++) list(s, scaled(row, group.v[e]), lower_value, group.place(e));
    });
    __syncthreads();
    u32 count = s.num_listed;
    if (count > MAX_LISTED || count == 0) return -1;
    sort_listed(s, count);
    if (p.top_k > 0 && p.top_k < count) {
        u32 kth = (u32)(s.listed[p.top_k - 1] >> 32);
        while (count > p.top_k && (u32)(s.listed[count - 1] >> 32) < kth) count--;
    }
    auto weight = [&](u64 entry) { return weight_of(from_key((u32)(entry >> 32)), max).value(); };
    if (p.top_p < 1.f) {
        u64 whole = all_mass ? block_sum(mass, s.warps) : 0;
        u32 last = locate_listed(s, count, weight,
                                 [&](u64 total) { return top_p_part(all_mass ? whole : total, p.top_p); });
        if (last < count) {
            count = last + 1;
        } else if (all_mass) {
            return -1;
        }
    }
    // In index order. Every thread has read what it needs of the other one.
    __syncthreads();
    for (u32 i = threadIdx.x; i < count; i += BLOCK) s.listed[i] = s.listed[i] << 32 | s.listed[i] >> 32;
    sort_listed(s, count);
    u32 place = locate_listed(
        s, count, [&](u64 entry) { return weight_of(from_key((u32)entry), max).value(); },
        [&](u64 total) { return part_of(total, word); });
    return (i32) ~(u32)(s.listed[min(place, count - 1)] >> 32);
}

// Draws after filters of any size.
__device__ __forceinline__ i32 draw_any(const Row &row, Shared &s, const Params &p, float max, u32 least, u32 word) {
    u32 last_tie = 0x7fffffffu;
    u64 above;
    if (p.top_k > 0) {
        u32 kth = select<false>(row, s, max, KEY_NONE, key_of(max) + 1, p.top_k, 0, above);
        least = kth > least ? kth : least;
    }
    if (p.top_p < 1.f) {
        float least_value = from_key(least);
        u64 mass = row_sum(row, s, [&](i32, float logit) {
            float x = scaled(row, logit);
            Weight sum = {0, 0};
            sum.add(weight_of(x, max), x >= least_value);
            return sum;
        });
        u64 need = top_p_part(mass, p.top_p);
        u32 key = select<true>(row, s, max, least, key_of(max) + 1, need, 0, above);
        u64 tie = weight_of(from_key(key), max).value();
        u64 ties = (need - above + tie - 1) / (tie > 0 ? tie : 1);
        float value = from_key(key);
        last_tie = locate(
            row, s, [&](i32, float x) { return Weight{0, (u32)(scaled(row, x) == value)}; },
            [&](u64 total) { return ties < total ? ties : total; });
        least = key;
    }
    float threshold = from_key(least);
    return locate(
        row, s,
        [&](i32 at, float logit) {
            float x = scaled(row, logit);
            Weight sum = {0, 0};
            sum.add(weight_of(x, max), x > threshold || (x == threshold && at <= (i32)last_tie));
            return sum;
        },
        [&](u64 total) { return part_of(total, word); });
}

// One block a row.
extern "C" __global__ void __launch_bounds__(BLOCK)
    sample(const float *logits, u32 logits_stride, u32 vocab, const i32 *step_rows, u32 step_rows_stride,
           const u8 *row_sampling, u32 sampling_stride, u32 num_rows, const i32 *row_num_tokens, u32 num_tokens_stride,
           i32 *out, u32 out_stride) {
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
    Params p = {words[0],
                words[1],
                words[2],
                __uint_as_float(words[3]),
                words[4],
                __uint_as_float(words[5]),
                __uint_as_float(words[6])};
    // No temperature: the largest. Extreme ones still have an inverse.
    bool is_greedy = !(p.temperature > 0.f);
    Row row = row_of(logits + (u64)seq * logits_stride, (i32)vocab,
                     is_greedy ? 1.f : fminf(fmaxf(p.temperature, 1e-30f), 1e30f));
    Best best = thread_best(row);
    u64 top = block_max(best.key(), s.warps);
    i32 token = token_of(top);
    float max = scaled(row, from_key((u32)(top >> 32))) + 0.f;
    if (!is_greedy && token >= 0 && max > -INFINITY_F) {
        u32 counter = (u32)row_num_tokens[(u64)index * num_tokens_stride] - p.prompt_len;
        u32 word = philox(counter, p.seed_low, p.seed_high).x;
        if (p.min_p > 0.f) {
            if (threadIdx.x == 0) s.found = min(min_p_key(max, p.min_p), key_of(max));
            __syncthreads();
        }
        u32 least = p.min_p > 0.f ? s.found : KEY_FINITE;
        token = -1;
        if (p.top_k >= vocab) p.top_k = 0;
        if (p.top_k > 0 ? p.top_k <= MAX_LISTED : p.top_p < 1.f) {
            // At least as many values as top_k are not below the largest of as many threads.
            u32 lower;
            u64 above;
            if (p.top_k > BLOCK / 2) {
                lower = select<false>(row, s, max, KEY_NONE, key_of(max) + 1, p.top_k, MAX_LISTED, above);
            } else {
                lower = select_thread(scaled_key(row, best.value), p.top_k > 0 ? p.top_k : BLOCK / 4);
            }
            token = draw_listed(row, s, p, max, lower > least ? lower : least, least, word);
        }
        if (token < 0) token = draw_any(row, s, p, max, least, word);
    }
    let_next_start();
    if (threadIdx.x == 0) *to = min(token, (i32)vocab - 1);
}
