// AMX, the processor's unit for products of tiles: its instructions, and the system's permission to use it.
#pragma once
#include "targets.hpp"

#include <cstdint>

#if defined(__x86_64__) && defined(__linux__) && defined(__has_include)
#if __has_include(<amxint8intrin.h>)
#define BACKLINE_TILES
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace backline {

// What is asked of a processor beside AMX-TILE: bits of EDX in leaf 7 of cpuid.
constexpr unsigned kTilesOfBfloat16 = 1u << 22, kTilesOfInt8 = 1u << 25;

#if defined(BACKLINE_TILES)

constexpr int64_t kTileRows = 16, kTileWidth = 64;     // of a tile, the latter in bytes
constexpr int64_t kTileBytes = kTileRows * kTileWidth;

struct alignas(64) TileSizes {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {kTileWidth, kTileWidth, kTileWidth, kTileWidth, kTileWidth, kTileWidth, kTileWidth, kTileWidth};
    uint8_t rows[16] = {kTileRows, kTileRows, kTileRows, kTileRows, kTileRows, kTileRows, kTileRows, kTileRows};
};

// While one is there, the eight tiles of this thread are whole ones.
class Tiles {
  public:
    Tiles() {
        const TileSizes sizes;
        __asm__ volatile("ldtilecfg %0" ::"m"(sizes) : "memory");
    }
    ~Tiles() { __asm__ volatile("tilerelease" ::: "memory"); }
    Tiles(const Tiles &) = delete;
    Tiles &operator=(const Tiles &) = delete;
};

// The compiler's own functions do not say that they read and write memory.
#define LOAD(tile, from, step) __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(from), "r"(int64_t(step)) : "memory")
#define STORE(tile, to, step) __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(to), "r"(int64_t(step)) : "memory")
#define CLEAR(tile) __asm__ volatile("tilezero %%tmm" #tile ::: "memory")
#define ADD(instruction, sums, rows, columns) \
    __asm__ volatile(instruction " %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(rows), "i"(columns) : "memory")

enum class TileNumbers { uint8, int8, bfloat16 };  // of the rows; columns are int8, or bfloat16

template <TileNumbers Numbers, int Sums, int Rows, int Columns>
BACKLINE_INLINE void add_product() {
    if constexpr (Numbers == TileNumbers::bfloat16) ADD("tdpbf16ps", Sums, Rows, Columns);
    else if constexpr (Numbers == TileNumbers::int8) ADD("tdpbssd", Sums, Rows, Columns);
    else ADD("tdpbusd", Sums, Rows, Columns);
}

// Sums of two tiles of rows times two tiles of columns, in the tiles 0 to 3.
BACKLINE_INLINE void clear_sums() {
    CLEAR(0);
    CLEAR(1);
    CLEAR(2);
    CLEAR(3);
}

// Reads them, as `store_sums` writes them.
BACKLINE_INLINE void load_sums(const char *rows, const char *more_rows, int64_t beside, int64_t row) {
    LOAD(0, rows, row);
    LOAD(1, rows + beside, row);
    LOAD(2, more_rows, row);
    LOAD(3, more_rows + beside, row);
}

// Adds what `pieces` tiles give: rows lie `step` bytes apart, the next piece of them `along` bytes behind. Tiles of columns are dense.
// `between` is called after each product, four times a piece: what does not wait for the products takes less time if it stands between
// them than behind them, a fifth to a third of the whole where the unit is slow because others share it.
template <TileNumbers Numbers, class Between>
BACKLINE_INLINE void add_pieces(int64_t pieces, const void *rows, const void *more_rows, int64_t step, int64_t along, const void *columns,
                                const void *more_columns, const Between &between) {
    const char *a = static_cast<const char *>(rows), *b = static_cast<const char *>(more_rows);
    const char *c = static_cast<const char *>(columns), *d = static_cast<const char *>(more_columns);
    for (int64_t k = 0; k < pieces; ++k, a += along, b += along, c += kTileBytes, d += kTileBytes) {
        LOAD(4, a, step);
        LOAD(6, c, kTileWidth);
        LOAD(7, d, kTileWidth);
        LOAD(5, b, step);
        add_product<Numbers, 0, 4, 6>();
        between();
        add_product<Numbers, 1, 4, 7>();
        between();
        add_product<Numbers, 2, 5, 6>();
        between();
        add_product<Numbers, 3, 5, 7>();
        between();
    }
}

template <TileNumbers Numbers>
BACKLINE_INLINE void add_pieces(int64_t pieces, const void *rows, const void *more_rows, int64_t step, int64_t along, const void *columns,
                                const void *more_columns) {
    add_pieces<Numbers>(pieces, rows, more_rows, step, along, columns, more_columns, [] {});
}

// Writes them: `row` bytes from one row to the next, the second tile of columns `beside` bytes behind the first.
BACKLINE_INLINE void store_sums(char *rows, char *more_rows, int64_t beside, int64_t row) {
    STORE(0, rows, row);
    STORE(1, rows + beside, row);
    STORE(2, more_rows, row);
    STORE(3, more_rows + beside, row);
}

#undef LOAD
#undef STORE
#undef CLEAR
#undef ADD

#endif

// Whether the processor multiplies tiles of such numbers, and Linux grants their registers, for which a process has to ask once.
inline bool tiles_granted([[maybe_unused]] unsigned numbers) {
#if defined(BACKLINE_TILES)
    constexpr int permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM and what is asked for, of Linux
    constexpr unsigned tile = 1u << 24;                 // AMX-TILE
    unsigned a = 7, b, c = 0, d;
    if (best_level() < 2) return false;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    return (d & tile) && (d & numbers) && syscall(SYS_arch_prctl, permission, tile_data) == 0;
#else
    return false;
#endif
}

}  // namespace backline
