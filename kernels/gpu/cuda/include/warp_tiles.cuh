// What kernels over tiles in shared memory ask a warp for: asynchronous copies, 8×8 pieces as operands of
// mma_m16n8k16, barriers of some warps (sm_80 and newer).
#pragma once
#include "mma.cuh"

#if !defined(PORTABLE)

__device__ __forceinline__ u32 address_in_shared(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// Copies 16 bytes, both sides aligned to 16; writes zeroes, and reads nothing, where they are not wanted.
__device__ __forceinline__ void copy_async(u32 to, const void *from, bool wanted) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(wanted ? 16 : 0) : "memory");
}
// Closes a group of this thread's copies.
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most the N newest groups are under way.
template <int N> __device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

__device__ __forceinline__ void store_shared(u32 to, u32 word) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}

// A barrier of `threads` threads (whole warps); its number is 1 .. 15.
__device__ __forceinline__ void barrier_of(u32 number, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif
