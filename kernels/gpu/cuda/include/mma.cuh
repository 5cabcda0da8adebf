// The m16n8k16 product of a warp's matrix units, and sums of products of pairs (sm_80 and newer).
#pragma once
#include "common.cuh"

#if !defined(PORTABLE)

// Four 8×8 pieces of 16-bit values, lane l naming row l % 8 of piece l / 8; lane 4g + t gets values 2t, 2t+1 of row g.
__device__ __forceinline__ void load_pieces(u32 (&pieces)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(pieces[0]), "=r"(pieces[1]), "=r"(pieces[2]), "=r"(pieces[3])
                 : "r"(address)
                 : "memory");
}
// The same, each piece transposed: lane 4g + t gets values g of rows 2t, 2t+1.
__device__ __forceinline__ void load_pieces_transposed(u32 (&pieces)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(pieces[0]), "=r"(pieces[1]), "=r"(pieces[2]), "=r"(pieces[3])
                 : "r"(address)
                 : "memory");
}

// d += a · b over 16 rows, 8 columns, 16 deep. With g = lane / 4 and t = lane % 4: a holds rows g and g + 8 (a[0], a[2]
// and a[1], a[3]), depths 2t, 2t+1 (a[0], a[1]) and 2t+8, 2t+9 (a[2], a[3]); b column g at the same depths; d rows g
// (d[0], d[1]) and g + 8, columns 2t, 2t+1.
template <typename T> __device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]);
template <> __device__ __forceinline__ void mma_m16n8k16<bf16>(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <> __device__ __forceinline__ void mma_m16n8k16<f16>(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// d = a · b: a product that sums from zero.
template <typename T>
__device__ __forceinline__ void mma_from_zero(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]);
template <> __device__ __forceinline__ void mma_from_zero<bf16>(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.f));
}
template <> __device__ __forceinline__ void mma_from_zero<f16>(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.f));
}

// a · b + c of two values each, rounded once.
template <typename T> __device__ __forceinline__ u32 fma2(u32 a, u32 b, u32 c);
template <> __device__ __forceinline__ u32 fma2<bf16>(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
template <> __device__ __forceinline__ u32 fma2<f16>(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// x & mask | bits, in one instruction: of two constants the compiler makes two.
template <u32 MASK, u32 BITS> __device__ __forceinline__ u32 and_or(u32 x) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(x), "n"(MASK), "n"(BITS));
    return d;
}
#endif
