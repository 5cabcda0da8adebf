// The sum over the ranks of a group in one kernel: every rank stores its input into the memory of all others and adds
// up what they have stored into its own, in rank order and f32. One trip over the link: for operands so small that
// latency matters, not bandwidth.
//
// A rank's memory is [2 calls][RANKS senders][a window of `window` bytes, see packets_at]. Two calls suffice: a rank
// sends call n + 2 after its call n + 1 is over, which had every other rank's packets of n + 1, and those were sent
// after call n had been read. The call's number comes from device memory and not from the host, so replays of a
// recording go on counting.
//
// `all_reduce_norm` does the same and the norm of each row behind it, a block a row: with the threads, the order of
// sums and the rounding of `norm.cu`, so that its numbers are those of two launches. What it sends is the same, too.
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

// The number of the call at hand. 0 is what untouched memory holds; 2 keeps the calls' two halves taking turns.
__device__ __forceinline__ u32 next_number(const Calls *calls) {
    u32 number = load_shared_word(&calls->number) + 1;
    return number ? number : 2;
}

// A block's end: the last one counts the call. A thread that is not alive has given up waiting.
__device__ __forceinline__ void end_call(bool alive, u32 number, Calls *calls, HostWords *host) {
    if (!alive) {
        store_shared_word(&calls->dead, 1);
        store_to_host(&host->given_up, 1);
    }
    __syncthreads();
    // All have read the number by now.
    if (threadIdx.x == 0) {
        __threadfence();
        if (atomicInc(&calls->arrived, gridDim.x - 1) == gridDim.x - 1) store_shared_word(&calls->number, number);
    }
}

template <bool VECTOR>
__device__ __forceinline__ void all_reduce(const ACT *input, ACT *out, u32 count, u32 rank, Calls *calls,
                                           HostWords *host, u64 limit, u64 window, u8 *const (&windows)[RANKS]) {
    constexpr int N = per_vector<ACT>;
    u32 units = (count + N - 1) / N, first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    wait_for_previous();
    u32 number = next_number(calls);
    bool alive = load_shared_word(&calls->dead) == 0;
    u64 half = (u64)(number & 1) * RANKS;
    if (alive) {
        for (u32 i = first; i < units; i += step) {
            uint4 own = load_unit<VECTOR>(input, i, count);
#pragma unroll
            for (u32 r = 0; r < RANKS; r++)
                if (r != rank) send_packets(windows[r] + (half + rank) * window + packets_at(i), own, number);
        }
    }
    let_next_start();
    // Not indexed by `rank`: the addresses stay in constant memory.
    const u8 *mine = windows[0];
#pragma unroll
    for (u32 r = 1; r < RANKS; r++) mine = r == rank ? windows[r] : mine;
    for (u32 i = first; alive && i < units; i += step) {
        float sum[N], v[N];
#pragma unroll
        for (u32 r = 0; r < RANKS; r++) {
            uint4 data;
            if (r == rank)
                data = load_unit<VECTOR>(input, i, count);
            else if (!receive_packets(mine + (half + r) * window + packets_at(i), number, host, limit, data))
                alive = false;
            Group<ACT, N> group;
            group.raw[0] = data.x, group.raw[1] = data.y, group.raw[2] = data.z, group.raw[3] = data.w;
            group.get(v);
#pragma unroll
            for (int k = 0; k < N; k++) sum[k] = r ? sum[k] + v[k] : v[k];
        }
        Group<ACT, N> group;
        group.set(sum);
        if (VECTOR && (i + 1) * N <= count)
            group.store(out + i * N);
        else
            for (int k = 0; k < N; k++)
                if (i * N + k < count) out[i * N + k] = from_f32<ACT>(sum[k]);
    }
    end_call(alive, number, calls, host);
}

// A block a row of `width` values: thread t holds vectors t, t + blockDim.x, .. (NV of them).
template <int NV>
__device__ __forceinline__ void all_reduce_norm(ACT *x, const float *weight, ACT *out, u64 out_stride, u32 rows,
                                                u32 width, float eps, float weight_offset, u32 rank, Calls *calls,
                                                HostWords *host, u64 limit, u64 window,
                                                u8 *const (&windows)[RANKS]) {
    constexpr int N = per_vector<ACT>;
    __shared__ float shared[32];
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
    wait_for_previous();
    u32 number = next_number(calls);
    bool alive = load_shared_word(&calls->dead) == 0;
    u64 half = (u64)(number & 1) * RANKS;
    uint4 *units = reinterpret_cast<uint4 *>(x);
    for (u32 row = blockIdx.x; alive && row < rows; row += gridDim.x) {
#pragma unroll
        for (int k = 0; k < NV; k++) {
            u32 i = threadIdx.x + k * blockDim.x;
            if (i >= n) continue;
            uint4 own = units[row * n + i];
#pragma unroll
            for (u32 r = 0; r < RANKS; r++)
                if (r != rank)
                    send_packets(windows[r] + (half + rank) * window + packets_at(row * n + i), own, number);
        }
    }
    let_next_start();
    const u8 *mine = windows[0];
#pragma unroll
    for (u32 r = 1; r < RANKS; r++) mine = r == rank ? windows[r] : mine;
    for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
        float v[NV][N], part = 0.f;
#pragma unroll
        for (int k = 0; k < NV; k++) {
            u32 i = threadIdx.x + k * blockDim.x;
            Group<ACT, N> group;
            group.zero();
            if (i < n) {
                float sum[N], other[N];
#pragma unroll
                for (u32 r = 0; r < RANKS; r++) {
                    uint4 data = make_uint4(0, 0, 0, 0);
                    if (r == rank)
                        data = units[row * n + i];
                    else if (alive && !receive_packets(mine + (half + r) * window + packets_at(row * n + i), number,
                                                       host, limit, data))
                        alive = false;
                    Group<ACT, N> given;
                    given.raw[0] = data.x, given.raw[1] = data.y, given.raw[2] = data.z, given.raw[3] = data.w;
                    given.get(other);
#pragma unroll
                    for (int j = 0; j < N; j++) sum[j] = r ? sum[j] + other[j] : other[j];
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
    end_call(alive, number, calls, host);
}

#define ENTRY(name, VECTOR)                                                                                         \
    extern "C" __global__ void __launch_bounds__(128)                                                               \
        name(const ACT *input, ACT *out, u32 count, u32 rank, Calls *calls, HostWords *host, u64 limit, u64 window, \
             u8 *r0, u8 *r1, u8 *r2, u8 *r3, u8 *r4, u8 *r5, u8 *r6, u8 *r7) {                                      \
        u8 *const all[8] = {r0, r1, r2, r3, r4, r5, r6, r7};                                                        \
        u8 *const(&windows)[RANKS] = reinterpret_cast<u8 *const(&)[RANKS]>(all);                                    \
        all_reduce<VECTOR>(input, out, count, rank, calls, host, limit, window, windows);                           \
    }
ENTRY(all_reduce_vector, true)
ENTRY(all_reduce_scalar, false)

#define NORM_ENTRY(name, NV)                                                                                          \
    extern "C" __global__ void __launch_bounds__(512, 2)                                                              \
        name(ACT *x, const float *weight, ACT *out, u64 out_stride, u32 rows, u32 width, float eps,                   \
             float weight_offset, u32 rank, Calls *calls, HostWords *host, u64 limit, u64 window, u8 *r0, u8 *r1,     \
             u8 *r2, u8 *r3, u8 *r4, u8 *r5, u8 *r6, u8 *r7) {                                                        \
        u8 *const all[8] = {r0, r1, r2, r3, r4, r5, r6, r7};                                                          \
        u8 *const(&windows)[RANKS] = reinterpret_cast<u8 *const(&)[RANKS]>(all);                                      \
        all_reduce_norm<NV>(x, weight, out, out_stride, rows, width, eps, weight_offset, rank, calls, host, limit,    \
                            window, windows);                                                                         \
    }
NORM_ENTRY(all_reduce_norm_1, 1)
NORM_ENTRY(all_reduce_norm_2, 2)
NORM_ENTRY(all_reduce_norm_4, 4)
