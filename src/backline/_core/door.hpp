// A door in front of a library. Some settings of a library hold for the whole process; a thread that needs another value than the
// others closes the door: it waits for the calls that are inside, has the library to itself, and opens the door again.
#pragma once
#include "common.hpp"

#include <atomic>

namespace backline {

extern int forks;  // how many forks lie between the first process and this one

// All but `inside` changes with the GIL held only, so a call that holds the GIL from pass() to its end need not be counted.
struct Door {
    PyObject_HEAD
    unsigned long owner;      // the thread that closed it; 0 while it is open
    int depth;                // how often that thread closed it
    int forks_seen;           // in a forked child it starts anew: the threads that were inside are not there
    std::atomic<int> inside;  // calls that are under way without the GIL

    // Waits, without the GIL, until it is open to this thread. The library comes next: nothing may let the GIL go in between.
    void pass() {
        if (owner || forks_seen != forks) wait();
    }
    void wait();
};

extern PyTypeObject DoorType;

}  // namespace backline
