#include "thread_count.hpp"

#include "boundary.hpp"
#include "team.hpp"

#include <structmember.h>

#include <algorithm>
#include <memory>
#include <new>

namespace backline {
namespace {

PyObject *guard_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static const char *names[] = {"address", "kind", "get", nullptr};
    unsigned long long address, get = 0;
    int kind;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Ki|K", const_cast<char **>(names), &address, &kind, &get)) return nullptr;
    if (!address || kind < 0 || kind > int(GuardKind::process64) || (get && kind != int(GuardKind::local))) {
        PyErr_SetString(PyExc_ValueError,
                        "ThreadCountGuard(address, kind, get=0): a function address and 0 (local), 1 (process) or 2 (process64); with 0 also the "
                        "address of a function that returns the count, if the first does not");
        return nullptr;
    }
    auto monitor = std::make_unique<Monitor>();
    ThreadCountGuard *self = reinterpret_cast<ThreadCountGuard *>(type->tp_alloc(type, 0));
    if (!self) return nullptr;
    self->set = reinterpret_cast<void *>(address);
    self->get = reinterpret_cast<void *>(get);
    self->kind = GuardKind(kind);
    new (&self->monitor) std::unique_ptr<Monitor>(std::move(monitor));
    return reinterpret_cast<PyObject *>(self);
}

void guard_dealloc(PyObject *raw) {
    ThreadCountGuard *self = reinterpret_cast<ThreadCountGuard *>(raw);
    self->monitor.~unique_ptr();
    Py_TYPE(raw)->tp_free(raw);
}

// A forked child inherits the lock in whatever state another thread left it, and none of the calls that were running. A mutex that may be
// locked cannot be destroyed: the parent's is left as it is.
PyObject *guard_forked(PyObject *raw, PyObject *) {
    ThreadCountGuard *self = reinterpret_cast<ThreadCountGuard *>(raw);
    auto monitor = std::make_unique<Monitor>();
    (void)self->monitor.release();
    self->monitor = std::move(monitor);
    self->active = 0;
    self->value = 0;
    self->waiting = 0;
    Py_RETURN_NONE;
}

// Waits until no call runs under the thread_guard and lets none in until release(): around a fork, so that no other thread is inside
// the library. OpenBLAS's locks are copied to the child as they are, and one that is held there is held for ever.
PyObject *guard_hold(PyObject *raw, PyObject *) {
    ThreadCountGuard *self = reinterpret_cast<ThreadCountGuard *>(raw);
    if (self->kind == GuardKind::local) Py_RETURN_NONE;
    // Declared first, so that the lock is let go before the GIL is taken: who has the GIL may wait for the lock.
    ReleaseGil released;
    std::unique_lock<std::mutex> guard(self->monitor->lock);
    ++self->waiting;
    self->monitor->changed.wait(guard, [&] { return self->active == 0; });
    --self->waiting;
    self->active = 1;
    self->held = self->value;
    self->value = -1;  // nobody's count: calls that would agree wait as well
    Py_RETURN_NONE;
}

PyObject *guard_release(PyObject *raw, PyObject *) {
    ThreadCountGuard *self = reinterpret_cast<ThreadCountGuard *>(raw);
    if (self->kind == GuardKind::local) Py_RETURN_NONE;
    ReleaseGil released;
    std::unique_lock<std::mutex> guard(self->monitor->lock);
    self->active = 0;
    self->value = self->held;
    ++self->turns;
    self->monitor->changed.notify_all();
    Py_RETURN_NONE;
}

// Somebody else has set, or is about to set, the count of the library.
PyObject *guard_forget(PyObject *raw, PyObject *) {
    ThreadCountGuard *self = reinterpret_cast<ThreadCountGuard *>(raw);
    ReleaseGil released;
    std::lock_guard<std::mutex> lock(self->monitor->lock);
    self->stale = 1;
    Py_RETURN_NONE;
}

PyObject *guard_enter(PyObject *raw, PyObject *arg) {
    long n = PyLong_AsLong(arg);
    if (n == -1 && PyErr_Occurred()) return nullptr;
    int former;
    ThreadCountGuard *self = reinterpret_cast<ThreadCountGuard *>(raw);
    if (n < 1 || n > kMostThreads) {
        PyErr_Format(PyExc_ValueError, "a thread count is 1 to %d, not %ld", kMostThreads, n);
        return nullptr;
    }
    require_threads(int(n));
    {
        ReleaseGil released;
        former = self->enter(int(n));
    }
    return PyLong_FromLong(former);
}

PyObject *guard_leave(PyObject *raw, PyObject *arg) {
    long n = PyLong_AsLong(arg);
    if (n == -1 && PyErr_Occurred()) return nullptr;
    ReleaseGil released;  // another thread may be inside `set`, which may need the GIL
    reinterpret_cast<ThreadCountGuard *>(raw)->leave(int(n));
    Py_RETURN_NONE;
}

PyMethodDef guard_methods[] = {
    {"enter", entry<guard_enter>, METH_O, "Put a thread count in force; returns what leave() has to be given."},
    {"leave", entry<guard_leave>, METH_O, "End a call that enter() began."},
    {"hold", entry<guard_hold>, METH_NOARGS, "Wait for the calls that run and let no other begin (before a fork)."},
    {"release", entry<guard_release>, METH_NOARGS, "End what hold() began."},
    {"forget", entry<guard_forget>, METH_NOARGS, "Set the count anew at the next call: another program may have changed it."},
    {"forked", entry<guard_forked>, METH_NOARGS, "Forget locks and calls of the parent process."},
    {nullptr, nullptr, 0, nullptr}};

PyMemberDef guard_members[] = {
    {"value", T_INT, offsetof(ThreadCountGuard, value), READONLY, "process-wide thread count in force, 0 if not known"},
    {"active", T_INT, offsetof(ThreadCountGuard, active), READONLY, "calls running under it"},
    {"calls", T_ULONGLONG, offsetof(ThreadCountGuard, calls), READONLY, "how often the library was asked to change its count"},
    {nullptr, 0, 0, 0, nullptr}};

}  // namespace

int ThreadCountGuard::enter(int threads) {
    threads = std::min(threads, team_limit());
    keep_apart(threads);
    if (kind == GuardKind::local) {
        ++calls;
        if (!get) return reinterpret_cast<int (*)(int)>(set)(threads);
        int former = reinterpret_cast<int (*)()>(get)();
        reinterpret_cast<void (*)(int)>(set)(threads);
        return former;
    }
    std::unique_lock<std::mutex> guard(monitor->lock);
    // Calls that use several threads have the library to themselves: OpenBLAS's LU waits for ever when two of them share
    // its thread buffers, and two teams at a time would only get in each other's way.
    auto joins = [&] { return active == 0 || (value == threads && threads == 1); };
    if (waiting || !joins()) {  // who comes late does not join past those who wait, or calls that overlap would starve them
        ++waiting;
        if (active) {
            uint64_t turn = turns;
            monitor->changed.wait(guard, [&] { return turn != turns && joins(); });
        }
        --waiting;
    }
    if (value != threads || (stale && active == 0)) {
        stale = 0;
        ++calls;
        if (kind == GuardKind::process) reinterpret_cast<void (*)(int)>(set)(threads);
        else reinterpret_cast<void (*)(int64_t)>(set)(threads);
        value = threads;
    }
    ++active;
    return threads;
}

void ThreadCountGuard::leave(int former) {
    if (kind == GuardKind::local) {
        reinterpret_cast<int (*)(int)>(set)(former);  // of what is void the result is not looked at
        return;
    }
    std::unique_lock<std::mutex> guard(monitor->lock);
    if (active > 0) --active;
    if (active == 0) {
        ++turns;
        monitor->changed.notify_all();
    }
}

PyTypeObject ThreadCountGuardType = {PyVarObject_HEAD_INIT(nullptr, 0)};

int add_thread_count_guard_type(PyObject *module) {
    ThreadCountGuardType.tp_name = "backline._core.ThreadCountGuard";
    ThreadCountGuardType.tp_basicsize = sizeof(ThreadCountGuard);
    ThreadCountGuardType.tp_flags = Py_TPFLAGS_DEFAULT;
    ThreadCountGuardType.tp_doc =
        "ThreadCountGuard(address, kind, get=0): sets a library's thread count around calls that need another one.";
    ThreadCountGuardType.tp_new = entry<guard_new>;
    ThreadCountGuardType.tp_dealloc = guard_dealloc;
    ThreadCountGuardType.tp_methods = guard_methods;
    ThreadCountGuardType.tp_members = guard_members;
    return PyModule_AddType(module, &ThreadCountGuardType);
}

}  // namespace backline
