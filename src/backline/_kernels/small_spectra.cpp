// Eigenvalues and eigenvectors of many small symmetric matrices: a matrix for each lane of a vector, by Jacobi's method. Matrices are
// rotated until what is off the diagonal is below the rounding of the largest element; a rotation is that of G. H. Golub and C. F. Van
// Loan, Matrix Computations, fourth edition, section 8.5.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels.hpp"
#include "lanes.hpp"

namespace backline {
namespace {

constexpr int64_t kMost = 16;         // rows and columns
constexpr int kSweeps = 40;           // far more than any matrix of this size takes
constexpr int32_t kNotFinite = -9999;  // as libraries/blas/lapack_steps.py has it

// Written by libraries/kernels/small_spectra.py: eight bytes for each field, in this order. Strides in bytes. Results lie in rows, without
// gaps; eigenvectors are columns.
struct Spectra {
    int64_t itemsize, level, items, n, vectors, lower;
    int64_t batch, row, column;
};

template <class T, int Bytes>
struct SymmetricBatch {
    using L = Lanes<T, Bytes>;
    using V = typename L::Vector;
    using Limits = std::numeric_limits<T>;
    static constexpr int64_t W = L::count;

    // Element (i, j), i <= j, of every matrix; and of the matrices of eigenvectors.
    alignas(64) T a[kMost * kMost * W], v[kMost * kMost * W];
    int64_t first, count;
    int exponent[W];  // of the power of 2 that a matrix was divided by
    bool spoilt[W];
    T *matrix(int64_t i, int64_t j) { return a + (i * kMost + j) * W; }
    T *vector(int64_t i, int64_t j) { return v + (i * kMost + j) * W; }

    // The largest elements become about 1, so that squares stay within the range.
    BACKLINE_INLINE void load(const Spectra &p, const char *from) {
        for (int64_t w = 0; w < W; ++w) {
            T largest = 0;
            spoilt[w] = false;
            for (int64_t i = 0; i < p.n; ++i)
                for (int64_t j = i; j < p.n; ++j) {
                    T x = T(i == j);
                    if (w < count) {
                        const int64_t row = p.lower ? j : i, column = p.lower ? i : j;
                        std::memcpy(&x, from + (first + w) * p.batch + row * p.row + column * p.column, sizeof x);
                    }
                    spoilt[w] |= !std::isfinite(x);
                    largest = std::max(largest, std::fabs(x));
                    matrix(i, j)[w] = x;
                }
            if (spoilt[w]) {
                for (int64_t i = 0; i < p.n; ++i)
                    for (int64_t j = i; j < p.n; ++j) matrix(i, j)[w] = 0;
                largest = 0;
            }
            // Between those whose inverse is a normal number too.
            exponent[w] = largest > 0 ? std::clamp(std::ilogb(largest), Limits::min_exponent, Limits::max_exponent - 2) : 0;
            const T scale = std::ldexp(T(1), -exponent[w]);
            for (int64_t i = 0; i < p.n; ++i)
                for (int64_t j = i; j < p.n; ++j) matrix(i, j)[w] *= scale;
        }
    }

    BACKLINE_INLINE static void root(V &x) {
        T some[W];
        L::store(x, some);
        for (int64_t w = 0; w < W; ++w) some[w] = std::sqrt(some[w]);
        L::load(x, some);
    }

    // one, other = one - s (other + tau one), other + s (one - tau other)
    BACKLINE_INLINE static void turn(T *one, T *other, const V &s, const V &tau) {
        V x, y;
        L::load(x, one), L::load(y, other);
        const V left = x - s * (y + tau * x), right = y + s * (x - tau * y);
        L::store(left, one), L::store(right, other);
    }

    BACKLINE_INLINE void rotate(const Spectra &p, int64_t i, int64_t j) {
        // What is too small for its square to be a number counts for nothing beside the largest element.
        constexpr T least = sizeof(T) == 8 ? T(1e-150) : T(1e-18);
        V left, right, between, zero{}, one = zero + T(1);
        L::load(left, matrix(i, i)), L::load(right, matrix(j, j)), L::load(between, matrix(i, j));
        V twice = between + between, size, apart = right - left, far, negative;
        choose(size, twice < zero, -twice, twice);
        choose(twice, size < zero + least, zero, twice);
        choose(far, apart < zero, -apart, apart);
        size = apart * apart + twice * twice;
        root(size);
        size = far + size;
        choose(size, size == zero, one, size);
        V tangent = twice / size, cosine, tau;
        negative = -tangent;
        choose(tangent, apart < zero, negative, tangent);
        cosine = one + tangent * tangent;
        root(cosine);
        cosine = one / cosine;
        const V sine = tangent * cosine, change = tangent * between;
        tau = sine / (one + cosine);
        left = left - change;
        right = right + change;
        L::store(left, matrix(i, i)), L::store(right, matrix(j, j)), L::store(zero, matrix(i, j));
        for (int64_t r = 0; r < i; ++r) turn(matrix(r, i), matrix(r, j), sine, tau);
        for (int64_t r = i + 1; r < j; ++r) turn(matrix(i, r), matrix(r, j), sine, tau);
        for (int64_t r = j + 1; r < p.n; ++r) turn(matrix(i, r), matrix(j, r), sine, tau);
        if (p.vectors)
            for (int64_t r = 0; r < p.n; ++r) turn(vector(r, i), vector(r, j), sine, tau);
    }

    // Tells whether what is off the diagonal is more than what rounding leaves, in any matrix.
    BACKLINE_INLINE bool rotates(const Spectra &p) {
        constexpr T epsilon = std::numeric_limits<T>::epsilon() / 8;
        V off{}, on{}, x;
        for (int64_t i = 0; i < p.n; ++i) {
            L::load(x, matrix(i, i));
            on += x * x;
            for (int64_t j = i + 1; j < p.n; ++j) {
                L::load(x, matrix(i, j));
                off += x * x;
            }
        }
        on = (on + off + off) * (epsilon * epsilon);
        bool more = false;
        for (int64_t w = 0; w < W; ++w) more |= off[w] > on[w];
        return more;
    }

    BACKLINE_INLINE bool diagonalize(const Spectra &p) {
        const V zero{};
        for (int64_t i = 0; p.vectors && i < p.n; ++i)
            for (int64_t j = 0; j < p.n; ++j) {
                const V same = zero + T(i == j);
                L::store(same, vector(i, j));
            }
        for (int sweep = 0; sweep < kSweeps; ++sweep) {
            if (!rotates(p)) return true;
            for (int64_t i = 0; i < p.n; ++i)
                for (int64_t j = i + 1; j < p.n; ++j) rotate(p, i, j);
        }
        return !rotates(p);
    }

    BACKLINE_INLINE void store(const Spectra &p, int64_t w, T *values, T *vectors) {
        int64_t order[kMost];
        for (int64_t i = 0; i < p.n; ++i) {  // the least first
            const T x = matrix(i, i)[w];
            int64_t at = i;
            for (; at > 0 && matrix(order[at - 1], order[at - 1])[w] > x; --at) order[at] = order[at - 1];
            order[at] = i;
        }
        for (int64_t i = 0; i < p.n; ++i) values[i] = std::ldexp(matrix(order[i], order[i])[w], exponent[w]);
        if (p.vectors)
            for (int64_t i = 0; i < p.n; ++i)
                for (int64_t j = 0; j < p.n; ++j) vectors[i * p.n + j] = vector(i, order[j])[w];
    }
};

struct Body {
    template <class T, int Bytes>
    BACKLINE_INLINE static void run(const Spectra *p, int64_t item, const char *a, void *values, void *vectors, int32_t *infos) {
        using B = SymmetricBatch<T, Bytes>;
        B batch;
        batch.first = item * B::W, batch.count = std::min(B::W, p->items - batch.first);
        batch.load(*p, a);
        const bool converged = batch.diagonalize(*p);
        for (int64_t w = 0; w < batch.count; ++w) {
            const int64_t at = batch.first + w;
            infos[at] = batch.spoilt[w] ? kNotFinite : converged ? 0 : 1;
            batch.store(*p, w, static_cast<T *>(values) + at * p->n, static_cast<T *>(vectors) + at * p->n * p->n);
        }
    }
};

void small_spectra(const Spectra *p, int64_t item, const char *a, void *values, void *vectors, int32_t *infos) {
    TypedVersions<Body>::table[p->level][p->itemsize == 8](p, item, a, values, vectors, infos);
}

}  // namespace

int add_small_spectra(PyObject *, PyObject *addresses) { return add_kernels(addresses, {kernel("small_spectra", small_spectra)}); }

}  // namespace backline
