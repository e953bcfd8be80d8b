// Products of matrices of bfloat16 by AMX, the processor's unit for products of tiles: the sums of 32 rows are finished, by what is
// added, an activation and one rounding, while they are in the nearest cache. Plain functions over plain memory, which plans call by
// address as they call a vendor's.
//
// Rows are packed first, all of them once: 32 are a panel, two strips of 16 rows, each of tiles of 32 elements. Columns are packed some
// at a time, as many as stay in the second cache: in a tile two elements of each of 16 columns stand together. What is missing from whole
// tiles is zero in both, so that nothing of other memory is multiplied. The unit takes subnormal numbers for zero.
#include "activations.hpp"
#include "kernels.hpp"
#include "tiles.hpp"

#include <algorithm>

namespace backline {
namespace {

// Written by libraries/kernels/bfloat16_tiles.py: eight bytes for each field, in this order.
struct TileProduct {
    int64_t terms;       // of a sum
    int64_t by_columns;  // whether elements of a column are neighbours, else those of a row of the second matrix
    int64_t step;        // bytes to the next such neighbours
    int64_t target_step, added_step;  // bytes from one row to the next of results, and of what is added
    int64_t is_added, biased, activation;
};

#if defined(BACKLINE_TILES)

constexpr int64_t kTerms = kTileWidth / 2;        // of a tile
constexpr int64_t kPanel = 2 * kTileRows;         // rows, and columns, of sums that the tiles hold
constexpr int64_t kAhead = 8;                     // rows of the second matrix that are asked for before they are packed

constexpr int64_t pieces_of(int64_t terms) { return (terms + kTerms - 1) / kTerms; }

typedef uint16_t Halves __attribute__((vector_size(64)));
typedef uint32_t Pairs __attribute__((vector_size(64)));

// Up to a vector of elements, the others zero.
template <class V>
BACKLINE_INLINE void load_some(V &v, const uint16_t *from, int64_t count) {
    if (count >= kTerms) {
        std::memcpy(&v, from, sizeof v);
    } else {
        v = V{};
        if (count > 0) std::memcpy(&v, from, size_t(count) * sizeof *from);
    }
}

template <int... I>
BACKLINE_INLINE void interleave(Halves &low, Halves &high, const Halves &one, const Halves &other, std::integer_sequence<int, I...>) {
    low = __builtin_shufflevector(one, other, (I / 2 + I % 2 * 32)...);
    high = __builtin_shufflevector(one, other, (16 + I / 2 + I % 2 * 32)...);
}

// Exchanges what stands above and below the diagonal of the blocks of 2 S by 2 S elements.
template <int S, int... I>
BACKLINE_INLINE void exchange(Pairs &one, Pairs &other, std::integer_sequence<int, I...>) {
    const Pairs upper = __builtin_shufflevector(one, other, (I & S ? 16 + I - S : I)...);
    other = __builtin_shufflevector(one, other, (I & S ? 16 + I : I + S)...);
    one = upper;
}
template <int S>
BACKLINE_INLINE void exchange_all(Pairs (&rows)[kTileRows]) {
#pragma GCC unroll 16
    for (int i = 0; i < kTileRows; ++i)
        if (!(i & S)) exchange<S>(rows[i], rows[i + S], std::make_integer_sequence<int, 16>{});
}

BACKLINE_INLINE void transpose(Pairs (&rows)[kTileRows], char *to) {
    exchange_all<8>(rows);
    exchange_all<4>(rows);
    exchange_all<2>(rows);
    exchange_all<1>(rows);
#pragma GCC unroll 16
    for (int i = 0; i < kTileRows; ++i) std::memcpy(to + i * kTileWidth, &rows[i], sizeof rows[i]);
}

// Rows of the first matrix, whose elements are neighbours, in panels.
BACKLINE_AVX512 void pack_rows(int64_t terms, int64_t step, int64_t rows, const char *from, char *to) {
    const int64_t pieces = pieces_of(terms), whole = (rows + kPanel - 1) / kPanel * kPanel;
    for (int64_t row = 0; row < whole; ++row) {
        char *strip = to + row / kTileRows * pieces * kTileBytes + row % kTileRows * kTileWidth;
        const uint16_t *source = reinterpret_cast<const uint16_t *>(from + row * step);
        for (int64_t k = 0; k < pieces; ++k) {
            Halves v;
            load_some(v, source + k * kTerms, row < rows ? terms - k * kTerms : 0);
            std::memcpy(strip + k * kTileBytes, &v, sizeof v);
        }
    }
}

// The same where elements of a column are neighbours, and those of a row lie `step` bytes apart: two columns of a panel become pairs, and
// these are transposed.
BACKLINE_AVX512 void pack_columns(int64_t terms, int64_t step, int64_t rows, const char *from, char *to) {
    const int64_t pieces = pieces_of(terms);
    for (int64_t row = 0; row < rows; row += kPanel, from += kPanel * int64_t(sizeof(uint16_t)), to += 2 * pieces * kTileBytes)
        for (int64_t k = 0; k < pieces; ++k) {
            Pairs upper[kTileRows], lower[kTileRows];
#pragma GCC unroll 16
            for (int i = 0; i < kTileRows; ++i) {
                const int64_t term = k * kTerms + 2 * i;
                Halves one, other, low, high;
                load_some(one, reinterpret_cast<const uint16_t *>(from + term * step), term < terms ? rows - row : 0);
                load_some(other, reinterpret_cast<const uint16_t *>(from + (term + 1) * step), term + 1 < terms ? rows - row : 0);
                interleave(low, high, one, other, std::make_integer_sequence<int, 32>{});
                std::memcpy(&upper[i], &low, sizeof low);
                std::memcpy(&lower[i], &high, sizeof high);
            }
            transpose(upper, to + k * kTileBytes);
            transpose(lower, to + (pieces + k) * kTileBytes);
        }
}

// Columns whose elements lie a row apart: two rows at a time.
BACKLINE_INLINE void pack_from_rows(const TileProduct &p, int64_t columns, const char *from, char *to) {
    const int64_t pieces = pieces_of(p.terms);
    for (int64_t k = 0; k < pieces * kTerms; k += 2) {
        const uint16_t *one = reinterpret_cast<const uint16_t *>(from + k * p.step);
        const uint16_t *other = reinterpret_cast<const uint16_t *>(from + (k + 1) * p.step);
        char *row = to + k / kTerms * kTileBytes + k % kTerms / 2 * kTileWidth;
        for (int64_t n = 0; n < columns; n += kPanel, row += 2 * pieces * kTileBytes) {
            // What comes next lies in other pages, where a processor's own prefetching begins anew.
            if (k + kAhead + 1 < p.terms) {
                __builtin_prefetch(reinterpret_cast<const char *>(one + n) + kAhead * p.step);
                __builtin_prefetch(reinterpret_cast<const char *>(other + n) + kAhead * p.step);
            }
            Halves first, second, low, high;
            load_some(first, one + n, k < p.terms ? columns - n : 0);
            load_some(second, other + n, k + 1 < p.terms ? columns - n : 0);
            interleave(low, high, first, second, std::make_integer_sequence<int, 32>{});
            std::memcpy(row, &low, sizeof low);
            std::memcpy(row + pieces * kTileBytes, &high, sizeof high);
        }
    }
}

// Columns whose elements are neighbours: pairs of them are transposed.
BACKLINE_INLINE void pack_from_columns(const TileProduct &p, int64_t columns, const char *from, char *to) {
    const int64_t pieces = pieces_of(p.terms), whole = (columns + kPanel - 1) / kPanel * kPanel;
    for (int64_t n = 0; n < whole; n += kTileRows, from += kTileRows * p.step)
        for (int64_t k = 0; k < pieces; ++k, to += kTileBytes) {
            Pairs rows[kTileRows];
#pragma GCC unroll 16
            for (int i = 0; i < kTileRows; ++i)
                load_some(rows[i], reinterpret_cast<const uint16_t *>(from + i * p.step) + k * kTerms, n + i < columns ? p.terms - k * kTerms : 0);
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

BACKLINE_AVX512 void finish(const TileProduct &p, const Block &block, const float *sums) {
    using Floats = Together<float, 64, 2>;
    using Results = ElementsTogether<NativeBfloat16, float, 64, 2>;
    static_assert(Floats::count == kPanel);
    for_activation(Activation(p.activation), [&](auto kind) __attribute__((always_inline)) {
        for (int64_t row = 0; row < block.rows; ++row) {
            typename Floats::Vector v, w;
            Floats::load(v, sums + row * kPanel);
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
BACKLINE_AVX512 void multiply(const TileProduct *p, int64_t rows, int64_t columns, const char *packed, const char *matrix, const char *added,
                              const float *bias, char *tiles, char *to) {
    const int64_t pieces = pieces_of(p->terms), strip = pieces * kTileBytes;
    if (p->by_columns) pack_from_columns(*p, columns, matrix, tiles);
    else pack_from_rows(*p, columns, matrix, tiles);
    alignas(64) float sums[2][kPanel * kPanel];
    constexpr int64_t line = kPanel * int64_t(sizeof(float));
    Block last{};
    int turn = 0;
    const Tiles tiles_of_thread;
    for (int64_t row = 0; row < rows; row += kPanel, packed += 2 * strip)
        for (int64_t n = 0; n < columns; n += kPanel, turn ^= 1) {
            const char *here = tiles + n / kTileRows * strip;
            clear_sums();
            add_pieces<TileNumbers::bfloat16>(pieces, packed, packed + strip, kTileWidth, kTileBytes, here, here + strip);
            finish(*p, last, sums[turn ^ 1]);
            char *target = reinterpret_cast<char *>(sums[turn]);
            store_sums(target, target + kTileRows * line, kTileWidth, line);
            const int64_t item = int64_t(sizeof(uint16_t)) * n;
            last = {std::min(rows - row, kPanel), std::min(columns - n, kPanel), added + row * p->added_step + item, bias + n,
                    to + row * p->target_step + item};
        }
    finish(*p, last, sums[turn ^ 1]);
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

int add_bfloat16_tiles(PyObject *module, PyObject *addresses) {
    if (PyModule_AddFunctions(module, methods) < 0) return -1;
#if defined(BACKLINE_TILES)
    return add_kernels(addresses, {kernel("pack_tile_rows", pack_rows), kernel("pack_tile_columns", pack_columns), kernel("multiply_tiles", multiply)});
#else
    return 0;
#endif
}

}  // namespace backline
