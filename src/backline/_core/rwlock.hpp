// A reader-writer lock for a library. Calls of the library are readers. Some settings of a library hold for the whole process; a thread
// that needs another value than the others is a writer: it waits for the calls under way and has the library to itself meanwhile.
#pragma once
#include "common.hpp"

#include <atomic>

namespace backline {

extern int forks;  // how many forks lie between the first process and this one

// All but `readers` changes with the GIL held only, so a call that holds the GIL from wait_for_writer() to its end need not be counted.
struct ReadWriteLock {
    PyObject_HEAD
    unsigned long writer;      // the thread that has it to itself, or 0
    int depth;                 // how often that thread acquired it
    int forks_seen;            // a forked child starts anew: it has none of the threads that were reading
    std::atomic<int> readers;  // calls that are under way without the GIL

    // Waits, without the GIL, while another thread is the writer. The library comes next: nothing may let the GIL go in between.
    void wait_for_writer() {
        if (writer || forks_seen != forks) wait();
    }
    void wait();
};

extern PyTypeObject ReadWriteLockType;

}  // namespace backline
