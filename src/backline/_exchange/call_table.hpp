// The table that calls are noted in: how often each routine was called with the same sizes, and how long that took.
//
// It has a fixed size and is written to without a lock, so that calls of any thread, with or without the GIL, and of a forked child
// never wait. When it fills up, sizes are rounded; what does not fit even then is counted by routine. It holds no addresses and begins
// as zeros, so it may lie in a file that is mapped: then it has all that a process noted, however that ends, and what the children
// that it forked noted, too.
#pragma once
#include "loaded_objects.hpp"

#if BACKLINE_HAS_EXCHANGE
#include <atomic>
#include <cstdint>
#include <cstring>

namespace backline {

constexpr int kCells = 8192, kCrowded = kCells * 3 / 4, kNames = 8192, kLetters = 64, kProbes = 64, kIntegers = 12, kFlags = 8;

struct Total {
    std::atomic<uint64_t> calls{0}, nanoseconds{0};
    void add(uint64_t spent) {
        calls.fetch_add(1, std::memory_order_relaxed);
        nanoseconds.fetch_add(spent, std::memory_order_relaxed);
    }
};

enum State : int32_t { kEmpty, kWriting, kReady };

// A routine, as Python names it.
struct alignas(64) Routine {
    std::atomic<int32_t> state{kEmpty};
    char name[kLetters] = {};
    Total unsized, queries;  // calls without a row of their own, and questions for the size of a workspace
};

struct Key {
    int32_t routine = 0, rounded = 0;
    char flags[kFlags] = {};
    int32_t integers[kIntegers] = {};
    bool operator==(const Key &other) const { return std::memcmp(this, &other, sizeof(Key)) == 0; }
};
static_assert(sizeof(Key) == 8 + kFlags + 4 * kIntegers, "no padding is compared");

// Calls of a routine with the same flags and sizes.
struct alignas(128) Cell {
    std::atomic<int32_t> state{kEmpty};
    Key key;
    Total total;
    std::atomic<uint64_t> least{0};  // nanoseconds of the shortest; 0 before the first has ended
    void add(uint64_t spent) {
        total.add(spent);
        uint64_t shortest = least.load(std::memory_order_relaxed);
        while ((!shortest || spent < shortest) && !least.compare_exchange_weak(shortest, spent, std::memory_order_relaxed)) {
        }
    }
};

struct Table {
    char form[32] = {};
    std::atomic<int32_t> processes{0}, filled{0};
    Cell cells[kCells];
    Routine routines[kNames];
};

// The one that calls of this process are noted in.
Table &call_table();

// The number of a routine in the table, -1 if there is no room for another.
int routine_number(const char *name);

// The row for such calls; nullptr if there is no room for another.
Cell *find_cell(const Key &key);

// A size up to the next number of two significant bits.
int32_t rounded_size(int32_t value);

}  // namespace backline
#endif
