#version 460
#extension GL_GOOGLE_include_directive : enable
// `top_logprobs`: log-probability and rank of a chosen token, and the most likely ones.
// Definitions: none.
// revision: 1
// check: top_logprobs
#include "logits.glsl"

// The largest values of a row, unsorted: their indices.
#define MAX_LISTED 4096
shared u32 listed[MAX_LISTED];
shared u32 num_listed;

// One block a row: log-probability and rank of the chosen token, and the k most likely (0: none are wanted).
PARAMETERS(u64 logits; u32 logits_stride; u32 vocab; u64 chosen; u32 chosen_stride; u64 chosen_logprobs;
           u32 logprobs_stride; u64 chosen_ranks; u32 ranks_stride; u64 top_tokens; u32 top_tokens_stride;
           u64 top_logprobs; u32 top_logprobs_stride; u32 k;)

// Lists the k largest, of equal ones those of the lowest index.
void list_largest(Row row, float largest, u32 k) {
    u64 above;
    float kth = from_key(select_key(row, false, largest, k, above));
    Part equal = Part(true, kth, 0, largest);
    Survey all = survey(row, equal);
    u32 last_tie = locate(row, equal, all, k - above);
    if (THREAD == 0) num_listed = 0;
    barrier();
    for (u32 i = THREAD; i < row.vocab; i += THREADS) {
        float x = scaled(row, i);
        if (x > kth || (x == kth && i <= last_tie)) {
            u32 place = atomicAdd(num_listed, 1);
            if (place < MAX_LISTED) listed[place] = i;
        }
    }
    barrier();
}

void main() {
    u32 n = gl_WorkGroupID.x;
    Row row = Row(p.logits + u64(n) * p.logits_stride * 4, p.vocab, 1.0);
    u32 token = Words(p.chosen + u64(n) * p.chosen_stride * 4).at[0];
    bool is_chosen = token < p.vocab;
    float mine = INFINITY;
    if (is_chosen) mine = scaled(row, token);
    u64 best = block_max(best_of(row.logits, p.vocab, THREAD, THREADS));
    u32 k = min(p.k, MAX_LISTED);
    if (!has_token(best)) {
        // Without a distribution there are no log-probabilities.
        if (THREAD == 0) {
            Words(p.chosen_logprobs + u64(n) * p.logprobs_stride * 4).at[0] = 0x7fc00000u;
            Ints(p.chosen_ranks + u64(n) * p.ranks_stride * 4).at[0] = 0;
        }
        for (u32 i = THREAD; i < k; i += THREADS) {
            Words(p.top_tokens + u64(n) * p.top_tokens_stride * 4).at[i] = 0;
            Words(p.top_logprobs + u64(n) * p.top_logprobs_stride * 4).at[i] = 0x7fc00000u;
        }
        return;
    }
    float largest = at_temperature(from_key(u32(best >> 32)), 1.0);
    u64 mass = 0, greater = 0;
    for (u32 i = THREAD; i < p.vocab; i += THREADS) {
        float x = scaled(row, i);
        mass += weight_of(x, largest);
        greater += u64(x > mine);
    }
    float norm = log_of(float(block_sum(mass)) * (1.0 / 8796093022208.0));
    u64 rank = block_sum(greater) + 1;
    if (THREAD == 0) {
        Floats(p.chosen_logprobs + u64(n) * p.logprobs_stride * 4).at[0] = is_chosen ? (mine - largest) - norm : 0.0;
        Ints(p.chosen_ranks + u64(n) * p.ranks_stride * 4).at[0] = is_chosen ? i32(rank) : 0;
    }
    if (k == 0) return;
    list_largest(row, largest, k);
    // The place of each is the number of those that come before it.
    u32 count = min(num_listed, k);
    for (u32 i = THREAD; i < count; i += THREADS) {
        u32 index = listed[i], place = 0;
        float x = scaled(row, index);
        for (u32 j = 0; j < count; j++) {
            u32 other = listed[j];
            float y = scaled(row, other);
            place += u32(y > x || (y == x && other < index));
        }
        Words(p.top_tokens + u64(n) * p.top_tokens_stride * 4).at[place] = index;
        Floats(p.top_logprobs + u64(n) * p.top_logprobs_stride * 4).at[place] = (x - largest) - norm;
    }
}
