// Normalisation of rows and of channels: one reading of the memory where what is normalised together stays in cache. Statistics and
// results are computed in double and rounded once, float among them: large numbers close to each other lose no digits.
#include "arrays.hpp"
#include "halves.hpp"

#include <algorithm>
#include <cmath>

namespace backline {
namespace {

// Written by libraries/kernels/normalization_loops.py: eight bytes for each field, in this order.
struct Normalize {
    int64_t itemsize, level;  // of batch_norm by rows 2 is bfloat16, kFloat16 float16
    double eps;
    int64_t scaled, shifted;  // whether there is a weight, and a bias
    int64_t channels;         // of images
    int64_t length;           // elements of a row
    int64_t segments, step;   // of a channel in training: rows, and elements from one to the next
    int64_t rounded;          // whether results are rounded to 16 bits: float has the digits that they need
};

constexpr int64_t kBlock = 2048;  // elements whose sums are taken together: they stay in the first cache

template <class T, int Bytes>
struct Wide {
    using L = Lanes<double, Bytes>;
    using V = typename L::Vector;
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
        double total = 0;
        for (int i = 0; i < L::count; ++i) total += v[i];
        return total;
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

template <class T, int Bytes>
BACKLINE_INLINE void add_moments(Moments &moments, const T *x, int64_t n) {
    using W = Wide<T, Bytes>;
    constexpr int count = W::L::count;
    for (int64_t start = 0; start < n; start += kBlock) {
        const T *from = x + start;
        const int64_t here = std::min(kBlock, n - start), whole = here / (2 * count) * (2 * count);
        typename W::V a{}, b{}, u, v;
        for (int64_t i = 0; i < whole; i += 2 * count) {
            W::load(u, from + i);
            W::load(v, from + i + count);
            a += u;
            b += v;
        }
        a += b;
        double total = W::sum(a);
        for (int64_t i = whole; i < here; ++i) total += double(from[i]);
        const double mean = total / double(here);
        a = typename W::V{};
        b = a;
        for (int64_t i = 0; i < whole; i += 2 * count) {
            W::load(u, from + i);
            W::load(v, from + i + count);
            u = u - mean;
            v = v - mean;
            a += u * u;
            b += v * v;
        }
        a += b;
        double squares = W::sum(a);
        for (int64_t i = whole; i < here; ++i) squares += (double(from[i]) - mean) * (double(from[i]) - mean);
        moments.join(double(here), total, squares);
    }
}

// y = (x - mean) * scale + shift, where all but x stay the same.
template <class T, int Bytes>
BACKLINE_INLINE void normalize_row(const Normalize &p, const T *x, T *y, int64_t n, double mean, double scale, double shift) {
    using W = Wide<T, Bytes>;
    constexpr int count = W::L::count;
    typename W::V v, end;
    if (n >= count) W::load(end, x + n - count);  // before anything is written: y may be x
    int64_t i = 0;
    if (p.rounded) {
        using L = Lanes<T, Bytes>;
        const T centre = T(mean), factor = T(scale), more = T(shift);
        typename L::Vector u;
        for (; i + L::count <= n; i += L::count) {
            L::load(u, x + i);
            u = (u - centre) * factor + more;
            L::store(u, y + i);
        }
    }
    for (; i + count <= n; i += count) {
        W::load(v, x + i);
        v = (v - mean) * scale + shift;
        W::store(v, y + i);
    }
    if (i < n && n >= count) {
        end = (end - mean) * scale + shift;
        W::store(end, y + n - count);
    } else {
        for (; i < n; ++i) y[i] = T((double(x[i]) - mean) * scale + shift);
    }
}

// The same of 16-bit floats, in float.
template <class S, int Bytes>
BACKLINE_INLINE void normalize_halves(const S *x, S *y, int64_t n, double mean, double scale, double shift) {
    using E = Elements<S, float, Bytes>;
    const float centre = float(mean), factor = float(scale), more = float(shift);
    typename E::V u;
    auto some = [&](int64_t i, int64_t count) __attribute__((always_inline)) {
        E::load_some(u, x + i, count);
        u = (u - centre) * factor + more;
        E::store_some(u, y + i, count);
    };
    int64_t i = 0;
    for (; i + E::L::count <= n; i += E::L::count) some(i, E::L::count);
    if (i < n) some(i, n - i);
}

struct LayerNorm {
    template <class T, int Bytes>
    static BACKLINE_INLINE void run(const Normalize &p, int64_t rows, const char *from, const char *w, const char *b, char *to) {
        using W = Wide<T, Bytes>;
        constexpr int count = W::L::count;
        const T *weight = reinterpret_cast<const T *>(w), *bias = reinterpret_cast<const T *>(b);
        const int64_t n = p.length;
        for (int64_t row = 0; row < rows; ++row) {
            const T *x = reinterpret_cast<const T *>(from) + row * n;
            T *y = reinterpret_cast<T *>(to) + row * n;
            Moments moments;
            add_moments<T, Bytes>(moments, x, n);
            const double mean = moments.mean, scale = 1 / std::sqrt(moments.squares / double(n) + p.eps);
            if (!p.scaled && !p.shifted) {
                normalize_row<T, Bytes>(p, x, y, n, mean, scale, 0.0);
                continue;
            }
            int64_t i = 0;
            typename W::V v, u;
            for (; i + count <= n; i += count) {
                W::load(v, x + i);
                v = (v - mean) * scale;
                if (p.scaled) {
                    W::load(u, weight + i);
                    v = v * u;
                }
                if (p.shifted) {
                    W::load(u, bias + i);
                    v = v + u;
                }
                W::store(v, y + i);
            }
            for (; i < n; ++i) {
                double z = (double(x[i]) - mean) * scale;
                if (p.scaled) z *= double(weight[i]);
                if (p.shifted) z += double(bias[i]);
                y[i] = T(z);
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
                if constexpr (std::is_same_v<Source, T>) normalize_row<T, Bytes>(p, x, y, p.length, c.mean, c.scale, c.shift);
                else normalize_halves<Source, Bytes>(x, y, p.length, c.mean, c.scale, c.shift);
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
    typed<LayerNorm>(p, rows, x, w, b, y);
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
