// A device of waves of 64 lanes on the processor: blocks one after the other, each thread a fiber that runs until its
// lanes must meet.
#pragma once
#include <functional>

// Runs `kernel` once for every thread of every block. Ends the process with a message when lanes that must meet do not.
void launch(unsigned grid_x, unsigned grid_y, unsigned threads, const std::function<void()> &kernel,
            unsigned grid_z = 1);
