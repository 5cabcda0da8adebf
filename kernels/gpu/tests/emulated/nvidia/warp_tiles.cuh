// Copies, ldmatrix and barriers of some warps.
#pragma once
#include "mma.cuh"

inline u32 address_in_shared(const void *p) { return (u32)((const u8 *)p - memory); }
inline void copy_async(u32 to, const void *from, bool wanted) { emulated_copy(to, from, wanted); }
inline void copies_commit() { emulated_commit(); }
template <int N> inline void copies_wait() { emulated_wait(N); }

inline void load_rows(u32 (&pieces)[4], u32 address, bool transposed) {
    if (address % 16) std::printf("ldmatrix: address %u\n", address), std::exit(3);
    u32 all[32], lane = threadIdx.x % 32;
    emulated_exchange(&address, 4, all);
    for (u32 i = 0; i < 4; i++)
        for (u32 e = 0; e < 2; e++) {
            u32 row = transposed ? 2 * (lane % 4) + e : lane / 4, column = transposed ? lane / 4 : 2 * (lane % 4) + e;
            u16 value;
            std::memcpy(&value, memory + all[8 * i + row] + 2 * column, 2);
            pieces[i] = e ? (pieces[i] & 0xffff) | (u32)value << 16 : value;
        }
}
inline void load_pieces(u32 (&pieces)[4], u32 address) { load_rows(pieces, address, false); }
inline void load_pieces_transposed(u32 (&pieces)[4], u32 address) { load_rows(pieces, address, true); }
inline void store_shared(u32 to, u32 word) { std::memcpy(memory + to, &word, 4); }
inline void barrier_of(u32 number, u32 threads) { emulated_barrier(number, threads); }
inline float exp2_approx(float x) { return exp2f(x); }
