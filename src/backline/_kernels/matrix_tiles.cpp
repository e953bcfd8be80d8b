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
    if (p.by_columns) pack_from_columns(p.terms * size, p.step, columns, matrix, tiles);
    else pack_from_rows<size>(p.terms, p.step, columns, matrix, tiles);
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
    return add_kernels(addresses, {kernel("pack_tile_rows", pack_tile_rows), kernel("pack_tile_columns_1", pack_tile_columns_1),
                                   kernel("pack_tile_columns_2", pack_tile_columns_2), kernel("multiply_tiles", multiply_tiles)});
#else
    return 0;
#endif
}

}  // namespace backline
