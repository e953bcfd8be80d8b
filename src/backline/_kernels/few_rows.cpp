// Products of a few rows with a large matrix, whose elements are read once, in the order of memory, and of 16 bits as they are. A BLAS
// packs the matrix first, or reads it once for each row, and most of the time of such a product is reading. Loops over arrays of vectors
// are unrolled by pragmas: GCC 12 kept the arrays in memory with AVX2, which took up to five times as long.
#include "few_rows.hpp"
#include "halves.hpp"
#include "kernels.hpp"

#include <algorithm>

namespace backline {
namespace {

template <class T, int Bytes>
BACKLINE_INLINE T total(const typename Lanes<T, Bytes>::Vector &v) {
    if constexpr (Bytes > 16) {
        typename Lanes<T, Bytes / 2>::Vector one, other;
        std::memcpy(&one, &v, sizeof one);
        std::memcpy(&other, reinterpret_cast<const char *>(&v) + sizeof one, sizeof other);
        one = one + other;
        return total<T, Bytes / 2>(one);
    } else if constexpr (sizeof(T) == 4) {
        return (v[0] + v[2]) + (v[1] + v[3]);
    } else {
        return v[0] + v[1];
    }
}

// R rows with C columns, whose elements are neighbours each.
template <int R, int C, class S, class T, int Bytes>
BACKLINE_INLINE void dots(const FewRows &p, const T *x, const char *matrix, char *to) {
    using L = Lanes<T, Bytes>;
    using E = Elements<S, T, Bytes>;
    typename L::Vector sums[R][C] = {}, row[R], column;
    int64_t i = 0;
    for (; i + L::count <= p.length; i += L::count) {
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) L::load(row[r], x + r * p.length + i);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            E::load(column, reinterpret_cast<const S *>(matrix + c * p.step) + i);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) sums[r][c] += row[r] * column;
        }
    }
    if (i < p.length) {
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) L::load_some(row[r], x + r * p.length + i, p.length - i);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            E::load_some(column, reinterpret_cast<const S *>(matrix + c * p.step) + i, p.length - i);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) sums[r][c] += row[r] * column;
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
        T *target = reinterpret_cast<T *>(to + r * p.target_step);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) target[c] = total<T, Bytes>(sums[r][c]) + (p.keep ? target[c] : T(0));
    }
}

// R rows with all columns, some of whose elements that belong to the same element of a row are neighbours: `Some` elements of the rows.
// Two vectors at a time without AVX-512, a line of the memory: an element of a row is loaded once for both.
template <int R, int Some, class S, class T, int Bytes>
BACKLINE_INLINE void sums(const FewRows &p, int64_t columns, const T *x, const char *matrix, char *to, bool keep) {
    using L = Lanes<T, Bytes>;
    using E = Elements<S, T, Bytes>;
    auto some = [&](auto parts, int64_t i, int64_t n) __attribute__((always_inline)) {
        constexpr int P = decltype(parts)::value;
        typename L::Vector sum[R][P] = {}, elements[P];
        if (keep)
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
                for (int j = 0; j < P; ++j) L::load_some(sum[r][j], reinterpret_cast<const T *>(to + r * p.target_step) + i + j * L::count, n);
#pragma GCC unroll 8
        for (int k = 0; k < Some; ++k) {
            const S *from = reinterpret_cast<const S *>(matrix + k * p.step) + i;
            // What comes next lies in other pages, where a processor's own prefetching begins anew. With AVX2 it was slower (AMD Zen 3).
            if (Bytes == 64) __builtin_prefetch(reinterpret_cast<const char *>(from) + Some * p.step);
#pragma GCC unroll 2
            for (int j = 0; j < P; ++j) n >= L::count ? E::load(elements[j], from + j * L::count) : E::load_some(elements[j], from, n);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
                for (int j = 0; j < P; ++j) sum[r][j] += x[r * p.length + k] * elements[j];
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
            for (int j = 0; j < P; ++j) L::store_some(sum[r][j], reinterpret_cast<T *>(to + r * p.target_step) + i + j * L::count, n);
    };
    constexpr int together = Bytes == 64 ? 1 : 2;
    int64_t i = 0;
    for (; i + together * L::count <= columns; i += together * L::count) some(std::integral_constant<int, together>{}, i, L::count);
    for (; i + L::count <= columns; i += L::count) some(std::integral_constant<int, 1>{}, i, L::count);
    if (i < columns) some(std::integral_constant<int, 1>{}, i, columns - i);
}

template <class S>
struct Product {
    template <class T, int Bytes>
    static BACKLINE_INLINE void run(const FewRows &p, int64_t columns, const char *rows, const char *matrix, char *to) {
        using Source = std::conditional_t<std::is_void_v<S>, T, S>;
        if constexpr (sizeof(Source) >= sizeof(T) || sizeof(T) == 4) {
            const T *x = reinterpret_cast<const T *>(rows);
            if (p.dots) by_columns<Source, T, Bytes>(p, columns, x, matrix, to);
            else by_elements<Source, T, Bytes>(p, columns, x, matrix, to);
        }
    }

  private:
    // Calls take(R, first row) for all rows, up to four at a time: more do not fit into the registers.
    template <class Take>
    static BACKLINE_INLINE void by_rows(const FewRows &p, Take take) {
        int64_t row = 0;
        for (; row + 4 <= p.rows; row += 4) take(std::integral_constant<int, 4>{}, row);
        switch (p.rows - row) {
            case 1: return take(std::integral_constant<int, 1>{}, row);
            case 2: return take(std::integral_constant<int, 2>{}, row);
            case 3: return take(std::integral_constant<int, 3>{}, row);
        }
    }

    template <class Source, class T, int Bytes>
    static BACKLINE_INLINE void by_columns(const FewRows &p, int64_t columns, const T *x, const char *matrix, char *to) {
        constexpr int64_t most = 8;  // columns at once
        for (int64_t first = 0; first < columns; first += most, matrix += most * p.step, to += most * int64_t(sizeof(T))) {
            const int64_t n = std::min(most, columns - first);
            by_rows(p, [&](auto count, int64_t row) __attribute__((always_inline)) {
                constexpr int R = decltype(count)::value, C = R == 1 ? 8 : R < 4 || Bytes == 64 ? 4 : 2;
                const T *from = x + row * p.length;
                char *target = to + row * p.target_step;
                int64_t c = 0;
                for (; c + C <= n; c += C) dots<R, C, Source, T, Bytes>(p, from, matrix + c * p.step, target + c * int64_t(sizeof(T)));
                for (; c < n; ++c) dots<R, 1, Source, T, Bytes>(p, from, matrix + c * p.step, target + c * int64_t(sizeof(T)));
            });
        }
    }

    template <class Source, class T, int Bytes>
    static BACKLINE_INLINE void by_elements(const FewRows &p, int64_t columns, const T *x, const char *matrix, char *to) {
        constexpr int64_t most = 8;  // elements of a row at once
        bool keep = p.keep;
        int64_t k = 0;
        for (; k + most <= p.length; k += most, matrix += most * p.step, keep = true)
            by_rows(p, [&](auto count, int64_t row) __attribute__((always_inline)) {
                sums<decltype(count)::value, most, Source, T, Bytes>(p, columns, x + row * p.length + k, matrix, to + row * p.target_step, keep);
            });
        for (; k < p.length; ++k, matrix += p.step, keep = true)
            by_rows(p, [&](auto count, int64_t row) __attribute__((always_inline)) {
                sums<decltype(count)::value, 1, Source, T, Bytes>(p, columns, x + row * p.length + k, matrix, to + row * p.target_step, keep);
            });
    }
};

}  // namespace

void few_rows(const FewRows *p, int64_t columns, const char *rows, const char *matrix, char *to) {
    switch (FewRowsType(p->type)) {
        case kOfFloats: return TypedVersions<Product<void>>::table[p->level][0](*p, columns, rows, matrix, to);
        case kOfDoubles: return TypedVersions<Product<void>>::table[p->level][1](*p, columns, rows, matrix, to);
        case kOfFloat16: return TypedVersions<Product<Float16>>::table[p->level][0](*p, columns, rows, matrix, to);
        case kOfBfloat16: return TypedVersions<Product<Bfloat16>>::table[p->level][0](*p, columns, rows, matrix, to);
    }
}

int add_few_rows(PyObject *, PyObject *addresses) { return add_kernels(addresses, {kernel("few_rows", few_rows)}); }

}  // namespace backline
