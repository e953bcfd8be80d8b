// Where a call reads which switches hold: one ContextVar whose value is a ScopeState, above a process-wide base Snapshot.
#pragma once
#include "common.hpp"

namespace backline {

struct ScopeState {
    PyObject_HEAD
    PyObject *layers;    // tuple, innermost last: the switches floor's business
    PyObject *base;      // the base Snapshot that `snapshot` was merged over
    PyObject *snapshot;  // what holds here
    PyObject *tracer;    // None, or called with every Event in this context
};

// Borrowed references; false with an exception set. `tracer` is nullptr when nobody listens.
bool current_scope_state(PyObject **snapshot, PyObject **tracer);

PyObject *process_wide_tracer();  // borrowed, or nullptr: listens beside the context's own

}  // namespace backline
