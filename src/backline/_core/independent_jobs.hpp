// Jobs that do not wait for one another: on the team, or here where the team sleeps and waking it would take longer.
#pragma once
#include "team.hpp"

#include <atomic>

namespace backline {

// Nanoseconds that one of several equal jobs took the last time; 0 until that is known. Several threads may write it.
class JobTime {
  public:
    explicit JobTime(int64_t known = 0) : value_(known) {}
    JobTime(const JobTime &other) noexcept : value_(other.get()) {}
    int64_t get() const { return value_.load(std::memory_order_relaxed); }
    void set(int64_t value) { value_.store(value, std::memory_order_relaxed); }

  private:
    std::atomic<int64_t> value_;
};

// Runs job(0 .. count-1), each of which takes about as long: with run_jobs, or one after the other in this thread. The results are the
// same. The latter while the team sleeps, as long as what several threads would have saved since it fell asleep is less than waking it.
void run_independent(int count, Job job, void *data, JobTime &took);

// Threads of the team have run for this thread: they are awake.
void team_ran();

// A library that was allowed several threads has run since `begin`, a wall_time(). Whether it used them it does not say: short problems
// are computed on one thread by most, so only of a long call it is believed that the team is awake.
void library_ran(int64_t begin);

}  // namespace backline
