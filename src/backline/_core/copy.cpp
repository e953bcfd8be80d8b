#include "copy.hpp"

#include "bits.hpp"
#include "transpose.hpp"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace backline {
namespace {

struct alignas(16) Raw16 {
    uint64_t a, b;
};

float half_to_float(uint16_t h) {
    uint32_t sign = uint32_t(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 0x3ffu, bits;
    if (exponent == 31u) {
        bits = sign | 0x7f800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0u);
    } else if (exponent) {
        bits = sign | ((exponent + 112u) << 23) | (mantissa << 13);
    } else {
        bits = bits_as<uint32_t>(std::ldexp(float(mantissa), -24)) | sign;
    }
    return bits_as<float>(bits);
}

uint16_t float_to_half(float value) {
    uint32_t bits = bits_as<uint32_t>(value);
    uint16_t sign = uint16_t((bits >> 16) & 0x8000u);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return uint16_t(sign | 0x7e00u | ((bits >> 13) & 0x3ffu));
    if (bits >= 0x47800000u) return uint16_t(sign | 0x7c00u);  // 65536 and more
    if (bits < 0x38800000u) {  // subnormal halves: units of 2^-24, round to nearest even
        return uint16_t(sign | uint16_t(std::nearbyint(std::ldexp(bits_as<float>(bits), 24))));
    }
    uint32_t rounded = bits + 0xfffu + ((bits >> 13) & 1u);
    return uint16_t(sign | uint16_t((rounded - 0x38000000u) >> 13));
}

inline uint16_t float_to_bfloat(float value) {
    uint32_t bits = bits_as<uint32_t>(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return uint16_t(nan ? ((bits >> 16) | 0x40u) : rounded);
}

inline float bfloat_to_float(uint16_t value) { return bits_as<float>(uint32_t(value) << 16); }

#if defined(__x86_64__)
bool has_f16c() {
    static const bool yes = __builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c");
    return yes;
}

__attribute__((target("avx,f16c"))) void half_row(const char *src, char *dst, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(reinterpret_cast<float *>(dst + 4 * i),
                         _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(src + 2 * i))));
    for (; i < n; ++i) store(dst + 4 * i, half_to_float(load<uint16_t>(src + 2 * i)));
}

__attribute__((target("avx,f16c"))) void to_half_row(const char *src, char *dst, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128(reinterpret_cast<__m128i *>(dst + 2 * i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(reinterpret_cast<const float *>(src + 4 * i)), _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; ++i) store(dst + 2 * i, float_to_half(load<float>(src + 4 * i)));
}

bool has_avx2() {
    static const bool yes = __builtin_cpu_supports("avx2");
    return yes;
}

__attribute__((target("avx2"))) void bfloat_row(const char *src, char *dst, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_si256(
            reinterpret_cast<__m256i *>(dst + 4 * i),
            _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(src + 2 * i))), 16));
    for (; i < n; ++i) store(dst + 4 * i, bfloat_to_float(load<uint16_t>(src + 2 * i)));
}

// As float_to_bfloat, of eight numbers: each in the lower half of its 32 bits.
__attribute__((target("avx2"))) inline __m256i eight_bfloats(const char *src) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(src)), upper = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i size = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    const __m256i nan = _mm256_cmpgt_epi32(size, _mm256_set1_epi32(0x7f800000));
    return _mm256_blendv_epi8(rounded, _mm256_or_si256(upper, _mm256_set1_epi32(0x40)), nan);
}

__attribute__((target("avx2"))) void to_bfloat_row(const char *src, char *dst, int64_t n) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {  // what is packed comes in the order 0, 2, 1, 3 of its quarters
        const __m256i packed = _mm256_packus_epi32(eight_bfloats(src + 4 * i), eight_bfloats(src + 4 * i + 32));
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(dst + 2 * i), _mm256_permute4x64_epi64(packed, 0xd8));
    }
    for (; i < n; ++i) store(dst + 2 * i, float_to_bfloat(load<float>(src + 4 * i)));
}
#else
bool has_f16c() { return false; }
bool has_avx2() { return false; }
void half_row(const char *, char *, int64_t) {}
void to_half_row(const char *, char *, int64_t) {}
void bfloat_row(const char *, char *, int64_t) {}
void to_bfloat_row(const char *, char *, int64_t) {}
#endif

// Row by row, by a function for numbers without gaps between them.
inline void by_rows(const Copy2D &c, const char *src, char *dst, void (*row)(const char *, char *, int64_t)) {
    for (int64_t i = 0; i < c.rows; ++i) row(src + i * c.src0, dst + i * c.dst0, c.cols);
}

template <class S, class D, class F>
void convert(const Copy2D &c, const char *src, char *dst, F f) {
    // Tiles keep both sides in cache when one is transposed; the inner loop runs along the destination.
    int64_t rows = c.rows, cols = c.cols, s0 = c.src0, s1 = c.src1, d0 = c.dst0, d1 = c.dst1;
    if (std::abs(d0) < std::abs(d1)) {
        std::swap(rows, cols);
        std::swap(s0, s1);
        std::swap(d0, d1);
    }
    if (d1 == int64_t(sizeof(D)) && s1 == int64_t(sizeof(S))) {
        for (int64_t i = 0; i < rows; ++i) {
            const char *from = src + i * s0;
            char *to = dst + i * d0;
            for (int64_t j = 0; j < cols; ++j)  // arrays may be misaligned; vectors come of it all the same
                store<D>(to + j * int64_t(sizeof(D)), f(load<S>(from + j * int64_t(sizeof(S)))));
        }
        return;
    }
    constexpr int64_t tile = 16;
    for (int64_t i0 = 0; i0 < rows; i0 += tile)
        for (int64_t j0 = 0; j0 < cols; j0 += tile) {
            int64_t i1 = std::min(i0 + tile, rows), j1 = std::min(j0 + tile, cols);
            for (int64_t i = i0; i < i1; ++i)
                for (int64_t j = j0; j < j1; ++j) store<D>(dst + i * d0 + j * d1, f(load<S>(src + i * s0 + j * s1)));
        }
}

// By vectors where numbers of both sides lie side by side, along either axis.
template <class S, class D, class F>
void convert_rows(Copy2D c, const char *src, char *dst, bool vectors, void (*row)(const char *, char *, int64_t), F f) {
    constexpr int64_t from = sizeof(S), to = sizeof(D);
    const bool rows = c.src1 == from && c.dst1 == to, columns = c.src0 == from && c.dst0 == to;
    if (columns && (!rows || c.cols < c.rows)) {
        std::swap(c.rows, c.cols);
        std::swap(c.src0, c.src1);
        std::swap(c.dst0, c.dst1);
    }
    if (vectors && (rows || columns)) return by_rows(c, src, dst, row);
    convert<S, D>(c, src, dst, f);
}

template <class T>
void raw(const Copy2D &c, const char *src, char *dst) {
    int64_t size = sizeof(T);
    if (c.src1 == size && c.dst1 == size) {
        if (c.src0 == c.cols * size && c.dst0 == c.src0) {
            std::memcpy(dst, src, size_t(c.rows * c.src0));
        } else {
            for (int64_t i = 0; i < c.rows; ++i)
                std::memcpy(dst + i * c.dst0, src + i * c.src0, size_t(c.cols * size));
        }
        return;
    }
    if (c.src0 == size && c.dst0 == size) {
        for (int64_t j = 0; j < c.cols; ++j)
            std::memcpy(dst + j * c.dst1, src + j * c.src1, size_t(c.rows * size));
        return;
    }
    if constexpr (sizeof(T) <= 8) {
        if (c.src1 == size && c.dst0 == size) return transpose<sizeof(T)>(c.rows, c.cols, src, c.src0, dst, c.dst1);
        if (c.src0 == size && c.dst1 == size) return transpose<sizeof(T)>(c.cols, c.rows, src, c.src1, dst, c.dst0);
    }
    convert<T, T>(c, src, dst, [](T x) { return x; });
}

}  // namespace

void Copy2D::run(const char *src, char *dst) const {
    if (rows <= 0 || cols <= 0) return;
    switch (element) {
        case Element::raw2: return raw<uint16_t>(*this, src, dst);
        case Element::raw4: return raw<uint32_t>(*this, src, dst);
        case Element::raw8: return raw<uint64_t>(*this, src, dst);
        case Element::raw16: return raw<Raw16>(*this, src, dst);
        case Element::conj8:
            return convert<std::complex<float>, std::complex<float>>(*this, src, dst, [](auto x) { return std::conj(x); });
        case Element::conj16:
            return convert<std::complex<double>, std::complex<double>>(*this, src, dst,
                                                                       [](auto x) { return std::conj(x); });
        case Element::f16_f32: return convert_rows<uint16_t, float>(*this, src, dst, has_f16c(), half_row, half_to_float);
        case Element::f32_f16: return convert_rows<float, uint16_t>(*this, src, dst, has_f16c(), to_half_row, float_to_half);
        case Element::bf16_f32:
            return convert_rows<uint16_t, float>(*this, src, dst, has_avx2(), bfloat_row, [](uint16_t x) { return bfloat_to_float(x); });
        case Element::f32_bf16:
            return convert_rows<float, uint16_t>(*this, src, dst, has_avx2(), to_bfloat_row, [](float x) { return float_to_bfloat(x); });
        case Element::i64_i32: return convert<int64_t, int32_t>(*this, src, dst, [](int64_t x) { return int32_t(x); });
        case Element::i32_i64: return convert<int32_t, int64_t>(*this, src, dst, [](int32_t x) { return int64_t(x); });
        case Element::count: break;
    }
}

namespace {

// Elements (i, j) with j < i of a square matrix become those at (j, i), conjugated: `down` bytes lead from one i to the next.
template <class T>
void mirror(char *data, int64_t n, int64_t down, int64_t across) {
    constexpr int64_t tile = 16;
    for (int64_t i0 = 0; i0 < n; i0 += tile)
        for (int64_t j0 = 0; j0 <= i0; j0 += tile)
            for (int64_t i = i0; i < std::min(i0 + tile, n); ++i)
                for (int64_t j = j0; j < std::min(j0 + tile, i); ++j) {
                    T value = load<T>(data + i * down + j * across);
                    if constexpr (!std::is_floating_point_v<T>) value = std::conj(value);
                    store(data + j * down + i * across, value);
                }
}

}  // namespace

void Triangle::run(char *data) const {
    auto at = [&](int64_t i, int64_t j) { return data + i * stride0 + j * stride1; };
    int64_t shorter = std::min(rows, cols);
    switch (mode) {
        case TriangleMode::zero_upper:
        case TriangleMode::zero_lower: {
            bool upper = mode == TriangleMode::zero_upper;
            if (stride1 == itemsize) {  // row by row: one run each
                for (int64_t i = 0; i < rows; ++i) {
                    int64_t first = upper ? i + 1 : 0, last = upper ? cols : std::min(i, cols);
                    if (first < last) std::memset(at(i, first), 0, size_t((last - first) * itemsize));
                }
            } else {
                for (int64_t j = 0; j < cols; ++j) {
                    int64_t first = upper ? 0 : j + 1, last = upper ? std::min(j, rows) : rows;
                    if (first >= last) continue;
                    if (stride0 == itemsize) {
                        std::memset(at(first, j), 0, size_t((last - first) * itemsize));
                    } else {
                        for (int64_t i = first; i < last; ++i) std::memset(at(i, j), 0, size_t(itemsize));
                    }
                }
            }
            return;
        }
        case TriangleMode::unit_diagonal:
            for (int64_t i = 0; i < shorter; ++i) {
                char *p = at(i, i);
                int real = complex ? itemsize / 2 : itemsize;
                std::memset(p, 0, size_t(itemsize));
                if (real == 4) store(p, 1.0f);
                else store(p, 1.0);
            }
            return;
        case TriangleMode::mirror_lower:
        case TriangleMode::mirror_upper: {
            // mirror_lower: the lower triangle is right, the upper becomes its (conjugate) transpose.
            bool lower = mode == TriangleMode::mirror_lower;
            int64_t from0 = lower ? stride0 : stride1, from1 = lower ? stride1 : stride0;
            if (complex && itemsize == 8) return mirror<std::complex<float>>(data, shorter, from0, from1);
            if (complex) return mirror<std::complex<double>>(data, shorter, from0, from1);
            if (itemsize == 4) return mirror<float>(data, shorter, from0, from1);
            return mirror<double>(data, shorter, from0, from1);
        }
        case TriangleMode::count: return;
    }
}

namespace {

template <class T>
__attribute__((always_inline)) inline bool row_is_finite(const char *row, int64_t count, int64_t stride, T exponent) {
    T found = 0;  // as wide as the elements, so that vectors of them need no other width
    for (int64_t j = 0; j < count; ++j) found |= T((load<T>(row + j * stride) & exponent) == exponent);
    return !found;
}

#if defined(__x86_64__)
template <class T>
__attribute__((target("avx2"))) bool row_is_finite_avx2(const char *row, int64_t count, T exponent) {
    return row_is_finite<T>(row, count, sizeof(T), exponent);
}
#else
template <class T>
bool row_is_finite_avx2(const char *row, int64_t count, T exponent) {
    return row_is_finite<T>(row, count, sizeof(T), exponent);
}
#endif

template <class T>
bool all_finite(const Finite &f, const char *data, T exponent) {
    const bool dense = f.stride1 == int64_t(sizeof(T)), wide = has_avx2();
    for (int64_t i = 0; i < f.rows; ++i) {
        const char *row = data + i * f.stride0;
        const bool finite = !dense ? row_is_finite<T>(row, f.cols, f.stride1, exponent)
                            : wide ? row_is_finite_avx2<T>(row, f.cols, exponent)
                                   : row_is_finite<T>(row, f.cols, sizeof(T), exponent);
        if (!finite) return false;
    }
    return true;
}

}  // namespace

bool Finite::run(const char *data) const {
    switch (itemsize) {
        case 2: return all_finite<uint16_t>(*this, data, 0x7f80u);  // bfloat16
        case kFloat16: return all_finite<uint16_t>(*this, data, 0x7c00u);
        case 4: return all_finite<uint32_t>(*this, data, 0x7f800000u);
        default: return all_finite<uint64_t>(*this, data, 0x7ff0000000000000u);
    }
}

bool Range::run(const char *data) const {
    for (int64_t i = 0; i < count; ++i) {
        const int32_t value = load<int32_t>(data + i * stride);
        if (value < low || value > high) return false;
    }
    return true;
}

}  // namespace backline
