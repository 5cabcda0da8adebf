// What latent_decode and latent_tiles share: how the work of a step is divided among blocks, and how rows of the cache
// come to shared memory.
//
// Rows are (token, head) pairs of a sequence, token by token; ROWS of them are a tile. A tile's work is its stages,
// KEYS keys each, up to the last key that it sees. All stages of all tiles in their order are divided evenly: each
// block takes the same number of neighbours, so a tile may be cut into pieces of several blocks. A piece that is not a
// whole tile leaves its sums in scratch, and latent_join puts the pieces together.
//
// In shared memory a row of the cache is a row of PANELS panels of 64 values (128 bytes), whose 16-byte units are
// swapped by (row % 8): no two of eight rows' units lie in the same banks, and it is what matrix units of sm_90 read.
//
// Wants ACT, LATENT (a multiple of 64), ROPE (of 16), BLOCK, ROWS and KEYS (32 or 64) defined. 256 threads.
#pragma once
#include "warp_tiles.cuh"

#define THREADS 256
#define WIDTH (LATENT + ROPE)
#define PANELS ((WIDTH + 63) / 64)
#define PANEL_BYTES (KEYS * 128)
#define STAGE_BYTES (PANELS * PANEL_BYTES)
#define LOG2E 1.4426950408889634f
// Rows of a stage that one thread copies an eighth of.
#define COPIED (KEYS / 32)

struct Params {
    const ACT *q_latent;
    u32 q_latent_token_stride, q_latent_head_stride;
    const ACT *q_rope;
    u32 q_rope_token_stride, q_rope_head_stride;
    const u8 *cache;
    u64 page_stride;
    const i32 *block_table;
    u32 table_stride;
    const i32 *step_rows, *starts, *seq_lens;
    ACT *out;
    u32 out_token_stride, out_head_stride;
    // Of each block two pieces: [2 · blocks, ROWS, LATENT] sums, [2 · blocks, ROWS, 2] maxima and sums of weights.
    float *pieces, *marks;
    // [cuts, 4]: first row of all, rows, first and last block of a tile that was cut; no rows where there is none.
    u32 *cuts;
    // Tiles that there may be where `by_tile` (a cut's number is its tile's), else blocks (the block it begins in).
    u32 num_cuts, by_tile;
    u32 num_seqs, num_heads, least_stages;
    float scale;
};

struct Sequence {
    const i32 *pages;
    u32 first_token, tokens; // tokens == 0: nothing to do
    u32 prefix;              // keys before the first token
    u32 tiles;
};

__device__ __forceinline__ Sequence sequence_at(const Params &p, u32 s) {
    i32 first = p.starts[s], end = p.starts[s + 1], row = p.step_rows[s], len = p.seq_lens[s];
    Sequence q;
    q.pages = p.block_table + (u64)max(row, 0) * p.table_stride;
    q.first_token = (u32)first;
    q.tokens = row < 0 || end <= first || len < end - first ? 0 : (u32)(end - first);
    q.prefix = (u32)len - q.tokens;
    q.tiles = (q.tokens * p.num_heads + ROWS - 1) / ROWS;
    return q;
}

// Keys that some row of a tile sees.
__device__ __forceinline__ u32 keys_of(const Params &p, const Sequence &q, u32 tile) {
    return q.prefix + min(q.tokens, ((tile + 1) * ROWS - 1) / p.num_heads + 1);
}
__device__ __forceinline__ u32 stages_of(const Params &p, const Sequence &q, u32 tile) {
    return (keys_of(p, q, tile) + KEYS - 1) / KEYS;
}
// Stages of a sequence's tiles before `tile`, counted by key: a stage that begins at key y is one of all tiles but
// those that see y keys or fewer.
__device__ __forceinline__ u32 stages_before(const Params &p, const Sequence &q, u32 tile) {
    if (q.tokens == 0) return 0;
    u32 all = q.prefix / KEYS + 1, sum = tile * all;
#pragma unroll 1
    for (u32 y = all * KEYS; y < q.prefix + q.tokens; y += KEYS) {
        u32 without = (y - q.prefix) * p.num_heads / ROWS;
        if (without >= tile) break;
        sum += tile - without;
    }
    return sum;
}

// A block's share: stages begin .. end of all, which start at `stage` of a tile of sequence `sequence`.
struct Work {
    u32 share, begin, end;
    u32 sequence, tile, stage, tile_of_all;
};
// Shared memory of find_work.
struct Finding {
    u64 sums[THREADS / 32];
    u32 sequence, tile, stage, tile_of_all;
};

__device__ __forceinline__ void no_cut(const Params &p, u32 i) {
    for (u32 j = 0; j < 4; j++) p.cuts[4 * i + j] = 0;
}

// Whether there is work for this block. By all threads.
__device__ __forceinline__ bool find_work(const Params &p, Finding &found, Work &work) {
    u32 thread = threadIdx.x, lane = thread & 31, warp = thread / 32;
    u32 each = (p.num_seqs + THREADS - 1) / THREADS, first = min(thread * each, p.num_seqs),
        past = min(first + each, p.num_seqs);
    // Tiles in the upper half, stages in the lower one.
    u64 mine = 0;
#pragma unroll 1
    for (u32 s = first; s < past; s++) {
        Sequence q = sequence_at(p, s);
        mine += (u64)q.tiles << 32 | stages_before(p, q, q.tiles);
    }
    u64 sum = mine, before = 0, all = 0;
    for (u32 step = 1; step < 32; step *= 2) {
        u64 other = __shfl_up_sync(0xffffffffu, sum, step);
        if (lane >= step) sum += other;
    }
    if (lane == 31) found.sums[warp] = sum;
    __syncthreads();
    for (u32 w = 0; w < THREADS / 32; w++) {
        if (w < warp) before += found.sums[w];
        all += found.sums[w];
    }
    before += sum - mine;
    u32 stages = (u32)all, block = blockIdx.x;
    work.share = max((stages + gridDim.x - 1) / gridDim.x, p.least_stages);
    work.begin = block * work.share;
    work.end = min(work.begin + work.share, stages);
    if (p.by_tile) {
        if (block == 0)
            for (u32 i = (u32)(all >> 32) + thread; i < p.num_cuts; i += THREADS) no_cut(p, i);
    } else if (thread == 0) {
        no_cut(p, block);
    }
    if (work.begin >= stages) return false;
    u32 at = (u32)before;
    if (at <= work.begin && work.begin < at + (u32)mine) {
        u32 s = first, tiles = (u32)(before >> 32);
        for (;; s++) {
            Sequence q = sequence_at(p, s);
            u32 of_sequence = stages_before(p, q, q.tiles);
            if (work.begin < at + of_sequence) break;
            at += of_sequence;
            tiles += q.tiles;
        }
        found.sequence = s;
        found.tile = 0;
        found.stage = work.begin - at;
        found.tile_of_all = tiles;
    }
    __syncthreads();
    Sequence q = sequence_at(p, found.sequence);
    if (q.tiles > 1) {
        // Each thread looks among some neighbouring tiles.
        u32 low = thread * q.tiles / THREADS, high = (thread + 1) * q.tiles / THREADS, wanted = found.stage;
        u32 passed = stages_before(p, q, low);
        bool here = low < high && passed <= wanted && wanted < stages_before(p, q, high);
        __syncthreads();
        if (here) {
            u32 tile = low;
            for (u32 more; passed + (more = stages_of(p, q, tile)) <= wanted; tile++) passed += more;
            found.tile = tile;
            found.stage = wanted - passed;
        }
        __syncthreads();
    }
    work.sequence = found.sequence;
    work.tile = found.tile;
    work.stage = found.stage;
    work.tile_of_all = found.tile_of_all + found.tile;
    return true;
}

// Some neighbouring stages of a tile.
struct Piece {
    Sequence q;
    u32 first_row, rows; // of the sequence
    u32 first, end;      // stages
    u32 keys;            // that some row sees
    i32 slot;            // where its sums go; −1: to out
};

// Calls attend(piece) for each piece of a block's work.
template <typename Attend> __device__ __forceinline__ void each_piece(const Params &p, Work work, Attend attend) {
    u32 block = blockIdx.x;
#pragma unroll 1
    while (work.begin < work.end) {
        Sequence q = sequence_at(p, work.sequence);
        if (work.tile >= q.tiles) {
            work.sequence++;
            work.tile = 0;
            continue;
        }
        u32 stages = stages_of(p, q, work.tile), end = min(stages, work.stage + (work.end - work.begin)),
            first_row = work.tile * ROWS, rows = min((u32)ROWS, q.tokens * p.num_heads - first_row);
        bool whole = work.stage == 0 && end == stages;
        Piece piece = {q,
                       first_row,
                       rows,
                       work.stage,
                       end,
                       keys_of(p, q, work.tile),
                       whole ? -1 : (i32)(2 * block + (work.stage == 0))};
        if (work.stage == 0 && threadIdx.x == 0 && (p.by_tile || !whole)) {
            u32 *cut = p.cuts + 4 * (p.by_tile ? work.tile_of_all : block);
            cut[0] = q.first_token * p.num_heads + first_row;
            cut[1] = whole ? 0 : rows;
            cut[2] = block;
            cut[3] = (work.begin + stages - 1) / work.share;
        }
        attend(piece);
        work.begin += end - work.stage;
        work.stage = 0;
        work.tile++;
        work.tile_of_all++;
    }
}

// Where a row of a tile lies; a row past the last one stands for that.
__device__ __forceinline__ void place_of(const Params &p, const Piece &piece, u32 row, u32 &token, u32 &head) {
    u32 i = piece.first_row + min(row, piece.rows - 1);
    token = i / p.num_heads;
    head = i % p.num_heads;
}

// Stages in the order of a block's work, ahead of the one that is multiplied: which is asked for next. They run on from
// tile to tile, so a tile's first keys come while the one before it ends.
struct Ahead {
    const i32 *table;
    u32 keys, stage, stages; // of the tile
    u32 sequence, tile;
    u32 left;          // stages not asked for
    i32 pages[COPIED]; // of the thread's rows, known a stage before they are used
};

// Thread 8r + c copies unit c of all panels of rows r, r + 32, .. of a stage.
__device__ __forceinline__ void find_pages(Ahead &ahead) {
#pragma unroll
    for (u32 i = 0; i < COPIED; i++) {
        u32 key = ahead.stage * KEYS + threadIdx.x / 8 + 32 * i;
        ahead.pages[i] = key < ahead.keys ? ahead.table[key / BLOCK] : 0;
    }
}
__device__ __forceinline__ void enter_tile(const Params &p, Ahead &ahead) {
    Sequence q = sequence_at(p, ahead.sequence);
#pragma unroll 1
    while (ahead.tile >= q.tiles) {
        ahead.tile = 0;
        q = sequence_at(p, ++ahead.sequence);
    }
    ahead.table = q.pages;
    ahead.keys = keys_of(p, q, ahead.tile);
    ahead.stages = stages_of(p, q, ahead.tile);
    find_pages(ahead);
}
__device__ __forceinline__ Ahead ahead_of(const Params &p, const Work &work) {
    Ahead ahead;
    ahead.stage = work.stage;
    ahead.sequence = work.sequence;
    ahead.tile = work.tile;
    ahead.left = work.end - work.begin;
    enter_tile(p, ahead);
    return ahead;
}
// Asks for the next stage, if there is one. Keys that no row sees become zeroes: they were perhaps never written, and a
// weight of 0 does not cancel NaN.
__device__ __forceinline__ void ask_keys(const Params &p, Ahead &ahead, u32 to) {
    if (ahead.left == 0) return;
    u32 unit = threadIdx.x % 8;
#pragma unroll
    for (u32 i = 0; i < COPIED; i++) {
        u32 row = threadIdx.x / 8 + 32 * i, key = ahead.stage * KEYS + row;
        bool wanted = key < ahead.keys;
        const u8 *from = p.cache;
        if (wanted) from += (u64)(u32)ahead.pages[i] * p.page_stride + key % BLOCK * (WIDTH * 2) + 16 * unit;
        u32 at = to + row * 128 + ((unit ^ (row & 7)) << 4);
#pragma unroll
        for (u32 panel = 0; panel < PANELS; panel++)
            if (panel < WIDTH / 64 || (int)unit < WIDTH % 64 / 8)
                copy_async(at + panel * PANEL_BYTES, wanted ? from + 128 * panel : from, wanted);
    }
    if (--ahead.left == 0) return;
    if (++ahead.stage < ahead.stages) return find_pages(ahead);
    ahead.stage = 0;
    ahead.tile++;
    enter_tile(p, ahead);
}

// Two neighbouring results of a row: finished, or sums for latent_join.
__device__ __forceinline__ void put(const Params &p, const Piece &piece, u32 row, u32 column, float x, float y) {
    if (row >= piece.rows) return;
    if (piece.slot >= 0) {
        float *to = p.pieces + ((u64)(u32)piece.slot * ROWS + row) * LATENT + column;
        *(float2 *)to = make_float2(x, y);
        return;
    }
    u32 token, head;
    place_of(p, piece, row, token, head);
    ACT *to = p.out + (u64)(piece.q.first_token + token) * p.out_token_stride + (u64)head * p.out_head_stride + column;
    *(u32 *)to = pack2<ACT>(x, y);
}
__device__ __forceinline__ void put_mark(const Params &p, const Piece &piece, u32 row, float highest, float total) {
    if (piece.slot < 0) return;
    float *to = p.marks + 2 * ((u64)(u32)piece.slot * ROWS + row);
    to[0] = highest;
    to[1] = total;
}
