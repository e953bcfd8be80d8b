// From sums of int8 products to what they stand for: integers of another scale, or real numbers; and real numbers to integers.
// Plain functions over plain memory, which plans call by address as they call a vendor's. Every result is defined to the last bit,
// and does not depend on instructions or threads.
//
// No product may be fused with the sum after it where that would save a rounding which the definition has: the functions where
// it would are compiled for instruction sets without fused operations (CMakeLists.txt says it to the compiler as well).
#include "boundary.hpp"
#include "team.hpp"

#include <algorithm>
#include <cmath>

namespace backline {
namespace {

#define BACKLINE_INLINE inline __attribute__((always_inline))

// In the constant memory of a plan, one 64-bit integer after the other.
struct Layer {
    int64_t outs;        // outputs of a row: channels
    int64_t repeats;     // so many rows are treated as one, so that a row fills vectors
    int64_t terms;       // products in a sum
    int64_t many;        // 1: every output has a scale of its own
    int64_t many_zeros;  // 1: and a zero point
    int64_t compensate;  // 1: the zero point of the input is still in the sums
    int64_t groups;      // parts of the outputs that see the same inputs
    int64_t low, high;   // of the integers of the result
    int64_t level;       // of vector instructions: 0 what all have, 1 AVX2, 2 AVX-512
};

// Sums of products of what has no zero points left are below this, times the number of terms.
constexpr int64_t kProduct = 255 * 255;
constexpr int64_t kExact = int64_t(1) << 29;  // below it a sum times a factor of 24 bits is exact in 53
constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52: added to a number it leaves the nearest integer in the last bits

enum Mode : int64_t { kPlain, kChecked, kSlow };

// At the start of the workspace of one call. Behind it: outs * repeats factors, then as many int32 to be added to sums; or where
// the result is real, outs units, outs biases, and outs int32.
struct Numbers {
    int64_t mode;
    const float *input_scale, *weight_scale, *bias, *out_scale;
    const int32_t *input_zero, *weight_zero, *sums;
    int64_t zero;           // of the result
    int32_t window_added;   // to the sums of inputs that a weight's zero point is multiplied by
    int32_t padding[13];
};
static_assert(sizeof(Numbers) % 64 == 0, "what follows is aligned");

BACKLINE_INLINE double of_bits(int64_t bits) {
    double value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

BACKLINE_INLINE int64_t bits_of(double value) {
    int64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// Rounded to 24 bits, ties to even; positive, finite and not subnormal.
BACKLINE_INLINE double of_24_bits(double value) {
    const int64_t bits = bits_of(value);
    return of_bits((bits + 0x0FFFFFFF + ((bits >> 29) & 1)) & ~int64_t(0x1FFFFFFF));
}

// Rounded to an integer within int32, ties to even.
BACKLINE_INLINE double whole(double value) {
    value = value < -2147483648.0 ? -2147483648.0 : value;
    value = value > 2147483647.0 ? 2147483647.0 : value;
    return (value + kMagic) - kMagic;
}

BACKLINE_INLINE int32_t wrapped(int64_t value) { return int32_t(uint32_t(uint64_t(value))); }

BACKLINE_INLINE int32_t plus(int32_t a, int32_t b) { return int32_t(uint32_t(a) + uint32_t(b)); }

inline double unit_of(const Layer &g, const Numbers &n, int64_t o) {
    return double(*n.input_scale) * double(n.weight_scale[g.many ? o : 0]);
}

// What the zero point of the input has put into a sum, with the opposite sign.
inline int32_t missing(const Layer &g, const Numbers &n, int64_t o) {
    return g.compensate ? wrapped(-int64_t(*n.input_zero) * n.sums[o]) : 0;
}

// Factors and what is added, for a result of integers. Returns the largest magnitude of a bias.
template <bool Many, bool Biased, bool Compensated>
BACKLINE_INLINE double fill(const Layer &g, const Numbers &n, double *factors, int32_t *added) {
    const double input = *n.input_scale, output = *n.out_scale;
    const int64_t zero = Compensated ? -int64_t(*n.input_zero) : 0;
    int64_t most = 0;
    for (int64_t o = 0; o < g.outs; ++o) {
        const double unit = input * double(n.weight_scale[Many ? o : 0]);
        factors[o] = of_24_bits(unit / output);
        int32_t plus_bias = 0;
        if (Biased) {
            const double units = whole(double(n.bias[o]) / unit);
            plus_bias = wrapped(bits_of(units + kMagic));  // the last 32 bits are the integer
            const int64_t magnitude = bits_of(units < 0 ? -units : units);  // positive numbers are ordered as their bits are
            most = magnitude > most ? magnitude : most;
        }
        added[o] = Compensated ? plus(plus_bias, wrapped(zero * n.sums[o])) : plus_bias;
    }
    return of_bits(most);
}

BACKLINE_INLINE double fill_all(const Layer &g, const Numbers &n, double *factors, int32_t *added) {
    if (g.many) {
        if (n.bias) return g.compensate ? fill<true, true, true>(g, n, factors, added) : fill<true, true, false>(g, n, factors, added);
        return g.compensate ? fill<true, false, true>(g, n, factors, added) : fill<true, false, false>(g, n, factors, added);
    }
    if (n.bias) return g.compensate ? fill<false, true, true>(g, n, factors, added) : fill<false, true, false>(g, n, factors, added);
    return g.compensate ? fill<false, false, true>(g, n, factors, added) : fill<false, false, false>(g, n, factors, added);
}

// One sum to an integer, whatever it is: the definition.
int64_t exactly(const Layer &g, const Numbers &n, int64_t o, int32_t sum) {
    const double unit = unit_of(g, n, o), factor = of_24_bits(unit / double(*n.out_scale));
    const int64_t units = n.bias ? int64_t(whole(double(n.bias[o]) / unit)) : 0;
    const int64_t bits = bits_of(factor);
    // With a shift below 1 every sum but 0 is far outside any dtype, as with 1; with one above 62 nothing is left, as with 62.
    const int64_t shift = std::clamp<int64_t>(23 + 1023 - ((bits >> 52) & 0x7FF), 1, 62);
    const int64_t product = (int64_t(sum) + units) * ((int64_t(1) << 23) | ((bits >> 29) & 0x7FFFFF));
    int64_t result = product >> shift;
    const int64_t rest = product - result * (int64_t(1) << shift), half = int64_t(1) << (shift - 1);
    result += rest > half || (rest == half && (result & 1));
    return std::clamp(result + n.zero, g.low, g.high);
}

BACKLINE_INLINE void rescale(const Layer &g, const Numbers &n, const double *factors, const int32_t *added, const int32_t *sums,
                             uint8_t *to, int64_t count) {
    const double low = double(g.low - n.zero), high = double(g.high - n.zero);
    const int64_t zero = n.zero;
    for (int64_t j = 0; j < count; ++j) {
        double value = double(plus(sums[j], added[j])) * factors[j];
        value = value < low ? low : value;
        value = value > high ? high : value;
        to[j] = uint8_t(uint64_t(bits_of(value + kMagic) + zero));
    }
}

constexpr int64_t kBlock = 512;  // elements that are looked at together

// A row, or several that are treated as one; `first` is the output that its first element belongs to.
BACKLINE_INLINE void rescale_row(const Layer &g, const Numbers &n, const double *factors, const int32_t *added,
                                 const int32_t *sums, uint8_t *to, int64_t first, int64_t count) {
    if (n.mode == kPlain) return rescale(g, n, factors + first, added + first, sums, to, count);
    for (int64_t start = 0; start < count; start += kBlock) {
        const int64_t size = std::min(kBlock, count - start), at = first + start;
        int64_t large = n.mode == kSlow;
        if (!large)
            for (int64_t j = 0; j < size; ++j) {
                const int64_t sum = plus(sums[start + j], added[at + j]);
                large |= (sum >= kExact) | (sum <= -kExact);
            }
        if (!large) {
            rescale(g, n, factors + at, added + at, sums + start, to + start, size);
        } else {
            for (int64_t j = 0; j < size; ++j) {
                const int64_t o = (at + j) % g.outs;
                to[start + j] = uint8_t(exactly(g, n, o, plus(sums[start + j], missing(g, n, o))));
            }
        }
    }
}

// Sums of one row without what the zero points of the weights have put into them.
BACKLINE_INLINE void without_zeros(const Layer &g, const Numbers &n, const int32_t *sums, const int32_t *windows, int32_t *to,
                                   int64_t first, int64_t count) {
    const int64_t part = g.outs / g.groups;
    for (int64_t j = 0; j < count; ++j) {
        const int64_t o = first + j;
        const int32_t window = plus(windows[g.groups == 1 ? 0 : o / part], n.window_added);
        to[j] = wrapped(int64_t(sums[j]) - int64_t(n.weight_zero[g.many_zeros ? o : 0]) * window);
    }
}

BACKLINE_INLINE void finish_rows(const Layer &g, const Numbers &n, const int32_t *sums, const int32_t *windows, uint8_t *to,
                                 int64_t rows) {
    const double *factors = reinterpret_cast<const double *>(&n + 1);
    const int32_t *added = reinterpret_cast<const int32_t *>(factors + g.outs * g.repeats);
    if (windows) {
        int32_t block[kBlock];
        for (int64_t i = 0; i < rows; ++i, sums += g.outs, to += g.outs)
            for (int64_t start = 0; start < g.outs; start += kBlock) {
                const int64_t size = std::min(kBlock, g.outs - start);
                without_zeros(g, n, sums + start, windows + i * g.groups, block, start, size);
                rescale_row(g, n, factors, added, block, to + start, start, size);
            }
        return;
    }
    const int64_t all = rows * g.outs, wide = g.outs * g.repeats;
    for (int64_t start = 0; start < all; start += wide)
        rescale_row(g, n, factors, added, sums + start, to + start, 0, std::min(wide, all - start));
}

BACKLINE_INLINE void real_row(const double *units, const double *biases, const int32_t *added, const int32_t *sums, float *to,
                              int64_t count) {
    for (int64_t j = 0; j < count; ++j) {
        double value = double(plus(sums[j], added[j])) * units[j];
        if (biases) value = value + biases[j];
        to[j] = float(value);
    }
}

BACKLINE_INLINE void real_rows(const Layer &g, const Numbers &n, const int32_t *sums, const int32_t *windows, float *to,
                               int64_t rows) {
    const double *units = reinterpret_cast<const double *>(&n + 1), *biases = units + g.outs;
    const int32_t *added = reinterpret_cast<const int32_t *>(biases + g.outs);
    if (!n.bias) biases = nullptr;
    int32_t block[kBlock];
    for (int64_t i = 0; i < rows; ++i, sums += g.outs, to += g.outs)
        for (int64_t start = 0; start < g.outs; start += kBlock) {
            const int64_t size = std::min(kBlock, g.outs - start);
            const int32_t *from = sums + start;
            if (windows) {
                without_zeros(g, n, from, windows + i * g.groups, block, start, size);
                from = block;
            }
            const double *bias = biases ? biases + start : nullptr;
            real_row(units + start, bias, added + start, from, to + start, size);
        }
}

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

// The same source for every instruction set.

#define BACKLINE_LEVEL(name, target)                                                                                        \
    target double fill_##name(const Layer &g, const Numbers &n, double *f, int32_t *a) { return fill_all(g, n, f, a); }      \
    target void finish_##name(const Layer &g, const Numbers &n, const int32_t *s, const int32_t *w, uint8_t *to, int64_t r) { \
        finish_rows(g, n, s, w, to, r);                                                                                      \
    }                                                                                                                        \
    target void integers_##name(const float *x, uint8_t *to, int64_t c, double s, int64_t z, int64_t l, int64_t h) {         \
        to_integers(x, to, c, s, z, l, h);                                                                                   \
    }                                                                                                                        \
    target void real_u8_##name(const uint8_t *x, float *to, int64_t c, float s, int32_t z) { to_real(x, to, c, s, z); }      \
    target void real_i8_##name(const int8_t *x, float *to, int64_t c, float s, int32_t z) { to_real(x, to, c, s, z); }       \
    target void range_##name(const float *x, int64_t c, int32_t &l, int32_t &h) { range(x, c, l, h); }

BACKLINE_LEVEL(plain, )
void real_plain(const Layer &g, const Numbers &n, const int32_t *s, const int32_t *w, float *to, int64_t r) {
    real_rows(g, n, s, w, to, r);
}
#if defined(__x86_64__)
BACKLINE_LEVEL(avx2, __attribute__((target("avx2"))))
BACKLINE_LEVEL(avx512, __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))))
__attribute__((target("avx2"))) void real_avx2(const Layer &g, const Numbers &n, const int32_t *s, const int32_t *w, float *to,
                                               int64_t r) {
    real_rows(g, n, s, w, to, r);
}
#define BACKLINE_LEVELS(name) {name##_plain, name##_avx2, name##_avx512}
constexpr decltype(&real_plain) real_by_level[] = {real_plain, real_avx2, real_avx2};
#else
#define BACKLINE_LEVELS(name) {name##_plain, name##_plain, name##_plain}
constexpr decltype(&real_plain) real_by_level[] = {real_plain, real_plain, real_plain};
#endif

constexpr decltype(&fill_plain) fill_by_level[] = BACKLINE_LEVELS(fill);
constexpr decltype(&finish_plain) finish_by_level[] = BACKLINE_LEVELS(finish);
constexpr decltype(&integers_plain) integers_by_level[] = BACKLINE_LEVELS(integers);
constexpr decltype(&real_u8_plain) real_u8_by_level[] = BACKLINE_LEVELS(real_u8);
constexpr decltype(&real_i8_plain) real_i8_by_level[] = BACKLINE_LEVELS(real_i8);
constexpr decltype(&range_plain) range_by_level[] = BACKLINE_LEVELS(range);

// Called by plans ------------------------------------------------------------------------------------------------------

// What follows from the numbers of one call, once for all rows. `out_scale` and `out_zero` are nullptr for a real result,
// `weight_zero` where all are 0, `sums` (those of each output's weights) where nothing is to be compensated.
void quantized_numbers(const Layer *g, Numbers *n, const float *input_scale, const int32_t *input_zero, const float *weight_scale,
                       const int32_t *weight_zero, const float *bias, const float *out_scale, const int32_t *out_zero,
                       const int32_t *sums) {
    *n = Numbers{kPlain, input_scale, weight_scale, bias, out_scale, input_zero, weight_zero, sums, out_zero ? *out_zero : 0, 0, {}};
    if (g->compensate) n->window_added = wrapped(-int64_t(*input_zero) * g->terms);
    if (!out_scale) {
        double *units = reinterpret_cast<double *>(n + 1), *biases = units + g->outs;
        int32_t *added = reinterpret_cast<int32_t *>(biases + g->outs);
        for (int64_t o = 0; o < g->outs; ++o) {
            units[o] = unit_of(*g, *n, o);
            biases[o] = bias ? double(bias[o]) : 0.0;
            added[o] = missing(*g, *n, o);
        }
        return;
    }
    double *factors = reinterpret_cast<double *>(n + 1);
    const int64_t wide = g->outs * g->repeats;
    int32_t *added = reinterpret_cast<int32_t *>(factors + wide);
    const double most = fill_by_level[g->level](*g, *n, factors, added);
    for (int64_t at = g->outs; at < wide; at += g->outs) {
        std::memcpy(factors + at, factors, size_t(g->outs) * sizeof(double));
        std::memcpy(added + at, added, size_t(g->outs) * sizeof(int32_t));
    }
    const double bound = double(g->terms * kProduct) + most;
    n->mode = bound < double(kExact) ? kPlain : bound < 2147483648.0 ? kChecked : kSlow;
}

void quantized_finish(const Layer *g, const Numbers *n, const int32_t *sums, const int32_t *windows, uint8_t *to, int64_t rows) {
    finish_by_level[g->level](*g, *n, sums, windows, to, rows);
}

void quantized_real(const Layer *g, const Numbers *n, const int32_t *sums, const int32_t *windows, float *to, int64_t rows) {
    real_by_level[g->level](*g, *n, sums, windows, to, rows);
}

// Called from Python ---------------------------------------------------------------------------------------------------

PyObject *quantized_addresses(PyObject *, PyObject *) {
    auto address = [](auto *function) { return PyLong_FromVoidPtr(reinterpret_cast<void *>(function)); };
    return Py_BuildValue("{s:N,s:N,s:N,s:n}", "numbers", address(quantized_numbers), "finish", address(quantized_finish), "real",
                         address(quantized_real), "header", Py_ssize_t(sizeof(Numbers)));
}

constexpr int64_t kShare = 1 << 16;  // elements that are worth a thread

// Elements divided among threads: run(first, count) for each part.
template <class Run>
void divided(int64_t count, int threads, const Run &run) {
    struct Parts {
        const Run &run;
        int64_t count, parts;
    };
    const int64_t parts = std::max<int64_t>(std::min<int64_t>(std::min(threads, team_limit()), count / kShare), 1);
    Parts shared{run, count, parts};
    auto job = [](int index, void *raw) {
        const Parts &p = *static_cast<Parts *>(raw);
        const int64_t first = p.count * index / p.parts, end = p.count * (index + 1) / p.parts;
        p.run(first, end - first);
    };
    if (parts > 1) run_jobs(int(parts), job, &shared, false);
    else job(0, &shared);
}

PyArrayObject *dense(PyObject *o, int type, int other) {
    PyArrayObject *array = reinterpret_cast<PyArrayObject *>(o);
    if (PyArray_Check(o) && (PyArray_TYPE(array) == type || PyArray_TYPE(array) == other) && PyArray_ISALIGNED(array) &&
        PyArray_ISNOTSWAPPED(array) && (PyArray_IS_C_CONTIGUOUS(array) || PyArray_IS_F_CONTIGUOUS(array)))
        return array;
    PyErr_SetString(PyExc_ValueError, "a dense array of another dtype or order is needed");
    return nullptr;
}

bool known(int level) {
    if (level >= 0 && level <= 2) return true;
    PyErr_SetString(PyExc_ValueError, "a level is 0, 1 or 2");
    return false;
}

bool fits(PyArrayObject *x, PyArrayObject *to, int level) {
    if (PyArray_SIZE(x) == PyArray_SIZE(to) && PyArray_ISWRITEABLE(to)) return known(level);
    PyErr_SetString(PyExc_ValueError, "as many elements to write to are needed");
    return false;
}

PyObject *quantized_from_real(PyObject *, PyObject *args) {
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
    if (size < kShare) {
        run(0, size);
    } else {
        require_threads(threads);
        ReleaseGil released;
        NativeCall native;
        divided(size, threads, run);
    }
    Py_RETURN_NONE;
}

PyObject *quantized_to_real(PyObject *, PyObject *args) {
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
    if (size < kShare) {
        run(0, size);
    } else {
        require_threads(threads);
        ReleaseGil released;
        NativeCall native;
        divided(size, threads, run);
    }
    Py_RETURN_NONE;
}

// Least and greatest, each at least 0 or at most 0; NaN if there is one.
PyObject *quantized_range(PyObject *, PyObject *args) {
    PyObject *source;
    int level;
    if (!PyArg_ParseTuple(args, "Oi", &source, &level)) return nullptr;
    PyArrayObject *x = dense(source, NPY_FLOAT32, NPY_FLOAT32);
    if (!x || !known(level)) return nullptr;
    int32_t low = 0, high = 0;
    const float *from = static_cast<const float *>(PyArray_DATA(x));
    const int64_t size = PyArray_SIZE(x);
    if (size < kShare) {
        range_by_level[level](from, size, low, high);
    } else {
        ReleaseGil released;
        NativeCall native;
        range_by_level[level](from, size, low, high);
    }
    auto number = [](int32_t bits) {
        float value;
        bits ^= (bits >> 31) & 0x7FFFFFFF;
        std::memcpy(&value, &bits, sizeof value);
        return double(value);
    };
    return Py_BuildValue("dd", number(low), number(high));
}

PyMethodDef methods[] = {
    {"quantized_addresses", quantized_addresses, METH_NOARGS,
     "Addresses of the functions that bring sums of int8 products to another scale, and the bytes of what they keep."},
    {"quantized_from_real", entry<quantized_from_real>, METH_VARARGS,
     "quantized_from_real(x, to, scale, zero, level, threads): float32 without NaN to uint8 or int8, of the same order in memory."},
    {"quantized_to_real", entry<quantized_to_real>, METH_VARARGS,
     "quantized_to_real(x, to, scale, zero, level, threads): uint8 or int8 to float32, of the same order in memory."},
    {"quantized_range", entry<quantized_range>, METH_VARARGS,
     "quantized_range(x, level): the least and the greatest of 0 and the elements of a float32 array; NaN if one is."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_quantized(PyObject *module) { return PyModule_AddFunctions(module, methods); }

}  // namespace backline
