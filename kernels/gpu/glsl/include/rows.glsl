// Products on processors with subgroups of 8: a thread has four output rows to itself, up to eight tokens at a time.
// There a load costs a step for each thread, and a barrier costs most of all. So one thread of a subgroup loads each
// activation and passes it to the others, and there is no barrier.
//
// Both sides of a branch cost time there, even if all threads take the same side. So one token has a loop of its own,
// in which the compiler knows the count.
#ifndef ROWS_GLSL
#define ROWS_GLSL
#include "activate.glsl"

#define TOKENS 8
// Rows of a thread, THREADS apart.
#define ROWS 4

struct Sums {
    float of[TOKENS][ROWS];
};

Sums no_sums() {
    Sums sums;
    [[unroll]] for (u32 token = 0; token < TOKENS; token++)
        [[unroll]] for (u32 r = 0; r < ROWS; r++) sums.of[token][r] = 0.0;
    return sums;
}

// Row `r` of this thread. Past the end it is the last one once more.
u32 row_of(u32 r, u32 n) { return min((gl_WorkGroupID.x * ROWS + r) * THREADS + gl_LocalInvocationIndex, n - 1); }

// Adds to the sums of `count` tokens the products of eight weights of each row with the activations at `from`, which is
// where this thread's own (that of its lane) lies; rows of activations are `pitch` bytes apart. All threads of a
// subgroup call it together.
void multiply(in float w[ROWS][8], u64 from, u64 pitch, u32 count, const bool single, inout Sums sums) {
    [[unroll]] for (u32 token = 0; token < (single ? 1 : TOKENS); token++) {
        // A token past the end repeats the last one.
        float mine = LOAD(ACT, from + min(token, count - 1) * pitch, 0);
        [[unroll]] for (u32 i = 0; i < 8; i++) {
            float x = subgroupBroadcast(mine, i);
            [[unroll]] for (u32 r = 0; r < ROWS; r++) sums.of[token][r] = fma(w[r][i], x, sums.of[token][r]);
        }
    }
}

// Writes the sums of `count` tokens, whose index the compiler must know.
#define FINISH_ROWS(sums, first_token, count)                                              \
    for (u32 token = 0; token < count; token++) {                                          \
        float mine[ROWS] = sums.of[0];                                                     \
        [[unroll]] for (u32 i = 1; i < TOKENS; i++)                                        \
            if (i == token) mine = sums.of[i];                                             \
        [[unroll]] for (u32 r = 0; r < ROWS; r++) {                                        \
            u32 row = (gl_WorkGroupID.x * ROWS + r) * THREADS + gl_LocalInvocationIndex;   \
            if (row < p.n) WRITE_OUT(mine[r], first_token + token, row);                   \
        }                                                                                  \
    }
#endif
