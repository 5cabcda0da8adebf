// Asynchronous copies of a thread into shared memory (sm_80 and newer).
#pragma once
#include "common.cuh"

#if !defined(PORTABLE)

__device__ __forceinline__ u32 place_in_shared(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// Copies of 4, 8 and 16 bytes into shared memory; zeros where not `wanted`.
template <u32 BYTES> __device__ __forceinline__ void copy_async(u32 to, const void *from, bool wanted) {
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(wanted ? 16 : 0)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES),
                     "r"(wanted ? BYTES : 0)
                     : "memory");
    }
}
__device__ __forceinline__ void end_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most N of this thread's newest sets of copies are under way.
template <u32 N> __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// 16 bytes of shared memory.
__device__ __forceinline__ uint4 load_shared(u32 from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

// Has the line of 128 bytes brought into the second-level cache.
__device__ __forceinline__ void bring_near(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
#endif
