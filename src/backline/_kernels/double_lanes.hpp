// Sums in double of numbers without gaps, in lanes that are the same for every instruction set.
#pragma once
#include "conversions.hpp"

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace backline {

constexpr int kWide = 8, kGroups = 4;  // numbers that are taken at once, and sums of such that are kept beside each other
constexpr int kLanes = kWide * kGroups;
typedef double TwoDoubles __attribute__((vector_size(2 * sizeof(double))));

// Eight numbers, in vectors that the instruction set has (Bytes): GCC 12 leaves wider ones in memory between two additions.
template <int Bytes, int Size = kWide * sizeof(double)>
struct VectorsOf {
    struct Type {
        typename VectorsOf<Bytes, Size / 2>::Type low, high;
    };
};
template <int Bytes>
struct VectorsOf<Bytes, Bytes> : VectorOf<double, Bytes> {};
template <int Bytes>
using Doubles = typename VectorsOf<Bytes>::Type;

// Calls act(vector, others...) for each vector of eight numbers, with the vectors at the same place in the others.
template <class Act, class V, class... Others>
BACKLINE_INLINE void by_vectors(Act act, V &v, Others &...others) {
    if constexpr (std::is_class_v<V>) {
        by_vectors(act, v.low, others.low...);
        by_vectors(act, v.high, others.high...);
    } else {
        act(v, others...);
    }
}

template <class V, class T>
BACKLINE_INLINE void load_doubles(V &v, const T *from) {
    if constexpr (std::is_class_v<V>) {
        load_doubles(v.low, from);
        load_doubles(v.high, from + sizeof v.low / sizeof(double));
    } else if constexpr (sizeof(T) == sizeof(double)) {
        std::memcpy(&v, from, sizeof v);
    } else {
        V wide;  // an operand of `asm` stays in memory where it is part of something larger
        Conversions<sizeof v>::widen(wide, from);
        v = wide;
    }
}

// sum += x * y, of numbers whose product is exact, as that of two floats is: fused or not, the bits are the same.
template <class V>
BACKLINE_INLINE void add_exact_product(V &sum, const V &x, const V &y) {
    if constexpr (sizeof(V) > kPlainBytes) {
        V total = sum;  // no operand of `asm` may be a part of something larger: see load_doubles
        asm("vfmadd231pd %2, %1, %0" : "+v"(total) : "v"(V(x)), "v"(V(y)));
        sum = total;
    } else {
        sum += x * y;
    }
}

// Clears the bits of a vector that are 0 in `bits`.
template <class V, class Bits>
BACKLINE_INLINE void mask(V &v, const Bits &bits) {
    Bits all;
    std::memcpy(&all, &v, sizeof all);
    all = all & bits;
    std::memcpy(&v, &all, sizeof all);
}

constexpr int64_t kKept[2 * kWide] = {0, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, -1, -1, -1, -1, -1};

// Leaves the last n numbers of up to kWide, and 0 in the place of the others.
template <class V>
BACKLINE_INLINE void keep_last(V &v, int64_t n) {
    const int64_t *kept = kKept + kWide - int64_t(sizeof v / sizeof(double)) + n;
    by_vectors([&](auto &some) __attribute__((always_inline)) {
        typename VectorOf<int64_t, sizeof some>::Type bits;
        std::memcpy(&bits, kept, sizeof bits);
        mask(some, bits);
        kept += sizeof some / sizeof(double);
    }, v);
}

// (a + b) + (c + d) of four times eight numbers.
template <class V>
BACKLINE_INLINE void join_groups(V &all, const V *groups) {
    by_vectors([](auto &sum, const auto &a, const auto &b, const auto &c, const auto &d) __attribute__((always_inline)) {
        sum = (a + b) + (c + d);
    }, all, groups[0], groups[1], groups[2], groups[3]);
}

// The sums of even and of odd lanes: halves are added up until two are left.
template <class V>
BACKLINE_INLINE TwoDoubles folded(const V &v) {
    if constexpr (sizeof v == sizeof(TwoDoubles)) {
        return v;
    } else if constexpr (std::is_class_v<V>) {
        auto sum = v.low;
        by_vectors([](auto &one, const auto &other) __attribute__((always_inline)) { one += other; }, sum, v.high);
        return folded(sum);
    } else {
        typename VectorOf<double, sizeof v / 2>::Type low, high;
        std::memcpy(&low, &v, sizeof low);
        std::memcpy(&high, reinterpret_cast<const char *>(&v) + sizeof low, sizeof high);
        low = low + high;
        return folded(low);
    }
}

// The sums of the lanes of eight such, each in the order in which `folded` and the sum of its two lanes have it.
template <class V>
BACKLINE_INLINE void totals(const V *eight, double *to) {
    if constexpr (std::is_class_v<V>) {
        for (int i = 0; i < kWide; ++i) {
            const TwoDoubles two = folded(eight[i]);
            to[i] = two[0] + two[1];
        }
    } else {
        V two[4], four[2];
        for (int i = 0; i < 4; ++i) {
            const V a = eight[2 * i], b = eight[2 * i + 1];
            two[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11) + __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
        }
        for (int i = 0; i < 2; ++i) {
            const V a = two[2 * i], b = two[2 * i + 1];
            four[i] = __builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13) + __builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15);
        }
        const V a = four[0], b = four[1];
        const V all = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14) + __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
        std::memcpy(to, &all, sizeof all);
    }
}

}  // namespace backline
