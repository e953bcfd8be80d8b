// Threads. A Team runs jobs on the process's one OpenMP runtime; a Gate puts a library's thread count in force around a call.
#pragma once
#include "common.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>

namespace backline {

using Job = void (*)(int index, void *data);

// No call may use more threads than this; libraries keep tables of their threads, of fixed sizes.
constexpr int kMostThreads = 1024;

// Thrown where the system does not let this process have so many threads.
struct TooManyThreads {
    int wanted, started, error;
};

// Starts so many threads, once, and throws TooManyThreads if that fails: libraries end the process when a thread of theirs cannot
// be started. Comes before the first call on more threads than any before it.
void require_threads(int threads);

// Runs job(0 .. count-1) on the bound OpenMP runtime. Falls back to plain threads where none is bound or where the runtime grants
// fewer threads than jobs. With `together` the jobs wait for one another: all of them run at the same time.
void run_jobs(int count, Job job, void *data, bool together);

// Before a call on so many threads of the team: keep the team's sleeping threads off the processor of this thread. A kernel that
// takes a halted virtual processor for a busy one wakes them right here, where this thread then spins waiting for them: until the
// next clock tick, 4 ms later, neither gets anywhere. Does nothing once they are where they should be.
void keep_apart(int threads);

int team_limit();  // 1 in a forked child, whose inherited OpenMP team is dead

// How a library's thread count is set.
enum class GateKind : int {
    local,    // holds for the calling thread; int set(int) returns the former value (MKL), or there is a get (OpenMP)
    process,  // void set(int), for the whole process: calls of one thread run together, all others alone (OpenBLAS)
    process64 // the same with a 64-bit argument (BLIS)
};

struct Gate {
    PyObject_HEAD
    void *set;
    void *get;  // or nullptr: int get() tells the count that a `set` of the local kind does not return
    GateKind kind;
    std::mutex *lock;
    std::condition_variable *changed;
    int value;   // what is in force process-wide; 0: not known
    int active;  // calls running under it
    int held;    // value while hold() is in force
    int waiting;       // calls that wait for another count
    uint64_t turns;    // how often the last call under a count has left
    std::atomic<uint64_t> calls;  // local gates count without a lock

    // Both are called without the GIL when the plan releases it. enter returns what leave has to be given.
    int enter(int threads);
    void leave(int former);
};

extern PyTypeObject GateType;

}  // namespace backline
