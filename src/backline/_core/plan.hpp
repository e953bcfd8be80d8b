// PreparedCall: a Plan as data. Buffers (arguments, results, workspaces, constants) and steps over them (native calls
// with everything filled in but the data pointers, copies, triangles), run without touching Python.
#pragma once
#include "call.hpp"
#include "common.hpp"
#include "copy.hpp"
#include "independent_jobs.hpp"
#include "rwlock.hpp"
#include "thread_count.hpp"

namespace backline {

constexpr int kMaxBuffers = 24;

enum class BufferKind { argument, result, work, constant, kept };

struct Buffer {
    BufferKind kind;
    int argument = -1;               // which array of the call
    Owned<PyArray_Descr> descr;      // results
    std::vector<npy_intp> shape, strides;
    bool fortran = false;
    size_t bytes = 0;     // work, constant, kept
    bool shared = false;  // work: one for all threads, else each has its own
    std::vector<char> constant;
    std::unique_ptr<char[]> aligned;  // constant and kept data, where it lives
    char *start = nullptr;            // kept: its first aligned byte
};

struct Pointer {
    int buffer;
    int64_t offset, stride;      // bytes; stride: from one item of a batch to the next
    const int64_t *table = nullptr;  // or the items' offsets one by one
};

struct Argument {
    bool is_pointer;
    int64_t value;
    Pointer pointer;
    const int64_t *varying = nullptr;  // one value per item instead
};

enum class StepKind { call, copy, triangle, finite, range };

struct Step {
    StepKind kind;
    void *address = nullptr;
    CallInterface interface;
    std::vector<Argument> ints;  // integers and pointers; floats stand apart, as the direct call wants them
    double floats[kMaxFloats] = {0, 0, 0, 0};
    ReturnKind returns = ReturnKind::none;
    Pointer result{}, source{}, target{};
    Copy2D copy{};
    Triangle triangle{};
    Finite finite{};
    Range range{};
    int info_size = 4;
};

// Steps repeated for every item of a batch, on one thread or with the items divided among several.
struct Group {
    int64_t count;
    int threads;
    std::vector<Step> steps;
    JobTime took{};  // a thread's share of it
};
static_assert(std::is_nothrow_move_constructible_v<Group>, "vectors of them grow by moving: a call of libffi's cannot be copied");

struct Overlap {  // out against in: byte ranges relative to the data pointers that must not meet
    int out, in;
    int64_t out_low, out_high, in_low, in_high;
    bool same_allowed;  // the very same memory is fine (an accumulator updated in place)
};

// A mutex, or none. In a forked child it starts anew: the old one may be held by a thread that is not there any more, so it is not
// destroyed either. renew() comes before every hold().
class ForkedMutex {
  public:
    void make() {
        mutex_ = std::make_unique<std::mutex>();
        forks_seen_ = forks.load();
    }
    void renew() {
        if (!mutex_ || forks_seen_ == forks) return;
        StateGuard guard(renewing_);
        if (forks_seen_ == forks) return;
        (void)mutex_.release();
        make();
    }
    explicit operator bool() const { return bool(mutex_); }
    std::unique_lock<std::mutex> hold() { return mutex_ ? std::unique_lock<std::mutex>(*mutex_) : std::unique_lock<std::mutex>(); }

  private:
    std::unique_ptr<std::mutex> mutex_;
    std::atomic<int> forks_seen_{0};
    StateLock renewing_;
};

struct PreparedCall {
    PyObject_HEAD
    std::vector<Buffer> buffers;
    std::vector<Group> groups;
    std::vector<Group> first;  // run by the first call only, before the rest: what it writes to kept buffers stays
    ForkedMutex once;          // one call is the first; not held while the rest runs
    std::atomic<bool> ready;   // whether the first groups have run
    std::vector<Overlap> overlaps;
    std::vector<std::vector<int64_t>> tables;
    std::vector<int> results;  // buffers to return; argument buffers return the argument itself
    int arguments;              // arrays a call has
    PyObject *wrap;             // None, or called with the tuple of results
    PyObject *on_info;          // None, or called as on_info(plan, infos, arrays, results) when an info is not 0
    PyObject *choice;           // set by the engine: the Choice that led here; of a template: None until it is read
    PyObject *origin;           // the PlanTemplate that made it, or None
    std::vector<int64_t> sizes;  // of the arrays, as that template has them
    PyObject *keep;             // objects that must outlive the plan
    ThreadCountGuard *thread_guard;
    ObjectSlot rwlock;  // the ReadWriteLock of its library, or nullptr; the engine sets it
    int threads, info_buffer, info_size;
    int copies, most_threads;   // of workspaces that each thread has its own of; threads of its groups or of its library
    int64_t info_count;
    bool release_gil;
    ForkedMutex turn;  // calls of this plan run one after the other: what it calls keeps state of its own
    std::atomic<bool> failed;  // its library reported an error: the engine makes a new plan next time
    uint64_t lasts;  // runs after which it is outgrown: the engine is asked for another plan; 0 for none
    std::atomic<bool> outgrown;
    Counter runs, used;  // how often it ran, and when last, on a clock that the runs of all plans move: for caches
    int simple;  // 1: one native call, no workspace, no info, no thread_guard: the short path
};

extern PyTypeObject PreparedCallType;
inline bool is_prepared(PyObject *o) { return Py_TYPE(o) == &PreparedCallType; }

// arrays: the array arguments in order. Returns a new reference.
PyObject *run_prepared(PreparedCall *plan, PyObject *const *arrays, int count);

}  // namespace backline
