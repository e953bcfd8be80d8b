// Convolutions of int8 by AMX, the processor's unit for products of tiles: each tile of sums is brought to its scale while it is in the
// nearest cache. Plain functions over plain memory, which plans call by address as they call a vendor's.
//
// Images have their channels last, so that what a row of the window meets is one run of bytes: 16 neighbouring points are a tile whose
// rows begin `stride` points after each other, and no columns are spread out. Sums of integers are exact, in whatever order.
#include "kernels.hpp"
#include "requantize_vectors.hpp"
#include "tiles.hpp"

#include <algorithm>

namespace backline {
namespace {

// In the constant memory of a plan, one 64-bit integer after the other.
struct TileImages {
    int64_t channels, height, width;
    int64_t window_rows, window_width;
    int64_t stride_y, stride_x;
    int64_t before_y, before_x;  // points of padding
    int64_t points;              // of a row of the result
    int64_t outs;                // a multiple of 16
    int64_t is_signed;           // 1: int8, 0: uint8
};

#if defined(BACKLINE_TILES)

// Two tiles of 16 points each, times two tiles of 16 outputs each: `pitch` bytes from one line of the image to the next, `step` bytes
// from one point to the next, `row` bytes of sums that one point has.
template <TileNumbers Points, class Between>
BACKLINE_INLINE void tile_sums(const uint8_t *first, const uint8_t *second, int64_t step, int64_t lines, int64_t pitch,
                               int64_t pieces, const int8_t *one, const int8_t *other, char *sums, char *more, int64_t beside, int64_t row,
                               const Between &between) {
    clear_sums();
    for (int64_t y = 0; y < lines; ++y, first += pitch, second += pitch, one += pieces * kTileBytes, other += pieces * kTileBytes)
        add_pieces<Points>(pieces, first, second, step, kTileWidth, one, other, between);
    store_sums(sums, more, beside, row);
}

// Sums of points of the result that follow each other, on their way to integers.
struct Sums {
    const int32_t *from;
    uint8_t *to;
    int64_t left;    // that are not done yet
    int64_t output;  // that the first of them belongs to
};

// As many of them, times kTogether; `left` is a multiple of it.
template <bool Far>
BACKLINE_AVX512 __attribute__((noinline)) void finish_some(const Layer &g, const Numbers &n, const Scales &by, Sums &sums, int64_t count) {
    for (; count > 0 && sums.left > 0; --count) {
        rescale_together<Far>(g, n, by.from(sums.output), sums.from, sums.to);
        sums = {sums.from + kTogether, sums.to + kTogether, sums.left - kTogether, sums.output + kTogether};
        while (sums.output >= g.outs) sums.output -= g.outs;
    }
}

// Lines of an image from `top` on, with the zero point around them.
void copy_lines(const TileImages &g, const uint8_t *image, uint8_t zero, int64_t top, int64_t count, int64_t wide, uint8_t *to) {
    const size_t item = size_t(g.channels), pitch = size_t(wide) * item, left = size_t(std::min(g.before_x, wide)) * item;
    const size_t middle = size_t(std::clamp(wide - g.before_x, int64_t(0), g.width)) * item;
    for (int64_t y = top; y < top + count; ++y, to += pitch) {
        if (y < 0 || y >= g.height) {
            std::memset(to, zero, pitch);
            continue;
        }
        std::memset(to, zero, left);
        std::memcpy(to + left, image + size_t(y * g.width) * item, middle);
        std::memset(to + left + middle, zero, pitch - left - middle);
    }
}

// Rows of one image's result, `first` and those after it. `weights` are tiles: of 16 outputs after the other, of each the rows of the
// window, of each the pieces of 64 bytes of its run, with zeros at the end; in a tile four bytes of each output stand together.
// `lines` and `sums`, twice those of 32 points, are workspace; what lies behind the last line is multiplied by zero, or is no point of the
// result. The sums of 32 points are brought to their scale between the products of the next ones: the processor does both at once.
template <TileNumbers Points>
void convolve(const TileImages &g, const Layer &layer, const Numbers &numbers, const uint8_t *image, const int8_t *weights,
              uint8_t zero, uint8_t *lines, char *sums, uint8_t *to, int64_t first, int64_t rows) {
    const int64_t wide = (g.points - 1) * g.stride_x + g.window_width, pitch = wide * g.channels;
    const int64_t pieces = (g.window_width * g.channels + kTileWidth - 1) / kTileWidth, step = g.stride_x * g.channels;
    const int64_t across = (g.points + kTileRows - 1) / kTileRows, tiles = across * rows, own = g.window_rows * pieces * kTileBytes;
    const int64_t row = g.outs * int64_t(sizeof(int32_t)), blocks = g.outs / kTileRows;
    copy_lines(g, image, zero, first * g.stride_y - g.before_y, (rows - 1) * g.stride_y + g.window_rows, wide, lines);
    const Tiles tiles_of_thread;
    auto start_of = [&](int64_t tile) { return lines + tile / across * g.stride_y * pitch + tile % across * kTileRows * step; };
    auto result_of = [&](int64_t tile) { return to + (tile / across * g.points + tile % across * kTileRows) * g.outs; };
    auto count_of = [&](int64_t tile) { return std::min(kTileRows, g.points - tile % across * kTileRows); };
    // By vectors, of outputs that follow each other in the table of what is done with them.
    const bool by_vectors = layer.rounding == kExactly && numbers.mode == kPlain && numbers.vectors != kNone && layer.level == 2 &&
                            (g.outs % kTogether == 0 || g.outs * layer.repeats >= g.outs + kTogether);
    const Scales by = scales_of(layer, numbers);
    auto some = numbers.vectors == kFar ? finish_some<true> : finish_some<false>;
    const int64_t products = 4 * pieces * g.window_rows * ((blocks + 1) / 2);
    const int64_t share = (2 * kTileRows * g.outs / kTogether + products - 1) / products;  // after each, to have done before the last
    Sums last{};
    auto finish = [&](char *from, uint8_t *result, int64_t points) {
        last = {reinterpret_cast<const int32_t *>(from), result, points * g.outs, 0};
        if (by_vectors && last.left % kTogether == 0) return;
        quantized_finish(&layer, &numbers, last.from, nullptr, result, points);
        last.left = 0;
    };
    for (int64_t tile = 0, turn = 0; tile < tiles; tile += 2, turn ^= 1) {
        const int64_t next = std::min(tile + 1, tiles - 1);  // the last one may be computed twice
        char *const here = sums + turn * 2 * kTileRows * row, *const more = here + kTileRows * row;
        for (int64_t n = 0; n < blocks; n += 2) {
            const int64_t m = n + 1 < blocks ? 1 : 0;
            tile_sums<Points>(start_of(tile), start_of(next), step, g.window_rows, pitch, pieces, weights + n * own,
                              weights + (n + m) * own, here + n * kTileWidth, more + n * kTileWidth, m * kTileWidth, row, [&] {
                                  if (last.left) some(layer, numbers, by, last, share);
                              });
        }
        const int64_t count = count_of(tile), others = next > tile ? count_of(next) : 0;
        if (count == kTileRows) {  // the points of both follow each other
            finish(here, result_of(tile), count + others);
        } else {
            finish(here, result_of(tile), count);
            some(layer, numbers, by, last, last.left);
            if (others) finish(more, result_of(next), others);
        }
    }
    some(layer, numbers, by, last, last.left);
}

void convolve_item(const TileImages *g, const Layer *layer, const Numbers *numbers, const uint8_t *image, const int8_t *weights,
                   const int32_t *zero, uint8_t *lines, char *sums, uint8_t *to, int64_t first, int64_t rows) {
    auto run = g->is_signed ? convolve<TileNumbers::int8> : convolve<TileNumbers::uint8>;
    run(*g, *layer, *numbers, image, weights, uint8_t(*zero), lines, sums, to, first, rows);
}

#endif

bool tiles_permitted() { return tiles_granted(kTilesOfInt8); }

PyMethodDef methods[] = {
    function<tiles_permitted>("tiles_permitted", "Whether this process may multiply tiles of int8 by AMX; asks the system for it."),
    {}};

}  // namespace

int add_int8_tiles(PyObject *module, PyObject *addresses) {
    if (PyModule_AddFunctions(module, methods) < 0) return -1;
#if defined(BACKLINE_TILES)
    return add_kernels(addresses, {kernel("conv_tiles", convolve_item)});
#else
    return 0;
#endif
}

}  // namespace backline
