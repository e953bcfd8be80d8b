// The arguments of a call whose function has no prototype here: where they are, what integers among them say, and how functions in
// assembler begin that look at them.
#pragma once
#include "loaded_objects.hpp"

#if BACKLINE_HAS_EXCHANGE
#include <cstdint>

namespace backline {

// How integers are passed: by reference, as Fortran passes them, or by value; of 32 bits or of 64.
enum Mode : int { kReference32, kReference64, kValue32, kValue64 };

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

inline int64_t integer_at(int mode, int64_t argument) {
    if (mode == kValue32) return int32_t(argument);
    if (mode == kValue64) return argument;
    if (!argument) return 0;
    return mode == kReference32 ? *reinterpret_cast<const int32_t *>(argument) : *reinterpret_cast<const int64_t *>(argument);
}

// Positions of arguments, from the bytes that Python passes; how many there are.
inline int positions(PyObject *bytes, uint8_t *to, int most, int visible) {
    char *data;
    Py_ssize_t count;
    checked(PyBytes_AsStringAndSize(bytes, &data, &count) == 0);
    if (count > most) throw python_error(PyExc_ValueError, "at most %d positions", most);
    for (Py_ssize_t i = 0; i < count; ++i) {
        if (uint8_t(data[i]) >= visible) throw python_error(PyExc_ValueError, "position %d is past the arguments that are looked at", data[i]);
        to[i] = uint8_t(data[i]);
    }
    return int(count);
}

}  // namespace backline

// Assembler, as text. BACKLINE_ENTRIES makes `count` entries of 16 bytes behind the label NAMEs, each of which says its number, on the
// stack or in w16, and goes on to NAME_common, which follows. The other two write the registers that carry arguments to memory and read
// them back: first those of integers and pointers, then the eight of floating-point numbers.
#define BACKLINE_ENTRY_BYTES 16
#if defined(__x86_64__)
#define BACKLINE_ENTRIES(name, count) \
    ".text\n.balign 16\n" name "s:\n.set " name ", 0\n.rept " count "\n.balign 16\nendbr64\npushq $" name "\njmp " name "_common\n.set " name \
    ", " name " + 1\n.endr\n.balign 16\n" name "_common:\n"
// 176 bytes at an offset from the address in a register.
#define BACKLINE_STORE_ARGUMENTS(offset, base)                                                                                        \
    "movq %rdi, " offset "(" base ")\nmovq %rsi, " offset "+8(" base ")\nmovq %rdx, " offset "+16(" base ")\n"                        \
    "movq %rcx, " offset "+24(" base ")\nmovq %r8, " offset "+32(" base ")\nmovq %r9, " offset "+40(" base ")\n"                      \
    "movups %xmm0, " offset "+48(" base ")\nmovups %xmm1, " offset "+64(" base ")\nmovups %xmm2, " offset "+80(" base ")\n"           \
    "movups %xmm3, " offset "+96(" base ")\nmovups %xmm4, " offset "+112(" base ")\nmovups %xmm5, " offset "+128(" base ")\n"         \
    "movups %xmm6, " offset "+144(" base ")\nmovups %xmm7, " offset "+160(" base ")\n"
#define BACKLINE_LOAD_ARGUMENTS(offset, base)                                                                                         \
    "movq " offset "(" base "), %rdi\nmovq " offset "+8(" base "), %rsi\nmovq " offset "+16(" base "), %rdx\n"                        \
    "movq " offset "+24(" base "), %rcx\nmovq " offset "+32(" base "), %r8\nmovq " offset "+40(" base "), %r9\n"                      \
    "movups " offset "+48(" base "), %xmm0\nmovups " offset "+64(" base "), %xmm1\nmovups " offset "+80(" base "), %xmm2\n"           \
    "movups " offset "+96(" base "), %xmm3\nmovups " offset "+112(" base "), %xmm4\nmovups " offset "+128(" base "), %xmm5\n"         \
    "movups " offset "+144(" base "), %xmm6\nmovups " offset "+160(" base "), %xmm7\n"
#else
#define BACKLINE_ENTRIES(name, count) \
    ".text\n.balign 16\n" name "s:\n.set " name ", 0\n.rept " count "\n.balign 16\nhint #34\nmov w16, #" name "\nb " name "_common\n.set " name \
    ", " name " + 1\n.endr\n.balign 16\n" name "_common:\n"
// 200 bytes from the address in a register: x8, where a function writes a result that is a structure, is the last.
#define BACKLINE_STORE_ARGUMENTS(base)                                                                              \
    "stp x0, x1, [" base "]\nstp x2, x3, [" base ", #16]\nstp x4, x5, [" base ", #32]\nstp x6, x7, [" base ", #48]\n"    \
    "stp q0, q1, [" base ", #64]\nstp q2, q3, [" base ", #96]\nstp q4, q5, [" base ", #128]\nstp q6, q7, [" base ", #160]\n" \
    "str x8, [" base ", #192]\n"
#define BACKLINE_LOAD_ARGUMENTS(base)                                                                               \
    "ldp x0, x1, [" base "]\nldp x2, x3, [" base ", #16]\nldp x4, x5, [" base ", #32]\nldp x6, x7, [" base ", #48]\n"    \
    "ldp q0, q1, [" base ", #64]\nldp q2, q3, [" base ", #96]\nldp q4, q5, [" base ", #128]\nldp q6, q7, [" base ", #160]\n" \
    "ldr x8, [" base ", #192]\n"
#endif
#endif
