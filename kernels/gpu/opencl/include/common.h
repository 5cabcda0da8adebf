// What every kernel uses: element types and their conversions, vector loads and stores, sums over the lanes that share
// a row, Philox. OpenCL C 1.2, except for subgroup functions where SUBGROUP is defined: no generic address space, no
// half arithmetic, no 64-bit atomics. Types are macro parameters: LOAD(ACT, p, i).
//
// Lanes that work together exchange through local memory, so any subgroup size is right, unless the driver names one.
// CPU runtimes run the work-items of a group one after another between barriers: so the code uses vector types and few
// barriers.
// revision: 1
#ifndef HALYARD_COMMON_H
#define HALYARD_COMMON_H

typedef uchar u8;
typedef ushort u16;
typedef uint u32;
typedef ulong u64;
typedef char i8;
typedef int i32;
typedef long i64;

// The 16-bit and 8-bit floats as bits; the name in a definition (-DACT=bf16) chooses the conversion.
typedef float f32;
typedef ushort f16;
typedef ushort bf16;
typedef uchar e4m3;
typedef float float1;

// Every helper is inlined: pocl 3.1 hands a work-item's ids to kernels alone, and a helper that stays a function now
// and then reads those of another thread's group.
#define INLINE static inline __attribute__((always_inline))

// Words of the texts that all languages share (../../shared).
#define FUNCTION INLINE
#define FLOAT(x) (float)(x)
#define SIGNED(byte) (float)(i8)(byte)
#define E4M3(code) e4m3_to_f32((u8)(code))
// The number that the four bits of `code` choose. Intel's compiler keeps a table in private memory; these are selects.
#define CHOOSE2(a, b) ((code & 1u) ? (b) : (a))
#define CHOOSE4(a, b, c, d) ((code & 2u) ? CHOOSE2(c, d) : CHOOSE2(a, b))
#define CHOOSE8(a, b, c, d, e, f, g, h) ((code & 4u) ? CHOOSE4(e, f, g, h) : CHOOSE4(a, b, c, d))
#define CHOOSE16(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p) \
    ((code & 8u) ? CHOOSE8(i, j, k, l, m, n, o, p) : CHOOSE8(a, b, c, d, e, f, g, h))

#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)

// Element i of p as float, and back, rounded to nearest even.
#define LOAD(T, p, i) CAT(load1_, T)(p, i)
#define STORE(T, x, p, i) CAT(store1_, T)(x, p, i)
// N neighbours from element i on. Addresses need no more alignment than an element has.
#define LOADN(N, T, p, i) CAT(CAT(load, N), CAT(_, T))(p, i)
#define STOREN(N, T, x, p, i) CAT(CAT(store, N), CAT(_, T))(x, p, i)
#define FLOATN(N) CAT(float, N)
// Elements in 16 bytes.
#define PER_VECTOR(T) CAT(PER_VECTOR_, T)
#define PER_VECTOR_f32 4
#define PER_VECTOR_f16 8
#define PER_VECTOR_bf16 8
#define PER_VECTOR_e4m3 16
// Whether a type has four bytes.
#define IS_WIDE_f32 1
#define IS_WIDE_f16 0
#define IS_WIDE_bf16 0
#define IS_WIDE_e4m3 0

INLINE float load1_f32(const __global f32 *p, u64 i) { return p[i]; }
INLINE void store1_f32(float x, __global f32 *p, u64 i) { p[i] = x; }
INLINE float load1_f16(const __global f16 *p, u64 i) { return vload_half(i, (const __global half *)p); }
INLINE void store1_f16(float x, __global f16 *p, u64 i) { vstore_half_rte(x, i, (__global half *)p); }
INLINE float f16_to_f32(u16 bits) { return vload_half(0, (const half *)&bits); }
INLINE u16 f32_to_f16(float x) {
    u16 bits;
    vstore_half_rte(x, 0, (half *)&bits);
    return bits;
}

INLINE float bf16_to_f32(u16 bits) { return as_float((u32)bits << 16); }
INLINE u16 f32_to_bf16(float x) {
    u32 bits = as_uint(x);
    u32 rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    return (u16)(isnan(x) ? 0x7fffu : rounded);
}
INLINE float load1_bf16(const __global bf16 *p, u64 i) { return bf16_to_f32(p[i]); }
INLINE void store1_bf16(float x, __global bf16 *p, u64 i) { p[i] = f32_to_bf16(x); }

#define VECTOR_CONVERSIONS(N)                                                                  \
    INLINE float##N load##N##_f32(const __global f32 *p, u64 i) { return vload##N(0, p + i); } \
    INLINE void store##N##_f32(float##N x, __global f32 *p, u64 i) { vstore##N(x, 0, p + i); } \
    INLINE float##N load##N##_f16(const __global f16 *p, u64 i) {                              \
        return vload_half##N(0, (const __global half *)p + i);                                 \
    }                                                                                          \
    INLINE void store##N##_f16(float##N x, __global f16 *p, u64 i) {                           \
        vstore_half##N##_rte(x, 0, (__global half *)p + i);                                    \
    }                                                                                          \
    INLINE float##N load##N##_bf16(const __global bf16 *p, u64 i) {                            \
        return as_float##N(convert_uint##N(vload##N(0, p + i)) << 16);                         \
    }                                                                                          \
    INLINE void store##N##_bf16(float##N x, __global bf16 *p, u64 i) {                         \
        uint##N bits = as_uint##N(x);                                                          \
        uint##N rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;                         \
        vstore##N(convert_ushort##N(select(rounded, (uint##N)0x7fffu, isnan(x))), 0, p + i);   \
    }
VECTOR_CONVERSIONS(4)
VECTOR_CONVERSIONS(8)
VECTOR_CONVERSIONS(16)

// a·b rounded, and then c added.
INLINE float multiply_then_add(float a, float b, float c) {
#pragma OPENCL FP_CONTRACT OFF
    float product = a * b;
    return product + c;
}

// 8-bit floats (OCP E4M3; beyond the largest: the largest).
INLINE u8 f32_to_e4m3(float x) {
    float a = fmin(fabs(x), 448.f);
    u32 code;
    if (isnan(x)) {
        code = 0x7f;
    } else if (a < 0.015625f) {
        code = (u32)convert_int_rte(a * 512.f);
    } else {
        u32 bits = as_uint(a);
        bits += 0x7ffffu + (bits >> 20 & 1);
        code = min((bits >> 20) - (120u << 3), 0x7eu);
    }
    return (u8)(code | (as_uint(x) >> 24 & 0x80));
}
INLINE float e4m3_to_f32(u8 code) {
    u32 sign = (u32)(code & 0x80) << 24, magnitude = code & 0x7f;
    // Exponent bias 7 against 127; subnormals count 2^-9.
    float value = magnitude < 8 ? (float)magnitude * (1.f / 512.f) : as_float((magnitude << 20) + (120u << 23));
    value = magnitude == 0x7f ? NAN : value;
    return as_float(as_uint(value) | sign);
}
INLINE float load1_e4m3(const __global e4m3 *p, u64 i) { return e4m3_to_f32(p[i]); }
INLINE void store1_e4m3(float x, __global e4m3 *p, u64 i) { p[i] = f32_to_e4m3(x); }
INLINE float8 load8_e4m3(const __global e4m3 *p, u64 i) {
    uint8 codes = convert_uint8(vload8(0, p + i)), magnitudes = codes & 0x7f;
    float8 values = select(as_float8((magnitudes << 20) + (120u << 23)), convert_float8(magnitudes) * (1.f / 512.f),
                           magnitudes < 8);
    values = select(values, (float8)NAN, magnitudes == 0x7f);
    return as_float8(as_uint8(values) | (codes & 0x80) << 24);
}
INLINE float4 load4_e4m3(const __global e4m3 *p, u64 i) {
    return (float4)(e4m3_to_f32(p[i]), e4m3_to_f32(p[i + 1]), e4m3_to_f32(p[i + 2]), e4m3_to_f32(p[i + 3]));
}

INLINE float sum4(float4 x) { return x.s0 + x.s1 + (x.s2 + x.s3); }
INLINE float sum8(float8 x) { return sum4(x.lo + x.hi); }
INLINE float sum16(float16 x) { return sum8(x.lo + x.hi); }

// With SUBGROUP defined (16 or 32; the device has subgroups of that size, of neighbouring work-items) they pass values
// without local memory.
#ifdef SUBGROUP
#define KERNEL __attribute__((intel_reqd_sub_group_size(SUBGROUP))) __kernel
// Combines x over whole subgroups, through a place of `shared` for each; falls through where `lanes` work-items are
// none.
#define BY_SUBGROUPS(T, combine, reduce)                                                        \
    if (lanes % SUBGROUP == 0) {                                                                \
        T y = reduce(x);                                                                        \
        if (lanes == SUBGROUP) return y;                                                        \
        barrier(CLK_LOCAL_MEM_FENCE);                                                           \
        if (id % SUBGROUP == 0) shared[id / SUBGROUP] = y;                                      \
        barrier(CLK_LOCAL_MEM_FENCE);                                                           \
        y = shared[base / SUBGROUP];                                                            \
        for (u32 i = 1; i < lanes / SUBGROUP; i++) y = combine(y, shared[base / SUBGROUP + i]); \
        return y;                                                                               \
    }
#else
#define KERNEL __kernel
#define BY_SUBGROUPS(T, combine, reduce)
#endif

// Combines x over `lanes` neighbouring work-items that start at a multiple of `lanes` (or are the whole group), for
// each of them. `shared` holds a value a work-item. All work-items of the group take part; three barriers at most.
#define LANES_COMBINE(name, T, combine, reduce)                                                      \
    INLINE T name(T x, __local T *shared, u32 lane, u32 lanes) {                                     \
        u32 id = get_local_id(0), base = id - lane;                                                  \
        BY_SUBGROUPS(T, combine, reduce)                                                             \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                \
        shared[id] = x;                                                                              \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                \
        if (lane % 32 == 0) {                                                                        \
            T y = shared[id];                                                                        \
            for (u32 i = lane + 1; i < min(lane + 32, lanes); i++) y = combine(y, shared[base + i]); \
            shared[id] = y;                                                                          \
        }                                                                                            \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                \
        T y = shared[base];                                                                          \
        for (u32 i = 32; i < lanes; i += 32) y = combine(y, shared[base + i]);                       \
        return y;                                                                                    \
    }
#define PLUS(a, b) ((a) + (b))
LANES_COMBINE(lanes_sum, float, PLUS, sub_group_reduce_add)
LANES_COMBINE(lanes_max, float, fmax, sub_group_reduce_max)
LANES_COMBINE(lanes_sum_u64, u64, PLUS, sub_group_reduce_add)
LANES_COMBINE(lanes_max_u64, u64, max, sub_group_reduce_max)

// A branch with barriers in it, which all work-items of a group take together. Written as a loop: compilers that split
// a kernel at its barriers copy all that follows a branch with barriers (pocl 3.1), once more for each.
#define TOGETHER_IF(condition) for (u32 left_ = (condition) ? 1 : 0; left_ > 0; left_--)

// Over the group, for every work-item.
INLINE float block_sum(float x, __local float *shared) {
    return lanes_sum(x, shared, get_local_id(0), get_local_size(0));
}
INLINE float block_max(float x, __local float *shared) {
    return lanes_max(x, shared, get_local_id(0), get_local_size(0));
}

// A quotient rounded to nearest, whatever the device's own division rounds to (up to 2.5 units in the last place are
// allowed to it).
INLINE float divide_exactly(float a, float b) {
    float q = a / b;
    float better = fma(fma(-q, b, a), 1.f / b, q);
    return isfinite(q) && isfinite(better) && q != 0.f ? better : q;
}

// Philox4x32-10 (Salmon et al. 2011) with counter (counter, 0, 0, 0).
INLINE uint4 philox(u32 counter, u32 key_low, u32 key_high) {
    uint4 c = (uint4)(counter, 0, 0, 0);
    for (i32 round = 0; round < 10; round++) {
        u32 hi0 = mul_hi(0xD2511F53u, c.s0), lo0 = 0xD2511F53u * c.s0;
        u32 hi1 = mul_hi(0xCD9E8D57u, c.s2), lo1 = 0xCD9E8D57u * c.s2;
        c = (uint4)(hi1 ^ c.s1 ^ key_low, lo1, hi0 ^ c.s3 ^ key_high, lo0);
        key_low += 0x9E3779B9u;
        key_high += 0xBB67AE85u;
    }
    return c;
}

// The place of this work-item in the whole launch.
INLINE u32 global_index(void) { return get_group_id(0) * get_local_size(0) + get_local_id(0); }

#endif
