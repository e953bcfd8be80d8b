// Real numbers to int8 and uint8 and back, and the range of values that a scale is chosen for. Every result is defined to the last bit,
// and does not depend on instructions or threads.
//
// No product may be fused with the sum after it where that would save a rounding which the definition has: the functions where
// it would are compiled for instruction sets without fused operations (CMakeLists.txt says it to the compiler as well).
#include "arrays.hpp"
#include "kernels.hpp"
#include "rounding.hpp"

#include <algorithm>
#include <cmath>

namespace backline {
namespace {

// x / scale rounded to an integer as real numbers, ties to even: the definition. The quotient in float64 may be one away; the
// middles between integers times the scale are exact.
uint8_t exact_integer(double x, double scale, int64_t zero, int64_t low, int64_t high) {
    const double near = std::nearbyint(std::clamp(x / scale, -1024.0, 1024.0));  // further away it saturates anyway
    const double above = (near + 0.5) * scale, below = (near - 0.5) * scale;
    int64_t value = int64_t(near);
    const bool odd = value & 1;
    value += int64_t(x > above || (x == above && odd)) - int64_t(x < below || (x == below && odd));
    return uint8_t(std::clamp(value + zero, low, high));
}

BACKLINE_INLINE void to_integers(const float *x, uint8_t *to, int64_t count, double scale, int64_t zero, int64_t low, int64_t high) {
    const double inverse = 1.0 / scale, half = 0.5 * scale, least = double(low - zero), most = double(high - zero);
    for (int64_t start = 0; start < count; start += kBlock) {
        const int64_t size = std::min(kBlock, count - start);
        const float *from = x + start;
        uint64_t close = 0;  // its first bit: one is at the middle between two integers, or past it
        for (int64_t i = 0; i < size; ++i) {
            const double wide = from[i];
            double near = wide * inverse;
            near = near < -1024.0 ? -1024.0 : near;
            near = near > 1024.0 ? 1024.0 : near;
            near = (near + kMagic) - kMagic;
            const double left = half - std::fabs(wide - near * scale);  // exact, or negative by far
            const double matters = std::fabs(near) < 1024.0 ? left : 1.0;
            close |= uint64_t(bits_of(matters)) - 1;
            near = near < least ? least : near;
            near = near > most ? most : near;
            to[start + i] = uint8_t(uint64_t(bits_of(near + kMagic) + zero));
        }
        if (close >> 63)
            for (int64_t i = 0; i < size; ++i) to[start + i] = exact_integer(from[i], scale, zero, low, high);
    }
}

template <class T>
BACKLINE_INLINE void to_real(const T *x, float *to, int64_t count, float scale, int32_t zero) {
    for (int64_t i = 0; i < count; ++i) to[i] = float(int32_t(x[i]) - zero) * scale;  // rounded once
}

// Least and greatest as integers that are ordered as the numbers are; NaN is beyond the infinities.
BACKLINE_INLINE void range(const float *x, int64_t count, int32_t &low, int32_t &high) {
    int32_t least = low, most = high;
    for (int64_t i = 0; i < count; ++i) {
        int32_t bits;
        std::memcpy(&bits, x + i, sizeof bits);
        bits ^= (bits >> 31) & 0x7FFFFFFF;
        least = bits < least ? bits : least;
        most = bits > most ? bits : most;
    }
    low = least;
    high = most;
}

#define BACKLINE_LEVEL(name, target)                                                                                        \
    target void integers_##name(const float *x, uint8_t *to, int64_t c, double s, int64_t z, int64_t l, int64_t h) {         \
        to_integers(x, to, c, s, z, l, h);                                                                                   \
    }                                                                                                                        \
    target void real_u8_##name(const uint8_t *x, float *to, int64_t c, float s, int32_t z) { to_real(x, to, c, s, z); }      \
    target void real_i8_##name(const int8_t *x, float *to, int64_t c, float s, int32_t z) { to_real(x, to, c, s, z); }       \
    target void range_##name(const float *x, int64_t c, int32_t &l, int32_t &h) { range(x, c, l, h); }

BACKLINE_LEVEL(plain, )
#if defined(__x86_64__)
BACKLINE_LEVEL(avx2, __attribute__((target("avx2"))))
BACKLINE_LEVEL(avx512, __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))))
#endif

constexpr decltype(&integers_plain) integers_by_level[] = BACKLINE_LEVELS(integers);
constexpr decltype(&real_u8_plain) real_u8_by_level[] = BACKLINE_LEVELS(real_u8);
constexpr decltype(&real_i8_plain) real_i8_by_level[] = BACKLINE_LEVELS(real_i8);
constexpr decltype(&range_plain) range_by_level[] = BACKLINE_LEVELS(range);

constexpr int64_t kShare = 1 << 16;  // elements that are worth a thread

PyArrayObject *dense(PyObject *o, int type, int other) {
    PyArrayObject *array = reinterpret_cast<PyArrayObject *>(o);
    if (PyArray_Check(o) && (PyArray_TYPE(array) == type || PyArray_TYPE(array) == other) && PyArray_ISALIGNED(array) &&
        PyArray_ISNOTSWAPPED(array) && (PyArray_IS_C_CONTIGUOUS(array) || PyArray_IS_F_CONTIGUOUS(array)))
        return array;
    PyErr_SetString(PyExc_ValueError, "a dense array of another dtype or order is needed");
    return nullptr;
}

bool known(int level) {
    if (level >= 0 && level < kLevels) return true;
    PyErr_SetString(PyExc_ValueError, "a level is 0, 1 or 2");
    return false;
}

bool fits(PyArrayObject *x, PyArrayObject *to, int level) {
    if (PyArray_SIZE(x) == PyArray_SIZE(to) && PyArray_ISWRITEABLE(to)) return known(level);
    PyErr_SetString(PyExc_ValueError, "as many elements to write to are needed");
    return false;
}

PyObject *quantize(PyObject *, PyObject *args) {
    PyObject *source, *target;
    double scale;
    long long zero;
    int level, threads;
    if (!PyArg_ParseTuple(args, "OOdLii", &source, &target, &scale, &zero, &level, &threads)) return nullptr;
    PyArrayObject *x = dense(source, NPY_FLOAT32, NPY_FLOAT32), *to = x ? dense(target, NPY_UINT8, NPY_INT8) : nullptr;
    if (!to || !fits(x, to, level)) return nullptr;
    const bool sign = PyArray_TYPE(to) == NPY_INT8;
    const float *from = static_cast<const float *>(PyArray_DATA(x));
    uint8_t *out = static_cast<uint8_t *>(PyArray_DATA(to));
    const int64_t size = PyArray_SIZE(x), low = sign ? -128 : 0, high = sign ? 127 : 255;
    auto run = [&](int64_t first, int64_t count) {
        integers_by_level[level](from + first, out + first, count, scale, zero, low, high);
    };
    return for_parts(size, kShare, threads, run) ? Py_NewRef(Py_None) : nullptr;
}

PyObject *dequantize(PyObject *, PyObject *args) {
    PyObject *source, *target;
    double scale;
    int zero, level, threads;
    if (!PyArg_ParseTuple(args, "OOdiii", &source, &target, &scale, &zero, &level, &threads)) return nullptr;
    PyArrayObject *x = dense(source, NPY_UINT8, NPY_INT8), *to = x ? dense(target, NPY_FLOAT32, NPY_FLOAT32) : nullptr;
    if (!to || !fits(x, to, level)) return nullptr;
    const bool sign = PyArray_TYPE(x) == NPY_INT8;
    const char *from = static_cast<const char *>(PyArray_DATA(x));
    float *out = static_cast<float *>(PyArray_DATA(to));
    const int64_t size = PyArray_SIZE(x);
    auto run = [&](int64_t first, int64_t count) {
        if (sign) real_i8_by_level[level](reinterpret_cast<const int8_t *>(from) + first, out + first, count, float(scale), zero);
        else real_u8_by_level[level](reinterpret_cast<const uint8_t *>(from) + first, out + first, count, float(scale), zero);
    };
    return for_parts(size, kShare, threads, run) ? Py_NewRef(Py_None) : nullptr;
}

// Least and greatest, each at least 0 or at most 0; NaN if there is one.
PyObject *value_range(PyObject *, PyObject *args) {
    PyObject *source;
    int level;
    if (!PyArg_ParseTuple(args, "Oi", &source, &level)) return nullptr;
    PyArrayObject *x = dense(source, NPY_FLOAT32, NPY_FLOAT32);
    if (!x || !known(level)) return nullptr;
    int32_t low = 0, high = 0;
    const float *from = static_cast<const float *>(PyArray_DATA(x));
    const int64_t size = PyArray_SIZE(x);
    if (!for_parts(size, kShare, 1, [&](int64_t, int64_t count) { range_by_level[level](from, count, low, high); })) return nullptr;
    auto number = [](int32_t bits) {
        float value;
        bits ^= (bits >> 31) & 0x7FFFFFFF;
        std::memcpy(&value, &bits, sizeof value);
        return double(value);
    };
    return Py_BuildValue("dd", number(low), number(high));
}

PyMethodDef methods[] = {
    {"quantize", entry<quantize>, METH_VARARGS,
     "quantize(x, to, scale, zero, level, threads): float32 without NaN to uint8 or int8, of the same order in memory."},
    {"dequantize", entry<dequantize>, METH_VARARGS,
     "dequantize(x, to, scale, zero, level, threads): uint8 or int8 to float32, of the same order in memory."},
    {"value_range", entry<value_range>, METH_VARARGS,
     "value_range(x, level): the least and the greatest of 0 and the elements of a float32 array; NaN if one is."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_quantize(PyObject *module, PyObject *) { return PyModule_AddFunctions(module, methods); }

}  // namespace backline
