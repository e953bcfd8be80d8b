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
    void operator()(PyObject *o) const {
        if (o && !ending()) Py_DECREF(o);
    }
};
using Ref = std::unique_ptr<PyObject, Decref>;

int add_boundary(PyObject *module);
int add_plan_types(PyObject *module);
int add_operation_types(PyObject *module);
int add_frame_type(PyObject *module);
int add_team_types(PyObject *module);
int add_door_type(PyObject *module);
int add_pool(PyObject *module);
int add_memo(PyObject *module);
int add_kinds(PyObject *module);
int add_attention(PyObject *module);
int add_columns(PyObject *module);
int add_gates(PyObject *module);
int add_quantized(PyObject *module);
int add_gradients(PyObject *module);
int add_rows(PyObject *module);
int add_squares(PyObject *module);
int add_transforms(PyObject *module);

}  // namespace backline
