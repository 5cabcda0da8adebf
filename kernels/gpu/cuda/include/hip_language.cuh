// The HIP language where no runtime header declares it: compiling the kernels needs clang alone, as the tests do.
// Functions without an instruction of their own are those of the device libraries (ocml), declared here. The step
// that makes code objects links them.
#pragma once

#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(threads, ...) __attribute__((amdgpu_flat_work_group_size(1, threads)))

struct uint2 {
    u32 x, y;
};
struct __attribute__((aligned(16))) uint4 {
    u32 x, y, z, w;
};
struct __attribute__((aligned(16))) float4 {
    float x, y, z, w;
};
struct __attribute__((aligned(16))) int4 {
    int x, y, z, w;
};
__device__ __forceinline__ uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
__device__ __forceinline__ uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
__device__ __forceinline__ float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// Places in the grid; unused values cost nothing.
struct GridPlace {
    u32 x, y, z;
};
#define threadIdx \
    (GridPlace{__builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(), __builtin_amdgcn_workitem_id_z()})
#define blockIdx \
    (GridPlace{__builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(), __builtin_amdgcn_workgroup_id_z()})
#define blockDim                                                                         \
    (GridPlace{__builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_workgroup_size_y(), \
               __builtin_amdgcn_workgroup_size_z()})
#define gridDim                                                                      \
    (GridPlace{__builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(), \
               __builtin_amdgcn_grid_size_y() / __builtin_amdgcn_workgroup_size_y(), \
               __builtin_amdgcn_grid_size_z() / __builtin_amdgcn_workgroup_size_z()})

__device__ __forceinline__ void __syncthreads() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
__device__ __forceinline__ void __threadfence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
__device__ __forceinline__ void __threadfence_system() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, ""); }

template <typename T> __device__ __forceinline__ T atomicAdd(T *p, T x) {
    return __hip_atomic_fetch_add(p, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
__device__ __forceinline__ u32 atomicAdd(u32 *p, int x) { return atomicAdd(p, (u32)x); }
template <typename T> __device__ __forceinline__ T atomicOr(T *p, T x) {
    return __hip_atomic_fetch_or(p, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
// Counts up to `last`, then from 0 again.
__device__ __forceinline__ u32 atomicInc(u32 *p, u32 last) {
    return __builtin_amdgcn_atomic_inc32(p, last, __ATOMIC_RELAXED, "agent");
}

template <typename T> __device__ __forceinline__ T min(T a, T b) { return a < b ? a : b; }
template <typename T> __device__ __forceinline__ T max(T a, T b) { return a < b ? b : a; }
__device__ __forceinline__ u32 min(u32 a, int b) { return min(a, (u32)b); }
__device__ __forceinline__ u32 min(int a, u32 b) { return min((u32)a, b); }
__device__ __forceinline__ u32 __umulhi(u32 a, u32 b) { return (u32)((u64)a * b >> 32); }
__device__ __forceinline__ u64 __umul64hi(u64 a, u64 b) { return (u64)((unsigned __int128)a * b >> 64); }
__device__ __forceinline__ int __ffs(int x) { return __builtin_ffs(x); }
__device__ __forceinline__ float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
__device__ __forceinline__ float __uint_as_float(u32 x) { return __builtin_bit_cast(float, x); }
__device__ __forceinline__ int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
__device__ __forceinline__ u32 __float_as_uint(float x) { return __builtin_bit_cast(u32, x); }
__device__ __forceinline__ int __float2int_rn(float x) { return (int)__builtin_rintf(x); }
__device__ __forceinline__ i64 __float2ll_rn(float x) { return (i64)__builtin_rintf(x); }

extern "C" __device__ float __ocml_exp_f32(float);
extern "C" __device__ float __ocml_exp2_f32(float);
extern "C" __device__ float __ocml_log_f32(float);
extern "C" __device__ double __ocml_exp_f64(double);
extern "C" __device__ double __ocml_log_f64(double);
extern "C" __device__ float __ocml_tanh_f32(float);
extern "C" __device__ float __ocml_erfc_f32(float);
extern "C" __device__ float __ocml_rsqrt_f32(float);
__device__ __forceinline__ float expf(float x) { return __ocml_exp_f32(x); }
__device__ __forceinline__ float exp2f(float x) { return __ocml_exp2_f32(x); }
__device__ __forceinline__ float logf(float x) { return __ocml_log_f32(x); }
__device__ __forceinline__ double exp(double x) { return __ocml_exp_f64(x); }
__device__ __forceinline__ double log(double x) { return __ocml_log_f64(x); }
__device__ __forceinline__ float tanhf(float x) { return __ocml_tanh_f32(x); }
__device__ __forceinline__ float erfcf(float x) { return __ocml_erfc_f32(x); }
__device__ __forceinline__ float rsqrtf(float x) { return __ocml_rsqrt_f32(x); }
__device__ __forceinline__ float __expf(float x) { return __builtin_exp2f(x * 1.4426950408889634f); }
__device__ __forceinline__ float __fdividef(float x, float y) { return x * __builtin_amdgcn_rcpf(y); }
__device__ __forceinline__ float sqrtf(float x) { return __builtin_sqrtf(x); }
__device__ __forceinline__ float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
__device__ __forceinline__ float fminf(float a, float b) { return __builtin_fminf(a, b); }
__device__ __forceinline__ float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
__device__ __forceinline__ float fabsf(float x) { return __builtin_fabsf(x); }
__device__ __forceinline__ float floorf(float x) { return __builtin_floorf(x); }
__device__ __forceinline__ double ceil(double x) { return __builtin_ceil(x); }
