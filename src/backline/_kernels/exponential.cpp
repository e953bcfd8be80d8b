// The exponential of a matrix: Taylor polynomials in few products of a BLAS, scaling and squaring. The method, its polynomials and the
// norms up to which each one holds are those of ops/exponential.py, which names the references.
#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>

#include "cblas.hpp"
#include "kernels.hpp"

namespace backline {
namespace {

constexpr int kDegrees = 6, kMostSources = 4;
constexpr int64_t kChunk = 1024;  // elements of each array that are combined before the next ones, so that they stay in cache

// Written by libraries/blas/lapack_results.py: eight bytes for each field, in this order. Strides in bytes. Rows of coefficients are of
// the identity, A, A^2, A^3 and A^6, as far as a polynomial has them.
struct Exponential {
    int64_t itemsize, complex, n, row, column;
    void *gemm;
    double norms[kDegrees];
    double inner8[2], outer8[4], square8, third8, rows12[4][4], rows18[5][5];
};

template <class E>
using Real = typename std::conditional_t<std::is_floating_point_v<E>, std::complex<E>, E>::value_type;

template <class E>
struct Work {
    using T = Real<E>;
    const Exponential &p;
    int64_t n = p.n, size = p.n * p.n;

    // c = a * b, or with `add` c += a * b.
    void multiply(const E *a, const E *b, E *c, bool add = false) const {
        const E one = 1, beta = add ? 1 : 0;
        if constexpr (std::is_floating_point_v<E>) {
            reinterpret_cast<Gemm<E>>(p.gemm)(kRowMajor, kPlain, kPlain, n, n, n, one, a, n, b, n, beta, c, n);
        } else {
            using Function = void (*)(Enum, Enum, Enum, int64_t, int64_t, int64_t, const E *, const E *, int64_t, const E *, int64_t,
                                      const E *, E *, int64_t);
            reinterpret_cast<Function>(p.gemm)(kRowMajor, kPlain, kPlain, n, n, n, &one, a, n, b, n, &beta, c, n);
        }
    }

    // Sums of arrays times factors, of which the first is that of the identity; a factor of 0 leaves its array out.
    template <int Outputs>
    void combine(const double *const (&factors)[Outputs], E *const (&to)[Outputs], std::initializer_list<const E *> from) const {
        for (int64_t first = 0; first < size; first += kChunk) {
            const int64_t end = std::min(first + kChunk, size);
            for (int o = 0; o < Outputs; ++o) {
                const double *factor = factors[o];
                bool begun = false;
                for (const E *source : from) {
                    const T by = T(*++factor);
                    if (by == 0) continue;
                    if (begun)
                        for (int64_t i = first; i < end; ++i) to[o][i] += by * source[i];
                    else
                        for (int64_t i = first; i < end; ++i) to[o][i] = by * source[i];
                    begun = true;
                }
            }
        }
        for (int o = 0; o < Outputs; ++o)
            if (factors[o][0] != 0)
                for (int64_t i = 0; i < n; ++i) to[o][i * (n + 1)] += T(factors[o][0]);
    }

    void add(E *to, const E *from) const {
        for (int64_t i = 0; i < size; ++i) to[i] += from[i];
    }

    // The polynomial of a degree, of `a` in the first of nine arrays.
    void polynomial(int degree, E *w, E *out) const {
        E *a = w, *a2 = w + size, *a3 = w + 2 * size, *a6 = w + 3 * size;
        E *b0 = w + 4 * size, *b1 = w + 5 * size, *b2 = w + 6 * size, *b3 = w + 7 * size;
        static constexpr double first[] = {1, 1, 0}, second[] = {1, 1, 0.5}, fourth[] = {0.5, 1.0 / 6, 1.0 / 24};
        if (degree == 0) return combine<1>({first}, {out}, {a});
        multiply(a, a, a2);
        if (degree == 1) return combine<1>({second}, {out}, {a, a2});
        if (degree == 2) {
            combine<2>({fourth, first}, {b0, out}, {a, a2});
            return multiply(a2, b0, out, true);
        }
        if (degree == 3) {
            const double inner[] = {0, p.inner8[0], p.inner8[1]}, left[] = {0, 0, p.third8, 1}, rest[] = {1, 1, p.square8, 0};
            combine<1>({inner}, {b0}, {a, a2});
            multiply(a2, b0, a6);
            combine<3>({left, p.outer8, rest}, {b1, b2, out}, {a, a2, a6});
            return multiply(b1, b2, out, true);
        }
        multiply(a2, a, a3);
        if (degree == 4) {
            combine<4>({p.rows12[0], p.rows12[1], p.rows12[2], p.rows12[3]}, {out, b1, b2, b3}, {a, a2, a3});
            multiply(b3, b3, b2, true);
            add(b1, b2);
            return multiply(b1, b2, out, true);
        }
        multiply(a3, a3, a6);
        E *b4 = w + 8 * size;
        combine<5>({p.rows18[0], p.rows18[1], p.rows18[2], p.rows18[3], p.rows18[4]}, {b0, out, b2, b3, b4}, {a, a2, a3, a6});
        multiply(b0, b4, b3, true);
        add(b2, b3);
        multiply(b2, b3, out, true);
    }

    // The matrix without gaps, and the largest sum of absolute values of a column, which is NaN if one of them is.
    double load(const char *from, E *a, double *sums) const {
        std::fill(sums, sums + n, 0.0);
        for (int64_t i = 0; i < n; ++i)
            for (int64_t j = 0; j < n; ++j) {
                std::memcpy(a + i * n + j, from + i * p.row + j * p.column, sizeof(E));
                sums[j] += double(std::abs(a[i * n + j]));
            }
        double largest = 0;
        for (int64_t j = 0; j < n; ++j) largest = sums[j] > largest || std::isnan(sums[j]) ? sums[j] : largest;
        for (int64_t j = 0; j < n; ++j)
            if (std::isnan(sums[j])) return sums[j];
        return largest;
    }

    void run(const char *from, void *work, E *out) const {
        E *w = reinterpret_cast<E *>(static_cast<double *>(work) + n);  // behind the sums of columns
        const double norm = load(from, w, static_cast<double *>(work));
        if (!std::isfinite(norm)) {
            std::fill(out, out + size, E(std::numeric_limits<T>::quiet_NaN()));
            return;
        }
        const int degree = int(std::lower_bound(p.norms, p.norms + kDegrees, norm) - p.norms);
        if (degree < kDegrees) return polynomial(degree, w, out);
        const int times = int(std::ceil(std::log2(norm / p.norms[kDegrees - 1])));
        const double scale = std::ldexp(1.0, -times);
        for (int64_t i = 0; i < size; ++i) w[i] = scaled(w[i], scale);
        polynomial(kDegrees - 1, w, out);
        E *now = out, *next = w;
        for (int i = 0; i < times; ++i) {
            multiply(now, now, next);
            std::swap(now, next);
        }
        if (now != out) std::copy(now, now + size, out);
    }

    static T scaled(T x, double scale) { return T(double(x) * scale); }
    static std::complex<T> scaled(std::complex<T> x, double scale) { return {scaled(x.real(), scale), scaled(x.imag(), scale)}; }
};

void matrix_exponential(const Exponential *p, const char *a, void *work, void *out) {
    auto run = [&](auto zero) {
        using E = decltype(zero);
        Work<E>{*p}.run(a, work, static_cast<E *>(out));
    };
    if (p->complex) p->itemsize == 8 ? run(std::complex<double>()) : run(std::complex<float>());
    else p->itemsize == 8 ? run(double()) : run(float());
}

}  // namespace

int add_exponential(PyObject *, PyObject *addresses) { return add_kernels(addresses, {kernel("matrix_exponential", matrix_exponential)}); }

}  // namespace backline
