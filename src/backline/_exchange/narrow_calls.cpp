// Functions that take 64-bit integers by reference and call a routine that takes 32-bit ones: NumPy's wheel passes the former, and
// some libraries have the latter only.
//
// Integers are copied to the stack as 32-bit ones, and what the routine answered is widened into the caller's. Vectors of integers are
// only ever results: the routine writes 32-bit ones to the caller's memory, where there is room for twice as much, and they are
// widened there from the last to the first. A call with a number that is too large goes to the 64-bit routine as it came. Nothing is
// allocated and nothing is shared, so any number of threads may be inside.
#include "loaded_objects.hpp"

#if BACKLINE_HAS_EXCHANGE
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

namespace backline {
namespace {

constexpr int kFewest = 5, kMost = 15;  // arguments of a routine
constexpr int kEach = 32;               // functions for each count of arguments
constexpr int kCounts = kMost - kFewest + 1;

// What an argument is. Every one is a pointer: that is how Fortran passes them.
enum Kind : char {
    kDimension = 'd',  // an integer that bounds a vector of results, and workspaces whose size is its square
    kInteger = 'i',    // an integer that is read
    kOutput = 'o',     // an integer that is written
    kVector = 'v',     // integers that are written, as many as the least dimension
    kWorkspace = 'w',  // workspace of integers whose first one is a result
    kPassed = 'x',     // anything else
};

struct Routine {
    void *wide = nullptr, *narrow = nullptr;
    int64_t largest = 0;
    char kinds[kMost + 1] = {};
};

Routine routines[kCounts][kEach];
int used[kCounts] = {};

template <size_t>
using Argument = void *;

int64_t wide_integer(const void *p) {
    int64_t value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

int32_t narrow_integer(const void *p) {
    int32_t value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

void set_wide(void *p, int64_t value) { std::memcpy(p, &value, sizeof value); }

void widen(void *vector, int64_t count) {
    char *bytes = static_cast<char *>(vector);
    for (int64_t i = count - 1; i >= 0; --i) set_wide(bytes + 8 * i, narrow_integer(bytes + 4 * i));
}

// The lengths of texts come after the arguments: routines that have none do not look there, and for others the caller need not
// have passed them.
template <size_t... K>
intptr_t call(void *function, void *const *arguments, std::index_sequence<K...>) {
    using Function = intptr_t (*)(Argument<K>..., size_t, size_t);
    return reinterpret_cast<Function>(function)(arguments[K]..., 1, 1);
}

template <size_t N>
intptr_t convert(const Routine &r, const std::array<void *, N> &arguments) {
    constexpr auto all = std::make_index_sequence<N>();
    std::array<int32_t, N> integers{};
    std::array<void *, N> passed = arguments;
    int64_t dimension = INT64_MAX;
    for (size_t i = 0; i < N; ++i) {
        const char kind = r.kinds[i];
        if (kind == kDimension || kind == kInteger) {
            const int64_t value = wide_integer(arguments[i]);
            if (value != int32_t(value) || (kind == kDimension && value > r.largest)) return call(r.wide, arguments.data(), all);
            if (kind == kDimension) dimension = std::min(dimension, value);
            integers[i] = int32_t(value);
        } else if (kind == kOutput) {
            integers[i] = 0;
        } else {
            continue;
        }
        passed[i] = &integers[i];
    }
    const intptr_t result = call(r.narrow, passed.data(), all);
    // The last argument says whether the others were accepted: if not, nothing was written.
    const bool accepted = r.kinds[N - 1] != kOutput || integers[N - 1] >= 0;
    for (size_t i = 0; i < N; ++i) {
        if (r.kinds[i] == kOutput) set_wide(arguments[i], integers[i]);
        if (!accepted || !arguments[i]) continue;
        if (r.kinds[i] == kVector) widen(arguments[i], dimension);
        if (r.kinds[i] == kWorkspace) widen(arguments[i], 1);
    }
    return result;
}

template <size_t I, class Sequence>
struct Entry;

// The function that stands for one routine: it has as many arguments as that.
template <size_t I, size_t... K>
struct Entry<I, std::index_sequence<K...>> {
    static constexpr size_t count = sizeof...(K);
    static intptr_t call(Argument<K>... arguments) { return convert<count>(routines[count - kFewest][I], {arguments...}); }
};

template <size_t N, size_t... I>
std::array<void *, kEach> entries_of(std::index_sequence<I...>) {
    return {reinterpret_cast<void *>(&Entry<I, std::make_index_sequence<N>>::call)...};
}

template <size_t... C>
void *entry_point(int count, int index, std::index_sequence<C...>) {
    static const std::array<std::array<void *, kEach>, kCounts> entries = {
        entries_of<C + kFewest>(std::make_index_sequence<kEach>())...};
    return entries[size_t(count - kFewest)][size_t(index)];
}

// The address of a function for a routine, 0 if there is none left. It is never changed or used again: a thread may be inside it.
void *narrow_call(void *wide, void *narrow, PyObject *kinds, int64_t largest) {
    Py_ssize_t length;
    const char *text = checked(PyUnicode_AsUTF8AndSize(kinds, &length));
    if (!wide || !narrow || length < kFewest || length > kMost || std::string_view(text).find_first_not_of("diovwx") != std::string_view::npos)
        throw python_error(PyExc_ValueError, "two functions, and the kinds of %d to %d arguments", kFewest, kMost);
    const int count = int(length), row = count - kFewest;
    if (used[row] == kEach) return nullptr;
    Routine &r = routines[row][used[row]];
    r.wide = wide, r.narrow = narrow, r.largest = largest;
    std::memcpy(r.kinds, text, size_t(length) + 1);
    return entry_point(count, used[row]++, std::make_index_sequence<kCounts>());
}

PyMethodDef functions[] = {
    function<narrow_call>("narrow_call", "A function with 64-bit integers for a routine with 32-bit ones: (wide, narrow, kinds, largest)."),
    {}};

}  // namespace

int add_narrow_calls(PyObject *module) { return PyModule_AddFunctions(module, functions); }

}  // namespace backline

#else

namespace backline {
int add_narrow_calls(PyObject *) { return 0; }
}  // namespace backline

#endif
