// Fourier transforms along one axis by the compiled float64 loops of NumPy's own, called below its ufuncs: no plan is made for a length, so
// that the first transform of a length takes no longer than the others.
#include "arrays.hpp"
#include "kernels.hpp"

#include <cmath>
#include <numpy/ufuncobject.h>

namespace backline {
namespace {

constexpr int kOuter = 3;  // axes of a batch

// Written by libraries/numpy/transform_loops.py: eight bytes for each field, in this order. Steps in bytes.
struct UfuncTransform {
    PyUFuncGenericFunction loop;
    void *data;
    int64_t normalisation;  // 0: the factor is 1; 1: 1 / sqrt(period); 2: 1 / period
    int64_t period;
    int64_t taken, points;  // elements of a line that are read, and that are written
    int64_t from_step, to_step;
    int64_t sizes[kOuter], from_outer[kOuter], to_outer[kOuter];
};

// Called with the GIL, which the loop takes for granted where it has no memory: it sets Python's exception then. Returns 1 for that.
int run(const UfuncTransform *t, char *from, char *to) {
    double factor = t->normalisation == 0 ? 1.0 : 1.0 / (t->normalisation == 1 ? std::sqrt(double(t->period)) : double(t->period));
    const npy_intp sizes[] = {npy_intp(t->sizes[kOuter - 1]), npy_intp(t->taken), npy_intp(t->points)};
    const npy_intp steps[] = {npy_intp(t->from_outer[kOuter - 1]), 0, npy_intp(t->to_outer[kOuter - 1]), npy_intp(t->from_step),
                              npy_intp(t->to_step)};
    for (int64_t i = 0; i < t->sizes[0]; ++i)
        for (int64_t j = 0; j < t->sizes[1]; ++j) {
            char *lines[] = {from + i * t->from_outer[0] + j * t->from_outer[1], reinterpret_cast<char *>(&factor),
                             to + i * t->to_outer[0] + j * t->to_outer[1]};
            t->loop(lines, sizes, steps, t->data);
        }
    if (!PyErr_Occurred()) return 0;
    PyErr_Clear();
    return 1;
}

// Addresses of the loop of a ufunc for arrays of these dtypes, by their numbers, and of what it is given; None without one.
PyObject *ufunc_loop(PyObject *ufunc, PyObject *dtypes) {
    Ref numpy(checked(PyImport_ImportModule("numpy"))), type(checked(PyObject_GetAttrString(numpy.get(), "ufunc")));
    const int is_one = PyObject_IsInstance(ufunc, type.get());
    if (is_one < 0) throw PythonError();
    char *wanted;
    Py_ssize_t count;
    checked(PyBytes_AsStringAndSize(dtypes, &wanted, &count) == 0);
    const PyUFuncObject *u = reinterpret_cast<const PyUFuncObject *>(ufunc);
    if (!is_one || !u->types || !u->functions || u->nargs != count) Py_RETURN_NONE;
    for (int i = 0; i < u->ntypes; ++i)
        if (u->functions[i] && !std::memcmp(u->types + i * count, wanted, size_t(count))) {
            Ref loop(checked(PyLong_FromVoidPtr(reinterpret_cast<void *>(u->functions[i]))));
            Ref data(checked(PyLong_FromVoidPtr(u->data ? u->data[i] : nullptr)));
            return PyTuple_Pack(2, loop.get(), data.get());
        }
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    function<ufunc_loop>("ufunc_loop", "Addresses of the loop of a ufunc for dtypes, as bytes of their numbers, and of its data; or None."), {}};

}  // namespace

int add_ufunc_transforms(PyObject *module, PyObject *addresses) {
    if (PyModule_AddFunctions(module, methods) < 0) return -1;
    return add_kernels(addresses, {kernel("transform_ufunc", run)});
}

}  // namespace backline
