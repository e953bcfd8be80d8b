// Vectors of floats from and to memory that may hold 16-bit floats: these are widened as they are read and rounded to the nearest, ties to
// even, as they are written, by one instruction where there is one. NaN stays NaN, with the upper bits of its payload, and becomes quiet.
#pragma once
#include "../_core/copy.hpp"
#include "conversions.hpp"
#include "lanes.hpp"

namespace backline {

struct Float16 {
    uint16_t bits;
};
struct Bfloat16 {
    uint16_t bits;
};
// The same numbers, rounded by the instruction of AVX512_BF16. As it takes subnormal numbers for 0, these are rounded after it: bits do
// not depend on the processor.
struct NativeBfloat16 {
    uint16_t bits;
};
template <class S>
constexpr bool kBfloat16 = std::is_same_v<S, Bfloat16> || std::is_same_v<S, NativeBfloat16>;

// By the instructions of AVX-512 and AVX512_BF16.
template <int Bytes>
struct NativeConversions {
    using Floats = typename VectorOf<float, Bytes>::Type;

    static BACKLINE_INLINE void narrow([[maybe_unused]] NativeBfloat16 *to, [[maybe_unused]] const Floats &from) {
#if defined(__x86_64__)
        typename VectorOf<float, Bytes / 2>::Type halves;
        asm("vcvtneps2bf16 %1, %0" : "=v"(halves) : "v"(from));
        std::memcpy(to, &halves, sizeof halves);
#endif
    }
    // Whether there is a subnormal number in one of two vectors.
    static BACKLINE_INLINE bool subnormal([[maybe_unused]] const Floats &one, [[maybe_unused]] const Floats &other) {
        bool any = false;
#if defined(__x86_64__)
        uint16_t here, there;
        asm("vfpclassps $0x20, %3, %1\n\tvfpclassps $0x20, %4, %2\n\tkortestw %1, %2"
            : "=@ccnz"(any), "=&Yk"(here), "=&Yk"(there)
            : "v"(one), "v"(other));
#endif
        return any;
    }
    // Writes those that `narrow` has taken for 0.
    static BACKLINE_INLINE void narrow_subnormal(NativeBfloat16 *to, const Floats &from) {
        uint32_t bits[Bytes / 4];
        std::memcpy(bits, &from, sizeof bits);
        for (int i = 0; i < Bytes / 4; ++i)
            if ((bits[i] >> 23 & 0xffu) == 0) to[i].bits = uint16_t((bits[i] + (bits[i] >> 16 & 1u) + 0x7fffu) >> 16);
    }
};

// S: in memory; T: in vectors.
template <class S, class T, int Bytes>
struct Elements : Ends<Elements<S, T, Bytes>, S, typename Lanes<T, Bytes>::Vector> {
    using L = Lanes<T, Bytes>;
    using V = typename L::Vector;
    static constexpr int64_t count = L::count;

    static BACKLINE_INLINE void load(V &v, const S *from) {
        if constexpr (std::is_same_v<S, T>) {
            L::load(v, from);
        } else if constexpr (kBfloat16<S>) {
            typename L::Bits bits;
            Conversions<Bytes>::widen(bits, &from->bits);
            bits = bits << 16;
            std::memcpy(&v, &bits, sizeof v);
        } else {
            widen(v, from);
        }
    }
    static BACKLINE_INLINE void store(const V &v, S *to) {
        if constexpr (std::is_same_v<S, T>) {
            L::store(v, to);
        } else if constexpr (std::is_same_v<S, Bfloat16>) {
            using Bits = typename L::Bits;
            Bits bits, upper;
            std::memcpy(&bits, &v, sizeof bits);
            upper = bits >> 16;
            bits = (bits + (upper & 1u) + 0x7fffu) >> 16;
            upper = upper | 0x40u;
            bits = v == v ? bits : upper;
            Conversions<Bytes>::narrow(&to->bits, bits);
        } else {
            narrow(v, to);
        }
    }

  private:
    static BACKLINE_INLINE void widen(V &v, const Float16 *from) {
        if constexpr (Bytes > kPlainBytes) {
            asm("vcvtph2ps %1, %0" : "=v"(v) : "m"(memory<sizeof(V) / 2>(from)));
        } else {
            // Exponent and mantissa move to their places in float, where the number is 2^112 times too small; what was infinite or no
            // number gets its exponent back.
            using Bits = typename L::Bits;
            Bits bits;
            Conversions<Bytes>::widen(bits, &from->bits);
            const Bits size = (bits & 0x7fffu) << 13, special{};
            std::memcpy(&v, &size, sizeof v);
            v = v * 0x1p112f;
            Bits wide;
            std::memcpy(&wide, &v, sizeof v);
            wide = (wide | (size >= special + 0x0f800000u ? special + 0x7f800000u : special)) | (bits & 0x8000u) << 16;
            std::memcpy(&v, &wide, sizeof v);
        }
    }
    static BACKLINE_INLINE void narrow(const V &v, NativeBfloat16 *to) {
        using Native = NativeConversions<Bytes>;
        Native::narrow(to, v);
        if (__builtin_expect(Native::subnormal(v, v), 0)) Native::narrow_subnormal(to, v);
    }
    static BACKLINE_INLINE void narrow(const V &v, Float16 *to) {
        if constexpr (Bytes > kPlainBytes) {
            asm("vcvtps2ph $0, %1, %0" : "=m"(memory<sizeof(V) / 2>(to)) : "v"(v));
        } else {
            using Bits = typename L::Bits;
            Bits bits, small;
            std::memcpy(&bits, &v, sizeof bits);
            const Bits sign = bits >> 16 & 0x8000u, none{};
            bits = bits & 0x7fffffffu;
            // Below 2^-14 halves are multiples of 2^-24, which is the last place of floats between 0.5 and 1.
            V size;
            std::memcpy(&size, &bits, sizeof size);
            size = size + 0.5f;
            std::memcpy(&small, &size, sizeof small);
            small = small - 0x3f000000u;
            Bits normal = (bits + (bits >> 13 & 1u) + 0xfffu - 0x38000000u) >> 13;
            normal = bits >= none + 0x47800000u ? none + 0x7c00u : normal;
            normal = bits > none + 0x7f800000u ? (bits >> 13 & 0x3ffu) | 0x7e00u : normal;
            bits = (bits < none + 0x38800000u ? small : normal) | sign;
            Conversions<Bytes>::narrow(&to->bits, bits);
        }
    }
};

// So many vectors at a time: 1, 2, 4, ...
template <class S, class T, int Bytes, int Parts>
struct ElementsTogether {
    using One = ElementsTogether<S, T, Bytes, Parts / 2>;
    using V = Two<typename One::V>;
    static constexpr int64_t half = One::count, count = 2 * half;

    static BACKLINE_INLINE void load_some(V &v, const S *from, int64_t n) {
        One::load_some(v.one, from, n);
        v.other = typename One::V{};
        if (n > half) One::load_some(v.other, from + half, n - half);
    }
    static BACKLINE_INLINE void store_some(const V &v, S *to, int64_t n) {
        if constexpr (Parts == 2 && std::is_same_v<S, NativeBfloat16>) {
            using Native = NativeConversions<Bytes>;
            if (n >= count) {
                Native::narrow(to, v.one);
                Native::narrow(to + half, v.other);
                if (__builtin_expect(Native::subnormal(v.one, v.other), 0)) {
                    Native::narrow_subnormal(to, v.one);
                    Native::narrow_subnormal(to + half, v.other);
                }
                return;
            }
        }
        One::store_some(v.one, to, n);
        if (n > half) One::store_some(v.other, to + half, n - half);
    }
};
template <class S, class T, int Bytes>
struct ElementsTogether<S, T, Bytes, 1> : Elements<S, T, Bytes> {};

// What a loop over S computes in T: S itself, which is T where it is void, or 16-bit floats in float.
template <class S, class T>
using InMemory = std::conditional_t<std::is_void_v<S>, T, S>;
template <class S, class T>
constexpr bool kComputedIn = std::is_void_v<S> || sizeof(T) == 4;

// Runs Body<S> for the floats that an item size stands for: Body<void> for float and double.
template <template <class> class Body, class... A>
inline void for_floats(int64_t itemsize, int64_t level, const A &...a) {
    switch (itemsize) {
        case 8: return TypedVersions<Body<void>>::table[level][1](a...);
        case 4: return TypedVersions<Body<void>>::table[level][0](a...);
        case kFloat16: return TypedVersions<Body<Float16>>::table[level][0](a...);
        default:
#if defined(__x86_64__)
            static const bool native = __builtin_cpu_supports("avx512bf16");
            if (level == 2 && native) return TypedVersions<Body<NativeBfloat16>>::template avx512<float>(a...);
#endif
            return TypedVersions<Body<Bfloat16>>::table[level][0](a...);
    }
}

}  // namespace backline
