// Transforms of a prime number of points, as the last pass of a length, by a convolution: with a root g of all residues, result g^-s
// is that of point 0 and the sum of x[g^q] w^(g^(q-s)) over q (C. M. Rader, "Discrete Fourier transforms when the number of data samples is
// prime", Proceedings of the IEEE 56, 1968). The convolution is made by transforms of one point less or, where that has a large factor, of
// about twice as many, the rest zeros.
#pragma once
#include "radix_passes.hpp"

#include <cstring>

namespace backline {

// In the constant memory of a plan. The table holds powers of the root from 0 on, integers as large as the numbers, what the spectrum is
// multiplied with, and what the passes are.
struct Convolution {
    int64_t prime;  // 0 for none
    int64_t table;  // numbers before its table
    int64_t points, passes, radices[kMostPasses];
};

template <class T, int Bytes>
struct PrimeRadix {
    using R = RadixPasses<T, Bytes>;
    using Point = typename R::Point;
    using V = typename R::Vector;
    using Integer = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;

    const Convolution &c;
    const T *table;
    void (*passes)(const Passes &);

    // Transforms of `l` groups, as the last pass has them; `work` has a place for twice as many points as the convolution.
    BACKLINE_INLINE void last_pass(
        const typename R::From &from, const typename R::To &to, int64_t l, const Finish &f, const Groups &groups, Point *work) const {
        Point *const numbers = work, *const other = work + c.points;
        const int64_t count = c.prime - 1;
        const T *const factors = table + count, *const rest = factors + 2 * c.points;
        for (int64_t k0 = 0; k0 < l; k0 += groups.period)
            for (int64_t k = k0; k < k0 + groups.kept; ++k) {
                const char *at = from.at + k * c.prime * from.step;
                Point zero;
                R::get(zero, from, at);
                for (int64_t q = 0; q < count; ++q) R::get(numbers[q], from, at + power(q) * from.step);
                for (int64_t q = count; q < c.points; ++q) numbers[q] = {V{}, V{}};
                Point *const spectrum = transform(numbers, other, rest);
                Point first = {zero.re + spectrum[0].re, zero.im + spectrum[0].im};
                for (int64_t j = 0; j < c.points; ++j) R::turn(spectrum[j], factors + 2 * j);
                spectrum[0] = {zero.re + spectrum[0].re, zero.im + spectrum[0].im};
                R::finish(first, to, k, f);
                // Transformed back with the same sign, they come out in the reverse order.
                Point *const results = transform(spectrum, spectrum == numbers ? other : numbers, rest);
                for (int64_t s = 0; s < count; ++s)
                    R::finish(results[s ? c.points - s : 0], to, power(s ? count - s : 0) * l + k, f);
            }
    }

  private:
    BACKLINE_INLINE int64_t power(int64_t q) const {
        Integer found;
        std::memcpy(&found, table + q, sizeof found);
        return found;
    }
    // Into the one buffer or the other.
    BACKLINE_INLINE Point *transform(Point *here, Point *there, const T *factors) const {
        Point *const to = c.passes % 2 ? there : here;
        const typename R::From from = R::buffer(static_cast<const Point *>(here));
        passes({c.radices, c.passes, c.points, true, {1, 1}, from, R::buffer(to), here, there, {0, nullptr, 0, 1}, factors});
        return to;
    }
};

}  // namespace backline
