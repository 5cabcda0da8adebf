// Hopper's own machinery (sm_90a): barriers in shared memory that count bytes, bulk copies that report to them,
// products of a warpgroup (wgmma) with the left operand in registers, register hand-over between warpgroups.
#pragma once
#include "common.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && !defined(PORTABLE)

__device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// A barrier in shared memory: a phase ends when `arrivals` threads arrived and all announced bytes came in.
struct Barrier {
    u64 state;
};
__device__ __forceinline__ void barrier_init(Barrier &barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}
// Makes initialised barriers visible to the copy engine. Threads of the block still need a block barrier.
__device__ __forceinline__ void barrier_init_done() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(Barrier &barrier) {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}
// Arrives and announces bytes that copies will bring.
__device__ __forceinline__ void barrier_arrive_expect(Barrier &barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
                 "r"(bytes)
                 : "memory");
}
// Waits for the end of the phase of this parity (0 first, then alternating). Of a new barrier, the phase of parity 1
// counts as ended.
__device__ __forceinline__ void barrier_wait(Barrier &barrier, u32 parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra over;\n"
                 "bra again;\n"
                 "over:\n"
                 "}" ::"r"(shared_address(&barrier)),
                 "r"(parity)
                 : "memory");
}

// Whether that phase has ended, without waiting (long).
__device__ __forceinline__ bool barrier_ended(Barrier &barrier, u32 parity) {
    u32 ended;
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 done, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, done;\n"
                 "}"
                 : "=r"(ended)
                 : "r"(shared_address(&barrier)), "r"(parity)
                 : "memory");
    return ended != 0;
}

// Copies contiguous bytes (a multiple of 16, both sides aligned to 16) into shared memory and reports them to
// `barrier`.
__device__ __forceinline__ void bulk_load(void *to, const void *from, u32 bytes, Barrier &barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(&barrier))
                 : "memory");
}

// Matrices as the copy engine takes them, made by the host's driver (`Driver::boxes`): boxes of rows by 128 bytes,
// whose units of 16 bytes are swapped. A kernel's parameter.
struct __align__(64) Boxes {
    u64 words[16];
};
// Copies the box at value `column` of row `row` into the shared memory of both blocks of the cluster, at this address
// of each, and reports it to the barrier of each. Zeros for what lies outside of the matrices.
__device__ __forceinline__ void load_box_for_both(u32 to, const Boxes &boxes, u32 column, u32 row, Barrier &barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(&boxes), "r"(column), "r"(row), "r"(shared_address(&barrier)), "h"((u16)3)
        : "memory");
}

// Clusters: this block's number, and an address of this block's shared memory in that of block `number`.
__device__ __forceinline__ u32 block_of_cluster() {
    u32 number;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(number));
    return number;
}
__device__ __forceinline__ u32 in_block(u32 own, u32 number) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(number));
    return there;
}
// All threads of the cluster's blocks have come here, and see what the others wrote before.
__device__ __forceinline__ void meet_in_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Arrives at a barrier of another block, by `in_block`'s address, to say that reads of matrix units are over. It orders
// what this block sees and no more: in the cluster's scope it would first wait for all stores of this thread.
__device__ __forceinline__ void barrier_arrive_there(u32 address) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address) : "memory");
}

// This thread's stores to shared memory come before what matrix units and bulk copies do there after the next barrier.
__device__ __forceinline__ void stores_before_products() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The same for asynchronous copies of other threads, by a thread that has waited for them.
__device__ __forceinline__ void copies_before_products() { stores_before_products(); }
// Arrives once this thread's asynchronous copies so far are over.
__device__ __forceinline__ void arrive_after_copies(Barrier &barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier)) : "memory");
}

// A barrier of some of the block's threads, whole warps; `number` from 1 to 15.
template <u32 THREADS> __device__ __forceinline__ void barrier_of(u32 number) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(THREADS) : "memory");
}

// Registers a thread of this warpgroup may use from here on. Needs __launch_bounds__(threads, 1).
template <int COUNT> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Products of a warpgroup run asynchronously to its other work: `fence` before the first that uses registers written by
// ordinary code, `commit` closes a group, `wait<N>` returns when at most the N newest groups still run. Registers of a
// running product must not be touched.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// Keeps the compiler from moving uses of these registers across this point.
template <int N> __device__ __forceinline__ void pin(float (&registers)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int N> __device__ __forceinline__ void pin(u32 (&registers)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(registers[i])::"memory");
}

// Right operand in shared memory, unswizzled: units of 8 columns by 16 bytes of depth (128 bytes), neighbours along the
// depth `depth_stride` bytes apart, along the columns `column_stride`.
__device__ __forceinline__ u64 wgmma_operand(u32 address, u32 depth_stride, u32 column_stride) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)(depth_stride >> 4) << 16 | (u64)(column_stride >> 4) << 32;
}

// The same with rows of 128 bytes, whose eight units of 16 bytes are swapped: unit u of row r stands at u ^ (r % 8).
// Eight rows are 1024 bytes, at a multiple of that; `address` is inside of their first row, at the depth where a step
// begins.
__device__ __forceinline__ u64 wgmma_swapped_operand(u32 address) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

// The same with rows of 64 bytes, whose four units are swapped: unit u of row r stands at u ^ (r / 2 % 4). Eight rows
// are 512 bytes, at a multiple of that, and the next eight `stride` bytes further on.
__device__ __forceinline__ u64 wgmma_swapped_operand_64(u32 address, u32 stride) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)(stride >> 4) << 32 | (u64)2 << 62;
}

// d (64 rows, N columns) = a · b, or += where `accumulate`; 16 deep. a in registers as for mma_m16n8k16, each warp 16
// rows, or in shared memory; d[4i ..] is the tile of columns 8i .. 8i+7 as there. T: bf16 or f16.
template <typename T, int N> struct Wgmma;

#define HALYARD_D8(d, i)                                                                                        \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define HALYARD_D32(d, i) HALYARD_D8(d, i), HALYARD_D8(d, i + 8), HALYARD_D8(d, i + 16), HALYARD_D8(d, i + 24)
#define HALYARD_N32                                           \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}"
#define HALYARD_N64                                                    \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"          \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"

#define HALYARD_WGMMA(type)                                                                               \
    template <> struct Wgmma<type, 32> {                                                                  \
        static __device__ __forceinline__ void run(float (&d)[16], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, \
                                                   int accumulate) {                                      \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"                                     \
                         "wgmma.mma_async.sync.aligned.m64n32k16.f32." #type "." #type " "                \
                         "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}"                        \
                         ", {%16,%17,%18,%19}, %20, p, 1, 1, 0;\n}"                                       \
                         : HALYARD_D8(d, 0), HALYARD_D8(d, 8)                                             \
                         : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(accumulate));                  \
        }                                                                                                 \
    };                                                                                                    \
    template <> struct Wgmma<type, 64> {                                                                  \
        static __device__ __forceinline__ void run(float (&d)[32], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, \
                                                   int accumulate) {                                      \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"                                     \
                         "wgmma.mma_async.sync.aligned.m64n64k16.f32." #type "." #type " " HALYARD_N32    \
                         ", {%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}"                                       \
                         : HALYARD_D32(d, 0)                                                              \
                         : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(accumulate));                  \
        }                                                                                                 \
        static __device__ __forceinline__ void run(float (&d)[32], u64 a, u64 b, int accumulate) {        \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                     \
                         "wgmma.mma_async.sync.aligned.m64n64k16.f32." #type "." #type " " HALYARD_N32    \
                         ", %32, %33, p, 1, 1, 0, 0;\n}"                                                  \
                         : HALYARD_D32(d, 0)                                                              \
                         : "l"(a), "l"(b), "r"(accumulate));                                              \
        }                                                                                                 \
    };                                                                                                    \
    template <> struct Wgmma<type, 128> {                                                                 \
        static __device__ __forceinline__ void run(float (&d)[64], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, \
                                                   int accumulate) {                                      \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"                                     \
                         "wgmma.mma_async.sync.aligned.m64n128k16.f32." #type "." #type " " HALYARD_N64   \
                         ", {%64,%65,%66,%67}, %68, p, 1, 1, 0;\n}"                                       \
                         : HALYARD_D32(d, 0), HALYARD_D32(d, 32)                                          \
                         : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(accumulate));                  \
        }                                                                                                 \
        static __device__ __forceinline__ void run(float (&d)[64], u64 a, u64 b, int accumulate) {        \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                                     \
                         "wgmma.mma_async.sync.aligned.m64n128k16.f32." #type "." #type " " HALYARD_N64   \
                         ", %64, %65, p, 1, 1, 0, 0;\n}"                                                  \
                         : HALYARD_D32(d, 0), HALYARD_D32(d, 32)                                          \
                         : "l"(a), "l"(b), "r"(accumulate));                                              \
        }                                                                                                 \
    };
HALYARD_WGMMA(bf16)
HALYARD_WGMMA(f16)
#undef HALYARD_WGMMA

// An operand in shared memory whose rows of 128 bytes have their 16-byte units swapped by (row % 8), eight rows after
// eight (the 128-byte swizzle; every 1024 bytes begin anew). Operands whose rows run along the depth: `step` bytes
// between eight rows and the next, `lead` is not used. Operands whose rows run along rows or columns of the product
// (transposed): `lead` bytes between 64 columns and the next, `step` between eight depths and the next.
__device__ __forceinline__ u64 wgmma_swizzled(u32 address, u32 lead, u32 step) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)(lead >> 4) << 16 | (u64)(step >> 4) << 32 | 1ull << 62;
}

// d (64 rows, N columns) = a · b, or += where `accumulate`; 16 deep, both in shared memory as wgmma_swizzled says.
// TRANSPOSED: rows of b run along its columns. d as of Wgmma.
template <typename T, int N, int TRANSPOSED> struct WgmmaShared;

#define HALYARD_N256                                                         \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,"                        \
    "%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,"               \
    "%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,"               \
    "%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,"               \
    "%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,"               \
    "%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,"               \
    "%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,"               \
    "%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"   \
    "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125," \
    "%126,%127}"
#define HALYARD_D4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define HALYARD_R28 \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17," \
    "%18,%19,%20,%21,%22,%23,%24,%25,%26,%27}"
#define HALYARD_R56 \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17," \
    "%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35," \
    "%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53," \
    "%54,%55}"
#define HALYARD_WGMMA_SHARED(type)                                                                              \
    template <> struct WgmmaShared<type, 32, 0> {                                                               \
        static __device__ __forceinline__ void run(float (&d)[16], u64 a, u64 b, int accumulate) {              \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"                                           \
                         "wgmma.mma_async.sync.aligned.m64n32k16.f32." #type "." #type " "                      \
                         "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, p, 1, 1, 0, 0;\n}" \
                         : HALYARD_D8(d, 0), HALYARD_D8(d, 8)                                                   \
                         : "l"(a), "l"(b), "r"(accumulate));                                                    \
        }                                                                                                       \
    };
// Of 256 columns; `transposed` as TRANSPOSED.
#define HALYARD_WGMMA_256(type, transposed)                                                                     \
    template <> struct WgmmaShared<type, 256, transposed> {                                                     \
        static __device__ __forceinline__ void run(float (&d)[128], u64 a, u64 b, int accumulate) {             \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"                                          \
                         "wgmma.mma_async.sync.aligned.m64n256k16.f32." #type "." #type " " HALYARD_N256        \
                         ", %128, %129, p, 1, 1, 0, " #transposed ";\n}"                                        \
                         : HALYARD_D32(d, 0), HALYARD_D32(d, 32), HALYARD_D32(d, 64), HALYARD_D32(d, 96)        \
                         : "l"(a), "l"(b), "r"(accumulate));                                                    \
        }                                                                                                       \
    };
HALYARD_WGMMA_SHARED(bf16)
HALYARD_WGMMA_SHARED(f16)
HALYARD_WGMMA_256(bf16, 0)
HALYARD_WGMMA_256(bf16, 1)
HALYARD_WGMMA_256(f16, 0)
HALYARD_WGMMA_256(f16, 1)
#undef HALYARD_WGMMA_SHARED
#undef HALYARD_WGMMA_256

// The same for other numbers of columns, 32 bytes deep: of u8, codes of E4M3, that is 32 products. `to`, `operands` and
// `given` are the numbers of the assembler's operands: sums, matrices, whether to accumulate.
#define HALYARD_WGMMA_COLUMNS(type, columns, what, in_order, to, operands, given, ...)                            \
    template <> struct WgmmaShared<type, columns, 0> {                                                            \
        static __device__ __forceinline__ void run(float (&d)[columns / 2], u64 a, u64 b, int accumulate) {       \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " given ", 0;\n"                                       \
                         "wgmma.mma_async.sync.aligned.m64n" #columns what " " to ", " operands ", p, 1, 1" in_order \
                         ";\n}"                                                                                   \
                         : __VA_ARGS__                                                                            \
                         : "l"(a), "l"(b), "r"(accumulate));                                                      \
        }                                                                                                         \
    };
#define HALYARD_WGMMA_8_16(type, what, in_order)                                                            \
    HALYARD_WGMMA_COLUMNS(type, 8, what, in_order, "{%0,%1,%2,%3}", "%4, %5", "%6", HALYARD_D4(d, 0))       \
    HALYARD_WGMMA_COLUMNS(type, 16, what, in_order, "{%0,%1,%2,%3,%4,%5,%6,%7}", "%8, %9", "%10",           \
                          HALYARD_D8(d, 0))
#define HALYARD_WGMMA_56_64_112(type, what, in_order)                                                       \
    HALYARD_WGMMA_COLUMNS(type, 56, what, in_order, HALYARD_R28, "%28, %29", "%30", HALYARD_D8(d, 0),       \
                          HALYARD_D8(d, 8), HALYARD_D8(d, 16), HALYARD_D4(d, 24))                           \
    HALYARD_WGMMA_COLUMNS(type, 64, what, in_order, HALYARD_N32, "%32, %33", "%34", HALYARD_D32(d, 0))      \
    HALYARD_WGMMA_COLUMNS(type, 112, what, in_order, HALYARD_R56, "%56, %57", "%58", HALYARD_D32(d, 0),     \
                          HALYARD_D8(d, 32), HALYARD_D8(d, 40), HALYARD_D8(d, 48))
HALYARD_WGMMA_8_16(bf16, "k16.f32.bf16.bf16", ", 0, 0")
HALYARD_WGMMA_8_16(f16, "k16.f32.f16.f16", ", 0, 0")
HALYARD_WGMMA_56_64_112(bf16, "k16.f32.bf16.bf16", ", 0, 0")
HALYARD_WGMMA_56_64_112(f16, "k16.f32.f16.f16", ", 0, 0")
HALYARD_WGMMA_56_64_112(u8, "k32.f32.e4m3.e4m3", "")
#undef HALYARD_WGMMA_8_16
#undef HALYARD_WGMMA_56_64_112
#undef HALYARD_WGMMA_COLUMNS
#undef HALYARD_N256
#undef HALYARD_R28
#undef HALYARD_R56
#undef HALYARD_D4
#undef HALYARD_D8
#undef HALYARD_D32
#undef HALYARD_N32
#undef HALYARD_N64

#endif
