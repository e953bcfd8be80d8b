// What norms are made of, element by element: how one is taken in, and how two results become one.
#pragma once
#include "double_lanes.hpp"

#include <cmath>
#include <limits>
#include <type_traits>

namespace backline {

// Cubes and fourth powers of float32 stay within the range of float64, those of float64 are looked at as squares are. The total is a
// sum of the elements themselves.
enum Kind : int64_t { kCount, kSum, kSquares, kLargest, kSmallest, kPowers, kCubes, kFourths, kTotal };

// The bits of an absolute value as an integer: in the order of the values, with NaN beyond infinity.
template <class T>
using Bits = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;

template <class T>
BACKLINE_INLINE Bits<T> bits_of(T x) {
    Bits<T> bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits & std::numeric_limits<Bits<T>>::max();
}

template <class T>
BACKLINE_INLINE double value_of(Bits<T> bits) {
    T x;
    std::memcpy(&x, &bits, sizeof x);
    return double(x);
}

// What a lane, and then a result, begins with; how a size is taken in; and how two of them become one.
template <Kind K>
constexpr double kStart = K == kLargest ? 0.0 : K == kSmallest ? std::numeric_limits<double>::infinity() : 0.0;

template <Kind K, class T>
BACKLINE_INLINE T taken(T sum, T size) {
    if constexpr (K == kCount) return sum + (size != 0 ? T(1) : T(0));
    else if constexpr (K == kSum || K == kTotal) return sum + size;
    else if constexpr (K == kCubes) return sum + size * size * size;
    else if constexpr (K == kFourths) return sum + (size * size) * (size * size);
    else if constexpr (K == kSquares) return sum + size * size;
    else if constexpr (K == kLargest) return size > sum ? size : sum;  // NaN is looked for beside
    else return size < sum ? size : sum;
}

// The same of eight elements, of which absolute values are taken where that matters. `Single`: they were floats.
template <Kind K, bool Single, class V>
BACKLINE_INLINE void take_eight(V &sums, V &elements) {
    by_vectors([](auto &sum, auto &x) __attribute__((always_inline)) {
        using Some = std::remove_reference_t<decltype(x)>;
        if constexpr (K == kSum || K == kCubes) mask(x, typename VectorOf<int64_t, sizeof x>::Type{} + std::numeric_limits<int64_t>::max());
        if constexpr (K == kCount) {
            const Some zero{}, one = zero + 1.0;
            sum += x != zero ? one : zero;
        } else if constexpr (K == kSquares) {
            if constexpr (Single) add_exact_product(sum, x, x);
            else sum += x * x;
        } else if constexpr (K == kCubes) {
            sum += x * x * x;
        } else if constexpr (K == kFourths) {
            sum += (x * x) * (x * x);
        } else {
            sum += x;
        }
    }, sums, elements);
}

template <Kind K>
BACKLINE_INLINE double joined(double one, double other) {
    if constexpr (K == kLargest || K == kSmallest) return std::isnan(one) || std::isnan(other) ? one + other : taken<K>(one, other);
    else return one + other;
}

}  // namespace backline
