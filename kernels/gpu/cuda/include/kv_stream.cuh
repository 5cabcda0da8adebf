// The stream of a decode kernel: a warp's position on the line of work, and the copies of its tiles of keys and values
// into its ring. attention_decode.cu explains the definitions.
#pragma once
#include "kv_codes.cuh"

typedef KvLayout<KV, HEAD_DIM, BLOCK> Layout;

#define TILE 64
#define KV_BYTES ((int)sizeof(KV))
#define THREADS (WARPS * 32)
#define PIECES (TILE / BLOCK > 0 ? TILE / BLOCK : 1)
// keys or values of a tile; of codes, a whole part of each block
#define UNIT_BYTES (CODE_BITS > 0 ? PIECES * Layout::K_BYTES : TILE * HEAD_DIM * KV_BYTES)
#define PIECE_TOKENS (BLOCK < TILE ? BLOCK : TILE)

static_assert(CODE_BITS == 0 || BLOCK <= TILE, "a block's words lie behind all its codes");

// Sequences on the line of work: the tiles before it (of one KV head), its block table row, its first token, its keys.
// Behind the last one stand the line's end, and instead of keys the most tiles of a sequence, or SEVERAL_TOKENS where
// one has several.
#define SEVERAL_TOKENS (1u << 20)
struct Sequence {
    u32 before;
    i32 row;
    i32 start;
    i32 keys;
};

// What warps know of the batch. `common` are the tiles before each sequence's own, which it has in common with others
// (common_keys.cuh); null where none has any.
struct Work {
    const Sequence *sequences;
    u32 S, num_kv_heads, window;
    const u16 *common;
};

// Tiles of every block's share but the last: equal, and at least one a warp. Few short items of `of_item` each go to a
// block each: nothing is cut then, and joining parts would cost more than the warps that idle.
__device__ __forceinline__ u32 share_of(u32 total, u32 of_item) {
    if (of_item > 0 && of_item <= 3 * WARPS && total <= gridDim.x * of_item && total % of_item == 0) return of_item;
    u32 share = (total + gridDim.x - 1) / gridDim.x;
    return share > WARPS ? share : WARPS;
}

// Whether `warps` warps take whole items, equally many each: if the longest part that one can have is at most 1.6 times
// an equal share, and four tiles longer. Items that are cut cost more than that.
__device__ __forceinline__ bool whole_items(const Work &work, u32 total, u32 warps) {
    u32 each = (work.S * work.num_kv_heads + warps - 1) / warps, most = (u32)work.sequences[work.S].keys;
    u64 longest = (u64)each * most * warps;
    return most < SEVERAL_TOKENS && longest * 10 <= (u64)total * 16 && longest <= (u64)total + 4 * warps;
}

// Where item `item` of the KV heads of all sequences begins, if none on the line has several tokens.
__device__ __forceinline__ u32 line_of(const Work &work, u32 item) {
    u32 s = item / work.num_kv_heads, head = item - s * work.num_kv_heads;
    u32 before = work.sequences[s].before, tiles = s < work.S ? work.sequences[s + 1].before - before : 0;
    return before * work.num_kv_heads + head * tiles;
}

// Where tile `x` of the line is.
struct Place {
    // sequence; its item (query token * num_kv_heads + KV head); tile of the item, and how many there are
    u32 s, item, tile, tiles;
    u32 first_tile;           // tiles before the item's first, of the sequence
    u32 line, line_end;       // the item's tiles on the line
};

__device__ __forceinline__ u32 first_tile_of(u32 window, i32 keys, i32 query_len) {
    i32 seen = keys - query_len + 1 - (i32)window; // first key that the first query sees
    return window > 0 && seen > 0 ? (u32)seen / TILE : 0;
}

__device__ __forceinline__ i32 query_len_of(const Work &work, u32 s) {
    return work.sequences[s + 1].start - work.sequences[s].start;
}

// The last sequence that starts at or before x; `from` is known to.
__device__ __forceinline__ u32 sequence_at(const Work &work, u32 x, u32 from) {
    u32 low = from, high = work.S - 1;
    while (low < high) {
        u32 middle = (low + high + 1) / 2;
        if (work.sequences[middle].before * work.num_kv_heads <= x) low = middle;
        else high = middle - 1;
    }
    return low;
}

// The query token of an item, counted within its sequence: 0 in the usual step of one token, found without a division.
__device__ __forceinline__ u32 query_index(const Work &work, u32 item) {
    return item < work.num_kv_heads ? 0 : item / work.num_kv_heads;
}

__device__ __forceinline__ Place place_of(const Work &work, u32 x, u32 s) {
    Place place;
    place.s = s;
    i32 keys = work.sequences[s].keys;
    place.first_tile = work.common ? work.common[s] : first_tile_of(work.window, keys, query_len_of(work, s));
    place.tiles = ((u32)keys + TILE - 1) / TILE - place.first_tile;
    u32 inside = x - work.sequences[s].before * work.num_kv_heads;
    place.item = inside / place.tiles;
    place.tile = inside - place.item * place.tiles;
    place.line = x - place.tile;
    place.line_end = place.line + place.tiles;
    return place;
}

// Tiles of a sequence on the line, of one KV head, from tile `first_tile` on.
__device__ __forceinline__ u32 tiles_of(i32 row, i32 query_len, i32 keys, u32 first_tile, u32 query_len_end) {
    if (row < 0 || query_len <= 0 || (u32)query_len >= query_len_end) return 0;
    return (u32)query_len * (((u32)keys + TILE - 1) / TILE - first_tile);
}

// The tiles of a sequence's item, or SEVERAL_TOKENS.
__device__ __forceinline__ u32 item_tiles(u32 tiles, i32 query_len) {
    return tiles > 0 && query_len > 1 ? SEVERAL_TOKENS : tiles;
}

// Sum of x over this lane and those below it.
__device__ __forceinline__ u32 warp_scan(u32 x) {
#pragma unroll
    for (int distance = 1; distance < 32; distance <<= 1) {
        u32 other = __shfl_up_sync(0xffffffffu, x, distance);
        if ((threadIdx.x & 31) >= distance) x += other;
    }
    return x;
}

// Lays the sequences on the line of work. All threads. Step data is read past the first-level cache: a kernel that
// starts early may find old lines there. With `has_common`, `found` are the tiles that each has in common with others,
// which go to `common`; else it is null or readable.
__device__ __forceinline__ void lay_out(Sequence *sequences, u32 *scan, const i32 *step_rows, const i32 *starts,
                                        const i32 *seq_lens, u32 S, u32 window, u32 query_len_end, bool has_common,
                                        const u16 *found, u16 *common) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (S <= 32) {
        if (warp > 0) {
            __syncthreads();
            return;
        }
        Sequence own = {0, -1, 0, 0};
        i32 end = 0;
        u32 first_tile = 0;
        if (lane < S) {
            if (found) first_tile = __ldcg(found + lane);
            own.row = __ldcg(step_rows + lane);
            own.start = __ldcg(starts + lane);
            own.keys = __ldcg(seq_lens + lane);
            end = __ldcg(starts + lane + 1);
        }
        if (!has_common) first_tile = first_tile_of(window, own.keys, end - own.start);
        else if (lane < S) common[lane] = (u16)first_tile;
        u32 tiles = tiles_of(own.row, end - own.start, own.keys, first_tile, query_len_end), before = warp_scan(tiles);
        u32 most = __reduce_max_sync(0xffffffffu, item_tiles(tiles, end - own.start));
        own.before = before - tiles;
        if (lane < S) sequences[lane] = own;
        if (lane == S - 1) sequences[S] = {before, -1, end, (i32)most};
        __syncthreads();
        return;
    }
    // Each thread takes neighbouring sequences, the loads of up to four in flight together.
    u32 each = (S + THREADS - 1) / THREADS, first = threadIdx.x * each, sum = 0, most = 0;
    for (u32 base = 0; base < each; base += 4) {
        i32 start[4], end[4], keys[4], row[4];
        u32 first_tile[4];
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            bool there = base + j < each && first + base + j < S;
            u32 s = there ? first + base + j : 0;
            start[j] = __ldcg(starts + s);
            end[j] = __ldcg(starts + s + 1);
            keys[j] = __ldcg(seq_lens + s);
            row[j] = __ldcg(step_rows + s);
            first_tile[j] = found ? __ldcg(found + s) : 0;
        }
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            u32 s = first + base + j;
            if (base + j >= each || s >= S) continue;
            sequences[s] = {sum, row[j], start[j], keys[j]};
            if (has_common) common[s] = (u16)first_tile[j];
            else first_tile[j] = first_tile_of(window, keys[j], end[j] - start[j]);
            u32 tiles = tiles_of(row[j], end[j] - start[j], keys[j], first_tile[j], query_len_end);
            sum += tiles;
            most = max(most, item_tiles(tiles, end[j] - start[j]));
            if (s == S - 1) sequences[S] = {0, -1, end[j], 0};
        }
    }
    u32 upto = warp_scan(sum);
    most = __reduce_max_sync(0xffffffffu, most);
    if (lane == 31 && warp < WARPS) scan[warp] = upto, scan[WARPS + warp] = most;
    __syncthreads();
    u32 base = upto - sum;
    for (u32 w = 0; w < warp && w < WARPS; w++) base += scan[w];
    for (u32 s = first; s < first + each && s < S; s++) sequences[s].before += base;
    if (threadIdx.x == THREADS - 1) {
        for (u32 w = 0; w < WARPS; w++) most = max(most, scan[WARPS + w]);
        sequences[S].before = base + sum;
        sequences[S].keys = (i32)most;
    }
    __syncthreads();
}

// --- Copies into shared memory ---------------------------------------------------------------------------------------

__device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}
#if __CUDA_ARCH__ >= 900
#define BARRIER_TEST "mbarrier.try_wait.parity.shared.b64"
#else
#define BARRIER_TEST "mbarrier.test_wait.parity.shared.b64"
#endif
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    asm volatile("{\n.reg .pred done;\nwait:\n" BARRIER_TEST
                 " done, [%0], %1;\n@done bra ready;\nbra wait;\nready:\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void order_barriers_before_copies() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bulk_copy(u32 to, const u8 *from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
#else
__device__ __forceinline__ void order_barriers_before_copies() {}
__device__ __forceinline__ void copy_16(u32 to, const u8 *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
#endif

// Bytes of a buffer that this thread stored are overwritten by a later copy, not the other way round.
__device__ __forceinline__ void order_stores_before_copies() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// A ring of buffers: unit 2n holds the keys of its n-th tile, unit 2n + 1 the values.
struct Ring {
    u32 buffers, barriers; // shared addresses
    u32 issued, taken;     // units
};

// Starts the copy of one part of a tile into a ring of `LENGTH` buffers. `page` are its table entries, −1 where nothing
// is needed.
template <u32 LENGTH = RING>
__device__ __forceinline__ void copy_part(Ring &ring, const u8 *cache, u64 page_stride, const i32 (&page)[PIECES],
                                          u32 head, u32 tile, i32 keys, bool values) {
    u32 lane = threadIdx.x % 32, slot = ring.issued % LENGTH;
    u32 to = ring.buffers + slot * UNIT_BYTES;
    u64 inside = (u64)head * Layout::HEAD_BYTES + (values ? Layout::K_BYTES : 0);
#if __CUDA_ARCH__ >= 900
    u32 barrier = ring.barriers + slot * 8;
    u32 present = PIECES;
    if (PIECES > 1) {
        u32 left = ((u32)keys - tile * TILE + PIECE_TOKENS - 1) / PIECE_TOKENS;
        present = left < PIECES ? left : PIECES;
        u32 there = 0;
        for (u32 i = 0; i < PIECES; i++) there += i < present && page[i] >= 0;
        if (lane == 0) barrier_expect(barrier, there * (UNIT_BYTES / PIECES));
        __syncwarp();
#pragma unroll
        for (u32 i = 0; i < PIECES; i++)
            if (lane == i && i < present && page[i] >= 0)
                bulk_copy(to + i * (UNIT_BYTES / PIECES), cache + (u64)(u32)page[i] * page_stride + inside,
                          UNIT_BYTES / PIECES, barrier);
    } else {
        const u8 *from = cache + (u64)(u32)page[0] * page_stride + inside;
        // Of a sequence's last tile only what its keys take: of values rows of tokens, of keys a part of each row,
        // which are copies of their own and pay where they leave enough out.
        u32 left = (u32)keys - tile * TILE, present = CODE_BITS > 0 || left > TILE ? TILE : left;
        bool by_rows = BLOCK > TILE || present <= TILE * 3 / 4;
        if (values || !by_rows) {
            u32 bytes = values && CODE_BITS == 0
                            ? (present + Layout::ROW - 1) / Layout::ROW * (Layout::ROW * HEAD_DIM * KV_BYTES)
                            : UNIT_BYTES;
            if (lane == 0) {
                barrier_expect(barrier, bytes);
                // A block of 128 tokens holds the values of its halves one after the other.
                bulk_copy(to, from + (BLOCK == TILE ? 0 : tile * TILE % BLOCK * HEAD_DIM * KV_BYTES), bytes, barrier);
            }
        } else {
            if (lane == 0) barrier_expect(barrier, Layout::KEY_ROWS * present * 16);
            __syncwarp();
            for (u32 row = lane; row < Layout::KEY_ROWS; row += 32)
                bulk_copy(to + row * (TILE * 16), from + row * (BLOCK * 16) + tile * TILE % BLOCK * 16, present * 16,
                          barrier);
        }
    }
#else
#pragma unroll 4
    for (u32 i = lane; i < UNIT_BYTES / 16; i += 32) {
        u32 piece = i / (UNIT_BYTES / PIECES / 16), at = i % (UNIT_BYTES / PIECES / 16) * 16;
        if (BLOCK > TILE)
            at = values ? at + tile * TILE % BLOCK * HEAD_DIM * KV_BYTES
                        : at / (TILE * 16) * (BLOCK * 16) + at % (TILE * 16) + tile * TILE % BLOCK * 16;
        i32 entry = page[0];
#pragma unroll
        for (u32 p = 1; p < PIECES; p++)
            if (piece == p) entry = page[p];
        bool there = tile * TILE + piece * PIECE_TOKENS < (u32)keys && entry >= 0;
        if (there) copy_16(to + i * 16, cache + (u64)(u32)entry * page_stride + inside + at);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
    ring.issued++;
}

// Waits for the oldest unit that was not taken; its shared address.
template <u32 LENGTH = RING> __device__ __forceinline__ u32 take(Ring &ring) {
    u32 slot = ring.taken % LENGTH;
#if __CUDA_ARCH__ >= 900
    barrier_wait(ring.barriers + slot * 8, ring.taken / LENGTH & 1);
#else
    // Groups end in order: wait until at most those issued after it are open.
    u32 after = ring.issued - ring.taken - 1;
    if (after == 0) asm volatile("cp.async.wait_group 0;" ::: "memory");
    else if (after == 1) asm volatile("cp.async.wait_group 1;" ::: "memory");
    else if (after == 2) asm volatile("cp.async.wait_group 2;" ::: "memory");
    else if (after == 3) asm volatile("cp.async.wait_group 3;" ::: "memory");
    else asm volatile("cp.async.wait_group 4;" ::: "memory");
    __syncwarp();
#endif
    ring.taken++;
    return ring.buffers + slot * UNIT_BYTES;
}

// The order in which a warp's tiles are fetched; table entries are read one tile ahead.
struct Fetch {
    u32 x, end, s;      // tile of the line; end of what is fetched in a row; its sequence
    u32 head, tile;     // KV head, tile of the sequence
    i32 keys;
    i32 page[PIECES];   // of tile x
};

__device__ __forceinline__ void look_up(Fetch &fetch, const Work &work, const i32 *block_table, u32 table_stride) {
    if (fetch.x >= fetch.end) return;
    while (fetch.s + 1 < work.S && work.sequences[fetch.s + 1].before * work.num_kv_heads <= fetch.x) fetch.s++;
    Place place = place_of(work, fetch.x, fetch.s);
    fetch.head = place.item - query_index(work, place.item) * work.num_kv_heads;
    fetch.tile = place.first_tile + place.tile;
    fetch.keys = work.sequences[fetch.s].keys;
    // Blocks before the window or past the end are never looked up.
    i32 seen = work.window > 0 ? fetch.keys - query_len_of(work, fetch.s) + 1 - (i32)work.window : 0;
    const i32 *pages = block_table + (u64)(u32)work.sequences[fetch.s].row * table_stride;
#pragma unroll
    for (u32 i = 0; i < PIECES; i++) {
        i32 key = (i32)(fetch.tile * TILE + i * PIECE_TOKENS);
        bool needed = key < fetch.keys && key + PIECE_TOKENS > seen;
        if (BLOCK > TILE) needed = true;
        fetch.page[i] = needed ? __ldcg(pages + key / BLOCK) : -1;
    }
}
