// The threads that a call may use beside what else keeps processors busy.
#pragma once
#include "common.hpp"

namespace backline {

// The threads that a call should use which may use `threads`, which are more than one; -1 with an exception set. Looks at the load,
// in Python, where that is due; else it costs reading a clock.
int shared_threads(int threads);

// Calls the operation again on so many threads. Returns NotImplemented, as a new reference, where the switches want all of them.
PyObject *call_on_fewer(PyObject *operation, PyObject *plan, int threads, PyObject *const *args, size_t nargsf, PyObject *kwnames);

}  // namespace backline
