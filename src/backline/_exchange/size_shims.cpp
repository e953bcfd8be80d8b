// Functions that stand before two others and choose one by the sizes a call is made for: small products stay with the library that
// has the lower cost of a call.
//
// A shim has no prototype: it serves every routine of BLAS and LAPACK. It keeps the registers that carry arguments, calls `choose`
// with them and with the arguments on the stack, puts the registers back and jumps to the function chosen. Stack, registers and result
// are what they would be without it; nothing of the caller's is written to. No compiler promises such a jump, hence the assembler.
#include "loaded_objects.hpp"

#if BACKLINE_HAS_EXCHANGE
#include <atomic>
#include <chrono>
#include <cstdint>

namespace backline {
namespace {

constexpr int kShims = 512, kStripes = 8, kSizes = 3, kChecked = 6, kVisible = 24;
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

// Argument number i, counted among integers and pointers: the first ones are in registers, the others in 8-byte slots of the stack.
struct Arguments {
    const int64_t *registers, *stack;
#if defined(__x86_64__)
    static constexpr int kRegisters = 6;
#else
    static constexpr int kRegisters = 8;
#endif
    int64_t operator[](int i) const { return i < kRegisters ? registers[i] : stack[i - kRegisters]; }
};

// Tells which of the two functions a call goes to. Called by a shim, from any thread, with or without the GIL.
void *choose(int index, Arguments arguments) {
    Shim &s = shims[index];
    double product = 1;  // of sizes that may be rubbish: never overflows
    for (int i = 0; i < s.sizes; ++i) product *= double(number(s.mode, arguments[s.size[i]]));
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

// 512 entries of 16 bytes, each of which says its number and goes on to the common part.
#if defined(__x86_64__)
__asm__(R"(
    .text
    .balign 16
backline_shims:
    .set backline_shim, 0
    .rept 512
    .balign 16
    endbr64
    pushq $backline_shim
    jmp backline_shim_common
    .set backline_shim, backline_shim + 1
    .endr
    .balign 16
backline_shim_common:
    pushq %r9
    pushq %r8
    pushq %rcx
    pushq %rdx
    pushq %rsi
    pushq %rdi
    subq $128, %rsp
    movups %xmm0, (%rsp)
    movups %xmm1, 16(%rsp)
    movups %xmm2, 32(%rsp)
    movups %xmm3, 48(%rsp)
    movups %xmm4, 64(%rsp)
    movups %xmm5, 80(%rsp)
    movups %xmm6, 96(%rsp)
    movups %xmm7, 112(%rsp)
    movq 176(%rsp), %rdi
    leaq 128(%rsp), %rsi
    leaq 192(%rsp), %rdx
    call backline_choose
    movups (%rsp), %xmm0
    movups 16(%rsp), %xmm1
    movups 32(%rsp), %xmm2
    movups 48(%rsp), %xmm3
    movups 64(%rsp), %xmm4
    movups 80(%rsp), %xmm5
    movups 96(%rsp), %xmm6
    movups 112(%rsp), %xmm7
    addq $128, %rsp
    popq %rdi
    popq %rsi
    popq %rdx
    popq %rcx
    popq %r8
    popq %r9
    addq $8, %rsp
    jmp *%rax
)");
#else
__asm__(R"(
    .text
    .balign 16
backline_shims:
    .set backline_shim, 0
    .rept 512
    .balign 16
    hint #34
    mov w16, #backline_shim
    b backline_shim_common
    .set backline_shim, backline_shim + 1
    .endr
    .balign 16
backline_shim_common:
    stp x29, x30, [sp, #-16]!
    mov x29, sp
    sub sp, sp, #208
    stp x0, x1, [sp]
    stp x2, x3, [sp, #16]
    stp x4, x5, [sp, #32]
    stp x6, x7, [sp, #48]
    stp q0, q1, [sp, #64]
    stp q2, q3, [sp, #96]
    stp q4, q5, [sp, #128]
    stp q6, q7, [sp, #160]
    str x8, [sp, #192]
    mov w0, w16
    mov x1, sp
    add x2, x29, #16
    bl backline_choose
    mov x17, x0
    ldp x0, x1, [sp]
    ldp x2, x3, [sp, #16]
    ldp x4, x5, [sp, #32]
    ldp x6, x7, [sp, #48]
    ldp q0, q1, [sp, #64]
    ldp q2, q3, [sp, #96]
    ldp q4, q5, [sp, #128]
    ldp q6, q7, [sp, #160]
    ldr x8, [sp, #192]
    mov sp, x29
    ldp x29, x30, [sp], #16
    br x17
)");
#endif

extern "C" __attribute__((visibility("hidden"))) const char backline_shims[];

namespace backline {
namespace {

static_assert(kShims == 512, "as many as the assembler makes");

void *entry_point(int index) { return const_cast<char *>(backline_shims) + 16 * index; }

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

// Called with the arguments of a product in the Fortran interface.
using Product = void (*)(const void *, const void *, const void *, const void *, const void *, const void *, const void *, const void *,
                         const void *, const void *, const void *, const void *, const void *);
void nothing(const void *, const void *, const void *, const void *, const void *, const void *, const void *, const void *, const void *,
             const void *, const void *, const void *, const void *) {}

double call_seconds(void *address, int64_t count) {
    const volatile Product function = address ? reinterpret_cast<Product>(address) : nothing;
    int64_t n = 8;  // written to by functions that convert integers
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < count; ++i) function(&n, &n, &n, &n, &n, &n, &n, &n, &n, &n, &n, &n, &n);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void *no_function() { return reinterpret_cast<void *>(nothing); }

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
