// Matrices of chosen experts from records to plain values, for moe_many (`in_order`): those of some entries of
// moe_list's list, one behind the other.
//
// Definitions: FORMAT (see quantized.cuh), ACT (bf16, f16: out).
// Launch: grid (⌈groups · features · 4 / 256⌉, entries, matrices), 256 threads; a warp has a record. Operands: `w`, and
// for blockIdx.z 1 `w_up`: the records of all experts' rows; out [matrices, entries, features, width]. An entry of
// choices elsewhere has none. Needs: features a multiple of 8, width one of 32, out 8-byte aligned.
// check: -DFORMAT=43 -DACT=bf16
// check: -DFORMAT=7 -DACT=bf16
// check: -DFORMAT=49 -DACT=f16
// check: -DFORMAT=8 -DACT=bf16
#include "expert_list.cuh"
#include "records.cuh"

extern "C" __global__ void __launch_bounds__(256)
    moe_unpack(u8 *w, u8 *w_up, const u32 *list, ACT *out, u32 first_entry, u32 num_experts, u32 width,
               u32 features) {
    let_next_start();
    wait_for_previous();
    u32 entry = first_entry + blockIdx.y;
    if (entry >= chosen_experts(list)) return;
    u32 expert = chosen_expert(list, entry).expert;
    if (expert == num_experts) return;
    Records all = records_of(blockIdx.z ? w_up : w, width);
    u32 index = blockIdx.x * 256 + threadIdx.x, group = index / 32 % all.groups;
    u32 row = index / 32 / all.groups * kRecordRows + index / 4 % kRecordRows;
    if (row >= features) return;
    u64 matrix = (u64)blockIdx.z * gridDim.y + blockIdx.y;
    unpack_part(all, expert * features + row, group, index & 3, out + (matrix * features + row) * width, width);
}
