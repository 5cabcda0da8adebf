// Device rows and steps: `prepare_inputs`, `slot_mapping`, `update_rows`. A few thousand integers a step: what counts
// is the chain of dependent loads, not their number. An index outside its tensor (a caller's bug) is taken as padding.
//
// Definitions: none.
// revision: 1
// check:
#include "common.h"

// Work-items of a group of prepare_inputs.
#define THREADS 256

// Every group sums all query lengths into `shared` (max_seqs + 1 words), then finds the sequence of its tokens by
// bisection. Group b writes tokens and sequences THREADS * b and on.
KERNEL void prepare_inputs(const __global i32 *step_rows, const __global i32 *step_query_lens,
                           const __global i32 *row_tokens, u64 row_stride, u32 history,
                           const __global i32 *row_num_computed, const __global i32 *row_lora, __global i32 *token_ids,
                           __global i32 *positions, __global i32 *token_seq, __global i32 *token_lora,
                           __global i32 *query_start_loc, __global i32 *seq_lens, __global i32 *last_token_index,
                           u32 num_seqs, u32 num_tokens, u32 num_rows, __local uchar *shared) {
    __local u32 *starts = (__local u32 *)shared;
    __local u32 parts[THREADS];
    u32 id = get_local_id(0);
    // Each work-item sums neighbouring sequences.
    u32 each = (num_seqs + THREADS - 1) / THREADS, first = min(id * each, num_seqs), end = min(first + each, num_seqs),
        sum = 0;
    for (u32 s = first; s < end; s++) {
        u32 length = (u32)step_rows[s] < num_rows ? (u32)max(0, step_query_lens[s]) : 0;
        starts[s] = length;
        sum += length;
    }
    parts[id] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    u32 start = 0, total = 0;
    for (u32 i = 0; i < THREADS; i++) {
        start += i < id ? parts[i] : 0;
        total += parts[i];
    }
    for (u32 s = first; s < end; s++) {
        u32 length = starts[s];
        starts[s] = start;
        start += length;
    }
    if (id == 0) starts[num_seqs] = total;
    barrier(CLK_LOCAL_MEM_FENCE);

    u32 t = get_group_id(0) * THREADS + id;
    if (t < num_tokens) {
        i32 token = 0, position = 0, seq = -1, lora = -1;
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
            if ((u32)position < history) token = row_tokens[row * row_stride + (u32)position];
            if (row_lora) lora = row_lora[row];
        }
        token_ids[t] = token;
        positions[t] = position;
        token_seq[t] = seq;
        if (token_lora) token_lora[t] = lora;
    }
    // Sequences: the same work-items, so that a second group has work only where there are many.
    if (t <= num_seqs) query_start_loc[t] = (i32)starts[t];
    if (t < num_seqs) {
        u32 row = (u32)step_rows[t], length = starts[t + 1] - starts[t];
        seq_lens[t] = row < num_rows ? row_num_computed[row] + (i32)length : 0;
        last_token_index[t] = length > 0 ? (i32)starts[t + 1] - 1 : -1;
    }
}

KERNEL void slot_mapping(const __global i32 *positions, const __global i32 *token_seq, const __global i32 *step_rows,
                         const __global i32 *block_table, u64 table_stride, __global i32 *slots, u32 num_tokens,
                         u32 num_seqs, u32 num_rows, u32 max_blocks, u32 block_size) {
    u32 t = global_index();
    if (t >= num_tokens) return;
    u32 seq = (u32)token_seq[t], position = (u32)positions[t], slot = 0xffffffffu;
    u32 row = seq < num_seqs ? (u32)step_rows[seq] : 0xffffffffu, block = position / block_size;
    if (row < num_rows && block < max_blocks) {
        i32 page = block_table[row * table_stride + block];
        if (page >= 0) slot = (u32)page * block_size + (position - block * block_size);
    }
    slots[t] = (i32)slot;
}

// One group. The host reads `results` as soon as it sees the submit done: the tag is written last.
KERNEL void update_rows(const __global i32 *step_header, const __global i32 *step_rows,
                        const __global i32 *step_query_lens, const __global i32 *step_emits,
                        const __global i32 *step_num_drafts, const __global i32 *sampled, u64 sampled_stride,
                        const __global i32 *num_sampled, __global i32 *row_tokens, u64 row_stride, u32 history,
                        __global i32 *row_num_tokens, __global i32 *row_num_computed, volatile __global i32 *results,
                        u64 entry_stride, u32 num_entries, u32 num_seqs, u32 num_rows, i32 max_sampled) {
    u32 entry = (u32)step_header[0], id = get_local_id(0);
    i32 tag_low = step_header[1], tag_high = step_header[2];
    bool reported = entry < num_entries;
    volatile __global i32 *result = results + (reported ? entry : 0) * entry_stride;
    for (u32 s = id; s < num_seqs; s += get_local_size(0)) {
        u32 row = (u32)step_rows[s];
        bool live = row < num_rows;
        i32 length = step_query_lens[s], drafts = step_num_drafts ? step_num_drafts[s] : 0, n = 0;
        if (live && step_emits[s]) n = num_sampled ? clamp(num_sampled[s], 0, max_sampled) : 1;
        i32 known = live ? row_num_tokens[row] : 0, computed = live ? row_num_computed[row] : 0;
        volatile __global i32 *words = result + 2 + (u64)s * (u32)(1 + max_sampled);
        if (reported) words[0] = n;
        for (i32 i = 0; i < max_sampled; i++) {
            i32 token = i < n ? sampled[s * sampled_stride + i] : -1;
            if (reported) words[1 + i] = token;
            // What stands in place of a token is for the host: the history holds ids only.
            if (i < n && (u32)(known + i) < history) row_tokens[row * row_stride + (u32)(known + i)] = max(token, 0);
        }
        if (live && step_emits[s]) {
            row_num_tokens[row] = known + n;
            row_num_computed[row] = computed + length - drafts + n - 1;
        } else if (live) {
            row_num_computed[row] = computed + length;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (id == 0 && reported) {
        result[0] = tag_low;
        result[1] = tag_high;
    }
}
