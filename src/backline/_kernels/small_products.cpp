// Products of small matrices, in vectors along the rows of the results. A BLAS is made for large ones: of a small one, its copies and its
// calls take most of the time.
#include "../_core/copy.hpp"
#include "kernels.hpp"
#include "lanes.hpp"

#include <algorithm>
#include <utility>

namespace backline {
namespace {

constexpr int64_t kCopied = 1 << 11;  // numbers of a right matrix that is copied at most: MOST_COPIED of libraries/kernels/small_products.py
constexpr int64_t kBlocked = 8, kBlockedNumbers = 256;  // columns and numbers of four bytes from which copies by blocks were faster (Intel Xeon)

// Written by libraries/kernels/small_products.py: eight bytes for each field, in this order. Strides are bytes; elements of a row of
// results are neighbours, and those of a row of the right matrix unless it is `copied`.
struct SmallProducts {
    int64_t itemsize, parts;  // bytes of a real number, and how many of those a number is
    int64_t level, rows, columns, length;  // `length`: terms of a sum
    int64_t left_row, left_element, left_item;
    int64_t right_row, right_column, right_item, copied;
    int64_t target_row, target_item;
};

// Each element's neighbour of its pair, with the sign that the product of two imaginary parts has in the real one.
template <class V, class T, int... I>
BACKLINE_INLINE void exchange_parts(V &v, std::integer_sequence<int, I...>) {
    const V signs = {(I % 2 ? T(1) : T(-1))...};
    v = __builtin_shufflevector(v, v, (I ^ 1)...) * signs;
}

// R rows with P vectors of columns, of which the last begins at element `last`: it may overlap the one before. A number has `Parts`
// elements: of complex ones, products with the imaginary part are summed up aside.
template <int R, int P, int Parts, class T, int Bytes>
BACKLINE_INLINE void sums(const SmallProducts &p, const char *left, const T *right, int64_t step, char *to, int64_t last) {
    using L = Lanes<T, Bytes>;
    typename L::Vector sum[Parts][R][P] = {}, row[P];
    for (int64_t e = 0; e < p.length; ++e, left += p.left_element, right += step) {
#pragma GCC unroll 3
        for (int j = 0; j < P; ++j) L::load(row[j], right + (j + 1 < P ? j * L::count : last));
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const T *x = reinterpret_cast<const T *>(left + r * p.left_row);
#pragma GCC unroll 2
            for (int part = 0; part < Parts; ++part)
#pragma GCC unroll 3
                for (int j = 0; j < P; ++j) sum[part][r][j] += x[part] * row[j];
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 3
        for (int j = 0; j < P; ++j) {
            if constexpr (Parts == 2) {
                exchange_parts<typename L::Vector, T>(sum[1][r][j], std::make_integer_sequence<int, L::count>{});
                sum[0][r][j] += sum[1][r][j];
            }
            L::store(sum[0][r][j], reinterpret_cast<T *>(to + r * p.target_row) + (j + 1 < P ? j * L::count : last));
        }
}

// All rows with P vectors of columns, in blocks of about as many rows each.
template <int P, int Parts, class T, int Bytes>
BACKLINE_INLINE void by_rows(const SmallProducts &p, const char *left, const T *right, int64_t step, char *to, int64_t last) {
    constexpr int64_t most = 4 / Parts;
    for (int64_t row = 0, blocks = (p.rows + most - 1) / most; blocks > 0; --blocks) {
        const int64_t some = (p.rows - row + blocks - 1) / blocks;
        const char *from = left + row * p.left_row;
        char *target = to + row * p.target_row;
        if (some == 1) sums<1, P, Parts, T, Bytes>(p, from, right, step, target, last);
        else if (some == 2) sums<2, P, Parts, T, Bytes>(p, from, right, step, target, last);
        else if constexpr (most == 4) {
            if (some == 3) sums<3, P, Parts, T, Bytes>(p, from, right, step, target, last);
            else sums<4, P, Parts, T, Bytes>(p, from, right, step, target, last);
        }
        row += some;
    }
}

// All elements of the rows of results, in vectors that are no longer than a row: where it does not fill one, in one or two of fewer bytes.
template <int Parts, class T, int Bytes, bool Whole = true>
BACKLINE_INLINE void by_columns(const SmallProducts &p, const char *left, const T *right, int64_t step, char *to) {
    constexpr int64_t count = Bytes / int64_t(sizeof(T));
    const int64_t elements = p.columns * Parts;
    if constexpr (count > Parts) {
        if (elements < count) return by_columns<Parts, T, Bytes / 2, false>(p, left, right, step, to);
    }
    for (int64_t first = 0, vectors = (elements + count - 1) / count; vectors > 0;) {
        const int64_t panels = (vectors + 2) / 3, some = (vectors + panels - 1) / panels;
        const int64_t last = std::min((some - 1) * count, elements - count - first);
        const T *from = right + first;
        char *target = to + first * int64_t(sizeof(T));
        if (some == 1) by_rows<1, Parts, T, Bytes>(p, left, from, step, target, last);
        else if (!Whole || some == 2) by_rows<2, Parts, T, Bytes>(p, left, from, step, target, last);
        else by_rows<3, Parts, T, Bytes>(p, left, from, step, target, last);
        first += some * count, vectors -= some;
    }
}

template <int Parts>
struct Batch {
    template <class T, int Bytes>
    static BACKLINE_INLINE void run(const SmallProducts &p, int64_t items, const char *left, const char *right, char *to) {
        struct Number {
            T parts[Parts];
        };
        constexpr int64_t size = sizeof(Number);
        const Copy2D in_blocks{Element::raw4, p.length, p.columns, p.right_row, p.right_column, p.columns * size, size};
        const bool blocks = size == 4 && p.columns >= kBlocked && p.length * p.columns >= kBlockedNumbers;
        Number copy[kCopied];
        for (int64_t i = 0; i < items; ++i, left += p.left_item, right += p.right_item, to += p.target_item) {
            if (p.copied && (i == 0 || p.right_item)) {
                if (blocks) in_blocks.run(right, reinterpret_cast<char *>(copy));
                else
                    for (int64_t e = 0; e < p.length; ++e)
                        for (int64_t c = 0; c < p.columns; ++c)
                            copy[e * p.columns + c] = *reinterpret_cast<const Number *>(right + e * p.right_row + c * p.right_column);
            }
            const T *rows = p.copied ? copy[0].parts : reinterpret_cast<const T *>(right);
            by_columns<Parts, T, Bytes>(p, left, rows, p.copied ? p.columns * Parts : p.right_row / int64_t(sizeof(T)), to);
        }
    }
};

void small_products(const SmallProducts *p, int64_t items, const char *left, const char *right, char *to) {
    const auto &table = p->parts == 2 ? TypedVersions<Batch<2>>::table : TypedVersions<Batch<1>>::table;
    table[p->level][p->itemsize == 8](*p, items, left, right, to);
}

}  // namespace

int add_small_products(PyObject *, PyObject *addresses) { return add_kernels(addresses, {kernel("small_products", small_products)}); }

}  // namespace backline
