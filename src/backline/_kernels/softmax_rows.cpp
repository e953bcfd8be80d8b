// Softmax and its logarithm of rows without gaps, and of columns side by side, in vectors: one reading of the memory, and NaN and infinity as the formulas have
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

// The logarithm of a sum whose largest term is 1, from the sum and from that of the other terms.
inline double logarithm_of_sum(double all, double others) { return all < 2 ? std::log1p(others) : std::log(all); }
inline float logarithm_of_sum(float all, float others) {
    if (!(all < 2)) return std::log(all);
    // log(1 + t) = 2 artanh(t / (2 + t)), by its series: what is left out is below 2^-32 of the result.
    const double t = others, s = t / (2 + t), z = s * s;
    double p = 1.0 / 19;
    for (int k = 17; k > 0; k -= 2) p = p * z + 1.0 / k;
    return float(2 * s * p);
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

template <class T, int Bytes>
BACKLINE_INLINE void softmax_row(const T *x, T *y, int64_t n, bool logarithm) {
    using L = Lanes<T, Bytes>;
    constexpr int64_t step = 2 * L::count;
    // What the loops leave, at most two vectors: they overlap what was before, or each other, and count by their masks. They are read
    // before anything is written, for y may be x. A row shorter than a vector is one by itself, filled up with what counts for nothing.
    const int64_t whole = n < L::count ? 0 : (n - 1) / step * step, rest = n - whole;
    T filled[L::count];
    if (n < L::count)
        for (int64_t i = 0; i < L::count; ++i) filled[i] = i < n ? x[i] : kNothing<T>;
    const int64_t second_at = n < L::count ? 0 : n - L::count, first_at = rest > L::count ? whole : second_at;
    typename L::Vector first, second, a, b, u, v, most;
    typename L::Bits first_counts, second_counts;
    L::load(first, n < L::count ? filled : x + first_at);
    L::load(second, n < L::count ? filled : x + second_at);
    last_lanes<T, Bytes>(first_counts, rest > L::count ? L::count : 0);
    last_lanes<T, Bytes>(second_counts, n < L::count ? L::count : rest > L::count ? rest - L::count : rest);
    a = first;
    b = second;
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
    auto counted = [](auto &value, const auto &mask) __attribute__((always_inline)) {
        typename L::Bits bits;
        reinterpret(bits, value);
        bits = bits & mask;
        reinterpret(value, bits);
    };
    first = first - most;
    second = second - most;
    if (logarithm) {
        // The largest counts as 1, and beside it the others lose their digits, which are all that the logarithm of its own
        // probability has: their sum is taken apart as well, and is what counts unless several are the largest.
        typename L::Vector zero{}, c{}, d{}, e, f;
        auto others = [&](auto count) __attribute__((always_inline)) {
            e = u;
            f = v;
            exponential<T, Bytes>(e);
            exponential<T, Bytes>(f);
            u = u < zero ? e : u;  // 0, or NaN, which stays
            v = v < zero ? f : v;
            if constexpr (decltype(count)::value) counted(e, first_counts), counted(f, second_counts), counted(u, first_counts), counted(v, second_counts);
            a += e;
            b += f;
            c += u;
            d += v;
        };
        for (int64_t i = 0; i < whole; i += step) {
            L::load(u, x + i);
            L::load(v, x + i + L::count);
            u = u - most;
            v = v - most;
            others(std::false_type{});
        }
        u = first;
        v = second;
        others(std::true_type{});
        a += b;
        c += d;
        L::fill(b, logarithm_of_sum(joined<T, Bytes>(a, sum), joined<T, Bytes>(c, sum)));
        for (int64_t i = 0; i < whole; i += L::count) {
            L::load(u, x + i);
            u = (u - most) - b;
            L::store(u, y + i);
        }
        first = first - b;
        second = second - b;
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
        exponential<T, Bytes>(first);
        exponential<T, Bytes>(second);
        u = first;
        v = second;
        counted(u, first_counts);
        counted(v, second_counts);
        a += u;
        b += v;
        a += b;
        T share = T(1) / joined<T, Bytes>(a, sum);
        for (int64_t i = 0; i < whole; i += L::count) {
            L::load(u, y + i);
            u = u * share;
            L::store(u, y + i);
        }
        first = first * share;
        second = second * share;
    }
    if (n < L::count) return L::store_some(second, y, n);
    L::store(first, y + first_at);
    L::store(second, y + second_at);
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

// Columns side by side; `step` elements lie between the elements of one in what is read, `target_step` in what is written.
struct SoftmaxColumns {
    int64_t itemsize, level, logarithm, width, step, target_step;
};

constexpr int64_t kTogether = 64;  // terms of a sum that are added up before they join the others: fewer roundings

struct Columns {
    template <class T, int Bytes>
    static BACKLINE_INLINE void run(const SoftmaxColumns &p, int64_t columns, const char *from, char *to) {
        using L = Lanes<T, Bytes>;
        using V = typename L::Vector;
        constexpr int64_t several = 4;  // vectors of columns at a time: more of each line and page that is read
        const T *x = reinterpret_cast<const T *>(from);
        T *y = reinterpret_cast<T *>(to);
        for (int64_t first = 0; first < columns; first += several * L::count, x += several * L::count, y += several * L::count) {
            const int64_t left = columns - first, parts = std::min((left + L::count - 1) / L::count, several);
            V most[several], sum[several], others[several], part[several], other_part[several], u, v, zero{};
            for (int64_t j = 0; j < parts; ++j) {
                L::fill(most[j], kNothing<T>);
                sum[j] = others[j] = part[j] = other_part[j] = zero;
            }
            for (int64_t i = 0; i < p.width; ++i)
                for (int64_t j = 0; j < parts; ++j) {
                    L::load_some(u, x + i * p.step + j * L::count, left - j * L::count);
                    most[j] = u > most[j] ? u : most[j];
                }
            for (int64_t i = 0; i < p.width; ++i)
                for (int64_t j = 0; j < parts; ++j) {
                    L::load_some(u, x + i * p.step + j * L::count, left - j * L::count);
                    u = u - most[j];
                    v = u;
                    exponential<T, Bytes>(v);
                    part[j] += v;
                    if (p.logarithm) other_part[j] += u < zero ? v : u;  // as of rows
                    else L::store_some(v, y + i * p.target_step + j * L::count, left - j * L::count);
                    if (i % kTogether == kTogether - 1 || i == p.width - 1) {
                        sum[j] += part[j];
                        others[j] += other_part[j];
                        part[j] = other_part[j] = zero;
                    }
                }
            for (int64_t j = 0; j < parts; ++j) {
                if (p.logarithm) {
                    for (int lane = 0; lane < L::count; ++lane) sum[j][lane] = logarithm_of_sum(sum[j][lane], others[j][lane]);
                } else {
                    sum[j] = T(1) / sum[j];
                }
            }
            for (int64_t i = 0; i < p.width; ++i)
                for (int64_t j = 0; j < parts; ++j) {
                    const int64_t some = left - j * L::count;
                    T *there = y + i * p.target_step + j * L::count;
                    if (p.logarithm) {
                        L::load_some(u, x + i * p.step + j * L::count, some);
                        u = (u - most[j]) - sum[j];
                    } else {
                        L::load_some(u, there, some);
                        u = u * sum[j];
                    }
                    L::store_some(u, there, some);
                }
        }
    }
};

void softmax_columns(const SoftmaxColumns *p, int64_t columns, const char *from, char *to) {
    TypedVersions<Columns>::table[p->level][p->itemsize == 8](*p, columns, from, to);
}

void softmax_item(const SoftmaxRows *p, int64_t item, const char *from, char *to) {
    TypedVersions<Rows>::table[p->level][p->itemsize == 8](*p, item, from, to);
}

}  // namespace

int add_softmax_rows(PyObject *, PyObject *addresses) { return add_kernels(addresses, {kernel("softmax_rows", softmax_item), kernel("softmax_columns", softmax_columns)}); }

}  // namespace backline
