// From sums of int8 products to what they stand for: integers of another scale, or real numbers.
// Plain functions over plain memory, which plans call by address as they call a vendor's. Every result is defined to the last bit,
// and does not depend on instructions or threads.
//
// No product may be fused with the sum after it where that would save a rounding which the definition has: the functions where
// it would are compiled for instruction sets without fused operations (CMakeLists.txt says it to the compiler as well).
#include "requantize.hpp"

#include "kernels.hpp"
#include "requantize_vectors.hpp"

#include <algorithm>
#include <cmath>

namespace backline {
namespace {

constexpr int64_t kNarrow = 256;  // sums that are brought to their scale in float32, or all of them again in float64

// Factors and what is added, for a result of integers. Returns the largest magnitude of a bias.
template <bool Many, bool Biased, bool Compensated>
BACKLINE_INLINE double fill(const Layer &g, const Numbers &n, double *factors, int32_t *added) {
    const double input = *n.input_scale, output = *n.out_scale;
    const int64_t zero = Compensated ? -int64_t(*n.input_zero) : 0;
    int64_t most = 0;
    for (int64_t o = 0; o < g.outs; ++o) {
        const double unit = input * double(n.weight_scale[Many ? o : 0]);
        factors[o] = of_24_bits(unit / output);
        int32_t plus_bias = 0;
        if (Biased) {
            const double units = whole(double(n.bias[o]) / unit);
            plus_bias = wrapped(bits_of(units + kMagic));  // the last 32 bits are the integer
            const int64_t magnitude = bits_of(units < 0 ? -units : units);  // positive numbers are ordered as their bits are
            most = magnitude > most ? magnitude : most;
        }
        added[o] = Compensated ? plus(plus_bias, wrapped(zero * n.sums[o])) : plus_bias;
    }
    return of_bits(most);
}

BACKLINE_INLINE double fill_all(const Layer &g, const Numbers &n, double *factors, int32_t *added) {
    if (g.many) {
        if (n.bias) return g.compensate ? fill<true, true, true>(g, n, factors, added) : fill<true, true, false>(g, n, factors, added);
        return g.compensate ? fill<true, false, true>(g, n, factors, added) : fill<true, false, false>(g, n, factors, added);
    }
    if (n.bias) return g.compensate ? fill<false, true, true>(g, n, factors, added) : fill<false, true, false>(g, n, factors, added);
    return g.compensate ? fill<false, false, true>(g, n, factors, added) : fill<false, false, false>(g, n, factors, added);
}

// One sum to an integer, whatever it is: the definition.
int64_t exactly(const Layer &g, const Numbers &n, int64_t o, int32_t sum) {
    const double unit = unit_of(g, n, o), factor = of_24_bits(unit / double(*n.out_scale));
    const int64_t units = n.bias ? int64_t(whole(double(n.bias[o]) / unit)) : 0;
    const int64_t bits = bits_of(factor);
    // With a shift below 1 every sum but 0 is far outside any dtype, as with 1; with one above 62 nothing is left, as with 62.
    const int64_t shift = std::clamp<int64_t>(23 + 1023 - ((bits >> 52) & 0x7FF), 1, 62);
    const int64_t product = (int64_t(sum) + units) * ((int64_t(1) << 23) | ((bits >> 29) & 0x7FFFFF));
    int64_t result = product >> shift;
    const int64_t rest = product - result * (int64_t(1) << shift), half = int64_t(1) << (shift - 1);
    result += rest > half || (rest == half && (result & 1));
    return std::clamp(result + n.zero, g.low, g.high);
}

// In float32, which does twice as many at once. False where some may be rounded to the wrong integer.
BACKLINE_INLINE bool rescale_narrow(const Layer &g, const Numbers &n, const Scales &by, const int32_t *sums, uint8_t *to, int64_t count) {
    const float low = float(g.low - n.zero), high = float(g.high - n.zero);
    const int32_t zero = int32_t(n.zero);
    int32_t furthest = 0;  // from an integer: positive numbers are ordered as their bits are, and NaN comes last
    for (int64_t j = 0; j < count; ++j) {
        float value = float(plus(sums[j], by.added[j])) * by.narrow[j];
        value = value < low ? low : value;
        value = value > high ? high : value;
        const float shifted = value + kMagic32;
        const int32_t off = bits_as<int32_t>(value - (shifted - kMagic32)) & 0x7FFFFFFF;
        furthest = off > furthest ? off : furthest;
        to[j] = uint8_t(bits_as<int32_t>(shifted) + zero);
    }
    return furthest < bits_as<int32_t>(kSure);
}

BACKLINE_INLINE void rescale_wide(const Layer &g, const Numbers &n, const Scales &by, const int32_t *sums, uint8_t *to, int64_t count) {
    const double low = double(g.low - n.zero), high = double(g.high - n.zero);
    const int64_t zero = n.zero;
    for (int64_t j = 0; j < count; ++j) {
        double value = double(plus(sums[j], by.added[j])) * by.factors[j];
        value = value < low ? low : value;
        value = value > high ? high : value;
        to[j] = uint8_t(uint64_t(bits_of(value + kMagic) + zero));
    }
}

BACKLINE_INLINE void rescale_rest(const Layer &g, const Numbers &n, const Scales &by, const int32_t *sums, uint8_t *to, int64_t count) {
    for (int64_t start = 0; start < count; start += kNarrow) {
        const int64_t size = std::min(kNarrow, count - start);
        const Scales here = by.from(start);
        if (!rescale_narrow(g, n, here, sums + start, to + start, size)) rescale_wide(g, n, here, sums + start, to + start, size);
    }
}

#if defined(__x86_64__)
// The same by instructions that pack and saturate (requantize_vectors.hpp).
template <bool Far>
BACKLINE_AVX512 void rescale_avx512(const Layer &g, const Numbers &n, const Scales &by, const int32_t *sums, uint8_t *to, int64_t count) {
    int64_t j = 0;
    for (; j + kTogether <= count; j += kTogether) rescale_together<Far>(g, n, by.from(j), sums + j, to + j);
    rescale_rest(g, n, by.from(j), sums + j, to + j, count - j);
}

template <bool Far>
BACKLINE_AVX2 void rescale_avx2(const Layer &g, const Numbers &n, const Scales &by, const int32_t *sums, uint8_t *to, int64_t count) {
    constexpr int kLanes = 8, kAtOnce = 4 * kLanes;
    const __m256 magic = _mm256_set1_ps(kMagic32);
    const __m256i none = _mm256_castps_si256(magic), zero = _mm256_set1_epi16(int16_t(n.zero));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    auto whole = [&](int64_t at) __attribute__((always_inline, target("avx2,fma"))) {
        const __m256i here = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(sums + at));
        const __m256i sum = _mm256_add_epi32(here, _mm256_loadu_si256(reinterpret_cast<const __m256i *>(by.added + at)));
        __m256 value = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_loadu_ps(by.narrow + at), magic);
        if (Far) value = _mm256_max_ps(value, _mm256_setzero_ps());
        return _mm256_sub_epi32(_mm256_castps_si256(value), none);
    };
    int64_t j = 0;
    for (; j + kAtOnce <= count; j += kAtOnce) {
        const __m256i first = _mm256_adds_epi16(_mm256_packs_epi32(whole(j), whole(j + kLanes)), zero);
        const __m256i second = _mm256_adds_epi16(_mm256_packs_epi32(whole(j + 2 * kLanes), whole(j + 3 * kLanes)), zero);
        const __m256i packed = g.low < 0 ? _mm256_packs_epi16(first, second) : _mm256_packus_epi16(first, second);
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(to + j), _mm256_permutevar8x32_epi32(packed, order));
    }
    rescale_rest(g, n, by.from(j), sums + j, to + j, count - j);
}
#endif

BACKLINE_INLINE void rescale(const Layer &g, const Numbers &n, const Scales &by, const int32_t *sums, uint8_t *to, int64_t count) {
#if defined(__x86_64__)
    if (n.vectors == kNear) return (g.level == 2 ? rescale_avx512<false> : rescale_avx2<false>)(g, n, by, sums, to, count);
    if (n.vectors == kFar) return (g.level == 2 ? rescale_avx512<true> : rescale_avx2<true>)(g, n, by, sums, to, count);
#endif
    rescale_rest(g, n, by, sums, to, count);
}

// A row, or several that are treated as one; `first` is the output that its first element belongs to.
BACKLINE_INLINE void rescale_row(const Layer &g, const Numbers &n, const Scales &by, const int32_t *sums, uint8_t *to, int64_t first,
                                 int64_t count) {
    if (n.mode == kPlain) return rescale(g, n, by.from(first), sums, to, count);
    for (int64_t start = 0; start < count; start += kBlock) {
        const int64_t size = std::min(kBlock, count - start), at = first + start;
        int64_t large = n.mode == kSlow;
        if (!large)
            for (int64_t j = 0; j < size; ++j) {
                const int64_t sum = plus(sums[start + j], by.added[at + j]);
                large |= (sum >= kExact) | (sum <= -kExact);
            }
        if (!large) {
            rescale(g, n, by.from(at), sums + start, to + start, size);
        } else {
            for (int64_t j = 0; j < size; ++j) {
                const int64_t o = (at + j) % g.outs;
                to[start + j] = uint8_t(exactly(g, n, o, plus(sums[start + j], missing(g, n, o))));
            }
        }
    }
}

BACKLINE_INLINE void finish_rows(const Layer &g, const Numbers &n, const int32_t *sums, const int32_t *windows, uint8_t *to,
                                 int64_t rows) {
    const int64_t wide = g.outs * g.repeats;
    const Scales by = scales_of(g, n);
    auto one_row = [&](int64_t start, const int32_t *from, uint8_t *out, int64_t size) {
        rescale_row(g, n, by, from, out, start, size);
    };
    if (windows) return rows_of(g, n, sums, windows, to, rows, one_row);
    const int64_t all = rows * g.outs;
    for (int64_t start = 0; start < all; start += wide)
        rescale_row(g, n, by, sums + start, to + start, 0, std::min(wide, all - start));
}

BACKLINE_INLINE void real_row(const double *units, const double *biases, const int32_t *added, const int32_t *sums, float *to,
                              int64_t count) {
    for (int64_t j = 0; j < count; ++j) {
        double value = double(plus(sums[j], added[j])) * units[j];
        if (biases) value = value + biases[j];
        to[j] = float(value);
    }
}

BACKLINE_INLINE void real_rows(const Layer &g, const Numbers &n, const int32_t *sums, const int32_t *windows, float *to,
                               int64_t rows) {
    const double *units = reinterpret_cast<const double *>(&n + 1), *biases = units + g.outs;
    const int32_t *added = reinterpret_cast<const int32_t *>(biases + g.outs);
    if (!n.bias) biases = nullptr;
    rows_of(g, n, sums, windows, to, rows, [&](int64_t start, const int32_t *from, float *out, int64_t size) {
        real_row(units + start, biases ? biases + start : nullptr, added + start, from, out, size);
    });
}

// Called by plans ------------------------------------------------------------------------------------------------------

// What follows from the numbers of one call, once for all rows. `out_scale` and `out_zero` are nullptr for a real result,
// `weight_zero` where all are 0, `sums` (those of each output's weights) where nothing is to be compensated.
void quantized_numbers(const Layer *g, Numbers *n, const float *input_scale, const int32_t *input_zero, const float *weight_scale,
                       const int32_t *weight_zero, const float *bias, const float *out_scale, const int32_t *out_zero,
                       const int32_t *sums) {
    *n = Numbers{kPlain, input_scale, weight_scale, bias, out_scale, input_zero, weight_zero, sums, out_zero ? *out_zero : 0, 0, 0, {}};
    if (g->compensate) n->window_added = wrapped(-int64_t(*input_zero) * g->terms);
    if (g->rounding != kExactly) return float32_numbers(*g, *n);
    if (!out_scale) {
        double *units = reinterpret_cast<double *>(n + 1), *biases = units + g->outs;
        int32_t *added = reinterpret_cast<int32_t *>(biases + g->outs);
        for (int64_t o = 0; o < g->outs; ++o) {
            units[o] = unit_of(*g, *n, o);
            biases[o] = bias ? double(bias[o]) : 0.0;
            added[o] = missing(*g, *n, o);
        }
        return;
    }
    double *factors = reinterpret_cast<double *>(n + 1);
    const int64_t wide = g->outs * g->repeats;
    int32_t *added = reinterpret_cast<int32_t *>(factors + wide);
    const double most = Versions<fill_all>::table[g->level](*g, *n, factors, added);
    for (int64_t at = g->outs; at < wide; at += g->outs) {
        std::memcpy(factors + at, factors, size_t(g->outs) * sizeof(double));
        std::memcpy(added + at, added, size_t(g->outs) * sizeof(int32_t));
    }
    float *narrow = reinterpret_cast<float *>(added + wide);
    double least = HUGE_VAL, largest = 0;
    for (int64_t at = 0; at < wide; ++at) {
        narrow[at] = float(std::min(factors[at], 0x1p100));  // beyond it all but 0 saturates
        largest = std::max(largest, factors[at]);
        least = std::min(least, factors[at]);
    }
    const double bound = double(g->terms * kProduct) + most, here = std::min(bound, double(kExact));
    n->mode = bound < double(kExact) ? kPlain : bound < 2147483648.0 ? kChecked : kSlow;
    // Below 2^24 a sum is a float32. A larger one need not be where its product saturates: it is 512 or more.
    const bool suits = g->level > 0 && g->high - g->low == 255 && (here < 0x1p24 || least >= 0x1p-15);
    n->vectors = !suits ? kNone : here * largest < 0x1p23 ? kNear : kFar;
}

}  // namespace

void quantized_finish(const Layer *g, const Numbers *n, const int32_t *sums, const int32_t *windows, uint8_t *to, int64_t rows) {
    if (g->rounding != kExactly) return float32_finish(*g, *n, sums, windows, to, rows);
    Versions<finish_rows>::table[g->level](*g, *n, sums, windows, to, rows);
}

namespace {

void quantized_real(const Layer *g, const Numbers *n, const int32_t *sums, const int32_t *windows, float *to, int64_t rows) {
    if (g->rounding != kExactly) return float32_real(*g, *n, sums, windows, to, rows);
    Versions<real_rows>::without_avx512[g->level](*g, *n, sums, windows, to, rows);
}

}  // namespace

int add_requantize(PyObject *module, PyObject *addresses) {
    if (PyModule_AddIntConstant(module, "requantize_header", sizeof(Numbers)) < 0) return -1;
    return add_kernels(addresses, {kernel("requantize_numbers", quantized_numbers), kernel("requantize_finish", quantized_finish),
                                   kernel("requantize_real", quantized_real)});
}

}  // namespace backline
