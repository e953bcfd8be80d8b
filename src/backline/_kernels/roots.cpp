// Square roots in place, what is below 0 taken for 0: distances from squares that a product of matrices has given. Each is rounded once.
#include "arrays.hpp"
#include "kernels.hpp"
#include "targets.hpp"

#include <cmath>

namespace backline {
namespace {

constexpr int64_t kShare = 1 << 15;  // elements that are worth a thread

template <class T>
BACKLINE_INLINE void roots(T *x, int64_t count) {
    for (int64_t i = 0; i < count; ++i) x[i] = std::sqrt(x[i] <= 0 ? T(0) : x[i]);  // NaN stays
}

void clipped_roots(PyObject *given, int level, int threads) {
    PyArrayObject *x = as<PyArrayObject>(given);
    if (!PyArray_Check(given) || (PyArray_TYPE(x) != NPY_FLOAT32 && PyArray_TYPE(x) != NPY_FLOAT64) || !PyArray_ISALIGNED(x) ||
        !PyArray_ISNOTSWAPPED(x) || !PyArray_IS_C_CONTIGUOUS(x) || !PyArray_ISWRITEABLE(x))
        throw python_error(PyExc_ValueError, "a dense array of float32 or float64 that can be written to is needed");
    if (level < 0 || level >= kLevels) throw python_error(PyExc_ValueError, "a level is 0, 1 or 2");
    auto all = [&](auto *data, auto version) {
        checked(for_parts(PyArray_SIZE(x), kShare, threads, [&](int64_t first, int64_t count) { version(data + first, count); }));
    };
    if (PyArray_TYPE(x) == NPY_FLOAT32) all(static_cast<float *>(PyArray_DATA(x)), Versions<roots<float>>::table[level]);
    else all(static_cast<double *>(PyArray_DATA(x)), Versions<roots<double>>::table[level]);
}

PyMethodDef methods[] = {
    function<clipped_roots>("clipped_roots", "clipped_roots(x, level, threads): square roots in place, of 0 for what is below 0."), {}};

}  // namespace

int add_roots(PyObject *module, PyObject *) { return PyModule_AddFunctions(module, methods); }

}  // namespace backline
