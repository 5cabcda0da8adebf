// Sums and maxima over 32 neighbouring threads and over a workgroup, on devices of any subgroup size. With SUBGROUP
// defined as a multiple of 32 (the driver then asks for full subgroups of that size) 32 threads talk by subgroup
// operations, else by shared memory.
//
// All threads of the workgroup call each of these functions together: no thread may have returned, and no branch around
// a call may differ between threads.
#ifndef LANES_GLSL
#define LANES_GLSL
#include "common.glsl"

shared uint exchange[THREADS];
shared uint partial[32];

#if SUBGROUP >= 32
#define LANE (gl_SubgroupInvocationID & 31u)
#define WARP (gl_SubgroupID * (SUBGROUP / 32) + (gl_SubgroupInvocationID >> 5))
#define THREAD (WARP * 32 + LANE)

float sum32(float x) { return subgroupClusteredAdd(x, 32); }
float max32(float x) { return subgroupClusteredMax(x, 32); }
u32 max32(u32 x) { return subgroupClusteredMax(x, 32); }

#else
#define LANE (gl_LocalInvocationIndex & 31u)
#define WARP (gl_LocalInvocationIndex >> 5)
#define THREAD gl_LocalInvocationIndex

void offer(u32 word) {
    barrier();
    exchange[THREAD] = word;
    barrier();
}
float sum32(float x) {
    offer(floatBitsToUint(x));
    u32 first = THREAD & ~31u;
    float sum = 0.0;
    for (u32 i = 0; i < 32; i++) sum += uintBitsToFloat(exchange[first + i]);
    return sum;
}
float max32(float x) {
    offer(floatBitsToUint(x));
    u32 first = THREAD & ~31u;
    float largest = -INFINITY;
    for (u32 i = 0; i < 32; i++) largest = max(largest, uintBitsToFloat(exchange[first + i]));
    return largest;
}
u32 max32(u32 x) {
    offer(x);
    u32 first = THREAD & ~31u, largest = 0;
    for (u32 i = 0; i < 32; i++) largest = max(largest, exchange[first + i]);
    return largest;
}
#endif

#define WARPS (THREADS / 32)

// Defining SUMS gives the first `count` of SUMS values a sum each over 32 neighbouring threads; thread t of them has
// the one of value t. Where threads talk by shared memory, they meet twice and not twice a value.
#ifdef SUMS
#if SUBGROUP >= 32
float sums32(in float x[SUMS], u32 count) {
    float mine = 0.0;
    UNROLLED for (u32 i = 0; i < SUMS; i++) {
        if (i >= count) continue;
        float sum = sum32(x[i]);
        if (LANE == i) mine = sum;
    }
    return mine;
}
#else
shared float gathered[SUMS][THREADS];
float sums32(in float x[SUMS], u32 count) {
    barrier();
    for (u32 i = 0; i < count; i++) gathered[i][THREAD] = x[i];
    barrier();
    float mine = 0.0;
    if (LANE < count) {
        for (u32 i = THREAD & ~31u; i < (THREAD | 31u) + 1; i++) mine += gathered[LANE][i];
    }
    return mine;
}
#endif
#endif

// Over the workgroup, for every thread. THREADS is a multiple of 32, at most 1024.
float block_sum(float x) {
    float sum = sum32(x);
    if (WARPS == 1) return sum;
#if SUBGROUP >= 32
    barrier();
#endif
    if (LANE == 0) partial[WARP] = floatBitsToUint(sum);
    barrier();
    sum = 0.0;
    for (u32 i = 0; i < WARPS; i++) sum += uintBitsToFloat(partial[i]);
    return sum;
}
float block_max(float x) {
    float largest = max32(x);
    if (WARPS == 1) return largest;
#if SUBGROUP >= 32
    barrier();
#endif
    if (LANE == 0) partial[WARP] = floatBitsToUint(largest);
    barrier();
    largest = -INFINITY;
    for (u32 i = 0; i < WARPS; i++) largest = max(largest, uintBitsToFloat(partial[i]));
    return largest;
}
#endif
