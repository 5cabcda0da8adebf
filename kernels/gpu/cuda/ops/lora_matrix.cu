// `lora_shrink` and `lora_expand` of more than a few tokens on matrix units: a tile is eight neighbouring tokens, and a
// group of them that share an adapter is one product. Products with another adapter's values go nowhere, so that its
// infinities stay its own.
//
// Definitions: none; x of shrink, out of expand and the matrices are bf16. Rows are aligned to 16 bytes.
// check:
#include "lora.cuh"
#include "mma.cuh"

// Tokens of a tile.
#define TOKENS 8
// Ranks of a block of shrink.
#define RANKS 16
// Blocks that share out a tile's width in shrink, and warps of each.
#define SLICES 8
#define WARPS 8
// Chunks of 32 values of the width that a warp of shrink has on the way.
#define CHUNKS 4
// Features of a warp of expand.
#define FEATURES 32

// Chunks `c`, `c` + WARPS, … of a row, eight values a lane; zeros from `end` on.
__device__ __forceinline__ void load_chunks(uint4 (&chunks)[CHUNKS], const bf16 *row, u32 c, u32 end) {
#pragma unroll
    for (u32 i = 0; i < CHUNKS; i++)
        chunks[i] = c + i * WARPS < end ? *(const uint4 *)(row + 32 * (c + i * WARPS)) : make_uint4(0, 0, 0, 0);
}

// Adds the products of one chunk of 32: 16 ranks by 8 tokens. The depths are dealt out so that a lane's are eight
// neighbours.
__device__ __forceinline__ void add_chunk(float (&d)[4], const uint4 &lower, const uint4 &upper, const uint4 &x) {
    const u32 first[4] = {lower.x, upper.x, lower.y, upper.y}, second[4] = {lower.z, upper.z, lower.w, upper.w};
    const u32 x_first[2] = {x.x, x.y}, x_second[2] = {x.z, x.w};
    mma_m16n8k16<bf16>(d, first, x_first);
    mma_m16n8k16<bf16>(d, second, x_second);
}

// Grid: slices, ranks in RANKS, tokens in TOKENS; 32 · WARPS threads. width is a multiple of 32. The slices of a tile
// are a cluster where there are clusters: each sums up its part of the width, and the first one adds those up.
// Elsewhere the grid has one slice.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define CLUSTER __cluster_dims__(SLICES, 1, 1)
#else
#define CLUSTER
#endif
extern "C" __global__ void CLUSTER __launch_bounds__(32 * WARPS)
    lora_shrink_matrix(const bf16 *x, u32 x_stride, const bf16 *a, u32 slot_stride, u32 rank_stride,
                       const i32 *token_lora, u32 token_lora_stride, float *out, u32 out_stride, u32 num_tokens,
                       u32 num_slots, u32 width, u32 max_rank, u32 early) {
    __shared__ float warps[WARPS][RANKS * TOKENS];
    __shared__ float slices[SLICES][RANKS * TOKENS];
#if __CUDA_ARCH__ >= 900
    // The first block must run before others write to it; its start is waited for behind the products.
    asm volatile("barrier.cluster.arrive.relaxed.aligned;");
#endif
    u32 first = blockIdx.z * TOKENS, rank = blockIdx.y * RANKS, lane = threadIdx.x & 31, warp = threadIdx.x >> 5,
        g = lane >> 2, t = lane & 3;
    u32 chunks = width / 32, begin = (u64)chunks * blockIdx.x / gridDim.x + warp,
        end = (u64)chunks * (blockIdx.x + 1) / gridDim.x;
    if (!early) wait_for_previous();
    Groups<TOKENS> groups(token_lora, token_lora_stride, first, num_tokens, num_slots);
    uint4 lower[CHUNKS], upper[CHUNKS];
    auto load = [&](i32 slot, u32 c) {
        const bf16 *matrix = a + (u64)slot * slot_stride + 8 * t;
        load_chunks(lower, matrix + (u64)min(rank + g, max_rank - 1) * rank_stride, c, end);
        load_chunks(upper, matrix + (u64)min(rank + g + 8, max_rank - 1) * rank_stride, c, end);
    };
    i32 slot;
    u32 same = groups.next(slot);
    if (same) load(slot, begin);
    if (early) wait_for_previous();
    let_next_start();
    const bf16 *row = x + (u64)min(first + g, num_tokens - 1) * x_stride + 8 * t;
    float kept[4] = {};
    while (same) {
        float d[4] = {};
        for (u32 c = begin; c < end;) {
            uint4 values[CHUNKS];
            load_chunks(values, row, c, end);
#pragma unroll
            for (u32 i = 0; i < CHUNKS; i++) add_chunk(d, lower[i], upper[i], values[i]);
            c += CHUNKS * WARPS;
            if (c < end) load(slot, c);
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            if (same >> (2 * t + i % 2) & 1) kept[i] = d[i];
        }
        same = groups.next(slot);
        if (same) load(slot, begin);
    }
    *(float2 *)&warps[warp][g * TOKENS + 2 * t] = make_float2(kept[0], kept[1]);
    *(float2 *)&warps[warp][(g + 8) * TOKENS + 2 * t] = make_float2(kept[2], kept[3]);
    __syncthreads();
    u32 mine = threadIdx.x;
    float sum = 0.f;
    if (mine < RANKS * TOKENS) {
#pragma unroll
        for (u32 w = 0; w < WARPS; w++) sum += warps[w][mine];
    }
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.aligned;");
    if (mine < RANKS * TOKENS) {
        u32 own, leader;
        asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }"
            : "=r"(own)
            : "l"(&slices[blockIdx.x][mine]));
        asm("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(leader) : "r"(own));
        asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(leader), "f"(sum) : "memory");
    }
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    if (blockIdx.x != 0) return;
    sum = 0.f;
    if (mine < RANKS * TOKENS) {
#pragma unroll
        for (u32 s = 0; s < SLICES; s++) sum += slices[s][mine];
    }
#endif
    u32 token = first + mine % TOKENS, r = rank + mine / TOKENS;
    if (mine < RANKS * TOKENS && token < num_tokens && r < max_rank) out[(u64)token * out_stride + r] = sum;
}

// Grid: tokens in TOKENS, features in WARPS · FEATURES; 32 · WARPS threads. max_rank is a multiple of 16; features,
// `second` and `third` (where parts of the features begin, each with its own max_rank columns of x) are multiples of
// FEATURES. x is taken as two bf16 that add up to it, in rows 0 to 7 and 8 to 15 of the same product. `early`, of both
// kernels: all but x may be read before the previous launch has ended.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    lora_expand_matrix(const float *x, u32 x_stride, const bf16 *b, u32 slot_stride, u32 feature_stride,
                       const float *scales, u32 scales_stride, const i32 *token_lora, u32 token_lora_stride, bf16 *out,
                       u32 out_stride, u32 num_tokens, u32 num_slots, u32 features, u32 max_rank, u32 second, u32 third,
                       u32 early) {
    u32 first = blockIdx.x * TOKENS, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    u32 n = (blockIdx.y * WARPS + (threadIdx.x >> 5)) * FEATURES;
    if (!early) wait_for_previous();
    Groups<TOKENS> groups(token_lora, token_lora_stride, first, num_tokens, num_slots);
    // A warp without work waits as well: the next launch takes the end of this one for the end of all before it.
    if (groups.left == 0 || n >= features) {
        if (early) wait_for_previous();
        return;
    }
    // A lane holds features n + 8t to n + 8t + 7 of token g. Column c of product j is feature 8 · (c / 2) + 2j + c % 2,
    // so that they are its sums.
    u32 token = min(first + g, num_tokens - 1);
    bf16 *mine = out + (u64)token * out_stride + n + 8 * t;
    uint4 old = *(const uint4 *)mine;
    uint2 columns[4];
    float scale;
    auto load = [&](i32 slot, u32 r) {
        const bf16 *rows = b + (u64)slot * slot_stride + (u64)(n + 8 * (g / 2) + g % 2) * feature_stride + 4 * t + r;
#pragma unroll
        for (u32 j = 0; j < 4; j++) columns[j] = *(const uint2 *)(rows + (u64)(2 * j) * feature_stride);
        scale = scales[(u64)slot * scales_stride];
    };
    i32 slot;
    u32 same = groups.next(slot);
    load(slot, 0);
    if (early) wait_for_previous();
    let_next_start();
    const float *values = x + (u64)token * x_stride + ((n >= second) + (n >= third)) * max_rank + 4 * t;
    while (same) {
        float d[4][4] = {};
        for (u32 r = 0; r < max_rank;) {
            float4 v = *(const float4 *)(values + r);
            u32 high[2] = {pack2<bf16>(v.x, v.y), pack2<bf16>(v.z, v.w)};
            float h[4];
            unpack2<bf16>(high[0], h[0], h[1]);
            unpack2<bf16>(high[1], h[2], h[3]);
            const u32 both[4] = {high[0], pack2<bf16>(v.x - h[0], v.y - h[1]), high[1],
                                 pack2<bf16>(v.z - h[2], v.w - h[3])};
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                const u32 column[2] = {columns[j].x, columns[j].y};
                mma_m16n8k16<bf16>(d[j], both, column);
            }
            r += 16;
            if (r < max_rank) load(slot, r);
        }
        if (same >> g & 1) {
            u32 words[4] = {old.x, old.y, old.z, old.w};
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                float low, up;
                unpack2<bf16>(words[j], low, up);
                words[j] = pack2<bf16>(low + scale * (d[j][0] + d[j][2]), up + scale * (d[j][1] + d[j][3]));
            }
            *(uint4 *)mine = make_uint4(words[0], words[1], words[2], words[3]);
        }
        __syncwarp();
        same = groups.next(slot);
        if (same) load(slot, 0);
    }
}
