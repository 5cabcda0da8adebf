// The scheduler of emulator32.h. Threads meet at numbered barriers and, warp by warp, at shuffles and products: each
// stores what it brings and waits; when the last arrives, all go on. Two sets of values alternate: no lane reaches the
// rendezvous after next before all have left this one.
#include "emulator32.h"
#include "common.cuh"

#include <ucontext.h>
#include <vector>

extern "C" {
alignas(1024) u8 memory[256 << 10];
}
Index blockIdx, gridDim;
bool copies_are_late;

namespace {

constexpr std::size_t STACK_BYTES = 128 << 10;

[[noreturn]] void fail(const char *why) {
    std::fprintf(stderr, "emulator: %s\n", why);
    std::exit(3);
}

struct Rendezvous {
    unsigned live = 0, come = 0, times = 0;
};
struct Warp {
    Rendezvous rendezvous;
    u8 brought[2][32][32];
    u32 bytes[2];
};
struct Copy {
    u32 to, group;
    const void *from;
    bool wanted;
};
struct Fiber {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(STACK_BYTES);
    bool done = false;
    u32 groups = 0;
    std::vector<Copy> copies;
};

std::vector<Fiber> fibers;
std::vector<Warp> warps;
Rendezvous block, some[16];
ucontext_t scheduler;
unsigned current, progress;
const std::function<void()> *entry;

void settle(Rendezvous &rendezvous) {
    if (rendezvous.live > 0 && rendezvous.come == rendezvous.live) {
        rendezvous.come = 0;
        rendezvous.times++;
        progress++;
    }
}
void meet(Rendezvous &rendezvous) {
    unsigned times = rendezvous.times;
    rendezvous.come++;
    progress++;
    settle(rendezvous);
    while (rendezvous.times == times) swapcontext(&fibers[current].context, &scheduler);
}
void run() {
    (*entry)();
    fibers[current].done = true;
    progress++;
    for (Rendezvous *rendezvous : {&warps[current / 32].rendezvous, &block}) {
        rendezvous->live--;
        settle(*rendezvous);
    }
    swapcontext(&fibers[current].context, &scheduler);
}
void make(const Copy &copy) {
    if (copy.to % 16 || (u64)copy.from % 16 || copy.to + 16 > sizeof memory) fail("a copy of 16 bytes, not aligned");
    if (copy.wanted) std::memcpy(memory + copy.to, copy.from, 16);
    else std::memset(memory + copy.to, 0, 16);
}

} // namespace

Index threadIdx_of() { return {current, 0, 0}; }

void emulated_barrier(u32 number, u32 threads) {
    if (number == 0) return meet(block);
    some[number].live = threads;
    meet(some[number]);
}
void emulated_exchange(const void *mine, u32 bytes, void *all) {
    Warp &warp = warps[current / 32];
    unsigned set = warp.rendezvous.times % 2;
    if (bytes > 32) fail("values of more than 32 bytes");
    if (warp.rendezvous.live != 32) fail("a shuffle of a warp that some lanes have left");
    if (warp.rendezvous.come == 0) warp.bytes[set] = bytes;
    if (warp.bytes[set] != bytes) fail("lanes of a warp meet for different things");
    std::memcpy(warp.brought[set][current % 32], mine, bytes);
    meet(warp.rendezvous);
    for (u32 lane = 0; lane < 32; lane++) std::memcpy((u8 *)all + lane * bytes, warp.brought[set][lane], bytes);
}
void emulated_copy(u32 to, const void *from, bool wanted) {
    Copy copy = {to, fibers[current].groups, from, wanted};
    if (copies_are_late) fibers[current].copies.push_back(copy);
    else make(copy);
}
void emulated_commit() { fibers[current].groups++; }
void emulated_wait(u32 groups) {
    Fiber &fiber = fibers[current];
    std::size_t kept = 0;
    for (Copy &copy : fiber.copies) {
        if (copy.group + groups < fiber.groups) make(copy);
        else fiber.copies[kept++] = copy;
    }
    fiber.copies.resize(kept);
}

void launch(unsigned grid_x, unsigned grid_y, unsigned threads, const std::function<void()> &kernel) {
    entry = &kernel;
    gridDim = {grid_x, grid_y, 1};
    fibers.resize(threads);
    for (unsigned i = 0; i < grid_x * grid_y; i++) {
        blockIdx = {i % grid_x, i / grid_x, 0};
        std::memset(memory, 0xff, sizeof memory);
        warps.assign(threads / 32, Warp{});
        block = Rendezvous{threads, 0, 0};
        for (Rendezvous &rendezvous : some) rendezvous = Rendezvous{};
        for (unsigned t = 0; t < threads; t++) {
            warps[t / 32].rendezvous.live++;
            Fiber &fiber = fibers[t];
            fiber.done = false;
            fiber.groups = 0;
            fiber.copies.clear();
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp = fiber.stack.data();
            fiber.context.uc_stack.ss_size = STACK_BYTES;
            fiber.context.uc_link = nullptr;
            makecontext(&fiber.context, run, 0);
        }
        for (unsigned left = threads; left > 0;) {
            left = 0, progress = 0;
            for (current = 0; current < threads; current++) {
                if (fibers[current].done) continue;
                swapcontext(&scheduler, &fibers[current].context);
                left += !fibers[current].done;
            }
            if (left > 0 && progress == 0) fail("threads wait for one another at different places");
        }
        for (Fiber &fiber : fibers)
            if (!fiber.copies.empty()) fail("a thread ends with copies under way");
    }
}
