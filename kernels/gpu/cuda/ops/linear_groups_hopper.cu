// The same as linear_groups_tile on Hopper's matrix units: 256 weight rows by TOKENS tokens a block, as
// groups_hopper.cuh says.
//
// Definitions: FORMAT (see groups_product.cuh), ACT (bf16, f16), OUT (bf16, f16, f32), TOKENS (32 or 64; 32 of
// short runs), GROUPS (1 or more), STAGES (2 or more), EPILOGUE (see activate.cuh).
// linear_groups_hopper: grid (⌈n / 256⌉, ⌈tokens / TOKENS⌉, splits), 640 threads, dynamic shared memory 1024 +
// STAGES·(`kStageBytes` + `kSumBytes` + `kPartBytes` + 16) bytes. Operands, groups_finish and needs are those of
// linear_groups_tile.
// check: -DFORMAT=43 -DACT=bf16 -DOUT=bf16 -DTOKENS=64 -DGROUPS=2 -DSTAGES=3 -DEPILOGUE=0
// check: -DFORMAT=43 -DACT=f16 -DOUT=f32 -DTOKENS=32 -DGROUPS=2 -DSTAGES=3 -DEPILOGUE=1
// check: -DFORMAT=42 -DACT=bf16 -DOUT=bf16 -DTOKENS=64 -DGROUPS=1 -DSTAGES=4 -DEPILOGUE=0
// check: -DFORMAT=47 -DACT=f16 -DOUT=f16 -DTOKENS=64 -DGROUPS=1 -DSTAGES=4 -DEPILOGUE=0
// check: -DFORMAT=49 -DACT=bf16 -DOUT=bf16 -DTOKENS=32 -DGROUPS=1 -DSTAGES=4 -DEPILOGUE=0
// check: -DFORMAT=55 -DACT=bf16 -DOUT=bf16 -DTOKENS=64 -DGROUPS=1 -DSTAGES=4 -DEPILOGUE=0
// check: -DFORMAT=3 -DACT=bf16 -DOUT=bf16 -DTOKENS=32 -DGROUPS=2 -DSTAGES=4 -DEPILOGUE=0
// check: -DFORMAT=4 -DACT=f16 -DOUT=f16 -DTOKENS=32 -DGROUPS=2 -DSTAGES=3 -DEPILOGUE=0
// check: -DFORMAT=5 -DACT=bf16 -DOUT=bf16 -DTOKENS=32 -DGROUPS=1 -DSTAGES=4 -DEPILOGUE=0
// check: -DFORMAT=6 -DACT=bf16 -DOUT=f32 -DTOKENS=32 -DGROUPS=1 -DSTAGES=4 -DEPILOGUE=0
// check: -DFORMAT=7 -DACT=bf16 -DOUT=bf16 -DTOKENS=32 -DGROUPS=2 -DSTAGES=4 -DEPILOGUE=0
// check: -DFORMAT=8 -DACT=bf16 -DOUT=bf16 -DTOKENS=32 -DGROUPS=1 -DSTAGES=5 -DEPILOGUE=0
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "groups_hopper.cuh"
#include "groups_tile.cuh"

__device__ __forceinline__ void product(const Tile &p) {
    extern __shared__ uint4 shared[];
    Ring ring(shared);
    Turn turn = {0, 0};
    u32 warp = threadIdx.x / 32, first_row = blockIdx.x * kRows, first_token = blockIdx.y * TOKENS;
    u32 begin = blockIdx.z * p.depth, end = min(p.records.groups, begin + p.depth);
    if (warp >= kThreads / 32) {
        give_registers<BRING_REGISTERS>();
        // Behind the last row and the last token, the last ones again.
        u32 first = first_row / kRecordRows, last = (p.n - 1) / kRecordRows;
        bring(
            ring, turn, warp - kThreads / 32, begin, end, p.k,
            [&](u32 block, u32 group) { return record_of(p.records, min(first + block, last), group); },
            [&](u32 i) { return p.x + (u64)min(first_token + i, p.tokens - 1) * p.x_stride; });
    } else {
        take_registers<kMultiplyRegisters>();
        float sums[TOKENS / 2] = {}, *all = (float *)ring.stages;
        multiply(ring, turn, begin, end, sums);
        leave_sums(sums, all);
        // Who multiplies has not waited for the previous kernel, whose results are read and overwritten here.
        wait_for_previous();
        write_sums(p, all, first_row, first_token);
    }
}

extern "C" __global__ void __launch_bounds__(kAll, 1)
    linear_groups_hopper(const ACT *x, u8 *weights, const float *bias, const OUT *residual, OUT *out, float *partials,
                         u32 x_stride, u32 residual_stride, u32 out_stride, u32 tokens, u32 n, u32 k, u32 depth) {
    product({x, records_of(weights, k), bias, residual, out, partials, x_stride, residual_stride, out_stride, tokens,
             n, k, depth});
}
#endif
