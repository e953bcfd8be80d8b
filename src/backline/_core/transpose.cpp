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

// Some rows and columns at a time, so that what is read stays in the cache.
template <int Size>
inline void by_blocks(const Matrix &m, int64_t rows, int64_t cols) {
    constexpr int64_t most = 16;
    for (int64_t i = 0; i < rows; i += most)
        for (int64_t j = 0; j < cols; j += most) by_elements<Size>(m, i, std::min(i + most, rows), j, std::min(j + most, cols));
}

// The place of a step of a loop over `count`: the last one repeats some of what the one before did.
inline int64_t inside(int64_t at, int64_t step, int64_t count) { return std::min(at, count - step); }

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

// Rows become columns, within each 16 bytes.
template <int Size, int n = 16 / Size>
BACKLINE_VECTORS void turn(__m256i (&v)[n]) {
    __m256i w[n];
    for (int step = 1; step < n; step *= 2) {
        for (int k = 0; k < n / 2; ++k) {
            w[2 * k] = lower<Size>(v[k], v[k + n / 2]);
            w[2 * k + 1] = upper<Size>(v[k], v[k + n / 2]);
        }
        std::copy(w, w + n, v);
    }
}

BACKLINE_VECTORS __m256i load16(const char *from) {
    return _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)));
}

// As many rows as 32 bytes hold elements, 16 bytes of each.
template <int Size>
BACKLINE_VECTORS void tile(const Matrix &m, int64_t row, int64_t col) {
    constexpr int n = 16 / Size;
    const char *from = m.from + row * m.row_step + col * Size;
    char *to = m.to + col * m.column_step + row * Size;
    __m256i v[n];
    for (int k = 0; k < n; ++k) {
        const auto *other = reinterpret_cast<const __m128i *>(from + (k + n) * m.row_step);
        v[k] = _mm256_inserti128_si256(load16(from + k * m.row_step), _mm_loadu_si128(other), 1);
    }
    turn<Size>(v);
    for (int k = 0; k < n; ++k) _mm256_storeu_si256(reinterpret_cast<__m256i *>(to + k * m.column_step), v[k]);
}

// As many rows as 16 bytes hold elements, 16 bytes of each; or fewer rows, or columns, whose 16 bytes are read or written all the same.
template <int Size>
BACKLINE_VECTORS void small_tile(const Matrix &m, int64_t row, int64_t rows, int64_t col, int64_t cols) {
    constexpr int n = 16 / Size;
    const char *from = m.from + row * m.row_step + col * Size;
    char *to = m.to + col * m.column_step + row * Size;
    __m256i v[n];
    for (int k = 0; k < n; ++k) v[k] = k < rows ? load16(from + k * m.row_step) : __m256i{};
    turn<Size>(v);
    for (int k = 0; k < n; ++k)
        if (k < cols) _mm_storeu_si128(reinterpret_cast<__m128i *>(to + k * m.column_step), _mm256_castsi256_si128(v[k]));
}

// Some rows at a time, so that they stay in the second cache. Lines of the cache are read and written whole, and those that come next in
// the rows are asked for: a processor does not foresee them in so many rows.
template <int Size>
__attribute__((target("avx2"))) void by_tiles(const Matrix &m, int64_t rows, int64_t cols) {
    constexpr int64_t tall = 32 / Size, wide = 16 / Size, line = 64 / Size, block = 512;
    for (int64_t first = 0; first < rows; first += block)
        for (int64_t j0 = 0; j0 < cols; j0 += line)
            for (int64_t i0 = first; i0 < std::min(first + block, rows); i0 += line) {
                const int64_t most = std::min(i0 + line, rows);
                for (int64_t i = i0; i < most; ++i) __builtin_prefetch(m.from + i * m.row_step + (j0 + line) * Size);
                for (int64_t j = j0; j < std::min(j0 + line, cols); j += wide) {
                    const int64_t col = inside(j, wide, cols);
                    for (int64_t i = i0; i < most; i += tall) tile<Size>(m, inside(i, tall, rows), col);
                }
            }
}

// Of few rows, or few columns. What a column gets beyond its end belongs to the next one, which comes later; the last ones are left to
// loops over elements, and so are the last rows, beyond whose end nothing may be read.
template <int Size>
__attribute__((target("avx2"))) void by_small_tiles(const Matrix &m, int64_t rows, int64_t cols) {
    constexpr int64_t n = 16 / Size;
    if (rows >= n && cols >= n) {
        for (int64_t j = 0; j < cols; j += n)
            for (int64_t i = 0; i < rows; i += n) small_tile<Size>(m, inside(i, n, rows), n, inside(j, n, cols), n);
    } else if (cols >= n && m.column_step == rows * Size) {
        int64_t j = 0;
        for (; (cols - j - n) * rows >= n; j += n) small_tile<Size>(m, 0, rows, j, n);
        by_elements<Size>(m, 0, rows, j, cols);
    } else if (rows >= n && m.row_step == cols * Size) {
        int64_t i = 0;
        for (; (rows - i - n) * cols >= n; i += n) small_tile<Size>(m, i, n, 0, cols);
        by_elements<Size>(m, i, rows, 0, cols);
    } else {
        by_blocks<Size>(m, rows, cols);
    }
}

bool has_tiles() {
    static const bool yes = __builtin_cpu_supports("avx2");
    return yes;
}
#else
template <int Size>
void by_tiles(const Matrix &, int64_t, int64_t) {}
template <int Size>
void by_small_tiles(const Matrix &, int64_t, int64_t) {}
bool has_tiles() { return false; }
#endif

}  // namespace

template <int Size>
void transpose(int64_t rows, int64_t cols, const char *from, int64_t row_step, char *to, int64_t column_step) {
    const Matrix m{from, row_step, to, column_step};
    if (has_tiles()) return rows * Size >= 32 && cols * Size >= 16 ? by_tiles<Size>(m, rows, cols) : by_small_tiles<Size>(m, rows, cols);
    by_blocks<Size>(m, rows, cols);
}

template void transpose<2>(int64_t, int64_t, const char *, int64_t, char *, int64_t);
template void transpose<4>(int64_t, int64_t, const char *, int64_t, char *, int64_t);
template void transpose<8>(int64_t, int64_t, const char *, int64_t, char *, int64_t);

}  // namespace backline
