// Normalisation of rows and of channels: one reading of the memory where what is normalised together stays in cache. Statistics are
// computed in double, and so are results, which are rounded once; those of 16-bit floats are computed in float where that is enough.
// Large numbers close to each other lose no digits.
#include "arrays.hpp"
#include "double_lanes.hpp"
#include "halves.hpp"

#include <algorithm>
#include <cmath>

namespace backline {
namespace {

// Written by libraries/kernels/normalization_loops.py: eight bytes for each field, in this order.
struct Normalize {
    int64_t itemsize, level;  // of rows of layer_norm and batch_norm 2 is bfloat16, kFloat16 float16
    double eps;
    int64_t scaled, shifted;  // whether there is a weight, and a bias
    int64_t channels;         // of images
    int64_t length;           // elements of a row
    int64_t segments, step;   // of a channel in training: rows, and elements from one to the next
    int64_t rounded;          // whether results are rounded to 16 bits: float has the digits that they need
};

constexpr int64_t kBlock = 2048;  // elements whose sums are taken together: they stay in the first cache

// Elements that are computed with in double.
template <class T, int Bytes>
struct Wide : Ends<Wide<T, Bytes>, T, typename Lanes<double, Bytes>::Vector> {
    using L = Lanes<double, Bytes>;
    using V = typename L::Vector;
    static constexpr int64_t count = L::count;
    typedef T Few __attribute__((vector_size(Bytes * sizeof(T) / sizeof(double))));

    static BACKLINE_INLINE void load(V &v, const T *from) {
        if constexpr (sizeof(T) == 4) Conversions<Bytes>::widen(v, from);
        else L::load(v, from);
    }
    static BACKLINE_INLINE void store(const V &v, T *to) {
        Few few;
        if constexpr (sizeof(T) == 4) Conversions<Bytes>::narrow(few, v);
        else few = v;
        std::memcpy(to, &few, sizeof few);
    }
    static BACKLINE_INLINE double sum(const V &v) {
        double lanes[count];
        L::store(v, lanes);
        for (int64_t half = count / 2; half > 0; half /= 2)
            for (int64_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
        return lanes[0];
    }
};

struct Moments {  // of `count` elements: their sum, their mean, and the sum of squares of their distances to it
    double count = 0, total = 0, mean = 0, squares = 0;

    // T. F. Chan, G. H. Golub and R. J. LeVeque, Algorithms for computing the sample variance, 1983: moments of two sets together.
    BACKLINE_INLINE void join(double n, double its_total, double its_squares) {
        const double apart = its_total / n - mean, all = count + n;
        squares += its_squares + apart * apart * (count * n / all);
        count = all;
        total += its_total;
        mean = total / count;
    }
};

struct SumsAbout {  // a centre: of x - centre, and of (x - centre)^2
    double total, squares;
};

template <class T, int Bytes>
BACKLINE_INLINE SumsAbout sums_about(double centre, const T *x, int64_t n) {
    using W = Wide<T, Bytes>;
    constexpr int64_t count = W::count;
    constexpr int parts = 4;  // additions of one vector wait for each other
    typename W::V sums[parts] = {}, products[parts] = {};
    auto add = [&](int part, const T *from, int64_t last) __attribute__((always_inline)) {
        typename W::V v;
        W::load(v, from);
        v = v - centre;
        if (last < count) keep_last(v, last);
        sums[part] += v;
        products[part] += v * v;
    };
    int64_t i = 0;
    for (; i + parts * count <= n; i += parts * count)
        for (int part = 0; part < parts; ++part) add(part, x + i + part * count, count);
    for (int part = 0; part < parts - 1; ++part)
        if (i + count <= n) add(part, x + i, count), i += count;
    if (i < n) {
        T few[count] = {};
        if (n < count) std::copy(x, x + n, few + count - n);
        add(parts - 1, n < count ? few : x + n - count, n - i);
    }
    return {W::sum((sums[0] + sums[1]) + (sums[2] + sums[3])), W::sum((products[0] + products[1]) + (products[2] + products[3]))};
}

template <class S, int Bytes>
BACKLINE_INLINE void add_moments(Moments &moments, const S *x, int64_t n) {
    for (int64_t start = 0; start < n; start += kBlock) {
        const int64_t here = std::min(kBlock, n - start);
        if constexpr (std::is_same_v<S, double>) {
            const double total = sums_about<double, Bytes>(0.0, x + start, here).total;
            moments.join(double(here), total, sums_about<double, Bytes>(total / double(here), x + start, here).squares);
        } else {
            const float *from;
            float wide[sizeof(S) < sizeof(float) ? kBlock : 1];
            if constexpr (std::is_same_v<S, float>) {
                from = x + start;
            } else {
                using E = Elements<S, float, Bytes>;
                typename E::V v;
                for (int64_t i = 0; i < here; i += E::count) {
                    E::load_some(v, x + start + i, here - i);
                    E::L::store(v, wide + i);
                }
                from = wide;
            }
            // About one of the elements the sum of squares is at most `here` times that about the mean: what the difference of the two
            // loses is far below the digits of float.
            const double centre = std::isfinite(from[0]) ? double(from[0]) : 0.0;
            const SumsAbout sums = sums_about<float, Bytes>(centre, from, here);
            const double squares = sums.squares - sums.total * (sums.total / double(here));
            moments.join(double(here), sums.total + centre * double(here), squares < 0 ? 0.0 : squares);
        }
    }
}

// Writes what `change` makes of the vectors of a row, to which it gets their place and the number of their elements.
template <class M, class S, class Change>
BACKLINE_INLINE void change_row(const S *x, S *y, int64_t n, Change change) {
    constexpr int64_t count = M::count;
    typename M::V v, end;
    if (n < count) {
        M::load_some(v, x, n);
        change(v, 0, n);
        return M::store_some(v, y, n);
    }
    M::load(end, x + n - count);  // before anything is written: y may be x
    int64_t i = 0;
    for (; i + count <= n; i += count) {
        M::load(v, x + i);
        change(v, i, count);
        M::store(v, y + i);
    }
    if (i < n) {
        change(end, n - count, count);
        M::store(end, y + n - count);
    }
}

// (x - mean) * scale + shift of vectors of float, for results of 16 bits: in float, to which is added what that has no room for of the
// mean; in double, a few times as slow, where numbers could leave the range of float.
struct InFloat {
    double mean, scale, shift;
    float centre = float(mean), factor = float(scale), more = float(shift - (mean - double(centre)) * scale);

    bool fits() const {
        const double size = std::fabs(scale);
        return std::fabs(mean) < 0x1p112 && size < 0x1p100 && (size > 0x1p-100 || size == 0);
    }
    // Calls run(change) with what changes a vector.
    template <class Run>
    BACKLINE_INLINE void with(Run run) const {
        if (__builtin_expect(fits(), 1)) {
            run([c = centre, f = factor, m = more](auto &v) __attribute__((always_inline)) { v = (v - c) * f + m; });
        } else {
            run([*this](auto &v) __attribute__((always_inline)) {
                using V = std::remove_reference_t<decltype(v)>;
                auto wide = __builtin_convertvector(v, typename VectorOf<double, 2 * sizeof(V)>::Type);
                wide = (wide - mean) * scale + shift;
                v = __builtin_convertvector(wide, V);
            });
        }
    }
};

// y = (x - mean) * scale + shift, where all but x stay the same.
template <class S, int Bytes>
BACKLINE_INLINE void normalize_row(const Normalize &p, const S *x, S *y, int64_t n, double mean, double scale, double shift) {
    constexpr bool halves = sizeof(S) < sizeof(float);
    if constexpr (!std::is_same_v<S, double>) {
        if (halves || p.rounded)
            return InFloat{mean, scale, shift}.with([=](auto change) __attribute__((always_inline)) {
                change_row<Elements<S, float, Bytes>>(x, y, n, [=](auto &v, int64_t, int64_t) __attribute__((always_inline)) { change(v); });
            });
    }
    if constexpr (!halves)
        change_row<Wide<S, Bytes>>(
            x, y, n, [=](auto &v, int64_t, int64_t) __attribute__((always_inline)) { v = (v - mean) * scale + shift; });
}

// Multiplies a vector by those of the weight, and adds those of the bias, at a place.
template <bool Scaled, bool Shifted, class Parameters, class T>
BACKLINE_INLINE void scale_and_shift(typename Parameters::V &v, const T *weight, const T *bias, int64_t i, int64_t some) {
    typename Parameters::V u;
    if constexpr (Scaled) Parameters::load_some(u, weight + i, some), v = v * u;
    if constexpr (Shifted) Parameters::load_some(u, bias + i, some), v = v + u;
}

// y = (x - mean) * scale * weight + bias.
template <bool Scaled, bool Shifted, class S, class T, int Bytes>
BACKLINE_INLINE void normalize_layer(const S *x, const T *weight, const T *bias, S *y, int64_t n, double mean, double scale) {
    if constexpr (std::is_same_v<S, T>) {
        change_row<Wide<T, Bytes>>(x, y, n, [=](auto &v, int64_t i, int64_t some) __attribute__((always_inline)) {
            v = (v - mean) * scale;
            scale_and_shift<Scaled, Shifted, Wide<T, Bytes>>(v, weight, bias, i, some);
        });
    } else {
        InFloat{mean, scale, 0.0}.with([=](auto change) __attribute__((always_inline)) {
            change_row<Elements<S, T, Bytes>>(x, y, n, [=](auto &v, int64_t i, int64_t some) __attribute__((always_inline)) {
                change(v);
                scale_and_shift<Scaled, Shifted, Elements<T, T, Bytes>>(v, weight, bias, i, some);
            });
        });
    }
}

template <class S>
struct LayerNorm {
    template <class T, int Bytes>
    static BACKLINE_INLINE void run(const Normalize &p, int64_t rows, const char *from, const char *w, const char *b, char *to) {
        if constexpr (kComputedIn<S, T>) {
            using Source = InMemory<S, T>;
            const Source *x = reinterpret_cast<const Source *>(from);
            const T *weight = reinterpret_cast<const T *>(w), *bias = reinterpret_cast<const T *>(b);
            const int64_t n = p.length;
            auto moments = [=](int64_t row) __attribute__((always_inline)) {
                Moments of_row;
                add_moments<Source, Bytes>(of_row, x + row * n, n);
                return of_row;
            };
            // While a row's sums, root and quotient are waited for, the next row is read: of rows that stay in the first cache.
            const bool ahead = n <= kBlock;
            Moments next;
            if (ahead && rows > 0) next = moments(0);
            for (int64_t row = 0; row < rows; ++row) {
                const Moments here = ahead ? next : moments(row);
                if (ahead && row + 1 < rows) next = moments(row + 1);
                const double scale = 1 / std::sqrt(here.squares / double(n) + p.eps);
                const Source *x_row = x + row * n;
                Source *y_row = reinterpret_cast<Source *>(to) + row * n;
                if (p.scaled && p.shifted) normalize_layer<true, true, Source, T, Bytes>(x_row, weight, bias, y_row, n, here.mean, scale);
                else if (p.scaled) normalize_layer<true, false, Source, T, Bytes>(x_row, weight, bias, y_row, n, here.mean, scale);
                else if (p.shifted) normalize_layer<false, true, Source, T, Bytes>(x_row, weight, bias, y_row, n, here.mean, scale);
                else normalize_layer<false, false, Source, T, Bytes>(x_row, weight, bias, y_row, n, here.mean, scale);
            }
        }
    }
};

template <class T>
struct Channel {  // y = (x - mean) * scale + shift
    double mean, scale, shift;

    BACKLINE_INLINE void finish(const Normalize &p, double variance, const char *w, const char *b, int64_t i) {
        scale = 1 / std::sqrt(variance + p.eps);
        if (p.scaled) scale *= double(reinterpret_cast<const T *>(w)[i]);
        shift = p.shifted ? double(reinterpret_cast<const T *>(b)[i]) : 0.0;
    }
};

// Rows of one channel each, in turn; the first one is `first`.
template <class S>
struct BatchNorm {
    template <class T, int Bytes>
    static BACKLINE_INLINE void run(const Normalize &p, int64_t first, int64_t rows, const char *from, const char *mean, const char *variance,
                                    const char *w, const char *b, char *to) {
        using Source = InMemory<S, T>;
        if constexpr (kComputedIn<S, T>) {
            int64_t i = first % p.channels;
            for (int64_t row = 0; row < rows; ++row, i = i + 1 == p.channels ? 0 : i + 1) {
                Channel<T> c;
                c.mean = double(reinterpret_cast<const T *>(mean)[i]);
                c.finish(p, double(reinterpret_cast<const T *>(variance)[i]), w, b, i);
                const Source *x = reinterpret_cast<const Source *>(from) + row * p.length;
                Source *y = reinterpret_cast<Source *>(to) + row * p.length;
                normalize_row<Source, Bytes>(p, x, y, p.length, c.mean, c.scale, c.shift);
            }
        }
    }
};

// Rows that have one element of every channel.
struct BatchNormLast {
    template <class T, int Bytes>
    static BACKLINE_INLINE void run(const Normalize &p, int64_t rows, const char *from, const char *mean, const char *variance, const char *w,
                                    const char *b, char *to) {
        using W = Wide<T, Bytes>;
        constexpr int count = W::L::count;
        const int64_t n = p.channels;
        for (int64_t start = 0; start < n; start += count) {  // some channels at a time, whose rows stay in the first cache
            const int64_t here = std::min<int64_t>(count, n - start);
            double means[count], scales[count], shifts[count];
            for (int64_t i = 0; i < here; ++i) {
                Channel<T> c;
                c.finish(p, double(reinterpret_cast<const T *>(variance)[start + i]), w, b, start + i);
                means[i] = double(reinterpret_cast<const T *>(mean)[start + i]), scales[i] = c.scale, shifts[i] = c.shift;
            }
            const T *x = reinterpret_cast<const T *>(from) + start;
            T *y = reinterpret_cast<T *>(to) + start;
            if (here == count) {
                typename W::V a, s, t, v;
                W::L::load(a, means);
                W::L::load(s, scales);
                W::L::load(t, shifts);
                for (int64_t row = 0; row < rows; ++row) {
                    W::load(v, x + row * n);
                    v = (v - a) * s + t;
                    W::store(v, y + row * n);
                }
            } else {
                for (int64_t row = 0; row < rows; ++row)
                    for (int64_t i = 0; i < here; ++i) y[row * n + i] = T((double(x[row * n + i]) - means[i]) * scales[i] + shifts[i]);
            }
        }
    }
};

// One channel by its own statistics, which are returned.
struct BatchNormTrain {
    template <class T, int Bytes>
    static BACKLINE_INLINE void run(const Normalize &p, const char *from, const char *w, const char *b, char *to, char *mean, char *variance) {
        const T *x = reinterpret_cast<const T *>(from);
        T *y = reinterpret_cast<T *>(to);
        Moments moments;
        for (int64_t i = 0; i < p.segments; ++i) add_moments<T, Bytes>(moments, x + i * p.step, p.length);
        const double spread = moments.squares / moments.count;
        Channel<T> c;
        c.mean = moments.mean;
        c.finish(p, spread, w, b, 0);
        for (int64_t i = 0; i < p.segments; ++i)
            normalize_row<T, Bytes>(p, x + i * p.step, y + i * p.step, p.length, c.mean, c.scale, c.shift);
        *reinterpret_cast<T *>(mean) = T(c.mean);
        *reinterpret_cast<T *>(variance) = T(spread);
    }
};

template <class Body, class... A>
inline void typed(const Normalize *p, A... a) {
    TypedVersions<Body>::table[p->level][p->itemsize == 8](*p, a...);
}

void layer_norm(const Normalize *p, int64_t rows, const char *x, const char *w, const char *b, char *y) {
    for_floats<LayerNorm>(p->itemsize, p->level, *p, rows, x, w, b, y);
}

void batch_norm(const Normalize *p, int64_t first, int64_t rows, const char *x, const char *mean, const char *variance, const char *w,
                const char *b, char *y) {
    for_floats<BatchNorm>(p->itemsize, p->level, *p, first, rows, x, mean, variance, w, b, y);
}

void batch_norm_last(const Normalize *p, int64_t rows, const char *x, const char *mean, const char *variance, const char *w, const char *b,
                     char *y) {
    typed<BatchNormLast>(p, rows, x, mean, variance, w, b, y);
}

void batch_norm_train(const Normalize *p, const char *x, const char *w, const char *b, char *y, char *mean, char *variance) {
    typed<BatchNormTrain>(p, x, w, b, y, mean, variance);
}

// to = keep * to + share * with, computed in double, of two vectors of one dtype; false where they are no such.
bool blend(PyObject *target, PyObject *source, double keep, double share) {
    if (!PyArray_Check(target) || !PyArray_Check(source)) return false;
    PyArrayObject *to = as<PyArrayObject>(target), *with = as<PyArrayObject>(source);
    const int type = PyArray_TYPE(to);
    for (PyArrayObject *array : {to, with})
        if (PyArray_NDIM(array) != 1 || PyArray_TYPE(array) != type || !PyArray_ISALIGNED(array) || !PyArray_ISNOTSWAPPED(array)) return false;
    if ((type != NPY_FLOAT32 && type != NPY_FLOAT64) || PyArray_SIZE(to) != PyArray_SIZE(with) || !PyArray_ISWRITEABLE(to)) return false;
    auto run = [=](auto zero) {
        using T = decltype(zero);
        for (npy_intp i = 0; i < PyArray_SIZE(to); ++i) {
            T *here = static_cast<T *>(PyArray_GETPTR1(to, i));
            *here = T(keep * double(*here) + share * double(*static_cast<const T *>(PyArray_GETPTR1(with, i))));
        }
    };
    type == NPY_FLOAT64 ? run(double(0)) : run(float(0));
    return true;
}

PyMethodDef methods[] = {
    function<blend>("blend", "blend(to, source, keep, share): keep times `to` and share times `source` into `to`; False where it does not take them."),
    {}};

}  // namespace

int add_normalize(PyObject *module, PyObject *addresses) {
    if (PyModule_AddFunctions(module, methods) < 0) return -1;
    return add_kernels(addresses, {kernel("layer_norm", layer_norm),
                                   kernel("batch_norm", batch_norm),
                                   kernel("batch_norm_last", batch_norm_last),
                                   kernel("batch_norm_train", batch_norm_train)});
}

}  // namespace backline
