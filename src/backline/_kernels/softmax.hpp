// Exponentials and rows of softmax, in vectors of the compiler: one source for every instruction set.
#pragma once
#include "lanes.hpp"

#include <cmath>
#include <limits>

namespace backline {

constexpr int kPadding = 128;  // bytes: two of the widest vectors, past the end of a row of scores

template <class T>
struct Exp;
// Where the result would be below the smallest normal number it is 0: nothing beside a sum of at least 1, and subnormal
// operands make products slow. The polynomials are those of (e^r - 1 - r) / r^2 on |r| <= ln(2) / 2.
template <>
struct Exp<float> {
    static constexpr float lowest = -87.3365447504f, shifter = 12582912.0f;  // 1.5 * 2^23: its last bit counts ones
    static constexpr float log2e = 1.44269504089f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    static constexpr int bias = 127, mantissa = 23;
    // S. L. Moshier, Cephes: expf.
    static constexpr float terms[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                      4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
};
template <>
struct Exp<double> {
    static constexpr double lowest = -708.39641853226408, shifter = 6755399441055744.0;  // 1.5 * 2^52
    static constexpr double log2e = 1.4426950408889634, ln2_high = 0.693147180369123816490, ln2_low = 1.90821492927058770002e-10;
    static constexpr int bias = 1023, mantissa = 52;
    // 1/k! from k = 13 down: the next term is below 2^-57 of the result.
    static constexpr double terms[] = {1.6059043836821615e-10, 2.0876756987868099e-9, 2.5052108385441719e-8,
                                       2.7557319223985891e-7,  2.7557319223985891e-6, 2.4801587301587302e-5,
                                       1.9841269841269841e-4,  1.3888888888888889e-3, 8.3333333333333333e-3,
                                       4.1666666666666667e-2,  1.6666666666666667e-1, 0.5};
};

// e^(x + low) for x <= 0, which here is all there is, -infinity included; NaN stays NaN. `low`, which may be left out, is below a
// unit in the last place of x. The error is below 1.5 units in the last place.
template <class T, int Bytes, class V, class... Low>
BACKLINE_INLINE void exponential(V &x, const Low &...low) {
    using E = Exp<T>;
    constexpr int parts = sizeof(V) / Bytes;
    V n = (x * E::log2e + E::shifter) - E::shifter;  // the nearest integer
    V r = x - n * E::ln2_high;                       // exact: ln2_high has trailing zeros enough
    r = r - n * E::ln2_low;
    r = (r + ... + low);
    V p = r * E::terms[0] + E::terms[1];
    for (size_t i = 2; i < sizeof(E::terms) / sizeof(T); ++i) p = p * r + E::terms[i];
    p = (r * r) * p + r;
    V power = n + (E::shifter + T(E::bias));
    typename Together<T, Bytes, parts>::Bits bits;
    reinterpret(bits, power);
    bits = bits << E::mantissa;  // what the shifter left above falls out
    reinterpret(power, bits);
    V result = p * power + power, zero{};
    choose(x, x < E::lowest, zero, result);
}

template <class T, int Bytes>
BACKLINE_INLINE void exp_array(const T *from, T *to, int64_t n) {
    using L = Lanes<T, Bytes>;
    int64_t i = 0;
    typename L::Vector v;
    for (; i + L::count <= n; i += L::count) {
        L::load(v, from + i);
        exponential<T, Bytes>(v);
        L::store(v, to + i);
    }
    if (i < n) {
        T rest[L::count] = {};
        for (int64_t j = i; j < n; ++j) rest[j - i] = from[j];
        L::load(v, rest);
        exponential<T, Bytes>(v);
        L::store(v, rest);
        for (int64_t j = i; j < n; ++j) to[j] = rest[j - i];
    }
}

template <class T>
constexpr T kNothing = -std::numeric_limits<T>::infinity();  // the score of a key that takes no part

// The logarithm of a sum whose largest term is 1, from the sum and from that of the other terms.
template <class T>
inline T logarithm_of_sum(T all, T others) {
    return all < T(2) ? std::log1p(others) : std::log(all);
}

// The same of several sums of floats at once: log(m) = 2 artanh((m - 1) / (m + 1)) by its series, of
// m = 1 + others, or of the mantissa of a sum that is larger. What is left out is below 2^-32 of the result.
template <int Bytes>
BACKLINE_INLINE void logarithms_of_sums(typename Lanes<double, Bytes>::Vector &all, const typename Lanes<double, Bytes>::Vector &others) {
    using L = Lanes<double, Bytes>;
    using V = typename L::Vector;
    using Bits = typename L::Bits;
    constexpr uint64_t mantissa = (uint64_t(1) << 52) - 1, of_one = uint64_t(1023) << 52, of_two_to_52 = uint64_t(1075) << 52;
    Bits bits, raised;
    reinterpret(bits, all);
    raised = bits >> 52 | of_two_to_52;  // 2^52 and the exponent
    bits = (bits & mantissa) | of_one;
    V m, exponent, zero{}, one = zero + 1.0, half = zero + 0.5, scale, more, above, below, series = zero + 1.0 / 19;
    reinterpret(m, bits);
    reinterpret(exponent, raised);
    exponent = exponent - (0x1p52 + 1023);
    choose(scale, m > 4.0 / 3, half, one);  // quotients stay below 1/3
    choose(more, m > 4.0 / 3, one, zero);
    m = m * scale;
    exponent = exponent + more;
    choose(exponent, all < 2.0, zero, exponent);
    V apart = m - 1.0, sum = m + 1.0, others_and_two = others + 2.0;
    choose(above, all < 2.0, others, apart);
    choose(below, all < 2.0, others_and_two, sum);
    const V s = above / below, z = s * s;
    for (int k = 17; k > 0; k -= 2) series = series * z + 1.0 / k;
    m = 2.0 * s * series + exponent * 0.69314718055994530942;
    choose(all, all <= std::numeric_limits<double>::max(), m, all);  // NaN stays
}

template <class T, int Bytes, class V>
BACKLINE_INLINE void logarithms_of_sums_in_lanes(V &all, const V &others) {
    using L = Lanes<T, Bytes>;
    if constexpr (std::is_same_v<T, float>) {
        using D = Lanes<double, Bytes>;
        float sums[L::count], parts[L::count];
        L::store(all, sums);
        L::store(others, parts);
        for (int half = 0; half < L::count; half += D::count) {
            typename D::Vector wide, wide_parts;
            typename Conversions<Bytes>::Floats narrow;
            Conversions<Bytes>::widen(wide, sums + half);
            Conversions<Bytes>::widen(wide_parts, parts + half);
            logarithms_of_sums<Bytes>(wide, wide_parts);
            Conversions<Bytes>::narrow(narrow, wide);
            std::memcpy(sums + half, &narrow, sizeof narrow);
        }
        L::load(all, sums);
    } else {
        for (int lane = 0; lane < L::count; ++lane) all[lane] = logarithm_of_sum(all[lane], others[lane]);
    }
}

// A row of scores becomes a row of weights relative to the maximum so far. The row may be read and written up to kPadding
// bytes past its end. `change` becomes what earlier weights have to be multiplied with, as a logarithm.
template <class T, int Bytes>
BACKLINE_INLINE void soften(T *s, int64_t n, T &most, T &sum, T &change) {
    using L = Lanes<T, Bytes>;
    typename L::Vector a, b, x, y;
    constexpr int step = 2 * L::count;
    for (int64_t j = n; j < (n + step - 1) / step * step; ++j) s[j] = kNothing<T>;
    L::fill(a, kNothing<T>);
    b = a;
    for (int64_t j = 0; j < n; j += step) {  // two maxima: one would wait for itself
        L::load(x, s + j);
        L::load(y, s + j + L::count);
        a = x > a ? x : a;
        b = y > b ? y : b;
    }
    a = a > b ? a : b;
    T now = most;
    for (int i = 0; i < L::count; ++i) now = a[i] > now ? a[i] : now;
    T base = now == kNothing<T> ? T(0) : now;  // -infinity less itself would be NaN
    a = typename L::Vector{};
    b = a;
    for (int64_t j = 0; j < n; j += step) {
        L::load(x, s + j);
        L::load(y, s + j + L::count);
        x = x - base;
        y = y - base;
        exponential<T, Bytes>(x);
        exponential<T, Bytes>(y);
        L::store(x, s + j);
        L::store(y, s + j + L::count);
        a += x;
        b += y;
    }
    a += b;
    for (int width = L::count / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) a[i] += a[i + width];
    change = most - base;
    most = now;
    sum = a[0];
}

}  // namespace backline
