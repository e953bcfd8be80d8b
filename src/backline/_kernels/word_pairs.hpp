// Pairs of 16-bit integers: their products, added up in 32 bits.
#pragma once
#include "targets.hpp"

#include <cstring>

namespace backline {

// Products of neighbouring 16-bit integers, added up in pairs.
template <class V, class W>
BACKLINE_INLINE void pairs_of(V &pairs, const W &x, const W &y) {
    static_assert(sizeof x == sizeof pairs);
#if defined(__x86_64__)
    if constexpr (sizeof(V) > kPlainBytes) {
        asm("vpmaddwd %2, %1, %0" : "=v"(pairs) : "v"(x), "v"(y));
    } else {
        W product = x;
        asm("pmaddwd %1, %0" : "+x"(product) : "x"(y));
        std::memcpy(&pairs, &product, sizeof pairs);
    }
#else
    V a, b;
    std::memcpy(&a, &x, sizeof a);
    std::memcpy(&b, &y, sizeof b);
    pairs = ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

}  // namespace backline
