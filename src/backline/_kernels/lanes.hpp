// Vectors of the compiler: one source for every instruction set.
#pragma once
#include "conversions.hpp"

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace backline {

// What reads and writes whole vectors V of S in memory, as M does, takes the end of an array, too: n elements, or a whole vector where
// there are as many. The rest is 0.
template <class M, class S, class V>
struct Ends {
    static BACKLINE_INLINE void load_some(V &v, const S *from, int64_t n) {
        if (n >= M::count) return M::load(v, from);
        S some[M::count] = {};
        for (int64_t i = 0; i < n; ++i) some[i] = from[i];
        M::load(v, some);
    }
    static BACKLINE_INLINE void store_some(const V &v, S *to, int64_t n) {
        if (n >= M::count) return M::store(v, to);
        S some[M::count];
        M::store(v, some);
        for (int64_t i = 0; i < n; ++i) to[i] = some[i];
    }
};

// Vectors are passed by reference: by value, their place would depend on the instruction set.
template <class T, int Bytes>
struct Lanes : Ends<Lanes<T, Bytes>, T, typename VectorOf<T, Bytes>::Type> {
    using Element = T;
    using Integer = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
    using Vector = typename VectorOf<T, Bytes>::Type;
    typedef Integer Bits __attribute__((vector_size(Bytes)));
    static constexpr int count = Bytes / int(sizeof(T));

    static BACKLINE_INLINE void load(Vector &v, const T *from) { std::memcpy(&v, from, sizeof(Vector)); }
    static BACKLINE_INLINE void store(const Vector &v, T *to) { std::memcpy(to, &v, sizeof(Vector)); }
    static BACKLINE_INLINE void fill(Vector &v, T value) { v = Vector{} + value; }
};

// Two vectors that are computed with as with one. Their instructions alternate, so that one's run while the other's wait for results:
// a long formula of one vector fills the processor's queue with instructions that all wait.
template <class V>
struct Two {
    V one, other;
    BACKLINE_INLINE Two &operator+=(const Two &more) {
        one += more.one, other += more.other;
        return *this;
    }
};

template <class S>
using IfNumber = std::enable_if_t<std::is_arithmetic_v<S>>;

#define BACKLINE_TWO(symbol)                                                                   \
    template <class V>                                                                         \
    BACKLINE_INLINE auto operator symbol(const Two<V> &x, const Two<V> &y) {                   \
        return Two<decltype(x.one symbol y.one)>{x.one symbol y.one, x.other symbol y.other};  \
    }                                                                                          \
    template <class V, class S, class = IfNumber<S>>                                           \
    BACKLINE_INLINE auto operator symbol(const Two<V> &x, S y) {                               \
        return Two<decltype(x.one symbol y)>{x.one symbol y, x.other symbol y};                \
    }                                                                                          \
    template <class V, class S, class = IfNumber<S>>                                           \
    BACKLINE_INLINE auto operator symbol(S x, const Two<V> &y) {                               \
        return Two<decltype(x symbol y.one)>{x symbol y.one, x symbol y.other};                \
    }
BACKLINE_TWO(+)
BACKLINE_TWO(-)
BACKLINE_TWO(*)
BACKLINE_TWO(/)
BACKLINE_TWO(&)
BACKLINE_TWO(|)
BACKLINE_TWO(<<)
BACKLINE_TWO(<)
BACKLINE_TWO(<=)
BACKLINE_TWO(>)
#undef BACKLINE_TWO

template <class V>
BACKLINE_INLINE Two<V> operator-(const Two<V> &x) {
    return {-x.one, -x.other};
}

// Where a condition holds, elements of `yes`, else of `no`.
template <class V, class M>
BACKLINE_INLINE void choose(V &to, const M &condition, const V &yes, const V &no) {
    to = condition ? yes : no;
}
template <class V, class M>
BACKLINE_INLINE void choose(Two<V> &to, const Two<M> &condition, const Two<V> &yes, const Two<V> &no) {
    choose(to.one, condition.one, yes.one, no.one);
    choose(to.other, condition.other, yes.other, no.other);
}

// The larger, or the smaller, of two elements; `other` where one of them is NaN, or where they are equal. GCC 12 makes a comparison and a
// move of it with AVX-512.
template <class V>
BACKLINE_INLINE void larger(V &to, const V &one, const V &other) {
    if constexpr (sizeof(V) <= kPlainBytes) to = one > other ? one : other;
    else if constexpr (sizeof(one[0]) == 4) asm("vmaxps %2, %1, %0" : "=v"(to) : "v"(one), "v"(other));
    else asm("vmaxpd %2, %1, %0" : "=v"(to) : "v"(one), "v"(other));
}
template <class V>
BACKLINE_INLINE void smaller(V &to, const V &one, const V &other) {
    if constexpr (sizeof(V) <= kPlainBytes) to = one < other ? one : other;
    else if constexpr (sizeof(one[0]) == 4) asm("vminps %2, %1, %0" : "=v"(to) : "v"(one), "v"(other));
    else asm("vminpd %2, %1, %0" : "=v"(to) : "v"(one), "v"(other));
}
template <class V>
BACKLINE_INLINE void larger(Two<V> &to, const Two<V> &one, const Two<V> &other) {
    larger(to.one, one.one, other.one);
    larger(to.other, one.other, other.other);
}
template <class V>
BACKLINE_INLINE void smaller(Two<V> &to, const Two<V> &one, const Two<V> &other) {
    smaller(to.one, one.one, other.one);
    smaller(to.other, one.other, other.other);
}

// x becomes x times 2^n for whole n, rounded once, and n the whole number that is nearest to x: each by an instruction of AVX-512.
template <class V>
BACKLINE_INLINE void times_power([[maybe_unused]] V &x, [[maybe_unused]] const V &n) {
    static_assert(sizeof x == 64 && sizeof x[0] == 4 && sizeof x > kPlainBytes);
#if defined(__x86_64__)
    asm("vscalefps %2, %1, %0" : "=v"(x) : "v"(x), "v"(n));
#endif
}
template <class V>
BACKLINE_INLINE void nearest([[maybe_unused]] V &n, [[maybe_unused]] const V &x) {
    static_assert(sizeof x == 64 && sizeof x[0] == 4 && sizeof x > kPlainBytes);
#if defined(__x86_64__)
    asm("vrndscaleps $8, %1, %0" : "=v"(n) : "v"(x));
#endif
}
// What x * x has beyond its rounded value, which `rest` holds before.
template <class V>
BACKLINE_INLINE void rest_of_square([[maybe_unused]] V &rest, [[maybe_unused]] const V &x) {
    static_assert(sizeof x == 64 && sizeof x[0] == 4 && sizeof x > kPlainBytes);
#if defined(__x86_64__)
    asm("vfmsub231ps %1, %1, %0" : "+v"(rest) : "v"(x));
#endif
}
template <class V>
BACKLINE_INLINE void rest_of_square(Two<V> &rest, const Two<V> &x) {
    rest_of_square(rest.one, x.one);
    rest_of_square(rest.other, x.other);
}
template <class V>
BACKLINE_INLINE void times_power(Two<V> &x, const Two<V> &n) {
    times_power(x.one, n.one);
    times_power(x.other, n.other);
}
template <class V>
BACKLINE_INLINE void nearest(Two<V> &n, const Two<V> &x) {
    nearest(n.one, x.one);
    nearest(n.other, x.other);
}

// The same bits as elements of another type.
template <class To, class From>
BACKLINE_INLINE void reinterpret(To &to, const From &from) {
    static_assert(sizeof to == sizeof from);
    std::memcpy(&to, &from, sizeof to);
}
template <class To, class From>
BACKLINE_INLINE void reinterpret(Two<To> &to, const Two<From> &from) {
    reinterpret(to.one, from.one);
    reinterpret(to.other, from.other);
}

template <class L>
struct Twice {
    using T = typename L::Element;
    using Element = T;
    using Integer = typename L::Integer;
    using Vector = Two<typename L::Vector>;
    using Bits = Two<typename L::Bits>;
    static constexpr int count = 2 * L::count;

    static BACKLINE_INLINE void load(Vector &v, const T *from) {
        L::load(v.one, from);
        L::load(v.other, from + L::count);
    }
    static BACKLINE_INLINE void store(const Vector &v, T *to) {
        L::store(v.one, to);
        L::store(v.other, to + L::count);
    }
    static BACKLINE_INLINE void fill(Vector &v, T value) {
        L::fill(v.one, value);
        v.other = v.one;
    }
    static BACKLINE_INLINE void load_some(Vector &v, const T *from, int64_t n) {
        L::load_some(v.one, from, n);
        v.other = typename L::Vector{};
        if (n > L::count) L::load_some(v.other, from + L::count, n - L::count);
    }
    static BACKLINE_INLINE void store_some(const Vector &v, T *to, int64_t n) {
        L::store_some(v.one, to, n);
        if (n > L::count) L::store_some(v.other, to + L::count, n - L::count);
    }
};

// So many vectors at a time: 1, 2, 4, ...
template <class T, int Bytes, int Parts>
struct Together : Twice<Together<T, Bytes, Parts / 2>> {};
template <class T, int Bytes>
struct Together<T, Bytes, 1> : Lanes<T, Bytes> {};

}  // namespace backline
