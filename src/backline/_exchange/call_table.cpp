// The table of calls in this process or in a file, and its rows for Python.
#include "call_table.hpp"

#if BACKLINE_HAS_EXCHANGE
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

namespace backline {
namespace {

constexpr char kForm[32] = "backline calls, form 1";

Table own;
Table *table = &own;  // another one only before the first routine is named

// The entry of a hashed array that `same` accepts, or a new one that `fill` has filled; nullptr if there is neither.
template <class Entry, class Same, class Fill>
Entry *find_or_fill(Entry *entries, int count, size_t first, const Same &same, const Fill &fill) {
    for (int i = 0; i < kProbes; ++i) {
        Entry &entry = entries[(first + size_t(i)) % size_t(count)];
        int32_t state = entry.state.load(std::memory_order_acquire);
        if (state == kEmpty && entry.state.compare_exchange_strong(state, kWriting, std::memory_order_acq_rel)) {
            fill(entry);
            entry.state.store(kReady, std::memory_order_release);
            return &entry;
        }
        // Another thread is writing it, for a moment. Where that has ended with its process, or in a forked child, it stays so: go on.
        for (int wait = 0; state == kWriting && wait < 1000; ++wait) state = entry.state.load(std::memory_order_acquire);
        if (state == kReady && same(entry)) return &entry;
    }
    return nullptr;
}

template <size_t Size>
size_t hashed(const void *bytes) {
    static_assert(Size % 8 == 0);
    uint64_t words[Size / 8], hash = 0x9E3779B97F4A7C15u;
    std::memcpy(words, bytes, Size);
    for (const uint64_t word : words) hash = (hash ^ word) * 0xFF51AFD7ED558CCDu, hash ^= hash >> 32;
    return size_t(hash);
}

bool is_table(const Table &t) { return std::memcmp(t.form, kForm, sizeof(kForm)) == 0; }

[[noreturn]] void fail(PyObject *path) {
    PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path);
    throw PythonError();
}

struct File {
    int number;
    explicit File(int number_) : number(number_) {}
    ~File() {
        if (number >= 0) close(number);
    }
    File(const File &) = delete;
    File &operator=(const File &) = delete;
};

Ref encoded(PyObject *path) {
    PyObject *bytes;
    checked(PyUnicode_FSConverter(path, &bytes) != 0);
    return Ref(bytes);
}

// Notes what this process calls, and what its forked children do, in a new file from now on.
void record_in_file(PyObject *path) {
    if (table != &own) throw python_error(PyExc_ValueError, "calls are noted in a file already");
    for (const Routine &r : own.routines)
        if (r.state.load(std::memory_order_relaxed) != kEmpty) throw python_error(PyExc_ValueError, "calls are noted already: a file comes before the first recorder");
    const Ref name = encoded(path);
    const File file(open(PyBytes_AS_STRING(name.get()), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (file.number < 0) fail(path);
    // Where there is no room for it, that has to be known now: a page that cannot be written later ends the process.
    if (const int error = posix_fallocate(file.number, 0, sizeof(Table))) errno = error, fail(path);
    void *address = mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED, file.number, 0);
    if (address == MAP_FAILED) fail(path);
    table = static_cast<Table *>(address);
    std::memcpy(table->form, kForm, sizeof(kForm));
    table->processes = 1;
}

// Counts this process among those of its file: called in a forked child.
void recorded_fork() { table->processes.fetch_add(1, std::memory_order_relaxed); }

std::unique_ptr<Table> read_table(PyObject *path) {
    const Ref name = encoded(path);
    const File file(open(PyBytes_AS_STRING(name.get()), O_RDONLY | O_CLOEXEC));
    if (file.number < 0) fail(path);
    auto copy = std::make_unique<Table>();
    char *to = reinterpret_cast<char *>(copy.get());
    size_t size = 0;
    while (size < sizeof(Table)) {
        const ssize_t more = read(file.number, to + size, sizeof(Table) - size);
        if (more < 0 && errno != EINTR) fail(path);
        if (more == 0) break;
        size += more > 0 ? size_t(more) : 0;
    }
    if (size != sizeof(Table) || !is_table(*copy)) throw python_error(PyExc_ValueError, "%R is no table of calls of this version", path);
    return copy;
}

PyObject *name_of(const Routine &r) { return checked(PyUnicode_DecodeASCII(r.name, Py_ssize_t(strnlen(r.name, kLetters)), "replace")); }

void add_cells(const Table &t, PyObject *list) {
    for (const Cell &cell : t.cells) {
        const unsigned long long calls = cell.total.calls.load(std::memory_order_relaxed);
        if (cell.state.load(std::memory_order_acquire) != kReady || !calls) continue;
        if (cell.key.routine < 0 || cell.key.routine >= kNames) continue;  // of a damaged file
        Ref integers(checked(PyTuple_New(kIntegers)));
        for (int i = 0; i < kIntegers; ++i) PyTuple_SET_ITEM(integers.get(), i, checked(PyLong_FromLong(cell.key.integers[i])));
        const Ref name(name_of(t.routines[cell.key.routine]));
        Ref row(checked(Py_BuildValue("(Oy#ONKKK)", name.get(), cell.key.flags, Py_ssize_t(kFlags), integers.get(), PyBool_FromLong(cell.key.rounded),
                                      calls, (unsigned long long)cell.total.nanoseconds.load(std::memory_order_relaxed),
                                      (unsigned long long)cell.least.load(std::memory_order_relaxed))));
        checked(PyList_Append(list, row.get()) == 0);
    }
}

void add_routines(const Table &t, PyObject *list) {
    for (const Routine &r : t.routines) {
        const unsigned long long calls = r.unsized.calls, spent = r.unsized.nanoseconds;
        if (r.state.load(std::memory_order_acquire) != kReady || !calls) continue;
        const Ref name(name_of(r));
        Ref row(checked(Py_BuildValue("(OKK)", name.get(), calls, spent)));
        checked(PyList_Append(list, row.get()) == 0);
    }
}

// What was noted, in this process or in a file: how many processes did, rows of calls with sizes, rows of those without.
PyObject *recorded(PyObject *path) {
    std::unique_ptr<Table> copy;
    if (path != Py_None) copy = read_table(path);
    const Table &t = copy ? *copy : *table;
    Ref sized(checked(PyList_New(0))), rest(checked(PyList_New(0)));
    add_cells(t, sized.get());
    add_routines(t, rest.get());
    return checked(Py_BuildValue("(iOO)", int(t.processes), sized.get(), rest.get()));
}

PyMethodDef functions[] = {
    function<record_in_file>("record_in_file", "Notes calls in a new file, from before the first recorder on: (path)."),
    function<recorded_fork>("recorded_fork", "Counts a forked child among the processes of its file."),
    function<recorded>("recorded", "What was noted here (None) or in a file: (processes, [(routine, flags, integers, rounded, calls, nanoseconds, "
                                   "least)], [(routine, calls, nanoseconds)])."),
    {}};

}  // namespace

Table &call_table() { return *table; }

int routine_number(const char *name) {
    char text[kLetters] = {};
    std::strncpy(text, name, kLetters - 1);
    const auto same = [&](const Routine &r) { return std::memcmp(r.name, text, kLetters) == 0; };
    const auto fill = [&](Routine &r) { std::memcpy(r.name, text, kLetters); };
    const Routine *found = find_or_fill(table->routines, kNames, hashed<kLetters>(text), same, fill);
    return found ? int(found - table->routines) : -1;
}

Cell *find_cell(const Key &key) {
    const auto fill = [&](Cell &cell) {
        cell.key = key;
        table->filled.fetch_add(1, std::memory_order_relaxed);
    };
    return find_or_fill(table->cells, kCells, hashed<sizeof(Key)>(&key), [&](const Cell &cell) { return cell.key == key; }, fill);
}

int32_t rounded_size(int32_t value) {
    if (value < 4) return value;
    const int shift = 30 - __builtin_clz(uint32_t(value));
    return int32_t(std::min<int64_t>(((int64_t(value) + (int64_t(1) << shift) - 1) >> shift) << shift, INT32_MAX));
}

int add_call_table(PyObject *module) { return PyModule_AddFunctions(module, functions); }

}  // namespace backline

#else

namespace backline {
int add_call_table(PyObject *) { return 0; }
}  // namespace backline

#endif
