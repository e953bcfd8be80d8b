// The Python type of a PreparedCall: made, called, looked at, freed.
#include "plan_parse.hpp"

#include "boundary.hpp"
#include "plan_template.hpp"

#include <structmember.h>

#include <algorithm>
#include <memory>
#include <new>

namespace backline {
namespace {

void check_info(const PreparedCall *plan) {
    int at = plan->info_buffer;
    if (at == -1) return;
    if (at < 0 || at >= int(plan->buffers.size()) || plan->buffers[size_t(at)].kind != BufferKind::work)
        fail("info names a buffer that is not there, or is no workspace");
    size_t bytes = plan->buffers[size_t(at)].bytes, size = size_t(plan->info_size);
    if (plan->info_size != 4 && plan->info_size != 8) fail("an info has 4 or 8 bytes");
    if (plan->info_count < 0 || size_t(plan->info_count) > bytes / size) fail("there are more infos than their buffer holds");
}

// How many threads it needs, and that its workspaces for all of them can be counted in bytes.
void count_threads(PreparedCall *plan) {
    if (plan->thread_guard && plan->threads < 1) fail("a thread_guard comes without a thread count");
    plan->copies = 1;
    for (const auto *groups : {&plan->groups, &plan->first})
        for (const Group &g : *groups) plan->copies = std::max(plan->copies, g.threads);
    plan->most_threads = std::max(plan->copies, plan->thread_guard ? plan->threads : 1);
    if (plan->most_threads > kMostThreads)
        throw python_error(PyExc_ValueError, "a plan for %d threads; %d are the most", plan->most_threads, kMostThreads);
    size_t sum = 0;
    for (const Buffer &b : plan->buffers) {
        size_t bytes = 0;
        if (b.kind != BufferKind::work) continue;
        if (__builtin_mul_overflow(b.bytes, b.shared ? size_t(1) : size_t(plan->copies), &bytes) ||
            __builtin_add_overflow(sum, bytes, &sum) || sum > size_t(PTRDIFF_MAX) / 2)
            throw std::bad_alloc();
    }
}

// Python allocates the object, zeroed; its members of C++ have constructors and destructors.
template <class Run>
void each_member(PreparedCall *self, const Run &run) {
    run(self->buffers), run(self->groups), run(self->first), run(self->once), run(self->overlaps), run(self->tables), run(self->results),
        run(self->turn), run(self->ready), run(self->rwlock), run(self->failed), run(self->runs), run(self->used), run(self->sizes),
        run(self->outgrown);
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
    if (thread_guard != Py_None && Py_TYPE(thread_guard) != &ThreadCountGuardType)
        throw python_error(PyExc_TypeError, "thread_guard must be a ThreadCountGuard or None");
    Ref made(checked(type->tp_alloc(type, 0)));
    PreparedCall *self = as<PreparedCall>(made.get());
    construct(self);
    self->arguments = arguments;
    self->wrap = Py_NewRef(wrap);
    self->on_info = Py_NewRef(on_info);
    self->choice = Py_NewRef(Py_None);
    self->origin = Py_NewRef(Py_None);
    self->keep = Py_NewRef(keep);
    self->thread_guard = thread_guard == Py_None ? nullptr : reinterpret_cast<ThreadCountGuard *>(Py_NewRef(thread_guard));
    self->threads = threads;
    self->release_gil = release_gil != 0;
    if (serial) self->turn.make();
    self->info_buffer = -1;
    if (info != Py_None) {
        long long count;
        need_tuple(info, "info is a tuple (buffer, item size, count)");
        if (!PyArg_ParseTuple(info, "iiL", &self->info_buffer, &self->info_size, &count)) return nullptr;
        self->info_count = count;
    }
    parse_plan(self, buffers, groups, results, overlaps);
    if (first && first != Py_None) parse_groups(self, first, &self->first);
    if (!self->first.empty()) self->once.make();
    check_info(self);
    count_threads(self);
    bool works = false;
    for (const Buffer &b : self->buffers) works |= b.kind == BufferKind::work;
    self->simple = !works && !self->thread_guard && !self->turn && !self->release_gil && self->info_buffer < 0 &&
                   self->first.empty() && self->groups.size() == 1 && self->groups.front().count == 1 &&
                   self->groups.front().steps.size() == 1;
    return made.release();
}

using PlanReferences =
    References<PreparedCall, &PreparedCall::wrap, &PreparedCall::on_info, &PreparedCall::choice, &PreparedCall::origin, &PreparedCall::keep>;

void plan_dealloc(PyObject *raw) {
    PyObject_GC_UnTrack(raw);
    PreparedCall *self = as<PreparedCall>(raw);
    self->rwlock.set(nullptr);
    destroy(self);
    PlanReferences::clear(raw);
    Py_XDECREF(reinterpret_cast<PyObject *>(self->thread_guard));
    Py_TYPE(raw)->tp_free(raw);
}

// A plan may run after it was cleared: None stands where the references were.
int plan_clear(PyObject *raw) {
    PreparedCall *self = as<PreparedCall>(raw);
    for (PyObject **slot : {&self->wrap, &self->on_info, &self->choice, &self->origin, &self->keep}) {
        PyObject *old = *slot;
        *slot = Py_NewRef(Py_None);
        Py_XDECREF(old);
    }
    return 0;
}

PyObject *plan_call(PyObject *raw, PyObject *args, PyObject *kwargs) {
    if (kwargs && PyDict_GET_SIZE(kwargs)) throw python_error(PyExc_TypeError, "a plan takes arrays by position only");
    Py_ssize_t n = PyTuple_GET_SIZE(args);
    std::vector<PyObject *> arrays;
    for (Py_ssize_t i = 0; i < n; ++i) {
        if (!PyArray_Check(PyTuple_GET_ITEM(args, i))) throw python_error(PyExc_TypeError, "a plan takes NumPy arrays");
        arrays.push_back(PyTuple_GET_ITEM(args, i));
    }
    return run_prepared(as<PreparedCall>(raw), arrays.data(), int(n));
}

StateLock choice_lock;

void set_choice(PreparedCall *plan, PyObject *value) {
    PyObject *old, *now = Py_NewRef(value ? value : Py_None);
    {
        StateGuard guard(choice_lock);
        old = plan->choice;
        plan->choice = now;
    }
    Py_DECREF(old);
}

PyObject *known_choice(PreparedCall *plan) {
    StateGuard guard(choice_lock);
    return Py_NewRef(plan->choice);
}

// That of a template's plan is found when somebody asks.
PyObject *get_choice(PreparedCall *plan) {
    Ref choice(known_choice(plan)), origin(Py_NewRef(plan->origin));
    if (choice.get() != Py_None || origin.get() == Py_None) return choice.release();
    set_choice(plan, template_choice(origin.get(), plan->sizes).get());
    return known_choice(plan);
}

PyObject *get_choice_source(PreparedCall *plan) {
    Ref choice(known_choice(plan)), origin(Py_NewRef(plan->origin));
    if (choice.get() != Py_None || origin.get() == Py_None) return choice.release();
    return template_choice_source(origin.get(), plan->sizes).release();
}

PyObject *get_rwlock(PreparedCall *plan) {
    const Held rwlock = plan->rwlock.get();
    return Py_NewRef(rwlock ? rwlock.get() : Py_None);
}

void set_rwlock(PreparedCall *plan, PyObject *value) {
    if (!value || (value != Py_None && Py_TYPE(value) != &ReadWriteLockType))
        throw python_error(PyExc_TypeError, "rwlock must be a ReadWriteLock or None");
    plan->rwlock.set(value == Py_None ? nullptr : value);
}

bool get_failed(PreparedCall *plan) { return plan->failed; }

void set_failed(PreparedCall *plan, PyObject *value) {
    if (!value || !PyBool_Check(value)) throw python_error(PyExc_TypeError, "failed is True or False");
    plan->failed = value == Py_True;
}

uint64_t get_runs(PreparedCall *plan) { return plan->runs.get(); }

uint64_t get_lasts(PreparedCall *plan) { return plan->lasts; }

void set_lasts(PreparedCall *plan, PyObject *value) { plan->lasts = value ? uint64_t(from_python<int64_t>(value)) : 0; }

uint64_t get_used(PreparedCall *plan) { return plan->used.get(); }

size_t get_kept_bytes(PreparedCall *plan) {
    size_t sum = 0;
    for (const Buffer &b : plan->buffers) sum += b.kind == BufferKind::kept ? b.bytes : 0;
    return sum;
}

PyGetSetDef plan_getset[] = {
    attribute<get_choice, set_choice>("choice", "the Choice this plan carries out"),
    attribute<get_choice_source>("choice_source", "the Choice, or a function and the argument by which it returns that"),
    attribute<get_kept_bytes>("kept_bytes", "bytes it keeps between calls: packed weights"),
    attribute<get_rwlock, set_rwlock>("rwlock", "the ReadWriteLock of its library, or None"),
    attribute<get_failed, set_failed>("failed", "whether its library failed to run it: it is not to be used again"),
    attribute<get_lasts, set_lasts>("lasts", "runs after which the engine is asked for another plan; 0 for never"),
    attribute<get_runs>("runs", "how often it ran"),
    attribute<get_used>("used", "when it ran last, on a clock that every run of a plan moves"),
    {}};

PyMemberDef plan_members[] = {
    {"keep", T_OBJECT, offsetof(PreparedCall, keep), READONLY, "objects that live as long as the plan"},
    {"threads", T_INT, offsetof(PreparedCall, threads), READONLY, "threads its library is given"},
    {"arguments", T_INT, offsetof(PreparedCall, arguments), READONLY, "arrays a call has"},
    {}};

}  // namespace

PyTypeObject PreparedCallType = {PyVarObject_HEAD_INIT(nullptr, 0)};

int add_plan_types(PyObject *module) {
    describe<PreparedCall>(
        PreparedCallType, "backline._core.PreparedCall", entry<plan_new>,
        "PreparedCall(arguments, buffers, groups, results, overlaps, *, wrap, info, on_info, thread_guard, threads, release_gil, keep, serial, first)\n\n"
        "Native calls, copies and triangles over buffers, ready to run on arrays of one layout. The arrays must have the shape,\n"
        "strides and dtype it was prepared for: the Memo sees to that.",
        Py_TPFLAGS_HAVE_GC);
    PreparedCallType.tp_dealloc = plan_dealloc;
    PreparedCallType.tp_traverse = PlanReferences::traverse;
    PreparedCallType.tp_clear = plan_clear;
    PreparedCallType.tp_call = entry<plan_call>;
    PreparedCallType.tp_members = plan_members;
    PreparedCallType.tp_getset = plan_getset;
    return PyModule_AddType(module, &PreparedCallType);
}

}  // namespace backline
