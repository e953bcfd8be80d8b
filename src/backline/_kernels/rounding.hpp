// Rounding by the bits of float64: what both directions of quantization share.
#pragma once
#include "../_core/bits.hpp"
#include "targets.hpp"

#include <cstdint>
#include <cstring>

namespace backline {

constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52: added to a number it leaves the nearest integer in the last bits
constexpr int64_t kBlock = 512;  // elements that are looked at together

BACKLINE_INLINE double of_bits(int64_t bits) { return bits_as<double>(bits); }
BACKLINE_INLINE int64_t bits_of(double value) { return bits_as<int64_t>(value); }

}  // namespace backline
