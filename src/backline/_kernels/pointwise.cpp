// Activations, their gradients, and what follows the product of a linear layer: one reading of the memory, NaN and infinity as the
// formulas have them. One function call is one item, a share of an array or some rows; what it reads and writes may be one array.
#include "activations.hpp"
#include "kernels.hpp"

#include <type_traits>

namespace backline {
namespace {

// Written by libraries/kernels/pointwise_loops.py: eight bytes for each field, in this order.
struct Pointwise {
    int64_t itemsize, level, activation;  // 2 is bfloat16, kFloat16 float16
};

// Two vectors at a time.
template <class T, int Bytes>
using Both = Together<T, Bytes, 2>;

// Calls `some` with the place of each `count` of n elements, and with their number: the last ones may be fewer.
template <int64_t count, class Some>
BACKLINE_INLINE void by_vectors(int64_t n, Some some) {
    int64_t i = 0;
    for (; i + count <= n; i += count) some(i, count);
    if (i < n) some(i, n - i);
}

// Of floats and doubles, or of 16-bit floats, which are computed with as floats.
template <class S>
struct Values {
    template <class T, int Bytes>
    static BACKLINE_INLINE void run(const Pointwise &p, int64_t n, const char *x, char *y) {
        using Source = InMemory<S, T>;
        if constexpr (kComputedIn<S, T>) {
            // A formula is a long chain: while one waits for it, others go on. AVX-512 has the registers for four.
            constexpr int parts = Bytes == 64 ? 4 : 2;
            using E = ElementsTogether<Source, T, Bytes, parts>;
            const Source *from = reinterpret_cast<const Source *>(x);
            Source *to = reinterpret_cast<Source *>(y);
            for_activation(Activation(p.activation), [=](auto kind) __attribute__((always_inline)) {
                by_vectors<E::count>(n, [=](int64_t i, int64_t some) __attribute__((always_inline)) {
                    typename E::V v;
                    E::load_some(v, from + i, some);
                    Activated<T, Bytes, parts, Source>::template value<decltype(kind)::value>(v);
                    E::store_some(v, to + i, some);
                });
            });
        }
    }
};

struct Slopes {
    template <class T, int Bytes>
    static BACKLINE_INLINE void run(const Pointwise &p, int64_t n, const char *x, const char *g, char *y) {
        using L = Both<T, Bytes>;
        const T *from = reinterpret_cast<const T *>(x), *grad = reinterpret_cast<const T *>(g);
        T *to = reinterpret_cast<T *>(y);
        for_activation(Activation(p.activation), [=](auto kind) __attribute__((always_inline)) {
            by_vectors<L::count>(n, [=](int64_t i, int64_t some) __attribute__((always_inline)) {
                using A = Activated<T, Bytes, 2>;
                typename L::Vector v, w;
                L::load_some(v, from + i, some);
                L::load_some(w, grad + i, some);
                constexpr bool finite = decltype(kind)::value == Activation::relu;  // or it makes no difference
                if (!finite && __builtin_expect(A::any_not_finite(w), 0)) A::template slope<decltype(kind)::value, false>(v, w);
                else A::template slope<decltype(kind)::value, true>(v, w);
                L::store_some(w, to + i, some);
            });
        });
    }
};

// Relu of 16-bit floats, by their bits: what is negative and no NaN becomes 0. `infinity` has the bits of that number.
BACKLINE_INLINE void relu_bits(int64_t infinity, int64_t n, const int16_t *x, int16_t *y) {
    const int16_t largest = int16_t(infinity);
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] < 0 && int16_t(x[i] & 0x7fff) <= largest ? int16_t(0) : x[i];
}

void relu_16(int64_t level, int64_t infinity, int64_t n, const int16_t *x, int16_t *y) {
    Versions<&relu_bits>::table[level](infinity, n, x, y);
}

// Written by libraries/blas/blas_linear.py. Rows lie `step` bytes apart; where there is a bias it is one row.
struct Finish {
    int64_t itemsize, level, activation, biased, width, step;
};

struct Finished {
    template <class T, int Bytes>
    static BACKLINE_INLINE void run(const Finish &p, int64_t rows, char *data, const char *bias) {
        const T *added = reinterpret_cast<const T *>(bias);
        for_activation(Activation(p.activation), [=, &p](auto kind) __attribute__((always_inline)) {
            for (int64_t row = 0; row < rows; ++row) {
                T *here = reinterpret_cast<T *>(data + row * p.step);
                by_vectors<Both<T, Bytes>::count>(p.width, [=, &p](int64_t i, int64_t some) __attribute__((always_inline)) {
                    typename Both<T, Bytes>::Vector v, w;
                    Both<T, Bytes>::load_some(v, here + i, some);
                    if (p.biased) {
                        Both<T, Bytes>::load_some(w, added + i, some);
                        v += w;
                    }
                    Activated<T, Bytes, 2>::template value<decltype(kind)::value>(v);
                    Both<T, Bytes>::store_some(v, here + i, some);
                });
            }
        });
    }
};

void activation(const Pointwise *p, int64_t n, const char *x, char *y) { for_floats<Values>(p->itemsize, p->level, *p, n, x, y); }

void activation_grad(const Pointwise *p, int64_t n, const char *x, const char *g, char *y) {
    TypedVersions<Slopes>::table[p->level][p->itemsize == 8](*p, n, x, g, y);
}

void finish_rows(const Finish *p, int64_t rows, char *data, const char *bias) {
    TypedVersions<Finished>::table[p->level][p->itemsize == 8](*p, rows, data, bias);
}

}  // namespace

int add_pointwise(PyObject *, PyObject *addresses) {
    return add_kernels(addresses, {kernel("activation", activation),
                                   kernel("activation_grad", activation_grad),
                                   kernel("finish_rows", finish_rows),
                                   kernel("relu_16", relu_16)});
}

}  // namespace backline
