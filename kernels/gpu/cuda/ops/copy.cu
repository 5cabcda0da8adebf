// `copy` (units of 16 to 1 bytes, any type); with ACT defined `fill_random`.
//
// Definitions: none; or ACT = f32, f16 or bf16.
// revision: 1
// check:
// check: -DACT=f32
// check: -DACT=f16
// check: -DACT=bf16
#include "vector.cuh"

#if defined(ACT)

// A thread makes 16 bytes at once: its share of whole Philox blocks. `counter` belongs to the first element.
template <bool VECTOR>
__device__ __forceinline__ void fill_random(ACT *out, u64 count, u32 counter, u32 key_low, u32 key_high, float scale) {
    constexpr int N = per_vector<ACT>;
    u64 groups = (count + N - 1) / N;
    wait_for_previous();
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < groups; i += (u64)gridDim.x * blockDim.x) {
        float v[N];
#pragma unroll
        for (int k = 0; k < N; k += 4) {
            uint4 word = philox(counter + (u32)(i * (N / 4)) + k / 4, key_low, key_high);
            u32 words[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
            for (int j = 0; j < 4; j++) v[k + j] = ((float)(words[j] >> 8) * (1.f / 8388608.f) - 1.f) * scale;
        }
        if (VECTOR && (i + 1) * N <= count) {
            Group<ACT, N> group;
            group.set(v);
            group.store(out + i * N);
        } else {
#pragma unroll
            for (int k = 0; k < N; k++)
                if (i * N + k < count) out[i * N + k] = from_f32<ACT>(v[k]);
        }
    }
    let_next_start();
}

extern "C" __global__ void __launch_bounds__(256)
    fill_random_vector(ACT *out, u64 count, u32 counter, u32 key_low, u32 key_high, float scale) {
    fill_random<true>(out, count, counter, key_low, key_high, scale);
}
extern "C" __global__ void __launch_bounds__(256)
    fill_random_scalar(ACT *out, u64 count, u32 counter, u32 key_low, u32 key_high, float scale) {
    fill_random<false>(out, count, counter, key_low, key_high, scale);
}

#else

// Units that a thread has in flight.
#define UNROLL 4

// Unit i of a tensor of three axes lies at (i / (n1 * n2), i / n2 mod n1, i mod n2); strides count units.
struct Place {
    u64 s0, s1, s2;
    __device__ __forceinline__ u64 of(u32 i, u32 n1, u32 n2) const {
        u32 row = i / n2, column = i - row * n2, outer = row / n1;
        return outer * s0 + (row - outer * n1) * s1 + column * s2;
    }
};

template <typename Unit>
__device__ __forceinline__ void copy_units(const Unit *x, Place from, Unit *out, Place to, u32 n1, u32 n2, u32 total) {
    u32 first = blockIdx.x * (blockDim.x * UNROLL) + threadIdx.x;
    Unit value[UNROLL];
    wait_for_previous();
#pragma unroll
    for (int k = 0; k < UNROLL; k++) {
        u32 i = first + k * blockDim.x;
        if (i < total) value[k] = x[from.of(i, n1, n2)];
    }
    let_next_start();
#pragma unroll
    for (int k = 0; k < UNROLL; k++) {
        u32 i = first + k * blockDim.x;
        if (i < total) out[to.of(i, n1, n2)] = value[k];
    }
}

#define ENTRY(size, Unit)                                                                                              \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
        copy_##size(const Unit *x, u64 f0, u64 f1, u64 f2, Unit *out, u64 t0, u64 t1, u64 t2, u32 n1, u32 n2,          \
                    u32 total) {                                                                                       \
        copy_units<Unit>(x, Place{f0, f1, f2}, out, Place{t0, t1, t2}, n1, n2, total);                                 \
    }

ENTRY(16, uint4)
ENTRY(8, u64)
ENTRY(4, u32)
ENTRY(2, u16)
ENTRY(1, u8)

#endif
