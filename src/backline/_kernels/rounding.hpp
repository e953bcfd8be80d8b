// Rounding by the bits of float64: what both directions of quantization share.
#pragma once
#include "../_core/bits.hpp"
#include "targets.hpp"

#include <cstdint>
#include <cstring>

namespace backline {

constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52: added to a number it leaves the nearest integer in the last bits
constexpr int64_t kBlock = 512;  // elements that are looked at together

// The same of float32, 1.5 * 2^23. A number below 2^9 that two roundings to 24 bits have led to is off by less than 2^-14, so it is
// rounded to the right integer where it is further than that from the middle between two: that much is sure.
constexpr float kMagic32 = 12582912.0f, kSure = 0.5f - 0x1p-14f;

BACKLINE_INLINE double of_bits(int64_t bits) { return bits_as<double>(bits); }
BACKLINE_INLINE int64_t bits_of(double value) { return bits_as<int64_t>(value); }

}  // namespace backline
