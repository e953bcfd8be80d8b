// CallSampler: a tracer that some calls are handed to before they run. Most calls count down and run as if it were not there; the one
// that is due goes to Python with its Plan and its arguments, and Python runs it.
#pragma once
#include "locks.hpp"

namespace backline {

struct CallSampler {
    PyObject_HEAD
    PyObject *run;              // run(this, operation, plan, args, kwargs) -> the result of the call
    PyObject *outer;            // who listens to the calls: a tracer, another CallSampler, or None
    std::atomic<int64_t> left;  // calls until the one that is due, itself included
    char every_call;            // whether all are due

    // Whether this call is due: no two threads have the same. Below zero until `after` says when the next one is.
    bool take_turn() {
        if (every_call) return true;
        if constexpr (kFreeThreaded) return left.fetch_sub(1, std::memory_order_relaxed) == 1;
        const int64_t now = left.load(std::memory_order_relaxed);
        left.store(now - 1, std::memory_order_relaxed);
        return now == 1;
    }
};

extern PyTypeObject CallSamplerType;
inline bool is_call_sampler(PyObject *o) { return Py_TYPE(o) == &CallSamplerType; }

// Takes the samplers off `tracer`, the one found for a call: what is left listens to its Event, nullptr for nobody. Returns the sampler
// that the call is due for, or nullptr; a call that does not count is due for none, and one that a sampler makes itself not for that.
Ref due_sampler(Ref &tracer, bool counts);

// The result of a call that is due.
PyObject *call_by_sampler(PyObject *sampler, PyObject *operation, PyObject *plan, PyObject *const *args, size_t nargsf, PyObject *kwnames);

}  // namespace backline
