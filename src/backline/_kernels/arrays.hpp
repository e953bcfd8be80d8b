// For the functions that Python calls with arrays: NumPy's C API, and work in parts on the core's thread team.
#pragma once
#include "../_core/numpy_api.hpp"
#include "kernels.hpp"

namespace backline {

// Services::for_parts for run(first, count); false with an exception set.
template <class Run>
bool for_parts(int64_t total, int64_t share, int threads, const Run &run) {
    auto part = [](void *data, int64_t first, int64_t count) { (*static_cast<const Run *>(data))(first, count); };
    return services->for_parts(total, share, threads, part, const_cast<Run *>(&run)) == 0;
}

}  // namespace backline
