// Words that GPUs write into each other's memory. The data is its own flag: an empty word holds a number that is never
// sent, so a reader that finds another one has the data, without a fence or a second word that says "ready". Whoever
// has read words empties them for the next sender. Words of four bytes are stored and loaded whole, more need not be.
#pragma once
#include "common.cuh"

// An empty word: a NaN in every type (two of them in those of 16 bits).
constexpr u32 EMPTY = 0xffffffffu;

// A word as it is sent: in place of the one that means "empty" another NaN.
__device__ __forceinline__ u32 sendable(u32 word) { return word == EMPTY ? 0x7fff7fffu : word; }

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
__device__ __forceinline__ void store_unit(void *to, uint4 data) {
    u64 *words = (u64 *)to;
    store_word(words, (u64)data.y << 32 | data.x);
    store_word(words + 1, (u64)data.w << 32 | data.z);
}
__device__ __forceinline__ uint4 load_unit_now(const void *from) {
    const u64 *words = (const u64 *)from;
    u64 low = load_word(words), high = load_word(words + 1);
    return make_uint4((u32)low, (u32)(low >> 32), (u32)high, (u32)(high >> 32));
}

// Words of this device that kernels of several launches share.
__device__ __forceinline__ u32 load_shared_word(const u32 *p) { return load_word(p); }
__device__ __forceinline__ void store_shared_word(u32 *p, u32 v) { store_word(p, v); }
#else
__device__ __forceinline__ void store_unit(void *to, uint4 data) {
    asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(data.x), "r"(data.y),
                 "r"(data.z), "r"(data.w)
                 : "memory");
}
__device__ __forceinline__ uint4 load_unit_now(const void *from) {
    uint4 data;
    asm volatile("ld.relaxed.sys.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(data.x), "=r"(data.y), "=r"(data.z), "=r"(data.w)
                 : "l"(from)
                 : "memory");
    return data;
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

// A unit, which is 16 bytes of data, to an address that all ranks reach.
__device__ __forceinline__ void send_unit(void *to, uint4 data) {
    store_unit(to, make_uint4(sendable(data.x), sendable(data.y), sendable(data.z), sendable(data.w)));
}

// Makes room for the sender's next unit.
__device__ __forceinline__ void empty_unit(void *at) { store_unit(at, make_uint4(EMPTY, EMPTY, EMPTY, EMPTY)); }

// One look at a unit: whether all of it has come, and its data.
__device__ __forceinline__ bool look_at_unit(const void *from, uint4 &data) {
    data = load_unit_now(from);
    return data.x != EMPTY && data.y != EMPTY && data.z != EMPTY && data.w != EMPTY;
}

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
    u32 number;  // of calls that all of this rank's blocks have begun
    u32 dead;    // not 0 once a wait was given up: from then on this rank sends nothing, for it would be rubbish
    u32 arrived; // blocks of the call at hand that have read the number
    u32 unused;
};

// Words of pinned memory between this rank's kernels and the host.
struct HostWords {
    u32 left;     // the host: a rank has left, so kernels stop waiting
    u32 given_up; // the device: a wait was given up, and its result is garbage
};

// Looks at a unit between two checks whether to go on.
constexpr u32 LOOKS = 1024;

// Waits for a unit and empties its place; false when a rank has left or `limit` ticks have gone by, and the unit has
// not come. A rank may have sent it before it left, so it is looked at once more at the end.
__device__ __forceinline__ bool receive_unit(void *from, const HostWords *host, u64 limit, uint4 &data) {
    u64 start = 0;
    bool last = false;
    for (u32 looks = 1;; looks++) {
        if (look_at_unit(from, data)) {
            empty_unit(from);
            return true;
        }
        if (last) return false;
        if (looks % LOOKS == 0) {
            u64 now = ticks();
            if (!start) start = now;
            last = load_from_host(&host->left) != 0 || now - start > limit;
        }
    }
}
