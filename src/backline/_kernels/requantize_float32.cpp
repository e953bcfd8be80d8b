// From sums of int8 products to results, by the definitions of FBGEMM and QNNPACK: each step is an operation of float32.
//
// The tables that `float32_numbers` writes hold doubles, as those of the exact definition do. Each is a float32 or, as a bias of
// QNNPACK, an int32, so that turning it into a float is exact, or is the one rounding that is meant.
#include "requantize.hpp"

namespace backline {
namespace {

template <bool Fbgemm>
BACKLINE_INLINE void row(const Layer &g, const Numbers &n, const double *factors, const double *biases,
                                const int32_t *added, const int32_t *sums, uint8_t *to, int64_t count) {
    const float low = float(g.low - n.zero), high = float(g.high - n.zero);
    const int64_t zero = n.zero;
    for (int64_t j = 0; j < count; ++j) {
        const int32_t sum = plus(sums[j], added[j]);
        const float units = Fbgemm ? float(sum) + float(biases[j]) : float(double(sum) + biases[j]);
        float value = units * float(factors[j]);
        value = value < low ? low : value;
        value = value > high ? high : value;
        to[j] = uint8_t(uint64_t(bits_of(double(value) + kMagic) + zero));
    }
}

BACKLINE_INLINE void real_row(const Layer &g, const Numbers &n, const double *units, const double *biases,
                                     const int32_t *added, const int32_t *sums, float *to, int64_t count) {
    for (int64_t j = 0; j < count; ++j) {
        const float sum = float(plus(sums[j], added[j])), unit = float(units[j]);
        if (!n.bias) to[j] = sum * unit;
        else to[j] = g.rounding == kFbgemm ? __builtin_fmaf(sum, unit, float(biases[j])) : sum * unit + float(biases[j]);
    }
}

BACKLINE_INLINE void finish(const Layer &g, const Numbers &n, const int32_t *sums, const int32_t *windows, uint8_t *to,
                                   int64_t rows) {
    const double *factors = reinterpret_cast<const double *>(&n + 1), *biases = factors + g.outs;
    const int32_t *added = reinterpret_cast<const int32_t *>(biases + g.outs);
    rows_of(g, n, sums, windows, to, rows, [&](int64_t at, const int32_t *from, uint8_t *target, int64_t size) __attribute__((always_inline)) {
        if (g.rounding == kFbgemm) row<true>(g, n, factors + at, biases + at, added + at, from, target, size);
        else row<false>(g, n, factors + at, biases + at, added + at, from, target, size);
    });
}

BACKLINE_INLINE void real(const Layer &g, const Numbers &n, const int32_t *sums, const int32_t *windows, float *to,
                                 int64_t rows) {
    const double *units = reinterpret_cast<const double *>(&n + 1), *biases = units + g.outs;
    const int32_t *added = reinterpret_cast<const int32_t *>(biases + g.outs);
    rows_of(g, n, sums, windows, to, rows, [&](int64_t at, const int32_t *from, float *target, int64_t size) __attribute__((always_inline)) {
        real_row(g, n, units + at, biases + at, added + at, from, target, size);
    });
}

}  // namespace

// Factors, biases and what is added to sums.
void float32_numbers(const Layer &g, Numbers &n) {
    double *factors = reinterpret_cast<double *>(&n + 1), *biases = factors + g.outs;
    int32_t *added = reinterpret_cast<int32_t *>(biases + g.outs);
    const float input = *n.input_scale;
    for (int64_t o = 0; o < g.outs; ++o) {
        const float unit = input * n.weight_scale[g.many ? o : 0];
        added[o] = missing(g, n, o);
        biases[o] = 0.0;
        if (!n.out_scale) {
            factors[o] = unit;
            if (n.bias) biases[o] = n.bias[o];
            continue;
        }
        const float inverse = 1.0f / *n.out_scale, units = 1.0f / unit;
        factors[o] = g.rounding == kFbgemm ? unit / *n.out_scale : unit * inverse;
        if (!n.bias) continue;
        if (g.rounding == kFbgemm) biases[o] = g.many ? n.bias[o] / unit : n.bias[o] * units;
        else biases[o] = whole(double(n.bias[o] * units));
    }
}

void float32_finish(const Layer &g, const Numbers &n, const int32_t *sums, const int32_t *windows, uint8_t *to, int64_t rows) {
    Versions<finish>::fused[g.level](g, n, sums, windows, to, rows);
}

void float32_real(const Layer &g, const Numbers &n, const int32_t *sums, const int32_t *windows, float *to, int64_t rows) {
    Versions<real>::fused[g.level](g, n, sums, windows, to, rows);
}

}  // namespace backline
