// The parts of backline._exchange: each adds its functions to the module.
#pragma once
#include "../_core/python.hpp"  // first: with the C library's headers comes __GLIBC__

#include <chrono>
#include <cstdint>

// Which function an object calls is kept in its table of addresses: known and tested for these.
#if defined(__linux__) && defined(__GLIBC__) && (defined(__x86_64__) || defined(__aarch64__))
#define BACKLINE_HAS_EXCHANGE 1
#else
#define BACKLINE_HAS_EXCHANGE 0
#endif

namespace backline {

int add_loaded_objects(PyObject *module);
int add_size_shims(PyObject *module);
int add_narrow_calls(PyObject *module);
int add_call_table(PyObject *module);
int add_call_recorder(PyObject *module);
int add_timed_calls(PyObject *module);

// Nanoseconds of a clock that only goes forward.
inline int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace backline
