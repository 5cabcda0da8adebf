// A device of warps of 32 lanes on the processor: blocks one after the other, each thread a fiber.
#pragma once
#include <functional>

// When asynchronous copies happen: at once (a copy into what is still read shows), or when they are waited for (a read
// before that shows).
extern bool copies_are_late;
// Runs `kernel` once for every thread of every block. Ends the process with a message when threads that must meet do
// not. Shared memory begins as bytes of NaN.
void launch(unsigned grid_x, unsigned grid_y, unsigned threads, const std::function<void()> &kernel);
