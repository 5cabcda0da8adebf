// `copy`, `fill`, `copy_blocks` (units of 16 to 1 bytes, any type); with FROM and TO defined `cast`; with ACT defined `fill_random`.
//
// Definitions: none; or FROM and TO = f32, f16 or bf16; or ACT = f32, f16 or bf16.
// check:
// check: -DFROM=f32 -DTO=f32
// check: -DFROM=f32 -DTO=f16
// check: -DFROM=f32 -DTO=bf16
// check: -DFROM=f16 -DTO=f32
// check: -DFROM=f16 -DTO=f16
// check: -DFROM=f16 -DTO=bf16
// check: -DFROM=bf16 -DTO=f32
// check: -DFROM=bf16 -DTO=f16
// check: -DFROM=bf16 -DTO=bf16
// check: -DACT=f32
// check: -DACT=f16
// check: -DACT=bf16
#include "vector.cuh"

#if defined(FROM)

// `total` groups of N elements, `groups` of them a row.
template <int N>
__device__ __forceinline__ void cast(const FROM *x, u64 x_stride, TO *out, u64 out_stride, u32 groups, u32 total) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    u32 row = i / groups, column = (i - row * groups) * N;
    wait_for_previous();
    if (i >= total) return;
    Group<FROM, N> from;
    Group<TO, N> to;
    float v[N];
    from.load(x + row * x_stride + column);
    let_next_start();
    from.get(v);
    to.set(v);
    to.store(out + row * out_stride + column);
}

extern "C" __global__ void __launch_bounds__(256)
    cast_vector(const FROM *x, u64 x_stride, TO *out, u64 out_stride, u32 groups, u32 total) {
    cast<per_vector<FROM> < per_vector<TO> ? per_vector<TO> : per_vector<FROM>>(x, x_stride, out, out_stride, groups, total);
}
extern "C" __global__ void __launch_bounds__(256)
    cast_scalar(const FROM *x, u64 x_stride, TO *out, u64 out_stride, u32 groups, u32 total) {
    cast<1>(x, x_stride, out, out_stride, groups, total);
}

#elif defined(ACT)

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

// The value in every element of eight bytes. `dtype` is the contract's code.
__device__ __forceinline__ u64 pattern_of(float value, u32 dtype) {
    switch (dtype) {
    case 1: return 0x0000000100000001ull * __float_as_uint(value);
    case 2: return 0x0001000100010001ull * from_f32<f16>(value).bits;
    case 3: return 0x0001000100010001ull * from_f32<bf16>(value).bits;
    case 4: return 0x0000000100000001ull * (u32)__float2int_rn(value);
    case 5: return 0x0101010101010101ull * (u8)(i8)max(-128, min(127, __float2int_rn(value)));
    case 6: return 0x0101010101010101ull * (u8)pack2_e4m3(value, 0.f);
    case 7: return (u64)__float2ll_rn(value);
    default: return 0x0101010101010101ull * (u8)max(0, min(255, __float2int_rn(value)));
    }
}
template <typename Unit> __device__ __forceinline__ Unit unit_of(u64 pattern) { return (Unit)pattern; }
template <> __device__ __forceinline__ uint4 unit_of<uint4>(u64 pattern) {
    u32 low = (u32)pattern, high = (u32)(pattern >> 32);
    return make_uint4(low, high, low, high);
}

template <typename Unit>
__device__ __forceinline__ void fill_units(Unit *out, Place to, u32 n1, u32 n2, u32 total, float value, u32 dtype) {
    Unit unit = unit_of<Unit>(pattern_of(value, dtype));
    u32 first = blockIdx.x * (blockDim.x * UNROLL) + threadIdx.x;
    wait_for_previous();
#pragma unroll
    for (int k = 0; k < UNROLL; k++) {
        u32 i = first + k * blockDim.x;
        if (i < total) out[to.of(i, n1, n2)] = unit;
    }
    let_next_start();
}

// Pair p of `pairs` names a source and a destination page; a page outside the cache (-1, or a caller's bug) copies nothing. A block of
// `units` each; `pitch` in units.
template <typename Unit>
__device__ __forceinline__ void copy_pages(const i32 *pairs, u32 pair_stride, Unit *cache, u64 pitch, u32 units, u32 pages) {
    wait_for_previous();
    u32 from = (u32)pairs[(u64)blockIdx.x * pair_stride], to = (u32)pairs[(u64)blockIdx.x * pair_stride + 1];
    if (from >= pages || to >= pages) return;
    u32 step = gridDim.y * blockDim.x;
    for (u32 i = blockIdx.y * blockDim.x + threadIdx.x; i < units; i += step) cache[to * pitch + i] = cache[from * pitch + i];
    let_next_start();
}

#define ENTRIES(size, Unit)                                                                                                            \
    extern "C" __global__ void __launch_bounds__(256)                                                                                  \
        copy_##size(const Unit *x, u64 f0, u64 f1, u64 f2, Unit *out, u64 t0, u64 t1, u64 t2, u32 n1, u32 n2, u32 total) {             \
        copy_units<Unit>(x, Place{f0, f1, f2}, out, Place{t0, t1, t2}, n1, n2, total);                                                 \
    }                                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256)                                                                                  \
        fill_##size(Unit *out, u64 t0, u64 t1, u64 t2, u32 n1, u32 n2, u32 total, float value, u32 dtype) {                            \
        fill_units<Unit>(out, Place{t0, t1, t2}, n1, n2, total, value, dtype);                                                         \
    }                                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256)                                                                                  \
        copy_blocks_##size(const i32 *pairs, u32 pair_stride, Unit *cache, u64 pitch, u32 units, u32 pages) {                          \
        copy_pages<Unit>(pairs, pair_stride, cache, pitch, units, pages);                                                              \
    }

ENTRIES(16, uint4)
ENTRIES(8, u64)
ENTRIES(4, u32)
ENTRIES(2, u16)
ENTRIES(1, u8)

#endif
