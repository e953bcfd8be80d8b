// The thread team: runs jobs on the process's one OpenMP runtime.
#pragma once
#include "common.hpp"

namespace backline {

using Job = void (*)(int index, void *data);

// No call may use more threads than this; libraries keep tables of their threads, of fixed sizes.
constexpr int kMostThreads = 1024;
// The threads of larger teams are not known one by one: they run on machines where the place of one matters less.
constexpr int kMostApart = 64;

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

}  // namespace backline
