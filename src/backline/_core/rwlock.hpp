// A reader-writer lock for a library. Calls of the library are readers. Some settings of a library hold for the whole process; a thread
// that needs another value than the others is a writer: it waits for the calls under way and has the library to itself meanwhile.
#pragma once
#include "locks.hpp"

namespace backline {

extern std::atomic<int> forks;  // how many forks lie between the first process and this one

struct ReadWriteLock {
    PyObject_HEAD
    std::atomic<unsigned long> writer;  // the thread that has it to itself, or 0
    int depth;                          // how often that thread acquired it
    std::atomic<int> forks_seen;        // a forked child starts anew: it has none of the threads that were reading
    std::atomic<int> readers;           // calls that are under way without the GIL
    StateLock renewing;

    // Begins and ends a call that lets the GIL go; waits, without the GIL, while another thread is the writer.
    void begin_call();
    void end_call();

    // The same for a call that holds the GIL to its end. A writer needs the GIL, too, so such a call need not be counted; without a
    // GIL it is one like any other.
    void begin_short_call() {
        if constexpr (kFreeThreaded) begin_call();
        else if (writer.load(std::memory_order_relaxed) || forks_seen.load(std::memory_order_relaxed) != forks) wait();
    }
    void end_short_call() {
        if constexpr (kFreeThreaded) end_call();
    }

  private:
    void wait();
};

extern PyTypeObject ReadWriteLockType;

}  // namespace backline
