// Running a PreparedCall.
#include "plan.hpp"

#include <algorithm>
#include <cstdlib>

#include "boundary.hpp"
#include "clock.hpp"
#include "ended_threads.hpp"
#include "exception_flags.hpp"
#include "pool.hpp"

namespace backline {
namespace {

// Workspaces up to this size are kept per thread; larger ones come from the pool.
constexpr size_t kScratch = size_t(256) << 10;
thread_local std::unique_ptr<char, decltype(&std::free)> scratch{nullptr, &std::free};

struct Run {
    char *base[kMaxBuffers];
    size_t step_per_thread[kMaxBuffers];  // distance of one thread's copy of a workspace to the next one's
};

inline char *at(const Run &run, const Pointer &p, int64_t item, int thread) {
    return run.base[p.buffer] + p.offset + (p.table ? p.table[item] : item * p.stride) +
           int64_t(run.step_per_thread[p.buffer]) * thread;
}

// False from a step that found the item not fit for native code: not finite, or an index out of range.
inline bool run_step(const Step &s, const Run &run, int64_t item, int thread) {
    switch (s.kind) {
        case StepKind::call: {
            int64_t ints[kMaxInts];
            int count = int(s.ints.size());
            for (int i = 0; i < count; ++i) {
                const Argument &a = s.ints[size_t(i)];
                ints[i] = a.is_pointer ? reinterpret_cast<int64_t>(at(run, a.pointer, item, thread))
                          : a.varying  ? a.varying[item]
                                       : a.value;
            }
            if (s.returns == ReturnKind::none) {
                s.interface.call<void>(s.address, ints, count, s.floats);
            } else if (s.returns == ReturnKind::status) {
                int64_t status = int32_t(s.interface.call<int64_t>(s.address, ints, count, s.floats));
                std::memcpy(at(run, s.result, item, thread), &status, size_t(s.info_size));  // little endian
                return status == 0;
            } else {  // both come back in the first floating-point register; a float fills its low half
                double value = s.interface.call<double>(s.address, ints, count, s.floats);
                std::memcpy(at(run, s.result, item, thread), &value, s.returns == ReturnKind::float32 ? 4 : 8);
            }
            return true;
        }
        case StepKind::copy:
            s.copy.run(at(run, s.source, item, thread), at(run, s.target, item, thread));
            return true;
        case StepKind::triangle:
            s.triangle.run(at(run, s.target, item, thread));
            return true;
        case StepKind::finite:
        case StepKind::range: {
            bool finite = s.kind == StepKind::finite;
            const char *data = at(run, s.source, item, thread);
            if (finite ? s.finite.run(data) : s.range.run(data)) return true;
            int64_t info = finite ? s.finite.info : s.range.info;
            std::memcpy(at(run, s.target, item, thread), &info, size_t(s.info_size));  // little endian
            return false;
        }
    }
    return true;
}

struct Share {
    const Group *group;
    const Run *run;
    int threads;
    ThreadCountGuard *local;  // a thread count that holds for one thread only has to be set on every thread of a team
    int in_library;
};

void run_share(int index, void *raw) {
    const Share &share = *static_cast<Share *>(raw);
    int64_t count = share.group->count, threads = share.threads;
    int64_t first = count * index / threads, last = count * (index + 1) / threads;
    ThreadCountGuard *thread_guard = index > 0 ? share.local : nullptr;  // the first job runs on the thread that entered
    int former = thread_guard ? thread_guard->enter(share.in_library) : 0;
    WithoutFlags without;
    for (int64_t item = first; item < last; ++item) {
        bool finite = true;  // an item that is not gets no native calls, but its copies: info and outputs are told
        for (const Step &s : share.group->steps)
            if (finite || s.kind == StepKind::copy) finite &= run_step(s, *share.run, item, index);
    }
    if (thread_guard) thread_guard->leave(former);
}

void run_groups(const PreparedCall *plan, std::vector<Group> &groups, const Run &run) {
    for (Group &g : groups) {
        int threads = int(std::min<int64_t>(std::min(g.threads, team_limit()), g.count));
        bool local = plan->thread_guard && plan->thread_guard->kind == GuardKind::local;
        Share share{&g, &run, std::max(threads, 1), local ? plan->thread_guard : nullptr, plan->threads};
        if (threads > 1) run_independent(threads, run_share, &share, g.took);
        else run_share(0, &share);
    }
}

// OpenBLAS allocates the table of its jobs, half a megabyte, at each call on several threads, and ends the process where it cannot. What
// was free a moment before is free then, too: allocating it here raises the size below which the C library keeps blocks in its heap.
bool has_room() {
    constexpr size_t kJobs = size_t(1) << 20;
    void *volatile block = std::malloc(kJobs);  // volatile: the pair of calls would be left out as without effect
    std::free(block);
    return block != nullptr;
}

// What only the first call does. False if it failed: infos say how, and the next call tries again.
bool run_first(PreparedCall *plan, const Run &run) {
    if (plan->first.empty() || plan->ready.load(std::memory_order_acquire)) return true;
    auto lock = plan->once.hold();
    if (plan->ready) return true;
    size_t infos = plan->info_buffer >= 0 ? size_t(plan->info_size) * size_t(plan->info_count) : 0;
    if (infos) std::memset(run.base[plan->info_buffer], 0, infos);
    run_groups(plan, plan->first, run);
    for (size_t i = 0; i < infos; ++i)
        if (run.base[plan->info_buffer][i]) return false;
    plan->ready.store(true, std::memory_order_release);
    return true;
}

PyObject *allocate(const Buffer &b) {
    PyArray_Descr *descr = b.descr.get();
    Py_INCREF(descr);
    return new_array(descr, int(b.shape.size()), b.shape.data(), b.strides.empty() ? nullptr : b.strides.data(), b.fortran);
}

// Ranges of bytes meet. The Python floor raises if elements do, too: columns of one wide matrix may be in and out.
bool refuse_overlap(PyObject *out, PyObject *in) {
    Ref errors(PyImport_ImportModule("backline.errors"));
    if (!errors) return true;
    Ref result(PyObject_CallMethod(errors.get(), "refuse_overlap", "OO", out, in));
    return !result;
}

// The results of one call, until finish hands them out.
struct Made {
    PyObject *arrays[kMaxBuffers];
    size_t count = 0;
    ~Made() {
        if (!ending())
            for (size_t i = 0; i < count; ++i) Py_XDECREF(arrays[i]);
    }
};

// The workspace of one call: this thread's own, or of the pool.
struct Workspace {
    char *data = nullptr;
    size_t bytes = 0;

    bool take(size_t wanted) {
        bytes = wanted;
        if (bytes > kScratch) {
            data = static_cast<char *>(pool_take(bytes));
        } else {
            if (!scratch) scratch.reset(static_cast<char *>(std::aligned_alloc(64, kScratch)));
            // Taken out while in use: with the GIL released the thread cannot come back here, but a callback could.
            data = scratch.release();
        }
        return data != nullptr;
    }
    ~Workspace() {
        if (!data) return;
        if (bytes > kScratch) pool_give(data, bytes);
        else if (scratch) std::free(data);
        else scratch.reset(data);
    }
};

PyObject *finish(PreparedCall *plan, PyObject *const *arrays, int count, PyObject **made, const Run &run) {
    const std::vector<int> &results = plan->results;
    auto take = [&](int index) -> PyObject * {
        const Buffer &b = plan->buffers[size_t(index)];
        if (b.kind == BufferKind::argument) return Py_NewRef(arrays[b.argument]);
        PyObject *array = made[index];
        made[index] = nullptr;
        return PyArray_Return(reinterpret_cast<PyArrayObject *>(array));
    };
    auto info = [&](int64_t i) {
        const char *infos = run.base[plan->info_buffer];
        return plan->info_size == 8 ? reinterpret_cast<const int64_t *>(infos)[i] : reinterpret_cast<const int32_t *>(infos)[i];
    };
    bool failed = false;
    if (plan->info_buffer >= 0 && plan->on_info != Py_None)
        for (int64_t i = 0; i < plan->info_count && !failed; ++i) failed = info(i) != 0;
    if (results.size() == 1 && plan->wrap == Py_None && !failed) return take(results[0]);
    Ref tuple(PyTuple_New(Py_ssize_t(results.size())));
    if (!tuple) return nullptr;
    for (size_t i = 0; i < results.size(); ++i) {
        PyObject *value = take(results[i]);
        if (!value) return nullptr;
        PyTuple_SET_ITEM(tuple.get(), Py_ssize_t(i), value);
    }
    if (failed) {
        Ref infos(PyList_New(Py_ssize_t(plan->info_count)));
        Ref inputs(PyTuple_New(count));
        if (!infos || !inputs) return nullptr;
        for (int64_t i = 0; i < plan->info_count; ++i) {
            PyObject *number = PyLong_FromLongLong(info(i));
            if (!number) return nullptr;
            PyList_SET_ITEM(infos.get(), Py_ssize_t(i), number);
        }
        for (int i = 0; i < count; ++i) PyTuple_SET_ITEM(inputs.get(), i, Py_NewRef(arrays[i]));
        return PyObject_CallFunctionObjArgs(plan->on_info, plan, infos.get(), inputs.get(), tuple.get(), nullptr);
    }
    if (plan->wrap == Py_None) return tuple.release();
    return PyObject_Call(plan->wrap, tuple.get(), nullptr);
}

}  // namespace

PyObject *run_prepared(PreparedCall *plan, PyObject *const *arrays, int count) {
    const std::vector<Buffer> &buffers = plan->buffers;
    if (count != plan->arguments) {
        PyErr_Format(PyExc_TypeError, "this plan takes %d arrays, %d were given", plan->arguments, count);
        return nullptr;
    }
    static Counter clock;
    plan->used.set(clock.next());
    if (plan->runs.next() == plan->lasts) plan->outgrown = true;
    for (const Overlap &o : plan->overlaps) {
        char *out = PyArray_BYTES(reinterpret_cast<PyArrayObject *>(arrays[o.out]));
        char *in = PyArray_BYTES(reinterpret_cast<PyArrayObject *>(arrays[o.in]));
        if (out + o.out_low < in + o.in_high && in + o.in_low < out + o.out_high && !(o.same_allowed && out == in) &&
            refuse_overlap(arrays[o.out], arrays[o.in]))
            return nullptr;
    }
    Run run;
    Made made;
    size_t work = 0;
    size_t n = buffers.size();
    const size_t copies = size_t(plan->copies);
    if (plan->most_threads > 1) require_threads(plan->most_threads);
    note_thread();
    for (size_t i = 0; i < n; ++i) {
        const Buffer &b = buffers[i];
        run.step_per_thread[i] = 0;
        made.arrays[made.count++] = nullptr;
        switch (b.kind) {
            case BufferKind::argument:
                run.base[i] = PyArray_BYTES(reinterpret_cast<PyArrayObject *>(arrays[b.argument]));
                break;
            case BufferKind::constant: run.base[i] = b.aligned.get(); break;
            case BufferKind::kept: run.base[i] = b.start; break;
            case BufferKind::work:
                run.step_per_thread[i] = b.shared || int(i) == plan->info_buffer ? 0 : b.bytes;  // info is one array for all
                work += b.bytes * (b.shared ? 1 : copies);
                break;
            case BufferKind::result:
                made.arrays[i] = allocate(b);
                if (!made.arrays[i]) return nullptr;
                run.base[i] = PyArray_BYTES(reinterpret_cast<PyArrayObject *>(made.arrays[i]));
                break;
        }
    }
    const Held held = plan->rwlock.get();
    ReadWriteLock *rwlock = reinterpret_cast<ReadWriteLock *>(held.get());
    if (plan->simple) {
        if (rwlock) rwlock->begin_short_call();
        run_step(plan->groups.front().steps.front(), run, 0, 0);
        if (rwlock) rwlock->end_short_call();
        return finish(plan, arrays, count, made.arrays, run);
    }
    Workspace workspace;
    if (work) {
        if (!workspace.take(work)) return PyErr_NoMemory();
        char *next = workspace.data;
        for (size_t i = 0; i < n; ++i)
            if (buffers[i].kind == BufferKind::work) {
                run.base[i] = next;
                next += buffers[i].bytes * (buffers[i].shared ? 1 : copies);
            }
    }
    if (plan->thread_guard && plan->thread_guard->kind == GuardKind::process && plan->threads > 1 && !has_room()) return PyErr_NoMemory();
    auto execute = [&] {
        auto turn = plan->turn.hold();
        // Of OpenBLAS's jobs the team knows itself.
        const bool by_library = plan->threads > 1 && plan->thread_guard && plan->thread_guard->kind != GuardKind::process;
        const int64_t begin = by_library ? wall_time() : 0;
        int former = plan->thread_guard ? plan->thread_guard->enter(plan->threads) : 0;
        if (run_first(plan, run)) run_groups(plan, plan->groups, run);
        if (plan->thread_guard) plan->thread_guard->leave(former);
        if (by_library) library_ran(begin);
    };
    plan->turn.renew();
    plan->once.renew();
    // Without a GIL the thread detaches in any case: it may wait in here for one that has to stop for the garbage collector.
    if (kFreeThreaded || plan->release_gil) {
        Ref alive(Py_XNewRef(held.get()));  // when the plan is given another one meanwhile
        if (rwlock) rwlock->begin_call();
        ReleaseGil released;
        NativeCall native;
        execute();
        if (rwlock) rwlock->end_call();
    } else {
        if (rwlock) rwlock->begin_short_call();
        execute();
    }
    return finish(plan, arrays, count, made.arrays, run);
}

}  // namespace backline
