// Where a call reads which switches hold: one ContextVar whose value is a ScopeState, above a process-wide base Snapshot.
#pragma once
#include "locks.hpp"

namespace backline {

struct ScopeState {
    PyObject_HEAD
    PyObject *layers;    // tuple, innermost last: of the layer of the switches
    PyObject *base;      // the base Snapshot that `snapshot` was merged over
    PyObject *snapshot;  // what holds here
    PyObject *tracer;    // None, or called with every Event in this context
};

// False with an exception set. `tracer` is nullptr when nobody listens.
bool current_scope_state(Held &snapshot, Held &tracer);

Held process_wide_tracer();  // or nullptr: listens beside the context's own

}  // namespace backline
