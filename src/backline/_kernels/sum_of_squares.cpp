// Sums of squares, for norms. They are kept in float64: squares of float32 neither overflow nor vanish there.
#include "arrays.hpp"
#include "kernels.hpp"

namespace backline {
namespace {

constexpr int kSums = 16;  // independent ones: the order is the same on every processor, and vectors hold several
constexpr npy_intp kLong = 1 << 14;  // elements for which other Python threads may run meanwhile

template <class T>
double sum_of_squares(const T *x, npy_intp n) {
    double sums[kSums] = {};
    npy_intp whole = n / kSums * kSums;
    for (npy_intp i = 0; i < whole; i += kSums)
        for (int j = 0; j < kSums; ++j) {
            double value = x[i + j];
            sums[j] += value * value;
        }
    for (npy_intp i = whole; i < n; ++i) sums[i - whole] += double(x[i]) * double(x[i]);
    for (int width = kSums / 2; width > 0; width /= 2)
        for (int j = 0; j < width; ++j) sums[j] += sums[j + width];
    return sums[0];
}

PyObject *squares(PyObject *, PyObject *argument) {
    if (!PyArray_Check(argument)) return PyErr_Format(PyExc_TypeError, "sum_of_squares() takes an array");
    auto *array = reinterpret_cast<PyArrayObject *>(argument);
    int type = PyArray_TYPE(array);
    bool single = type == NPY_FLOAT || type == NPY_CFLOAT, complex = type == NPY_CFLOAT || type == NPY_CDOUBLE;
    if (!(single || type == NPY_DOUBLE || type == NPY_CDOUBLE) || !PyArray_ISONESEGMENT(array) || !PyArray_ISBEHAVED_RO(array))
        Py_RETURN_NONE;
    const void *data = PyArray_DATA(array);
    npy_intp n = PyArray_SIZE(array) * (complex ? 2 : 1);
    double sum = 0;
    auto run = [&](int64_t, int64_t) {
        sum = single ? sum_of_squares(static_cast<const float *>(data), n) : sum_of_squares(static_cast<const double *>(data), n);
    };
    if (!for_parts(n, kLong, 1, run)) return nullptr;
    return PyFloat_FromDouble(sum);
}

PyMethodDef methods[] = {{"sum_of_squares", entry<squares>, METH_O,
                          "Sum of the squares of all elements, complex ones by their parts, in float64; None for an array of another dtype, "
                          "or whose elements have gaps or are out of line."},
                         {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_sum_of_squares(PyObject *module, PyObject *) { return PyModule_AddFunctions(module, methods); }

}  // namespace backline
