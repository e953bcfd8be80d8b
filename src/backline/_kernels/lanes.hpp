// Vectors of the compiler: one source for every instruction set.
#pragma once
#include "targets.hpp"

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace backline {

// Vectors are passed by reference: by value, their place would depend on the instruction set.
template <class T, int Bytes>
struct Lanes {
    using Integer = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
    typedef T Vector __attribute__((vector_size(Bytes)));
    typedef Integer Bits __attribute__((vector_size(Bytes)));
    static constexpr int count = Bytes / int(sizeof(T));

    static BACKLINE_INLINE void load(Vector &v, const T *from) { std::memcpy(&v, from, sizeof(Vector)); }
    static BACKLINE_INLINE void store(const Vector &v, T *to) { std::memcpy(to, &v, sizeof(Vector)); }
    static BACKLINE_INLINE void fill(Vector &v, T value) { v = Vector{} + value; }

    // Of the end of an array: n elements, or a whole vector where there are as many. The rest is 0.
    static BACKLINE_INLINE void load_some(Vector &v, const T *from, int64_t n) {
        if (n >= count) return load(v, from);
        T some[count] = {};
        for (int64_t i = 0; i < n; ++i) some[i] = from[i];
        load(v, some);
    }
    static BACKLINE_INLINE void store_some(const Vector &v, T *to, int64_t n) {
        if (n >= count) return store(v, to);
        T some[count];
        store(v, some);
        for (int64_t i = 0; i < n; ++i) to[i] = some[i];
    }
};

}  // namespace backline
