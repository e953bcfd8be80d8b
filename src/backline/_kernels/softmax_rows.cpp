// Softmax and its logarithm of rows without gaps, in vectors: one reading of the memory, and NaN and infinity as the formulas have
// them. A row whose largest element is infinite, or that has a NaN, becomes NaN: nothing has to be looked for.
#include <algorithm>
#include <cmath>

#include "kernels.hpp"
#include "softmax.hpp"

namespace backline {
namespace {

// Written by libraries/kernels/compiled_loops.py: eight bytes for each field, in this order. The item is `share` rows.
struct SoftmaxRows {
    int64_t itemsize, level, logarithm, rows, width, share;
};

// The lanes of a vector as one number, halves with halves.
template <class T, int Bytes, class Join>
BACKLINE_INLINE T joined(const typename Lanes<T, Bytes>::Vector &v, Join join) {
    if constexpr (Bytes > 16) {
        typename Lanes<T, Bytes / 2>::Vector low, high;
        std::memcpy(&low, &v, sizeof low);
        std::memcpy(&high, reinterpret_cast<const char *>(&v) + sizeof low, sizeof high);
        join(low, high);
        return joined<T, Bytes / 2>(low, join);
    } else {
        T first = v[0];
        for (int i = 1; i < Lanes<T, Bytes>::count; ++i) {
            T other = v[i];
            join(first, other);
        }
        return first;
    }
}

// The last lanes of a vector, as many as the place in the table where their mask begins.
template <class T, int Bytes>
BACKLINE_INLINE void last_lanes(typename Lanes<T, Bytes>::Bits &mask, int64_t n) {
    using Integer = typename Lanes<T, Bytes>::Integer;
    constexpr int count = Lanes<T, Bytes>::count;
    struct Table {
        Integer masks[2 * count];
        constexpr Table() : masks() {
            for (int i = 0; i < count; ++i) masks[i] = 0, masks[count + i] = Integer(-1);
        }
    };
    static constexpr Table table;
    std::memcpy(&mask, table.masks + n, sizeof mask);
}

// What loops over two vectors at a time leave of a row, at most two vectors: they overlap what was before, or each other, and count by their
// masks. They are read before anything is written, for that may be the same row. A row shorter than a vector is one by itself, filled up
// with what counts for nothing.
template <class T, int Bytes>
struct RowEnd {
    using L = Lanes<T, Bytes>;
    static constexpr int64_t step = 2 * L::count;
    int64_t n, whole, first_at, second_at;
    typename L::Vector first, second;
    typename L::Bits first_counts, second_counts;

    BACKLINE_INLINE RowEnd(int64_t length) : n(length), whole(n < L::count ? 0 : (n - 1) / step * step) {
        const int64_t rest = n - whole;
        second_at = n < L::count ? 0 : n - L::count, first_at = rest > L::count ? whole : second_at;
        last_lanes<T, Bytes>(first_counts, rest > L::count ? L::count : 0);
        last_lanes<T, Bytes>(second_counts, n < L::count ? L::count : rest > L::count ? rest - L::count : rest);
    }
    BACKLINE_INLINE void load(const T *x) {
        if (n < L::count) {
#pragma GCC unroll 4
            for (int i = 0; i < L::count; ++i) first[i] = i < n ? x[i] : kNothing<T>;  // in registers: a load would wait for these stores
            second = first;
        } else {
            L::load(first, x + first_at);
            L::load(second, x + second_at);
        }
    }
    BACKLINE_INLINE void store(T *y) const {
        if (n < L::count) {
#pragma GCC unroll 4
            for (int i = 0; i < L::count; ++i)
                if (i < n) y[i] = second[i];
            return;
        }
        L::store(first, y + first_at);
        L::store(second, y + second_at);
    }
    static BACKLINE_INLINE void counted(typename L::Vector &value, const typename L::Bits &mask) {
        typename L::Bits bits;
        reinterpret(bits, value);
        bits = bits & mask;
        reinterpret(value, bits);
    }
    // Both, and their exponentials, to the sums of all terms and of those that are not the largest, where first and second have the elements
    // less the largest.
    BACKLINE_INLINE void add(typename L::Vector &all, typename L::Vector &others) const {
        typename L::Vector zero{}, u = first, v = second, e = first, f = second;
        exponential<T, Bytes>(e);
        exponential<T, Bytes>(f);
        u = u < zero ? e : u;  // 0, or NaN, which stays
        v = v < zero ? f : v;
        counted(e, first_counts), counted(f, second_counts), counted(u, first_counts), counted(v, second_counts);
        all += e;
        all += f;
        others += u;
        others += v;
    }
};

template <class T, int Bytes>
BACKLINE_INLINE void softmax_row(const T *x, T *y, int64_t n, bool logarithm) {
    using L = Lanes<T, Bytes>;
    RowEnd<T, Bytes> end(n);
    constexpr int64_t step = end.step;
    const int64_t whole = end.whole;
    typename L::Vector a, b, u, v, most;
    end.load(x);
    a = end.first;
    b = end.second;
    // NaN fails every comparison: it is no largest element, unless it is there from the beginning. The sum has it then.
    for (int64_t i = 0; i < whole; i += step) {
        L::load(u, x + i);
        L::load(v, x + i + L::count);
        a = u > a ? u : a;
        b = v > b ? v : b;
    }
    auto larger = [](auto &left, const auto &right) __attribute__((always_inline)) { left = right > left ? right : left; };
    larger(a, b);
    // A NaN may have hidden what is in its lane, or all of them: it is in the result of every element.
    T largest = joined<T, Bytes>(a, larger);
    L::fill(most, largest);
    a = typename L::Vector{};
    b = a;
    auto sum = [](auto &left, const auto &right) __attribute__((always_inline)) { left += right; };
    end.first = end.first - most;
    end.second = end.second - most;
    if (logarithm) {
        // The largest counts as 1, and beside it the others lose their digits, which are all that the logarithm of its own
        // probability has: their sum is taken apart as well, and is what counts unless several are the largest.
        typename L::Vector zero{}, c{}, d{}, e, f;
        for (int64_t i = 0; i < whole; i += step) {
            L::load(u, x + i);
            L::load(v, x + i + L::count);
            u = u - most;
            v = v - most;
            e = u;
            f = v;
            exponential<T, Bytes>(e);
            exponential<T, Bytes>(f);
            a += e;
            b += f;
            c += u < zero ? e : u;  // 0, or NaN, which stays
            d += v < zero ? f : v;
        }
        end.add(a, c);
        a += b;
        c += d;
        L::fill(b, logarithm_of_sum(joined<T, Bytes>(a, sum), joined<T, Bytes>(c, sum)));
        for (int64_t i = 0; i < whole; i += L::count) {
            L::load(u, x + i);
            u = (u - most) - b;
            L::store(u, y + i);
        }
        end.first = end.first - b;
        end.second = end.second - b;
    } else {
        for (int64_t i = 0; i < whole; i += step) {
            L::load(u, x + i);
            L::load(v, x + i + L::count);
            u = u - most;
            v = v - most;
            exponential<T, Bytes>(u);
            exponential<T, Bytes>(v);
            a += u;
            b += v;
            L::store(u, y + i);
            L::store(v, y + i + L::count);
        }
        exponential<T, Bytes>(end.first);
        exponential<T, Bytes>(end.second);
        u = end.first;
        v = end.second;
        end.counted(u, end.first_counts);
        end.counted(v, end.second_counts);
        a += u;
        b += v;
        a += b;
        T share = T(1) / joined<T, Bytes>(a, sum);
        for (int64_t i = 0; i < whole; i += L::count) {
            L::load(u, y + i);
            u = u * share;
            L::store(u, y + i);
        }
        end.first = end.first * share;
        end.second = end.second * share;
    }
    end.store(y);
}

constexpr int64_t kShortRows = 16;

// Logarithms of rows of floats, of two vectors at most: those of their sums are taken together, for one of them waits for itself.
template <class T, int Bytes>
BACKLINE_INLINE void logarithms_of_short_rows(const T *x, T *y, int64_t rows, int64_t n) {
    using L = Lanes<T, Bytes>;
    RowEnd<T, Bytes> end(n);
    double all[kShortRows] = {}, others[kShortRows] = {};
    T most[kShortRows];
    for (int64_t i = 0; i < rows; ++i) {
        end.load(x + i * n);
        typename L::Vector a = end.first, b{}, c{};
        auto larger = [](auto &left, const auto &right) __attribute__((always_inline)) { left = right > left ? right : left; };
        auto sum = [](auto &left, const auto &right) __attribute__((always_inline)) { left += right; };
        larger(a, end.second);
        most[i] = joined<T, Bytes>(a, larger);
        end.first = end.first - most[i];
        end.second = end.second - most[i];
        end.add(b, c);
        all[i] = double(joined<T, Bytes>(b, sum));
        others[i] = double(joined<T, Bytes>(c, sum));
    }
    using D = Lanes<double, Bytes>;
    for (int64_t i = 0; i < rows; i += D::count) {
        typename D::Vector x_all, x_others;
        D::load(x_all, all + i);
        D::load(x_others, others + i);
        logarithms_of_sums<Bytes>(x_all, x_others);
        D::store(x_all, all + i);
    }
    for (int64_t i = 0; i < rows; ++i) {
        end.load(x + i * n);
        end.first = (end.first - most[i]) - T(all[i]);
        end.second = (end.second - most[i]) - T(all[i]);
        end.store(y + i * n);
    }
}

struct Rows {
    template <class T, int Bytes>
    static BACKLINE_INLINE void run(const SoftmaxRows &p, int64_t item, const char *from, char *to) {
        if constexpr (Bytes > 16)  // two narrower vectors overlap, and need not be filled up as one wide vector
            if (p.width <= Lanes<T, Bytes>::count) return run<T, Bytes / 2>(p, item, from, to);
        const int64_t first = item * p.share, rows = std::min(p.share, p.rows - first), n = p.width;
        const T *x = reinterpret_cast<const T *>(from) + first * n;
        T *y = reinterpret_cast<T *>(to) + first * n;
        if (sizeof(T) == 4 && p.logarithm && n <= RowEnd<T, Bytes>::step) {
            for (int64_t i = 0; i < rows; i += kShortRows) logarithms_of_short_rows<T, Bytes>(x + i * n, y + i * n, std::min(kShortRows, rows - i), n);
        } else {
            for (int64_t i = 0; i < rows; ++i) softmax_row<T, Bytes>(x + i * n, y + i * n, n, p.logarithm != 0);
        }
    }
};

void softmax_item(const SoftmaxRows *p, int64_t item, const char *from, char *to) {
    TypedVersions<Rows>::table[p->level][p->itemsize == 8](*p, item, from, to);
}

}  // namespace

int add_softmax_rows(PyObject *, PyObject *addresses) { return add_kernels(addresses, {kernel("softmax_rows", softmax_item)}); }

}  // namespace backline
