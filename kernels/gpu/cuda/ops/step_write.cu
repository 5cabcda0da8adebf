// The scatter of step data: each block copies one piece from a slot of pinned host memory to its place. Takes no
// definitions.
// check:
#include "common.cuh"

// As `Piece` and `PIECES` of the queue's ring. `from` is an offset in the slot that lies like `to` to 16 bytes.
struct Piece {
    u64 to;
    u32 from;
    u32 bytes;
};
struct Pieces {
    Piece piece[64];
};

extern "C" __global__ void __launch_bounds__(256) step_write(const __grid_constant__ Pieces pieces, const u8 *slot) {
    const Piece piece = pieces.piece[blockIdx.x];
    u8 *to = (u8 *)piece.to;
    const u8 *from = slot + piece.from;
    // Bytes before the first whole vector, then vectors, then what is left.
    u32 head = (16 - (u32)(piece.to & 15)) & 15;
    head = head < piece.bytes ? head : piece.bytes;
    const u32 vectors = (piece.bytes - head) / 16;
    const u32 tail = head + vectors * 16;
    // The host wrote the slot before this launch, so only the writes must wait for earlier work.
    uint4 first = make_uint4(0, 0, 0, 0);
    if (threadIdx.x < vectors) first = ((const uint4 *)(from + head))[threadIdx.x];
    wait_for_previous();
    if (threadIdx.x < head) to[threadIdx.x] = from[threadIdx.x];
    if (threadIdx.x < vectors) ((uint4 *)(to + head))[threadIdx.x] = first;
    for (u32 i = threadIdx.x + blockDim.x; i < vectors; i += blockDim.x)
        ((uint4 *)(to + head))[i] = ((const uint4 *)(from + head))[i];
    if (threadIdx.x < piece.bytes - tail) to[tail + threadIdx.x] = from[tail + threadIdx.x];
    let_next_start();
}
