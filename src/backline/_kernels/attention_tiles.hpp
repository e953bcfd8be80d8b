// The two products of an attention of bfloat16 by AMX, with sums of float32. Weights are rounded to bfloat16 for the second one, but not
// for their sum; the largest of a row is 1, and exact.
#pragma once
#include "attention_halves.hpp"
#include "halves.hpp"
#include "tile_packing.hpp"

#if defined(BACKLINE_TILES)
namespace backline {

// Memory of one thread, for all of which `take` returns a place.
template <class Take>
void take_tiles(const Attention &p, AttentionTiles &at, Take take) {
    const int64_t rows = whole_panels(p.rows), dims = pieces_of(2 * p.dim) * kTileWidth, keys = pieces_of(2 * p.tile) * kTileWidth;
    at.query = take(rows * dims);
    at.key = take(whole_panels(p.tile) * dims);
    at.value = take(whole_panels(p.out_dim) * keys);
    at.weights = take(kPanel * keys);
    at.row = take(p.out_dim * int64_t(sizeof(float)));
}

struct TileProducts : HeadOfHalves {
    const AttentionTiles &at;

    BACKLINE_INLINE void take_rows(const char *query) { pack_rows(2 * p.dim, p.query[2], count, query, work + at.query); }

    BACKLINE_INLINE void scores(int64_t from, int64_t width, float *to) {
        const int64_t strip = pieces_of(2 * p.dim) * kTileBytes;
        pack_from_columns(2 * p.dim, p.key[2], width, keys + from * p.key[2], work + at.key);
        const Tiles tiles_of_thread;
        float *last = nullptr;
        for (int64_t row = 0; row < count; row += kPanel)
            for (int64_t n = 0; n < width; n += kPanel) {
                const char *rows = work + at.query + row / kTileRows * strip, *columns = work + at.key + n / kTileRows * strip;
                clear_sums();
                add_pieces<TileNumbers::bfloat16>(strip / kTileBytes, rows, rows + strip, kTileWidth, kTileBytes, columns, columns + strip);
                scale(last);  // while the tiles of the next block are multiplied
                last = to + row * ld + n;
                store(last, ld);
            }
        scale(last);
    }

    BACKLINE_INLINE void take_values(int64_t from, int64_t width) {
        first = from;
        pack_from_rows<2>(width, p.value[2], p.out_dim, values + from * p.value[2], work + at.value);
    }

    // All keys of the tile.
    BACKLINE_INLINE void add(const float *weights, int64_t width, bool begun, float *out) {
        const int64_t strip = pieces_of(2 * width) * kTileBytes, pieces = strip / kTileBytes;
        const Tiles tiles_of_thread;
        for (int64_t row = 0; row < count; row += kPanel) {
            char *rows = work + at.weights;
            for (int64_t i = 0; i < kPanel; ++i)
                round(weights + (row + i) * ld, row + i < count ? width : 0, pieces, rows + i / kTileRows * strip + i % kTileRows * kTileWidth);
            for (int64_t n = 0; n < p.out_dim; n += kPanel) {
                const char *columns = work + at.value + n / kTileRows * strip;
                float *target = out + row * ldo + n;
                if (begun) load_sums(reinterpret_cast<char *>(target), reinterpret_cast<char *>(target + kTileRows * ldo), kTileWidth, ldo * 4);
                else clear_sums();
                add_pieces<TileNumbers::bfloat16>(pieces, rows, rows + strip, kTileWidth, kTileBytes, columns, columns + strip);
                store(target, ldo);
            }
        }
    }

    // Some keys of the tile, one after the other: where there are values that are not finite.
    BACKLINE_INLINE void add_some(const float *weights, int64_t from, int64_t to, float *out) {
        for (int64_t j = from; j < to; ++j) {
            const float *v = value(j);
            for (int64_t i = 0; i < count; ++i)
                for (int64_t d = 0; d < p.out_dim; ++d) out[i * ldo + d] += weights[i * ld + j] * v[d];
        }
    }

    const float *value(int64_t j) const { return HeadOfHalves::value(j, at.row); }

  private:
    BACKLINE_INLINE static void store(float *to, int64_t row) {
        store_sums(reinterpret_cast<char *>(to), reinterpret_cast<char *>(to + kTileRows * row), kTileWidth, row * int64_t(sizeof *to));
    }

    // A block of scores, which are sums of products so far.
    BACKLINE_INLINE void scale(float *block) const {
        using L = Together<float, 64, 2>;
        static_assert(L::count == kPanel);
        const float factor = float(p.scale);
        for (int64_t row = 0; block && row < kPanel; ++row) {
            typename L::Vector v;
            L::load(v, block + row * ld);
            L::store(v * factor, block + row * ld);
        }
    }

    // A row of weights in tiles.
    BACKLINE_INLINE static void round(const float *weights, int64_t width, int64_t pieces, char *to) {
        using L = Together<float, 64, 2>;
        using Results = ElementsTogether<NativeBfloat16, float, 64, 2>;
        for (int64_t k = 0; k < pieces; ++k, to += kTileBytes) {
            typename L::Vector v{};
            if (k * L::count < width) L::load_some(v, weights + k * L::count, width - k * L::count);
            Results::store_some(v, reinterpret_cast<NativeBfloat16 *>(to), L::count);
        }
    }
};

}  // namespace backline
#endif
