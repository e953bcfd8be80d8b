// Shared by every source file of the compiled core: the NumPy C API import rules and small helpers.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL backline_core_ARRAY_API
#ifndef BACKLINE_IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

namespace backline {

// Whether the interpreter is finalizing.
inline bool ending() {
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing();
#else
    return _Py_IsFinalizing();
#endif
}

// An owned reference. Only where a function has several exits; straight-line code counts by hand. It lets go of nothing while the
// interpreter is finalizing: a thread that Python ends then unwinds its stack without holding the GIL.
struct Decref {
    template <class T>
    void operator()(T *o) const {
        if (o && !ending()) Py_DECREF(reinterpret_cast<PyObject *>(o));
    }
};
template <class T>
using Owned = std::unique_ptr<T, Decref>;
using Ref = Owned<PyObject>;

// Each adds what its source file has to the module; -1 with an exception set.
int add_boundary(PyObject *module);
int add_scope_state_type(PyObject *module);
int add_team(PyObject *module);
int add_thread_count_guard_type(PyObject *module);
int add_rwlock_type(PyObject *module);
int add_plan_types(PyObject *module);
int add_operation_types(PyObject *module);
int add_memo(PyObject *module);
int add_array_types(PyObject *module);
int add_pool(PyObject *module);
int add_services(PyObject *module);
int add_ended_threads(PyObject *module);

}  // namespace backline
