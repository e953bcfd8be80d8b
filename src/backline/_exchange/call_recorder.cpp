// Functions that stand before others and note each call in the table: sizes, flags, how often and how long.
//
// A recorder has no prototype, as the shims that choose by size have none. To time a call it has to come back from it, so it does not
// jump but calls: with the same registers, and a copy of as many words of the stack as the routine may have arguments there.
#include "call_arguments.hpp"
#include "call_table.hpp"

#if BACKLINE_HAS_EXCHANGE
#include <algorithm>
#include <cstddef>
#include <utility>

namespace backline {
namespace {

constexpr int kRecorders = 16384;
constexpr int kWords = 40;  // of the stack; the assembler makes room for as many

struct alignas(64) Recorder {
    void *function = nullptr;
    int mode = 0, integers = 0, flags = 0, words = kWords, query = -1, routine = 0;
    uint8_t integer[kIntegers] = {}, flag[kFlags] = {};
};

// Written by a recorder into its own frame; the assembler knows where the first two members are. Of the other three at most one is set.
struct Pending {
    void *function;
    int64_t words;
    Cell *cell;
    Total *total;
    int64_t start;
};
static_assert(offsetof(Pending, function) == 0 && offsetof(Pending, words) == 8 && sizeof(Pending) <= 48, "as the assembler has it");

Recorder recorders[kRecorders];
int used = 0;
thread_local bool paused = false;

Cell *cell_of(const Recorder &r, Arguments arguments) {
    if (!r.integers) return nullptr;
    Key key;
    key.routine = r.routine;
    for (int i = 0; i < r.flags; ++i) {
        const int64_t word = arguments[r.flag[i]];
        key.flags[i] = r.mode >= kValue32 ? char(word) : word ? *reinterpret_cast<const char *>(word) : 0;
        if (key.flags[i] >= 'a' && key.flags[i] <= 'z' && r.mode < kValue32) key.flags[i] = char(key.flags[i] - 'a' + 'A');
    }
    const bool crowded = call_table().filled.load(std::memory_order_relaxed) >= kCrowded;
    key.rounded = crowded;
    for (int i = 0; i < r.integers; ++i) {
        const int64_t value = integer_at(r.mode, arguments[r.integer[i]]);
        if (value != int32_t(value)) return nullptr;
        key.integers[i] = crowded ? rounded_size(int32_t(value)) : int32_t(value);
    }
    return find_cell(key);
}

}  // namespace
}  // namespace backline

// Called by a recorder before the call, and after it: from any thread, with or without the GIL.
extern "C" __attribute__((visibility("hidden"), used)) void backline_record_begin(int64_t index, const int64_t *registers, const int64_t *stack,
                                                                                  backline::Pending *pending) {
    using namespace backline;
    const Recorder &r = recorders[index];
    *pending = {r.function, r.words, nullptr, nullptr, 0};
    if (paused) return;
    const Arguments arguments{registers, stack};
    if (r.query >= 0 && integer_at(r.mode, arguments[r.query]) == -1) {
        pending->total = &call_table().routines[r.routine].queries;
    } else {
        pending->cell = cell_of(r, arguments);
        if (!pending->cell) pending->total = &call_table().routines[r.routine].unsized;
    }
    pending->start = now();
}

extern "C" __attribute__((visibility("hidden"), used)) void backline_record_end(backline::Pending *pending) {
    if (!pending->cell && !pending->total) return;
    const uint64_t spent = uint64_t(std::max<int64_t>(backline::now() - pending->start, 1));
    if (pending->cell) pending->cell->add(spent);
    else pending->total->add(spent);
}

#if defined(__x86_64__)
// The frame below rbp: arguments in registers (176 bytes), then `Pending`.
__asm__(BACKLINE_ENTRIES("backline_recorder", "16384") R"(
    .cfi_startproc
    .cfi_def_cfa_offset 16
    pushq %rbp
    .cfi_def_cfa_offset 24
    .cfi_offset %rbp, -24
    movq %rsp, %rbp
    .cfi_def_cfa_register %rbp
    subq $280, %rsp
)" BACKLINE_STORE_ARGUMENTS("-176", "%rbp") R"(
    movq 8(%rbp), %rdi
    leaq -176(%rbp), %rsi
    leaq 24(%rbp), %rdx
    leaq -224(%rbp), %rcx
    call backline_record_begin
    subq $320, %rsp
    leaq 24(%rbp), %rsi
    movq %rsp, %rdi
    movq -216(%rbp), %rcx
    cld
    rep movsq
    movq -224(%rbp), %r11
)" BACKLINE_LOAD_ARGUMENTS("-176", "%rbp") R"(
    call *%r11
    movq %rax, -176(%rbp)
    movq %rdx, -168(%rbp)
    movups %xmm0, -128(%rbp)
    movups %xmm1, -112(%rbp)
    leaq -224(%rbp), %rdi
    call backline_record_end
    movq -176(%rbp), %rax
    movq -168(%rbp), %rdx
    movups -128(%rbp), %xmm0
    movups -112(%rbp), %xmm1
    leave
    .cfi_def_cfa %rsp, 16
    addq $8, %rsp
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
)");
#else
// The frame below x29: arguments in registers (200 bytes) from its start on, then `Pending`.
__asm__(BACKLINE_ENTRIES("backline_recorder", "16384") R"(
    stp x29, x30, [sp, #-16]!
    mov x29, sp
    sub sp, sp, #256
)" BACKLINE_STORE_ARGUMENTS("sp") R"(
    mov w0, w16
    mov x1, sp
    add x2, x29, #16
    add x3, sp, #208
    bl backline_record_begin
    sub x12, x29, #256
    ldr x9, [x12, #216]
    sub sp, sp, #320
    add x10, x29, #16
    mov x11, sp
1:  cbz x9, 2f
    ldr x13, [x10], #8
    str x13, [x11], #8
    sub x9, x9, #1
    b 1b
2:
)" BACKLINE_LOAD_ARGUMENTS("x12") R"(
    ldr x17, [x12, #208]
    blr x17
    sub x12, x29, #256
    stp x0, x1, [x12]
    stp q0, q1, [x12, #64]
    stp q2, q3, [x12, #96]
    add x0, x12, #208
    bl backline_record_end
    sub x12, x29, #256
    ldp x0, x1, [x12]
    ldp q0, q1, [x12, #64]
    ldp q2, q3, [x12, #96]
    mov sp, x29
    ldp x29, x30, [sp], #16
    ret
)");
#endif

extern "C" __attribute__((visibility("hidden"))) const char backline_recorders[];

namespace backline {
namespace {

static_assert(kRecorders == 16384 && kWords == 40, "as the assembler has them");

// The address of a new recorder, 0 if there is none left. Like a shim it is never changed: a thread may be inside.
void *recorder(void *function, int mode, PyObject *flags, PyObject *integers, int query, int arguments, PyObject *name) {
    if (mode < kReference32 || mode > kValue64 || !function || arguments > kWords) throw python_error(PyExc_ValueError, "a function, a mode from 0 to 3, at most %d arguments", kWords);
    Py_ssize_t letters;
    const char *text = checked(PyUnicode_AsUTF8AndSize(name, &letters));
    if (letters >= kLetters) throw python_error(PyExc_ValueError, "the name has more than %d letters", kLetters - 1);
    if (used == kRecorders) return nullptr;
    Recorder &r = recorders[used];
    r.flags = positions(flags, r.flag, kFlags, kWords);
    r.integers = positions(integers, r.integer, kIntegers, kWords);
    r.function = function, r.mode = mode, r.query = query;
    r.words = arguments < 0 ? kWords : std::max(arguments - Arguments::kRegisters, 0);
    r.routine = routine_number(text);
    return r.routine < 0 ? nullptr : const_cast<char *>(backline_recorders) + BACKLINE_ENTRY_BYTES * used++;
}

// Whether calls of this thread go unrecorded from now on; returns what held before.
bool recorded_pause(bool pause) { return std::exchange(paused, pause); }

PyMethodDef functions[] = {
    function<recorder>("recorder", "A function that notes calls of another: (function, mode, flags, integers, query, arguments, name)."),
    function<recorded_pause>("recorded_pause", "Whether calls of this thread go unrecorded; returns what held before."),
    {}};

}  // namespace

int add_call_recorder(PyObject *module) { return PyModule_AddFunctions(module, functions); }

}  // namespace backline

#else

namespace backline {
int add_call_recorder(PyObject *) { return 0; }
}  // namespace backline

#endif
