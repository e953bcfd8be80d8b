// Functions that stand before two others and choose one by the sizes a call is made for: small products stay with the library that
// has the lower cost of a call.
//
// A shim has no prototype: it serves every routine of BLAS and LAPACK. It keeps the registers that carry arguments, calls `choose`
// with them and with the arguments on the stack, puts the registers back and jumps to the function chosen. Stack, registers and result
// are what they would be without it; nothing of the caller's is written to. No compiler promises such a jump, hence the assembler.
#include "call_arguments.hpp"

#if BACKLINE_HAS_EXCHANGE
#include <atomic>

namespace backline {
namespace {

constexpr int kShims = 512, kStripes = 8, kSizes = 3, kChecked = 6, kVisible = 24;

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

// Tells which of the two functions a call goes to. Called by a shim, from any thread, with or without the GIL.
void *choose(int index, Arguments arguments) {
    Shim &s = shims[index];
    double product = 1;  // of sizes that may be rubbish: never overflows
    for (int i = 0; i < s.sizes; ++i) product *= double(integer_at(s.mode, arguments[s.size[i]]));
    bool large = product >= double(s.threshold);
    // Sizes for a library of narrower integers: what does not fit stays where 64 bits are taken.
    for (int i = 0; i < s.checked; ++i) {
        const int64_t value = arguments[s.check[i]];
        large &= value == int32_t(value);
    }
    Calls &calls = s.calls[stripe()];
    (large ? calls.large : calls.small).fetch_add(1, std::memory_order_relaxed);
    return large ? s.large : s.small;
}

}  // namespace
}  // namespace backline

extern "C" __attribute__((visibility("hidden"), used)) void *backline_choose(int index, const int64_t *registers, const int64_t *stack) {
    return backline::choose(index, {registers, stack});
}

#if defined(__x86_64__)
// On the stack, from its end on: arguments in registers (176 bytes), the number of the entry, the address to return to.
__asm__(BACKLINE_ENTRIES("backline_shim", "512") R"(
    subq $176, %rsp
)" BACKLINE_STORE_ARGUMENTS("0", "%rsp") R"(
    movq 176(%rsp), %rdi
    movq %rsp, %rsi
    leaq 192(%rsp), %rdx
    call backline_choose
)" BACKLINE_LOAD_ARGUMENTS("0", "%rsp") R"(
    addq $184, %rsp
    jmp *%rax
)");
#else
__asm__(BACKLINE_ENTRIES("backline_shim", "512") R"(
    stp x29, x30, [sp, #-16]!
    mov x29, sp
    sub sp, sp, #208
)" BACKLINE_STORE_ARGUMENTS("sp") R"(
    mov w0, w16
    mov x1, sp
    add x2, x29, #16
    bl backline_choose
    mov x17, x0
)" BACKLINE_LOAD_ARGUMENTS("sp") R"(
    mov sp, x29
    ldp x29, x30, [sp], #16
    br x17
)");
#endif

extern "C" __attribute__((visibility("hidden"))) const char backline_shims[];

namespace backline {
namespace {

static_assert(kShims == 512, "as many as the assembler makes");

void *entry_point(int index) { return const_cast<char *>(backline_shims) + BACKLINE_ENTRY_BYTES * index; }

// The address of a new shim, 0 if there is none left. It is never changed or used again for others: a thread may be inside it.
void *shim(void *small, void *large, int mode, PyObject *sizes, int64_t threshold, PyObject *checked_) {
    if (mode < kReference32 || mode > kValue64 || !small || !large) throw python_error(PyExc_ValueError, "two functions, and a mode from 0 to 3");
    if (used == kShims) return nullptr;
    Shim &s = shims[used];
    s.sizes = positions(sizes, s.size, kSizes, kVisible);
    s.checked = positions(checked_, s.check, kChecked, kVisible);
    s.small = small, s.large = large, s.mode = mode, s.threshold = threshold;
    return entry_point(used++);
}

// Calls that went to the first function and to the second; None for an address that is not a shim's.
PyObject *shim_calls(void *address) {
    for (int i = 0; i < used; ++i) {
        if (entry_point(i) != address) continue;
        uint64_t small = 0, large = 0;
        for (const Calls &c : shims[i].calls) small += c.small.load(std::memory_order_relaxed), large += c.large.load(std::memory_order_relaxed);
        return checked(Py_BuildValue("(KK)", (unsigned long long)small, (unsigned long long)large));
    }
    return Py_NewRef(Py_None);
}

PyMethodDef functions[] = {
    function<shim>("shim", "A function that calls the second of two from a product of sizes on: (small, large, mode, sizes, threshold, checked)."),
    function<shim_calls>("shim_calls", "How often a shim called either function, or None."),
    {}};

}  // namespace

int add_size_shims(PyObject *module) { return PyModule_AddFunctions(module, functions); }

}  // namespace backline

#else

namespace backline {
int add_size_shims(PyObject *) { return 0; }
}  // namespace backline

#endif
