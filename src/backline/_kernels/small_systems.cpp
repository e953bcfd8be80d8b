// Determinants, inverses and solutions of many small systems, and their Cholesky factors: a matrix for each lane of a vector. LU factors
// with partial pivoting, as LAPACK's getrf finds them, are applied to the right-hand sides while they are made, and are not kept.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels.hpp"
#include "lanes.hpp"

namespace backline {
namespace {

constexpr int64_t kMost = 16;  // rows, columns and right-hand sides

enum Kind : int64_t { kDeterminant, kLogarithm, kInverse, kSolution, kLower, kUpper };  // the last two: Cholesky factors

// Written by libraries/kernels/small_systems.py: eight bytes for each field, in this order. Strides in bytes, of the matrices and of the
// right-hand sides. Results lie in rows, without gaps. For an upper factor, rows and columns of the matrices are exchanged.
struct Systems {
    int64_t itemsize, level, kind, items, n, k;
    int64_t batch, row, column, side_batch, side_row, side_column;
};

template <class T, int Bytes>
struct Batch {
    using L = Lanes<T, Bytes>;
    using V = typename L::Vector;
    static constexpr int64_t W = L::count;

    // Element (i, j) of every matrix.
    alignas(64) T a[kMost * kMost * W], b[kMost * kMost * W];
    int64_t first, count, zero[W];  // number of the zero pivot, from 1
    bool odd[W];                    // number of row interchanges
    T *matrix(int64_t i, int64_t j) { return a + (i * kMost + j) * W; }
    T *side(int64_t i, int64_t j) { return b + (i * kMost + j) * W; }

    BACKLINE_INLINE void load(const Systems &p, const char *from, const char *sides) {
        for (int64_t w = 0; w < W; ++w)
            for (int64_t i = 0; i < p.n; ++i) {
                const char *row = from + (first + w) * p.batch + i * p.row;
                for (int64_t j = 0; j < p.n; ++j) {
                    if (w < count) std::memcpy(matrix(i, j) + w, row + j * p.column, sizeof(T));
                    else matrix(i, j)[w] = T(i == j);
                }
                for (int64_t j = 0; j < p.k; ++j) {
                    if (p.kind == kInverse || w >= count) side(i, j)[w] = T(i == j);
                    else std::memcpy(side(i, j) + w, sides + (first + w) * p.side_batch + i * p.side_row + j * p.side_column, sizeof(T));
                }
            }
    }

    // The lower triangles. The first minor of one with NaN or infinity counts as not positive definite, as with LAPACK.
    BACKLINE_INLINE void load_lower(const Systems &p, const char *from) {
        V sums = {};
        for (int64_t i = 0; i < p.n; ++i)
            for (int64_t j = 0; j <= i; ++j) {
                const char *element = from + first * p.batch + i * p.row + j * p.column;
                for (int64_t w = 0; w < W; ++w) {
                    if (w < count) std::memcpy(matrix(i, j) + w, element + w * p.batch, sizeof(T));
                    else matrix(i, j)[w] = T(i == j);
                }
                V x;
                L::load(x, matrix(i, j));
                sums += x * T(0);
            }
        for (int64_t w = 0; w < W; ++w) zero[w] = sums[w] != 0;  // NaN
    }

    // L of A = L L^T in the place of the lower triangle, column by column.
    BACKLINE_INLINE void factor(const Systems &p) {
        for (int64_t c = 0; c < p.n; ++c) {
            V inverse = {};
            for (int64_t i = c; i < p.n; ++i) {
                V x, y, z;
                L::load(x, matrix(i, c));
                for (int64_t k = 0; k < c; ++k) {
                    L::load(y, matrix(i, k)), L::load(z, matrix(c, k));
                    x -= y * z;
                }
                if (i > c) {
                    x *= inverse;
                } else {
                    alignas(64) T pivot[W];
                    L::store(x, pivot);
                    for (int64_t w = 0; w < W; ++w) zero[w] = zero[w] || pivot[w] > 0 ? zero[w] : c + 1;
                    for (int64_t w = 0; w < W; ++w) pivot[w] = std::sqrt(pivot[w]);
                    L::load(x, pivot);
                    inverse = T(1) / x;
                }
                L::store(x, matrix(i, c));
            }
        }
    }

    BACKLINE_INLINE void swap(T *one, T *other, const typename L::Bits &chosen) {
        typename L::Bits x, y;
        std::memcpy(&x, one, sizeof x), std::memcpy(&y, other, sizeof y);
        const typename L::Bits both = (x ^ y) & chosen;
        x ^= both, y ^= both;
        std::memcpy(one, &x, sizeof x), std::memcpy(other, &y, sizeof y);
    }

    // target -= factor * source.
    BACKLINE_INLINE static void subtract(T *target, const V &factor, const T *source) {
        V x, y;
        L::load(x, target), L::load(y, source);
        x -= factor * y;
        L::store(x, target);
    }

    BACKLINE_INLINE void interchange(const Systems &p, int64_t c) {
        T best[W];
        int64_t pivot[W], least = p.n, last = c;
        for (int64_t w = 0; w < W; ++w) best[w] = std::fabs(matrix(c, c)[w]), pivot[w] = c;
        for (int64_t i = c + 1; i < p.n; ++i)
            for (int64_t w = 0; w < W; ++w) {
                const T size = std::fabs(matrix(i, c)[w]);
                const bool larger = size > best[w];
                best[w] = larger ? size : best[w], pivot[w] = larger ? i : pivot[w];
            }
        for (int64_t w = 0; w < W; ++w) {
            odd[w] ^= pivot[w] != c;
            if (pivot[w] != c) least = std::min(least, pivot[w]), last = std::max(last, pivot[w]);
            if (best[w] == 0 && !zero[w]) zero[w] = c + 1;
        }
        for (int64_t i = least; i <= last; ++i) {
            typename L::Bits chosen;
            for (int64_t w = 0; w < W; ++w) chosen[w] = pivot[w] == i ? ~typename L::Integer(0) : 0;
            for (int64_t j = c; j < p.n; ++j) swap(matrix(c, j), matrix(i, j), chosen);
            for (int64_t j = 0; j < p.k; ++j) swap(side(c, j), side(i, j), chosen);
        }
    }

    // The inverse of a pivot, and whether one of a lane is too small to have any, so that quotients have to be taken.
    BACKLINE_INLINE bool inverse_of(int64_t c, V &pivot, V &inverse) {
        L::load(pivot, matrix(c, c));
        inverse = T(1) / pivot;
        bool divides = false;
        for (int64_t w = 0; w < W; ++w) divides |= std::isinf(inverse[w]) && pivot[w] != 0;
        return divides;
    }

    BACKLINE_INLINE void eliminate(const Systems &p) {
        for (int64_t w = 0; w < W; ++w) zero[w] = 0, odd[w] = false;
        for (int64_t c = 0; c < p.n; ++c) {
            interchange(p, c);
            V pivot, inverse;
            const bool divides = inverse_of(c, pivot, inverse);
            for (int64_t i = c + 1; i < p.n; ++i) {
                V factor;
                L::load(factor, matrix(i, c));
                factor = divides ? factor / pivot : factor * inverse;
                for (int64_t j = c + 1; j < p.n; ++j) subtract(matrix(i, j), factor, matrix(c, j));
                for (int64_t j = 0; j < p.k; ++j) subtract(side(i, j), factor, side(c, j));
            }
        }
    }

    BACKLINE_INLINE void substitute(const Systems &p) {
        for (int64_t c = p.n - 1; c >= 0; --c) {
            V pivot, inverse, value;
            const bool divides = inverse_of(c, pivot, inverse);
            for (int64_t j = 0; j < p.k; ++j) {
                L::load(value, side(c, j));
                value = divides ? value / pivot : value * inverse;
                L::store(value, side(c, j));
            }
            for (int64_t i = 0; i < c; ++i) {
                L::load(value, matrix(i, c));
                for (int64_t j = 0; j < p.k; ++j) subtract(side(i, j), value, side(c, j));
            }
        }
    }

    // Tells whether a matrix has numbers only.
    BACKLINE_INLINE bool finite(const Systems &p, const char *from, int64_t w) {
        for (int64_t i = 0; i < p.n; ++i)
            for (int64_t j = 0; j < p.n; ++j) {
                T x;
                std::memcpy(&x, from + (first + w) * p.batch + i * p.row + j * p.column, sizeof x);
                if (!std::isfinite(x)) return false;
            }
        return true;
    }
};

struct Body {
    template <class T, int Bytes>
    BACKLINE_INLINE static void run(const Systems *p, int64_t item, const char *a, const char *sides, void *to, void *logarithm, int32_t *infos) {
        using B = Batch<T, Bytes>;
        B batch;
        batch.first = item * B::W, batch.count = std::min(B::W, p->items - batch.first);
        if (p->kind >= kLower) return cholesky(*p, batch, a, static_cast<T *>(to), infos);
        batch.load(*p, a, sides);
        batch.eliminate(*p);
        if (p->k) batch.substitute(*p);
        for (int64_t w = 0; w < batch.count; ++w) {
            const int64_t zero = batch.zero[w], at = batch.first + w;
            const bool spoilt = zero && !batch.finite(*p, a, w);
            if (p->k) {
                T *result = static_cast<T *>(to) + at * p->n * p->k;
                infos[at] = spoilt ? 0 : int32_t(zero);
                for (int64_t i = 0; i < p->n; ++i)
                    for (int64_t j = 0; j < p->k; ++j)
                        result[i * p->k + j] = zero ? std::numeric_limits<T>::quiet_NaN() : batch.side(i, j)[w];
            } else {
                determinant<T>(*p, batch, w, spoilt, static_cast<T *>(to) + at, static_cast<T *>(logarithm) + at);
            }
        }
    }

    template <class T, class B>
    BACKLINE_INLINE static void cholesky(const Systems &p, B &batch, const char *a, T *to, int32_t *infos) {
        batch.load_lower(p, a);
        batch.factor(p);
        const int64_t row = p.kind == kLower ? p.n : 1, column = p.kind == kLower ? 1 : p.n;
        for (int64_t w = 0; w < batch.count; ++w) {
            T *result = to + (batch.first + w) * p.n * p.n;
            infos[batch.first + w] = int32_t(batch.zero[w]);
            for (int64_t i = 0; i < p.n; ++i) {
                for (int64_t j = 0; j <= i; ++j)
                    result[i * row + j * column] = batch.zero[w] ? std::numeric_limits<T>::quiet_NaN() : batch.matrix(i, j)[w];
                for (int64_t j = i + 1; j < p.n; ++j) result[i * row + j * column] = 0;
            }
        }
    }

    template <class T, class B>
    BACKLINE_INLINE static void determinant(const Systems &p, B &batch, int64_t w, bool spoilt, T *to, T *logarithm) {
        const double nan = std::numeric_limits<double>::quiet_NaN();
        double product = 1, sum = 0, size = 1;
        for (int64_t i = 0; i < p.n; ++i) {
            const double d = batch.matrix(i, i)[w];
            if (p.kind == kDeterminant) {
                product *= d;
                continue;
            }
            product *= d / std::fabs(d);
            if (size > 1e150 || size < 1e-150) sum += std::log(size), size = 1;  // few products come near the range of float64
            if (std::fabs(d) > 1e150 || std::fabs(d) < 1e-150) sum += std::log(std::fabs(d));
            else size *= std::fabs(d);
        }
        if (batch.odd[w]) product = -product;
        if (spoilt) product = sum = nan;
        else if (batch.zero[w]) product = 0;
        *to = T(product);
        if (p.kind == kLogarithm) *logarithm = product == 0 ? -std::numeric_limits<T>::infinity() : T(sum + std::log(size));
    }
};

void small_systems(const Systems *p, int64_t item, const char *a, const char *sides, void *to, void *logarithm, int32_t *infos) {
    TypedVersions<Body>::table[p->level][p->itemsize == 8](p, item, a, sides, to, logarithm, infos);
}

}  // namespace

int add_small_systems(PyObject *, PyObject *addresses) { return add_kernels(addresses, {kernel("small_systems", small_systems)}); }

}  // namespace backline
