// Transforms of a length that is a product of radices, side by side: each lane of a vector belongs to another one, and so all take the
// same steps, with factors that are the same for every lane. A pass makes of the results of shorter transforms those of R times as many
// points (T. G. Stockham, "High-speed convolution and correlation", AFIPS Spring Joint Computer Conference, 1966: results come out in order).
#pragma once
#include "lanes.hpp"

#include <algorithm>
#include <utility>

namespace backline {

constexpr int kLargestRadix = 401;
constexpr int kMostPasses = 16;
constexpr int kTerms = 16;  // of a sum before it is added to others: fewer digits are lost

// Where a pass reads or writes points: real and imaginary parts `part` bytes apart or, of complex numbers of neighbouring lanes that are
// neighbours in memory, in turn.
template <class Byte>
struct Place {
    Byte *at;
    int64_t step, part;  // bytes
    bool in_turn;
};

// What the last pass does with results beside writing them.
struct Finish {
    int64_t reversed;   // the number of points, if those of the other sign are wanted, which are the same in the reverse order; or 0
    const void *turns;  // numbers that those of each point and lane are multiplied with, or null
    int64_t turn_step;
    double scale;
};

// Which groups of lines a pass takes: the first `kept` of every `period`. Of real numbers, as many as there are after the first pass, of
// an odd radix; the others have the results of these, in the reverse order and conjugate.
struct Groups {
    int64_t period, kept;
};

template <class T, int Bytes>
struct RadixPasses {
    using L = Lanes<T, Bytes>;
    using Vector = typename L::Vector;
    struct Point {  // of as many transforms as a vector has lanes
        Vector re, im;
    };

    using From = Place<const char>;
    using To = Place<char>;
    static BACKLINE_INLINE From buffer(const Point *points) {
        return {reinterpret_cast<const char *>(points), sizeof(Point), sizeof(Vector), false};
    }
    static BACKLINE_INLINE To buffer(Point *points) { return {reinterpret_cast<char *>(points), sizeof(Point), sizeof(Vector), false}; }

    static BACKLINE_INLINE void get(Point &x, const From &from, const char *at) {
        if (from.in_turn) return split(reinterpret_cast<const T *>(at), x);
        L::load(x.re, reinterpret_cast<const T *>(at));
        L::load(x.im, reinterpret_cast<const T *>(at + from.part));
    }
    static BACKLINE_INLINE void finish(Point &x, const To &to, int64_t j, const Finish &f) {
        if (f.reversed) j = j ? f.reversed - j : 0;
        if (f.turns) {
            Point factor;
            split(static_cast<const T *>(f.turns) + j * f.turn_step, factor);
            times(x, factor);
        }
        x.re *= T(f.scale);
        x.im *= T(f.scale);
        char *at = to.at + j * to.step;
        if (to.in_turn) return join(x, reinterpret_cast<T *>(at));
        L::store(x.re, reinterpret_cast<T *>(at));
        L::store(x.im, reinterpret_cast<T *>(at + to.part));
    }

    static BACKLINE_INLINE void reverse(Point &x) { reverse(x, std::make_index_sequence<L::count>()); }

    // Complex numbers of neighbouring lanes.
    static BACKLINE_INLINE void split(const T *from, Point &to) {
        Vector one, other;
        L::load(one, from);
        L::load(other, from + L::count);
        split(one, other, to, std::make_index_sequence<L::count>());
    }
    static BACKLINE_INLINE void join(const Point &from, T *to) {
        Vector one, other;
        join(from, one, other, std::make_index_sequence<L::count>());
        L::store(one, to);
        L::store(other, to + L::count);
    }

    static BACKLINE_INLINE void times(Point &x, const Point &factor) {
        const Vector re = x.re * factor.re - x.im * factor.im;
        x.im = x.re * factor.im + x.im * factor.re;
        x.re = re;
    }
    static BACKLINE_INLINE void turn(Point &x, const T *factor) {
        const Vector re = x.re * factor[0] - x.im * factor[1];
        x.im = x.re * factor[1] + x.im * factor[0];
        x.re = re;
    }

    // One pass: `l` groups of R lines of `m` points, one behind the other, become R blocks of `l` lines. The table holds cosines and
    // sines of an odd radix, and then the twiddle factors of each point but the first of a group. In the last pass m is 1.
    static BACKLINE_INLINE const T *pass(int64_t radix, const From &from, Point *to, int64_t l, int64_t m, const T *table, const Groups &groups) {
        return by_radix(radix, [&](auto r) __attribute__((always_inline)) {
            if constexpr (r.value > 0) return lines<r.value>(from, to, l, m, table, groups);
            else return lines_of_any(int(radix), from, to, l, m, table, groups);
        });
    }
    static BACKLINE_INLINE void last_pass(
        int64_t radix, const From &from, const To &to, int64_t l, const T *table, const Finish &f, const Groups &groups) {
        by_radix(radix, [&](auto r) __attribute__((always_inline)) {
            if constexpr (r.value > 0) last_lines<r.value>(from, to, l, table, f, groups);
            else last_lines_of_any(int(radix), from, to, l, table, f, groups);
        });
    }

  private:
    template <size_t... I>
    static BACKLINE_INLINE void reverse(Point &x, std::index_sequence<I...>) {
        x = {__builtin_shufflevector(x.re, x.re, (L::count - 1 - I)...), __builtin_shufflevector(x.im, x.im, (L::count - 1 - I)...)};
    }
    template <size_t... I>
    static BACKLINE_INLINE void split(const Vector &one, const Vector &other, Point &to, std::index_sequence<I...>) {
        to.re = __builtin_shufflevector(one, other, (2 * I)...);
        to.im = __builtin_shufflevector(one, other, (2 * I + 1)...);
    }
    template <size_t... I>
    static BACKLINE_INLINE void join(const Point &from, Vector &one, Vector &other, std::index_sequence<I...>) {
        one = __builtin_shufflevector(from.re, from.im, (I / 2 + I % 2 * L::count)...);
        other = __builtin_shufflevector(from.re, from.im, (L::count / 2 + I / 2 + I % 2 * L::count)...);
    }

    static BACKLINE_INLINE void sum_and_difference(Point &x, Point &y) {
        const Point sum = {x.re + y.re, x.im + y.im};
        y = {x.re - y.re, x.im - y.im};
        x = sum;
    }
    // Times -i.
    static BACKLINE_INLINE void quarter_turn(Point &x) { x = {x.im, -x.re}; }

    template <int R>
    static constexpr int64_t kCoefficients = R % 2 ? (R - 1) * (R - 1) / 2 : 0;

    template <class Do>
    static BACKLINE_INLINE auto by_radix(int64_t radix, Do run) {
        switch (radix) {
            case 1: return run(std::integral_constant<int, 1>());
            case 2: return run(std::integral_constant<int, 2>());
            case 3: return run(std::integral_constant<int, 3>());
            case 4: return run(std::integral_constant<int, 4>());
            case 5: return run(std::integral_constant<int, 5>());
            case 7: return run(std::integral_constant<int, 7>());
            case 8: return run(std::integral_constant<int, 8>());
            case 11: return run(std::integral_constant<int, 11>());
            case 13: return run(std::integral_constant<int, 13>());
            default: return run(std::integral_constant<int, 0>());
        }
    }

    template <int R>
    static BACKLINE_INLINE const T *lines(const From &from, Point *to, int64_t l, int64_t m, const T *table, const Groups &groups) {
        const T *const twiddles = table + kCoefficients<R>;
        const int64_t apart = m * from.step;
        for (int64_t k0 = 0; k0 < l; k0 += groups.period)
            for (int64_t k = k0; k < k0 + groups.kept; ++k) {
                const T *factor = twiddles;
                const char *at = from.at + k * R * apart;
                Point *line = to + k * m;
                for (int64_t i = 0; i < m; ++i, at += from.step, factor += 2 * (R - 1)) {
                    Point x[R];
#pragma GCC unroll 16
                    for (int q = 0; q < R; ++q) get(x[q], from, at + q * apart);
                    transform<R>(x, table);
                    line[i] = x[0];
#pragma GCC unroll 16
                    for (int q = 1; q < R; ++q) {
                        turn(x[q], factor + 2 * (q - 1));
                        line[q * l * m + i] = x[q];
                    }
                }
            }
        return twiddles + m * 2 * (R - 1);
    }
    template <int R>
    static BACKLINE_INLINE void last_lines(const From &from, const To &to, int64_t l, const T *table, const Finish &f, const Groups &groups) {
        for (int64_t k0 = 0; k0 < l; k0 += groups.period)
            for (int64_t k = k0; k < k0 + groups.kept; ++k) {
                const char *at = from.at + k * R * from.step;
                Point x[R];
#pragma GCC unroll 16
                for (int q = 0; q < R; ++q) get(x[q], from, at + q * from.step);
                transform<R>(x, table);
#pragma GCC unroll 16
                for (int q = 0; q < R; ++q) finish(x[q], to, q * l + k, f);
            }
    }

    template <int R>
    static BACKLINE_INLINE void transform(Point (&x)[R], const T *table) {
        if constexpr (R == 2) {
            sum_and_difference(x[0], x[1]);
        } else if constexpr (R == 4) {
            four(x[0], x[1], x[2], x[3]);
        } else if constexpr (R == 8) {
            constexpr T half = T(0.70710678118654752440);  // the root of one half
            four(x[0], x[2], x[4], x[6]);
            four(x[1], x[3], x[5], x[7]);
            x[3] = {(x[3].re + x[3].im) * half, (x[3].im - x[3].re) * half};
            quarter_turn(x[5]);
            x[7] = {(x[7].im - x[7].re) * half, -(x[7].re + x[7].im) * half};
            const Point even[4] = {x[0], x[2], x[4], x[6]}, odd[4] = {x[1], x[3], x[5], x[7]};
#pragma GCC unroll 4
            for (int q = 0; q < 4; ++q) {
                x[q] = {even[q].re + odd[q].re, even[q].im + odd[q].im};
                x[q + 4] = {even[q].re - odd[q].re, even[q].im - odd[q].im};
            }
        } else if constexpr (R > 1) {
            odd<R>(x, table);
        }
    }

    static BACKLINE_INLINE void four(Point &a, Point &b, Point &c, Point &d) {
        sum_and_difference(a, c);
        sum_and_difference(b, d);
        quarter_turn(d);
        sum_and_difference(a, b);
        sum_and_difference(c, d);
        // a, b, c, d hold results 0, 2, 1, 3.
        std::swap(b, c);
    }

    // By definition, of sums and differences of the points that have the same cosine.
    template <int R>
    static BACKLINE_INLINE void odd(Point (&x)[R], const T *table) {
        constexpr int H = (R - 1) / 2;
        Point sums[H], differences[H];
        Point first = x[0];
#pragma GCC unroll 8
        for (int j = 0; j < H; ++j) {
            const Point &one = x[j + 1], &other = x[R - 1 - j];
            sums[j] = {one.re + other.re, one.im + other.im};
            differences[j] = {one.re - other.re, one.im - other.im};
            first.re += sums[j].re;
            first.im += sums[j].im;
        }
#pragma GCC unroll 8
        for (int k = 0; k < H; ++k) {
            Point by_cosines = x[0], by_sines = {};
#pragma GCC unroll 8
            for (int j = 0; j < H; ++j) {
                const T *pair = table + 2 * (k * H + j);
                by_cosines.re += sums[j].re * pair[0];
                by_cosines.im += sums[j].im * pair[0];
                by_sines.re += differences[j].re * pair[1];
                by_sines.im += differences[j].im * pair[1];
            }
            // The points are not needed any more, only their sums and differences.
            x[k + 1] = {by_cosines.re + by_sines.im, by_cosines.im - by_sines.re};
            x[R - 1 - k] = {by_cosines.re - by_sines.im, by_cosines.im + by_sines.re};
        }
        x[0] = first;
    }

    static BACKLINE_INLINE const T *lines_of_any(
        int radix, const From &from, Point *to, int64_t l, int64_t m, const T *table, const Groups &groups) {
        const T *const twiddles = table + coefficients(radix);
        for (int64_t k0 = 0; k0 < l; k0 += groups.period)
            for (int64_t k = k0; k < k0 + groups.kept; ++k)
                for (int64_t i = 0; i < m; ++i) {
                    const T *factor = twiddles + i * 2 * (radix - 1);
                    any(radix, from, from.at + (k * radix * m + i) * from.step, m * from.step, table, [&](Point &x, int q) __attribute__((always_inline)) {
                        if (q) turn(x, factor + 2 * (q - 1));
                        to[(q * l + k) * m + i] = x;
                    });
                }
        return twiddles + m * 2 * (radix - 1);
    }
    static BACKLINE_INLINE void last_lines_of_any(
        int radix, const From &from, const To &to, int64_t l, const T *table, const Finish &f, const Groups &groups) {
        for (int64_t k0 = 0; k0 < l; k0 += groups.period)
            for (int64_t k = k0; k < k0 + groups.kept; ++k)
                any(radix, from, from.at + k * radix * from.step, from.step, table, [&](Point &x, int q) __attribute__((always_inline)) {
                    finish(x, to, q * l + k, f);
                });
    }
    static BACKLINE_INLINE int64_t coefficients(int64_t radix) { return (radix - 1) * (radix - 1) / 2; }

    // One transform of an odd radix, which calls put(result, number) for each result.
    template <class Put>
    static BACKLINE_INLINE void any(int radix, const From &from, const char *at, int64_t apart, const T *table, Put put) {
        constexpr int most = (kLargestRadix - 1) / 2, together = Bytes == 64 ? 4 : 2;
        const int half = (radix - 1) / 2;
        Point sums[most], differences[most], zero, one, other;
        get(zero, from, at);
        Point first = zero;
        for (int j = 0; j < half; ++j) {
            get(one, from, at + (j + 1) * apart);
            get(other, from, at + (radix - 1 - j) * apart);
            sums[j] = {one.re + other.re, one.im + other.im};
            differences[j] = {one.re - other.re, one.im - other.im};
            first.re += sums[j].re;
            first.im += sums[j].im;
        }
        put(first, 0);
        int q = 0;
        for (; q + together <= half; q += together) results<together>(radix, q, zero, sums, differences, table, put);
        switch (half - q) {
            case 1: results<1>(radix, q, zero, sums, differences, table, put); break;
            case 2: results<2>(radix, q, zero, sums, differences, table, put); break;
            case 3: results<3>(radix, q, zero, sums, differences, table, put); break;
        }
    }

    // N pairs of results of an odd radix, the first of them q + 1.
    template <int N, class Put>
    static BACKLINE_INLINE void results(
        int radix, int q, const Point &zero, const Point *sums, const Point *differences, const T *table, Put put) {
        const int half = (radix - 1) / 2;
        Point by_cosines[N], by_sines[N] = {};
#pragma GCC unroll 4
        for (int r = 0; r < N; ++r) by_cosines[r] = zero;
        for (int first = 0; first < half; first += kTerms) {
            Point cosines[N] = {}, sines[N] = {};
            for (int j = first; j < std::min(first + kTerms, half); ++j) {
                const Point sum = sums[j], difference = differences[j];
#pragma GCC unroll 4
                for (int r = 0; r < N; ++r) {
                    const T *pair = table + 2 * ((q + r) * half + j);
                    cosines[r].re += sum.re * pair[0];
                    cosines[r].im += sum.im * pair[0];
                    sines[r].re += difference.re * pair[1];
                    sines[r].im += difference.im * pair[1];
                }
            }
#pragma GCC unroll 4
            for (int r = 0; r < N; ++r) {
                by_cosines[r].re += cosines[r].re, by_cosines[r].im += cosines[r].im;
                by_sines[r].re += sines[r].re, by_sines[r].im += sines[r].im;
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < N; ++r) {
            const int one = q + r + 1, other = radix - one;
            Point x = {by_cosines[r].re + by_sines[r].im, by_cosines[r].im - by_sines[r].re};
            Point y = {by_cosines[r].re - by_sines[r].im, by_cosines[r].im + by_sines[r].re};
            put(x, one);
            put(y, other);
        }
    }
};

// The passes of a length, from the first on.
struct Passes {
    const int64_t *radices;
    int64_t count, points;
    bool ends;  // whether the last one is the last of its length, which writes to `to` and finishes
    Groups groups;  // of all but the first
    Place<const char> from;
    Place<char> to;
    void *here, *there;  // buffers, of which the first pass writes to `there`, and each to the one that the pass before it read
    Finish finish;
    const void *table;
};

struct RunPasses {
    template <class T, int Bytes>
    static BACKLINE_INLINE void run(const Passes &p) {
        using R = RadixPasses<T, Bytes>;
        using Point = typename R::Point;
        Point *here = static_cast<Point *>(p.here), *there = static_cast<Point *>(p.there);
        const T *table = static_cast<const T *>(p.table);
        typename R::From in = p.from;
        int64_t l = 1, m = p.points;
        for (int64_t i = 0; i < p.count - p.ends; ++i) {
            m /= p.radices[i];
            table = R::pass(p.radices[i], in, there, l, m, table, i ? p.groups : Groups{1, 1});
            l *= p.radices[i];
            std::swap(here, there);
            in = R::buffer(static_cast<const Point *>(here));
        }
        const typename R::To out = p.to;
        const Finish finish = p.finish;
        if (p.ends) R::last_pass(p.radices[p.count - 1], in, out, l, table, finish, l > 1 ? p.groups : Groups{1, 1});
    }
};

}  // namespace backline
