// Transforms of an even number of real points by complex ones of half as many, whose numbers are pairs of neighbours (J. W. Cooley,
// P. A. W. Lewis and P. D. Welch, "The fast Fourier transform algorithm: programming considerations in the calculation of sine, cosine and
// Laplace transforms", Journal of Sound and Vibration 12, 1970). Results k and n - k of each are made of results k and n - k of the other,
// where n is the half, and the factor is exp(-pi i k / n). P holds real and imaginary parts, of a number or of a vector of them.
#pragma once
#include "targets.hpp"

namespace backline {

// Of the half those of the whole, times a scale.
template <class P, class F, class T>
BACKLINE_INLINE void unfold_pair(P &one, P &other, const F &re, const F &im, T half_scale) {
    const P even = {one.re + other.re, one.im - other.im}, odd = {one.im + other.im, other.re - one.re};
    const P turned = {odd.re * re - odd.im * im, odd.re * im + odd.im * re};
    one = {(even.re + turned.re) * half_scale, (even.im + turned.im) * half_scale};
    other = {(even.re - turned.re) * half_scale, (turned.im - even.im) * half_scale};
}

// And the other way round, whose sign of the exponent is +1.
template <class P, class F>
BACKLINE_INLINE void fold_pair(P &one, P &other, const F &re, const F &im) {
    const P even = {one.re + other.re, one.im - other.im}, odd = {one.re - other.re, one.im + other.im};
    const P turned = {odd.re * re + odd.im * im, odd.im * re - odd.re * im};
    one = {even.re - turned.im, even.im + turned.re};
    other = {even.re + turned.im, turned.re - even.im};
}

}  // namespace backline
