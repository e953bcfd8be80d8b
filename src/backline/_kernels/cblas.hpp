// The two products of a BLAS library that kernels call by address.
#pragma once
#include <cstdint>

namespace backline {

// CBLAS's enumerations are int, and its integers 32 or 64 bits wide. As 64-bit integers they are read correctly either way: each has a
// register or a stack slot of 8 bytes of its own (call.hpp).
using Enum = int64_t;
template <class T>
using Gemm = void (*)(Enum, Enum, Enum, int64_t, int64_t, int64_t, T, const T *, int64_t, const T *, int64_t, T, T *, int64_t);
template <class T>
using Gemv = void (*)(Enum, Enum, int64_t, int64_t, T, const T *, int64_t, const T *, int64_t, T, T *, int64_t);
constexpr Enum kRowMajor = 101, kPlain = 111, kTransposed = 112;

}  // namespace backline
