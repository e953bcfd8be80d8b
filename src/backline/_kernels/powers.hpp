// Sums of powers of numbers, by logarithms and exponentials to the base 2 in vectors. The relative error of a power is that of its
// logarithm: some 1e-16 times the logarithm of the number, so of numbers that are at most 1 those that count are accurate. The bits are the
// same for every instruction set only where this is compiled without fused operations (-ffp-contract=off, as norms.cpp is).
#pragma once
#include "conversions.hpp"

#include <cstdint>
#include <cstring>

namespace backline {

constexpr int64_t kPowersAtOnce = 256;  // numbers of a call, at most; a multiple of a vector's

struct PowerSum {
    double sum, largest, least;  // the least number that is not 0, as far as it is below 1
    bool odd;                    // infinity or NaN is among the numbers
};

namespace powers_detail {

constexpr int kLanes = 8;  // of which each has sums of its own, whatever the vectors of the instruction set

template <class V>
using BitsOf = typename VectorOf<uint64_t, sizeof(V)>::Type;

template <class V>
BACKLINE_INLINE void bits_of(BitsOf<V> &bits, const V &x) {
    std::memcpy(&bits, &x, sizeof bits);
}
template <class V>
BACKLINE_INLINE void value_of(V &x, const BitsOf<V> &bits) {
    std::memcpy(&x, &bits, sizeof x);
}

// The exponent e and m = x / 2^e between the roots of 1/2 and 2; log2(m) = s * (2 + 2 s^2 / 3 + ...) / ln 2 with s = (m - 1) / (m + 1).
template <class V>
BACKLINE_INLINE void log2_of(V &y, const V &x) {
    using U = BitsOf<V>;
    constexpr double c = 2.8853900817779268;  // 2 / ln 2
    U bits;
    bits_of(bits, x);
    const U exponent = (bits - 0x3fe6a09e667f3bcd + (uint64_t(1024) << 52)) >> 52;
    V m, e;
    value_of(m, bits - (exponent << 52) + (uint64_t(1024) << 52));
    value_of(e, exponent | 0x4330000000000000);
    const V s = (m - 1) / (m + 1), z = s * s;
    V p = z * (c / 21) + c / 19;
    for (int k = 17; k >= 1; k -= 2) p = p * z + c / k;
    y = (e - (0x1p52 + 1024)) + s * p;
}

// 2^y for y from -1022 to 1023.
template <class V>
BACKLINE_INLINE void exp2_of(V &x, const V &y) {
    constexpr double c[] = {1,
                            0.69314718055994531,
                            0.24022650695910071,
                            0.055504108664821580,
                            0.0096181291076284772,
                            0.0013333558146428443,
                            0.00015403530393381610,
                            1.5252733804059840e-05,
                            1.3215486790144309e-06,
                            1.0178086009239700e-07,
                            7.0549116208011233e-09,
                            4.4455382718708116e-10,
                            2.5678435993488206e-11,
                            1.3691488853904128e-12};
    const V shifted = y + 0x1.8p52, f = y - (shifted - 0x1.8p52);
    V p = f * c[13] + c[12], power;
    for (int k = 11; k >= 0; --k) p = p * f + c[k];
    BitsOf<V> bits;
    bits_of(bits, shifted);
    value_of(power, (bits + 1023) << 52);
    x = p * power;
}

struct Body {
    template <class T, int Bytes>
    static BACKLINE_INLINE void run(const double *from, int64_t n, double order, PowerSum *to) {
        using V = typename VectorOf<double, Bytes>::Type;
        constexpr int count = sizeof(V) / sizeof(double), vectors = kLanes / count;
        V sums[vectors] = {}, largest[vectors] = {}, least[vectors], odd[vectors] = {};
        for (int i = 0; i < vectors; ++i) least[i] = V{} + 1;
        for (int64_t start = 0; start < n; start += kLanes)
            for (int i = 0; i < vectors; ++i) {
                V x, y, power;
                std::memcpy(&x, from + start + i * count, sizeof x);
                odd[i] += x - x;
                largest[i] = x > largest[i] ? x : largest[i];
                const V counted = x > 0 ? x : V{} + 1;
                least[i] = counted < least[i] ? counted : least[i];
                log2_of(y, x);
                y *= order;
                y = y > -1022 ? y : V{} - 1022;
                y = y < 1023 ? y : V{} + 1023;
                exp2_of(power, y);
                sums[i] += x > 0 ? power : V{};
            }
        *to = {0, 0, 1, false};
        for (int lane = 0; lane < kLanes; ++lane) {
            const int i = lane / count, k = lane % count;
            to->sum += sums[i][k];
            to->largest = largest[i][k] > to->largest ? largest[i][k] : to->largest;
            to->least = least[i][k] < to->least ? least[i][k] : to->least;
            to->odd |= odd[i][k] != 0;
        }
    }
};

}  // namespace powers_detail

// Sums x^order of n numbers, which are followed by zeros up to a multiple of 8.
inline void power_sum(int64_t level, const double *from, int64_t n, double order, PowerSum *to) {
    TypedVersions<powers_detail::Body>::table[level][1](from, n, order, to);
}

}  // namespace backline
