// Finds teams in a batch: sequences of one token each whose block tables begin with the same pages, as those of prompts
// with the same beginning do where a prefix cache holds it. attention_decode.cu reads the keys of those pages once for
// a team (COMMON). One launch serves all layers over a block table.
//
// Sequences are ordered by the first of them that has the same first page. Neighbours with common tiles form runs, and
// a run is cut into teams of `least` to `team` sequences: a block's tile of a team takes as long as three of its warps'
// own. A team's common tiles are the fewest that two neighbours in it have. Keys of this step do not count. No team is
// made unless members * (tiles - LEAST_COMMON), summed over teams, reaches `least_tiles`.
//
// Entry point: find_common. Grid: one block of THREADS threads. Dynamic shared memory: 28 * S bytes. `found` is as
// teams.cuh says. `block`: tokens of a block, 16 to 128.
// Definitions: none.
// check:
#include "teams.cuh"

#define THREADS 1024
#define TILE 64u
#define TOGETHER 4 // entries of a row that a lane compares at a time
#define LANES 8    // that compare two rows

extern "C" __global__ void __launch_bounds__(THREADS)
    find_common(const i32 *block_table, u32 table_stride, const i32 *step_rows, const i32 *starts, const i32 *seq_lens,
                u8 *found, u32 S, u32 block, u32 team, u32 least, u32 least_tiles) {
    extern __shared__ __align__(16) u8 memory[];
    Team *list = (Team *)memory;                // [S / 2]
    u32 *pages = (u32 *)(memory + S / 2 * 16);  // [S]: a sequence's first page, from 1 on; 0: it has none in common
    i32 *rows = (i32 *)(pages + S);             // [S]
    u32 *tiles = (u32 *)(rows + S);             // [S]: of a place, in common with the one before; then its team
    u16 *most = (u16 *)(tiles + S);             // [S]: tiles that a sequence can have in common
    u16 *leaders = most + S, *order = leaders + S, *places = order + S; // [S] each
    Teams *to = (Teams *)found;
    u32 lane = threadIdx.x % 32;
    auto leave_none = [&]() {
        if (threadIdx.x == 0) to->count = 0;
        let_next_start();
    };
    wait_for_previous();
    bool any = false;
    for (u32 s = threadIdx.x; s < S; s += THREADS) {
        i32 row = step_rows[s], start = starts[s], end = starts[s + 1], keys = seq_lens[s] - 1;
        u32 whole = row >= 0 && end - start == 1 && keys > 0 ? min((u32)keys / TILE, 0xffffu) : 0;
        i32 page = whole < LEAST_COMMON ? -1 : block_table[(u64)(u32)row * table_stride];
        rows[s] = row;
        most[s] = (u16)whole;
        pages[s] = (u32)(page + 1);
        any |= page >= 0;
    }
    if (!__syncthreads_or(any)) return leave_none();
    any = false;
    for (u32 s = threadIdx.x; s < S; s += THREADS) {
        u32 page = pages[s], first = s, before = 0;
        for (u32 other = 0; page > 0 && other < s; other++) {
            if (pages[other] != page) continue;
            first = min(first, other);
            before++;
        }
        leaders[s] = (u16)first;
        places[s] = (u16)before;
        any |= before > 0;
    }
    if (!__syncthreads_or(any)) return leave_none();
    for (u32 s = threadIdx.x; s < S; s += THREADS) {
        u32 leader = leaders[s], place = places[s];
        for (u32 other = 0; other < S; other++) place += leaders[other] < leader;
        order[place] = (u16)s;
    }
    __syncthreads();
    u32 mask = ((1u << LANES) - 1) << (lane / LANES * LANES), part = lane % LANES;
    for (u32 place = threadIdx.x / LANES; place < S; place += THREADS / LANES) {
        u32 s = order[place], before = place > 0 ? order[place - 1] : 0, common = 0;
        if (place > 0 && pages[s] > 0 && pages[s] == pages[before]) {
            u32 limit = min(most[s], most[before]), entries = (limit * TILE + block - 1) / block, same = entries;
            const i32 *one = block_table + (u64)(u32)rows[before] * table_stride,
                      *other = block_table + (u64)(u32)rows[s] * table_stride;
            for (u32 from = 0; same == entries && from < entries; from += LANES * TOGETHER) {
                i32 left[TOGETHER], right[TOGETHER];
#pragma unroll
                for (u32 i = 0; i < TOGETHER; i++) {
                    u32 entry = min(from + LANES * i + part, entries - 1);
                    left[i] = one[entry];
                    right[i] = other[entry];
                }
#pragma unroll
                for (u32 i = 0; i < TOGETHER; i++)
                    if (left[i] != right[i] || left[i] < 0) same = min(same, min(from + LANES * i + part, entries - 1));
#pragma unroll
                for (u32 step = 1; step < LANES; step *= 2) same = min(same, __shfl_xor_sync(mask, same, step));
            }
            common = min(same * block / TILE, limit);
        }
        if (part == 0) tiles[place] = common < LEAST_COMMON ? 0 : common;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        u32 begin = 0, count = 0, longest = 0; // where the run of neighbours with common tiles began
        u32 upto = 0xffffffffu >> (31 - lane);
        for (u32 base = 0; base < S; base += 32) {
            u32 place = base + lane, common = place < S ? tiles[place] : 0;
            u32 linked = __ballot_sync(0xffffffffu, common > 0);
            bool next = base + 32 < S && tiles[base + 32] > 0;
            u32 breaks = ~linked & upto;
            if (breaks) begin = base + 31 - (u32)__clz((i32)breaks);
            u32 inside = (place - begin) % team;
            bool followed = lane < 31 ? linked >> (lane + 1) & 1 : next;
            u32 leading = __ballot_sync(0xffffffffu, place < S && inside == 0 && followed);
            bool leads = leading >> lane & 1, joins = place < S && inside > 0;
            u32 number = count + (u32)__popc(leading & upto); // of the last team up to here
            if (leads) list[number - 1] = {place, 0, 0xffffffffu, 0};
            __syncwarp();
            if (joins) {
                atomicMin(&list[number - 1].tiles, common);
                atomicAdd(&list[number - 1].others, 1u);
            }
            if (place < S) tiles[place] = leads || joins ? number : 0;
            begin = __shfl_sync(0xffffffffu, begin, 31);
            count += (u32)__popc(leading);
            __syncwarp();
        }
        u32 kept = 0, spared = 0;
        for (u32 base = 0; base < count; base += 32) {
            u32 i = base + lane;
            bool stays = i < count && list[i].others + 1 >= least;
            u32 staying = __ballot_sync(0xffffffffu, stays);
            if (stays) {
                longest = max(longest, list[i].tiles);
                spared += (list[i].others + 1) * (list[i].tiles - LEAST_COMMON);
                ((Team *)to->list())[kept + (u32)__popc(staying & upto) - 1] = list[i];
            } else if (i < count) {
                list[i].tiles = 0;
            }
            kept += (u32)__popc(staying);
        }
        longest = __reduce_max_sync(0xffffffffu, longest);
        spared = __reduce_add_sync(0xffffffffu, spared);
        if (lane == 0) *to = {spared >= least_tiles ? kept : 0, longest, {0, 0}};
    }
    __syncthreads();
    for (u32 place = threadIdx.x; place < S; place += THREADS) {
        ((u16 *)to->order(S))[place] = order[place];
        ((u16 *)to->tiles(S))[order[place]] = (u16)(tiles[place] > 0 ? list[tiles[place] - 1].tiles : 0);
    }
    let_next_start();
}
