#include "plan.hpp"

#include <structmember.h>

#include <algorithm>
#include <cstdlib>

#include "pool.hpp"

namespace backline {
namespace {

constexpr int kMaxBuffers = 24;

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
                call_native<void>(s.address, ints, count, s.floats);
            } else if (s.returns == ReturnKind::status) {
                int64_t status = int32_t(call_native<int64_t>(s.address, ints, count, s.floats));
                std::memcpy(at(run, s.result, item, thread), &status, size_t(s.info_size));  // little endian
                return status == 0;
            } else {  // both come back in the first floating-point register; a float fills its low half
                double value = call_native<double>(s.address, ints, count, s.floats);
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
    Gate *local;  // a thread count that holds for one thread only has to be set on every thread of a team
    int in_library;
};

void run_share(int index, void *raw) {
    const Share &share = *static_cast<Share *>(raw);
    int64_t count = share.group->count, threads = share.threads;
    int64_t first = count * index / threads, last = count * (index + 1) / threads;
    Gate *gate = index > 0 ? share.local : nullptr;  // the first job runs on the thread that entered
    int former = gate ? gate->enter(share.in_library) : 0;
    for (int64_t item = first; item < last; ++item) {
        bool finite = true;  // an item that is not gets no native calls, but its copies: info and outputs are told
        for (const Step &s : share.group->steps)
            if (finite || s.kind == StepKind::copy) finite &= run_step(s, *share.run, item, index);
    }
    if (gate) gate->leave(former);
}

void run_groups(const PreparedCall *plan, const std::vector<Group> &groups, const Run &run) {
    for (const Group &g : groups) {
        int threads = int(std::min<int64_t>(std::min(g.threads, team_limit()), g.count));
        bool local = plan->gate && plan->gate->kind == GateKind::local;
        Share share{&g, &run, std::max(threads, 1), local ? plan->gate : nullptr, plan->threads};
        if (threads > 1) run_jobs(threads, run_share, &share);
        else run_share(0, &share);
    }
}

// What only the first call does. False if it failed: infos say how, and the next call tries again.
bool run_first(PreparedCall *plan, const Run &run) {
    if (plan->first->empty() || __atomic_load_n(&plan->ready, __ATOMIC_ACQUIRE)) return true;
    std::lock_guard<std::mutex> lock(*plan->once);
    if (plan->ready) return true;
    size_t infos = plan->info_buffer >= 0 ? size_t(plan->info_size) * size_t(plan->info_count) : 0;
    if (infos) std::memset(run.base[plan->info_buffer], 0, infos);
    run_groups(plan, *plan->first, run);
    for (size_t i = 0; i < infos; ++i)
        if (run.base[plan->info_buffer][i]) return false;
    __atomic_store_n(&plan->ready, 1, __ATOMIC_RELEASE);
    return true;
}

PyObject *allocate(const Buffer &b) {
    Py_INCREF(b.descr);
    return new_array(b.descr, int(b.shape.size()), b.shape.data(), b.strides.empty() ? nullptr : b.strides.data(), b.fortran);
}

// Ranges of bytes meet. The Python floor raises if elements do, too: columns of one wide matrix may be in and out.
bool refuse_overlap(PyObject *out, PyObject *in) {
    Ref errors(PyImport_ImportModule("backline.errors"));
    if (!errors) return true;
    Ref result(PyObject_CallMethod(errors.get(), "refuse_overlap", "OO", out, in));
    return !result;
}

PyObject *finish(PreparedCall *plan, PyObject *const *arrays, int count, PyObject **made, const Run &run) {
    const std::vector<int> &results = *plan->results;
    auto take = [&](int index) -> PyObject * {
        const Buffer &b = (*plan->buffers)[size_t(index)];
        if (b.kind == BufferKind::argument) return Py_NewRef(arrays[b.argument]);
        PyObject *array = made[index];
        made[index] = nullptr;
        return PyArray_Return(reinterpret_cast<PyArrayObject *>(array));
    };
    bool failed = false;
    if (plan->info_buffer >= 0 && plan->on_info != Py_None) {
        const char *info = run.base[plan->info_buffer];
        for (int64_t i = 0; i < plan->info_count && !failed; ++i)
            failed = plan->info_size == 8 ? reinterpret_cast<const int64_t *>(info)[i] != 0
                                          : reinterpret_cast<const int32_t *>(info)[i] != 0;
    }
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
        const char *info = run.base[plan->info_buffer];
        for (int64_t i = 0; i < plan->info_count; ++i) {
            int64_t value = plan->info_size == 8 ? reinterpret_cast<const int64_t *>(info)[i]
                                                 : reinterpret_cast<const int32_t *>(info)[i];
            PyObject *number = PyLong_FromLongLong(value);
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
    const std::vector<Buffer> &buffers = *plan->buffers;
    if (count != plan->arguments) {
        PyErr_Format(PyExc_TypeError, "this plan takes %d arrays, %d were given", plan->arguments, count);
        return nullptr;
    }
    static unsigned long long clock = 0;  // under the GIL
    plan->used = ++clock;
    ++plan->runs;
    for (const Overlap &o : *plan->overlaps) {
        char *out = PyArray_BYTES(reinterpret_cast<PyArrayObject *>(arrays[o.out]));
        char *in = PyArray_BYTES(reinterpret_cast<PyArrayObject *>(arrays[o.in]));
        if (out + o.out_low < in + o.in_high && in + o.in_low < out + o.out_high && !(o.same_allowed && out == in) &&
            refuse_overlap(arrays[o.out], arrays[o.in]))
            return nullptr;
    }
    Run run;
    PyObject *made[kMaxBuffers];
    size_t work = 0;
    int threads = 1;
    size_t n = buffers.size();
    for (const Group &g : *plan->groups) threads = std::max(threads, g.threads);
    for (const Group &g : *plan->first) threads = std::max(threads, g.threads);
    for (size_t i = 0; i < n; ++i) {
        const Buffer &b = buffers[i];
        made[i] = nullptr;
        run.step_per_thread[i] = 0;
        switch (b.kind) {
            case BufferKind::argument:
                run.base[i] = PyArray_BYTES(reinterpret_cast<PyArrayObject *>(arrays[b.argument]));
                break;
            case BufferKind::constant: run.base[i] = b.aligned.get(); break;
            case BufferKind::kept: run.base[i] = b.start; break;
            case BufferKind::work:
                run.step_per_thread[i] = b.shared || int(i) == plan->info_buffer ? 0 : b.bytes;  // info is one array for all
                work += b.bytes * size_t(b.shared ? 1 : threads);
                break;
            case BufferKind::result:
                made[i] = allocate(b);
                if (!made[i]) {
                    for (size_t j = 0; j < i; ++j) Py_XDECREF(made[j]);
                    return nullptr;
                }
                run.base[i] = PyArray_BYTES(reinterpret_cast<PyArrayObject *>(made[i]));
                break;
        }
    }
    auto drop = [&] {  // what finish did not hand out, or all of it after a failure
        for (size_t i = 0; i < n; ++i) Py_XDECREF(made[i]);
    };
    if (plan->simple) {
        if (plan->door) plan->door->pass();
        run_step(plan->groups->front().steps.front(), run, 0, 0);
        PyObject *result = finish(plan, arrays, count, made, run);
        drop();
        return result;
    }
    char *block = nullptr;
    bool pooled = work > kScratch;
    if (work) {
        if (pooled) {
            block = static_cast<char *>(pool_take(work));
        } else {
            if (!scratch) scratch.reset(static_cast<char *>(std::aligned_alloc(64, kScratch)));
            // Taken out while in use: with the GIL released the thread cannot come back here, but a callback could.
            block = scratch.release();
        }
        if (!block) {
            drop();
            return PyErr_NoMemory();
        }
        char *next = block;
        for (size_t i = 0; i < n; ++i)
            if (buffers[i].kind == BufferKind::work) {
                run.base[i] = next;
                next += buffers[i].bytes * size_t(buffers[i].shared ? 1 : threads);
            }
    }
    auto execute = [&] {
        std::unique_lock<std::mutex> turn;
        if (plan->turn) turn = std::unique_lock<std::mutex>(*plan->turn);
        int former = plan->gate ? plan->gate->enter(plan->threads) : 0;
        if (run_first(plan, run)) run_groups(plan, *plan->groups, run);
        if (plan->gate) plan->gate->leave(former);
    };
    if (plan->turn && plan->turn_forks != forks) {
        plan->turn = new std::mutex;  // the old one may be held by a thread that is not there any more
        plan->turn_forks = forks;
    }
    if (plan->once && plan->once_forks != forks) {
        plan->once = new std::mutex;
        plan->once_forks = forks;
    }
    if (plan->door) plan->door->pass();
    if (plan->release_gil) {
        Door *door = plan->door;
        Ref hold_door(Py_XNewRef(reinterpret_cast<PyObject *>(door)));
        if (door) ++door->inside;
        Py_BEGIN_ALLOW_THREADS execute();
        if (door) --door->inside;
        Py_END_ALLOW_THREADS
    } else {
        execute();
    }
    PyObject *result = finish(plan, arrays, count, made, run);
    drop();
    if (pooled) {
        pool_give(block, work);
    } else if (block) {
        if (scratch) std::free(block);
        else scratch.reset(block);
    }
    return result;
}

namespace {

// From Python's description -------------------------------------------------------------------------------------------

bool fail(const char *text) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, text);
    return false;
}

bool parse_ints(PyObject *o, std::vector<int64_t> &out) {
    Ref fast(PySequence_Fast(o, "a sequence of integers"));
    if (!fast) return false;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast.get()); ++i) {
        int64_t v = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(fast.get(), i));
        if (v == -1 && PyErr_Occurred()) return false;
        out.push_back(v);
    }
    return true;
}

bool parse_pointer(PreparedCall *plan, PyObject *o, Pointer &p) {
    PyObject *last;
    if (!PyTuple_Check(o) || PyTuple_GET_SIZE(o) != 3) return fail("a pointer is (buffer, offset, stride or offsets)");
    long buffer = PyLong_AsLong(PyTuple_GET_ITEM(o, 0));
    p.offset = PyLong_AsLongLong(PyTuple_GET_ITEM(o, 1));
    if (PyErr_Occurred()) return false;
    if (buffer < 0 || size_t(buffer) >= plan->buffers->size()) return fail("a pointer names a buffer that is not there");
    p.buffer = int(buffer);
    last = PyTuple_GET_ITEM(o, 2);
    if (PyLong_Check(last)) {
        p.stride = PyLong_AsLongLong(last);
        return !PyErr_Occurred();
    }
    std::vector<int64_t> table;
    if (!parse_ints(last, table)) return false;
    p.stride = 0;
    plan->tables->push_back(std::move(table));
    p.table = plan->tables->back().data();  // moving the outer vector keeps the inner ones' storage
    return true;
}

bool parse_buffer(PyObject *o, Buffer &b) {
    if (!PyTuple_Check(o) || PyTuple_GET_SIZE(o) < 2 || !PyUnicode_Check(PyTuple_GET_ITEM(o, 0)))
        return fail("a buffer is (kind, ...)");
    const char *kind = PyUnicode_AsUTF8(PyTuple_GET_ITEM(o, 0));
    PyObject *value = PyTuple_GET_ITEM(o, 1);
    if (!std::strcmp(kind, "argument")) {
        b.kind = BufferKind::argument;
        b.argument = int(PyLong_AsLong(value));
    } else if (!std::strcmp(kind, "work")) {
        b.kind = BufferKind::work;
        b.bytes = (PyLong_AsSize_t(value) + 63) / 64 * 64;
        b.shared = PyTuple_GET_SIZE(o) > 2 && PyObject_IsTrue(PyTuple_GET_ITEM(o, 2)) == 1;
    } else if (!std::strcmp(kind, "constant")) {
        char *data;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(value, &data, &size) < 0) return false;
        b.kind = BufferKind::constant;
        b.bytes = size_t(size);
        b.aligned.reset(new char[size_t(size) + 16]);
        std::memcpy(b.aligned.get(), data, size_t(size));
    } else if (!std::strcmp(kind, "kept")) {
        b.kind = BufferKind::kept;
        b.bytes = PyLong_AsSize_t(value);
        if (PyErr_Occurred()) return false;
        if (b.bytes <= SIZE_MAX / 2) b.aligned.reset(new (std::nothrow) char[b.bytes + 64]);
        if (!b.aligned) return PyErr_NoMemory(), false;
        b.start = b.aligned.get() + (64 - reinterpret_cast<uintptr_t>(b.aligned.get()) % 64) % 64;
    } else if (!std::strcmp(kind, "result") && PyTuple_GET_SIZE(o) == 4) {
        b.kind = BufferKind::result;
        if (!PyArray_DescrCheck(value)) return fail("a result needs a dtype");
        b.descr = reinterpret_cast<PyArray_Descr *>(Py_NewRef(value));
        std::vector<int64_t> numbers;
        if (!parse_ints(PyTuple_GET_ITEM(o, 2), numbers)) return false;
        b.shape.assign(numbers.begin(), numbers.end());
        PyObject *order = PyTuple_GET_ITEM(o, 3);
        if (PyUnicode_Check(order)) {
            b.fortran = !PyUnicode_CompareWithASCIIString(order, "F");
        } else {
            numbers.clear();
            if (!parse_ints(order, numbers)) return false;
            if (numbers.size() != b.shape.size()) return fail("strides and shape of a result differ in length");
            b.strides.assign(numbers.begin(), numbers.end());
        }
    } else {
        return fail("a buffer's kind is argument, result, work, constant or kept");
    }
    return !PyErr_Occurred();
}

bool parse_step(PreparedCall *plan, PyObject *o, Step &s) {
    if (!PyTuple_Check(o) || PyTuple_GET_SIZE(o) < 1) return fail("a step is a tuple");
    const char *kind = PyUnicode_AsUTF8(PyTuple_GET_ITEM(o, 0));
    if (!kind) return false;
    Py_ssize_t size = PyTuple_GET_SIZE(o);
    if (!std::strcmp(kind, "call") && size == 6) {
        s.kind = StepKind::call;
        s.address = PyLong_AsVoidPtr(PyTuple_GET_ITEM(o, 1));
        if (!s.address) return fail("a call needs an address");
        Ref ints(PySequence_Fast(PyTuple_GET_ITEM(o, 2), "arguments of a call"));
        if (!ints) return false;
        if (PySequence_Fast_GET_SIZE(ints.get()) > kMaxInts) return fail("a call has more integer arguments than can be passed");
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(ints.get()); ++i) {
            PyObject *item = PySequence_Fast_GET_ITEM(ints.get(), i);
            Argument a{};
            if (PyLong_Check(item)) {
                a.value = PyLong_AsLongLong(item);
                if (PyErr_Occurred()) return false;
            } else if (PyList_Check(item)) {
                std::vector<int64_t> table;
                if (!parse_ints(item, table)) return false;
                plan->tables->push_back(std::move(table));
                a.varying = plan->tables->back().data();
            } else {
                a.is_pointer = true;
                if (!parse_pointer(plan, item, a.pointer)) return false;
            }
            s.ints.push_back(a);
        }
        std::vector<int64_t> bits;
        if (!parse_ints(PyTuple_GET_ITEM(o, 3), bits)) return false;
        if (bits.size() > size_t(kMaxFloats)) return fail("a call has more floating arguments than can be passed");
        for (size_t i = 0; i < bits.size(); ++i) std::memcpy(&s.floats[i], &bits[i], 8);
        long returns = PyLong_AsLong(PyTuple_GET_ITEM(o, 4));
        if (returns < 0 || returns > 3) return fail("a call returns nothing (0), a float (1), a double (2) or a status (3)");
        s.returns = ReturnKind(returns);
        s.info_size = plan->info_size;
        return s.returns == ReturnKind::none || parse_pointer(plan, PyTuple_GET_ITEM(o, 5), s.result);
    }
    if (!std::strcmp(kind, "copy") && size == 10) {
        s.kind = StepKind::copy;
        std::vector<int64_t> v;
        for (Py_ssize_t i = 1; i < 8; ++i) v.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(o, i)));
        if (PyErr_Occurred()) return false;
        if (v[0] < 0 || v[0] >= int64_t(Element::count)) return fail("a copy of an unknown element kind");
        s.copy = {Element(v[0]), v[1], v[2], v[3], v[4], v[5], v[6]};
        return parse_pointer(plan, PyTuple_GET_ITEM(o, 8), s.source) && parse_pointer(plan, PyTuple_GET_ITEM(o, 9), s.target);
    }
    if (!std::strcmp(kind, "triangle") && size == 9) {
        s.kind = StepKind::triangle;
        std::vector<int64_t> v;
        for (Py_ssize_t i = 1; i < 8; ++i) v.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(o, i)));
        if (PyErr_Occurred()) return false;
        if (v[0] < 0 || v[0] >= int64_t(TriangleMode::count)) return fail("an unknown triangle mode");
        s.triangle = {TriangleMode(v[0]), v[1], v[2], v[3], v[4], int(v[5]), v[6] != 0};
        return parse_pointer(plan, PyTuple_GET_ITEM(o, 8), s.target);
    }
    if (!std::strcmp(kind, "finite") && size == 9) {
        s.kind = StepKind::finite;
        std::vector<int64_t> v;
        for (Py_ssize_t i = 1; i < 7; ++i) v.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(o, i)));
        if (PyErr_Occurred()) return false;
        if (v[4] != 4 && v[4] != 8) return fail("finite looks at 4- or 8-byte floats");
        s.finite = {v[0], v[1], v[2], v[3], int(v[4]), v[5]};
        s.info_size = plan->info_size;
        return parse_pointer(plan, PyTuple_GET_ITEM(o, 7), s.source) && parse_pointer(plan, PyTuple_GET_ITEM(o, 8), s.target);
    }
    if (!std::strcmp(kind, "range") && size == 8) {
        s.kind = StepKind::range;
        std::vector<int64_t> v;
        for (Py_ssize_t i = 1; i < 6; ++i) v.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(o, i)));
        if (PyErr_Occurred()) return false;
        s.range = {v[0], v[1], v[2], v[3], v[4]};
        s.info_size = plan->info_size;
        return parse_pointer(plan, PyTuple_GET_ITEM(o, 6), s.source) && parse_pointer(plan, PyTuple_GET_ITEM(o, 7), s.target);
    }
    return fail("a step is call, copy, triangle, finite or range with all its fields");
}

bool covers(const PreparedCall *plan, const Step &s, int64_t count) {
    auto long_enough = [&](const int64_t *data) {
        if (!data) return true;
        for (const auto &table : *plan->tables)
            if (table.data() == data) return int64_t(table.size()) >= count;
        return false;
    };
    for (const Argument &a : s.ints)
        if (!long_enough(a.is_pointer ? a.pointer.table : a.varying)) return false;
    return long_enough(s.result.table) && long_enough(s.source.table) && long_enough(s.target.table);
}

bool parse_groups(PreparedCall *plan, PyObject *groups, std::vector<Group> *into) {
    Ref fast(PySequence_Fast(groups, "groups"));
    if (!fast) return false;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast.get()); ++i) {
        long long count;
        int threads;
        PyObject *steps;
        if (!PyArg_ParseTuple(PySequence_Fast_GET_ITEM(fast.get(), i), "LiO", &count, &threads, &steps)) return false;
        if (threads < 1) return fail("a group has at least one thread");
        Group g{count, threads, {}};
        Ref each(PySequence_Fast(steps, "steps"));
        if (!each) return false;
        for (Py_ssize_t j = 0; j < PySequence_Fast_GET_SIZE(each.get()); ++j) {
            Step s{};
            if (!parse_step(plan, PySequence_Fast_GET_ITEM(each.get(), j), s)) return false;
            g.steps.push_back(std::move(s));
        }
        for (const Step &s : g.steps)
            if (!covers(plan, s, count)) return fail("a table of offsets or values is shorter than the group has items");
        into->push_back(std::move(g));
    }
    return true;
}

bool build(PreparedCall *plan, PyObject *buffers, PyObject *groups, PyObject *results, PyObject *overlaps) {
    Ref fast(PySequence_Fast(buffers, "buffers"));
    if (!fast) return false;
    Py_ssize_t n = PySequence_Fast_GET_SIZE(fast.get());
    if (n > kMaxBuffers) return fail("too many buffers in one plan");
    for (Py_ssize_t i = 0; i < n; ++i) {
        plan->buffers->emplace_back();
        if (!parse_buffer(PySequence_Fast_GET_ITEM(fast.get(), i), plan->buffers->back())) return false;
        const Buffer &b = plan->buffers->back();
        if (b.kind == BufferKind::argument && (b.argument < 0 || b.argument >= plan->arguments))
            return fail("a buffer names an argument that is not there");
    }
    if (!parse_groups(plan, groups, plan->groups)) return false;
    std::vector<int64_t> order;
    if (!parse_ints(results, order)) return false;
    for (int64_t index : order) {
        if (index < 0 || size_t(index) >= plan->buffers->size()) return fail("a result names a buffer that is not there");
        BufferKind kind = (*plan->buffers)[size_t(index)].kind;
        if (kind != BufferKind::result && kind != BufferKind::argument) return fail("only arguments and results can be returned");
        plan->results->push_back(int(index));
    }
    fast.reset(PySequence_Fast(overlaps, "overlaps"));
    if (!fast) return false;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast.get()); ++i) {
        Overlap o{};
        int same;
        long long a, b, c, d;
        if (!PyArg_ParseTuple(PySequence_Fast_GET_ITEM(fast.get(), i), "iLLiLLp", &o.out, &a, &b, &o.in, &c, &d, &same))
            return false;
        if (o.out < 0 || o.out >= plan->arguments || o.in < 0 || o.in >= plan->arguments)
            return fail("an overlap names an argument that is not there");
        o.out_low = a, o.out_high = b, o.in_low = c, o.in_high = d, o.same_allowed = same != 0;
        plan->overlaps->push_back(o);
    }
    return true;
}

PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static const char *names[] = {"arguments", "buffers", "groups", "results", "overlaps", "wrap", "info",
                                  "on_info", "gate", "threads", "release_gil", "keep", "serial", "first", nullptr};
    int arguments, threads = 0, release_gil = 0, serial = 0;
    PyObject *buffers, *groups, *results, *overlaps, *wrap = Py_None, *info = Py_None, *on_info = Py_None, *gate = Py_None,
                                                     *keep = Py_None, *first = nullptr;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iOOOO|$OOOOipOpO", const_cast<char **>(names), &arguments, &buffers, &groups,
                                     &results, &overlaps, &wrap, &info, &on_info, &gate, &threads, &release_gil, &keep, &serial,
                                     &first))
        return nullptr;
    if (gate != Py_None && Py_TYPE(gate) != &GateType) {
        PyErr_SetString(PyExc_TypeError, "gate must be a Gate or None");
        return nullptr;
    }
    PreparedCall *self = reinterpret_cast<PreparedCall *>(type->tp_alloc(type, 0));
    if (!self) return nullptr;
    Ref guard(reinterpret_cast<PyObject *>(self));
    self->buffers = new std::vector<Buffer>;
    self->groups = new std::vector<Group>;
    self->first = new std::vector<Group>;
    self->overlaps = new std::vector<Overlap>;
    self->tables = new std::vector<std::vector<int64_t>>;
    self->results = new std::vector<int>;
    self->arguments = arguments;
    self->wrap = Py_NewRef(wrap);
    self->on_info = Py_NewRef(on_info);
    self->choice = Py_NewRef(Py_None);
    self->keep = Py_NewRef(keep);
    self->gate = gate == Py_None ? nullptr : reinterpret_cast<Gate *>(Py_NewRef(gate));
    self->threads = threads;
    self->release_gil = release_gil != 0;
    if (serial) {
        self->turn = new std::mutex;
        self->turn_forks = forks;
    }
    self->info_buffer = -1;
    if (info != Py_None) {
        long long count;
        if (!PyArg_ParseTuple(info, "iiL", &self->info_buffer, &self->info_size, &count)) return nullptr;
        self->info_count = count;
    }
    if (!build(self, buffers, groups, results, overlaps)) return nullptr;
    if (first && first != Py_None && !parse_groups(self, first, self->first)) return nullptr;
    if (!self->first->empty()) {
        self->once = new std::mutex;
        self->once_forks = forks;
    }
    if (self->info_buffer >= int(self->buffers->size()) || (self->gate && threads < 1)) {
        fail("info names a buffer that is not there, or a gate comes without a thread count");
        return nullptr;
    }
    bool works = false;
    for (const Buffer &b : *self->buffers) works |= b.kind == BufferKind::work;
    self->simple = !works && !self->gate && !self->turn && !self->release_gil && self->info_buffer < 0 && self->first->empty() &&
                   self->groups->size() == 1 &&
                   self->groups->front().count == 1 && self->groups->front().steps.size() == 1;
    return guard.release();
}

void plan_dealloc(PyObject *raw) {
    PyObject_GC_UnTrack(raw);
    PreparedCall *self = reinterpret_cast<PreparedCall *>(raw);
    if (self->buffers)
        for (Buffer &b : *self->buffers) Py_XDECREF(b.descr);
    delete self->buffers;
    delete self->groups;
    delete self->first;
    delete self->once;
    delete self->overlaps;
    delete self->tables;
    delete self->results;
    Py_XDECREF(self->wrap);
    Py_XDECREF(self->on_info);
    Py_XDECREF(self->choice);
    Py_XDECREF(self->keep);
    Py_XDECREF(reinterpret_cast<PyObject *>(self->gate));
    Py_XDECREF(reinterpret_cast<PyObject *>(self->door));
    delete self->turn;
    Py_TYPE(raw)->tp_free(raw);
}

int plan_traverse(PyObject *raw, visitproc visit, void *arg) {
    PreparedCall *self = reinterpret_cast<PreparedCall *>(raw);
    Py_VISIT(self->wrap);
    Py_VISIT(self->on_info);
    Py_VISIT(self->choice);
    Py_VISIT(self->keep);
    return 0;
}

int plan_clear(PyObject *raw) {
    PreparedCall *self = reinterpret_cast<PreparedCall *>(raw);
    for (PyObject **slot : {&self->wrap, &self->on_info, &self->choice, &self->keep}) {
        PyObject *old = *slot;
        *slot = Py_NewRef(Py_None);
        Py_XDECREF(old);
    }
    return 0;
}

PyObject *plan_call(PyObject *raw, PyObject *args, PyObject *kwargs) {
    if (kwargs && PyDict_GET_SIZE(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "a plan takes arrays by position only");
        return nullptr;
    }
    Py_ssize_t n = PyTuple_GET_SIZE(args);
    std::vector<PyObject *> arrays;
    for (Py_ssize_t i = 0; i < n; ++i) {
        if (!PyArray_Check(PyTuple_GET_ITEM(args, i))) {
            PyErr_SetString(PyExc_TypeError, "a plan takes NumPy arrays");
            return nullptr;
        }
        arrays.push_back(PyTuple_GET_ITEM(args, i));
    }
    return run_prepared(reinterpret_cast<PreparedCall *>(raw), arrays.data(), int(n));
}

PyObject *plan_get_door(PyObject *raw, void *) {
    Door *door = reinterpret_cast<PreparedCall *>(raw)->door;
    return Py_NewRef(door ? reinterpret_cast<PyObject *>(door) : Py_None);
}

int plan_set_door(PyObject *raw, PyObject *value, void *) {
    if (!value || (value != Py_None && Py_TYPE(value) != &DoorType)) {
        PyErr_SetString(PyExc_TypeError, "door must be a Door or None");
        return -1;
    }
    PreparedCall *self = reinterpret_cast<PreparedCall *>(raw);
    PyObject *old = reinterpret_cast<PyObject *>(self->door);
    self->door = value == Py_None ? nullptr : reinterpret_cast<Door *>(Py_NewRef(value));
    Py_XDECREF(old);
    return 0;
}

PyObject *plan_get_kept_bytes(PyObject *raw, void *) {
    size_t sum = 0;
    for (const Buffer &b : *reinterpret_cast<PreparedCall *>(raw)->buffers) sum += b.kind == BufferKind::kept ? b.bytes : 0;
    return PyLong_FromSize_t(sum);
}

PyGetSetDef plan_getset[] = {{"kept_bytes", plan_get_kept_bytes, nullptr, "bytes it keeps between calls: packed weights", nullptr},
                             {"door", plan_get_door, plan_set_door, "the Door of its library, or None", nullptr},
                             {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef plan_members[] = {
    {"failed", T_BOOL, offsetof(PreparedCall, failed), 0, "whether its library failed to run it: it is not to be used again"},
    {"runs", T_ULONGLONG, offsetof(PreparedCall, runs), READONLY, "how often it ran"},
    {"used", T_ULONGLONG, offsetof(PreparedCall, used), READONLY, "when it ran last, on a clock that every run of a plan moves"},
    {"choice", T_OBJECT, offsetof(PreparedCall, choice), 0, "the Choice this plan carries out"},
    {"keep", T_OBJECT, offsetof(PreparedCall, keep), READONLY, "objects that live as long as the plan"},
    {"threads", T_INT, offsetof(PreparedCall, threads), READONLY, "threads its library is given"},
    {"arguments", T_INT, offsetof(PreparedCall, arguments), READONLY, "arrays a call has"},
    {nullptr, 0, 0, 0, nullptr}};

}  // namespace

PyTypeObject PreparedCallType = {PyVarObject_HEAD_INIT(nullptr, 0)};

int add_plan_types(PyObject *module) {
    PreparedCallType.tp_name = "backline._core.PreparedCall";
    PreparedCallType.tp_basicsize = sizeof(PreparedCall);
    PreparedCallType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
    PreparedCallType.tp_doc =
        "PreparedCall(arguments, buffers, groups, results, overlaps, *, wrap, info, on_info, gate, threads, release_gil, keep, serial, first)\n\n"
        "Native calls, copies and triangles over buffers, ready to run on arrays of one layout. The arrays must have the shape,\n"
        "strides and dtype it was prepared for: the Memo sees to that.";
    PreparedCallType.tp_new = plan_new;
    PreparedCallType.tp_dealloc = plan_dealloc;
    PreparedCallType.tp_traverse = plan_traverse;
    PreparedCallType.tp_clear = plan_clear;
    PreparedCallType.tp_call = plan_call;
    PreparedCallType.tp_members = plan_members;
    PreparedCallType.tp_getset = plan_getset;
    return PyModule_AddType(module, &PreparedCallType);
}

}  // namespace backline
