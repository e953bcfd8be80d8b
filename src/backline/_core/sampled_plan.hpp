// SampledPlan: a Plan of which some calls are timed, for learning while running. Most calls run it and count down; the call that is due
// runs what shall be tried instead, takes the time, and tells Python, which says what the next one runs and when it comes.
#pragma once
#include "locks.hpp"

namespace backline {

struct SampledPlan {
    PyObject_HEAD
    ObjectSlot plan, next;      // what calls run, and what the one that is timed runs
    PyObject *sampler;          // sampler(this, plan, calls, wall, cpu, interruptions) after a timed call
    std::atomic<int64_t> left;  // calls until the one that is timed, itself included
    std::atomic<int64_t> period;  // as `left` was set last
    char repeatable;            // whether a call may be run again where what was tried fails: inputs are not overwritten

    // Whether this call is the one to time: no two threads have the same. Below zero while that one runs.
    bool take_turn() {
        if constexpr (kFreeThreaded) return left.fetch_sub(1, std::memory_order_relaxed) == 1;
        const int64_t now = left.load(std::memory_order_relaxed);
        left.store(now - 1, std::memory_order_relaxed);
        return now == 1;
    }
    void rest(int64_t calls) {
        period.store(calls, std::memory_order_relaxed);
        left.store(calls, std::memory_order_relaxed);
    }
};

extern PyTypeObject SampledPlanType;
inline bool is_sampled(PyObject *o) { return Py_TYPE(o) == &SampledPlanType; }

// Nanoseconds that one call took: wall time and processor time of the calling thread; and how often that thread lost its processor.
class Stopwatch {
  public:
    template <class Run>
    PyObject *time(const Run &run) {
        start();
        PyObject *result = run();
        stop();
        return result;
    }
    int64_t wall = 0, cpu = 0, interruptions = 0;

  private:
    void start();
    void stop();
};

// Tells the sampler of a call; `wall` is -1 if what was tried failed. False with an exception set, which only one that is to end the
// program is; others are reported, and the plan is not sampled any more.
bool tell_sampler(SampledPlan *self, PyObject *tried, int64_t calls, const Stopwatch &watch);

// Runs a call: `once(plan, stopwatch)` runs a Plan on its arguments, and times it where there is a stopwatch.
template <class Once>
PyObject *run_sampled(SampledPlan *self, const Once &once) {
    Ref plan(Py_XNewRef(self->plan.get().get()));
    if (!self->take_turn()) return once(plan.get(), nullptr);
    Ref tried(Py_XNewRef(self->next.get().get()));
    if (!tried) tried.reset(Py_NewRef(plan.get()));
    const int64_t calls = self->period.load(std::memory_order_relaxed) - self->left.load(std::memory_order_relaxed);
    Stopwatch watch;
    Ref result(once(tried.get(), &watch));
    if (!result && tried != plan && self->repeatable && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
        result.reset(once(plan.get(), nullptr));  // what the caller sees is what its choice does
        watch.wall = -1;
    }
    if (result && !tell_sampler(self, tried.get(), calls, watch)) return nullptr;
    if (self->left.load(std::memory_order_relaxed) <= 0) self->rest(self->period.load(std::memory_order_relaxed));
    return result.release();
}

}  // namespace backline
