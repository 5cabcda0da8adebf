// all_reduce and all_reduce_norm between ranks that are processes over one memory, call after call: bit by bit the sum
// in rank order, among it words that mean "empty" to the kernel; ranks that run other entry points; and afterwards a
// memory whose windows are empty and whose calls are counted.
#include "checks.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

using u64 = unsigned long long;
using u8 = unsigned char;

#define GROUP                                                                                                       \
    unsigned rank, void *calls, void *host, u64 limit, u64 window, u8 *r0, u8 *r1, u8 *r2, u8 *r3, u8 *r4, u8 *r5,  \
        u8 *r6, u8 *r7
extern "C" void all_reduce_vector(const void *input, void *out, unsigned count, GROUP);
extern "C" void all_reduce_scalar(const void *input, void *out, unsigned count, GROUP);
extern "C" void all_reduce_norm_1(void *x, const float *weight, void *out, u64 out_stride, unsigned rows,
                                  unsigned width, float eps, float weight_offset, const u8 *ahead, u64 ahead_stride,
                                  unsigned ahead_rows, unsigned ahead_bytes, unsigned row_blocks, GROUP);

constexpr u64 WINDOW = 64 << 10, HEAD = 256, MEMORY = HEAD + 2 * RANKS * WINDOW;
constexpr unsigned PER_UNIT = 16 / sizeof(ACT), THREADS = 128;

static u8 *memory[8];

// What rank r gives at call n. Some words mean "empty", some halves of words.
static ACT given(unsigned r, unsigned n, unsigned i) {
    unsigned seed = (i * 2654435761u) ^ (n * 40503u + r * 977u) * 2246822519u;
    ACT value = ACT::of((float)(int)(seed >> 9) / (1 << 20) - 4.f);
    if (seed % 61 == 0) std::memset(&value, 0xff, sizeof value);
    if (n % 3 == 0 && i / PER_UNIT % 5 == 2) std::memset(&value, 0xff, sizeof value);
    return value;
}

static float summed(unsigned n, unsigned i) {
    float sum = given(0, n, i).value();
    for (unsigned r = 1; r < RANKS; r++) sum += given(r, n, i).value();
    return sum;
}

static bool same(ACT found, float sum) {
    ACT expected = ACT::of(sum);
    return std::isnan(sum) ? std::isnan(found.value()) : std::memcmp(&found, &expected, sizeof found) == 0;
}

#define OWN                                                                                                          \
    rank, memory[rank], host, 1ull << 60, WINDOW, at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)

static int work(unsigned rank) {
    static u64 words[1];
    void *host = words;
    auto at = [](unsigned r) { return r < RANKS ? memory[r] + HEAD : nullptr; };
    long wrong = 0, compared = 0;
    const unsigned counts[] = {1, 8, 4096, 9, 1000, 4096, 3, 2048};
    unsigned n = 0;
    for (; n < 40; n++) {
        unsigned count = counts[n % 8];
        alignas(16) static ACT x[4096 + 16], out[4096 + 16];
        // One element on, where the scalar entry point takes it.
        ACT *input = x + (n % 5 == 4);
        for (unsigned i = 0; i < count; i++) input[i] = given(rank, n, i);
        bool in_place = n % 2 == 0;
        ACT *result = in_place ? input : out;
        unsigned width = 512, rows = count / width;
        // A block of all: ranks that run other entry points have other grids.
        bool norm = n % 8 == 2 && input == x, mixed = n % 16 == 10;
        if (norm && (!mixed || rank == 0)) {
            static float weight[512];
            for (float &w : weight) w = 1.f;
            unsigned row_blocks = mixed ? 1 : 3;
            launch(row_blocks + 2, 1, 64 * (width / PER_UNIT / 64), [&] {
                all_reduce_norm_1(x, weight, out, width, rows, width, 1e-5f, 0.f, nullptr, 0, 0, 0, row_blocks, OWN);
            });
            result = x;
            for (unsigned row = 0; row < rows; row++) {
                double squares = 0;
                for (unsigned i = 0; i < width; i++) squares += std::pow((double)x[row * width + i].value(), 2);
                for (unsigned i = 0; i < width; i++) {
                    double expected = x[row * width + i].value() / std::sqrt(squares / width + 1e-5);
                    double found = out[row * width + i].value();
                    double distance = std::fabs(found - expected), allowed = 1e-2 * std::fabs(expected) + 1e-6;
                    bool right = std::isnan(expected) ? std::isnan(found) : distance <= allowed;
                    wrong += !right, compared++;
                }
            }
        } else {
            unsigned grid = norm ? 1 : std::min((count + PER_UNIT * THREADS - 1) / (PER_UNIT * THREADS), 3u);
            bool aligned = input == x;
            launch(grid, 1, THREADS, [&] {
                if (aligned)
                    all_reduce_vector(input, result, count, OWN);
                else
                    all_reduce_scalar(input, result, count, OWN);
            });
        }
        for (unsigned i = 0; i < count; i++) {
            bool right = same(result[i], summed(n, i));
            if (!right && !wrong)
                std::printf("rank %u call %u element %u of %u: %g, expected %g\n", rank, n, i, count,
                            result[i].value(), summed(n, i));
            wrong += !right, compared++;
        }
    }
    const unsigned *calls = (const unsigned *)memory[rank];
    if (calls[0] != n || calls[1] || calls[2]) {
        std::printf("rank %u after %u calls: %u counted, dead %u, arrived %u\n", rank, n, calls[0], calls[1], calls[2]);
        wrong++;
    }
    for (u64 i = HEAD; i < MEMORY; i++)
        if (memory[rank][i] != 0xff) {
            std::printf("rank %u: byte %llu of its windows is not empty\n", rank, i - HEAD);
            wrong++;
            break;
        }
    std::fflush(stdout);
    return wrong || compared < 10000;
}

int main() {
    alarm(100);
    for (unsigned r = 0; r < RANKS; r++) {
        void *made = mmap(nullptr, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        memory[r] = (u8 *)made;
        std::memset(memory[r], 0xff, MEMORY);
        std::memset(memory[r], 0, HEAD);
    }
    for (unsigned r = 0; r < RANKS; r++)
        if (fork() == 0) _exit(work(r));
    int failed = 0;
    for (unsigned r = 0; r < RANKS; r++) {
        int status = 0;
        wait(&status);
        failed += status != 0;
    }
    std::printf("%u ranks, %d of them wrong\n", RANKS, failed);
    return failed != 0;
}
