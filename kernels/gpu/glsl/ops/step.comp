#version 460
#extension GL_GOOGLE_include_directive : enable
// Device rows and steps: `prepare_inputs`, `slot_mapping`, `update_rows`. A few thousand integers a step: what counts
// is the chain of dependent loads, not their number. An index outside its tensor (a caller's bug) is taken as padding.
//
// Definitions: none.
// revision: 1
// check: prepare_inputs slot_mapping update_rows
#include "common.glsl"

#if defined(ENTRY_prepare_inputs)

// Where each sequence starts, and where the last one ends.
shared u32 starts[SHARED_WORDS];
shared u32 sums[THREADS];

u32 length_of(u32 row, i32 length, u32 num_rows) { return row < num_rows ? u32(max(0, length)) : 0; }

// Every block sums all query lengths into shared memory (num_seqs + 1 words of it), then finds the sequence of its
// tokens by bisection. Block b writes tokens and sequences THREADS * b and on.
PARAMETERS(u64 step_rows; u64 step_query_lens; u64 row_tokens; u64 row_stride; u32 history; u64 row_num_computed;
           u64 row_lora; u64 token_ids; u64 positions; u64 token_seq; u64 token_lora; u64 query_start_loc; u64 seq_lens;
           u64 last_token_index; u32 num_seqs; u32 num_tokens; u32 num_rows;)
void main() {
    u32 thread = gl_LocalInvocationIndex, num_seqs = p.num_seqs;
    Words rows = Words(p.step_rows);
    // Each thread sums neighbouring sequences.
    u32 each = (num_seqs + THREADS - 1) / THREADS, first = min(thread * each, num_seqs),
        end = min(first + each, num_seqs), sum = 0;
    for (u32 s = first; s < end; s++) {
        u32 length = length_of(rows.at[s], Ints(p.step_query_lens).at[s], p.num_rows);
        starts[s] = length;
        sum += length;
    }
    sums[thread] = sum;
    barrier();
    u32 start = 0;
    for (u32 i = 0; i < thread; i++) start += sums[i];
    for (u32 s = first; s < end; s++) {
        u32 length = starts[s];
        starts[s] = start;
        start += length;
    }
    // The last thread has passed all sequences.
    if (thread == THREADS - 1) starts[num_seqs] = start;
    barrier();

    u32 total = starts[num_seqs], t = gl_WorkGroupID.x * THREADS + thread;
    if (t < p.num_tokens) {
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
            u32 row = rows.at[low];
            seq = i32(low);
            position = Ints(p.row_num_computed).at[row] + i32(t - starts[low]);
            if (u32(position) < p.history) id = Ints(p.row_tokens + (row * p.row_stride + u32(position)) * 4).at[0];
            if (p.row_lora != 0) lora = Ints(p.row_lora).at[row];
        }
        Ints(p.token_ids).at[t] = id;
        Ints(p.positions).at[t] = position;
        Ints(p.token_seq).at[t] = seq;
        if (p.token_lora != 0) Ints(p.token_lora).at[t] = lora;
    }
    // Sequences: the same threads, so that a second block has work only where there are many.
    if (t <= num_seqs) Words(p.query_start_loc).at[t] = starts[t];
    if (t < num_seqs) {
        u32 row = rows.at[t], length = starts[t + 1] - starts[t];
        Ints(p.seq_lens).at[t] = row < p.num_rows ? Ints(p.row_num_computed).at[row] + i32(length) : 0;
        Ints(p.last_token_index).at[t] = length > 0 ? i32(starts[t + 1]) - 1 : -1;
    }
}

#elif defined(ENTRY_slot_mapping)

PARAMETERS(u64 positions; u64 token_seq; u64 step_rows; u64 block_table; u64 table_stride; u64 slots; u32 num_tokens;
           u32 num_seqs; u32 num_rows; u32 max_blocks; u32 block_size;)
void main() {
    u32 t = gl_WorkGroupID.x * THREADS + gl_LocalInvocationIndex;
    if (t >= p.num_tokens) return;
    u32 seq = Words(p.token_seq).at[t], position = Words(p.positions).at[t], slot = 0xffffffffu, row = 0xffffffffu;
    if (seq < p.num_seqs) row = Words(p.step_rows).at[seq];
    u32 block = position / p.block_size;
    if (row < p.num_rows && block < p.max_blocks) {
        i32 page = Ints(p.block_table + (row * p.table_stride + block) * 4).at[0];
        if (page >= 0) slot = u32(page) * p.block_size + (position - block * p.block_size);
    }
    Words(p.slots).at[t] = slot;
}

#else

// Written for the host, which reads while the device goes on.
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent volatile buffer Results { int at[]; };

// One block. The tag is written last: an entry with it is whole.
PARAMETERS_IN_MEMORY(u64 step_header; u64 step_rows; u64 step_query_lens; u64 step_emits; u64 step_num_drafts;
                     u64 sampled; u64 sampled_stride; u64 num_sampled; u64 row_tokens; u64 row_stride; u32 history;
                     u64 row_num_tokens; u64 row_num_computed; u64 results; u64 entry_stride; u32 num_entries;
                     u32 num_seqs; u32 num_rows; i32 max_sampled;)
void main() {
    u32 entry = Words(p.step_header).at[0];
    i32 tag_low = Ints(p.step_header).at[1], tag_high = Ints(p.step_header).at[2], max_sampled = p.max_sampled;
    u64 result = p.results + entry * p.entry_stride * 4;
    bool reported = entry < p.num_entries;
    for (u32 s = gl_LocalInvocationIndex; s < p.num_seqs; s += THREADS) {
        u32 row = Words(p.step_rows).at[s];
        bool live = row < p.num_rows, emits = Ints(p.step_emits).at[s] != 0;
        i32 length = Ints(p.step_query_lens).at[s], drafts = 0, n = 0, known = 0, computed = 0;
        if (p.step_num_drafts != 0) drafts = Ints(p.step_num_drafts).at[s];
        if (live) {
            known = Ints(p.row_num_tokens).at[row];
            computed = Ints(p.row_num_computed).at[row];
        }
        if (live && emits) {
            n = 1;
            if (p.num_sampled != 0) n = min(max(Ints(p.num_sampled).at[s], 0), max_sampled);
        }
        Results words = Results(result + (2 + u64(s) * u32(1 + max_sampled)) * 4);
        if (reported) words.at[0] = n;
        for (i32 i = 0; i < max_sampled; i++) {
            i32 token = -1;
            if (i < n) token = Ints(p.sampled + (s * p.sampled_stride + u32(i)) * 4).at[0];
            if (reported) words.at[1 + i] = token;
            // What stands in place of a token is for the host: the history holds ids only.
            if (i < n && u32(known + i) < p.history)
                Ints(p.row_tokens + (row * p.row_stride + u32(known + i)) * 4).at[0] = max(token, 0);
        }
        if (!live) continue;
        if (emits) {
            Ints(p.row_num_tokens).at[row] = known + n;
            Ints(p.row_num_computed).at[row] = computed + length - drafts + n - 1;
        } else {
            Ints(p.row_num_computed).at[row] = computed + length;
        }
    }
    memoryBarrier();
    barrier();
    if (gl_LocalInvocationIndex == 0 && reported) {
        Results(result).at[0] = tag_low;
        Results(result).at[1] = tag_high;
    }
}
#endif
