// How one source is compiled for several instruction sets.
#pragma once
#include <cstdint>

namespace backline {

// Inlined into functions that are compiled for one instruction set each.
#define BACKLINE_INLINE inline __attribute__((always_inline))

#if defined(__x86_64__)
#define BACKLINE_AVX2 __attribute__((target("avx2,fma")))
#define BACKLINE_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
// Without fused operations, where a product must be rounded before it is added.
#define BACKLINE_AVX2_UNFUSED __attribute__((target("avx2")))
#define BACKLINE_AVX512_UNFUSED __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#else  // one set, and the functions of all levels are alike
#define BACKLINE_AVX2
#define BACKLINE_AVX512
#define BACKLINE_AVX2_UNFUSED
#define BACKLINE_AVX512_UNFUSED
#endif

// Instruction sets that functions are chosen by: 0 is what every processor has, 1 AVX2 with FMA and F16C, 2 AVX-512 (F, BW, DQ, VL).
constexpr int kLevels = 3;

int best_level();  // of this processor

// Body::run<T, Bytes>, which is BACKLINE_INLINE, for float and double with vectors of as many bytes as a level has: table[level][double].
template <class Body, class Signature = decltype(&Body::template run<float, 16>)>
struct TypedVersions;
template <class Body, class... A>
struct TypedVersions<Body, void (*)(A...)> {
    template <class T>
    static void plain(A... a) {
        Body::template run<T, 16>(a...);
    }
    template <class T>
    BACKLINE_AVX2 static void avx2(A... a) {
        Body::template run<T, 32>(a...);
    }
    template <class T>
    BACKLINE_AVX512 static void avx512(A... a) {
        Body::template run<T, 64>(a...);
    }
#if defined(__x86_64__)
    static constexpr void (*table[][2])(A...) = {
        {plain<float>, plain<double>}, {avx2<float>, avx2<double>}, {avx512<float>, avx512<double>}};
#else
    static constexpr void (*table[][2])(A...) = {{plain<float>, plain<double>}};
#endif
};

// Body::run<Bytes>, which is BACKLINE_INLINE, for every level, with vectors of as many bytes as it has.
template <class Body, class Signature = decltype(&Body::template run<16>)>
struct VectorVersions;
template <class Body, class... A>
struct VectorVersions<Body, void (*)(A...)> {
    static void plain(A... a) { Body::template run<16>(a...); }
    BACKLINE_AVX2 static void avx2(A... a) { Body::template run<32>(a...); }
    BACKLINE_AVX512 static void avx512(A... a) { Body::template run<64>(a...); }
#if defined(__x86_64__)
    static constexpr void (*table[kLevels])(A...) = {plain, avx2, avx512};
#else
    static constexpr void (*table[])(A...) = {plain};
#endif
};

// Function, which is BACKLINE_INLINE, for every level: without fused operations, or with those of AVX2.
template <auto Function>
struct Versions;
template <class R, class... A, R (*Function)(A...)>
struct Versions<Function> {
    static R plain(A... a) { return Function(a...); }
    BACKLINE_AVX2_UNFUSED static R avx2(A... a) { return Function(a...); }
    BACKLINE_AVX2 static R avx2_fused(A... a) { return Function(a...); }
    BACKLINE_AVX512_UNFUSED static R avx512(A... a) { return Function(a...); }
    static constexpr R (*table[kLevels])(A...) = {plain, avx2, avx512};
    static constexpr R (*without_avx512[kLevels])(A...) = {plain, avx2, avx2};
    static constexpr R (*fused[kLevels])(A...) = {plain, avx2_fused, avx2_fused};
};

}  // namespace backline
