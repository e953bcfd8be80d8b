// The Python type of a PreparedCall: made, called, looked at, freed.
#include "plan_parse.hpp"

#include "boundary.hpp"

#include <structmember.h>

#include <algorithm>
#include <memory>
#include <new>

namespace backline {
namespace {

bool sound_info(const PreparedCall *plan) {
    int at = plan->info_buffer;
    if (at == -1) return true;
    if (at < 0 || at >= int(plan->buffers.size()) || plan->buffers[size_t(at)].kind != BufferKind::work)
        return fail("info names a buffer that is not there, or is no workspace");
    size_t bytes = plan->buffers[size_t(at)].bytes, size = size_t(plan->info_size);
    if (plan->info_size != 4 && plan->info_size != 8) return fail("an info has 4 or 8 bytes");
    if (plan->info_count < 0 || size_t(plan->info_count) > bytes / size) return fail("there are more infos than their buffer holds");
    return true;
}

// How many threads it needs, and that its workspaces for all of them can be counted in bytes.
bool count_threads(PreparedCall *plan) {
    if (plan->thread_guard && plan->threads < 1) return fail("a thread_guard comes without a thread count");
    plan->copies = 1;
    for (const auto *groups : {&plan->groups, &plan->first})
        for (const Group &g : *groups) plan->copies = std::max(plan->copies, g.threads);
    plan->most_threads = std::max(plan->copies, plan->thread_guard ? plan->threads : 1);
    if (plan->most_threads > kMostThreads) {
        PyErr_Format(PyExc_ValueError, "a plan for %d threads; %d are the most", plan->most_threads, kMostThreads);
        return false;
    }
    size_t sum = 0;
    for (const Buffer &b : plan->buffers) {
        size_t bytes = 0;
        if (b.kind != BufferKind::work) continue;
        if (__builtin_mul_overflow(b.bytes, b.shared ? size_t(1) : size_t(plan->copies), &bytes) ||
            __builtin_add_overflow(sum, bytes, &sum) || sum > size_t(PTRDIFF_MAX) / 2) {
            PyErr_NoMemory();
            return false;
        }
    }
    return true;
}

// Python allocates the object, zeroed; its members of C++ have constructors and destructors.
template <class Run>
void each_member(PreparedCall *self, const Run &run) {
    run(self->buffers), run(self->groups), run(self->first), run(self->once), run(self->overlaps), run(self->tables), run(self->results),
        run(self->turn), run(self->ready), run(self->rwlock), run(self->failed), run(self->runs), run(self->used);
}

void construct(PreparedCall *self) {
    each_member(self, [](auto &member) { new (&member) std::remove_reference_t<decltype(member)>(); });
}

void destroy(PreparedCall *self) { each_member(self, [](auto &member) { std::destroy_at(&member); }); }

PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static const char *names[] = {"arguments", "buffers", "groups", "results", "overlaps", "wrap", "info",
                                  "on_info", "thread_guard", "threads", "release_gil", "keep", "serial", "first", nullptr};
    int arguments, threads = 0, release_gil = 0, serial = 0;
    PyObject *buffers, *groups, *results, *overlaps, *wrap = Py_None, *info = Py_None, *on_info = Py_None, *thread_guard = Py_None,
                                                     *keep = Py_None, *first = nullptr;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iOOOO|$OOOOipOpO", const_cast<char **>(names), &arguments, &buffers, &groups,
                                     &results, &overlaps, &wrap, &info, &on_info, &thread_guard, &threads, &release_gil, &keep, &serial,
                                     &first))
        return nullptr;
    if (thread_guard != Py_None && Py_TYPE(thread_guard) != &ThreadCountGuardType) {
        PyErr_SetString(PyExc_TypeError, "thread_guard must be a ThreadCountGuard or None");
        return nullptr;
    }
    PreparedCall *self = reinterpret_cast<PreparedCall *>(type->tp_alloc(type, 0));
    if (!self) return nullptr;
    construct(self);
    Ref guard(reinterpret_cast<PyObject *>(self));
    self->arguments = arguments;
    self->wrap = Py_NewRef(wrap);
    self->on_info = Py_NewRef(on_info);
    self->choice = Py_NewRef(Py_None);
    self->keep = Py_NewRef(keep);
    self->thread_guard = thread_guard == Py_None ? nullptr : reinterpret_cast<ThreadCountGuard *>(Py_NewRef(thread_guard));
    self->threads = threads;
    self->release_gil = release_gil != 0;
    if (serial) self->turn.make();
    self->info_buffer = -1;
    if (info != Py_None) {
        long long count;
        if (!is_tuple(info, "info is a tuple (buffer, item size, count)")) return nullptr;
        if (!PyArg_ParseTuple(info, "iiL", &self->info_buffer, &self->info_size, &count)) return nullptr;
        self->info_count = count;
    }
    if (!parse_plan(self, buffers, groups, results, overlaps)) return nullptr;
    if (first && first != Py_None && !parse_groups(self, first, &self->first)) return nullptr;
    if (!self->first.empty()) self->once.make();
    if (!sound_info(self) || !count_threads(self)) return nullptr;
    bool works = false;
    for (const Buffer &b : self->buffers) works |= b.kind == BufferKind::work;
    self->simple = !works && !self->thread_guard && !self->turn && !self->release_gil && self->info_buffer < 0 &&
                   self->first.empty() && self->groups.size() == 1 && self->groups.front().count == 1 &&
                   self->groups.front().steps.size() == 1;
    return guard.release();
}

void plan_dealloc(PyObject *raw) {
    PyObject_GC_UnTrack(raw);
    PreparedCall *self = reinterpret_cast<PreparedCall *>(raw);
    self->rwlock.set(nullptr);
    destroy(self);
    Py_XDECREF(self->wrap);
    Py_XDECREF(self->on_info);
    Py_XDECREF(self->choice);
    Py_XDECREF(self->keep);
    Py_XDECREF(reinterpret_cast<PyObject *>(self->thread_guard));
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

PyObject *plan_get_rwlock(PyObject *raw, void *) {
    const Held rwlock = reinterpret_cast<PreparedCall *>(raw)->rwlock.get();
    return Py_NewRef(rwlock ? rwlock.get() : Py_None);
}

int plan_set_rwlock(PyObject *raw, PyObject *value, void *) {
    if (!value || (value != Py_None && Py_TYPE(value) != &ReadWriteLockType)) {
        PyErr_SetString(PyExc_TypeError, "rwlock must be a ReadWriteLock or None");
        return -1;
    }
    reinterpret_cast<PreparedCall *>(raw)->rwlock.set(value == Py_None ? nullptr : value);
    return 0;
}

PyObject *plan_get_failed(PyObject *raw, void *) { return PyBool_FromLong(reinterpret_cast<PreparedCall *>(raw)->failed); }

int plan_set_failed(PyObject *raw, PyObject *value, void *) {
    if (!value || !PyBool_Check(value)) {
        PyErr_SetString(PyExc_TypeError, "failed is True or False");
        return -1;
    }
    reinterpret_cast<PreparedCall *>(raw)->failed = value == Py_True;
    return 0;
}

PyObject *plan_get_runs(PyObject *raw, void *) {
    return PyLong_FromUnsignedLongLong(reinterpret_cast<PreparedCall *>(raw)->runs.get());
}

PyObject *plan_get_used(PyObject *raw, void *) {
    return PyLong_FromUnsignedLongLong(reinterpret_cast<PreparedCall *>(raw)->used.get());
}

PyObject *plan_get_kept_bytes(PyObject *raw, void *) {
    size_t sum = 0;
    for (const Buffer &b : reinterpret_cast<PreparedCall *>(raw)->buffers) sum += b.kind == BufferKind::kept ? b.bytes : 0;
    return PyLong_FromSize_t(sum);
}

PyGetSetDef plan_getset[] = {
    {"kept_bytes", entry<plan_get_kept_bytes>, nullptr, "bytes it keeps between calls: packed weights", nullptr},
    {"rwlock", entry<plan_get_rwlock>, entry<plan_set_rwlock>, "the ReadWriteLock of its library, or None", nullptr},
    {"failed", entry<plan_get_failed>, entry<plan_set_failed>, "whether its library failed to run it: it is not to be used again", nullptr},
    {"runs", entry<plan_get_runs>, nullptr, "how often it ran", nullptr},
    {"used", entry<plan_get_used>, nullptr, "when it ran last, on a clock that every run of a plan moves", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef plan_members[] = {
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
        "PreparedCall(arguments, buffers, groups, results, overlaps, *, wrap, info, on_info, thread_guard, threads, release_gil, keep, serial, first)\n\n"
        "Native calls, copies and triangles over buffers, ready to run on arrays of one layout. The arrays must have the shape,\n"
        "strides and dtype it was prepared for: the Memo sees to that.";
    PreparedCallType.tp_new = entry<plan_new>;
    PreparedCallType.tp_dealloc = plan_dealloc;
    PreparedCallType.tp_traverse = plan_traverse;
    PreparedCallType.tp_clear = plan_clear;
    PreparedCallType.tp_call = entry<plan_call>;
    PreparedCallType.tp_members = plan_members;
    PreparedCallType.tp_getset = plan_getset;
    return PyModule_AddType(module, &PreparedCallType);
}

}  // namespace backline
