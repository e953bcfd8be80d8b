// Functions that stand before two others and choose one by the sizes a call is made for: small products stay with the library that
// has the lower cost of a call.
//
// A shim has no prototype of its own: it serves every routine of BLAS and LAPACK whose sizes are among its first arguments. It is
// declared with more integers than any of them has, then two doubles: both ABIs here pass integers and floating-point numbers in two
// independent lists, the integers that find no register in 8-byte slots of the stack (call.hpp has the argument). It ends in a jump to
// the function chosen, so registers, stack and result are what they would be without it. Where a compiler makes a call of that jump
// (without optimization), the caller's stack is copied, words that are no arguments included, and the result is returned as a double.
#include "loaded_objects.hpp"

#if BACKLINE_HAS_EXCHANGE
#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>

namespace backline {
namespace {

constexpr int kShims = 256, kStripes = 8, kSizes = 3, kChecked = 6, kVisible = 14;
enum Mode : int { kReference32, kReference64, kValue32, kValue64 };

// Counters of several threads lie in different cache lines.
struct alignas(64) Calls {
    std::atomic<uint64_t> small{0}, large{0};
};

struct alignas(64) Shim {
    void *small = nullptr, *large = nullptr;
    int64_t threshold = 0;
    int mode = 0, sizes = 0, checked = 0;
    uint8_t size[kSizes] = {}, check[kChecked] = {};
    Calls calls[kStripes];
};

Shim shims[kShims];
int used = 0;

inline unsigned stripe() {
#if defined(__x86_64__)
    uintptr_t thread;
    __asm__("mov %%fs:0, %0" : "=r"(thread));
#else
    uintptr_t thread;
    __asm__("mrs %0, tpidr_el0" : "=r"(thread));
#endif
    return unsigned((uint64_t(thread) * 0x9E3779B97F4A7C15u) >> 61);
}

inline int64_t number(int mode, int64_t argument) {
    switch (mode) {
        case kReference32: return *reinterpret_cast<const int32_t *>(argument);
        case kReference64: return *reinterpret_cast<const int64_t *>(argument);
        case kValue32: return int32_t(argument);
        default: return argument;
    }
}

using I = int64_t;
using Function = double (*)(I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, double, double);

template <int Index>
double call(I a0, I a1, I a2, I a3, I a4, I a5, I a6, I a7, I a8, I a9, I a10, I a11, I a12, I a13, I a14, I a15, I a16, I a17, I a18,
            I a19, I a20, I a21, I a22, I a23, double x0, double x1) {
    Shim &s = shims[Index];
    const I arguments[kVisible] = {a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13};
    double product = 1;  // of sizes that may be rubbish: never overflows
    for (int i = 0; i < s.sizes; ++i) product *= double(number(s.mode, arguments[s.size[i]]));
    bool large = product >= double(s.threshold);
    // Sizes for a library of narrower integers: what does not fit stays where 64 bits are taken.
    for (int i = 0; i < s.checked; ++i) {
        const I value = arguments[s.check[i]];
        large &= value == int32_t(value);
    }
    Calls &calls = s.calls[stripe()];
    (large ? calls.large : calls.small).fetch_add(1, std::memory_order_relaxed);
    const Function function = reinterpret_cast<Function>(large ? s.large : s.small);
    return function(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18, a19, a20, a21, a22, a23, x0, x1);
}

template <size_t... Index>
void *entry_point(int index, std::index_sequence<Index...>) {
    static const Function entries[] = {call<int(Index)>...};
    return reinterpret_cast<void *>(entries[index]);
}

int positions(PyObject *bytes, uint8_t *to, int most) {
    char *data;
    Py_ssize_t count;
    checked(PyBytes_AsStringAndSize(bytes, &data, &count) == 0);
    if (count > most) throw python_error(PyExc_ValueError, "at most %d positions", most);
    for (Py_ssize_t i = 0; i < count; ++i) {
        if (uint8_t(data[i]) >= kVisible) throw python_error(PyExc_ValueError, "position %d is past the arguments that are looked at", data[i]);
        to[i] = uint8_t(data[i]);
    }
    return int(count);
}

// The address of a new shim, 0 if there is none left. It is never changed or used again for others: a thread may be inside it.
void *shim(void *small, void *large, int mode, PyObject *sizes, int64_t threshold, PyObject *checked_) {
    if (mode < kReference32 || mode > kValue64 || !small || !large) throw python_error(PyExc_ValueError, "two functions, and a mode from 0 to 3");
    if (used == kShims) return nullptr;
    Shim &s = shims[used];
    s.sizes = positions(sizes, s.size, kSizes);
    s.checked = positions(checked_, s.check, kChecked);
    s.small = small, s.large = large, s.mode = mode, s.threshold = threshold;
    return entry_point(used++, std::make_index_sequence<kShims>());
}

// Calls that went to the first function and to the second; None for an address that is not a shim's.
PyObject *shim_calls(void *address) {
    for (int i = 0; i < used; ++i) {
        if (entry_point(i, std::make_index_sequence<kShims>()) != address) continue;
        uint64_t small = 0, large = 0;
        for (const Calls &c : shims[i].calls) small += c.small.load(std::memory_order_relaxed), large += c.large.load(std::memory_order_relaxed);
        return checked(Py_BuildValue("(KK)", (unsigned long long)small, (unsigned long long)large));
    }
    return Py_NewRef(Py_None);
}

double nothing(I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, double, double) { return 0; }

// Nanoseconds of calling a function, by its address, with the arguments of a product.
double call_seconds(void *address, int64_t count) {
    volatile Function function = address ? reinterpret_cast<Function>(address) : nothing;
    int32_t n = 8;
    const I p = reinterpret_cast<I>(&n);
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < count; ++i) function(p, p, p, p, p, p, p, p, p, p, p, p, p, p, p, p, p, p, p, p, p, p, p, p, 0, 0);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void *no_function() { return reinterpret_cast<void *>(static_cast<Function>(nothing)); }

PyMethodDef functions[] = {
    function<shim>("shim", "A function that calls the second of two from a product of sizes on: (small, large, mode, sizes, threshold, checked)."),
    function<shim_calls>("shim_calls", "How often a shim called either function, or None."),
    function<call_seconds>("call_seconds", "Time of calling an address so many times; 0 is a function that does nothing."),
    function<no_function>("no_function", "Address of a function that does nothing."),
    {}};

}  // namespace

int add_size_shims(PyObject *module) { return PyModule_AddFunctions(module, functions); }

}  // namespace backline

#else

namespace backline {
int add_size_shims(PyObject *) { return 0; }
}  // namespace backline

#endif
