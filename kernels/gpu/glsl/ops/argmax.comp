#version 460
#extension GL_GOOGLE_include_directive : enable
// `argmax`: memory-bound, so a row is shared out to as many blocks as fill the device, joined by a second launch.
// No definitions.
// revision: 1
// check: argmax_1 argmax_part argmax_join
#include "logits.glsl"

#if defined(ENTRY_argmax_join)

// One block of 32 threads a row.
PARAMETERS(u64 parts; u32 num_parts; u64 to; u32 to_stride;)
void main() {
    u64 mine = 0;
    if (THREAD < p.num_parts) mine = Longs(p.parts + u64(gl_WorkGroupID.x) * p.num_parts * 8).at[THREAD];
    u64 best = block_max(mine);
    if (THREAD == 0) Words(p.to + u64(gl_WorkGroupID.x) * p.to_stride * 4).at[0] = token_of(best);
}

#else

// A row in the grid's second extent.
#if defined(ENTRY_argmax_1)
PARAMETERS(u64 logits; u32 stride; u32 vocab; u64 to; u32 to_stride;)
#else
PARAMETERS(u64 logits; u32 stride; u32 vocab; u64 parts;)
#endif
void main() {
    u32 row = gl_WorkGroupID.y, part = gl_WorkGroupID.x, parts = gl_NumWorkGroups.x;
    u64 best = block_max(
        best_of(p.logits + u64(row) * p.stride * 4, p.vocab, part * THREADS + THREAD, parts * THREADS));
    if (THREAD != 0) return;
#if defined(ENTRY_argmax_1)
    Words(p.to + u64(row) * p.to_stride * 4).at[0] = token_of(best);
#else
    Longs(p.parts).at[row * parts + part] = best;
#endif
}
#endif
