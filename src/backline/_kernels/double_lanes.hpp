// Sums in double of numbers without gaps, in lanes that are the same for every instruction set.
#pragma once
#include "conversions.hpp"

#include <cstdint>
#include <cstring>

namespace backline {

constexpr int kWide = 8, kGroups = 4;  // numbers that are taken at once, and sums of such that are kept beside each other
constexpr int kLanes = kWide * kGroups;
typedef double Doubles __attribute__((vector_size(kWide * sizeof(double))));
typedef double TwoDoubles __attribute__((vector_size(2 * sizeof(double))));
typedef int64_t DoubleBits __attribute__((vector_size(sizeof(Doubles))));

// Bytes: of the vectors of the instruction set.
template <int Bytes>
BACKLINE_INLINE void load_doubles(Doubles &v, const double *from) {
    std::memcpy(&v, from, sizeof v);
}
template <int Bytes>
BACKLINE_INLINE void load_doubles(Doubles &v, const float *from) {
    using C = Conversions<Bytes>;
    for (size_t i = 0; i < sizeof v / Bytes; ++i) {
        typename C::Doubles doubles;
        C::widen(doubles, from + i * (Bytes / sizeof(double)));
        std::memcpy(reinterpret_cast<char *>(&v) + i * sizeof doubles, &doubles, sizeof doubles);
    }
}

// sum += x * y, of numbers whose product is exact, as that of two floats is: fused or not, the bits are the same.
template <int Bytes>
BACKLINE_INLINE void add_exact_product(Doubles &sum, const Doubles &x, const Doubles &y) {
    if constexpr (Bytes > kPlainBytes) {
        using Some = typename Conversions<Bytes>::Doubles;
        for (size_t i = 0; i < sizeof sum / Bytes; ++i) {
            Some total, one, other;
            std::memcpy(&total, reinterpret_cast<const char *>(&sum) + i * Bytes, sizeof total);
            std::memcpy(&one, reinterpret_cast<const char *>(&x) + i * Bytes, sizeof one);
            std::memcpy(&other, reinterpret_cast<const char *>(&y) + i * Bytes, sizeof other);
            asm("vfmadd231pd %2, %1, %0" : "+v"(total) : "v"(one), "v"(other));
            std::memcpy(reinterpret_cast<char *>(&sum) + i * Bytes, &total, sizeof total);
        }
    } else {
        sum += x * y;
    }
}

BACKLINE_INLINE void mask(Doubles &v, const DoubleBits &bits) {
    DoubleBits all;
    std::memcpy(&all, &v, sizeof all);
    all = all & bits;
    std::memcpy(&v, &all, sizeof all);
}

constexpr int64_t kKept[2 * kWide] = {0, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, -1, -1, -1, -1, -1};

// Leaves the last n numbers of a vector of up to kWide, and 0 in the place of the others.
template <class V>
BACKLINE_INLINE void keep_last(V &v, int64_t n) {
    typedef int64_t Bits __attribute__((vector_size(sizeof(V))));
    Bits all, kept;
    std::memcpy(&all, &v, sizeof all);
    std::memcpy(&kept, kKept + kWide - int64_t(sizeof v / sizeof(double)) + n, sizeof kept);
    all = all & kept;
    std::memcpy(&v, &all, sizeof all);
}

// The sums of even and of odd lanes.
BACKLINE_INLINE TwoDoubles folded(const Doubles &v) {
    typedef double Four __attribute__((vector_size(sizeof(Doubles) / 2)));
    Four low, high;
    std::memcpy(&low, &v, sizeof low);
    std::memcpy(&high, reinterpret_cast<const char *>(&v) + sizeof low, sizeof high);
    low = low + high;
    TwoDoubles one, other;
    std::memcpy(&one, &low, sizeof one);
    std::memcpy(&other, reinterpret_cast<const char *>(&low) + sizeof one, sizeof other);
    return one + other;
}

// The sums of the lanes of eight such, each in the order in which `folded` and the sum of its two lanes have it.
template <int Bytes>
BACKLINE_INLINE void totals(const Doubles *eight, double *to) {
    if constexpr (Bytes < int(sizeof(Doubles))) {
        for (int i = 0; i < kWide; ++i) {
            const TwoDoubles two = folded(eight[i]);
            to[i] = two[0] + two[1];
        }
    } else {
        Doubles two[4], four[2];
        for (int i = 0; i < 4; ++i) {
            const Doubles a = eight[2 * i], b = eight[2 * i + 1];
            two[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11) + __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
        }
        for (int i = 0; i < 2; ++i) {
            const Doubles a = two[2 * i], b = two[2 * i + 1];
            four[i] = __builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13) + __builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15);
        }
        const Doubles a = four[0], b = four[1];
        const Doubles all = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14) + __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
        std::memcpy(to, &all, sizeof all);
    }
}

}  // namespace backline
