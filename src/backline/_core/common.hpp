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
#include <vector>

namespace backline {

// An owned reference. Only where a function has several exits; straight-line code counts by hand.
struct Decref {
    void operator()(PyObject *o) const { Py_XDECREF(o); }
};
using Ref = std::unique_ptr<PyObject, Decref>;

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
