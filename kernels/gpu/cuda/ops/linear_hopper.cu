// `linear` for up to some hundred tokens, on Hopper's matrix units: ROWS rows of the matrix by TOKENS tokens a block.
// Such a product takes as long as its weights take to come, so they are asked for before the kernel before is over: a
// ring of STAGES pieces of 128 bytes of each row is full of weights when the tokens arrive. With GATE a block has ROWS
// / 2 gate and as many up rows, and only activation(gate) · up is written.
//
// Weights are plain values of the tokens' type, or 8-bit floats by tokens rounded to such with a scale a token
// (linear_scaled_tokens). Of those, matrix units keep 14 bits of a sum; so each piece's sum starts from zero, and the
// pieces' are added up in f32. Scales are a row's (scaled.cuh), or with RECORDS a row's of each piece (quantized.cuh).
//
// Two warpgroups multiply half of the rows each, straight from shared memory, while asynchronous copies of all threads
// fill the ring (as in moe_tile). Tokens are the left operand, as the right one may have any multiple of 8 rows: so
// many that nearly every multiprocessor has a tile, for fewer do not keep memory busy. SPLITS blocks, a cluster, share
// out the depth of one tile; each adds up the parts of some of its tokens, in order, from the shared memory of all.
//
// Definitions: ACT (bf16, f16, u8 for 8-bit floats: x and weights), OUT (bf16, f16, f32), ROWS (16, 32, 64, 112, 128,
// 224; 112 and more with u8), TOKENS (64, 128), SPLITS (1 to 8), STAGES (4 or more), EPILOGUE (0 with GATE), GATE (0:
// plain; else activate.cuh's number), RECORDS (0, 1; with u8). Launch: grid (rows in ROWS, with GATE in half of it;
// tokens in TOKENS; SPLITS), 256 threads, dynamic shared memory 1024 + STAGES · (ROWS + TOKENS) · 128 bytes, with
// RECORDS STAGES · ROWS · 4 more. Operands: weights [features, k] (w_up: with GATE, those of the up part); or records
// of both, of k / 128 pieces; of u8 alone x_scales [tokens], without RECORDS scales and scales_up [features]; biases
// may be null, residual may be null or `out`. Needs: features multiples of 8, rows of x and of weights multiples of 16
// bytes (128 with RECORDS), x, weights, biases, scales of rows, residual and out 16-byte aligned, strides multiples of
// 8.
// check: -DACT=bf16 -DOUT=bf16 -DROWS=112 -DTOKENS=64 -DSPLITS=1 -DSTAGES=10 -DEPILOGUE=0 -DGATE=0 -DRECORDS=0
// check: -DACT=bf16 -DOUT=bf16 -DROWS=128 -DTOKENS=64 -DSPLITS=4 -DSTAGES=8 -DEPILOGUE=0 -DGATE=0 -DRECORDS=0
// check: -DACT=bf16 -DOUT=bf16 -DROWS=224 -DTOKENS=64 -DSPLITS=1 -DSTAGES=6 -DEPILOGUE=0 -DGATE=1 -DRECORDS=0
// check: -DACT=f16 -DOUT=f32 -DROWS=128 -DTOKENS=64 -DSPLITS=2 -DSTAGES=8 -DEPILOGUE=2 -DGATE=0 -DRECORDS=0
// check: -DACT=u8 -DOUT=bf16 -DROWS=128 -DTOKENS=64 -DSPLITS=4 -DSTAGES=8 -DEPILOGUE=0 -DGATE=0 -DRECORDS=0
// check: -DACT=u8 -DOUT=bf16 -DROWS=224 -DTOKENS=64 -DSPLITS=1 -DSTAGES=6 -DEPILOGUE=0 -DGATE=1 -DRECORDS=0
// check: -DACT=bf16 -DOUT=bf16 -DROWS=128 -DTOKENS=128 -DSPLITS=3 -DSTAGES=7 -DEPILOGUE=0 -DGATE=0 -DRECORDS=0
// check: -DACT=u8 -DOUT=bf16 -DROWS=224 -DTOKENS=128 -DSPLITS=1 -DSTAGES=5 -DEPILOGUE=0 -DGATE=1 -DRECORDS=0
// check: -DACT=u8 -DOUT=bf16 -DROWS=112 -DTOKENS=64 -DSPLITS=1 -DSTAGES=10 -DEPILOGUE=0 -DGATE=0 -DRECORDS=1
// check: -DACT=u8 -DOUT=bf16 -DROWS=224 -DTOKENS=128 -DSPLITS=1 -DSTAGES=5 -DEPILOGUE=0 -DGATE=1 -DRECORDS=1
// check: -DACT=bf16 -DOUT=bf16 -DROWS=16 -DTOKENS=64 -DSPLITS=2 -DSTAGES=10 -DEPILOGUE=0 -DGATE=0 -DRECORDS=0
// check: -DACT=bf16 -DOUT=bf16 -DROWS=32 -DTOKENS=64 -DSPLITS=1 -DSTAGES=10 -DEPILOGUE=0 -DGATE=2 -DRECORDS=0
// check: -DACT=bf16 -DOUT=bf16 -DROWS=64 -DTOKENS=128 -DSPLITS=1 -DSTAGES=8 -DEPILOGUE=0 -DGATE=1 -DRECORDS=0
// check: -DACT=bf16 -DOUT=bf16 -DROWS=16 -DTOKENS=128 -DSPLITS=2 -DSTAGES=10 -DEPILOGUE=0 -DGATE=0 -DRECORDS=0
// check: -DACT=bf16 -DOUT=bf16 -DROWS=32 -DTOKENS=128 -DSPLITS=2 -DSTAGES=10 -DEPILOGUE=0 -DGATE=0 -DRECORDS=0
// check: -DACT=f16 -DOUT=f16 -DROWS=64 -DTOKENS=64 -DSPLITS=4 -DSTAGES=10 -DEPILOGUE=0 -DGATE=0 -DRECORDS=0
#include "activate.cuh"
#include "copies.cuh"
#include "hopper.cuh"

#define THREADS 256

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr u32 kOut = GATE ? ROWS / 2 : ROWS;
// Values of a piece of a row, and of a unit of 16 bytes.
constexpr u32 kDepth = 128 / sizeof(ACT);
constexpr u32 kUnit = 16 / sizeof(ACT);
constexpr bool kRounded = sizeof(ACT) == 1;
// Of a record of eight rows of a piece: bytes of codes, and with their scales.
constexpr u32 kRecordCodes = 1024, kRecord = kRecordCodes + 32;
constexpr u32 kStage = (ROWS + TOKENS) * 128;
// Pieces on their way: two of the ring are multiplied or about to be.
constexpr u32 kOnTheWay = STAGES - 2;
// Rows that all threads bring at a time, and features among them.
constexpr u32 kAtOnce = THREADS / 8;
constexpr u32 kFeaturesAtOnce = GATE ? kAtOnce / 2 : kAtOnce;
// Floats of a token's sums in shared memory: neighbours in rows, tokens in different banks.
constexpr u32 kPitch = ROWS + 8;
// Tokens that a product of a warpgroup takes, and how many of those.
constexpr u32 kTokens = 64, kTiles = TOKENS / kTokens;
static_assert(TOKENS % kTokens == 0 && TOKENS * kPitch * 4 <= STAGES * kStage, "sums do not fit the ring");

// Four floats at `own`, an address in this block's shared memory, of that of block `part` of the cluster.
__device__ __forceinline__ float4 load_of_part(u32 own, u32 part) {
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(in_block(own, part))
                 : "memory");
    return v;
}

// Sums of four neighbours over all parts, in order.
__device__ __forceinline__ void sum_of_parts(u32 at, float (&sum)[4]) {
    float4 v[SPLITS];
#pragma unroll
    for (u32 part = 0; part < SPLITS; part++) v[part] = load_of_part(at, part);
    sum[0] = v[0].x, sum[1] = v[0].y, sum[2] = v[0].z, sum[3] = v[0].w;
#pragma unroll
    for (u32 part = 1; part < SPLITS; part++)
        sum[0] += v[part].x, sum[1] += v[part].y, sum[2] += v[part].z, sum[3] += v[part].w;
}

template <typename T> __device__ __forceinline__ void load4(const T *p, float (&v)[4]) {
    uint2 raw = *(const uint2 *)p;
    unpack2<T>(raw.x, v[0], v[1]);
    unpack2<T>(raw.y, v[2], v[3]);
}
template <> __device__ __forceinline__ void load4(const float *p, float (&v)[4]) {
    float4 raw = *(const float4 *)p;
    v[0] = raw.x, v[1] = raw.y, v[2] = raw.z, v[3] = raw.w;
}
template <typename T> __device__ __forceinline__ void store4(T *p, const float (&v)[4]) {
    *(uint2 *)p = make_uint2(pack2<T>(v[0], v[1]), pack2<T>(v[2], v[3]));
}
template <> __device__ __forceinline__ void store4(float *p, const float (&v)[4]) {
    *(float4 *)p = make_float4(v[0], v[1], v[2], v[3]);
}

// Sums of products of codes, by the scale of their token and those of four rows, if those have one each.
__device__ __forceinline__ void scale4(float (&sum)[4], float of_token, const float *of_rows) {
    float v[4] = {1.f, 1.f, 1.f, 1.f};
    if (!RECORDS) load4(of_rows, v);
#pragma unroll
    for (u32 e = 0; e < 4; e++) sum[e] = sum[e] * of_token * v[e];
}

extern "C" __global__ void __cluster_dims__(1, 1, SPLITS) __launch_bounds__(THREADS, 1)
    linear_hopper(const ACT *x, const ACT *w, const ACT *w_up, const float *x_scales, const float *scales,
                  const float *scales_up, const float *bias, const float *bias_up, const OUT *residual, OUT *out,
                  u32 x_stride, u32 residual_stride, u32 out_stride, u32 num_tokens, u32 features, u32 k) {
    extern __shared__ uint4 shared[];
    u32 base = (shared_address(shared) + 1023) / 1024 * 1024, skipped = base - shared_address(shared);
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, group = threadIdx.x / 128;
    u32 row = threadIdx.x / 8, unit = threadIdx.x % 8;
    u32 first = blockIdx.x * kOut, first_token = blockIdx.y * TOKENS;
    u32 count = min(num_tokens - first_token, (u32)TOKENS);
    u32 all_pieces = (k + kDepth - 1) / kDepth;
    u32 begin = all_pieces * blockIdx.z / SPLITS, end = all_pieces * (blockIdx.z + 1) / SPLITS;
    // This thread's unit of its first row of the matrix; where GATE, eight rows of gate and eight of up in turn.
    u32 own_feature = first + (GATE ? row / 16 * 8 + row % 8 : row);
    const ACT *matrix = (GATE && row / 8 % 2 ? w_up : w) + (u64)own_feature * k + kUnit * unit;
    u32 own_place = base + row * 128 + (unit ^ row % 8) * 16;
    const ACT *tokens = x + (u64)(first_token + row) * x_stride + kUnit * unit;
    // The same of records: 64 threads a record, where GATE of gate and of up in turn, and two threads for its scales.
    struct Place {
        const u8 *from;
        u32 feature;
    };
    auto record_at = [&](u32 i, u32 byte) {
        u32 feature = first + (GATE ? i / 2 : i) * 8;
        const u8 *matrix = (const u8 *)(GATE && i % 2 ? w_up : w);
        return Place{matrix + (u64)(feature / 8) * all_pieces * kRecord + byte, feature};
    };
    constexpr u32 kRecordsAtOnce = THREADS / 64, kRecordFeatures = GATE ? 4 * kRecordsAtOnce : 8 * kRecordsAtOnce;
    Place codes = record_at(threadIdx.x / 64, threadIdx.x % 64 * 16);
    Place own_scale = record_at(threadIdx.x / 2, kRecordCodes + threadIdx.x % 2 * 16);
    u64 records_on = (u64)(kRecordFeatures / 8) * all_pieces * kRecord;
    u32 scales_to = base + STAGES * kStage + threadIdx.x * 16;
    auto bring_records = [&](u32 piece) {
        u32 slot = (piece - begin) % STAGES, to = base + slot * kStage + threadIdx.x * 16;
        u64 depth = (u64)piece * kRecord;
#pragma unroll
        for (u32 i = 0; i < (ROWS + 8 * kRecordsAtOnce - 1) / (8 * kRecordsAtOnce); i++) {
            if ((i + 1) * THREADS > ROWS * 8 && threadIdx.x + i * THREADS >= ROWS * 8) continue;
            bool wanted = codes.feature + i * kRecordFeatures < features;
            copy_async<16>(to + i * THREADS * 16, wanted ? codes.from + depth + i * records_on : (const u8 *)w, wanted);
        }
        bool wanted = own_scale.feature < features;
        if (threadIdx.x < ROWS / 4)
            copy_async<16>(scales_to + slot * ROWS * 4, wanted ? own_scale.from + depth : (const u8 *)w, wanted);
    };
    auto bring_weights = [&](u32 piece) {
        if (RECORDS) return bring_records(piece);
        u32 to = own_place + (piece - begin) % STAGES * kStage, depth = piece * kDepth;
        bool inside = depth + kUnit * unit < k;
#pragma unroll
        for (u32 i = 0; i < (ROWS + kAtOnce - 1) / kAtOnce; i++) {
            if ((i + 1) * kAtOnce > ROWS && row + i * kAtOnce >= ROWS) continue;
            bool wanted = inside && own_feature + i * kFeaturesAtOnce < features;
            copy_async<16>(to + i * kAtOnce * 128, wanted ? matrix + depth + (u64)i * kFeaturesAtOnce * k : w, wanted);
        }
    };
    auto bring_tokens = [&](u32 piece) {
        u32 to = own_place + (piece - begin) % STAGES * kStage + ROWS * 128, depth = piece * kDepth;
        bool inside = depth + kUnit * unit < k;
#pragma unroll
        for (u32 i = 0; i < TOKENS / kAtOnce; i++) {
            bool wanted = inside && row + i * kAtOnce < count;
            copy_async<16>(to + i * kAtOnce * 128, wanted ? tokens + depth + (u64)i * kAtOnce * x_stride : x, wanted);
        }
    };
#pragma unroll 1
    for (u32 piece = begin; piece < begin + kOnTheWay && piece < end; piece++) bring_weights(piece);
    if (begin + kOnTheWay >= end) let_next_start();
    wait_for_previous();
#pragma unroll 1
    for (u32 piece = begin; piece < begin + kOnTheWay; piece++) {
        if (piece < end) bring_tokens(piece);
        end_of_copies();
    }
    float sums[kTiles][ROWS / 4] = {}, of_piece[ROWS / 4] = {};
    // Of this thread's rows in the first slot.
    const float *own_scales = (const float *)((u8 *)shared + skipped + STAGES * kStage) + group * (ROWS / 2) + 2 * t;
    u32 slot = 0;
#pragma unroll 1
    for (u32 piece = begin; piece < end; piece++) {
        wait_for_copies<kOnTheWay - 1>();
        stores_before_products();
        __syncthreads();
        u32 stage = base + slot * kStage, rows = stage + group * (ROWS / 2) * 128, columns = stage + ROWS * 128;
        const float *scales_now = own_scales + slot * ROWS;
        slot = slot + 1 == STAGES ? 0 : slot + 1;
#pragma unroll
        for (u32 tile = 0; tile < kTiles; tile++) {
            auto &to = kRounded ? of_piece : sums[tile];
            wgmma_fence();
#pragma unroll
            for (u32 step = 0; step < 4; step++) {
                u64 a = wgmma_swapped_operand(columns + tile * kTokens * 128 + 32 * step);
                u64 b = RECORDS ? wgmma_swapped_operand_64(rows + step / 2 * 512 + step % 2 * 32, kRecordCodes)
                                : wgmma_swapped_operand(rows + 32 * step);
                WgmmaShared<ACT, ROWS / 2, 0>::run(to, a, b, !kRounded || step > 0);
            }
            wgmma_commit();
            if (tile == 0) {
                // Both warpgroups are done with the piece before the last one.
                u32 next = piece + kOnTheWay;
                if (next < end) {
                    bring_weights(next);
                    bring_tokens(next);
                    if (next + 1 == end) let_next_start();
                }
                end_of_copies();
            }
            if (!kRounded) continue;
            wgmma_wait<0>();
            pin(of_piece);
#pragma unroll
            for (u32 i = 0; i < ROWS / 4; i += 4) {
                float2 scale = make_float2(1.f, 1.f);
                if (RECORDS) scale = *(const float2 *)(scales_now + 2 * i);
                sums[tile][i] += scale.x * of_piece[i];
                sums[tile][i + 1] += scale.y * of_piece[i + 1];
                sums[tile][i + 2] += scale.x * of_piece[i + 2];
                sums[tile][i + 3] += scale.y * of_piece[i + 3];
            }
        }
        // Those of the piece before are over.
        wgmma_wait<kRounded ? 0 : kTiles>();
    }
    wgmma_wait<0>();
    wait_for_copies<0>();
    __syncthreads();
#pragma unroll
    for (u32 tile = 0; tile < kTiles; tile++) {
        auto &own = sums[tile];
        pin(own);
        u32 token = tile * kTokens + warp % 4 * 16 + g;
        float *all = (float *)((u8 *)shared + skipped) + token * kPitch + group * (ROWS / 2) + 2 * t;
#pragma unroll
        for (u32 n = 0; n < ROWS / 16; n++) {
            *(float2 *)(all + 8 * n) = make_float2(own[4 * n], own[4 * n + 1]);
            *(float2 *)(all + 8 * kPitch + 8 * n) = make_float2(own[4 * n + 2], own[4 * n + 3]);
        }
    }
    meet_in_cluster();
#pragma unroll 2
    for (u32 i = blockIdx.z * THREADS + threadIdx.x; i < count * (kOut / 4); i += SPLITS * THREADS) {
        u32 token = i / (kOut / 4), own = i % (kOut / 4) * 4, feature = first + own;
        if (feature >= features) continue;
        u32 at = base + 4 * (token * kPitch + (GATE ? own / 8 * 16 + own % 8 : own));
        float sum[4], v[4];
        sum_of_parts(at, sum);
        if (kRounded) scale4(sum, x_scales[first_token + token], scales + feature);
        if (bias) {
            load4(bias + feature, v);
#pragma unroll
            for (u32 e = 0; e < 4; e++) sum[e] += v[e];
        }
        if (GATE) {
            float up[4];
            sum_of_parts(at + 32, up);
            if (kRounded) scale4(up, x_scales[first_token + token], scales_up + feature);
            if (bias_up) {
                load4(bias_up + feature, v);
#pragma unroll
                for (u32 e = 0; e < 4; e++) up[e] += v[e];
            }
#pragma unroll
            for (u32 e = 0; e < 4; e++) sum[e] = activate<GATE>(sum[e]) * up[e];
        } else {
#pragma unroll
            for (u32 e = 0; e < 4; e++) sum[e] = activate<EPILOGUE>(sum[e]);
        }
        if (residual) {
            load4(residual + (u64)(first_token + token) * residual_stride + feature, v);
#pragma unroll
            for (u32 e = 0; e < 4; e++) sum[e] += v[e];
        }
        store4(out + (u64)(first_token + token) * out_stride + feature, sum);
    }
    // Nobody leaves while others read from its memory.
    meet_in_cluster();
}
#endif
