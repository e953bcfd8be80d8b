// Softmax and its logarithm of columns side by side, in vectors: NaN and infinity as in softmax_rows.cpp.
#include <algorithm>

#include "kernels.hpp"
#include "softmax.hpp"

namespace backline {
namespace {

// Written by libraries/kernels/compiled_loops.py: eight bytes for each field, in this order. `step` elements lie between the elements of one in what is read, `target_step` in what is written.
struct SoftmaxColumns {
    int64_t itemsize, level, logarithm, width, step, target_step;
};

// How many of a sum's terms are added up before they join the others. The roundings are fewest where groups have about as many terms as
// there are groups.
inline int64_t terms_of_a_group(int64_t terms) { return std::max<int64_t>(16, std::llround(std::sqrt(double(terms)))); }

constexpr int64_t kAhead = 16;  // rows

// Columns of so many vectors, of which the last may overlap those before it: each row is read before it is written, for input and result may be
// the same memory. Columns that are fewer than a vector's elements are filled up to one.
template <class T, int Bytes, int Parts, bool Logarithm>
BACKLINE_INLINE void softmax_of_columns(const SoftmaxColumns &p, const T *x, T *y, int64_t columns) {
    using L = Lanes<T, Bytes>;
    using V = typename L::Vector;
    const int64_t some = Parts > 1 ? L::count : columns, end = columns - some;
    V u[Parts], most[Parts], sum[Parts] = {}, others[Parts] = {}, zero{};
    auto load = [&](const T *row) __attribute__((always_inline)) {
#pragma GCC unroll 4
        for (int j = 0; j < Parts; ++j) L::load_some(u[j], row + std::min<int64_t>(j * L::count, end), some);
    };
    auto store = [&](T *row) __attribute__((always_inline)) {
#pragma GCC unroll 4
        for (int j = 0; j < Parts; ++j) L::store_some(u[j], row + std::min<int64_t>(j * L::count, end), some);
    };
#pragma GCC unroll 4
    for (int j = 0; j < Parts; ++j) L::fill(most[j], kNothing<T>);
    // Rows lie in pages of their own, of which a processor fetches nothing ahead.
    auto fetch = [&](const T *row) __attribute__((always_inline)) {
        const char *first = reinterpret_cast<const char *>(row);
#pragma GCC unroll 4
        for (int at = 0; at < Parts * Bytes; at += 64) __builtin_prefetch(first + at);
        __builtin_prefetch(reinterpret_cast<const char *>(row + columns) - 1);
    };
    for (int64_t i = 0; i < p.width; ++i) {
        load(x + i * p.step);
#pragma GCC unroll 4
        for (int j = 0; j < Parts; ++j) most[j] = u[j] > most[j] ? u[j] : most[j];
    }
    const int64_t group = terms_of_a_group(p.width);
    for (int64_t first = 0; first < p.width; first += group) {
        V part[Parts] = {}, other_part[Parts] = {};
        for (int64_t i = first; i < std::min(first + group, p.width); ++i) {
            const int64_t next = std::min(i + kAhead, p.width - 1);
            fetch(x + next * p.step);
            if (!Logarithm) fetch(y + next * p.target_step);
            load(x + i * p.step);
#pragma GCC unroll 4
            for (int j = 0; j < Parts; ++j) {
                V v = u[j] = u[j] - most[j];
                exponential<T, Bytes>(v);
                part[j] += v;
                if (Logarithm) other_part[j] += u[j] < zero ? v : u[j];  // as of rows
                else u[j] = v;
            }
            if (!Logarithm) store(y + i * p.target_step);
        }
#pragma GCC unroll 4
        for (int j = 0; j < Parts; ++j) sum[j] += part[j], others[j] += other_part[j];
    }
    for (int j = 0; j < Parts; ++j) {
        if (Logarithm) logarithms_of_sums_in_lanes<T, Bytes>(sum[j], others[j]);
        else sum[j] = T(1) / sum[j];
    }
    for (int64_t i = 0; i < p.width; ++i) {
        if (Logarithm) load(x + i * p.step);
        else load(y + i * p.target_step);
#pragma GCC unroll 4
        for (int j = 0; j < Parts; ++j) u[j] = Logarithm ? (u[j] - most[j]) - sum[j] : u[j] * sum[j];
        store(y + i * p.target_step);
    }
}

// Fewer columns than a vector has elements, whose rows have no gaps between them: as many vectors as there are columns hold whole rows, and
// the next ones have the same columns in the same lanes again.
template <class T, int Bytes, bool Logarithm>
BACKLINE_INLINE void softmax_of_few_columns(const T *x, T *y, int64_t rows, int64_t columns) {
    using L = Lanes<T, Bytes>;
    using V = typename L::Vector;
    constexpr int64_t one = L::count;
    const int64_t size = rows * columns, round = columns * one, group = terms_of_a_group(rows / one) * round;
    V most[one], sum[one] = {}, others[one] = {}, part[one], other_part[one], u, v, zero{};
    auto load = [&](int64_t at) __attribute__((always_inline)) {
        if (at + one <= size) return L::load(u, x + at);
        L::fill(u, kNothing<T>);
        for (int64_t lane = 0; lane < size - at; ++lane) u[lane] = x[at + lane];
    };
    auto of_columns = [&](V *lanes, T *values, auto join) __attribute__((always_inline)) {
        for (int64_t i = 0, column = 0; i < round; ++i, column = column + 1 == columns ? 0 : column + 1) join(values[column], lanes[i / one][i % one]);
    };
    auto to_lanes = [&](V *lanes, const T *values) __attribute__((always_inline)) {
        for (int64_t i = 0, column = 0; i < round; ++i, column = column + 1 == columns ? 0 : column + 1) lanes[i / one][i % one] = values[column];
    };
    for (int64_t j = 0; j < columns; ++j) L::fill(most[j], kNothing<T>);
    for (int64_t first = 0; first < size; first += round)
        for (int64_t j = 0; j < columns && first + j * one < size; ++j) {
            load(first + j * one);
            most[j] = u > most[j] ? u : most[j];
        }
    T largest[one], all[one] = {}, other[one] = {};
    std::fill(largest, largest + columns, kNothing<T>);
    of_columns(most, largest, [](T &left, T right) { left = right > left ? right : left; });
    to_lanes(most, largest);
    for (int64_t begin = 0; begin < size; begin += group) {
        for (int64_t j = 0; j < columns; ++j) part[j] = other_part[j] = zero;
        for (int64_t first = begin; first < std::min(begin + group, size); first += round)
            for (int64_t j = 0; j < columns && first + j * one < size; ++j) {
                const int64_t at = first + j * one;
                load(at);
                v = u = u - most[j];
                exponential<T, Bytes>(v);
                part[j] += v;
                if (Logarithm) other_part[j] += u < zero ? v : u;  // as of rows
                else L::store_some(v, y + at, size - at);
            }
        for (int64_t j = 0; j < columns; ++j) sum[j] += part[j], others[j] += other_part[j];
    }
    of_columns(sum, all, [](T &left, T right) { left += right; });
    of_columns(others, other, [](T &left, T right) { left += right; });
    for (int64_t j = 0; j < columns; ++j) all[j] = Logarithm ? logarithm_of_sum(all[j], other[j]) : T(1) / all[j];
    to_lanes(sum, all);
    for (int64_t first = 0; first < size; first += round)
        for (int64_t j = 0; j < columns && first + j * one < size; ++j) {
            const int64_t at = first + j * one;
            L::load_some(u, (Logarithm ? x : y) + at, size - at);
            u = Logarithm ? (u - most[j]) - sum[j] : u * sum[j];
            L::store_some(u, y + at, size - at);
        }
}

struct Columns {
    template <class T, int Bytes>
    static BACKLINE_INLINE void run(const SoftmaxColumns &p, int64_t columns, const char *from, char *to) {
        p.logarithm ? all<T, Bytes, true>(p, columns, from, to) : all<T, Bytes, false>(p, columns, from, to);
    }
    // Four vectors at a time, more of each line and page that is read; three, where less than one would be left.
    template <class T, int Bytes, bool Logarithm>
    static BACKLINE_INLINE void all(const SoftmaxColumns &p, int64_t columns, const char *from, char *to) {
        constexpr int64_t one = Lanes<T, Bytes>::count;
        const T *x = reinterpret_cast<const T *>(from);
        T *y = reinterpret_cast<T *>(to);
        if (columns < one && p.step == columns && p.target_step == columns)
            return softmax_of_few_columns<T, Bytes, Logarithm>(x, y, p.width, columns);
        for (int64_t left = columns, taken; left > 0; left -= taken, x += taken, y += taken) {
            taken = left > 4 * one && left < 5 * one ? 3 * one : std::min(left, 4 * one);
            if (taken > 2 * one) softmax_of_columns<T, Bytes, 4, Logarithm>(p, x, y, taken);
            else if (taken > one) softmax_of_columns<T, Bytes, 2, Logarithm>(p, x, y, taken);
            else softmax_of_columns<T, Bytes, 1, Logarithm>(p, x, y, taken);
        }
    }
};

void softmax_columns(const SoftmaxColumns *p, int64_t columns, const char *from, char *to) {
    TypedVersions<Columns>::table[p->level][p->itemsize == 8](*p, columns, from, to);
}

}  // namespace

int add_softmax_columns(PyObject *, PyObject *addresses) { return add_kernels(addresses, {kernel("softmax_columns", softmax_columns)}); }

}  // namespace backline
