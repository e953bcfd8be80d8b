// What the core offers to the other compiled module of the package, by a capsule: one thread team, one account of the calls under way.
#pragma once
#include <cstdint>

namespace backline {

constexpr const char *kServices = "backline._core.services";

struct Services {
    // Runs part(data, first, count) for consecutive parts of 0 .. total-1, on up to `threads` threads with at least `share` elements each.
    // Other Python threads may run meanwhile, unless total < share. Returns -1 with an exception set where the threads cannot be had.
    int (*for_parts)(int64_t total, int64_t share, int threads, void (*part)(void *data, int64_t first, int64_t count), void *data);
    // Sets Python's exception for the C++ exception that is being handled.
    void (*raise_current_exception)();
};

}  // namespace backline
