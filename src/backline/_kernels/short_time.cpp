// What a short-time Fourier transform does beside the transforms: frames of signals times a window, and squared magnitudes of spectra.
// Each product and each sum is rounded, as NumPy has them: results do not depend on instructions or threads.
#include "arrays.hpp"
#include "kernels.hpp"
#include "targets.hpp"

#include <algorithm>

namespace backline {
namespace {

constexpr int64_t kShare = 1 << 14;  // elements that are worth a thread

template <class T>
BACKLINE_INLINE void multiply(const T *x, const T *window, T *to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = x[i] * window[i];
}

template <class T>
BACKLINE_INLINE void squares(const T *x, T *to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        const T real = x[2 * i], imaginary = x[2 * i + 1];
        to[i] = real * real + imaginary * imaginary;
    }
}

// An array of so many axes and of a dtype, dense, which can be written to where that is wanted.
PyArrayObject *dense(PyObject *o, int axes, int type, bool written) {
    PyArrayObject *x = as<PyArrayObject>(o);
    if (!PyArray_Check(o) || PyArray_NDIM(x) != axes || PyArray_TYPE(x) != type || !PyArray_ISALIGNED(x) || !PyArray_ISNOTSWAPPED(x) ||
        !PyArray_IS_C_CONTIGUOUS(x) || (written && !PyArray_ISWRITEABLE(x)))
        throw python_error(PyExc_ValueError, "a dense array of another dtype or number of axes is needed");
    return x;
}

int type_of(PyObject *o, int one, int other) {
    const int type = PyArray_Check(o) ? PyArray_TYPE(as<PyArrayObject>(o)) : one;
    if (type != one && type != other) throw python_error(PyExc_ValueError, "an array of another dtype is needed");
    return type;
}

void check_level(int level) {
    if (level < 0 || level >= kLevels) throw python_error(PyExc_ValueError, "a level is 0, 1 or 2");
}

void windowed_frames(PyObject *signals, PyObject *given, PyObject *target, int64_t frames, int64_t hop, int64_t first, int level, int threads) {
    const int type = type_of(signals, NPY_FLOAT32, NPY_FLOAT64);
    PyArrayObject *x = dense(signals, 2, type, false), *window = dense(given, 1, type, false), *to = dense(target, 2, type, true);
    check_level(level);
    const int64_t count = PyArray_DIM(x, 0), length = PyArray_DIM(x, 1), rows = PyArray_DIM(to, 0), points = PyArray_DIM(to, 1);
    if (points < 1 || PyArray_DIM(window, 0) != points || hop < 1 || frames < 1 || length < points || frames - 1 > (length - points) / hop ||
        first < 0 || rows > count * frames - first)
        throw python_error(PyExc_ValueError, "frames that the signals hold are needed");
    auto all = [&](auto *from, auto version) {
        using T = std::remove_cv_t<std::remove_pointer_t<decltype(from)>>;
        const T *factors = static_cast<const T *>(PyArray_DATA(window));
        T *result = static_cast<T *>(PyArray_DATA(to));
        checked(for_parts(rows, std::max<int64_t>(kShare / points, 1), threads, [&](int64_t start, int64_t some) {
            for (int64_t row = start; row < start + some; ++row) {
                const int64_t signal = (first + row) / frames, frame = (first + row) % frames;
                version(from + signal * length + frame * hop, factors, result + row * points, points);
            }
        }));
    };
    if (type == NPY_FLOAT32) all(static_cast<const float *>(PyArray_DATA(x)), Versions<multiply<float>>::table[level]);
    else all(static_cast<const double *>(PyArray_DATA(x)), Versions<multiply<double>>::table[level]);
}

void squared_magnitudes(PyObject *spectra, PyObject *target, int level, int threads) {
    const int type = type_of(spectra, NPY_COMPLEX64, NPY_COMPLEX128);
    const bool single = type == NPY_COMPLEX64;
    PyArrayObject *x = dense(spectra, 2, type, false), *to = dense(target, 2, single ? NPY_FLOAT32 : NPY_FLOAT64, true);
    check_level(level);
    if (PyArray_SIZE(x) != PyArray_SIZE(to)) throw python_error(PyExc_ValueError, "as many elements to write to are needed");
    auto all = [&](auto *from, auto *result, auto version) {
        checked(for_parts(PyArray_SIZE(x), kShare, threads,
                          [&](int64_t start, int64_t some) { version(from + 2 * start, result + start, some); }));
    };
    if (single) all(static_cast<const float *>(PyArray_DATA(x)), static_cast<float *>(PyArray_DATA(to)), Versions<squares<float>>::table[level]);
    else all(static_cast<const double *>(PyArray_DATA(x)), static_cast<double *>(PyArray_DATA(to)), Versions<squares<double>>::table[level]);
}

PyMethodDef methods[] = {
    function<windowed_frames>("windowed_frames",
                              "windowed_frames(x, window, to, frames, hop, first, level, threads): rows of `to` from frames of the rows of x."),
    function<squared_magnitudes>("squared_magnitudes", "squared_magnitudes(x, to, level, threads): real**2 + imag**2 of a dense array."),
    {}};

}  // namespace

int add_short_time(PyObject *module, PyObject *) { return PyModule_AddFunctions(module, methods); }

}  // namespace backline
