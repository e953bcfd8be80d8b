// The clock that intervals are measured with.
#pragma once
#include <chrono>
#include <cstdint>

namespace backline {

inline int64_t wall_time() {  // nanoseconds
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace backline
