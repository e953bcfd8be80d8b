// Activations and their slopes, in vectors of the compiler: the formulas of libraries/reference/activation_formulas.py.
#pragma once
#include "halves.hpp"
#include "softmax.hpp"

#include <cmath>

namespace backline {

// In the order of libraries/kernels/pointwise_loops.py.
enum class Activation : int64_t { none, relu, gelu, gelu_tanh, silu, tanh, sigmoid };

// exp(u * u / 2) times the share of the normal distribution below -u, for u >= 0: s * P(s - 1/2), where s = scale / (scale + u).
// Polynomials through Chebyshev's points or, for float, by Remez's exchange, computed in 40 to 60 digits.
template <class T>
struct NormalTail;
template <>
struct NormalTail<float> {  // relative error 4e-08
    static constexpr float scale = 3;
    static constexpr float terms[] = {-2.322841285e-02f, 3.888754117e-02f, 2.298635879e-02f, -7.391471982e-02f, -5.589076507e-02f,
                                      1.260192599e-01f,  3.066923443e-01f, 3.395548182e-01f, 2.430278902e-01f};
};
template <>
struct NormalTail<double> {  // relative error 4e-17
    static constexpr double scale = 4;
    static constexpr double terms[] = {-1.04759287192205622e-03, 5.32307361215041389e-06, 3.66386299691357203e-03,
                                       -1.94542175161566372e-03, -5.00348540907754984e-03, 5.06657773689959783e-03,
                                       4.31789024226254120e-03, -8.35642441119208677e-03, -2.55996190530346406e-03,
                                       1.21221390052434815e-02, 7.32089172528988278e-04, -1.79938380637479946e-02,
                                       -4.88407911916766873e-04, 2.95801374911962948e-02, 8.53403198614939400e-03,
                                       -5.21861901593788369e-02, -5.56750777888649559e-02, 6.03215117250001376e-02,
                                       2.41586299562706608e-01, 3.73043715919386787e-01, 3.87137400742219362e-01,
                                       3.03948320985945875e-01, 1.88821282603937879e-01};
};

// The logarithm to the base 2 of the share of the normal distribution below -u, for 0 <= u <= most. Beyond, u times its power rounds to 0
// in float16, and in bfloat16 the power is subnormal and taken for 0. The terms give it with -back_power added, so that the power is
// computed in the normal range and then multiplied by `back`, 2^back_power; in float16 2^-127 vanishes before.
template <class S>
struct NormalTailPower;
template <>
struct NormalTailPower<Float16> {  // absolute error 1.3e-05 in float
    static constexpr float most = 7.25f, back = 0x1p85f;
    static constexpr float terms[] = {6.147312248e-08f, 3.314639403e-06f, 7.593962465e-05f, 1.002091359e-03f, 8.703001003e-03f,
                                      5.424390067e-02f, -4.582661168e-01f, 1.151302308e+00f, -8.599999320e+01f};
};
template <>
struct NormalTailPower<Bfloat16> {  // absolute error 1.2e-04 in float
    static constexpr float most = 12.95f, back = 0x1p-24f, back_power = -24;
    static constexpr float terms[] = {1.523601682e-09f, 1.171829116e-07f, 3.945830303e-06f, 7.690351779e-05f, 9.700026847e-04f,
                                      8.441762513e-03f, 5.339899566e-02f, -4.594821798e-01f, 1.150651981e+00f, 2.299994525e+01f};
};

template <>
struct NormalTailPower<NativeBfloat16> : NormalTailPower<Bfloat16> {};

// 2^x for -1/2 <= x <= 1/2, for results that are rounded to 16 bits.
constexpr float kPowerTerms[] = {9.570101653e-03f, 5.591786210e-02f, 2.402474485e-01f, 6.931218145e-01f, 9.999992614e-01f};
// (e^(-z / 2) - 1) / z for |z| <= ln(2): the relative error of e^(-z / 2) is 3e-9.
constexpr float kHalfPowerTerms[] = {2.158521444e-05f, -2.615233050e-04f, 2.604274430e-03f, -2.083315049e-02f, 1.249999836e-01f, -0.5f};
constexpr double kTanhScale = 0.79788456080286535588, kTanhCubic = 0.044715;  // sqrt(2 / pi); Hendrycks and Gimpel, arXiv:1606.08415
constexpr double kDensity = 0.39894228040143267794;                           // 1 / sqrt(2 pi)

// Of one vector, or of two or four at a time. Results are rounded to S, of which 16-bit floats need no more than some 18 bits.
template <class T, int Bytes, int Parts = 1, class S = T>
struct Activated {
    using L = Together<T, Bytes, Parts>;
    using V = typename L::Vector;
    static constexpr bool rounded = sizeof(S) < sizeof(T);

    // A polynomial of x, whose highest term comes first. A short one is a chain (Horner); others go by pairs and pairs of pairs
    // (G. Estrin, 1960): of a chain each operation waits for the one before, and what waits fills the processor's queue.
    template <size_t N>
    static BACKLINE_INLINE void polynomial(V &sum, const V &x, const float (&terms)[N]) {
        if constexpr (N <= 5) {
            sum = x * terms[0] + terms[1];
            for (size_t i = 2; i < N; ++i) sum = sum * x + terms[i];
        } else {
            in_pairs(sum, x, terms);
        }
    }
    template <size_t N>
    static BACKLINE_INLINE void in_pairs(V &sum, const V &x, const float (&terms)[N]) {
        constexpr size_t first = (N - 1) % 4 + 1;
        const V square = x * x, fourth = square * square;
        L::fill(sum, terms[0]);
        if constexpr (first == 2) sum = x * terms[0] + terms[1];
        if constexpr (first == 3) sum = square * terms[0] + (x * terms[1] + terms[2]);
        if constexpr (first == 4) sum = square * (x * terms[0] + terms[1]) + (x * terms[2] + terms[3]);
        for (size_t i = first; i < N; i += 4) {
            const V upper = x * terms[i] + terms[i + 1], lower = x * terms[i + 2] + terms[i + 3];
            sum = sum * fourth + (upper * square + lower);
        }
    }

    // 2^x for x <= 128, below -127 it is 0; NaN stays NaN. The relative error is 3e-6.
    static BACKLINE_INLINE void power_of_two(V &x) {
        V least;
        L::fill(least, T(-Exp<T>::bias));
        larger(x, least, x);
        power_in_range(x);
    }

    // 2^n for a whole n from -127, for which it is 0, to 128.
    static BACKLINE_INLINE void whole_power(V &power, const V &n) {
        using E = Exp<T>;
        power = n + (E::shifter + T(E::bias));
        typename L::Bits bits;
        reinterpret(bits, power);
        bits = bits << E::mantissa;
        reinterpret(power, bits);
    }

    // e^(-z / 2) - 1 for |z| <= ln(2), in float.
    static BACKLINE_INLINE void half_power_less_one(V &p, const V &z) {
        p = z * kHalfPowerTerms[0] + kHalfPowerTerms[1];
        for (size_t i = 2; i < sizeof(kHalfPowerTerms) / sizeof(float); ++i) p = p * z + kHalfPowerTerms[i];
        p = p * z;
    }

    // 2^x for -127.5 < x <= 128, which is 0 from -126.5 down.
    static BACKLINE_INLINE void power_in_range(V &x) {
        using E = Exp<T>;
        V n = (x + E::shifter) - E::shifter, f = x - n, power;
        polynomial(x, f, kPowerTerms);
        whole_power(power, n);
        x = x * power;
    }

    // e^x for x <= 0.
    static BACKLINE_INLINE void decreasing(V &x) {
        if constexpr (rounded) {
            x = x * Exp<T>::log2e;
            power_of_two(x);
        } else {
            exponential<T, Bytes>(x);
        }
    }

    // Writes e^of(x), where `of` computes in double a number that is not above 0: the digits that float lacks are those that an
    // exponential of a large number shows.
    template <class Of>
    static BACKLINE_INLINE void exponential_of(V &x, Of of) {
        if constexpr (sizeof(T) == 8) {
            of(x);
            exponential<T, Bytes>(x);
        } else {
            V low;
            in_double(x, low, of);
            exponential<T, Bytes>(x, low);
        }
    }

    // x becomes of(x), and `low` what float lacks of it.
    template <class F, class Of>
    static BACKLINE_INLINE void in_double(F &x, F &low, Of of) {
        using Wide = typename Lanes<double, 2 * Bytes>::Vector;
        Wide wide = __builtin_convertvector(x, Wide);
        of(wide);
        x = __builtin_convertvector(wide, F);
        wide = wide - __builtin_convertvector(x, Wide);
        low = __builtin_convertvector(wide, F);
    }

    template <class F, class Of>
    static BACKLINE_INLINE void in_double(Two<F> &x, Two<F> &low, Of of) {
        in_double(x.one, low.one, of);
        in_double(x.other, low.other, of);
    }

    // -|x|
    static BACKLINE_INLINE void negative(V &to, const V &x) {
        typename L::Bits bits;
        reinterpret(bits, x);
        bits = bits | (typename L::Integer(1) << (8 * sizeof(T) - 1));
        reinterpret(to, bits);
    }

    // e^-|x|
    static BACKLINE_INLINE void decay(V &e, const V &x) {
        negative(e, x);
        decreasing(e);
    }

    // 1 / (1 + e^-u) from e^-|u| and a number that has the sign of u.
    static BACKLINE_INLINE void logistic(V &result, const V &e, const V &sign) {
        V one, above;
        L::fill(one, T(1));
        choose(above, sign < T(0), e, one);
        result = above / (one + e);
    }

    // 1 / (1 + e^-u) and 1 / (1 + e^u), of the same: one division.
    static BACKLINE_INLINE void shares(V &below, V &above, const V &e, const V &sign) {
        const V larger = T(1) / (T(1) + e), smaller = e * larger;
        choose(below, sign < T(0), smaller, larger);
        choose(above, sign < T(0), larger, smaller);
    }

    // x becomes 0 where a condition holds. Before a power of 2 makes it subnormal: Intel's processors take a hundred times as long for that.
    template <class Condition>
    static BACKLINE_INLINE void zero_where(V &x, const Condition &holds) {
        V zero{};
        choose(x, holds, zero, x);
    }

    // e^(-u^2 / 2) for u >= 0 in float, as `exponential` does, but of z = -2 r. The square has two parts: the rounded one and its rest,
    // or without AVX-512 that of the upper 12 bits, which is exact.
    static BACKLINE_INLINE void half_square(V &density, const V &u) {
        using E = Exp<T>;
        V upper, zero{};
        if constexpr (Bytes == 64 && Bytes > kPlainBytes) {
            const V square = u * u;
            V n, z, p, rest = square;
            rest_of_square(rest, u);
            nearest(n, square * (T(-0.5) * E::log2e));
            z = square + n * (2 * E::ln2_high);
            z = z + n * (2 * E::ln2_low) + rest;
            p = z * kHalfPowerTerms[0] + kHalfPowerTerms[1];
            for (size_t i = 2; i < sizeof(kHalfPowerTerms) / sizeof(float); ++i) p = p * z + kHalfPowerTerms[i];
            p = p * z + T(1);
            zero_where(p, square > T(-2) * E::lowest);
            times_power(p, n);
            density = p;
            return;
        }
        typename L::Bits bits;
        reinterpret(bits, u);
        bits = bits & 0xfffff000u;
        reinterpret(upper, bits);
        const V square = upper * upper;
        const V n = (square * (T(-0.5) * E::log2e) + E::shifter) - E::shifter;
        V z = square + n * (2 * E::ln2_high);
        z = z + n * (2 * E::ln2_low);
        z = z + (u - upper) * (u + upper);
        V p, power;
        half_power_less_one(p, z);
        whole_power(power, n);
        choose(density, square > T(-2) * E::lowest, zero, p * power + power);
    }

    // e^(-x^2 / 2), and by how much it has to be multiplied for the share of the normal distribution beyond |x|.
    static BACKLINE_INLINE void tail(V &density, V &beyond, const V &x) {
        using N = NormalTail<T>;
        V s, p;
        typename L::Bits bits;
        reinterpret(bits, x);
        bits = bits & (~typename L::Integer(0) >> 1);
        reinterpret(s, bits);
        if constexpr (sizeof(T) == 8) {
            density = x * x * T(-0.5);
            exponential<T, Bytes>(density);
        } else {
            half_square(density, s);
        }
        s = T(N::scale) / (s + T(N::scale));
        V w = s - T(0.5);
        p = w * T(N::terms[0]) + T(N::terms[1]);
        for (size_t i = 2; i < sizeof(N::terms) / sizeof(N::terms[0]); ++i) p = p * w + T(N::terms[i]);
        beyond = s * p;
    }

    // e^(-x^2 / 2), and the share of the normal distribution below x.
    static BACKLINE_INLINE void normal(V &density, V &below, const V &x) {
        V s;
        tail(density, s, x);
        s = density * s;
        choose(below, x < T(0), s, T(1) - s);
    }

    // x times the share of the normal distribution below x. On the way there are no subnormal numbers, of which each would take a
    // processor longer than all the rest: beyond 12 the share is 1, and x comes before the small factor.
    static BACKLINE_INLINE void times_below(V &x) {
        V most, near, density, s;
        L::fill(most, T(12));
        smaller(near, most, x);
        tail(density, s, near);
        s = near * s * density;
        choose(x, x > T(0), x - s, s);
    }

    // The share of the normal distribution below x, for a result that is rounded.
    static BACKLINE_INLINE void below(V &s, const V &x) {
        using N = NormalTailPower<S>;
        V u, most;
        negative(u, x);
        L::fill(most, -N::most);
        larger(u, most, u);
        polynomial(s, u, N::terms);
        if constexpr (Bytes == 64 && Bytes > kPlainBytes && kBfloat16<S>) {
            V n, f;
            nearest(n, s);
            f = s - n;
            polynomial(s, f, kPowerTerms);
            zero_where(s, u <= most);
            times_power(s, n + N::back_power);
        } else {
            power_in_range(s);
            if constexpr (kBfloat16<S>) zero_where(s, u <= most);
            s = s * N::back;
        }
        choose(s, x < T(0), s, T(1) - s);
    }

    // e^-|u|, where gelu_tanh is x times the sigmoid of u.
    static BACKLINE_INLINE void tanh_decay(V &e, const V &x) {
        negative(e, x);
        if constexpr (rounded) {
            e = e * (e * e * T(2 * kTanhScale * kTanhCubic) + T(2 * kTanhScale));
            decreasing(e);
        } else {
            exponential_of(e, [](auto &w) __attribute__((always_inline)) {
                w = w * (w * w * (2 * kTanhScale * kTanhCubic) + 2 * kTanhScale);
            });
        }
    }

    // (e^2|x| - 1) / (e^2|x| + 1) with the sign of x. In float both come from e^r - 1 of a small r, which is a polynomial that does not
    // cancel. In double, S. L. Moshier, Cephes: tanh: near 0 a quotient of polynomials, where that one would cancel.
    static BACKLINE_INLINE void tanh(V &x) {
        if constexpr (sizeof(T) == 4) {
            using E = Exp<T>;
            typename L::Bits sign, bits;
            V size, most;
            reinterpret(bits, x);
            sign = bits & 0x80000000u;
            bits = bits & 0x7fffffffu;
            reinterpret(size, bits);
            L::fill(most, T(9.1));  // whose result is 1
            smaller(size, most, size);
            const V n = (size * (2 * E::log2e) + E::shifter) - E::shifter;
            V z = n * (2 * E::ln2_high) - size * T(4);
            z = z + n * (2 * E::ln2_low);
            V p, power;
            half_power_less_one(p, z);
            whole_power(power, n);
            p = p * power + (power - T(1));
            p = p / (p + T(2));
            reinterpret(bits, p);
            bits = bits | sign;
            reinterpret(x, bits);
        } else {
            V size, z = x * x, near;
            choose(size, x < T(0), -x, x);
            V e = size * T(-2);
            decreasing(e);
            V far = (T(1) - e) / (T(1) + e);
            choose(far, x < T(0), -far, far);
            V below = ((z + T(1.12811678491632931402e2)) * z + T(2.23548839060100448583e3)) * z + T(4.84406305325125486048e3);
            near = (z * T(-9.64399179425052238628e-1) + T(-9.92877231001918586564e1)) * z + T(-1.61468768441708447952e3);
            near = near / below;
            near = near * z * x + x;
            choose(x, size < T(0.625), near, far);
        }
    }

    static BACKLINE_INLINE void sigmoid(V &x) {
        V e;
        decay(e, x);
        logistic(x, e, x);
    }

    template <Activation Kind>
    static BACKLINE_INLINE void value(V &x) {
        V e, s;
        if constexpr (Kind == Activation::relu) {
            V zero{};
            choose(x, x <= zero, zero, x);
        } else if constexpr (Kind == Activation::gelu) {
            if constexpr (rounded) {
                below(s, x);
                x = x * s;
            } else {
                times_below(x);
            }
        } else if constexpr (Kind == Activation::gelu_tanh) {
            tanh_decay(e, x);
            logistic(s, e, x);
            x = x * s;
        } else if constexpr (Kind == Activation::silu) {
            s = x;
            sigmoid(s);
            x = x * s;
        } else if constexpr (Kind == Activation::tanh) {
            tanh(x);
        } else if constexpr (Kind == Activation::sigmoid) {
            sigmoid(x);
        }
    }

    // Whether a float of two vectors is infinite or NaN. Doubles need no such question: where a slope is 0 in double, it is meant.
    static BACKLINE_INLINE bool any_not_finite(const V &x) {
        if constexpr (sizeof(T) == 8) {
            return false;
        } else {
            static_assert(Parts == 2);
            const V nothing = x - x;  // or NaN
            typename L::Bits bits;
            reinterpret(bits, nothing);
            return Conversions<Bytes>::any_bit(bits.one | bits.other);
        }
    }

    // g becomes g times the slope at x; where g is not `Finite`, it may be infinite.
    template <Activation Kind, bool Finite>
    static BACKLINE_INLINE void slope(const V &x, V &g) {
        // Beyond `least` and `most` a slope is 0 or 1, and 0 times infinity is not meant.
        constexpr T limit = Kind == Activation::silu ? T(1000) : T(100);
        V least, most, e, s, near = x;
        L::fill(least, -limit);
        L::fill(most, limit);
        if constexpr (Kind != Activation::tanh && Kind != Activation::sigmoid) {
            smaller(near, most, near);
            larger(near, least, near);
        }
        if constexpr (Kind == Activation::relu || Kind == Activation::none) {
            V zero{};
            if constexpr (Kind == Activation::relu) choose(g, x <= zero, zero, g);  // NaN lets the gradient through
            return;
        }
        if constexpr (Kind == Activation::gelu) {
            normal(e, s, near);
            s = s + near * (e * T(kDensity));
        } else if constexpr (Kind == Activation::gelu_tanh) {
            tanh_decay(e, near);
            V d, rise = near * near * T(6 * kTanhScale * kTanhCubic) + T(2 * kTanhScale);
            shares(s, d, e, near);
            s = s + near * (s * d) * rise;
        } else if constexpr (Kind == Activation::silu) {
            V other;
            decay(e, near);
            shares(s, other, e, near);
            s = s * (T(1) + near * other);
        } else {
            s = Kind == Activation::tanh ? x + x : x;
            decay(e, s);
            V d = T(1) + e;
            s = e / (d * d);
            if constexpr (Kind == Activation::tanh) s = s * T(4);
        }
        if constexpr (sizeof(T) == 4 && !Finite) {
            // Where a slope is 0 in float and would not be in double, an infinite gradient stays infinite: what of it is above the
            // largest number is multiplied with a slope that is not 0 there.
            constexpr T reach = Kind == Activation::gelu ? T(38) : Kind == Activation::gelu_tanh ? T(20) : Kind == Activation::tanh ? T(350) : T(700);
            constexpr bool falls = Kind != Activation::tanh && Kind != Activation::sigmoid;
            constexpr T largest = std::numeric_limits<T>::max(), smallest = std::numeric_limits<T>::min();
            V low, high, tiny, zero{}, size, finite = g;
            choose(size, x < T(0), -x, x);
            L::fill(low, -largest);
            L::fill(high, largest);
            L::fill(tiny, falls ? -smallest : smallest);
            smaller(finite, high, finite);
            larger(finite, low, finite);
            choose(tiny, size < reach, tiny, zero);
            const V beyond = g - finite, infinite = beyond * (s + tiny) + finite * s;
            g = g * s;  // also of NaN
            choose(g, beyond > T(0), infinite, g);
            choose(g, beyond < T(0), infinite, g);
            return;
        }
        g = g * s;
    }
};

// Calls `run` with the activation as a constant.
template <class Run>
BACKLINE_INLINE void for_activation(Activation kind, Run run) {
    switch (kind) {
        case Activation::none: return run(std::integral_constant<Activation, Activation::none>{});
        case Activation::relu: return run(std::integral_constant<Activation, Activation::relu>{});
        case Activation::gelu: return run(std::integral_constant<Activation, Activation::gelu>{});
        case Activation::gelu_tanh: return run(std::integral_constant<Activation, Activation::gelu_tanh>{});
        case Activation::silu: return run(std::integral_constant<Activation, Activation::silu>{});
        case Activation::tanh: return run(std::integral_constant<Activation, Activation::tanh>{});
        case Activation::sigmoid: return run(std::integral_constant<Activation, Activation::sigmoid>{});
    }
}

}  // namespace backline
