// Sums in double of numbers without gaps, in lanes that are the same for every instruction set.
#pragma once
#include "targets.hpp"

#include <cstdint>
#include <cstring>

namespace backline {

constexpr int kWide = 8, kGroups = 4;  // numbers that are taken at once, and sums of such that are kept beside each other
constexpr int kLanes = kWide * kGroups;
typedef double Doubles __attribute__((vector_size(kWide * sizeof(double))));
typedef double TwoDoubles __attribute__((vector_size(2 * sizeof(double))));
typedef int64_t DoubleBits __attribute__((vector_size(sizeof(Doubles))));

template <class T>
BACKLINE_INLINE void load_doubles(Doubles &v, const T *from) {
    typedef T Eight __attribute__((vector_size(kWide * sizeof(T))));
    Eight eight;
    std::memcpy(&eight, from, sizeof eight);
    v = __builtin_convertvector(eight, Doubles);
}

BACKLINE_INLINE void mask(Doubles &v, const DoubleBits &bits) {
    DoubleBits all;
    std::memcpy(&all, &v, sizeof all);
    all = all & bits;
    std::memcpy(&v, &all, sizeof all);
}

constexpr int64_t kKept[2 * kWide] = {0, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, -1, -1, -1, -1, -1};

// Leaves the last n numbers, and 0 in the place of the others.
BACKLINE_INLINE void keep_last(Doubles &v, int64_t n) {
    DoubleBits kept;
    std::memcpy(&kept, kKept + n, sizeof kept);
    mask(v, kept);
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

}  // namespace backline
