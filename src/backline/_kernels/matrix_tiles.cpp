// Products of matrices of bfloat16, and of int8 with sums of int32, by AMX, the processor's unit for products of tiles. Plain functions over
// plain memory, which plans call by address as they call a vendor's.
//
// Rows are packed first, all of them once: 32 are a panel, two strips of 16 rows, each of tiles whose rows have 64 bytes. Columns are packed
// some at a time, as many as stay in the second cache: in a tile the terms that fill 32 bits stand together, of 16 columns. What is missing
// from whole tiles is zero in both, so that nothing of other memory is multiplied. The sums of 32 rows and columns are finished while they
// are in the nearest cache; of bfloat16 by what is added, an activation and one rounding. The unit takes subnormal numbers for zero.
#include "activations.hpp"
#include "kernels.hpp"
#include "tiles.hpp"

#include <algorithm>

namespace backline {
namespace {

// Written by libraries/kernels/matrix_tiles.py: eight bytes for each field, in this order.
struct TileProduct {
    int64_t is_bfloat16;  // else int8
    int64_t terms;        // of a sum
    int64_t by_columns;   // whether elements of a column are neighbours, else those of a row of the second matrix
    int64_t step;         // bytes to the next such neighbours
    int64_t target_step, added_step;  // bytes from one row to the next of results, and of what is added
    int64_t is_added, biased, activation;
};

#if defined(BACKLINE_TILES)

constexpr int64_t kPanel = 2 * kTileRows;  // rows, and columns, of sums that the tiles hold
constexpr int64_t kWord = 4;               // bytes of terms that stand together
constexpr int64_t kWords = kTileWidth / kWord;
constexpr int64_t kAhead = 16;             // bytes of a column that are asked for before they are packed

constexpr int64_t pieces_of(int64_t bytes) { return (bytes + kTileWidth - 1) / kTileWidth; }
constexpr int64_t whole_panels(int64_t n) { return (n + kPanel - 1) / kPanel * kPanel; }

template <int Bytes>
using Halves = typename VectorOf<uint16_t, Bytes>::Type;
using Words = VectorOf<uint32_t, kTileWidth>::Type;
using Elements8 = VectorOf<uint8_t, kPanel>::Type;

// Up to a vector of bytes, the others zero.
template <class V>
BACKLINE_INLINE void load_some(V &v, const char *from, int64_t bytes) {
    if (bytes >= int64_t(sizeof v)) {
        std::memcpy(&v, from, sizeof v);
    } else {
        v = V{};
        if (bytes > 0) std::memcpy(&v, from, size_t(bytes));
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
BACKLINE_AVX512 void pack_rows(int64_t bytes, int64_t step, int64_t rows, const char *from, char *to) {
    const int64_t pieces = pieces_of(bytes), whole = whole_panels(rows);
    for (int64_t row = 0; row < whole; ++row) {
        char *strip = to + row / kTileRows * pieces * kTileBytes + row % kTileRows * kTileWidth;
        for (int64_t k = 0; k < pieces; ++k) {
            Words v;
            load_some(v, from + row * step + k * kTileWidth, row < rows ? bytes - k * kTileWidth : 0);
            std::memcpy(strip + k * kTileBytes, &v, sizeof v);
        }
    }
}

// The same where elements of a column are neighbours: terms that stand together are transposed.
template <int Size>
BACKLINE_INLINE void pack_columns(int64_t bytes, int64_t step, int64_t rows, const char *from, char *to) {
    constexpr int64_t together = kWord / Size;
    const int64_t pieces = pieces_of(bytes), terms = bytes / Size;
    for (int64_t row = 0; row < rows; row += kPanel, from += kPanel * Size, to += 2 * pieces * kTileBytes)
        for (int64_t k = 0; k < pieces; ++k) {
            Words upper[kTileRows], lower[kTileRows];
#pragma GCC unroll 16
            for (int i = 0; i < kTileRows; ++i) {
                const int64_t term = (k * kWords + i) * together;
                load_words<Size>(upper[i], lower[i], from + term * step, step, terms - term, rows - row);
            }
            transpose(upper, to + k * kTileBytes);
            transpose(lower, to + (pieces + k) * kTileBytes);
        }
}
BACKLINE_AVX512 void pack_columns_2(int64_t bytes, int64_t step, int64_t rows, const char *from, char *to) {
    pack_columns<2>(bytes, step, rows, from, to);
}
BACKLINE_AVX512 void pack_columns_1(int64_t bytes, int64_t step, int64_t rows, const char *from, char *to) {
    pack_columns<1>(bytes, step, rows, from, to);
}

// Columns whose elements lie a row apart.
template <int Size>
BACKLINE_INLINE void pack_from_rows(const TileProduct &p, int64_t pieces, int64_t columns, const char *from, char *to) {
    constexpr int64_t together = kWord / Size, ahead = kAhead / Size;
    for (int64_t word = 0; word < pieces * kWords; ++word) {
        const int64_t term = word * together;
        const char *here = from + term * p.step;
        char *row = to + word / kWords * kTileBytes + word % kWords * kTileWidth;
        for (int64_t n = 0; n < columns; n += kPanel, row += 2 * pieces * kTileBytes) {
            // What comes next lies in other pages, where a processor's own prefetching begins anew.
            if (term + together + ahead <= p.terms)
#pragma GCC unroll 4
                for (int i = 0; i < together; ++i) __builtin_prefetch(here + (ahead + i) * p.step + n * Size);
            Words low, high;
            load_words<Size>(low, high, here + n * Size, p.step, p.terms - term, columns - n);
            std::memcpy(row, &low, sizeof low);
            std::memcpy(row + pieces * kTileBytes, &high, sizeof high);
        }
    }
}

// Columns whose elements are neighbours.
BACKLINE_INLINE void pack_from_columns(const TileProduct &p, int64_t pieces, int64_t bytes, int64_t columns, const char *from, char *to) {
    for (int64_t n = 0; n < whole_panels(columns); n += kTileRows, from += kTileRows * p.step)
        for (int64_t k = 0; k < pieces; ++k, to += kTileBytes) {
            Words rows[kTileRows];
#pragma GCC unroll 16
            for (int i = 0; i < kTileRows; ++i)
                load_some(rows[i], from + i * p.step + k * kTileWidth, n + i < columns ? bytes - k * kTileWidth : 0);
            transpose(rows, to);
        }
}

// A block of the result, of up to kPanel rows and columns, whose sums have been computed.
struct Block {
    int64_t rows, columns;
    const char *added;
    const float *bias;
    char *to;
};

BACKLINE_AVX512 void finish(const TileProduct &p, const Block &block, const char *sums) {
    constexpr int64_t line = kPanel * kWord;
    if (!p.is_bfloat16) {
        for (int64_t row = 0; row < block.rows; ++row) std::memcpy(block.to + row * p.target_step, sums + row * line, size_t(block.columns * kWord));
        return;
    }
    using Floats = Together<float, 64, 2>;
    using Results = ElementsTogether<NativeBfloat16, float, 64, 2>;
    static_assert(Floats::count == kPanel);
    for_activation(Activation(p.activation), [&](auto kind) __attribute__((always_inline)) {
        for (int64_t row = 0; row < block.rows; ++row) {
            typename Floats::Vector v, w;
            Floats::load(v, reinterpret_cast<const float *>(sums + row * line));
            if (p.is_added) {
                Results::load_some(w, reinterpret_cast<const NativeBfloat16 *>(block.added + row * p.added_step), block.columns);
                v += w;
            }
            if (p.biased) {
                Floats::load_some(w, block.bias, block.columns);
                v += w;
            }
            Activated<float, 64, 2>::template value<decltype(kind)::value>(v);
            Results::store_some(v, reinterpret_cast<NativeBfloat16 *>(block.to + row * p.target_step), block.columns);
        }
    });
}

// Some packed rows times some columns; `tiles` is workspace for these columns. A block is finished while the tiles of the next one are
// multiplied: the processor does both at once where one does not wait for the other.
template <TileNumbers Numbers>
BACKLINE_INLINE void multiply(const TileProduct &p, int64_t rows, int64_t columns, const char *packed, const char *matrix, const char *added,
                              const float *bias, char *tiles, char *to) {
    constexpr int size = Numbers == TileNumbers::bfloat16 ? 2 : 1;
    constexpr int64_t line = kPanel * kWord, wide = Numbers == TileNumbers::bfloat16 ? size : kWord;
    const int64_t pieces = pieces_of(p.terms * size), strip = pieces * kTileBytes;
    if (p.by_columns) pack_from_columns(p, pieces, p.terms * size, columns, matrix, tiles);
    else pack_from_rows<size>(p, pieces, columns, matrix, tiles);
    alignas(64) char sums[2][kPanel * line];
    Block last{};
    int turn = 0;
    const Tiles tiles_of_thread;
    for (int64_t row = 0; row < rows; row += kPanel, packed += 2 * strip)
        for (int64_t n = 0; n < columns; n += kPanel, turn ^= 1) {
            const char *here = tiles + n / kTileRows * strip;
            clear_sums();
            add_pieces<Numbers>(pieces, packed, packed + strip, kTileWidth, kTileBytes, here, here + strip);
            finish(p, last, sums[turn ^ 1]);
            store_sums(sums[turn], sums[turn] + kTileRows * line, kTileWidth, line);
            last = {std::min(rows - row, kPanel), std::min(columns - n, kPanel), added + row * p.added_step + n * size, bias + n,
                    to + row * p.target_step + n * wide};
        }
    finish(p, last, sums[turn ^ 1]);
}

BACKLINE_AVX512 void multiply_tiles(const TileProduct *p, int64_t rows, int64_t columns, const char *packed, const char *matrix,
                                    const char *added, const float *bias, char *tiles, char *to) {
    if (p->is_bfloat16) multiply<TileNumbers::bfloat16>(*p, rows, columns, packed, matrix, added, bias, tiles, to);
    else multiply<TileNumbers::int8>(*p, rows, columns, packed, matrix, added, bias, tiles, to);
}

#endif

bool bfloat16_tiles_permitted() {
#if defined(BACKLINE_TILES)
    return __builtin_cpu_supports("avx512bf16") && tiles_granted(kTilesOfBfloat16);
#else
    return false;
#endif
}

PyMethodDef methods[] = {
    function<bfloat16_tiles_permitted>("bfloat16_tiles_permitted",
                                       "Whether this process may multiply tiles of bfloat16 by AMX; asks the system for it."),
    {}};

}  // namespace

int add_matrix_tiles(PyObject *module, PyObject *addresses) {
    if (PyModule_AddFunctions(module, methods) < 0) return -1;
#if defined(BACKLINE_TILES)
    return add_kernels(addresses, {kernel("pack_tile_rows", pack_rows), kernel("pack_tile_columns_1", pack_columns_1),
                                   kernel("pack_tile_columns_2", pack_columns_2), kernel("multiply_tiles", multiply_tiles)});
#else
    return 0;
#endif
}

}  // namespace backline
