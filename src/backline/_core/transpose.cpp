#include "transpose.hpp"

#include "bits.hpp"

#include <algorithm>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace backline {
namespace {

struct Matrix {
    const char *from;
    int64_t row_step;
    char *to;
    int64_t column_step;
};

template <int Size>
using Unsigned = std::conditional_t<Size == 2, uint16_t, std::conditional_t<Size == 4, uint32_t, uint64_t>>;

template <int Size>
inline void by_elements(const Matrix &m, int64_t row, int64_t rows, int64_t col, int64_t cols) {
    using T = Unsigned<Size>;
    for (int64_t j = col; j < cols; ++j)
        for (int64_t i = row; i < rows; ++i) store(m.to + j * m.column_step + i * Size, load<T>(m.from + i * m.row_step + j * Size));
}

#if defined(__x86_64__)
#define BACKLINE_VECTORS __attribute__((target("avx2"), always_inline)) inline

// Elements of two vectors in turn, of the lower or of the upper half of each 16 bytes.
template <int Size>
BACKLINE_VECTORS __m256i lower(__m256i a, __m256i b) {
    return Size == 2 ? _mm256_unpacklo_epi16(a, b) : Size == 4 ? _mm256_unpacklo_epi32(a, b) : _mm256_unpacklo_epi64(a, b);
}
template <int Size>
BACKLINE_VECTORS __m256i upper(__m256i a, __m256i b) {
    return Size == 2 ? _mm256_unpackhi_epi16(a, b) : Size == 4 ? _mm256_unpackhi_epi32(a, b) : _mm256_unpackhi_epi64(a, b);
}

// 32 bytes of each of as many columns as 16 bytes of a row hold.
template <int Size>
BACKLINE_VECTORS void tile(const char *from, int64_t row_step, char *to, int64_t column_step) {
    constexpr int n = 16 / Size;
    __m256i v[n], w[n];
    for (int k = 0; k < n; ++k) {
        const auto *one = reinterpret_cast<const __m128i *>(from + k * row_step);
        const auto *other = reinterpret_cast<const __m128i *>(from + (k + n) * row_step);
        v[k] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(one)), _mm_loadu_si128(other), 1);
    }
    for (int step = 1; step < n; step *= 2) {
        for (int k = 0; k < n / 2; ++k) {
            w[2 * k] = lower<Size>(v[k], v[k + n / 2]);
            w[2 * k + 1] = upper<Size>(v[k], v[k + n / 2]);
        }
        std::copy(w, w + n, v);
    }
    for (int k = 0; k < n; ++k) _mm256_storeu_si256(reinterpret_cast<__m256i *>(to + k * column_step), v[k]);
}

// All but the last rows and columns that fill no tile: `rows` and `cols` become the numbers of what is done. Lines of the cache are read
// and written whole, and those that come next in the rows are asked for: a processor does not foresee them in so many rows.
template <int Size>
__attribute__((target("avx2"))) void by_tiles(const Matrix &m, int64_t &rows, int64_t &cols) {
    constexpr int64_t tall = 32 / Size, wide = 16 / Size, line = 64 / Size;
    rows -= rows % tall, cols -= cols % wide;
    for (int64_t j0 = 0; j0 < cols; j0 += line)
        for (int64_t i0 = 0; i0 < rows; i0 += line) {
            const int64_t most = std::min(i0 + line, rows);
            for (int64_t i = i0; i < most; ++i) __builtin_prefetch(m.from + i * m.row_step + (j0 + line) * Size);
            for (int64_t j = j0; j < std::min(j0 + line, cols); j += wide)
                for (int64_t i = i0; i < most; i += tall)
                    tile<Size>(m.from + i * m.row_step + j * Size, m.row_step, m.to + j * m.column_step + i * Size, m.column_step);
        }
}

bool has_tiles() {
    static const bool yes = __builtin_cpu_supports("avx2");
    return yes;
}
#else
template <int Size>
void by_tiles(const Matrix &, int64_t &, int64_t &) {}
bool has_tiles() { return false; }
#endif

}  // namespace

template <int Size>
void transpose(int64_t rows, int64_t cols, const char *from, int64_t row_step, char *to, int64_t column_step) {
    const Matrix m{from, row_step, to, column_step};
    if (has_tiles() && rows * Size >= 32 && cols * Size >= 16) {
        int64_t some_rows = rows, some_cols = cols;
        by_tiles<Size>(m, some_rows, some_cols);
        by_elements<Size>(m, some_rows, rows, 0, some_cols);
        return by_elements<Size>(m, 0, rows, some_cols, cols);
    }
    constexpr int64_t most = 16;  // so that what is read stays in the cache
    for (int64_t i = 0; i < rows; i += most)
        for (int64_t j = 0; j < cols; j += most) by_elements<Size>(m, i, std::min(i + most, rows), j, std::min(j + most, cols));
}

template void transpose<2>(int64_t, int64_t, const char *, int64_t, char *, int64_t);
template void transpose<4>(int64_t, int64_t, const char *, int64_t, char *, int64_t);
template void transpose<8>(int64_t, int64_t, const char *, int64_t, char *, int64_t);

}  // namespace backline
