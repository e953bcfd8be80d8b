// Real numbers to int8 and uint8 and back, and the range of values that a scale is chosen for. Every result is defined to the last bit,
// and does not depend on instructions or threads.
//
// No product may be fused with the sum after it where that would save a rounding which the definition has: the functions where
// it would are compiled for instruction sets without fused operations (CMakeLists.txt says it to the compiler as well).
#include "arrays.hpp"
#include "kernels.hpp"
#include "rounding.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

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

// In float32, which does twice as many at once. False where some may be rounded to the wrong integer.
BACKLINE_INLINE bool to_integers_narrow(const float *x, uint8_t *to, int64_t count, float inverse, float least, float most, int32_t zero) {
    int32_t furthest = 0;  // from an integer: positive numbers are ordered as their bits are, and NaN comes last
    for (int64_t i = 0; i < count; ++i) {
        float value = x[i] * inverse;
        value = value < least ? least : value;
        value = value > most ? most : value;
        const float shifted = value + kMagic32;
        const int32_t off = bits_as<int32_t>(value - (shifted - kMagic32)) & 0x7FFFFFFF;
        furthest = off > furthest ? off : furthest;
        to[i] = uint8_t(bits_as<int32_t>(shifted) + zero);
    }
    return furthest < bits_as<int32_t>(kSure);
}

// False if there is NaN, for which no integer stands: only the blocks that float32 does not round for certain may hold one.
BACKLINE_INLINE bool to_integers(const float *x, uint8_t *to, int64_t count, double scale, int64_t zero, int64_t low, int64_t high) {
    const bool usual = scale > 0x1p-100 && scale < 0x1p100;  // so that its inverse in float32 has 24 bits
    const double inverse = 1.0 / scale, half = 0.5 * scale, least = double(low - zero), most = double(high - zero);
    for (int64_t start = 0; start < count; start += kBlock) {
        const int64_t size = std::min(kBlock, count - start);
        const float *from = x + start;
        if (usual && to_integers_narrow(from, to + start, size, float(inverse), float(least), float(most), int32_t(zero))) continue;
        bool number = true;
        for (int64_t i = 0; i < size; ++i) number &= from[i] == from[i];
        if (!number) return false;
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
    return true;
}

template <class T>
BACKLINE_INLINE void to_real(const T *x, float *to, int64_t count, float scale, int32_t zero) {
    for (int64_t i = 0; i < count; ++i) to[i] = float(int32_t(x[i]) - zero) * scale;  // rounded once
}

// Least and greatest as integers that are ordered as the numbers are; NaN is beyond the infinities.
BACKLINE_INLINE void range(const float *x, int64_t count, int32_t &low, int32_t &high) {
    int32_t least = low, most = high;
    for (int64_t i = 0; i < count; ++i) {
        int32_t bits = load<int32_t>(x + i);
        bits ^= (bits >> 31) & 0x7FFFFFFF;
        least = bits < least ? bits : least;
        most = bits > most ? bits : most;
    }
    low = least;
    high = most;
}

constexpr int64_t kShare = 1 << 16;  // elements that are worth a thread

PyArrayObject *dense(PyObject *o, int type, int other) {
    PyArrayObject *array = as<PyArrayObject>(o);
    if (PyArray_Check(o) && (PyArray_TYPE(array) == type || PyArray_TYPE(array) == other) && PyArray_ISALIGNED(array) &&
        PyArray_ISNOTSWAPPED(array) && (PyArray_IS_C_CONTIGUOUS(array) || PyArray_IS_F_CONTIGUOUS(array)))
        return array;
    throw python_error(PyExc_ValueError, "a dense array of another dtype or order is needed");
}

PyArrayObject *one_of(PyObject *o, int type) {
    PyArrayObject *array = dense(o, type, type);
    if (PyArray_SIZE(array) != 1 || !PyArray_ISWRITEABLE(array)) throw python_error(PyExc_ValueError, "one element to write to is needed");
    return array;
}

void check_level(int level) {
    if (level < 0 || level >= kLevels) throw python_error(PyExc_ValueError, "a level is 0, 1 or 2");
}

// The elements of an array that as many are written to.
template <class T>
T *data_for(PyArrayObject *to, PyArrayObject *x, int level) {
    if (PyArray_SIZE(x) != PyArray_SIZE(to) || !PyArray_ISWRITEABLE(to))
        throw python_error(PyExc_ValueError, "as many elements to write to are needed");
    check_level(level);
    return static_cast<T *>(PyArray_DATA(to));
}

bool quantize(PyObject *source, PyObject *target, double scale, int64_t zero, int level, int threads) {
    PyArrayObject *x = dense(source, NPY_FLOAT32, NPY_FLOAT32), *to = dense(target, NPY_UINT8, NPY_INT8);
    uint8_t *out = data_for<uint8_t>(to, x, level);
    const bool sign = PyArray_TYPE(to) == NPY_INT8;
    const float *from = static_cast<const float *>(PyArray_DATA(x));
    const int64_t low = sign ? -128 : 0, high = sign ? 127 : 255;
    std::atomic<bool> numbers{true};
    checked(for_parts(PyArray_SIZE(x), kShare, threads, [&](int64_t first, int64_t count) {
        if (!Versions<to_integers>::table[level](from + first, out + first, count, scale, zero, low, high)) numbers = false;
    }));
    return numbers;
}

void dequantize(PyObject *source, PyObject *target, double scale, int zero, int level, int threads) {
    PyArrayObject *x = dense(source, NPY_UINT8, NPY_INT8), *to = dense(target, NPY_FLOAT32, NPY_FLOAT32);
    float *out = data_for<float>(to, x, level);
    auto convert = [&](auto *from, auto version) {
        checked(for_parts(PyArray_SIZE(x), kShare, threads,
                          [&](int64_t first, int64_t count) { version(from + first, out + first, count, float(scale), zero); }));
    };
    if (PyArray_TYPE(x) == NPY_INT8) convert(static_cast<const int8_t *>(PyArray_DATA(x)), Versions<to_real<int8_t>>::table[level]);
    else convert(static_cast<const uint8_t *>(PyArray_DATA(x)), Versions<to_real<uint8_t>>::table[level]);
}

// Least and greatest, each at least 0 or at most 0; NaN if there is one.
std::pair<double, double> extremes(PyArrayObject *x, int level) {
    check_level(level);
    int32_t low = 0, high = 0;
    const float *from = static_cast<const float *>(PyArray_DATA(x));
    checked(for_parts(PyArray_SIZE(x), kShare, 1, [&](int64_t, int64_t count) { Versions<range>::table[level](from, count, low, high); }));
    auto number = [](int32_t bits) { return double(bits_as<float>(bits ^ ((bits >> 31) & 0x7FFFFFFF))); };
    return {number(low), number(high)};
}

PyObject *value_range(PyObject *source, int level) {
    const auto [low, high] = extremes(dense(source, NPY_FLOAT32, NPY_FLOAT32), level);
    return Py_BuildValue("dd", low, high);
}

// The definition of quantized.observers.parameters_of_one, and integers by it.
bool quantize_by_range(
    PyObject *source, PyObject *target, PyObject *scale, PyObject *zero, int64_t least, int64_t most, double smallest, double largest,
    int level, int threads) {
    const auto [low, high] = extremes(dense(source, NPY_FLOAT32, NPY_FLOAT32), level);
    if (!std::isfinite(low) || !std::isfinite(high)) return false;
    const double steps = double(most - least), wide = low == 0 && high == 0 ? 1.0 : high / steps - low / steps;
    const float step = float(std::min(std::max(wide, smallest), largest));
    const int64_t first = std::clamp(least + int64_t(std::nearbyint(-low / double(step))), least, most);
    *static_cast<float *>(PyArray_DATA(one_of(scale, NPY_FLOAT32))) = step;
    *static_cast<int32_t *>(PyArray_DATA(one_of(zero, NPY_INT32))) = int32_t(first);
    return quantize(source, target, step, first, level, threads);
}

PyMethodDef methods[] = {
    function<quantize>("quantize",
                       "quantize(x, to, scale, zero, level, threads): float32 to uint8 or int8, of the same order in memory; False if "
                       "there is NaN."),
    function<quantize_by_range>("quantize_by_range",
                                "quantize_by_range(x, to, scale, zero, least, most, smallest, largest, level, threads): float32 to uint8 or "
                                "int8 by the range of its elements, and scale and zero point, each written to an array of one; False, and "
                                "nothing is written, if an element is not finite."),
    function<dequantize>("dequantize",
                         "dequantize(x, to, scale, zero, level, threads): uint8 or int8 to float32, of the same order in memory."),
    function<value_range>("value_range",
                          "value_range(x, level): the least and the greatest of 0 and the elements of a float32 array; NaN if one is."),
    {}};

}  // namespace

int add_quantize(PyObject *module, PyObject *) { return PyModule_AddFunctions(module, methods); }

}  // namespace backline
