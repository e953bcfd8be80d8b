// Memo: from the signature of a call (operation, switches, layouts of arrays, parameters) to its Plan.
#pragma once
#include "locks.hpp"

namespace backline {

// The words that tell two calls apart, and the arrays found on the way. Fixed size: a call that needs more is not memoised.
struct Signature {
    static constexpr int kWords = 384, kArrays = 72;
    int64_t words[kWords];
    int count = 0;
    PyObject *arrays[kArrays];
    int array_count = 0;
    int array_at[kArrays];  // the word of each array of the call that tells its dtype; its sizes and strides follow
    bool memoizable = true;
    PyObject *scalar = nullptr;  // the run-time scalar of the call, borrowed; nullptr for none
    bool takes_foreign = false, foreign = false;  // arrays that are not NumPy's: whether they may, and do, belong to the call

    void put(int64_t word) {
        if (count < kWords) words[count++] = word;
        else memoizable = false;
    }
    template <class... More>
    void put(int64_t word, More... more) {
        put(word);
        (put(more), ...);
    }
    void put_argument(PyObject *value, int depth = 0);
    void put_scalar(PyObject *value);  // of an int from 0 on, only that there is one becomes part of the key
    bool put_value(PyObject *value);  // a number or a short text; false for anything else
    bool put_foreign(PyObject *array);  // may run Python code
    uint64_t hash() const;
};

void memo_empty();
uint64_t hash_of(const int64_t *words, int count);
uint64_t memo_age();  // how often it was emptied
Ref memo_find(const Signature &signature, uint64_t hash);  // or nullptr
// Keeps references to the plan, the operation and the Snapshot, so that their addresses in the key stay theirs. Keeps nothing if the
// Memo was emptied since `age`.
void memo_put(const Signature &signature, uint64_t hash, PyObject *plan, PyObject *operation, PyObject *snapshot, uint64_t age);

// The Memo of one Operation that owns operands: few plans, the least recently used goes first, and all go with it.
// Whatever empties the Memo empties these.
class OwnMemo {
  public:
    explicit OwnMemo(size_t most) : most_(most) {}
    ~OwnMemo() { clear(); }
    Ref find(const Signature &signature, uint64_t hash);  // or nullptr
    void put(const Signature &signature, uint64_t hash, PyObject *plan, PyObject *snapshot);
    void clear();
    int traverse(visitproc visit, void *arg) const;  // takes no lock: the garbage collector stops the other threads
    PyObject *plans();                               // a new list

  private:
    struct Entry {
        uint64_t hash, used;
        std::vector<int64_t> words;
        PyObject *plan, *snapshot;
    };
    Entry *entry_for(const Signature &signature, uint64_t hash);
    void refresh(std::vector<PyObject *> &garbage);

    StateLock lock_;
    std::vector<Entry> entries_;
    size_t most_;
    uint64_t clock_ = 0, generation_ = 0;
};

}  // namespace backline
