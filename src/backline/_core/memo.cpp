#include "boundary.hpp"
#include "array_types.hpp"
#include "plan.hpp"
#include "plan_template.hpp"

#include <algorithm>

namespace backline {
namespace {

struct Entry {
    uint64_t hash = 0, used = 0;
    std::vector<int64_t> words;
    PyObject *plan = nullptr, *operation = nullptr, *snapshot = nullptr;
};

// Never destroyed, and without the indirection of a pointer: other threads may still compute when the process ends.
template <class T>
union Lasting {
    T value;
    template <class... A>
    explicit Lasting(A... arguments) : value(arguments...) {}
    ~Lasting() {}
};

// Open addressing, linear probing, at most half full. All of it is under `lock`, but for reading `generation`.
StateLock lock;
Lasting<std::vector<Entry>> lasting_table(size_t(256));
std::vector<Entry> &table = lasting_table.value;
size_t entries = 0, max_entries = 4096;
uint64_t clock_ = 0, misses = 0;
Counter generation;  // how often it was emptied

enum Tag : int64_t { kArray = 1, kNone, kBool, kInt, kFloat, kComplex, kText, kTuple, kForeign, kScalar };

// References to let go of once the lock is released: a finaliser may call back into the Memo.
struct Garbage : std::vector<PyObject *> {
    ~Garbage() {
        for (PyObject *o : *this) Py_XDECREF(o);
    }
};

void release(Entry &e, Garbage &garbage) {
    for (PyObject *o : {e.plan, e.operation, e.snapshot}) garbage.push_back(o);
}

Entry *slot_for(std::vector<Entry> &in, uint64_t hash, const int64_t *words, size_t count) {
    size_t mask = in.size() - 1;
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
        Entry &e = in[i];
        if (!e.plan || (e.hash == hash && e.words.size() == count &&
                        !std::memcmp(e.words.data(), words, count * sizeof(int64_t))))
            return &e;
    }
}

// Throws std::bad_alloc with the table as it was.
void rebuild(size_t keep, Garbage &garbage) {
    size_t size = 256, kept = std::min(entries, keep);
    while (size < 4 * kept) size *= 2;
    garbage.reserve(garbage.size() + 3 * (entries - kept));
    std::vector<Entry> old(size);
    old.swap(table);
    old.erase(std::remove_if(old.begin(), old.end(), [](const Entry &e) { return !e.plan; }), old.end());
    std::sort(old.begin(), old.end(), [](const Entry &a, const Entry &b) { return a.used > b.used; });
    while (old.size() > keep) {
        release(old.back(), garbage);
        old.pop_back();
    }
    entries = old.size();
    for (Entry &e : old) {
        Entry *slot = slot_for(table, e.hash, e.words.data(), e.words.size());
        *slot = std::move(e);
    }
}

// Takes an entry out, and moves those behind it that it was in the way of.
void take_out(size_t hole, Garbage &garbage) {
    const size_t mask = table.size() - 1;
    release(table[hole], garbage);
    table[hole] = Entry();
    --entries;
    for (size_t i = (hole + 1) & mask; table[i].plan; i = (i + 1) & mask) {
        if (((i - table[i].hash) & mask) < ((i - hole) & mask)) continue;  // it would come before its place
        table[hole] = std::move(table[i]);
        table[i] = Entry();
        hole = i;
    }
}

void memo_forget(PyObject *plans) {
    Ref given(checked(PySequence_Tuple(plans)));
    PyObject **first = PySequence_Fast_ITEMS(given.get()), **last = first + PyTuple_GET_SIZE(given.get());
    std::vector<PyObject *> sought(first, last);
    std::sort(sought.begin(), sought.end());
    Garbage garbage;
    StateGuard guard(lock);
    garbage.reserve(3 * entries);
    auto leads_there = [&](PyObject *plan) {  // one that is written in Python may hold any other
        return is_prepared(plan) ? std::binary_search(sought.begin(), sought.end(), plan) : plan != Py_None;
    };
    for (size_t i = 0; i < table.size();)
        if (table[i].plan && leads_there(table[i].plan)) take_out(i, garbage);  // another may be in its place now
        else ++i;
}

PyObject *memo_info() {
    size_t size, most;
    unsigned long long lookups, missed;
    {
        StateGuard guard(lock);
        size = entries, most = max_entries, lookups = clock_, missed = misses;
    }
    return Py_BuildValue("{s:n,s:n,s:K,s:K}", "size", Py_ssize_t(size), "max_size", Py_ssize_t(most), "lookups", lookups, "misses",
                         missed);
}

void memo_max_size(int64_t most) {
    if (!most) templates_empty();
    if (most < 0) throw python_error(PyExc_ValueError, "the Memo's size is 0 or more");
    Garbage garbage;
    StateGuard guard(lock);
    max_entries = size_t(most);
    if (entries > max_entries) rebuild(max_entries, garbage);
}

PyMethodDef methods[] = {
    function<memo_info>("memo_info", "Entries, bound, lookups and misses of the Memo."),
    function<memo_age>("memo_generation", "How often the Memo was emptied: what others remember of Plans is as old."),
    function<memo_empty>("memo_clear", "Forget every Plan."),
    function<memo_forget>("memo_forget", "Forget some Plans, and those written in Python, which may lead to them."),
    function<memo_max_size>("memo_max_size", "Bound the number of entries; the least recently used go first."),
    {}};

}  // namespace

void Signature::put_argument(PyObject *value, int depth) {
    if (PyArray_CheckExact(value)) {
        PyArrayObject *a = reinterpret_cast<PyArrayObject *>(value);
        PyArray_Descr *descr = PyArray_DESCR(a);
        int nd = PyArray_NDIM(a);
        if (array_count == kArrays || count + 1 + 2 * nd > kWords || !PyArray_ISNBO(descr->byteorder) ||
            PyDataType_FLAGCHK(descr, NPY_ITEM_REFCOUNT)) {
            memoizable = false;
            return;
        }
        array_at[array_count] = count;
        arrays[array_count++] = value;
        int flags = PyArray_FLAGS(a) & (NPY_ARRAY_ALIGNED | NPY_ARRAY_WRITEABLE);
        words[count++] = kArray | int64_t(descr->type_num) << 8 | int64_t(nd) << 32 | int64_t(flags) << 40;
        const npy_intp *shape = PyArray_DIMS(a), *strides = PyArray_STRIDES(a);
        for (int d = 0; d < nd; ++d) words[count++] = shape[d];
        for (int d = 0; d < nd; ++d) words[count++] = strides[d];
    } else if (PyTuple_CheckExact(value) && depth < 2) {
        put(kTuple | int64_t(PyTuple_GET_SIZE(value)) << 8);
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value) && memoizable; ++i)
            put_argument(PyTuple_GET_ITEM(value, i), depth + 1);
    } else if (!put_value(value) && !put_foreign(value)) {
        memoizable = false;
    }
}

void Signature::put_scalar(PyObject *value) {
    int overflow = -1;
    const long long number = PyLong_CheckExact(value) ? PyLong_AsLongLongAndOverflow(value, &overflow) : 0;
    if (overflow < 0 || (!overflow && number < 0)) return put_argument(value);  // refused or converted, as other arguments are
    put(kScalar);
    scalar = value;
}

bool Signature::put_value(PyObject *value) {
    if (value == Py_None) {
        put(kNone);
    } else if (value == Py_True || value == Py_False) {
        put(kBool | int64_t(value == Py_True) << 8);
    } else if (PyLong_CheckExact(value)) {
        int overflow;
        long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (overflow) memoizable = false;
        put(kInt, number);
    } else if (PyFloat_CheckExact(value)) {
        double number = PyFloat_AS_DOUBLE(value);
        int64_t bits;
        std::memcpy(&bits, &number, 8);
        put(kFloat, bits);
    } else if (PyComplex_CheckExact(value)) {
        Py_complex number = PyComplex_AsCComplex(value);
        int64_t bits[2];
        std::memcpy(bits, &number, 16);
        put(kComplex, bits[0], bits[1]);
    } else if (PyUnicode_CheckExact(value) && PyUnicode_IS_COMPACT_ASCII(value) && PyUnicode_GET_LENGTH(value) <= 32) {
        Py_ssize_t length = PyUnicode_GET_LENGTH(value);
        char text[32] = {0};
        int64_t bits[4];
        std::memcpy(text, PyUnicode_DATA(value), size_t(length));
        std::memcpy(bits, text, 32);
        put(kText | length << 8);
        for (int i = 0; i < (length + 7) / 8; ++i) put(bits[i]);
    } else {
        return false;
    }
    return true;
}

bool Signature::put_foreign(PyObject *array) {
    if (!takes_foreign || array_count == kArrays) return false;
    put(kForeign);
    arrays[array_count++] = array;
    return foreign = put_described(*this, array);
}

void memo_empty() {
    templates_empty();
    Garbage garbage;
    StateGuard guard(lock);
    generation.next();
    rebuild(0, garbage);
}

uint64_t memo_age() { return generation.get(); }

uint64_t hash_of(const int64_t *words, int count) {
    uint64_t h = 0x9e3779b97f4a7c15u;
    for (int i = 0; i < count; ++i) {
        h = (h ^ uint64_t(words[i])) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    return h;
}

uint64_t Signature::hash() const { return hash_of(words, count); }

Ref memo_find(const Signature &signature, uint64_t hash) {
    StateGuard guard(lock);
    Entry *e = slot_for(table, hash, signature.words, size_t(signature.count));
    e->used = ++clock_;
    if (!e->plan) ++misses;
    return Ref(Py_XNewRef(e->plan));
}

void memo_put(const Signature &signature, uint64_t hash, PyObject *plan, PyObject *operation, PyObject *snapshot, uint64_t age) {
    Garbage garbage;
    garbage.reserve(3);
    std::vector<int64_t> words(signature.words, signature.words + signature.count);
    StateGuard guard(lock);
    if (!max_entries || age != generation.get()) return;
    if (entries >= max_entries) rebuild(max_entries - max_entries / 8 - 1, garbage);
    else if (2 * (entries + 1) > table.size()) rebuild(max_entries, garbage);
    Entry *e = slot_for(table, hash, signature.words, size_t(signature.count));
    if (e->plan) garbage.reserve(garbage.size() + 3), release(*e, garbage);
    else ++entries;
    e->hash = hash;
    e->used = clock_;
    e->words = std::move(words);
    e->plan = Py_NewRef(plan);
    e->operation = Py_NewRef(operation);
    e->snapshot = Py_NewRef(snapshot);
}

// The plans of a Memo that was emptied go, too.
void OwnMemo::refresh(std::vector<PyObject *> &garbage) {
    const uint64_t now = generation.get();
    if (generation_ == now) return;
    garbage.reserve(2 * entries_.size());
    for (Entry &e : entries_) {
        garbage.push_back(e.plan);
        garbage.push_back(e.snapshot);
    }
    entries_.clear();
    generation_ = now;
}

OwnMemo::Entry *OwnMemo::entry_for(const Signature &signature, uint64_t hash) {
    for (Entry &e : entries_)
        if (e.hash == hash && e.words.size() == size_t(signature.count) &&
            !std::memcmp(e.words.data(), signature.words, e.words.size() * sizeof(int64_t)))
            return &e;
    return nullptr;
}

Ref OwnMemo::find(const Signature &signature, uint64_t hash) {
    Garbage garbage;
    StateGuard guard(lock_);
    refresh(garbage);
    Entry *e = entry_for(signature, hash);
    if (!e) return {};
    e->used = ++clock_;
    return Ref(Py_NewRef(e->plan));
}

void OwnMemo::put(const Signature &signature, uint64_t hash, PyObject *plan, PyObject *snapshot) {
    Garbage garbage;
    std::vector<int64_t> words(signature.words, signature.words + signature.count);
    StateGuard guard(lock_);
    refresh(garbage);
    garbage.reserve(garbage.size() + 2 * (entries_.size() + 1));
    entries_.reserve(entries_.size() + 1);
    auto remove = [&](Entry *e) {
        garbage.push_back(e->plan);
        garbage.push_back(e->snapshot);
        entries_.erase(entries_.begin() + (e - entries_.data()));
    };
    if (Entry *other = entry_for(signature, hash)) remove(other);  // another thread was faster
    auto older = [](const Entry &a, const Entry &b) { return a.used < b.used; };
    while (entries_.size() >= most_) remove(&*std::min_element(entries_.begin(), entries_.end(), older));
    entries_.push_back({hash, ++clock_, std::move(words), Py_NewRef(plan), Py_NewRef(snapshot)});
}

// Allocates nothing: the garbage collector calls it, too.
void OwnMemo::clear() {
    std::vector<Entry> old;
    {
        StateGuard guard(lock_);
        old.swap(entries_);
    }
    for (Entry &e : old) {
        Py_XDECREF(e.plan);
        Py_XDECREF(e.snapshot);
    }
}

int OwnMemo::traverse(visitproc visit, void *arg) const {
    for (const Entry &e : entries_) {
        Py_VISIT(e.plan);
        Py_VISIT(e.snapshot);
    }
    return 0;
}

PyObject *OwnMemo::plans() {
    Garbage garbage;
    std::vector<Ref> plans;
    {
        StateGuard guard(lock_);
        refresh(garbage);
        plans.reserve(entries_.size());
        for (const Entry &e : entries_) plans.emplace_back(Py_NewRef(e.plan));
    }
    Ref list(PyList_New(0));
    for (const Ref &plan : plans)
        if (!list || PyList_Append(list.get(), plan.get()) < 0) return nullptr;
    return list.release();
}

int add_memo(PyObject *module) { return PyModule_AddFunctions(module, methods); }

}  // namespace backline
