// Puts a library's thread count in force around a call.
#pragma once
#include "common.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>

namespace backline {

// How a library's thread count is set.
enum class GuardKind : int {
    local,    // holds for the calling thread; int set(int) returns the former value (MKL), or there is a get (OpenMP)
    process,  // void set(int), for the whole process: calls of one thread run together, all others alone (OpenBLAS)
    process64 // the same with a 64-bit argument (BLIS)
};

struct Monitor {
    std::mutex lock;
    std::condition_variable changed;
};

struct ThreadCountGuard {
    PyObject_HEAD
    void *set;
    void *get;  // or nullptr: int get() tells the count that a `set` of the local kind does not return
    GuardKind kind;
    std::unique_ptr<Monitor> monitor;
    int value;       // the count in force in the process; 0: not known
    int active;      // calls running under it
    int held;        // value while hold() is in force
    char stale;      // another program may have set a count: the next call sets its own again
    int waiting;     // calls that wait for another count
    uint64_t turns;  // how often the last call under a count has left
    std::atomic<uint64_t> calls;  // how often `set` was called; guards of the local kind count without a lock

    // Both are called without the GIL when the plan releases it. enter returns what leave has to be given.
    int enter(int threads);
    void leave(int former);
};

extern PyTypeObject ThreadCountGuardType;

}  // namespace backline
