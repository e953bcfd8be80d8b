// Functions that stand before others and note each call: sizes, flags, how often and how long. And calls of a function by its
// address, timed.
//
// A recorder has no prototype, as the shims that choose by size have none. To time a call it has to come back from it, so it does not
// jump but calls: with the same registers, and a copy of as many words of the stack as the routine may have arguments there. What is
// noted goes into a table of fixed size without a lock, so that calls of any thread, with or without the GIL, and of a forked child
// never wait. When the table fills up, sizes are rounded; what does not fit even then is counted by routine.
#include "loaded_objects.hpp"

#if BACKLINE_HAS_EXCHANGE
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace backline {
namespace {

constexpr int kRecorders = 16384, kCells = 8192, kCrowded = kCells * 3 / 4, kProbes = 64, kIntegers = 12, kFlags = 8;
constexpr int kWords = 40;  // of the stack; the assembler makes room for as many
constexpr int kRegisters =
#if defined(__x86_64__)
    6;
#else
    8;
#endif
enum Mode : int { kReference32, kReference64, kValue32, kValue64 };

struct Total {
    std::atomic<uint64_t> calls{0}, nanoseconds{0};
    void add(uint64_t spent) {
        calls.fetch_add(1, std::memory_order_relaxed);
        nanoseconds.fetch_add(spent, std::memory_order_relaxed);
    }
    void clear() { calls = 0, nanoseconds = 0; }
};

struct alignas(64) Recorder {
    void *function = nullptr;
    int mode = 0, integers = 0, flags = 0, words = kWords, query = -1;
    uint8_t integer[kIntegers] = {}, flag[kFlags] = {};
    Total unsized, queries;  // calls without a row of their own, and questions for the size of a workspace
};

struct Key {
    int32_t recorder = 0, rounded = 0;
    char flags[kFlags] = {};
    int32_t integers[kIntegers] = {};
    bool operator==(const Key &other) const { return std::memcmp(this, &other, sizeof(Key)) == 0; }
};
static_assert(sizeof(Key) == 8 + kFlags + 4 * kIntegers, "no padding is compared");

enum State : int { kEmpty, kWriting, kReady };
struct alignas(128) Cell {
    std::atomic<int> state{kEmpty};
    Key key;
    Total total;
    std::atomic<uint64_t> least{UINT64_MAX};
};

// Written by a recorder into its own frame; the assembler knows where the first two members are.
struct Pending {
    void *function;
    int64_t words;
    Recorder *recorder;
    Total *total;
    std::atomic<uint64_t> *least;
    int64_t start;
};
static_assert(offsetof(Pending, function) == 0 && offsetof(Pending, words) == 8 && sizeof(Pending) == 48, "as the assembler has it");

Recorder recorders[kRecorders];
Cell cells[kCells];
std::atomic<int> filled{0};
int used = 0;
thread_local bool paused = false;

inline int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline int64_t argument(const int64_t *registers, const int64_t *stack, int i) {
    return i < kRegisters ? registers[i] : stack[i - kRegisters];
}

inline int64_t number(int mode, int64_t word) {
    if (mode >= kValue32) return mode == kValue32 ? int32_t(word) : word;
    if (!word) return 0;
    return mode == kReference32 ? *reinterpret_cast<const int32_t *>(word) : *reinterpret_cast<const int64_t *>(word);
}

// Up to the next number of two significant bits.
inline int32_t rounded(int32_t value) {
    if (value < 4) return value;
    const int shift = 30 - __builtin_clz(uint32_t(value));
    return int32_t(std::min<int64_t>(((int64_t(value) + (int64_t(1) << shift) - 1) >> shift) << shift, INT32_MAX));
}

inline size_t hashed(const Key &key) {
    uint64_t words[sizeof(Key) / 8], hash = 0x9E3779B97F4A7C15u;
    std::memcpy(words, &key, sizeof(Key));
    for (const uint64_t word : words) hash = (hash ^ word) * 0xFF51AFD7ED558CCDu, hash ^= hash >> 32;
    return size_t(hash);
}

Cell *find(const Key &key) {
    const size_t first = hashed(key);
    for (int i = 0; i < kProbes; ++i) {
        Cell &cell = cells[(first + size_t(i)) % kCells];
        int state = cell.state.load(std::memory_order_acquire);
        if (state == kEmpty && cell.state.compare_exchange_strong(state, kWriting, std::memory_order_acq_rel)) {
            cell.key = key;
            filled.fetch_add(1, std::memory_order_relaxed);
            cell.state.store(kReady, std::memory_order_release);
            return &cell;
        }
        // Another thread is writing it, for a moment. In a forked child that thread may not exist: go on without it.
        for (int wait = 0; state == kWriting && wait < 1000; ++wait) state = cell.state.load(std::memory_order_acquire);
        if (state == kReady && cell.key == key) return &cell;
    }
    return nullptr;
}

Cell *row_of(int index, const Recorder &r, const int64_t *registers, const int64_t *stack) {
    if (!r.integers) return nullptr;
    Key key;
    key.recorder = index;
    for (int i = 0; i < r.flags; ++i) {
        const int64_t word = argument(registers, stack, r.flag[i]);
        key.flags[i] = r.mode >= kValue32 ? char(word) : word ? *reinterpret_cast<const char *>(word) : 0;
        if (key.flags[i] >= 'a' && key.flags[i] <= 'z' && r.mode < kValue32) key.flags[i] = char(key.flags[i] - 'a' + 'A');
    }
    const bool crowded = filled.load(std::memory_order_relaxed) >= kCrowded;
    key.rounded = crowded;
    for (int i = 0; i < r.integers; ++i) {
        const int64_t value = number(r.mode, argument(registers, stack, r.integer[i]));
        if (value != int32_t(value)) return nullptr;
        key.integers[i] = crowded ? rounded(int32_t(value)) : int32_t(value);
    }
    return find(key);
}

}  // namespace
}  // namespace backline

// Called by a recorder before the call, and after it: from any thread, with or without the GIL.
extern "C" __attribute__((visibility("hidden"), used)) void backline_record_begin(int64_t index, const int64_t *registers, const int64_t *stack,
                                                                                  backline::Pending *pending) {
    using namespace backline;
    Recorder &r = recorders[index];
    *pending = {r.function, r.words, &r, nullptr, nullptr, 0};
    if (paused) return;
    if (r.query >= 0 && number(r.mode, argument(registers, stack, r.query)) == -1) {
        pending->total = &r.queries;
    } else if (Cell *cell = row_of(int(index), r, registers, stack)) {
        pending->total = &cell->total;
        pending->least = &cell->least;
    } else {
        pending->total = &r.unsized;
    }
    pending->start = now();
}

extern "C" __attribute__((visibility("hidden"), used)) void backline_record_end(backline::Pending *pending) {
    if (!pending->total) return;
    const uint64_t spent = uint64_t(std::max<int64_t>(backline::now() - pending->start, 0));
    pending->total->add(spent);
    if (!pending->least) return;
    uint64_t least = pending->least->load(std::memory_order_relaxed);
    while (spent < least && !pending->least->compare_exchange_weak(least, spent, std::memory_order_relaxed)) {
    }
}

// 16384 entries of 16 bytes, each of which says its number and goes on to the common part.
#if defined(__x86_64__)
__asm__(R"(
    .text
    .balign 16
backline_recorders:
    .set backline_recorder, 0
    .rept 16384
    .balign 16
    endbr64
    pushq $backline_recorder
    jmp backline_recorder_common
    .set backline_recorder, backline_recorder + 1
    .endr
    .balign 16
backline_recorder_common:
    .cfi_startproc
    .cfi_def_cfa_offset 16
    pushq %rbp
    .cfi_def_cfa_offset 24
    .cfi_offset %rbp, -24
    movq %rsp, %rbp
    .cfi_def_cfa_register %rbp
    subq $280, %rsp
    movq %rdi, -48(%rbp)
    movq %rsi, -40(%rbp)
    movq %rdx, -32(%rbp)
    movq %rcx, -24(%rbp)
    movq %r8, -16(%rbp)
    movq %r9, -8(%rbp)
    movups %xmm0, -176(%rbp)
    movups %xmm1, -160(%rbp)
    movups %xmm2, -144(%rbp)
    movups %xmm3, -128(%rbp)
    movups %xmm4, -112(%rbp)
    movups %xmm5, -96(%rbp)
    movups %xmm6, -80(%rbp)
    movups %xmm7, -64(%rbp)
    movq 8(%rbp), %rdi
    leaq -48(%rbp), %rsi
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
    movq -48(%rbp), %rdi
    movq -40(%rbp), %rsi
    movq -32(%rbp), %rdx
    movq -24(%rbp), %rcx
    movq -16(%rbp), %r8
    movq -8(%rbp), %r9
    movups -176(%rbp), %xmm0
    movups -160(%rbp), %xmm1
    movups -144(%rbp), %xmm2
    movups -128(%rbp), %xmm3
    movups -112(%rbp), %xmm4
    movups -96(%rbp), %xmm5
    movups -80(%rbp), %xmm6
    movups -64(%rbp), %xmm7
    call *%r11
    movq %rax, -48(%rbp)
    movq %rdx, -40(%rbp)
    movups %xmm0, -176(%rbp)
    movups %xmm1, -160(%rbp)
    leaq -224(%rbp), %rdi
    call backline_record_end
    movq -48(%rbp), %rax
    movq -40(%rbp), %rdx
    movups -176(%rbp), %xmm0
    movups -160(%rbp), %xmm1
    leave
    .cfi_def_cfa %rsp, 16
    addq $8, %rsp
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
)");
#else
__asm__(R"(
    .text
    .balign 16
backline_recorders:
    .set backline_recorder, 0
    .rept 16384
    .balign 16
    hint #34
    mov w16, #backline_recorder
    b backline_recorder_common
    .set backline_recorder, backline_recorder + 1
    .endr
    .balign 16
backline_recorder_common:
    stp x29, x30, [sp, #-16]!
    mov x29, sp
    sub sp, sp, #256
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
2:  ldp x0, x1, [x12]
    ldp x2, x3, [x12, #16]
    ldp x4, x5, [x12, #32]
    ldp x6, x7, [x12, #48]
    ldp q0, q1, [x12, #64]
    ldp q2, q3, [x12, #96]
    ldp q4, q5, [x12, #128]
    ldp q6, q7, [x12, #160]
    ldr x8, [x12, #192]
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

int positions(PyObject *bytes, uint8_t *to, int most) {
    char *data;
    Py_ssize_t count;
    checked(PyBytes_AsStringAndSize(bytes, &data, &count) == 0);
    if (count > most) throw python_error(PyExc_ValueError, "at most %d positions", most);
    for (Py_ssize_t i = 0; i < count; ++i) {
        if (uint8_t(data[i]) >= kWords) throw python_error(PyExc_ValueError, "position %d is past the arguments that are looked at", data[i]);
        to[i] = uint8_t(data[i]);
    }
    return int(count);
}

// The address and the number of a new recorder; None if there is none left. Like a shim it is never changed: a thread may be inside.
PyObject *recorder(void *function, int mode, PyObject *flags, PyObject *integers, int query, int arguments) {
    if (mode < kReference32 || mode > kValue64 || !function || arguments > kWords) throw python_error(PyExc_ValueError, "a function, a mode from 0 to 3, at most %d arguments", kWords);
    if (used == kRecorders) return Py_NewRef(Py_None);
    Recorder &r = recorders[used];
    r.flags = positions(flags, r.flag, kFlags);
    r.integers = positions(integers, r.integer, kIntegers);
    r.function = function, r.mode = mode, r.query = query;
    r.words = arguments < 0 ? kWords : std::max(arguments - kRegisters, 0);
    const char *address = backline_recorders + 16 * used;
    return checked(Py_BuildValue("(Ki)", (unsigned long long)reinterpret_cast<uintptr_t>(address), used++));
}

// Rows of what was called: number of the recorder, flags, integers, whether these are rounded, calls, nanoseconds in all and at least.
PyObject *recorded_calls() {
    Ref list(checked(PyList_New(0)));
    for (const Cell &cell : cells) {
        if (cell.state.load(std::memory_order_acquire) != kReady) continue;
        const uint64_t calls = cell.total.calls.load(std::memory_order_relaxed);
        if (!calls) continue;
        const Recorder &r = recorders[cell.key.recorder];
        Ref integers(checked(PyTuple_New(r.integers)));
        for (int i = 0; i < r.integers; ++i) PyTuple_SET_ITEM(integers.get(), i, checked(PyLong_FromLong(cell.key.integers[i])));
        Ref row(checked(Py_BuildValue("(iy#ONKKK)", int(cell.key.recorder), cell.key.flags, Py_ssize_t(r.flags), integers.get(),
                                      PyBool_FromLong(cell.key.rounded), (unsigned long long)calls,
                                      (unsigned long long)cell.total.nanoseconds.load(std::memory_order_relaxed),
                                      (unsigned long long)cell.least.load(std::memory_order_relaxed))));
        checked(PyList_Append(list.get(), row.get()) == 0);
    }
    return list.release();
}

// Rows by recorder of what has no row above: number, calls and nanoseconds of calls, and of questions for workspace.
PyObject *recorded_rest() {
    Ref list(checked(PyList_New(0)));
    for (int i = 0; i < used; ++i) {
        const Recorder &r = recorders[i];
        const unsigned long long calls = r.unsized.calls, spent = r.unsized.nanoseconds, queries = r.queries.calls, asked = r.queries.nanoseconds;
        if (!calls && !queries) continue;
        Ref row(checked(Py_BuildValue("(iKKKK)", i, calls, spent, queries, asked)));
        checked(PyList_Append(list.get(), row.get()) == 0);
    }
    return list.release();
}

// Sets all counts to zero; the rows stay, because a thread may be about to add to one.
void recorded_reset() {
    for (Cell &cell : cells) cell.total.clear(), cell.least = UINT64_MAX;
    for (int i = 0; i < used; ++i) recorders[i].unsized.clear(), recorders[i].queries.clear();
}

// Whether calls of this thread go unrecorded from now on; returns what held before.
bool recorded_pause(bool pause) { return std::exchange(paused, pause); }

// Timed calls ------------------------------------------------------------------------------------------------------------

constexpr int kReals = 8;
constexpr size_t kArguments = 30;

// Of the arguments that a function does not have, it sees nothing: they are in registers and on the stack past its own.
template <size_t>
using Word = int64_t;
template <class>
struct Call;
template <size_t... I>
struct Call<std::index_sequence<I...>> {
    using Function = void (*)(double, double, double, double, double, double, double, double, Word<I>...);
    static void run(void *function, const double *x, const int64_t *w) {
        reinterpret_cast<Function>(function)(x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], w[I]...);
    }
};

struct Copy {
    void *to;
    const void *from;
    size_t bytes;
};

// Seconds of so many calls with these words, and numbers in the registers of such; before each call operands are copied, untimed.
double timed_calls(void *address, PyObject *words, PyObject *reals, int64_t count, PyObject *copies) {
    int64_t w[kArguments] = {};
    double x[kReals] = {};
    const auto bytes = [](PyObject *object, void *to, size_t most) {
        char *data;
        Py_ssize_t size;
        checked(PyBytes_AsStringAndSize(object, &data, &size) == 0);
        if (size_t(size) > most) throw python_error(PyExc_ValueError, "%zd bytes are more than a call has arguments for", size);
        std::memcpy(to, data, size_t(size));
    };
    bytes(words, w, sizeof(w));
    bytes(reals, x, sizeof(x));
    constexpr int kCopies = 8;
    Copy list[kCopies];
    Ref rows(checked(PySequence_Fast(copies, "copies are a sequence")));
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(rows.get());
    if (size > kCopies || !address) throw python_error(PyExc_ValueError, "a function, and at most %d copies", kCopies);
    for (Py_ssize_t i = 0; i < size; ++i) {
        unsigned long long to, from;
        Py_ssize_t length;
        checked(PyArg_ParseTuple(PySequence_Fast_GET_ITEM(rows.get(), i), "KKn", &to, &from, &length) != 0);
        list[i] = {reinterpret_cast<void *>(uintptr_t(to)), reinterpret_cast<const void *>(uintptr_t(from)), size_t(length)};
    }
    int64_t spent = 0;
    const auto call = [&] { Call<std::make_index_sequence<kArguments>>::run(address, x, w); };
    Py_BEGIN_ALLOW_THREADS;
    if (size == 0) {
        const int64_t start = now();
        for (int64_t i = 0; i < count; ++i) call();
        spent = now() - start;
    } else {
        for (int64_t i = 0; i < count; ++i) {
            for (Py_ssize_t k = 0; k < size; ++k) std::memcpy(list[k].to, list[k].from, list[k].bytes);
            const int64_t start = now();
            call();
            spent += now() - start;
        }
    }
    Py_END_ALLOW_THREADS;
    return double(spent) * 1e-9;
}

PyMethodDef functions[] = {
    function<recorder>("recorder", "A function that notes calls of another: (function, mode, flags, integers, query, arguments)."),
    function<recorded_calls>("recorded_calls", "What was called: (recorder, flags, integers, rounded, calls, nanoseconds, least)."),
    function<recorded_rest>("recorded_rest", "Calls without sizes, and questions for workspace, by recorder."),
    function<recorded_reset>("recorded_reset", "Sets all counts to zero."),
    function<recorded_pause>("recorded_pause", "Whether calls of this thread go unrecorded; returns what held before."),
    function<timed_calls>("timed_calls", "Seconds of so many calls: (function, words, numbers, count, copies)."),
    {}};

}  // namespace

int add_call_recorder(PyObject *module) { return PyModule_AddFunctions(module, functions); }

}  // namespace backline

#else

namespace backline {
int add_call_recorder(PyObject *) { return 0; }
}  // namespace backline

#endif
