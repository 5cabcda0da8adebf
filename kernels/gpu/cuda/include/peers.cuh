// Words that GPUs write into each other's memory. A packet is eight bytes: four of data and the number of the call that
// sent them. It is stored and loaded whole, so a reader that sees the number sees the data, without a fence or a second
// word that says "ready".
#pragma once
#include "common.cuh"

// Where the packets of unit `i` (16 bytes of data) begin in a window: the first two here, the other two 512 bytes on,
// so that what a warp stores at once is one piece.
__device__ __forceinline__ u64 packets_at(u32 i) { return (u64)(i >> 5) * 1024 + (i & 31) * 16; }

// Words that other devices or the host read and write while a kernel runs, past all caches that they do not see. One at
// a time; a word and what came before it are ordered by `load_from_host` and `store_to_host` alone.
#if defined(__HIP__)
template <typename T> __device__ __forceinline__ T load_word(const T *p) {
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}
template <typename T> __device__ __forceinline__ void store_word(T *p, T v) {
    __atomic_store_n(p, v, __ATOMIC_RELAXED);
}
__device__ __forceinline__ u32 load_from_host(const u32 *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
__device__ __forceinline__ void store_to_host(u32 *p, u32 v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
#elif defined(PORTABLE)
// A volatile access is a relaxed one of the whole system (PTX ISA, 8.4).
template <typename T> __device__ __forceinline__ T load_word(const T *p) { return *(const volatile T *)p; }
template <typename T> __device__ __forceinline__ void store_word(T *p, T v) { *(volatile T *)p = v; }
__device__ __forceinline__ u32 load_from_host(const u32 *p) {
    u32 v = load_word(p);
    __threadfence_system();
    return v;
}
__device__ __forceinline__ void store_to_host(u32 *p, u32 v) {
    __threadfence_system();
    store_word(p, v);
}
#else
// A word of host memory that the host may write at any time, and what came before that write with it.
__device__ __forceinline__ u32 load_from_host(const u32 *p) {
    u32 v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store_to_host(u32 *p, u32 v) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
#endif

#if defined(PORTABLE)
// 16 bytes of data as four packets, at an address that all ranks reach.
__device__ __forceinline__ void send_packets(void *to, uint4 data, u32 number) {
    u64 flag = (u64)number << 32, *low = (u64 *)to, *high = low + 64;
    store_word(low, flag | data.x);
    store_word(low + 1, flag | data.y);
    store_word(high, flag | data.z);
    store_word(high + 1, flag | data.w);
}

// One look at four packets: whether all are of call `number`, and their data.
__device__ __forceinline__ bool look_at_packets(const void *from, u32 number, uint4 &data) {
    const u64 *low = (const u64 *)from, *high = low + 64;
    u64 a = load_word(low), b = load_word(low + 1), c = load_word(high), d = load_word(high + 1);
    data = make_uint4((u32)a, (u32)b, (u32)c, (u32)d);
    return (u32)(a >> 32) == number && (u32)(b >> 32) == number && (u32)(c >> 32) == number && (u32)(d >> 32) == number;
}

// Words of this device that kernels of several launches share.
__device__ __forceinline__ u32 load_shared_word(const u32 *p) { return load_word(p); }
__device__ __forceinline__ void store_shared_word(u32 *p, u32 v) { store_word(p, v); }
#else
// 16 bytes of data as four packets, at an address that all ranks reach.
__device__ __forceinline__ void send_packets(void *to, uint4 data, u32 number) {
    u64 flag = (u64)number << 32, a = flag | data.x, b = flag | data.y, c = flag | data.z, d = flag | data.w;
    asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(a), "l"(b) : "memory");
    asm volatile("st.relaxed.sys.global.v2.b64 [%0 + 512], {%1, %2};" ::"l"(to), "l"(c), "l"(d) : "memory");
}

// One look at four packets: whether all are of call `number`, and their data.
__device__ __forceinline__ bool look_at_packets(const void *from, u32 number, uint4 &data) {
    u64 a, b, c, d;
    asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(from) : "memory");
    asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2 + 512];" : "=l"(c), "=l"(d) : "l"(from) : "memory");
    data = make_uint4((u32)a, (u32)b, (u32)c, (u32)d);
    return (u32)(a >> 32) == number && (u32)(b >> 32) == number && (u32)(c >> 32) == number && (u32)(d >> 32) == number;
}

// Words of this device that kernels of several launches share: not from a multiprocessor's own cache.
__device__ __forceinline__ u32 load_shared_word(const u32 *p) {
    u32 v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store_shared_word(u32 *p, u32 v) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
#endif

// A clock of constant rate; the host knows its ticks per millisecond. Nanoseconds, or the constant clock of AMD's
// devices.
__device__ __forceinline__ u64 ticks() {
#if !defined(__HIP__)
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
#elif __has_builtin(__builtin_readsteadycounter)
    return __builtin_readsteadycounter();
#else
    return __builtin_amdgcn_s_memrealtime();
#endif
}

// A rank's state of its calls, in its own memory.
struct Calls {
    u32 number;  // of the last complete one; 0: none yet
    u32 dead;    // not 0 once a wait was given up: from then on this rank sends nothing, for it would be rubbish
    u32 arrived; // blocks of the call at hand that are done
    u32 unused;
};

// Words of pinned memory between this rank's kernels and the host.
struct HostWords {
    u32 left;     // the host: a rank has left, so kernels stop waiting
    u32 given_up; // the device: a wait was given up, and its result is garbage
};

// Checks of packets between two checks whether to go on.
constexpr u32 LOOKS = 1024;

// Waits for four packets; false when a rank has left or `limit` ticks have gone by, and the packets have not come. A
// rank may have sent its packets before it left, so they are checked once more at the end.
__device__ __forceinline__ bool receive_packets(const void *from, u32 number, const HostWords *host, u64 limit,
                                                uint4 &data) {
    u64 start = 0;
    bool last = false;
    for (u32 looks = 1;; looks++) {
        if (look_at_packets(from, number, data)) return true;
        if (last) return false;
        if (looks % LOOKS == 0) {
            u64 now = ticks();
            if (!start) start = now;
            last = load_from_host(&host->left) != 0 || now - start > limit;
        }
    }
}
