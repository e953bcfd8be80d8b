// Rounding by the bits of float64: what both directions of quantization share.
#pragma once
#include "targets.hpp"

#include <cstdint>
#include <cstring>

namespace backline {

constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52: added to a number it leaves the nearest integer in the last bits
constexpr int64_t kBlock = 512;  // elements that are looked at together

BACKLINE_INLINE double of_bits(int64_t bits) {
    double value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

BACKLINE_INLINE int64_t bits_of(double value) {
    int64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// Functions compiled for every level, by their level.
#if defined(__x86_64__)
#define BACKLINE_LEVELS(name) {name##_plain, name##_avx2, name##_avx512}
#else
#define BACKLINE_LEVELS(name) {name##_plain, name##_plain, name##_plain}
#endif

}  // namespace backline
