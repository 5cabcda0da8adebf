// What the checks share: numbers that repeat, 16-bit floats, and the verdict.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "emulator.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

// The type of a definition, as an element: bits and value.
struct bf16 {
    std::uint16_t bits;
    static bf16 of(float x) {
        std::uint32_t word;
        std::memcpy(&word, &x, 4);
        return {(std::uint16_t)((word + 0x7fff + (word >> 16 & 1)) >> 16)};
    }
    float value() const {
        std::uint32_t word = (std::uint32_t)bits << 16;
        float x;
        std::memcpy(&x, &word, 4);
        return x;
    }
};
struct f16 {
    std::uint16_t bits;
    static f16 of(float x) {
        _Float16 half = (_Float16)x;
        f16 y;
        std::memcpy(&y, &half, 2);
        return y;
    }
    float value() const {
        _Float16 half;
        std::memcpy(&half, &bits, 2);
        return (float)half;
    }
};
struct f32 {
    float x;
    static f32 of(float x) { return {x}; }
    float value() const { return x; }
};

// Between −1 and 1, the same in every run.
inline float unit() {
    static std::uint64_t state = 0x9e3779b97f4a7c15;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(state >> 33) / (1u << 30) - 1.);
}
template <typename T> std::vector<T> units(std::size_t count) {
    std::vector<T> values(count);
    for (T &value : values) value = T::of(unit());
    return values;
}

// The largest distance from what should be, in parts of what is allowed.
struct Verdict {
    double worst = 0;
    long count = 0;

    void compare(double found, double expected, double allowed, const char *where, long a, long b, long c) {
        double distance = std::fabs(found - expected) / allowed;
        count++;
        if (!(distance <= 1) && !(worst > 1))
            std::printf("%s %ld %ld %ld: %g, expected %g\n", where, a, b, c, found, expected);
        worst = std::isnan(distance) ? 1e30 : std::fmax(worst, distance);
    }
    int end(long least) const {
        std::printf("%ld values, worst %.3f of what is allowed\n", count, worst);
        return worst <= 1 && count >= least ? 0 : 1;
    }
};
