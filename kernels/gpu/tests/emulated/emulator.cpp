// The scheduler of emulator.h and the functions that device.h calls. At a shuffle, a vote or a matrix product, every
// active lane of the wave stores its values and waits; when the last lane arrives, all go on. Two sets of values
// alternate: no lane reaches the rendezvous after next before all have left this one.
#include "emulator.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <ucontext.h>
#include <vector>

namespace {

#ifndef EMULATED_WAVE
#define EMULATED_WAVE 64
#endif
constexpr unsigned WAVE = EMULATED_WAVE;
constexpr std::size_t STACK_BYTES = 256 << 10;

[[noreturn]] void fail(const char *why) {
    std::fprintf(stderr, "emulator: %s\n", why);
    std::exit(3);
}

// A rendezvous of lanes: how many are active, how many have arrived, and how often all had.
struct Rendezvous {
    unsigned live = 0, come = 0, times = 0;
};

// What a lane brings to a rendezvous of its wave.
struct Brought {
    char kind;      // shuffle, vote or product of either kind
    unsigned times; // its number: values of a lane that has left since are older, and do not count
    float a[4], b[4];
    std::uint32_t word, words[6];
};

// Copies that a thread has asked for, in sets; they are made when it waits for them.
struct Copy {
    void *to;
    const void *from;
    unsigned bytes, set;
    bool wanted;
};

struct Wave {
    Rendezvous rendezvous;
    Brought brought[2][WAVE];
};

struct Fiber {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(STACK_BYTES);
    bool done = false;
    std::vector<Copy> copies;
    unsigned set = 0;
};

// A barrier in shared memory (PTX, mbarrier): a phase ends when as many arrived as it was made for, and the bytes have
// come that they announced.
struct Phases {
    unsigned arrivals, missing, ended = 0;
    long long bytes = 0;
};
struct Bulk {
    void *to;
    const void *from;
    unsigned bytes;
    void *barrier;
};

std::map<void *, Phases> barriers;
std::vector<Bulk> bulks;
std::vector<Fiber> fibers;
std::vector<Wave> waves;
Rendezvous block, some[16];
ucontext_t scheduler;
unsigned current, places[3], sizes[3], progress;
const std::function<void()> *entry;

// Restarts a rendezvous at which all active lanes have arrived.
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

// The values of all lanes of this wave, when all have arrived; `there` has a bit for each lane that took part.
const Brought *exchange(Brought mine, unsigned long long &there) {
    Wave &wave = waves[current / WAVE];
    mine.times = wave.rendezvous.times + 1;
    Brought *all = wave.brought[mine.times % 2];
    all[current % WAVE] = mine;
    meet(wave.rendezvous);
    there = 0;
    for (unsigned lane = 0; lane < WAVE; lane++) {
        if (all[lane].times != mine.times) continue;
        if (all[lane].kind != mine.kind) fail("lanes of a wave meet for different things");
        there |= 1ull << lane;
    }
    return all;
}

void run() {
    (*entry)();
    fibers[current].done = true;
    progress++;
    for (Rendezvous *rendezvous : {&waves[current / WAVE].rendezvous, &block}) {
        rendezvous->live--;
        settle(*rendezvous);
    }
    swapcontext(&fibers[current].context, &scheduler);
}

} // namespace

void launch(unsigned grid_x, unsigned grid_y, unsigned threads, const std::function<void()> &kernel,
            unsigned grid_z) {
    entry = &kernel;
    sizes[0] = grid_x, sizes[1] = grid_y, sizes[2] = grid_z;
    fibers.resize(threads);
    for (unsigned i = 0; i < grid_x * grid_y * grid_z; i++) {
        places[0] = i % grid_x, places[1] = i / grid_x % grid_y, places[2] = i / grid_x / grid_y;
        waves.assign((threads + WAVE - 1) / WAVE, Wave{});
        barriers.clear();
        for (Rendezvous &rendezvous : some) rendezvous = Rendezvous{};
        block = Rendezvous{threads, 0, 0};
        for (unsigned t = 0; t < threads; t++) {
            waves[t / WAVE].rendezvous.live++;
            Fiber &fiber = fibers[t];
            fiber.done = false;
            fiber.copies.clear();
            fiber.set = 0;
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
            if (left > 0 && progress == 0) fail("lanes wait for one another at different places");
        }
        if (!bulks.empty()) fail("a block ends with bulk copies that nobody waited for");
    }
}

extern "C" {
unsigned emulated_thread(void) { return current; }
unsigned emulated_block(int axis) { return places[axis]; }
unsigned emulated_threads(void) { return (unsigned)fibers.size(); }
unsigned emulated_grid(int axis) { return sizes[axis]; }
void emulated_barrier(void) { meet(block); }

void emulated_wave_barrier(void) {
    unsigned long long there;
    exchange(Brought{'b'}, there);
}

void emulated_copy(void *to, const void *from, unsigned bytes, int wanted) {
    fibers[current].copies.push_back({to, from, bytes, fibers[current].set, wanted != 0});
}
void emulated_end_of_copies(void) { fibers[current].set++; }
void emulated_wait_for_copies(unsigned newest) {
    Fiber &fiber = fibers[current];
    std::vector<Copy> later;
    for (const Copy &copy : fiber.copies) {
        if (copy.set + newest >= fiber.set) {
            later.push_back(copy);
        } else if (copy.wanted) {
            std::memcpy(copy.to, copy.from, copy.bytes);
        } else {
            std::memset(copy.to, 0, copy.bytes);
        }
    }
    fiber.copies = later;
}

void emulated_barrier_of(unsigned number, unsigned threads) {
    some[number].live = threads;
    meet(some[number]);
}

static Phases &phases_of(void *barrier) {
    auto found = barriers.find(barrier);
    if (found == barriers.end()) fail("a barrier is used that was not made");
    return found->second;
}
static void settle_phase(Phases &phases) {
    if (phases.missing > 0 || phases.bytes != 0) return;
    phases.missing = phases.arrivals;
    phases.ended++;
    progress++;
}
void emulated_barrier_init(void *barrier, unsigned arrivals) { barriers[barrier] = Phases{arrivals, arrivals}; }
void emulated_barrier_arrive(void *barrier, unsigned bytes) {
    Phases &phases = phases_of(barrier);
    if (phases.missing == 0) fail("more arrive at a barrier than it was made for");
    phases.bytes += bytes;
    phases.missing--;
    progress++;
    settle_phase(phases);
}
void emulated_bulk_copy(void *to, const void *from, unsigned bytes, void *barrier) {
    if ((std::uintptr_t)to % 16 || (std::uintptr_t)from % 16 || bytes % 16 || bytes == 0)
        fail("a bulk copy that is not aligned to 16 bytes");
    bulks.push_back({to, from, bytes, barrier});
}
void emulated_barrier_wait(void *barrier, unsigned parity) {
    for (;;) {
        Phases &phases = phases_of(barrier);
        std::vector<Bulk> others;
        for (const Bulk &bulk : bulks) {
            if (bulk.barrier != barrier) {
                others.push_back(bulk);
                continue;
            }
            std::memcpy(bulk.to, bulk.from, bulk.bytes);
            phases.bytes -= bulk.bytes;
        }
        if (others.size() != bulks.size()) {
            bulks = others;
            settle_phase(phases);
        }
        if (phases.ended % 2 != parity) return;
        swapcontext(&fibers[current].context, &scheduler);
    }
}

unsigned emulated_word_of(unsigned lane, unsigned value) {
    Brought mine = {'w'};
    mine.word = value;
    unsigned long long there;
    return exchange(mine, there)[lane % WAVE].word;
}

unsigned long long emulated_votes(int says) {
    Brought mine = {'v'};
    mine.word = says != 0;
    unsigned long long there, votes = 0;
    const Brought *all = exchange(mine, there);
    for (unsigned lane = 0; lane < WAVE; lane++) votes |= (unsigned long long)all[lane].word << lane;
    return votes & there;
}

// mma.m16n8k16 (PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type"): with g = lane / 4 and t = lane
// % 4, words of the left side hold rows g (words 0 and 2) and g + 8 at depths 2t, 2t + 1 (words 0 and 1) and 8 further
// on; of the right side column g at the same depths; sums rows g and g + 8, columns 2t and 2t + 1.
void emulated_mma_16x8x16(const unsigned *a, const unsigned *b, float *sums, float (*value)(unsigned short)) {
    Brought mine = {'m'};
    std::memcpy(mine.words, a, 16);
    std::memcpy(mine.words + 4, b, 8);
    unsigned lane = current % WAVE, g = lane / 4, t = lane % 4;
    unsigned long long there;
    const Brought *all = exchange(mine, there);
    if (WAVE != 32 || there != 0xffffffffull) fail("a matrix product of a warp that some lanes have left");
    auto half = [&](std::uint32_t word, unsigned depth) { return value((unsigned short)(word >> (16 * (depth & 1)))); };
    for (unsigned v = 0; v < 4; v++) {
        unsigned upper = v / 2, column = 2 * t + v % 2;
        double sum = sums[v];
        for (unsigned depth = 0; depth < 16; depth++) {
            unsigned of = depth % 8 / 2, late = depth / 8;
            sum += (double)half(all[4 * g + of].words[upper + 2 * late], depth) *
                   half(all[4 * column + of].words[4 + late], depth);
        }
        sums[v] = (float)sum;
    }
}

// v_mfma_f32_32x32x8: with l the lane and j = 0 .. 3, the left side's row l % 32 and the right side's column l % 32 at
// depth 4 (l / 32) + j; of the result, with v = 0 .. 15, column l % 32 at row 8 (v / 4) + 4 (l / 32) + v % 4 (AMD,
// matrix instruction calculator; CDNA 2 ISA, chapter 7).
void emulated_product_32x32x8(const float *a, const float *b, float *sums) {
    Brought mine = {'p'};
    std::memcpy(mine.a, a, sizeof mine.a);
    std::memcpy(mine.b, b, sizeof mine.b);
    unsigned lane = current % WAVE;
    unsigned long long there;
    const Brought *all = exchange(mine, there);
    if (there != ~0ull) fail("a matrix product of a wave that some lanes have left");
    for (unsigned v = 0; v < 16; v++) {
        unsigned row = 8 * (v / 4) + 4 * (lane / 32) + v % 4, column = lane % 32;
        for (unsigned depth = 0; depth < 8; depth++)
            sums[v] += all[row + 32 * (depth / 4)].a[depth % 4] * all[column + 32 * (depth / 4)].b[depth % 4];
    }
}
}
