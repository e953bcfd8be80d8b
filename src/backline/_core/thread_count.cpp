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
    if (!address || kind < 0 || kind > int(GuardKind::process64) || (get && kind != int(GuardKind::local)))
        throw python_error(PyExc_ValueError,
                           "ThreadCountGuard(address, kind, get=0): a function address and 0 (local), 1 (process) or 2 (process64); with 0 also "
                           "the address of a function that returns the count, if the first does not");
    auto monitor = std::make_unique<Monitor>();
    ThreadCountGuard *self = as<ThreadCountGuard>(checked(type->tp_alloc(type, 0)));
    self->set = reinterpret_cast<void *>(address);
    self->get = reinterpret_cast<void *>(get);
    self->kind = GuardKind(kind);
    new (&self->monitor) std::unique_ptr<Monitor>(std::move(monitor));
    return reinterpret_cast<PyObject *>(self);
}

void guard_dealloc(PyObject *raw) {
    as<ThreadCountGuard>(raw)->monitor.~unique_ptr();
    Py_TYPE(raw)->tp_free(raw);
}

// A forked child inherits the lock in whatever state another thread left it, and none of the calls that were running. A mutex that may be
// locked cannot be destroyed: the parent's is left as it is.
void guard_forked(ThreadCountGuard *self) {
    auto monitor = std::make_unique<Monitor>();
    (void)self->monitor.release();
    self->monitor = std::move(monitor);
    self->active = 0;
    self->value = 0;
    self->waiting = 0;
}

// Waits until no call runs under the thread_guard and lets none in until release(): around a fork, so that no other thread is inside
// the library. OpenBLAS's locks are copied to the child as they are, and one that is held there is held for ever.
void guard_hold(ThreadCountGuard *self) {
    if (self->kind == GuardKind::local) return;
    // Declared first, so that the lock is let go before the GIL is taken: who has the GIL may wait for the lock.
    ReleaseGil released;
    std::unique_lock<std::mutex> guard(self->monitor->lock);
    ++self->waiting;
    self->monitor->changed.wait(guard, [&] { return self->active == 0; });
    --self->waiting;
    self->active = 1;
    self->held = self->value;
    self->value = -1;  // nobody's count: calls that would agree wait as well
}

void guard_release(ThreadCountGuard *self) {
    if (self->kind == GuardKind::local) return;
    ReleaseGil released;
    std::unique_lock<std::mutex> guard(self->monitor->lock);
    self->active = 0;
    self->value = self->held;
    ++self->turns;
    self->monitor->changed.notify_all();
}

// Somebody else has set, or is about to set, the count of the library.
void guard_forget(ThreadCountGuard *self) {
    ReleaseGil released;
    std::lock_guard<std::mutex> lock(self->monitor->lock);
    self->stale = 1;
}

int guard_enter(ThreadCountGuard *self, long threads) {
    if (threads < 1 || threads > kMostThreads)
        throw python_error(PyExc_ValueError, "a thread count is 1 to %d, not %ld", kMostThreads, threads);
    require_threads(int(threads));
    ReleaseGil released;
    return self->enter(int(threads));
}

void guard_leave(ThreadCountGuard *self, int former) {
    ReleaseGil released;  // another thread may be inside `set`, which may need the GIL
    self->leave(former);
}

PyMethodDef guard_methods[] = {
    method<guard_enter>("enter", "Put a thread count in force; returns what leave() has to be given."),
    method<guard_leave>("leave", "End a call that enter() began."),
    method<guard_hold>("hold", "Wait for the calls that run and let no other begin (before a fork)."),
    method<guard_release>("release", "End what hold() began."),
    method<guard_forget>("forget", "Set the count anew at the next call: another program may have changed it."),
    method<guard_forked>("forked", "Forget locks and calls of the parent process."),
    {}};

PyMemberDef guard_members[] = {
    {"value", T_INT, offsetof(ThreadCountGuard, value), READONLY, "process-wide thread count in force, 0 if not known"},
    {"active", T_INT, offsetof(ThreadCountGuard, active), READONLY, "calls running under it"},
    {"calls", T_ULONGLONG, offsetof(ThreadCountGuard, calls), READONLY, "how often the library was asked to change its count"},
    {}};

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
    describe<ThreadCountGuard>(ThreadCountGuardType, "backline._core.ThreadCountGuard", entry<guard_new>,
                               "ThreadCountGuard(address, kind, get=0): sets a library's thread count around calls that need another one.");
    ThreadCountGuardType.tp_dealloc = guard_dealloc;
    ThreadCountGuardType.tp_methods = guard_methods;
    ThreadCountGuardType.tp_members = guard_members;
    return PyModule_AddType(module, &ThreadCountGuardType);
}

}  // namespace backline
