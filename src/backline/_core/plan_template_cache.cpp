// Which templates of Plans there are for a kind of call, and whether one more ought to be made.
#include "plan_template.hpp"

#include <algorithm>
#include <unordered_map>

namespace backline {
namespace {

// Calls of one operation, Snapshot, dtypes, ranks and parameters: all of the key but sizes and strides.
struct CallClass {
    std::vector<int64_t> words;
    PyObject *operation = nullptr, *snapshot = nullptr;
    uint64_t unknown = 0, tried = 0, used = 0;  // calls that no template fitted; attempts to make one, and how often one fitted
    std::vector<PyObject *> templates;         // the one that fitted last comes first
};

// A template is worth its time where sizes keep changing: after some calls with sizes of their own, and as long as the ones there are
// are used. The numbers bound what is kept.
constexpr uint64_t kUnknown = 8, kTriedFirst = 16, kUses = 8;
constexpr size_t kMostClasses = 256, kMostTemplates = 1024, kMostOfClass = 256;

using Classes = std::unordered_map<uint64_t, CallClass>;
StateLock lock;
Classes &classes = *new Classes;  // never destroyed: other threads may still compute when the process ends
size_t kept = 0;                  // templates of all classes

struct Garbage : std::vector<PyObject *> {
    ~Garbage() {
        for (PyObject *o : *this) Py_XDECREF(o);
    }
};

struct ClassKey {
    int64_t words[Signature::kWords];
    int count = 0;
    uint64_t hash;

    explicit ClassKey(const Signature &s) {
        int array = 0;
        for (int i = 0; i < s.count;) {
            words[count++] = s.words[i];
            const bool is_array = array < s.array_count && s.array_at[array] == i;
            i += 1 + (is_array ? 2 * PyArray_NDIM(as<PyArrayObject>(s.arrays[array++])) : 0);
        }
        hash = hash_of(words, count);
    }
    bool is(const CallClass &c) const {
        return c.words.size() == size_t(count) && !std::memcmp(c.words.data(), words, size_t(count) * sizeof(int64_t));
    }
};

void release(CallClass &c, Garbage &garbage) {
    garbage.insert(garbage.end(), c.templates.begin(), c.templates.end());
    garbage.push_back(c.operation);
    garbage.push_back(c.snapshot);
    kept -= c.templates.size();
}

void release_all(Garbage &garbage) {
    garbage.reserve(kept + 2 * classes.size());
    for (auto &[_, c] : classes) release(c, garbage);
    classes.clear();
}

}  // namespace

FoundTemplate template_find(const Signature &s) {
    FoundTemplate found;
    const ClassKey key(s);
    StateGuard guard(lock);
    auto at = classes.find(key.hash);
    if (at == classes.end() || !key.is(at->second)) return found;
    CallClass &c = at->second;
    found.known = true;
    for (size_t i = 0; i < c.templates.size(); ++i) {
        const Fit fit = template_fits(c.templates[i], s);
        if (fit == Fit::ask && !found.near) found.near.reset(Py_NewRef(c.templates[i]));
        if (fit != Fit::yes) continue;
        found.near.reset();
        std::rotate(c.templates.begin(), c.templates.begin() + long(i), c.templates.begin() + long(i) + 1);
        ++c.used;
        found.made.reset(Py_NewRef(c.templates.front()));
        found.plans = template_plans(c.templates.front());
        return found;
    }
    if (found.near) return found;
    found.due = ++c.unknown > kUnknown && c.tried < kTriedFirst + c.used / kUses;
    c.tried += found.due;
    return found;
}

void template_put(const Signature &s, PyObject *made, PyObject *operation, PyObject *snapshot, uint64_t age) {
    const ClassKey key(s);
    Garbage garbage;
    garbage.reserve(4);
    std::vector<int64_t> words(key.words, key.words + key.count);
    StateGuard guard(lock);
    if (age != memo_age()) return;
    if (kept >= kMostTemplates || classes.size() >= kMostClasses) release_all(garbage);
    CallClass &c = classes[key.hash];
    if (!key.is(c)) {  // a new one, or another of the same hash
        garbage.reserve(garbage.size() + c.templates.size() + 2);
        release(c, garbage);
        c = CallClass{std::move(words), Py_NewRef(operation), Py_NewRef(snapshot)};
    }
    if (!made) return;
    if (c.templates.size() >= kMostOfClass) {
        garbage.push_back(c.templates.back());
        c.templates.pop_back();
        --kept;
    }
    template_add(made, s, true);
    c.templates.insert(c.templates.begin(), Py_NewRef(made));
    ++kept;
}

void template_note(PyObject *made, const Signature &s, bool same) {
    StateGuard guard(lock);
    template_add(made, s, same);
}

void templates_empty() {
    Garbage garbage;
    StateGuard guard(lock);
    release_all(garbage);
}

}  // namespace backline
