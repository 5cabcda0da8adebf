// Formats in blocks as rows hold them, in the words of block_values.h.
// revision: 1
#ifndef HALYARD_BLOCKS_H
#define HALYARD_BLOCKS_H
#include "common.h"

#define ADDRESS const __global u8 *
#define BYTE(p) (u32)(*(p))
#define HALF(p) vload_half(0, (const __global half *)(p))
#define WORD_AT(p) (*(const __global u32 *)(p))
#define FLOAT_AT(p) (*(const __global float *)(p))
#include "block_values.h"

#endif
