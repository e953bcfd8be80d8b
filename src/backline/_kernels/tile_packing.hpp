// Matrices of bfloat16 and of int8 in tiles, as the products of tiles.hpp take them. What is missing from whole tiles is zero, so that nothing
// of other memory is multiplied. Functions are for those that are compiled for AVX-512.
#pragma once
#include "conversions.hpp"
#include "tiles.hpp"

#include <cstring>
#include <utility>

#if defined(BACKLINE_TILES)
namespace backline {

constexpr int64_t kPanel = 2 * kTileRows;  // rows, and columns, of sums that the tiles hold
constexpr int64_t kWord = 4;               // bytes of terms that stand together
constexpr int64_t kWords = kTileWidth / kWord;

constexpr int64_t pieces_of(int64_t bytes) { return (bytes + kTileWidth - 1) / kTileWidth; }
constexpr int64_t whole_panels(int64_t n) { return (n + kPanel - 1) / kPanel * kPanel; }

template <int Bytes>
using Halves = typename VectorOf<uint16_t, Bytes>::Type;
using Words = VectorOf<uint32_t, kTileWidth>::Type;
using Elements8 = VectorOf<uint8_t, kPanel>::Type;

// Up to a vector of bytes, the others zero; memory behind them is not touched.
template <class V>
BACKLINE_INLINE void load_some(V &v, const void *from, int64_t bytes) {
    if (bytes >= int64_t(sizeof v)) {
        std::memcpy(&v, from, sizeof v);
    } else if (bytes > 0) {
        const uint64_t mask = (uint64_t(1) << bytes) - 1;
        asm("vmovdqu8 %1, %0%{%2%}%{z%}" : "=v"(v) : "m"(memory<sizeof(V)>(from)), "Yk"(mask));
    } else {
        v = V{};
    }
}

// Writes a vector, or the first of its bytes.
template <class V>
BACKLINE_INLINE void store_some(const V &v, void *to, int64_t bytes) {
    if (bytes >= int64_t(sizeof v)) {
        std::memcpy(to, &v, sizeof v);
    } else if (bytes > 0) {
        const uint64_t mask = (uint64_t(1) << bytes) - 1;
        asm volatile("vmovdqu8 %1, %0%{%2%}" : "+m"(memory<sizeof(V)>(to)) : "v"(v), "Yk"(mask));
    }
}

// Elements of two vectors in turn.
template <int... I>
BACKLINE_INLINE void interleave(Words &low, Words &high, const Halves<64> &one, const Halves<64> &other, std::integer_sequence<int, I...>) {
    const Halves<64> first = __builtin_shufflevector(one, other, (I / 2 + I % 2 * 32)...);
    const Halves<64> second = __builtin_shufflevector(one, other, (16 + I / 2 + I % 2 * 32)...);
    std::memcpy(&low, &first, sizeof low);
    std::memcpy(&high, &second, sizeof high);
}
template <int... I>
BACKLINE_INLINE void interleave(Halves<64> &both, const Elements8 &one, const Elements8 &other, std::integer_sequence<int, I...>) {
    const auto mixed = __builtin_shufflevector(one, other, (I / 2 + I % 2 * 32)...);
    static_assert(sizeof mixed == sizeof both);
    std::memcpy(&both, &mixed, sizeof both);
}

// The terms that stand together, of 32 neighbours: 16 in `low`, the others in `high`. The next term lies `step` bytes behind; what is
// beyond the last of `terms`, which may be none, or of `count` neighbours, is zero.
template <int Size>
BACKLINE_INLINE void load_words(Words &low, Words &high, const char *from, int64_t step, int64_t terms, int64_t count) {
    Halves<64> one, other;
    if constexpr (Size == 2) {
        load_some(one, from, terms > 0 ? count * 2 : 0);
        load_some(other, from + step, terms > 1 ? count * 2 : 0);
    } else {
        Elements8 rows[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) load_some(rows[i], from + i * step, terms > i ? count : 0);
        interleave(one, rows[0], rows[1], std::make_integer_sequence<int, 64>{});
        interleave(other, rows[2], rows[3], std::make_integer_sequence<int, 64>{});
        // Pairs of bytes of one and the other in turn are the four terms.
    }
    interleave(low, high, one, other, std::make_integer_sequence<int, 32>{});
}

// Exchanges what stands above and below the diagonal of the blocks of 2 S by 2 S elements.
template <int S, int... I>
BACKLINE_INLINE void exchange(Words &one, Words &other, std::integer_sequence<int, I...>) {
    const Words upper = __builtin_shufflevector(one, other, (I & S ? 16 + I - S : I)...);
    other = __builtin_shufflevector(one, other, (I & S ? 16 + I : I + S)...);
    one = upper;
}
template <int S>
BACKLINE_INLINE void exchange_all(Words (&rows)[kTileRows]) {
#pragma GCC unroll 16
    for (int i = 0; i < kTileRows; ++i)
        if (!(i & S)) exchange<S>(rows[i], rows[i + S], std::make_integer_sequence<int, 16>{});
}

BACKLINE_INLINE void transpose(Words (&rows)[kTileRows], char *to) {
    exchange_all<8>(rows);
    exchange_all<4>(rows);
    exchange_all<2>(rows);
    exchange_all<1>(rows);
#pragma GCC unroll 16
    for (int i = 0; i < kTileRows; ++i) std::memcpy(to + i * kTileWidth, &rows[i], sizeof rows[i]);
}

// Rows of the first matrix in panels: `bytes` of each, `step` from one to the next.
BACKLINE_INLINE void pack_rows(int64_t bytes, int64_t step, int64_t rows, const char *from, char *to) {
    const int64_t pieces = pieces_of(bytes), whole = whole_panels(rows);
    for (int64_t row = 0; row < whole; row += kTileRows, from += kTileRows * step)
        for (int64_t k = 0; k < pieces; ++k, to += kTileBytes)
            for (int64_t i = 0; i < kTileRows; ++i) {
                Words v;
                load_some(v, from + i * step + k * kTileWidth, row + i < rows ? bytes - k * kTileWidth : 0);
                std::memcpy(to + i * kTileWidth, &v, sizeof v);
            }
}

// Columns of a second matrix whose elements lie a row apart, `step` bytes. The rows of a tile are read beside each other, all columns
// of them, before the next ones: they lie in other pages, where a processor's own prefetching begins anew.
template <int Size>
BACKLINE_INLINE void pack_from_rows(int64_t terms, int64_t step, int64_t columns, const char *from, char *to) {
    constexpr int64_t together = kWord / Size, rows = kWords * together;
    const int64_t pieces = pieces_of(terms * Size);
    for (int64_t k = 0; k < pieces; ++k, from += rows * step, to += kTileBytes) {
        char *tile = to;
        for (int64_t n = 0; n < columns; n += kPanel, tile += 2 * pieces * kTileBytes)
            for (int64_t i = 0; i < kWords; ++i) {
                Words low, high;
                load_words<Size>(low, high, from + i * together * step + n * Size, step, terms - k * rows - i * together, columns - n);
                std::memcpy(tile + i * kTileWidth, &low, sizeof low);
                std::memcpy(tile + pieces * kTileBytes + i * kTileWidth, &high, sizeof high);
            }
    }
}

// Columns of it whose elements are neighbours: `bytes` of each, `step` from one to the next.
BACKLINE_INLINE void pack_from_columns(int64_t bytes, int64_t step, int64_t columns, const char *from, char *to) {
    const int64_t pieces = pieces_of(bytes);
    for (int64_t n = 0; n < whole_panels(columns); n += kTileRows, from += kTileRows * step)
        for (int64_t k = 0; k < pieces; ++k, to += kTileBytes) {
            Words rows[kTileRows];
#pragma GCC unroll 16
            for (int i = 0; i < kTileRows; ++i)
                load_some(rows[i], from + i * step + k * kTileWidth, n + i < columns ? bytes - k * kTileWidth : 0);
            transpose(rows, to);
        }
}

}  // namespace backline
#endif
