// Block formats as model files hold them, in the words of block_values.h.
// revision: 1
#ifndef BLOCKS_GLSL
#define BLOCKS_GLSL
#include "common.glsl"

#define ADDRESS u64
#define BYTE(p) u32(Bytes(p).at[0])
#define HALF(p) f16_value(u32(Halves(p).at[0]))
#define SIGNED(byte) float(i32((byte) << 24) >> 24)
#include "block_values.h"
#endif
