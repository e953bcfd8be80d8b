// Products of matrices of bfloat16, and of int8 with sums of int32, by AMX, the processor's unit for products of tiles. Plain functions over
// plain memory, which plans call by address as they call a vendor's.
//
// Rows are packed first, all of them once: 32 are a panel, two strips of 16 rows, each of tiles whose rows have 64 bytes. Columns are packed
// some at a time, as many as stay in the second cache: in a tile the terms that fill 32 bits stand together, of 16 columns. What is missing
// from whole tiles is zero in both, so that nothing of other memory is multiplied. The sums of 32 rows and columns are finished while they
// are in the nearest cache; of bfloat16 by what is added, an activation and one rounding. The unit takes subnormal numbers for zero.
#include "activations.hpp"
#include "kernels.hpp"
#include "tile_packing.hpp"

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

// Rows of the first matrix, `bytes` of each, `step` from one to the next, in panels.
BACKLINE_AVX512 void pack_tile_rows(int64_t bytes, int64_t step, int64_t rows, const char *from, char *to) {
    pack_rows(bytes, step, rows, from, to);
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
BACKLINE_AVX512 void pack_tile_columns_2(int64_t bytes, int64_t step, int64_t rows, const char *from, char *to) {
    pack_columns<2>(bytes, step, rows, from, to);
}
BACKLINE_AVX512 void pack_tile_columns_1(int64_t bytes, int64_t step, int64_t rows, const char *from, char *to) {
    pack_columns<1>(bytes, step, rows, from, to);
}

// A block of the result, of up to kPanel rows and columns, whose sums have been computed.
struct Block {
    int64_t rows, columns;
    const char *added;
    const float *bias;
    char *to;
};

// Rows of it, `first` and those after it up to `end`.
template <TileNumbers Numbers, Activation Kind>
BACKLINE_INLINE void finish(const TileProduct &p, const Block &block, const char *sums, int64_t first, int64_t end) {
    constexpr int64_t line = kPanel * kWord;
    for (int64_t row = first; row < end; ++row) {
        const char *from = sums + row * line;
        char *to = block.to + row * p.target_step;
        if constexpr (Numbers == TileNumbers::bfloat16) {
            using Floats = Together<float, 64, 2>;
            using Elements = ElementsTogether<NativeBfloat16, float, 64, 2>;
            static_assert(Floats::count == kPanel);
            typename Floats::Vector v, w;
            Halves<64> halves;
            Floats::load(v, reinterpret_cast<const float *>(from));
            if (p.is_added) {
                load_some(halves, block.added + row * p.added_step, block.columns * 2);
                Elements::load_some(w, reinterpret_cast<const NativeBfloat16 *>(&halves), kPanel);
                v += w;
            }
            if (p.biased) {
                load_some(w.one, block.bias, block.columns * 4);
                load_some(w.other, block.bias + kTileRows, (block.columns - kTileRows) * 4);
                v += w;
            }
            Activated<float, 64, 2>::template value<Kind>(v);
            if (block.columns == kPanel) {
                Elements::store_some(v, reinterpret_cast<NativeBfloat16 *>(to), kPanel);
            } else {
                Elements::store_some(v, reinterpret_cast<NativeBfloat16 *>(&halves), kPanel);
                store_some(halves, to, block.columns * 2);
            }
        } else {
            Words one, other;
            std::memcpy(&one, from, sizeof one);
            std::memcpy(&other, from + sizeof one, sizeof other);
            store_some(one, to, block.columns * kWord);
            store_some(other, to + sizeof one, (block.columns - kTileRows) * kWord);
        }
    }
}

// Some packed rows times some columns; `tiles` is workspace for these columns. A block is finished between the products of tiles of the
// next one: the processor does both at once.
template <TileNumbers Numbers, Activation Kind = Activation::none>
BACKLINE_INLINE void multiply(const TileProduct &p, int64_t rows, int64_t columns, const char *packed, const char *matrix, const char *added,
                              const float *bias, char *tiles, char *to) {
    constexpr int size = Numbers == TileNumbers::bfloat16 ? 2 : 1;
    constexpr int64_t line = kPanel * kWord, wide = Numbers == TileNumbers::bfloat16 ? size : kWord;
    const int64_t pieces = pieces_of(p.terms * size), strip = pieces * kTileBytes;
    if (p.by_columns) pack_from_columns(p.terms * size, p.step, columns, matrix, tiles);
    else pack_from_rows<size>(p.terms, p.step, columns, matrix, tiles);
    alignas(64) char sums[2][kPanel * line];
    const int64_t share = (kPanel + 4 * pieces - 1) / (4 * pieces);  // rows that are finished after each product
    Block last{};
    int turn = 0;
    const Tiles tiles_of_thread;
    for (int64_t row = 0; row < rows; row += kPanel, packed += 2 * strip)
        for (int64_t n = 0; n < columns; n += kPanel, turn ^= 1) {
            const char *here = tiles + n / kTileRows * strip;
            int64_t done = 0;
            clear_sums();
            add_pieces<Numbers>(pieces, packed, packed + strip, kTileWidth, kTileBytes, here, here + strip, [&]() __attribute__((always_inline)) {
                if (done >= last.rows) return;
                const int64_t end = std::min(done + share, last.rows);
                finish<Numbers, Kind>(p, last, sums[turn ^ 1], done, end);
                done = end;
            });
            store_sums(sums[turn], sums[turn] + kTileRows * line, kTileWidth, line);
            last = {std::min(rows - row, kPanel), std::min(columns - n, kPanel), added + row * p.added_step + n * size, bias + n,
                    to + row * p.target_step + n * wide};
        }
    finish<Numbers, Kind>(p, last, sums[turn ^ 1], 0, last.rows);
}

BACKLINE_AVX512 void multiply_tiles(const TileProduct *p, int64_t rows, int64_t columns, const char *packed, const char *matrix,
                                    const char *added, const float *bias, char *tiles, char *to) {
    if (p->is_bfloat16)
        for_activation(Activation(p->activation), [&](auto kind) __attribute__((always_inline)) {
            multiply<TileNumbers::bfloat16, decltype(kind)::value>(*p, rows, columns, packed, matrix, added, bias, tiles, to);
        });
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
    return add_kernels(addresses, {kernel("pack_tile_rows", pack_tile_rows), kernel("pack_tile_columns_1", pack_tile_columns_1),
                                   kernel("pack_tile_columns_2", pack_tile_columns_2), kernel("multiply_tiles", multiply_tiles)});
#else
    return 0;
#endif
}

}  // namespace backline
