// Formats in blocks as rows hold them, in the words of block_values.h.
// revision: 1
#ifndef BLOCKS_GLSL
#define BLOCKS_GLSL
#include "common.glsl"

#define ADDRESS u64
#define BYTE(p) u32(Bytes(p).at[0])
#define HALF(p) f16_value(u32(Halves(p).at[0]))
#define WORD_AT(p) (Words(p).at[0])
#define FLOAT_AT(p) (Floats(p).at[0])
#include "block_values.h"
#endif
