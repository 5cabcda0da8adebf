// The builtins of AMD's compiler, implemented for the processor, so that a kernel file compiles here. Where lanes
// exchange values they call the emulator (emulator.h). The kernels' own headers for HIP use these builtins as on a
// gfx90a device. Included before a kernel file.
//
// It covers index arithmetic, shared memory, barriers, shuffles, and the layouts of matrix products as AMD documents
// them. It does not cover the memory model (lanes run one after the other), rounding inside a product, lanes of a wave
// that go separate ways (an error here).
#pragma once

extern "C" {
unsigned emulated_thread(void);
unsigned emulated_block(int axis);
unsigned emulated_threads(void);
unsigned emulated_grid(int axis);
void emulated_barrier(void);
void emulated_wave_barrier(void);
unsigned emulated_word_of(unsigned lane, unsigned value);
unsigned long long emulated_votes(int says);
// One step of a product by a wave: this lane's four values of each side, and its sixteen sums.
void emulated_product_32x32x8(const float *a, const float *b, float *sums);
}

#define __HIP__ 1
#if !defined(EMULATED_WAVE) || EMULATED_WAVE == 64
#define __GFX9__ 1
#define __gfx90a__ 1
#endif
#define __HIP_MEMORY_SCOPE_AGENT 0
#define __hip_atomic_fetch_add(p, x, order, scope) __atomic_fetch_add(p, x, order)
#define __hip_atomic_fetch_or(p, x, order, scope) __atomic_fetch_or(p, x, order)

#define __builtin_amdgcn_workitem_id_x() emulated_thread()
#define __builtin_amdgcn_workitem_id_y() 0u
#define __builtin_amdgcn_workitem_id_z() 0u
#define __builtin_amdgcn_workgroup_id_x() emulated_block(0)
#define __builtin_amdgcn_workgroup_id_y() emulated_block(1)
#define __builtin_amdgcn_workgroup_id_z() emulated_block(2)
#define __builtin_amdgcn_workgroup_size_x() emulated_threads()
#define __builtin_amdgcn_workgroup_size_y() 1u
#define __builtin_amdgcn_workgroup_size_z() 1u
#define __builtin_amdgcn_grid_size_x() (emulated_grid(0) * emulated_threads())
#define __builtin_amdgcn_grid_size_y() emulated_grid(1)
#define __builtin_amdgcn_grid_size_z() 1u
#define __builtin_amdgcn_mbcnt_lo(mask, add) (add)
#define __builtin_amdgcn_mbcnt_hi(mask, add) ((add) + emulated_thread() % 64)
#define __builtin_amdgcn_ds_bpermute(at, value) ((int)emulated_word_of((unsigned)(at) / 4, (unsigned)(value)))
#define __builtin_amdgcn_uicmp(a, b, how) emulated_votes((a) != (b))
#define __builtin_amdgcn_readfirstlane(x) ((int)emulated_word_of(0, (unsigned)(x)))
#define __builtin_amdgcn_fence(order, scope) ((void)0)
#define __builtin_amdgcn_wave_barrier() ((void)0)
#define __builtin_amdgcn_s_barrier() emulated_barrier()
#define __builtin_amdgcn_atomic_inc32(p, last, order, scope) emulated_atomic_inc(p, last)
#define __builtin_amdgcn_rcpf(x) (1.f / (x))
#define __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(a, b, d, x, y, z) emulated_product(a, b, d, emulated_bf16)
#define __builtin_amdgcn_mfma_f32_32x32x8f16(a, b, d, x, y, z) emulated_product(a, b, d, emulated_f16)

static inline unsigned emulated_atomic_inc(unsigned *p, unsigned last) {
    unsigned old = *p;
    *p = old >= last ? 0 : old + 1;
    return old;
}
static inline float emulated_bf16(short bits) {
    return __builtin_bit_cast(float, (unsigned)(unsigned short)bits << 16);
}
static inline float emulated_f16(_Float16 x) { return (float)x; }
template <typename V, typename S, typename F> static inline S emulated_product(V a, V b, S d, F widen) {
    float left[4], right[4], sums[16];
    for (int i = 0; i < 4; i++) left[i] = widen(a[i]), right[i] = widen(b[i]);
    for (int i = 0; i < 16; i++) sums[i] = d[i];
    emulated_product_32x32x8(left, right, sums);
    for (int i = 0; i < 16; i++) d[i] = sums[i];
    return d;
}

extern "C" {
static inline float __ocml_exp_f32(float x) { return __builtin_expf(x); }
static inline float __ocml_exp2_f32(float x) { return __builtin_exp2f(x); }
static inline float __ocml_log_f32(float x) { return __builtin_logf(x); }
static inline double __ocml_exp_f64(double x) { return __builtin_exp(x); }
static inline double __ocml_log_f64(double x) { return __builtin_log(x); }
static inline float __ocml_tanh_f32(float x) { return __builtin_tanhf(x); }
static inline float __ocml_erfc_f32(float x) { return __builtin_erfcf(x); }
static inline float __ocml_rsqrt_f32(float x) { return 1.f / __builtin_sqrtf(x); }
}

#include "common.cuh"
#undef __launch_bounds__
#define __launch_bounds__(...)
// One block runs at a time, so what its threads share is what all share.
#undef __shared__
#define __shared__ static
// Lanes run one after the other: what they leave each other in memory is there when they have met.
#undef __syncwarp
#define __syncwarp() emulated_wave_barrier()
#if defined(EMULATED_WAVE) && EMULATED_WAVE == 32
#include "ptx.h"
#endif
