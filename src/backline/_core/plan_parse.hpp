// What makes a PreparedCall of Python's description; every function returns false with a Python exception set.
#pragma once
#include "plan.hpp"

namespace backline {

inline bool fail(const char *text) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, text);
    return false;
}

inline bool is_tuple(PyObject *o, const char *text) {
    if (PyTuple_Check(o)) return true;
    PyErr_Format(PyExc_TypeError, "%s, not %.100s", text, Py_TYPE(o)->tp_name);
    return false;
}

// Buffers, groups, results and overlaps; the number of arguments and the size of an info must be known by then.
bool parse_plan(PreparedCall *plan, PyObject *buffers, PyObject *groups, PyObject *results, PyObject *overlaps);

// More groups over the buffers that are there.
bool parse_groups(PreparedCall *plan, PyObject *groups, std::vector<Group> *into);

}  // namespace backline
