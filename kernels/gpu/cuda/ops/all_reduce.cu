// The sum over the ranks of a group in one kernel: every rank stores its input into the memory of all others and adds
// up what they have stored into its own, in rank order and f32. One trip over the link, and no byte more than the data
// (see peers.cuh): with two ranks no way has fewer.
//
// A rank's memory is [2 calls][RANKS senders][a window of `window` bytes, all of them empty at first]. Call n uses half
// n mod 2. Two halves suffice. A rank sends call n + 2 after its call n + 1 is over, which had some unit of every other
// rank's call n + 1; that was sent after that rank's call n had ended, and with it what empties the places of call n.
// So a place is empty, and known to be so by the memory that it is in, before the next unit for it is sent. A rank that
// sends early (its call n + 1 while others are still in call n) writes the other half. The call's number comes from
// device memory and not from the host, so replays of a recording go on counting.
//
// The next kernel may start at once: its blocks take the places of those of the kernel before, and ask for weights
// while the ranks wait for each other. All blocks of this one are on the device by then, so they wait for other ranks
// only, and those for none of this rank's later kernels.
//
// `all_reduce_norm` does the same and the norm of each row behind it, a block a row: with the threads, the order of
// sums and the rounding of `norm.cu`, so that its numbers are those of two launches. What it sends is the same, too.
// Its blocks behind the first `row_blocks` bring what the next kernel reads first (constants) to the second-level
// cache, while memory would be idle.
//
// Definitions: ACT = f32, f16 or bf16; RANKS = 2 to 8.
// check: -DACT=f32 -DRANKS=2
// check: -DACT=f16 -DRANKS=2
// check: -DACT=bf16 -DRANKS=2
// check: -DACT=bf16 -DRANKS=3
// check: -DACT=bf16 -DRANKS=8
#include "peers.cuh"
#include "vector.cuh"

// Element i * N and its neighbours as 16 bytes; past the end zeros.
template <bool VECTOR> __device__ __forceinline__ uint4 load_unit(const ACT *x, u32 i, u32 count) {
    constexpr int N = per_vector<ACT>;
    if (VECTOR && (i + 1) * N <= count) return reinterpret_cast<const uint4 *>(x)[i];
    Group<ACT, N> group;
    float v[N];
#pragma unroll
    for (int k = 0; k < N; k++) v[k] = i * N + k < count ? to_f32(x[i * N + k]) : 0.f;
    group.set(v);
    return make_uint4(group.raw[0], group.raw[1], group.raw[2], group.raw[3]);
}

// The half of the call at hand: its first window.
__device__ __forceinline__ u64 half_of(u32 number) { return (u64)(number & 1) * RANKS; }

// Behind this block's last use of the number that it has read: the last block to come here counts the call. Not at the
// call's end, where the next kernel would wait for it. Every thread that needs the number has used it for what it sent,
// so its load is over; the next call reads the number when this kernel has ended.
__device__ __forceinline__ void count_call(u32 number, u32 blocks, Calls *calls) {
    __syncthreads();
    if (threadIdx.x == 0 && atomicInc(&calls->arrived, blocks - 1) == blocks - 1)
        store_shared_word(&calls->number, number + 1);
}

// A thread that is not alive has given up waiting.
__device__ __forceinline__ void end_call(bool alive, Calls *calls, HostWords *host) {
    if (alive) return;
    store_shared_word(&calls->dead, 1);
    store_to_host(&host->given_up, 1);
}

// This rank's own memory, not by an index, so that the addresses stay in constant memory.
__device__ __forceinline__ u8 *own_windows(u8 *const (&windows)[RANKS], u32 rank) {
    u8 *mine = windows[0];
#pragma unroll
    for (u32 r = 1; r < RANKS; r++) mine = r == rank ? windows[r] : mine;
    return mine;
}

// Adds `data` of rank `r` to the sums.
__device__ __forceinline__ void add_unit(float (&sum)[per_vector<ACT>], u32 r, uint4 data) {
    float v[per_vector<ACT>];
    Group<ACT, per_vector<ACT>> group;
    group.raw[0] = data.x, group.raw[1] = data.y, group.raw[2] = data.z, group.raw[3] = data.w;
    group.get(v);
#pragma unroll
    for (int k = 0; k < per_vector<ACT>; k++) sum[k] = r ? sum[k] + v[k] : v[k];
}

template <bool VECTOR>
__device__ __forceinline__ void all_reduce(const ACT *input, ACT *out, u32 count, u32 rank, Calls *calls,
                                           HostWords *host, u64 limit, u64 window, u8 *const (&windows)[RANKS]) {
    constexpr int N = per_vector<ACT>;
    u32 units = (count + N - 1) / N, first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    let_next_start();
    u8 *mine = own_windows(windows, rank);
    wait_for_previous();
    // Loaded together.
    u32 number = load_shared_word(&calls->number), dead = load_shared_word(&calls->dead);
    uint4 own = make_uint4(0, 0, 0, 0);
    if (first < units) own = load_unit<VECTOR>(input, first, count);
    bool alive = dead == 0;
    u64 half = half_of(number);
    for (u32 i = first; alive && i < units; i += step) {
        uint4 data = i == first ? own : load_unit<VECTOR>(input, i, count);
#pragma unroll
        for (u32 r = 0; r < RANKS; r++)
            if (r != rank) send_unit(windows[r] + (half + rank) * window + (u64)i * 16, data);
    }
    count_call(number, gridDim.x, calls);
    for (u32 i = first; alive && i < units; i += step) {
        float sum[N];
        if (i != first) own = load_unit<VECTOR>(input, i, count);
#pragma unroll
        for (u32 r = 0; r < RANKS; r++) {
            uint4 data = own;
            if (r != rank && !receive_unit(mine + (half + r) * window + (u64)i * 16, host, limit, data)) alive = false;
            add_unit(sum, r, data);
        }
        Group<ACT, N> group;
        group.set(sum);
        if (VECTOR && (i + 1) * N <= count)
            group.store(out + i * N);
        else
            for (int k = 0; k < N; k++)
                if (i * N + k < count) out[i * N + k] = from_f32<ACT>(sum[k]);
    }
    end_call(alive, calls, host);
}

// What the next kernel reads first: the beginnings, `bytes` long, of rows of a matrix.
struct Ahead {
    const u8 *rows;
    u64 stride;
    u32 num_rows, bytes;
};

// Asks the second-level cache for them; nothing waits for it. What is not there when it is read is read from memory.
__device__ __forceinline__ void bring(const Ahead &ahead, u32 thread, u32 threads) {
#if __CUDA_ARCH__ >= 900
    for (u32 i = thread; i < ahead.num_rows; i += threads)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(ahead.rows + i * ahead.stride),
                     "r"(ahead.bytes)
                     : "memory");
#endif
}

// A block a row of `width` values: thread t holds vectors t, t + blockDim.x, .. (NV of them).
template <int NV>
__device__ __forceinline__ void all_reduce_norm(ACT *x, const float *weight, ACT *out, u64 out_stride, u32 rows,
                                                u32 width, float eps, float weight_offset, const Ahead &ahead,
                                                u32 row_blocks, u32 rank, Calls *calls, HostWords *host, u64 limit,
                                                u64 window, u8 *const (&windows)[RANKS]) {
    constexpr int N = per_vector<ACT>;
    __shared__ float shared[32];
    let_next_start();
    if (blockIdx.x >= row_blocks) {
        // Neighbours in different blocks: a multiprocessor asks for few rows, and all of them do.
        u32 blocks = gridDim.x - row_blocks;
        bring(ahead, threadIdx.x * blocks + blockIdx.x - row_blocks, blocks * blockDim.x);
        return;
    }
    u32 n = width / N;
    float w[NV][N];
#pragma unroll
    for (int k = 0; k < NV; k++) {
        u32 i = threadIdx.x + k * blockDim.x;
        Group<float, N> group;
        group.zero();
        if (i < n) group.load(weight + i * N);
        group.get(w[k]);
    }
    float inverse_width = 1.f / width;
    u8 *mine = own_windows(windows, rank);
    uint4 *units = reinterpret_cast<uint4 *>(x);
    wait_for_previous();
    // Loaded together.
    u32 number = load_shared_word(&calls->number), dead = load_shared_word(&calls->dead);
    uint4 own[NV];
    auto load_row = [&](u32 row) {
#pragma unroll
        for (int k = 0; k < NV; k++) {
            u32 i = threadIdx.x + k * blockDim.x;
            own[k] = make_uint4(0, 0, 0, 0);
            if (i < n) own[k] = units[row * n + i];
        }
    };
    load_row(blockIdx.x);
    bool alive = dead == 0;
    u64 half = half_of(number);
    for (u32 row = blockIdx.x; alive && row < rows; row += row_blocks) {
        if (row != blockIdx.x) load_row(row);
#pragma unroll
        for (int k = 0; k < NV; k++) {
            u32 i = threadIdx.x + k * blockDim.x;
            if (i >= n) continue;
#pragma unroll
            for (u32 r = 0; r < RANKS; r++)
                if (r != rank) send_unit(windows[r] + (half + rank) * window + (u64)(row * n + i) * 16, own[k]);
        }
    }
    count_call(number, row_blocks, calls);
    for (u32 row = blockIdx.x; row < rows; row += row_blocks) {
        float v[NV][N], part = 0.f;
        // With one row a block it is at hand.
        if (rows > row_blocks) load_row(row);
#pragma unroll
        for (int k = 0; k < NV; k++) {
            u32 i = threadIdx.x + k * blockDim.x;
            Group<ACT, N> group;
            group.zero();
            if (i < n) {
                float sum[N];
#pragma unroll
                for (u32 r = 0; r < RANKS; r++) {
                    uint4 data = own[k];
                    u8 *from = mine + (half + r) * window + (u64)(row * n + i) * 16;
                    if (r != rank && alive && !receive_unit(from, host, limit, data)) alive = false;
                    add_unit(sum, r, data);
                }
                group.set(sum);
                group.store(x + (u64)(row * n + i) * N);
            }
            group.get(v[k]);
#pragma unroll
            for (int j = 0; j < N; j++) part += v[k][j] * v[k][j];
        }
        float inverse = 1.f / sqrtf(block_sum(part, shared) * inverse_width + eps);
#pragma unroll
        for (int k = 0; k < NV; k++) {
            u32 i = threadIdx.x + k * blockDim.x;
            if (i >= n) continue;
            float y[N];
#pragma unroll
            for (int j = 0; j < N; j++) y[j] = v[k][j] * inverse * (w[k][j] + weight_offset);
            Group<ACT, N> group;
            group.set(y);
            group.store(out + row * out_stride + i * N);
        }
    }
    end_call(alive, calls, host);
}

#define WINDOWS u8 *r0, u8 *r1, u8 *r2, u8 *r3, u8 *r4, u8 *r5, u8 *r6, u8 *r7
#define ENTRY(name, VECTOR)                                                                                       \
    extern "C" __global__ void __launch_bounds__(128)                                                             \
        name(const ACT *input, ACT *out, u32 count, u32 rank, Calls *calls, HostWords *host, u64 limit,           \
             u64 window, WINDOWS) {                                                                               \
        u8 *const all[8] = {r0, r1, r2, r3, r4, r5, r6, r7};                                                      \
        u8 *const(&windows)[RANKS] = reinterpret_cast<u8 *const(&)[RANKS]>(all);                                  \
        all_reduce<VECTOR>(input, out, count, rank, calls, host, limit, window, windows);                         \
    }
ENTRY(all_reduce_vector, true)
ENTRY(all_reduce_scalar, false)

#define NORM_ENTRY(name, NV)                                                                                      \
    extern "C" __global__ void __launch_bounds__(512, 2)                                                          \
        name(ACT *x, const float *weight, ACT *out, u64 out_stride, u32 rows, u32 width, float eps,               \
             float weight_offset, const u8 *ahead, u64 ahead_stride, u32 ahead_rows, u32 ahead_bytes,             \
             u32 row_blocks, u32 rank, Calls *calls, HostWords *host, u64 limit, u64 window, WINDOWS) {           \
        u8 *const all[8] = {r0, r1, r2, r3, r4, r5, r6, r7};                                                      \
        u8 *const(&windows)[RANKS] = reinterpret_cast<u8 *const(&)[RANKS]>(all);                                  \
        Ahead next = {ahead, ahead_stride, ahead_rows, ahead_bytes};                                              \
        all_reduce_norm<NV>(x, weight, out, out_stride, rows, width, eps, weight_offset, next, row_blocks, rank,  \
                            calls, host, limit, window, windows);                                                 \
    }
NORM_ENTRY(all_reduce_norm_1, 1)
NORM_ENTRY(all_reduce_norm_2, 2)
NORM_ENTRY(all_reduce_norm_4, 4)
