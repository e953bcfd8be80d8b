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

template <class T, int Bytes>
BACKLINE_INLINE void softmax_row(const T *x, T *y, int64_t n, bool logarithm) {
    using L = Lanes<T, Bytes>;
    constexpr int step = 2 * L::count;
    const int64_t whole = (n - 1) / step * step, rest = n - whole;
    T last[step];  // what is left for two vectors, and elements that count for nothing
    for (int64_t i = 0; i < step; ++i) last[i] = i < rest ? x[whole + i] : kNothing<T>;
    typename L::Vector a, b, u, v, most;
    L::load(a, last);
    L::load(b, last + L::count);
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
    T soft[step];
    if (logarithm) {
        // The largest counts as 1, and beside it the others lose their digits, which are all that the logarithm of its own
        // probability has: their sum is taken apart as well, and is what counts unless several are the largest.
        typename L::Vector zero{}, c{}, d{};
        auto others = [&](const T *from) __attribute__((always_inline)) {
            L::load(u, from);
            L::load(v, from + L::count);
            u = u - most;
            v = v - most;
            typename L::Vector e = u, f = v;
            exponential<T, Bytes>(e);
            exponential<T, Bytes>(f);
            a += e;
            b += f;
            c += u < zero ? e : u;  // 0, or NaN, which stays
            d += v < zero ? f : v;
        };
        for (int64_t i = 0; i < whole; i += step) others(x + i);
        others(last);
        a += b;
        c += d;
        T all = joined<T, Bytes>(a, sum);
        L::fill(b, all < T(2) ? std::log1p(joined<T, Bytes>(c, sum)) : std::log(all));
        for (int64_t i = 0; i < whole; i += L::count) {
            L::load(u, x + i);
            u = (u - most) - b;
            L::store(u, y + i);
        }
        for (int64_t i = 0; i < step; i += L::count) {
            L::load(u, last + i);
            u = (u - most) - b;
            L::store(u, soft + i);
        }
    } else {
        auto soften = [&](const T *from, T *to) __attribute__((always_inline)) {
            L::load(u, from);
            L::load(v, from + L::count);
            u = u - most;
            v = v - most;
            exponential<T, Bytes>(u);
            exponential<T, Bytes>(v);
            a += u;
            b += v;
            L::store(u, to);
            L::store(v, to + L::count);
        };
        for (int64_t i = 0; i < whole; i += step) soften(x + i, y + i);
        soften(last, soft);
        a += b;
        T share = T(1) / joined<T, Bytes>(a, sum);
        for (int64_t i = 0; i < whole; i += L::count) {
            L::load(u, y + i);
            u = u * share;
            L::store(u, y + i);
        }
        for (int64_t i = 0; i < step; i += L::count) {
            L::load(u, soft + i);
            u = u * share;
            L::store(u, soft + i);
        }
    }
    std::memcpy(y + whole, soft, size_t(rest) * sizeof(T));
}

struct Rows {
    template <class T, int Bytes>
    static BACKLINE_INLINE void run(const SoftmaxRows &p, int64_t item, const char *from, char *to) {
        int64_t first = item * p.share, end = std::min(first + p.share, p.rows);
        for (int64_t row = first; row < end; ++row)
            softmax_row<T, Bytes>(reinterpret_cast<const T *>(from) + row * p.width, reinterpret_cast<T *>(to) + row * p.width, p.width,
                                  p.logarithm != 0);
    }
};

void softmax_item(const SoftmaxRows *p, int64_t item, const char *from, char *to) {
    TypedVersions<Rows>::table[p->level][p->itemsize == 8](*p, item, from, to);
}

}  // namespace

int add_softmax_rows(PyObject *, PyObject *addresses) { return add_kernels(addresses, {kernel("softmax_rows", softmax_item)}); }

}  // namespace backline
