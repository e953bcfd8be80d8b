// What the two definitions of results of int8 products share: what a plan tells them, and the plain arithmetic.
// All of it is inlined, so that it is compiled for the instruction set of the function that it is part of.
#pragma once
#include "rounding.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace backline {

// In the constant memory of a plan, one 64-bit integer after the other.
struct Layer {
    int64_t outs;        // outputs of a row: channels
    int64_t repeats;     // so many rows are treated as one, so that a row fills vectors
    int64_t terms;       // products in a sum
    int64_t many;        // 1: every output has a scale of its own
    int64_t many_zeros;  // 1: and a zero point
    int64_t compensate;  // 1: the zero point of the input is still in the sums
    int64_t groups;      // parts of the outputs that see the same inputs
    int64_t low, high;   // of the integers of the result
    int64_t level;       // of vector instructions: 0 what all have, 1 AVX2, 2 AVX-512
    int64_t rounding;    // whose definition of results: one of Rounding
};

// Ours is exact until the one rounding to an integer. The others are those of FBGEMM and QNNPACK: each step is a float32.
enum Rounding : int64_t { kExactly, kFbgemm, kQnnpack };

// Sums of products of what has no zero points left are below this, times the number of terms.
constexpr int64_t kProduct = 255 * 255;
constexpr int64_t kExact = int64_t(1) << 29;  // below it a sum times a factor of 24 bits is exact in 53

enum Mode : int64_t { kPlain, kChecked, kSlow };

// Whether vectors of float32 give the integers of the definition, and whether products may be far below 0.
enum Vectors : int32_t { kNone, kNear, kFar };

// At the start of the workspace of one call. Behind it: outs * repeats factors, as many int32 to be added to sums, and as
// many factors in float32; or where the result is real, or rounded in float32, outs units or factors, outs biases, and outs int32.
struct Numbers {
    int64_t mode;
    const float *input_scale, *weight_scale, *bias, *out_scale;
    const int32_t *input_zero, *weight_zero, *sums;
    int64_t zero;           // of the result
    int32_t window_added;   // to the sums of inputs that a weight's zero point is multiplied by
    int32_t vectors;        // of Vectors: whether results can be rounded, packed and saturated by vectors
    int32_t padding[12];
};
static_assert(sizeof(Numbers) % 64 == 0, "what follows is aligned");

// What is done with the sums of each output: of the longer rows that rows are treated as.
struct Scales {
    const double *factors;
    const int32_t *added;
    const float *narrow;  // the factors again

    BACKLINE_INLINE Scales from(int64_t output) const { return {factors + output, added + output, narrow + output}; }
};

inline Scales scales_of(const Layer &g, const Numbers &n) {
    const double *factors = reinterpret_cast<const double *>(&n + 1);
    const int32_t *added = reinterpret_cast<const int32_t *>(factors + g.outs * g.repeats);
    return {factors, added, reinterpret_cast<const float *>(added + g.outs * g.repeats)};
}

// Rounded to 24 bits, ties to even; positive, finite and not subnormal.
BACKLINE_INLINE double of_24_bits(double value) {
    const int64_t bits = bits_of(value);
    return of_bits((bits + 0x0FFFFFFF + ((bits >> 29) & 1)) & ~int64_t(0x1FFFFFFF));
}

// Rounded to an integer within int32, ties to even.
BACKLINE_INLINE double whole(double value) {
    value = value < -2147483648.0 ? -2147483648.0 : value;
    value = value > 2147483647.0 ? 2147483647.0 : value;
    return (value + kMagic) - kMagic;
}

BACKLINE_INLINE int32_t wrapped(int64_t value) { return int32_t(uint32_t(uint64_t(value))); }

BACKLINE_INLINE int32_t plus(int32_t a, int32_t b) { return int32_t(uint32_t(a) + uint32_t(b)); }

inline double unit_of(const Layer &g, const Numbers &n, int64_t o) {
    return double(*n.input_scale) * double(n.weight_scale[g.many ? o : 0]);
}

// What the zero point of the input has put into a sum, with the opposite sign.
inline int32_t missing(const Layer &g, const Numbers &n, int64_t o) {
    return g.compensate ? wrapped(-int64_t(*n.input_zero) * n.sums[o]) : 0;
}

// Sums of one row without what the zero points of the weights have put into them.
BACKLINE_INLINE void without_zeros(const Layer &g, const Numbers &n, const int32_t *sums, const int32_t *windows, int32_t *to,
                                   int64_t first, int64_t count) {
    const int64_t part = g.outs / g.groups;
    for (int64_t j = 0; j < count; ++j) {
        const int64_t o = first + j;
        const int32_t window = plus(windows[g.groups == 1 ? 0 : o / part], n.window_added);
        to[j] = wrapped(int64_t(sums[j]) - int64_t(n.weight_zero[g.many_zeros ? o : 0]) * window);
    }
}

// Rows of either kind of result: `one_row(first, sums, to, count)` for as many outputs of a row as are done together.
template <class T, class Row>
BACKLINE_INLINE void rows_of(const Layer &g, const Numbers &n, const int32_t *sums, const int32_t *windows, T *to,
                             int64_t rows, const Row &one_row) {
    int32_t block[kBlock];
    for (int64_t i = 0; i < rows; ++i, sums += g.outs, to += g.outs)
        for (int64_t start = 0; start < g.outs; start += kBlock) {
            const int64_t size = std::min(kBlock, g.outs - start);
            const int32_t *from = sums + start;
            if (windows) {
                without_zeros(g, n, from, windows + i * g.groups, block, start, size);
                from = block;
            }
            one_row(start, from, to + start, size);
        }
}

// Brings rows of sums to their scale, as a plan calls it; `windows` is nullptr where the weights have no zero points.
void quantized_finish(const Layer *g, const Numbers *n, const int32_t *sums, const int32_t *windows, uint8_t *to, int64_t rows);

// The definitions that round in float32 (requantize_float32.cpp): what follows from the numbers of a call, and rows of results.
void float32_numbers(const Layer &g, Numbers &n);
void float32_finish(const Layer &g, const Numbers &n, const int32_t *sums, const int32_t *windows, uint8_t *to, int64_t rows);
void float32_real(const Layer &g, const Numbers &n, const int32_t *sums, const int32_t *windows, float *to, int64_t rows);

}  // namespace backline
