// Device rows and steps: `prepare_inputs`, `slot_mapping`, `update_rows`. A few thousand integers a step: what counts
// is the chain of dependent loads, not their number. An index outside its tensor (a caller's bug) is taken as padding.
//
// Definitions: none.
// revision: 1
// check:
#include "common.cuh"

// Threads of a block of prepare_inputs.
#define THREADS 256

// The sum of `x` over all threads before this one, and in `total` over all. One barrier before and one after `shared`
// is used.
__device__ __forceinline__ u32 sum_before(u32 x, u32 *shared, u32 &total) {
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, sum = x;
#pragma unroll
    for (u32 d = 1; d < 32; d <<= 1) {
        u32 other = __shfl_up_sync(0xffffffffu, sum, d);
        if (lane >= d) sum += other;
    }
    __syncthreads();
    if (lane == 31) shared[warp] = sum;
    __syncthreads();
    u32 before = 0;
    total = 0;
#pragma unroll
    for (u32 w = 0; w < THREADS / 32; w++) {
        u32 part = shared[w];
        if (w < warp) before += part;
        total += part;
    }
    return before + sum - x;
}

// Every block sums all query lengths into shared memory (max_seqs + 1 words of dynamic shared memory), then finds the
// sequence of its tokens by bisection. Block b writes tokens and sequences THREADS * b and on.
extern "C" __global__ void __launch_bounds__(THREADS)
    prepare_inputs(const i32 *step_rows, const i32 *step_query_lens, const i32 *row_tokens, u64 row_stride, u32 history,
                   const i32 *row_num_computed, const i32 *row_lora, i32 *token_ids, i32 *positions, i32 *token_seq,
                   i32 *token_lora, i32 *query_start_loc, i32 *seq_lens, i32 *last_token_index, u32 num_seqs,
                   u32 num_tokens, u32 num_rows) {
    extern __shared__ u32 starts[];
    __shared__ u32 parts[THREADS / 32];
    wait_for_previous();
    // Each thread sums neighbouring sequences.
    u32 each = (num_seqs + THREADS - 1) / THREADS, first = threadIdx.x * each, sum = 0;
    for (u32 s = first; s < min(first + each, num_seqs); s++) {
        bool live = (u32)step_rows[s] < num_rows;
        u32 length = live ? (u32)max(0, step_query_lens[s]) : 0;
        starts[s] = length;
        sum += length;
    }
    u32 total, start = sum_before(sum, parts, total);
    for (u32 s = first; s < min(first + each, num_seqs); s++) {
        u32 length = starts[s];
        starts[s] = start;
        start += length;
    }
    if (threadIdx.x == 0) starts[num_seqs] = total;
    __syncthreads();

    u32 t = blockIdx.x * THREADS + threadIdx.x;
    if (t < num_tokens) {
        i32 id = 0, position = 0, seq = -1, lora = -1;
        if (t < total) {
            // The last sequence that starts at or before t: empty ones share their start with the one that has the
            // token.
            u32 low = 0, high = num_seqs;
            while (high - low > 1) {
                u32 middle = (low + high) / 2;
                if (starts[middle] <= t) {
                    low = middle;
                } else {
                    high = middle;
                }
            }
            u32 row = (u32)step_rows[low];
            seq = (i32)low;
            position = row_num_computed[row] + (i32)(t - starts[low]);
            if ((u32)position < history) id = row_tokens[row * row_stride + (u32)position];
            if (row_lora) lora = row_lora[row];
        }
        token_ids[t] = id;
        positions[t] = position;
        token_seq[t] = seq;
        if (token_lora) token_lora[t] = lora;
    }
    // Sequences: the same threads, so that a second block has work only where there are many.
    if (t <= num_seqs) query_start_loc[t] = (i32)starts[t];
    if (t < num_seqs) {
        u32 row = (u32)step_rows[t], length = starts[t + 1] - starts[t];
        seq_lens[t] = row < num_rows ? row_num_computed[row] + (i32)length : 0;
        last_token_index[t] = length > 0 ? (i32)starts[t + 1] - 1 : -1;
    }
    let_next_start();
}

extern "C" __global__ void __launch_bounds__(128)
    slot_mapping(const i32 *positions, const i32 *token_seq, const i32 *step_rows, const i32 *block_table,
                 u64 table_stride, i32 *slots, u32 num_tokens, u32 num_seqs, u32 num_rows, u32 max_blocks,
                 u32 block_size) {
    u32 t = blockIdx.x * blockDim.x + threadIdx.x;
    wait_for_previous();
    if (t >= num_tokens) return;
    u32 seq = (u32)token_seq[t], position = (u32)positions[t], slot = 0xffffffffu;
    u32 row = seq < num_seqs ? (u32)step_rows[seq] : 0xffffffffu, block = position / block_size;
    if (row < num_rows && block < max_blocks) {
        i32 page = block_table[row * table_stride + block];
        if (page >= 0) slot = (u32)page * block_size + (position - block * block_size);
    }
    let_next_start();
    slots[t] = (i32)slot;
}

// One block. The host reads `results` as soon as it sees the submit done: the tag is written last, and all of it past
// the device's caches.
extern "C" __global__ void __launch_bounds__(512, 1)
    update_rows(const i32 *step_header, const i32 *step_rows, const i32 *step_query_lens, const i32 *step_emits,
                const i32 *step_num_drafts, const i32 *sampled, u64 sampled_stride, const i32 *num_sampled,
                i32 *row_tokens, u64 row_stride, u32 history, i32 *row_num_tokens, i32 *row_num_computed,
                volatile i32 *results, u64 entry_stride, u32 num_entries, u32 num_seqs, u32 num_rows, i32 max_sampled) {
    wait_for_previous();
    u32 entry = (u32)step_header[0];
    i32 tag_low = step_header[1], tag_high = step_header[2];
    volatile i32 *result = results + entry * entry_stride;
    bool reported = entry < num_entries;
    for (u32 s = threadIdx.x; s < num_seqs; s += blockDim.x) {
        u32 row = (u32)step_rows[s];
        bool live = row < num_rows;
        i32 length = step_query_lens[s], drafts = step_num_drafts ? step_num_drafts[s] : 0;
        i32 n = 0;
        if (live && step_emits[s]) n = num_sampled ? min(max(num_sampled[s], 0), max_sampled) : 1;
        i32 known = live ? row_num_tokens[row] : 0, computed = live ? row_num_computed[row] : 0;
        volatile i32 *words = result + 2 + (u64)s * (u32)(1 + max_sampled);
        if (reported) words[0] = n;
        for (i32 i = 0; i < max_sampled; i++) {
            i32 token = i < n ? sampled[s * sampled_stride + i] : -1;
            if (reported) words[1 + i] = token;
            // What stands in place of a token is for the host: the history holds ids only.
            if (i < n && (u32)(known + i) < history) row_tokens[row * row_stride + (u32)(known + i)] = max(token, 0);
        }
        if (!live) continue;
        if (step_emits[s]) {
            row_num_tokens[row] = known + n;
            row_num_computed[row] = computed + length - drafts + n - 1;
        } else {
            row_num_computed[row] = computed + length;
        }
    }
    let_next_start();
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0 && reported) {
        result[0] = tag_low;
        result[1] = tag_high;
        __threadfence_system();
    }
}
