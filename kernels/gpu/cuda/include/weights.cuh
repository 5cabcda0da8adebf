// Loads of weights for kernels that stream a matrix once: 16 bytes a lane, or zeros where a lane has nothing to read.
#pragma once
#include "common.cuh"

#if !defined(PORTABLE)

// 16 bytes of constant memory where `wanted`, else zeros.
__device__ __forceinline__ uint4 load_weights(const void *p, bool wanted) {
    uint4 v;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.u32 p, %5, 0;\n"
                 "mov.u32 %0, 0;\n"
                 "mov.u32 %1, 0;\n"
                 "mov.u32 %2, 0;\n"
                 "mov.u32 %3, 0;\n"
                 "@p ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 "}\n"
                 : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
                 : "l"(p), "r"((u32)wanted));
    return v;
}

// 16 bytes that earlier work wrote, where `wanted`, else zeros: never through the constant path.
__device__ __forceinline__ uint4 load_values(const void *p, bool wanted) {
    uint4 v;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.u32 p, %5, 0;\n"
                 "mov.u32 %0, 0;\n"
                 "mov.u32 %1, 0;\n"
                 "mov.u32 %2, 0;\n"
                 "mov.u32 %3, 0;\n"
                 "@p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 "}\n"
                 : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
                 : "l"(p), "r"((u32)wanted));
    return v;
}

// 8 bytes likewise.
__device__ __forceinline__ uint2 load_values8(const void *p, bool wanted) {
    uint2 v;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.u32 p, %3, 0;\n"
                 "mov.u32 %0, 0;\n"
                 "mov.u32 %1, 0;\n"
                 "@p ld.global.v2.u32 {%0, %1}, [%2];\n"
                 "}\n"
                 : "=&r"(v.x), "=&r"(v.y)
                 : "l"(p), "r"((u32)wanted));
    return v;
}

// One value that earlier work wrote, as its bits: nothing waits for it before `from_bits`.
__device__ __forceinline__ u32 load_bits(const float *p) {
    u32 v;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
template <typename T> __device__ __forceinline__ u32 load_bits(const T *p) {
    u32 v;
    asm volatile("ld.global.u16 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
template <typename T> __device__ __forceinline__ float from_bits(u32 bits) {
    T v;
    v.bits = (u16)bits;
    return to_f32(v);
}
template <> __device__ __forceinline__ float from_bits<float>(u32 bits) { return __int_as_float(bits); }
#endif
