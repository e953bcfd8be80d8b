// What makes a PreparedCall of Python's description; every function throws where Python's exception is set.
#pragma once
#include "plan.hpp"

namespace backline {

[[noreturn]] inline void fail(const char *text) { throw python_error(PyExc_ValueError, "%s", text); }

inline void need_tuple(PyObject *o, const char *text) {
    if (!PyTuple_Check(o)) throw python_error(PyExc_TypeError, "%s, not %.100s", text, Py_TYPE(o)->tp_name);
}

// Buffers, groups, results and overlaps; the number of arguments and the size of an info must be known by then.
void parse_plan(PreparedCall *plan, PyObject *buffers, PyObject *groups, PyObject *results, PyObject *overlaps);

// More groups over the buffers that are there.
void parse_groups(PreparedCall *plan, PyObject *groups, std::vector<Group> *into);

}  // namespace backline
