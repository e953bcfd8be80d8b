// Results of linear algebra from what LAPACK computes: determinants and P, L, U of LU factors, complex eigenvalues and vectors of
// packed pairs, ranks, condition numbers and norms of singular values, and what pseudo-inverses are scaled by. Each works on one
// matrix, whose factors lie in columns without gaps unless a comment says otherwise.
#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>

#include "kernels.hpp"

namespace backline {
namespace {

// Written by libraries/blas/lapack_results.py: eight bytes for each field, in this order. Strides are those of the operand, in bytes.
struct Matrix {
    int64_t itemsize, complex;  // of a real number, and whether there are two for each element
    int64_t m, n, integer, row, column;
    int64_t kind;
    double atol, rtol;
};

template <class T>
constexpr T kNaN = std::numeric_limits<T>::quiet_NaN();

template <class T>
bool finite(const Matrix &p, const char *a) {
    for (int64_t i = 0; i < p.m; ++i)
        for (int64_t j = 0; j < p.n; ++j) {
            T parts[2] = {0, 0};
            std::memcpy(parts, a + i * p.row + j * p.column, sizeof(T) * (p.complex ? 2 : 1));
            if (!std::isfinite(parts[0]) || !std::isfinite(parts[1])) return false;
        }
    return true;
}

int64_t integer(const Matrix &p, const void *values, int64_t i) {
    return p.integer == 8 ? static_cast<const int64_t *>(values)[i] : static_cast<const int32_t *>(values)[i];
}

// Tells whether LAPACK met a zero pivot, which is no error here, and whether that was one of a matrix of numbers: NaN and infinity
// spread, and whether LAPACK then finds a zero among the pivots depends on the library.
struct Zero {
    bool met, spoilt;
};
template <class T>
Zero zero_pivot(const Matrix &p, const char *a, void *info) {
    bool met = integer(p, info, 0) != 0;
    if (met) std::memset(info, 0, size_t(p.integer));
    return {met, met && !finite<T>(p, a)};
}

// The wider type in which products and sums of float32 are kept.
template <class E>
using Wide = std::conditional_t<std::is_floating_point_v<E>, double, std::complex<double>>;

double times(double a, double b) { return a * b; }
std::complex<double> times(std::complex<double> a, std::complex<double> b) {  // as NumPy and LAPACK, without a look for infinity
    return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
}

// The determinant, or with `kind` its sign (a number of modulus 1, or 0) and the logarithm of its absolute value.
template <class E, class T>
void determinant_of(const Matrix &p, const char *a, const void *factors, const void *pivots, void *info, void *to, void *logarithm) {
    const E *lu = static_cast<const E *>(factors);
    const Zero zero = zero_pivot<T>(p, a, info);
    int64_t swaps = 0;
    Wide<E> product = 1;
    double sum = 0;
    for (int64_t i = 0; i < p.n; ++i) {
        swaps += integer(p, pivots, i) != i + 1;
        const Wide<E> d = lu[i * (p.n + 1)];
        if (p.kind) {
            const double size = std::abs(d);
            product = times(product, size == 0 ? Wide<E>(0) : d / size);
            sum += std::log(size);
        } else {
            product = times(product, d);
        }
    }
    if (swaps % 2) product = -product;
    if (zero.spoilt) product = Wide<E>(kNaN<double>), sum = kNaN<double>;
    else if (zero.met) product = 0;
    *static_cast<E *>(to) = E(product);
    if (p.kind) *static_cast<T *>(logarithm) = product == Wide<E>(0) ? -std::numeric_limits<T>::infinity() : T(sum);
}

void determinant(const Matrix *p, const char *a, const void *lu, const void *pivots, void *info, void *to, void *logarithm) {
    if (p->complex)
        (p->itemsize == 8 ? determinant_of<std::complex<double>, double> : determinant_of<std::complex<float>, float>)(
            *p, a, lu, pivots, info, to, logarithm);
    else (p->itemsize == 8 ? determinant_of<double, double> : determinant_of<float, float>)(*p, a, lu, pivots, info, to, logarithm);
}

// P (m, m), L (m, k) and U (k, n) in rows.
template <class E, class T>
void triangles_of(const Matrix &p, const char *a, const void *factors, const void *pivots, void *info, void *to, void *lower, void *upper,
                  int64_t *order) {
    const E *lu = static_cast<const E *>(factors);
    E *l = static_cast<E *>(lower), *u = static_cast<E *>(upper), *permutation = static_cast<E *>(to);
    const int64_t m = p.m, n = p.n, k = std::min(m, n);
    const bool spoilt = zero_pivot<T>(p, a, info).spoilt;
    auto factor = [&](int64_t i, int64_t j) { return spoilt ? E(kNaN<T>) : lu[i + j * m]; };
    for (int64_t i = 0; i < m; ++i) order[i] = i;
    for (int64_t i = 0; i < k; ++i) std::swap(order[i], order[integer(p, pivots, i) - 1]);
    std::fill(permutation, permutation + m * m, E(0));
    for (int64_t i = 0; i < m; ++i) permutation[order[i] * m + i] = E(1);
    for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < k; ++j) l[i * k + j] = i > j ? factor(i, j) : i == j ? E(1) : E(0);
    for (int64_t i = 0; i < k; ++i)
        for (int64_t j = 0; j < n; ++j) u[i * n + j] = i <= j ? factor(i, j) : E(0);
}

void triangles(const Matrix *p, const char *a, const void *lu, const void *pivots, void *info, void *to, void *lower, void *upper,
               int64_t *order) {
    auto run = p->complex ? (p->itemsize == 8 ? triangles_of<std::complex<double>, double> : triangles_of<std::complex<float>, float>)
                          : (p->itemsize == 8 ? triangles_of<double, double> : triangles_of<float, float>);
    run(*p, a, lu, pivots, info, to, lower, upper, order);
}

// Eigenvalues of a real matrix, and its eigenvectors: column j of the packed ones is the real part of a pair's first vector, column
// j + 1 the imaginary part; of a real value it is the vector.
template <class T>
void eigen_of(const Matrix &p, const T *real, const T *imaginary, const T *packed, std::complex<T> *values, std::complex<T> *vectors) {
    const int64_t n = p.n;
    for (int64_t i = 0; i < n; ++i) values[i] = {real[i], imaginary[i]};
    if (!p.kind) return;
    for (int64_t j = 0; j < n; ++j) {
        const T *x = packed + j * n, *y = x + n;
        std::complex<T> *to = vectors + j * n;
        if (imaginary[j] > 0 && j + 1 < n) {
            for (int64_t i = 0; i < n; ++i) to[i] = {x[i], y[i]}, to[n + i] = {x[i], -y[i]};
            ++j;
        } else {
            for (int64_t i = 0; i < n; ++i) to[i] = x[i];
        }
    }
}

void eigen(const Matrix *p, const void *real, const void *imaginary, const void *packed, void *values, void *vectors) {
    auto run = [&](auto zero) {
        using T = decltype(zero);
        eigen_of<T>(*p, static_cast<const T *>(real), static_cast<const T *>(imaginary), static_cast<const T *>(packed),
                    static_cast<std::complex<T> *>(values), static_cast<std::complex<T> *>(vectors));
    };
    p->itemsize == 8 ? run(double(0)) : run(float(0));
}

// Of singular values, which descend: kinds as lapack_results.py names them.
enum Summary : int64_t { kRank, kCondition, kInverseCondition, kNuclearCondition, kNuclear, kLargest, kSmallest };

template <class T>
T limit_of(const Matrix &p, T largest) {
    return std::max(T(p.atol), T(p.rtol) * largest);
}

template <class T>
void summary_of(const Matrix &p, const T *s, void *to) {
    const int64_t n = std::min(p.m, p.n);
    if (p.kind == kRank) {
        const T limit = limit_of(p, s[0]);
        int64_t rank = 0;
        for (int64_t i = 0; i < n; ++i) rank += s[i] > limit;
        std::memcpy(to, &rank, sizeof rank);
        return;
    }
    double sum = 0, inverses = 0;
    T result = 0;
    switch (Summary(p.kind)) {
        case kCondition: result = s[0] / s[n - 1]; break;
        case kInverseCondition: result = s[n - 1] / s[0]; break;
        case kLargest: result = s[0]; break;
        case kSmallest: result = s[n - 1]; break;
        default:
            for (int64_t i = 0; i < n; ++i) sum += double(s[i]), inverses += double(T(1) / s[i]);
            result = p.kind == kNuclear ? T(sum) : T(T(sum) * T(inverses));
    }
    std::memcpy(to, &result, sizeof result);
}

void summary(const Matrix *p, const void *s, void *to) {
    p->itemsize == 8 ? summary_of(*p, static_cast<const double *>(s), to) : summary_of(*p, static_cast<const float *>(s), to);
}

// The condition number by the norms of a matrix and its inverse; `kind` is a Norm, and kInColumns where the inverse lies in columns.
enum Norm : int64_t { kLargestColumn, kSmallestColumn, kLargestRow, kSmallestRow, kFrobenius, kInColumns = 8 };

// Of squares that leave the range of float64, with a scale.
template <class E>
double frobenius(const Matrix &p, const char *a, int64_t row, int64_t column) {
    double scale = 1;
    auto sum = [&] {
        double total = 0;
        for (int64_t i = 0; i < p.n; ++i)
            for (int64_t j = 0; j < p.n; ++j) {
                E x;
                std::memcpy(&x, a + i * row + j * column, sizeof x);
                const double size = std::abs(Wide<E>(x)) / scale;
                total += size * size;
            }
        return total;
    };
    double total = sum();
    if (total > 1e-280 && total < std::numeric_limits<double>::infinity()) return std::sqrt(total);
    double largest = 0;
    for (int64_t i = 0; i < p.n; ++i)
        for (int64_t j = 0; j < p.n; ++j) {
            E x;
            std::memcpy(&x, a + i * row + j * column, sizeof x);
            const double size = std::abs(Wide<E>(x));
            if (!std::isfinite(size)) return total;
            largest = std::max(largest, size);
        }
    if (largest == 0) return 0;
    scale = largest;
    return largest * std::sqrt(sum());
}

template <class E>
double norm_of(const Matrix &p, int64_t kind, const char *a, int64_t row, int64_t column) {
    if (kind == kFrobenius) return frobenius<E>(p, a, row, column);
    if (kind == kLargestRow || kind == kSmallestRow) std::swap(row, column);
    const bool largest = kind == kLargestColumn || kind == kLargestRow;
    double result = 0;
    for (int64_t j = 0; j < p.n; ++j) {
        double sum = 0;
        for (int64_t i = 0; i < p.n; ++i) {
            E x;
            std::memcpy(&x, a + i * row + j * column, sizeof x);
            sum += std::abs(Wide<E>(x));
        }
        if (std::isnan(sum)) return sum;
        result = j == 0 || (largest ? sum > result : sum < result) ? sum : result;
    }
    return result;
}

template <class E, class T>
void inverse_condition_of(const Matrix &p, const char *a, const char *inverse, void *info, T *to) {
    const Zero zero = zero_pivot<T>(p, a, info);
    if (zero.met) {
        *to = zero.spoilt ? kNaN<T> : std::numeric_limits<T>::infinity();
        return;
    }
    const int64_t near = sizeof(E), far = p.n * near, kind = p.kind % kInColumns;
    const bool columns = p.kind >= kInColumns;
    T result = T(norm_of<E>(p, kind, a, p.row, p.column)) * T(norm_of<E>(p, kind, inverse, columns ? near : far, columns ? far : near));
    // The inverse of numbers near 0 leaves the range: infinity times 0 is no number, and the norm of such an inverse is infinite.
    if (std::isnan(result) && finite<T>(p, a)) result = std::numeric_limits<T>::infinity();
    *to = result;
}

void inverse_condition(const Matrix *p, const char *a, const char *inverse, void *info, void *to) {
    auto run = [&](auto zero) {
        using T = decltype(zero);
        if (p->complex) inverse_condition_of<std::complex<T>>(*p, a, inverse, info, static_cast<T *>(to));
        else inverse_condition_of<T>(*p, a, inverse, info, static_cast<T *>(to));
    };
    p->itemsize == 8 ? run(double(0)) : run(float(0));
}

// Divides the k rows of a matrix by singular values; those of values that count as zero become zero. Strides in elements of the type.
template <class E, class T>
void divided_of(const Matrix &p, const T *s, E *rows) {
    const int64_t k = std::min(p.m, p.n);
    const T limit = limit_of(p, s[0]);
    for (int64_t i = 0; i < k; ++i) {
        const bool kept = s[i] > limit;
        const T factor = kept ? T(1) / s[i] : T(0);
        for (int64_t j = 0; j < p.kind; ++j) {
            E &x = rows[i * p.row + j * p.column];
            x = kept ? E(x * factor) : E(0);
        }
    }
}

void divided(const Matrix *p, const void *s, void *rows) {
    auto run = [&](auto zero) {
        using T = decltype(zero);
        if (p->complex) divided_of(*p, static_cast<const T *>(s), static_cast<std::complex<T> *>(rows));
        else divided_of(*p, static_cast<const T *>(s), static_cast<T *>(rows));
    };
    p->itemsize == 8 ? run(double(0)) : run(float(0));
}

// The info of a factorization in panels of `width` columns, k in all: that of the first panel that has one, counted from the first
// column, unless one is set already. Pivots of a panel, counted from its first row, are counted from that of the matrix.
struct Panels {
    int64_t integer, k, width;
};

template <class I>
void results_of_panels(const Panels &p, const I *infos, I *pivots, I *info) {
    for (int64_t j = 0, i = 0; j < p.k; j += p.width, ++i) {
        if (*info == 0 && infos[i] != 0) *info = infos[i] < 0 ? infos[i] : I(infos[i] + j);
        for (int64_t r = j; pivots && r < std::min(j + p.width, p.k); ++r) pivots[r] += I(j);
    }
}

void panel_results(const Panels *p, const void *infos, void *pivots, void *info) {
    auto run = [&](auto zero) {
        using I = decltype(zero);
        results_of_panels(*p, static_cast<const I *>(infos), static_cast<I *>(pivots), static_cast<I *>(info));
    };
    p->integer == 8 ? run(int64_t(0)) : run(int32_t(0));
}

}  // namespace

int add_matrix_results(PyObject *, PyObject *addresses) {
    return add_kernels(addresses, {kernel("determinant", determinant), kernel("lu_triangles", triangles), kernel("eigen_pairs", eigen),
                                   kernel("singular_summary", summary), kernel("divided_rows", divided),
                                   kernel("inverse_condition", inverse_condition), kernel("panel_results", panel_results)});
}

}  // namespace backline
