// What kernels for CUDA alone use, for the processor: a warp of 32 lanes, products of m16n8k16, asynchronous copies
// (made only when they are waited for), loads by pointer. In front of a kernel file behind device.h; the kernels' own
// headers leave these out where they are PORTABLE. One block's dynamic shared memory is the program's array `shared`.
#pragma once

extern "C" {
void emulated_mma_16x8x16(const unsigned *a, const unsigned *b, float *sums, float (*value)(unsigned short));
void emulated_copy(void *to, const void *from, unsigned bytes, int wanted);
void emulated_end_of_copies(void);
void emulated_wait_for_copies(unsigned newest);
void emulated_barrier_of(unsigned number, unsigned threads);
void emulated_barrier_init(void *barrier, unsigned arrivals);
void emulated_barrier_arrive(void *barrier, unsigned bytes);
void emulated_barrier_wait(void *barrier, unsigned parity);
void emulated_bulk_copy(void *to, const void *from, unsigned bytes, void *barrier);
}
#undef __shared__
#define __shared__
extern uint4 shared[];

struct float2 {
    float x, y;
};
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline u32 __byte_perm(u32 a, u32 b, u32 selector) {
    u64 bytes = (u64)b << 32 | a;
    u32 word = 0;
    for (int i = 0; i < 4; i++) word |= (u32)(bytes >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
    return word;
}

template <typename T> static float emulated_value(unsigned short bits) {
    T x;
    x.bits = bits;
    return to_f32(x);
}
template <typename T> static inline void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    emulated_mma_16x8x16(a, b, d, emulated_value<T>);
}
template <typename T> static inline void mma_from_zero(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    for (float &x : d) x = 0.f;
    mma_m16n8k16<T>(d, a, b);
}
template <u32 MASK, u32 BITS> static inline u32 and_or(u32 x) { return (x & MASK) | BITS; }
template <typename T> static inline u32 fma2(u32 a, u32 b, u32 c) {
    float x[2], y[2], z[2];
    unpack2<T>(a, x[0], x[1]);
    unpack2<T>(b, y[0], y[1]);
    unpack2<T>(c, z[0], z[1]);
    return pack2<T>(__builtin_fmaf(x[0], y[0], z[0]), __builtin_fmaf(x[1], y[1], z[1]));
}

static inline u32 place_in_shared(const void *p) { return (u32)((const u8 *)p - (const u8 *)shared); }
template <u32 BYTES> static inline void copy_async(u32 to, const void *from, bool wanted) {
    emulated_copy((u8 *)shared + to, from, BYTES, wanted);
}
static inline void end_of_copies() { emulated_end_of_copies(); }
template <u32 N> static inline void wait_for_copies() { emulated_wait_for_copies(N); }
static inline void bring_near(const void *) {}

template <typename T> static inline T __ldg(const T *p) { return *p; }
static inline uint4 load_values(const void *p, bool wanted) { return wanted ? *(const uint4 *)p : uint4{0, 0, 0, 0}; }
static inline uint4 load_weights(const void *p, bool wanted) { return load_values(p, wanted); }
static inline uint2 load_values8(const void *p, bool wanted) { return wanted ? *(const uint2 *)p : uint2{0, 0}; }
static inline u32 load_bits(const float *p) { return __float_as_uint(*p); }
template <typename T> static inline u32 load_bits(const T *p) { return p->bits; }
template <typename T> static inline float from_bits(u32 bits) { return emulated_value<T>((unsigned short)bits); }
template <> inline float from_bits<float>(u32 bits) { return __uint_as_float(bits); }

// Hopper's barriers in shared memory, and bulk copies, which are made only when their barrier is waited for.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
struct Barrier {
    u64 state;
};
static inline void barrier_init(Barrier &barrier, u32 arrivals) { emulated_barrier_init(&barrier, arrivals); }
static inline void barrier_init_done() {}
static inline void barrier_arrive(Barrier &barrier) { emulated_barrier_arrive(&barrier, 0); }
static inline void barrier_arrive_expect(Barrier &barrier, u32 bytes) { emulated_barrier_arrive(&barrier, bytes); }
static inline void barrier_wait(Barrier &barrier, u32 parity) { emulated_barrier_wait(&barrier, parity); }
static inline void bulk_load(void *to, const void *from, u32 bytes, Barrier &barrier) {
    emulated_bulk_copy(to, from, bytes, &barrier);
}
#endif

// Hopper's products with the left operand in registers; they end at once. Operands in shared memory are those of
// wgmma_swapped_operand: rows of 128 bytes, bits 4 to 6 of an address changed by bits 7 to 9 (PTX, "Asynchronous
// Warpgroup Level Matrix Instructions", the 128-byte swizzle).
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
static inline u32 shared_address(const void *p) { return place_in_shared(p); }
static inline void stores_before_products() {}
template <u32 THREADS> static inline void barrier_of(u32 number) { emulated_barrier_of(number, THREADS); }
template <int COUNT> static inline void take_registers() {}
template <int COUNT> static inline void give_registers() {}
static inline void wgmma_fence() {}
static inline void wgmma_commit() {}
template <int N> static inline void wgmma_wait() {}
template <int N> static inline void pin(float (&)[N]) {}
static inline u64 wgmma_swapped_operand(u32 address) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}
// And without swaps: units of 8 columns by 16 bytes, their distances in the operand.
static inline u64 wgmma_operand(u32 address, u32 depth_stride, u32 column_stride) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)(depth_stride >> 4) << 16 | (u64)(column_stride >> 4) << 32;
}
// Lanes branch each for itself.
#define __any_sync(lanes, x) ((x) != 0)
template <typename T, int N> struct Wgmma {
    static void run(float (&d)[N / 2], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int accumulate) {
        u32 a[4] = {a0, a1, a2, a3}, lane = threadIdx.x % 32, start = (u32)(b & 0x3fff) << 4;
        for (u32 n8 = 0; n8 < N / 8; n8++) {
            float tile[4];
            u32 right[2];
            for (u32 i = 0; i < 4; i++) tile[i] = accumulate ? d[4 * n8 + i] : 0.f;
            for (u32 i = 0; i < 2; i++) {
                bool swapped = b >> 62 == 1;
                u32 depth_stride = (u32)(b >> 16 & 0x3fff) << 4, column_stride = (u32)(b >> 32 & 0x3fff) << 4;
                u32 at = start + 4 * (lane % 4);
                if (swapped) at += n8 * 1024 + lane / 4 * 128 + 16 * i, at ^= at >> 3 & 0x70;
                else at += n8 * column_stride + lane / 4 * 16 + i * depth_stride;
                right[i] = *(const u32 *)((const u8 *)shared + at);
            }
            mma_m16n8k16<T>(tile, a, right);
            for (u32 i = 0; i < 4; i++) d[4 * n8 + i] = tile[i];
        }
    }
};
#endif
