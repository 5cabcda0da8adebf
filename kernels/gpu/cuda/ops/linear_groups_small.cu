// `linear` of few tokens over records: every code is read once and multiplied on matrix units; norm before, and bias,
// activation, gating and residual after it are fused. groups_product.cuh says how lanes share rows, depths and tokens.
//
// Blocks are persistent and walk over the tiles of 16 rows. The warps share the depth of a tile in spans of SPAN groups
// of 128; each has a ring of STAGES spans in shared memory that it fills for itself, across the ends of tiles, so that
// nothing but the memory's rate limits what is in flight: loads into registers would wait in the first-level cache,
// which the tokens' shared memory takes away. A span is two runs of records, which Hopper's copy engine brings in two
// copies; elsewhere lanes copy 16 bytes each. The first weights, which are constants, are asked for before the previous
// kernel has ended.
//
// A tile's sums meet in one of several buffers. With one token and Hopper's barriers the warps take turns to finish
// tiles, and go on with their next spans meanwhile; else the block meets once a tile and all finish it.
//
// linear_groups_small keeps the tokens of its tile in shared memory for the whole depth, in the order of the lanes'
// loads, and with them their sums over each run of depths that shares a scale. linear_groups_streamed, for tokens that
// do not fit, copies them with each span, and knows no norm.
//
// Definitions: FORMAT (see groups_product.cuh), ACT (bf16, f16), OUT (bf16, f16, f32), TILES (8 tokens each),
// MOST (tokens of a block: 8·TILES, or 1), WARPS, SPAN (1, 2 or 4), STAGES (2 or more), MIN_BLOCKS (blocks that an SM
// should hold), LATE (1: the next kernel may start when this block has asked for its last weights, else at once; 0
// where it is not defined), EPILOGUE (see activate.cuh), GATE (0: plain; else the activation of the gate: then tiles
// are 8 gate and 8 up rows, and out = activate(gate) · up), NORM (1: x is normalised: out = W·(x·(norm + offset)) /
// rms(x)).
// Launch: grid (blocks: up to the number of tiles of 16 rows, 8 gated; tiles of MOST tokens), 32·WARPS threads.
// `matrix_rows`: rows of the matrix; `first_up`: the first up row in its own.
// Where GATE, `first_up` is a multiple of 8.
// Dynamic shared memory: WARPS·STAGES spans (`kSpanBytes`, streamed ones with `kTokenBytes` more), their barriers
// (`kBarrierBytes`), the tokens of the tile (linear_groups_small only; `pitch_of(k)` values each), then 81·WARPS
// floats, or 41·WARPS·MOST of several tokens, and for linear_groups_small groups·128/GROUP_VALUES·MOST more where the
// format has minima.
// Needs: k a multiple of 32, x_stride one of 8, x, weights and norm 16-byte aligned.
// check: -DFORMAT=43 -DACT=bf16 -DOUT=bf16 -DTILES=1 -DMOST=1 -DWARPS=8 -DSPAN=4 -DSTAGES=2 -DMIN_BLOCKS=2 -DEPILOGUE=0 -DGATE=1 -DNORM=1
// check: -DFORMAT=43 -DACT=bf16 -DOUT=bf16 -DTILES=1 -DMOST=8 -DWARPS=16 -DSPAN=2 -DSTAGES=3 -DMIN_BLOCKS=1 -DEPILOGUE=0 -DGATE=0 -DNORM=1
// check: -DFORMAT=43 -DACT=f16 -DOUT=f32 -DTILES=2 -DMOST=16 -DWARPS=8 -DSPAN=2 -DSTAGES=2 -DMIN_BLOCKS=1 -DEPILOGUE=3 -DGATE=0 -DNORM=0
// check: -DFORMAT=40 -DACT=bf16 -DOUT=bf16 -DTILES=1 -DMOST=8 -DWARPS=8 -DSPAN=1 -DSTAGES=3 -DMIN_BLOCKS=1 -DEPILOGUE=0 -DGATE=2 -DNORM=0
// check: -DFORMAT=45 -DACT=bf16 -DOUT=bf16 -DTILES=1 -DMOST=8 -DWARPS=8 -DSPAN=1 -DSTAGES=3 -DMIN_BLOCKS=1 -DEPILOGUE=0 -DGATE=0 -DNORM=0
// check: -DFORMAT=47 -DACT=f16 -DOUT=f16 -DTILES=1 -DMOST=1 -DWARPS=8 -DSPAN=2 -DSTAGES=2 -DMIN_BLOCKS=2 -DEPILOGUE=0 -DGATE=0 -DNORM=0
// check: -DFORMAT=48 -DACT=bf16 -DOUT=bf16 -DTILES=1 -DMOST=8 -DWARPS=8 -DSPAN=2 -DSTAGES=2 -DMIN_BLOCKS=1 -DEPILOGUE=0 -DGATE=1 -DNORM=1
// check: -DFORMAT=49 -DACT=f16 -DOUT=f16 -DTILES=1 -DMOST=8 -DWARPS=4 -DSPAN=4 -DSTAGES=2 -DMIN_BLOCKS=1 -DEPILOGUE=0 -DGATE=0 -DNORM=0
// check: -DFORMAT=55 -DACT=bf16 -DOUT=f32 -DTILES=1 -DMOST=8 -DWARPS=8 -DSPAN=1 -DSTAGES=3 -DMIN_BLOCKS=1 -DEPILOGUE=0 -DGATE=0 -DNORM=0
// check: -DFORMAT=3 -DACT=bf16 -DOUT=bf16 -DTILES=1 -DMOST=1 -DWARPS=8 -DSPAN=4 -DSTAGES=2 -DMIN_BLOCKS=2 -DEPILOGUE=0 -DGATE=1 -DNORM=1
// check: -DFORMAT=4 -DACT=f16 -DOUT=f16 -DTILES=1 -DMOST=8 -DWARPS=8 -DSPAN=2 -DSTAGES=2 -DMIN_BLOCKS=1 -DEPILOGUE=0 -DGATE=0 -DNORM=0
// check: -DFORMAT=5 -DACT=bf16 -DOUT=bf16 -DTILES=1 -DMOST=8 -DWARPS=8 -DSPAN=2 -DSTAGES=2 -DMIN_BLOCKS=1 -DEPILOGUE=0 -DGATE=0 -DNORM=0
// check: -DFORMAT=6 -DACT=bf16 -DOUT=bf16 -DTILES=1 -DMOST=1 -DWARPS=8 -DSPAN=2 -DSTAGES=2 -DMIN_BLOCKS=2 -DEPILOGUE=0 -DGATE=0 -DNORM=0
// check: -DFORMAT=7 -DACT=bf16 -DOUT=bf16 -DTILES=1 -DMOST=1 -DWARPS=8 -DSPAN=4 -DSTAGES=2 -DMIN_BLOCKS=2 -DEPILOGUE=0 -DGATE=1 -DNORM=1
// check: -DFORMAT=7 -DACT=bf16 -DOUT=bf16 -DTILES=1 -DMOST=8 -DWARPS=8 -DSPAN=2 -DSTAGES=2 -DMIN_BLOCKS=1 -DEPILOGUE=0 -DGATE=0 -DNORM=1
// check: -DFORMAT=8 -DACT=bf16 -DOUT=bf16 -DTILES=1 -DMOST=1 -DWARPS=8 -DSPAN=4 -DSTAGES=2 -DMIN_BLOCKS=2 -DEPILOGUE=0 -DGATE=0 -DNORM=0
// check: -DFORMAT=8 -DACT=f16 -DOUT=f32 -DTILES=1 -DMOST=8 -DWARPS=8 -DSPAN=2 -DSTAGES=2 -DMIN_BLOCKS=1 -DEPILOGUE=0 -DGATE=0 -DNORM=0
#include "act_norm.cuh"
#include "activate.cuh"
#include "groups_product.cuh"
#include "weights.cuh"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "hopper.cuh"
constexpr bool kBulk = true;
#else
constexpr bool kBulk = false;
struct Barrier {
    u64 state;
};
#endif
#if !defined(LATE)
#define LATE 0
#endif

constexpr u32 kThreads = 32 * WARPS;
constexpr u32 kOut = GATE ? 8 : 16;
// Padding that keeps the lanes of a store in different banks.
constexpr u32 kColumn = 20;
constexpr u32 kTokens = MOST;
constexpr u32 kSums = WARPS * kTokens * kColumn;
// Tokens whose loads a thread has in flight.
constexpr u32 kBatch = MOST < 4 ? MOST : 4;
// A span of a warp: the records of the upper eight rows, and those of the lower eight.
constexpr u32 kSpanBytes = 2 * SPAN * kRecord;
// Buffers of a tile's sums, with two barriers each: complete, and free.
constexpr u32 kBuffers = MOST == 1 ? 4 : 2;
constexpr bool kInTurns = kBulk && MOST == 1;
constexpr u32 kBarrierBytes = ((WARPS * STAGES + 2 * kBuffers) * 8 + 15) / 16 * 16;
// Groups of a span whose instructions the compiler may mix.
constexpr u32 kTogether = SPAN < 2 ? SPAN : 2;
constexpr u32 kTokenBytes = SPAN * TILES * 2048;

struct Product {
    const ACT *x;
    u8 *weights, *weights_up;
    const float *norm, *bias, *bias_up;
    const OUT *residual;
    OUT *out;
    u32 x_stride, residual_stride, out_stride;
    u32 tokens, n, k, matrix_rows, first_up;
    float norm_offset, eps;
};

// Values of a token in shared memory: tokens that lanes read together lie in different banks.
__device__ __forceinline__ u32 pitch_of(u32 k) { return (k + 127) / 128 * 128 + 32; }

// Copies the tokens of this tile to shared memory, each chunk as the lanes' eight depths side by side, with NORM times
// the norm's weights; their squares to `squares`, and their sums over each run of depths to `totals`.
__device__ __forceinline__ void stage(const Product &p, u32 first_token, u32 columns, ACT *staged, float *squares,
                                      float *totals) {
    u32 pitch = pitch_of(p.k), depth = (p.k + 127) / 128 * 128, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const ACT *x = p.x + (u64)first_token * p.x_stride;
    float square[kTokens] = {};
    // Eight neighbours of the tokens base .. base + kBatch − 1.
    auto load = [&](u32 base, u32 at, uint4(&v)[kBatch]) {
#pragma unroll
        for (u32 i = 0; i < kBatch; i++)
            v[i] = load_values(x + (u64)(base + i) * p.x_stride + at, base + i < columns && at < p.k);
    };
    auto put = [&](u32 base, u32 at, uint4(&v)[kBatch], const float4 *ahead) {
        float scale[8];
        if (NORM && at < p.k) {
            float4 low = ahead ? ahead[0] : __ldg((const float4 *)(p.norm + at)),
                   high = ahead ? ahead[1] : __ldg((const float4 *)(p.norm + at) + 1);
            float w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
            for (int i = 0; i < 8; i++) scale[i] = w[i] + p.norm_offset;
        }
        // They are the lower or upper four depths of two lanes.
        u32 to = at / 32 * 32 + at % 16 * 2 + at % 32 / 16 * 4;
#pragma unroll
        for (u32 i = 0; i < kBatch; i++) {
            if (base + i >= columns) break;
            if (NORM && at < p.k) apply_norm(v[i], scale, square[base + i]);
            if (at < depth) {
                ACT *token = staged + (base + i) * pitch + to;
                *(uint2 *)token = make_uint2(v[i].x, v[i].y);
                *(uint2 *)(token + 8) = make_uint2(v[i].z, v[i].w);
            }
            if (!kNeedsSums) continue;
            float a[8];
            unpack2<ACT>(v[i].x, a[0], a[1]);
            unpack2<ACT>(v[i].y, a[2], a[3]);
            unpack2<ACT>(v[i].z, a[4], a[5]);
            unpack2<ACT>(v[i].w, a[6], a[7]);
            float sum = ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7]));
#pragma unroll
            for (u32 mask = 1; mask < kRun / 8; mask *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
            if (at < depth && at % kRun == 0) totals[at / kRun * kTokens + base + i] = sum;
        }
    };
    // Several pieces of a row are on their way before the first is used.
    constexpr u32 kPieces = NORM && kTokens == 1 ? 2 : 4, kStep = 8 * kThreads;
#pragma unroll
    for (u32 base = 0; base < kTokens; base += kBatch) {
        if (base >= columns) break;
#pragma unroll 1
        for (u32 begin = 0; begin < depth; begin += kPieces * kStep) {
            uint4 v[kPieces][kBatch];
            u32 at = begin + 8 * threadIdx.x;
#pragma unroll
            for (u32 i = 0; i < kPieces; i++) load(base, at + i * kStep, v[i]);
            // A single token leaves registers to bring the norm's weights at the same time.
            constexpr bool kAhead = NORM && kTokens == 1;
            float4 ahead[kPieces][2];
#pragma unroll
            for (u32 i = 0; i < kPieces && kAhead; i++)
                if (at + i * kStep < p.k)
                    for (u32 h = 0; h < 2; h++) ahead[i][h] = __ldg((const float4 *)(p.norm + at + i * kStep) + h);
#pragma unroll
            for (u32 i = 0; i < kPieces; i++)
                if (begin + i * kStep < depth) put(base, at + i * kStep, v[i], kAhead ? ahead[i] : nullptr);
        }
    }
    if (NORM) {
#pragma unroll
        for (u32 token = 0; token < kTokens; token++) {
            if (token >= columns) break;
            float sum = warp_sum(square[token]);
            if (lane == 0) squares[token * WARPS + warp] = sum;
        }
    }
    __syncthreads();
}

// The operands of an output value's epilogue, loaded before its sum is complete.
struct Around {
    float bias, bias_up;
    u32 residual;
};

__device__ __forceinline__ Around around(const Product &p, u32 tile, u32 i, u32 first_token, u32 columns) {
    Around a = {0.f, 0.f, 0};
    u32 row = tile * kOut + i % kOut, column = i / kOut;
    if (row < p.n && column < columns) {
        if (p.bias) a.bias = __ldg(p.bias + row);
        if (GATE && p.bias_up) a.bias_up = __ldg(p.bias_up + row);
        if (p.residual) a.residual = load_bits(p.residual + (u64)(first_token + column) * p.residual_stride + row);
    }
    return a;
}

// What follows the sums, by thread `thread` of those that finish: one an output value, neighbours in a row. `first`
// belongs to the thread's first value.
__device__ __forceinline__ void finish(const Product &p, u32 tile, const float *sums, const float *squares,
                                       u32 first_token, u32 columns, Around first, u32 thread) {
#pragma unroll 1
    for (u32 i = thread; i < kOut * columns; i += kInTurns ? 32 : kThreads) {
        u32 at = i % kOut, column = i / kOut, row = tile * kOut + at;
        if (row >= p.n) continue;
        Around a = i == thread ? first : around(p, tile, i, first_token, columns);
        // Gate rows are the first eight of the tile, up rows the others.
        const float *from = sums + column * kColumn + at;
        float sum = 0.f, up = 0.f, square = 0.f;
#pragma unroll
        for (u32 warp = 0; warp < WARPS; warp++) {
            sum += from[warp * kTokens * kColumn];
            if (GATE) up += from[warp * kTokens * kColumn + 8];
            if (NORM) square += squares[column * WARPS + warp];
        }
        float rms = NORM ? rsqrtf(fmaf(square, 1.f / (float)p.k, p.eps)) : 1.f;
        sum = fmaf(sum, rms, a.bias);
        sum = GATE ? activate<GATE>(sum) * fmaf(up, rms, a.bias_up) : activate<EPILOGUE>(sum);
        p.out[(u64)(first_token + column) * p.out_stride + row] = from_f32<OUT>(sum + from_bits<OUT>(a.residual));
    }
}

// Where the records of the halves of a tile, eight rows each, begin.
struct Rows {
    const u8 *records[2];
};

__device__ __forceinline__ Rows find_rows(const Product &p, const Records &plain, const Records &up, u32 tile) {
    Rows rows;
    rows.records[0] = record_of(plain, GATE ? tile : 2 * tile, 0);
    // A last tile of eight rows has its half twice.
    rows.records[1] = GATE ? record_of(up, p.first_up / 8 + tile, 0)
                           : record_of(plain, min(2 * tile + 1, (p.n - 1) / 8), 0);
    return rows;
}

// Asks for the records of a span, which has `count` groups.
__device__ __forceinline__ void ask_weights(u8 *to, const Rows &rows, u32 first, u32 count, Barrier *full) {
    u32 lane = threadIdx.x & 31, bytes = count * kRecord;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    if (lane != 0) return;
    barrier_arrive_expect(*full, 2 * bytes);
#pragma unroll
    for (u32 h = 0; h < 2; h++) bulk_load(to + h * SPAN * kRecord, rows.records[h] + first * kRecord, bytes, *full);
#else
#pragma unroll
    for (u32 h = 0; h < 2; h++)
#pragma unroll
        for (u32 at = 16 * lane; at < SPAN * kRecord; at += 512)
            if (at < bytes)
                copy_async<16>(place_in_shared(to) + h * SPAN * kRecord + at, rows.records[h] + first * kRecord + at,
                               true);
#endif
}

// And for the lane's values of tokens.
__device__ __forceinline__ void ask_tokens(const Product &p, u32 to, u32 first_token, u32 columns, u32 span) {
    u32 lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (u32 n = 0; n < TILES; n++) {
        bool present = 8 * n + g < columns;
        const ACT *x = p.x + (u64)(first_token + (present ? 8 * n + g : 0)) * p.x_stride + 4 * t;
#pragma unroll
        for (u32 c = 0; c < 4 * SPAN; c++) {
            u32 depth = 128 * SPAN * span + 32 * c, at = to + ((c * TILES + n) * 32 + lane) * 16;
            bool wanted = present && depth < p.k;
            copy_async<8>(at, x + (wanted ? depth : 0), wanted);
            copy_async<8>(at + 8, x + (wanted ? depth + 16 : 0), wanted);
        }
    }
}

template <bool STAGED> __device__ __forceinline__ void product(const Product &p) {
    extern __shared__ uint4 shared[];
    constexpr u32 kSlot = kSpanBytes + (STAGED ? 0 : kTokenBytes);
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    u32 first_token = blockIdx.y * kTokens, columns = min(p.tokens - first_token, kTokens);
    u8 *ring = (u8 *)shared + warp * STAGES * kSlot;
    Barrier *barriers = (Barrier *)((u8 *)shared + WARPS * STAGES * kSlot), *full = barriers + warp * STAGES,
            *complete = barriers + WARPS * STAGES, *free = complete + kBuffers;
    ACT *staged = (ACT *)((u8 *)shared + WARPS * STAGES * kSlot + kBarrierBytes);
    float *sums_at = (float *)(staged + (STAGED ? columns * pitch_of(p.k) : 0)), *squares = sums_at + kBuffers * kSums,
          *totals_at = squares + WARPS * kTokens;

    Records plain = records_of(p.weights, p.k), up = GATE ? records_of(p.weights_up, p.k) : plain;
    u32 groups = plain.groups, spans = (groups + SPAN - 1) / SPAN, tiles = (p.n + kOut - 1) / kOut;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    if (lane == 0) {
#pragma unroll
        for (u32 s = 0; s < STAGES; s++) barrier_init(full[s], 1);
#pragma unroll
        for (u32 i = 0; i < kBuffers && kInTurns; i++)
            if (warp == 0) {
                barrier_init(complete[i], WARPS);
                barrier_init(free[i], 1);
            }
        barrier_init_done();
    }
    __syncwarp();
#endif

    // What is asked for next; of a warp without spans nothing.
    u32 ask_tile = warp < spans ? blockIdx.x : tiles, ask_span = warp;
    Rows rows = find_rows(p, plain, up, blockIdx.x);
    auto ask = [&](u32 slot) {
        ask_weights(ring + slot * kSlot, rows, ask_span * SPAN, min(groups - ask_span * SPAN, (u32)SPAN), full + slot);
    };
    auto advance = [&] {
        ask_span += WARPS;
        if (ask_span < spans) return;
        ask_span = warp;
        ask_tile += gridDim.x;
        if (ask_tile < tiles) rows = find_rows(p, plain, up, ask_tile);
    };
    u32 asked = 0;
#pragma unroll
    for (u32 s = 0; s < STAGES; s++) {
        if (ask_tile < tiles) {
            ask(s);
            advance();
            asked++;
        }
        if (STAGED) end_of_copies();
    }
    if (!LATE || ask_tile >= tiles) let_next_start();
    if (NORM)
        for (u32 at = 32 * threadIdx.x; at < p.k; at += 32 * kThreads) bring_near(p.norm + at);
    wait_for_previous();
    if (STAGED) {
        stage(p, first_token, columns, staged, squares, totals_at);
    } else {
        // The spans that were asked for, once more.
        u32 span = warp;
#pragma unroll
        for (u32 s = 0; s < STAGES; s++) {
            if (s < asked) ask_tokens(p, place_in_shared(ring + s * kSlot) + kSpanBytes, first_token, columns, span);
            end_of_copies();
            span = span + WARPS < spans ? span + WARPS : warp;
        }
        if (kInTurns) __syncthreads();
    }

    u32 slot = 0, turn = 0, phase = 0;
#pragma unroll 1
    for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        float sums[TILES][1][4] = {};
        bool finishes = !kInTurns || turn % WARPS == warp;
        u32 thread = kInTurns ? lane : threadIdx.x;
        Around first = {0.f, 0.f, 0};
        if (finishes) first = around(p, tile, thread, first_token, columns);
#pragma unroll 1
        for (u32 span = warp; span < spans; span += WARPS) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
            barrier_wait(full[slot], phase);
            if (!STAGED) wait_for_copies<STAGES - 1>();
#else
            wait_for_copies<STAGES - 1>();
            __syncwarp();
#endif
            const u8 *from = ring + slot * kSlot;
            // When all lanes have read a slot, what comes next may take its place.
            auto refill = [&] {
                __syncwarp();
                if (ask_tile < tiles) {
                    ask(slot);
                    if (!STAGED)
                        ask_tokens(p, place_in_shared(from) + kSpanBytes, first_token, columns, ask_span);
                    advance();
                    if (LATE && ask_tile >= tiles) let_next_start();
                }
                if (!kBulk || !STAGED) end_of_copies();
            };
#pragma unroll (kTogether)
            for (u32 s = 0; s < SPAN; s++) {
                u32 group = span * SPAN + s;
                // Of a group that is not there nothing is used.
                Codes codes[2];
                Factors f[1][2];
#pragma unroll
                for (u32 h = 0; h < 2; h++) {
                    const u8 *record = from + (h * SPAN + s) * kRecord;
                    codes[h] = codes_at(record, g, t);
                    f[0][h] = factors_at(record + scales_in_record(g));
                }
                if (STAGED && s == SPAN - 1) refill();
                if (SPAN > 1 && group >= groups) continue;
                u32 a[1][8][4];
                left_of<ACT>(codes[0], codes[1], a[0]);
                auto chunk_at = [&](u32 n, u32 chunk, u32(&b)[2][2]) {
                    // Columns of tokens that are not there repeat another's: their sums are not used.
                    const ACT *x = staged + min(8 * n + g, columns - 1) * pitch_of(p.k) + 128 * group + 8 * t;
                    const u8 *streamed = from + kSpanBytes + ((s * 4 + chunk) * TILES + n) * 512 + 16 * lane;
                    uint4 v = STAGED ? *(const uint4 *)(x + 32 * chunk) : *(const uint4 *)streamed;
                    b[0][0] = v.x, b[0][1] = v.y, b[1][0] = v.z, b[1][1] = v.w;
                };
                multiply_group<ACT, 1, TILES>(a, f, chunk_at, sums);
                if (!kNeedsSums) continue;
#pragma unroll
                for (u32 n = 0; n < TILES; n++) {
                    float2 totals[kRuns];
                    if (STAGED) {
#pragma unroll
                        for (u32 run = 0; run < kRuns; run++) {
                            const float *at = totals_at + (group * kRuns + run) * kTokens;
                            totals[run] =
                                kTokens == 1 ? make_float2(at[0], 0.f) : *(const float2 *)(at + 8 * n + 2 * t);
                        }
                    } else {
                        sum_group<ACT>([&](u32 chunk, u32(&b)[2][2]) { chunk_at(n, chunk, b); }, totals);
                    }
                    add_minima<1>(f, totals, sums[n]);
                }
            }
            if (!STAGED) refill();
            if (++slot == STAGES) slot = 0, phase ^= 1;
        }
        // Several buffers, so that nobody waits for a tile to be finished but who finishes it.
        u32 buffer = turn % kBuffers, round = turn / kBuffers;
        float *tile_sums = sums_at + buffer * kSums;
        turn++;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
        if (kInTurns && round > 0) barrier_wait(free[buffer], (round - 1) & 1);
#endif
#pragma unroll
        for (u32 n = 0; n < TILES; n++) {
            if (8 * n + 2 * t >= kTokens) continue;
            float *to = tile_sums + (warp * kTokens + 8 * n + 2 * t) * kColumn + g;
            to[0] = sums[n][0][0];
            to[8] = sums[n][0][2];
            if (kTokens == 1) continue;
            to[kColumn] = sums[n][0][1];
            to[kColumn + 8] = sums[n][0][3];
        }
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
        if (kInTurns) {
            __syncwarp();
            if (lane == 0) barrier_arrive(complete[buffer]);
            if (!finishes) continue;
            barrier_wait(complete[buffer], round & 1);
            finish(p, tile, tile_sums, squares, first_token, columns, first, thread);
            __syncwarp();
            if (lane == 0) barrier_arrive(free[buffer]);
            continue;
        }
#endif
        __syncthreads();
        finish(p, tile, tile_sums, squares, first_token, columns, first, thread);
    }
    wait_for_copies<0>();
}

#define ENTRY(name, staged)                                                                                        \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, MIN_BLOCKS)                                           \
        name(const ACT *x, u8 *weights, u8 *weights_up, const float *norm, const float *bias, const float *bias_up, \
             const OUT *residual, OUT *out, u32 x_stride, u32 residual_stride, u32 out_stride, u32 tokens, u32 n,  \
             u32 k, u32 matrix_rows, u32 first_up, float norm_offset, float eps) {                                 \
        product<staged>({x, weights, weights_up, norm, bias, bias_up, residual, out, x_stride, residual_stride,    \
                         out_stride, tokens, n, k, matrix_rows, first_up, norm_offset, eps});                      \
    }
ENTRY(linear_groups_small, true)
#if !NORM
ENTRY(linear_groups_streamed, false)
#endif
