// Conversions between vectors of floats and doubles, and of 16-bit integers, by one instruction each.
//
// GCC 12 converts such vectors in parts. Intrinsics must not be used in functions that are compiled for all instruction sets, even where
// these are inlined into one that has the instruction, so the instructions are written down.
#pragma once
#include "targets.hpp"

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace backline {

#if defined(__x86_64__) && !defined(__clang__)
constexpr int kPlainBytes = 16;  // vectors above have the instructions
#else
constexpr int kPlainBytes = 64;
#endif

template <class T, int Bytes>
struct VectorOf {
    typedef T Type __attribute__((vector_size(Bytes)));
};

// Bytes at an address, as an operand of `asm`. Asking for the size makes the class complete: GCC accepts an operand of one that is not, as
// a class of a template may be, takes its size for 0, and deletes what was written there before it is read.
template <int Bytes>
struct Memory {
    char bytes[Bytes];
};
template <int Bytes>
BACKLINE_INLINE const Memory<Bytes> &memory(const void *at) {
    static_assert(sizeof(Memory<Bytes>) == Bytes);
    return *static_cast<const Memory<Bytes> *>(at);
}
template <int Bytes>
BACKLINE_INLINE Memory<Bytes> &memory(void *at) {
    static_assert(sizeof(Memory<Bytes>) == Bytes);
    return *static_cast<Memory<Bytes> *>(at);
}

// Bytes: of the wider vectors.
template <int Bytes>
struct Conversions {
    using Doubles = typename VectorOf<double, Bytes>::Type;
    using Floats = typename VectorOf<float, Bytes / 2>::Type;
    using Words = typename VectorOf<uint32_t, Bytes>::Type;
    using Halves = typename VectorOf<uint16_t, Bytes / 2>::Type;
    using Shorts = typename VectorOf<int16_t, Bytes>::Type;

    // From memory: of what is in a register a part would have to be moved first.
    static BACKLINE_INLINE void widen(Doubles &to, const float *from) {
        if constexpr (Bytes > kPlainBytes) {
            asm("vcvtps2pd %1, %0" : "=v"(to) : "m"(memory<Bytes / 2>(from)));
        } else {
            Floats floats;
            std::memcpy(&floats, from, sizeof floats);
            to = __builtin_convertvector(floats, Doubles);
        }
    }
    static BACKLINE_INLINE void narrow(Floats &to, const Doubles &from) {
        if constexpr (Bytes > kPlainBytes) asm("vcvtpd2ps %1, %0" : "=v"(to) : "v"(from));
        else to = __builtin_convertvector(from, Floats);
    }
    // Bytes as 16-bit integers. What `asm` writes must be no element of an array, or the array is kept in memory.
    template <class S>
    static BACKLINE_INLINE void widen(Shorts &to, const S *from) {
        static_assert(sizeof(S) == 1);
        if constexpr (Bytes > kPlainBytes) {
            if constexpr (std::is_signed_v<S>) asm("vpmovsxbw %1, %0" : "=v"(to) : "m"(memory<Bytes / 2>(from)));
            else asm("vpmovzxbw %1, %0" : "=v"(to) : "m"(memory<Bytes / 2>(from)));
        } else {
            typename VectorOf<S, Bytes / 2>::Type bytes;
            std::memcpy(&bytes, from, sizeof bytes);
            to = __builtin_convertvector(bytes, Shorts);
        }
    }
    static BACKLINE_INLINE void widen(Words &to, const uint16_t *from) {
        if constexpr (Bytes > kPlainBytes) {
            asm("vpmovzxwd %1, %0" : "=v"(to) : "m"(memory<Bytes / 2>(from)));
        } else {
            Halves halves;
            std::memcpy(&halves, from, sizeof halves);
            to = __builtin_convertvector(halves, Words);
        }
    }
    // The lower halves of words.
    static BACKLINE_INLINE void narrow(uint16_t *to, const Words &from) {
        if constexpr (Bytes == 64 && Bytes > kPlainBytes) {
            asm("vpmovdw %1, %0" : "=m"(memory<Bytes / 2>(to)) : "v"(from));
        } else {
            const Halves halves = __builtin_convertvector(from, Halves);
            std::memcpy(to, &halves, sizeof halves);
        }
    }
    // Whether any bit is set.
    static BACKLINE_INLINE bool any_bit(const Words &from) {
        bool any = false;
        if constexpr (Bytes == 64 && Bytes > kPlainBytes) {
            uint16_t lanes;
            asm("vptestmd %2, %2, %1\n\tkortestw %1, %1" : "=@ccnz"(any), "=&Yk"(lanes) : "v"(from));
        } else if constexpr (Bytes > kPlainBytes) {
            asm("vptest %1, %1" : "=@ccnz"(any) : "x"(from));
        } else {
            for (int i = 0; i < Bytes / 4; ++i) any |= from[i] != 0;
        }
        return any;
    }
};

}  // namespace backline
