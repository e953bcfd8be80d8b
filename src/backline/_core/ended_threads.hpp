// What a fork has to know of threads that run library code; see ended_threads.cpp.
#pragma once
#include "common.hpp"

namespace backline {

void note_this_thread();

// Called by each Plan: the first one of a thread puts the thread on record.
inline void note_thread() {
    static thread_local bool noted = false;
    if (!noted) noted = true, note_this_thread();
}

}  // namespace backline
