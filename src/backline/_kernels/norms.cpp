// Norms of vectors along axes: sums, counts and extremes of absolute values, and roots of sums of powers; and sums. They are kept in float64:
// squares of float32 neither overflow nor vanish there, and where those of float64 might, the elements are scaled by the largest.
// Lanes, blocks and parts are the same on every processor and for any number of threads, and so are the bits of a result.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels.hpp"
#include "norm_kinds.hpp"
#include "powers.hpp"
#include "targets.hpp"

namespace backline {
namespace {

constexpr int kAxes = 3;
constexpr int64_t kBlock = 1024;   // elements summed up in lanes, before such sums are added in pairs
constexpr int64_t kColumns = 64;   // columns of an item
constexpr double kLeast = 1e-290;  // for each element: powers below the normal range do not count in a sum that is larger

struct Axis {
    int64_t size, stride;  // in bytes
};

// Written by libraries/kernels/norm_loops.py: eight bytes for each field, in this order. Axes that are not used have one element. An
// item is `share` results, in the order of the kept axes; with `columns`, some neighbours on the last kept axis.
struct Norm {
    int64_t itemsize, complex, level, kind, columns, share, results;
    double order;
    Axis kept[kAxes], reduced[kAxes];

    int64_t count() const { return reduced[0].size * reduced[1].size * reduced[2].size; }
};

template <class T>
struct Number {  // complex ones have two parts
    T real, imaginary;
};

BACKLINE_INLINE double size_of(float x) { return std::fabs(double(x)); }
BACKLINE_INLINE double size_of(double x) { return std::fabs(x); }
// As hypot: infinite if a part is, whatever the other one is.
double size_of(Number<float> x) {
    if (std::isinf(x.real) || std::isinf(x.imaginary)) return std::numeric_limits<double>::infinity();
    // Rounded as the elements' own absolute values are: beyond float32 they are infinite.
    return double(float(std::sqrt(double(x.real) * double(x.real) + double(x.imaginary) * double(x.imaginary))));
}
double size_of(Number<double> x) { return std::hypot(x.real, x.imaginary); }

// Elements without gaps, at most kBlock of them.
template <Kind K, int Bytes, class T>
BACKLINE_INLINE double block(const T *x, int64_t n) {
    if constexpr (K == kLargest || K == kSmallest) {
        const int64_t whole = n / kLanes * kLanes;
        Bits<T> most[kLanes] = {}, least[kLanes];
        for (int j = 0; j < kLanes; ++j) least[j] = std::numeric_limits<Bits<T>>::max();
        auto take = [&](int j, T value) __attribute__((always_inline)) {
            const Bits<T> bits = bits_of(value);
            most[j] = bits > most[j] ? bits : most[j];
            if constexpr (K == kSmallest) least[j] = bits < least[j] ? bits : least[j];
        };
        for (int64_t i = 0; i < whole; i += kLanes)
            for (int j = 0; j < kLanes; ++j) take(j, x[i + j]);
        for (int64_t i = whole; i < n; ++i) take(int(i - whole), x[i]);
        const Bits<T> largest = *std::max_element(most, most + kLanes);
        if (K == kLargest || std::isnan(value_of<T>(largest))) return value_of<T>(largest);
        return value_of<T>(*std::min_element(least, least + kLanes));
    } else {
        Doubles<Bytes> sums[kGroups] = {}, elements, all;
        int64_t i = 0;
        auto take = [&](int group, const T *from) __attribute__((always_inline)) {
            load_doubles(elements, from);
            take_eight<K, sizeof(T) == 4>(sums[group], elements);
        };
        for (; i + kLanes <= n; i += kLanes)
            for (int group = 0; group < kGroups; ++group) take(group, x + i + group * kWide);
        for (; i + kWide <= n; i += kWide) take(0, x + i);
        if (i < n) {  // the last eight, of this block and the one before, without those that were taken
            load_doubles(elements, x + n - kWide);
            keep_last(elements, n - i);
            take_eight<K, sizeof(T) == 4>(sums[0], elements);
        }
        join_groups(all, sums);
        const TwoDoubles two = folded(all);
        return two[0] + two[1];
    }
}

// Few elements without gaps, one after the other.
template <Kind K, class T>
BACKLINE_INLINE double few(const T *x, int64_t n) {
    if constexpr (K == kLargest || K == kSmallest) {
        Bits<T> most = 0, least = std::numeric_limits<Bits<T>>::max();
        for (int64_t i = 0; i < n; ++i) most = std::max(most, bits_of(x[i])), least = std::min(least, bits_of(x[i]));
        return value_of<T>(K == kLargest || std::isnan(value_of<T>(most)) ? most : least);
    } else {
        double sums[4] = {};
        auto take = [&](int j, T value) __attribute__((always_inline)) {
            sums[j] = taken<K>(sums[j], K == kSquares || K == kTotal ? double(value) : std::fabs(double(value)));
        };
        int64_t i = 0;
        for (; i + 4 <= n; i += 4)
            for (int j = 0; j < 4; ++j) take(j, x[i + j]);
        for (int j = 0; i < n; ++i, ++j) take(j, x[i]);
        return (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
}

// Any number of elements without gaps: blocks are added in pairs, and such pairs in pairs.
template <Kind K, int Bytes, class T>
BACKLINE_INLINE double run_of(const T *x, int64_t n) {
    if (n < kLanes) return few<K>(x, n);
    if (n <= kBlock) return block<K, Bytes>(x, n);
    double sums[64];
    int filled = 0;
    int64_t done = 0, blocks = 0;
    while (done < n) {
        double sum = block<K, Bytes>(x + done, std::min(kBlock, n - done));
        done += std::min(kBlock, n - done);
        for (int64_t pairs = ++blocks; filled && pairs % 2 == 0; pairs /= 2) sum = joined<K>(sums[--filled], sum);
        sums[filled++] = sum;
    }
    double total = sums[--filled];
    while (filled) total = joined<K>(sums[--filled], total);
    return total;
}

// Calls take(size) for every element of a result.
template <class E, bool Signed = false, class Take>
BACKLINE_INLINE void each(const Norm &p, const char *from, Take take) {
    for (int64_t i = 0; i < p.reduced[0].size; ++i)
        for (int64_t j = 0; j < p.reduced[1].size; ++j) {
            const char *at = from + i * p.reduced[0].stride + j * p.reduced[1].stride;
            for (int64_t k = 0; k < p.reduced[2].size; ++k, at += p.reduced[2].stride) {
                E value;
                std::memcpy(&value, at, sizeof value);
                if constexpr (Signed) take(double(value));
                else take(size_of(value));
            }
        }
}

// Calls take(sums of powers) for some elements at a time, divided by a scale.
template <class E, class Take>
BACKLINE_INLINE void each_power_sum(const Norm &p, const char *from, double order, double scale, Take take) {
    double some[kPowersAtOnce];
    int64_t n = 0;
    auto done = [&] {
        while (n % 8) some[n++] = 0;
        PowerSum sums;
        power_sum(p.level, some, n, order, &sums);
        take(sums);
        n = 0;
    };
    each<E>(p, from, [&](double size) {
        some[n++] = size / scale;
        if (n == kPowersAtOnce) done();
    });
    if (n) done();
}

// The norm by powers of the elements themselves, where none leaves the range and logarithms are small; else NaN.
template <class E>
double by_powers(const Norm &p, const char *from) {
    constexpr double most = 0x1p40, highest = 7;
    const double nan = std::numeric_limits<double>::quiet_NaN();
    if (!(p.order >= 1 && p.order <= highest)) return nan;
    double sum = 0;
    bool fit = true;
    each_power_sum<E>(p, from, p.order, 1, [&](const PowerSum &some) {
        sum += some.sum;
        fit &= !some.odd && some.largest < most && some.least > 1 / most;
    });
    return fit ? std::pow(sum, 1 / p.order) : nan;
}

// The root of a sum of powers of quotients that are at most 1: what vanishes beside the largest counts for nothing.
template <class E>
double scaled(const Norm &p, const char *from) {
    const double order = p.kind == kSquares ? 2 : p.order;
    bool nan = false;
    double scale = order > 0 ? 0 : std::numeric_limits<double>::infinity();
    each<E>(p, from, [&](double size) {
        nan |= std::isnan(size);
        scale = order > 0 ? std::max(scale, size) : std::min(scale, size);
    });
    if (nan) return std::numeric_limits<double>::quiet_NaN();
    if (std::isinf(scale)) return scale;
    if (scale == 0) return 0;  // of a negative order, too: the inverse of infinity
    double sum = 0, lost = 0;  // with what rounding takes away from the sum
    auto add = [&](double term) {
        double next = sum + term;
        if (std::isfinite(next)) lost += sum >= term ? (sum - next) + term : (term - next) + sum;
        sum = next;
    };
    if (order == 2) {
        each<E>(p, from, [&](double size) { add((size / scale) * (size / scale)); });
        return scale * std::sqrt(sum + lost);
    }
    if (order == 3 || order == 4) {
        each<E>(p, from, [&](double size) {
            const double x = size / scale;
            add(order == 3 ? x * x * x : (x * x) * (x * x));
        });
        return scale * (order == 3 ? std::cbrt(sum + lost) : std::sqrt(std::sqrt(sum + lost)));
    }
    if (std::fabs(order) >= 1) {
        each_power_sum<E>(p, from, order, scale, [&](const PowerSum &some) { add(some.sum); });
        return scale * std::pow(sum + lost, 1 / order);
    }
    // A small power brings numbers together that are too far apart for a quotient, and the root is of a high degree: the scale goes
    // between its two halves, so that a norm within the range is found.
    const double most = std::pow(scale, order);
    each<E>(p, from, [&](double size) { add(std::pow(size, order) / most); });
    const double root = std::pow(sum + lost, 0.5 / order);
    return root * scale * root;
}

// The norm whose sum this is.
template <class E>
double finished(const Norm &p, double sum, const char *from) {
    if (p.kind != kSquares && p.kind != kCubes && p.kind != kFourths) return sum;
    const bool single = sizeof(E) == (p.complex ? 8 : 4);
    if (!(single ? !std::isnan(sum) : sum > double(p.count()) * kLeast && sum < std::numeric_limits<double>::infinity()))
        return scaled<E>(p, from);
    return p.kind == kCubes ? std::cbrt(sum) : p.kind == kFourths ? std::sqrt(std::sqrt(sum)) : std::sqrt(sum);
}

template <Kind K, int Bytes, class T, class E>
BACKLINE_INLINE double row(const Norm &p, const char *from) {
    constexpr bool parts = K == kSquares && sizeof(E) > sizeof(T);  // the squares of a complex number are those of its parts
    double total = kStart<K>;
    if (p.reduced[2].stride == int64_t(sizeof(E)) && (parts || sizeof(E) == sizeof(T)) && p.reduced[0].size * p.reduced[1].size == 1)
        return finished<E>(p, run_of<K, Bytes>(reinterpret_cast<const T *>(from), p.reduced[2].size * (parts ? 2 : 1)), from);
    if (p.reduced[2].stride == int64_t(sizeof(E)) && (parts || sizeof(E) == sizeof(T))) {
        for (int64_t i = 0; i < p.reduced[0].size; ++i)
            for (int64_t j = 0; j < p.reduced[1].size; ++j) {
                const char *at = from + i * p.reduced[0].stride + j * p.reduced[1].stride;
                total = joined<K>(total, run_of<K, Bytes>(reinterpret_cast<const T *>(at), p.reduced[2].size * (parts ? 2 : 1)));
            }
    } else {
        double nan = 0, lost = 0;  // what rounding takes away from the sum
        each<E, K == kTotal>(p, from, [&](double size) {
            if (std::isnan(size)) nan = size;
            const double next = taken<K>(total, size);
            if constexpr (K == kSum || K == kSquares || K == kTotal) {
                const double term = K == kSquares ? size * size : size;
                lost += std::fabs(total) >= std::fabs(term) ? (total - next) + term : (term - next) + total;
            }
            total = next;
        });
        if (std::isfinite(total)) total += lost;
        if (std::isnan(nan) && K != kCount) total = nan;
    }
    return finished<E>(p, total, from);
}

template <Kind K, int Bytes, class T, class E>
BACKLINE_INLINE void rows(const Norm &p, int64_t item, const char *from, T *to) {
    const int64_t end = std::min((item + 1) * p.share, p.results), inner = p.kept[2].size, middle = p.kept[1].size;
    int64_t outer = item * p.share / inner, place = item * p.share % inner;
    for (int64_t i = item * p.share; i < end; ++i) {
        const char *at = from + place * p.kept[2].stride + outer % middle * p.kept[1].stride + outer / middle * p.kept[0].stride;
        if (++place == inner) place = 0, ++outer;
        if constexpr (K == kPowers) {
            const double plain = by_powers<E>(p, at);
            to[i] = T(std::isnan(plain) ? scaled<E>(p, at) : plain);
        }
        else to[i] = T(row<K, Bytes, T, E>(p, at));
    }
}

// Neighbouring results at once, where elements of one of them are further apart than those of different ones.
template <Kind K, class T>
BACKLINE_INLINE void columns(const Norm &p, int64_t item, const char *from, T *to) {
    const int64_t width = p.kept[2].size, blocks = (width + kColumns - 1) / kColumns;
    const int64_t first = item % blocks * kColumns, n = std::min(kColumns, width - first), outer = item / blocks;
    from += first * int64_t(sizeof(T)) + outer % p.kept[1].size * p.kept[1].stride + outer / p.kept[1].size * p.kept[0].stride;
    using Lane = std::conditional_t<K == kLargest || K == kSmallest, Bits<T>, double>;
    Lane sums[kColumns] = {}, least[kColumns];
    for (int64_t c = 0; c < n; ++c) least[c] = std::numeric_limits<Lane>::max();
    for (int64_t i = 0; i < p.reduced[0].size; ++i)
        for (int64_t j = 0; j < p.reduced[1].size; ++j)
            for (int64_t k = 0; k < p.reduced[2].size; ++k) {
                const T *x = reinterpret_cast<const T *>(from + i * p.reduced[0].stride + j * p.reduced[1].stride + k * p.reduced[2].stride);
                for (int64_t c = 0; c < n; ++c) {
                    if constexpr (K == kLargest || K == kSmallest) {
                        const Lane bits = bits_of(x[c]);
                        sums[c] = bits > sums[c] ? bits : sums[c];
                        if constexpr (K == kSmallest) least[c] = bits < least[c] ? bits : least[c];
                    } else {
                        sums[c] = taken<K>(sums[c], std::fabs(double(x[c])));
                    }
                }
            }
    to += outer * width + first;
    for (int64_t c = 0; c < n; ++c) {
        if constexpr (K == kLargest || K == kSmallest) {
            const bool nan = std::isnan(value_of<T>(sums[c]));
            to[c] = T(value_of<T>(K == kLargest || nan ? sums[c] : least[c]));
        } else {
            to[c] = T(finished<T>(p, sums[c], from + c * int64_t(sizeof(T))));
        }
    }
}

template <Kind K, int Bytes, class T>
BACKLINE_INLINE void results_of(const Norm &p, int64_t item, const char *from, char *to) {
    T *target = reinterpret_cast<T *>(to);
    if constexpr (K == kTotal) rows<K, Bytes, T, T>(p, item, from, target);
    else if (p.complex) rows<K, Bytes, T, Number<T>>(p, item, from, target);
    else if constexpr (K == kPowers) rows<K, Bytes, T, T>(p, item, from, target);
    else if (p.columns) columns<K>(p, item, from, target);
    else rows<K, Bytes, T, T>(p, item, from, target);
}

// One part of a long run of elements without gaps: `share` of them (numbers, not their parts).
template <Kind K, int Bytes, class T>
BACKLINE_INLINE double part_of(const Norm &p, int64_t item, const char *from) {
    const int64_t wide = p.complex ? 2 : 1, first = item * p.share, n = std::min(p.share, p.reduced[2].size - first);
    return run_of<K, Bytes>(reinterpret_cast<const T *>(from) + first * wide, n * wide);
}

template <int Bytes, class T>
BACKLINE_INLINE void item_of(const Norm &p, int64_t item, const char *from, char *to) {
    switch (Kind(p.kind)) {
        case kCount: return results_of<kCount, Bytes, T>(p, item, from, to);
        case kSum: return results_of<kSum, Bytes, T>(p, item, from, to);
        case kSquares: return results_of<kSquares, Bytes, T>(p, item, from, to);
        case kLargest: return results_of<kLargest, Bytes, T>(p, item, from, to);
        case kSmallest: return results_of<kSmallest, Bytes, T>(p, item, from, to);
        case kPowers: return results_of<kPowers, Bytes, T>(p, item, from, to);
        case kCubes: return results_of<kCubes, Bytes, T>(p, item, from, to);
        case kFourths: return results_of<kFourths, Bytes, T>(p, item, from, to);
        case kTotal: return results_of<kTotal, Bytes, T>(p, item, from, to);
    }
}

template <int Bytes, class T>
BACKLINE_INLINE double part_item(const Norm &p, int64_t item, const char *from) {
    switch (Kind(p.kind)) {
        case kCount: return part_of<kCount, Bytes, T>(p, item, from);
        case kSum: return part_of<kSum, Bytes, T>(p, item, from);
        case kSquares: return part_of<kSquares, Bytes, T>(p, item, from);
        case kLargest: return part_of<kLargest, Bytes, T>(p, item, from);
        case kCubes: return part_of<kCubes, Bytes, T>(p, item, from);
        case kFourths: return part_of<kFourths, Bytes, T>(p, item, from);
        case kTotal: return part_of<kTotal, Bytes, T>(p, item, from);
        default: return part_of<kSmallest, Bytes, T>(p, item, from);
    }
}

#define BACKLINE_NORMS(name, bytes, attribute)                                                                     \
    attribute void name##_item(const Norm &p, int64_t item, const char *from, char *to) {                   \
        p.itemsize == 8 ? item_of<bytes, double>(p, item, from, to) : item_of<bytes, float>(p, item, from, to);           \
    }                                                                                                       \
    attribute double name##_part(const Norm &p, int64_t item, const char *from) {                           \
        return p.itemsize == 8 ? part_item<bytes, double>(p, item, from) : part_item<bytes, float>(p, item, from);        \
    }

BACKLINE_NORMS(plain, 16, )
#if defined(__x86_64__)
BACKLINE_NORMS(avx2, 32, BACKLINE_AVX2)
BACKLINE_NORMS(avx512, 64, BACKLINE_AVX512)
void (*const items[])(const Norm &, int64_t, const char *, char *) = {plain_item, avx2_item, avx512_item};
double (*const parts[])(const Norm &, int64_t, const char *) = {plain_part, avx2_part, avx512_part};
#else
void (*const items[])(const Norm &, int64_t, const char *, char *) = {plain_item};
double (*const parts[])(const Norm &, int64_t, const char *) = {plain_part};
#endif

void norm(const Norm *p, int64_t item, const char *from, char *to) { items[p->level](*p, item, from, to); }

void norm_part(const Norm *p, int64_t item, const char *from, double *to) { to[item] = parts[p->level](*p, item, from); }

template <class E>
double of_parts(const Norm &p, int64_t count, const char *from, const double *sums) {
    double total = sums[0];
    for (int64_t i = 1; i < count; ++i) {
        if (p.kind == kLargest) total = joined<kLargest>(total, sums[i]);
        else if (p.kind == kSmallest) total = joined<kSmallest>(total, sums[i]);
        else total += sums[i];
    }
    return finished<E>(p, total, from);
}

// The one result of parts.
void norm_of_parts(const Norm *p, int64_t count, const char *from, const double *sums, char *to) {
    if (p->itemsize == 8) {
        double result = p->complex ? of_parts<Number<double>>(*p, count, from, sums) : of_parts<double>(*p, count, from, sums);
        std::memcpy(to, &result, sizeof result);
    } else {
        float result = float(p->complex ? of_parts<Number<float>>(*p, count, from, sums) : of_parts<float>(*p, count, from, sums));
        std::memcpy(to, &result, sizeof result);
    }
}

}  // namespace

int add_norms(PyObject *, PyObject *addresses) {
    return add_kernels(addresses,
                       {kernel("norm", norm), kernel("norm_part", norm_part), kernel("norm_of_parts", norm_of_parts)});
}

}  // namespace backline
