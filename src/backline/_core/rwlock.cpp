#include "rwlock.hpp"

#include "boundary.hpp"

#include <pthread.h>

#include <chrono>
#include <thread>

namespace backline {
namespace {

// A thread that reads under one lock does not wait for another: the writer of that one may be waiting for this thread.
thread_local int reading = 0;

void nap() {
    ReleaseGil released;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
}

void renew(ReadWriteLock *self) {
    if (self->forks_seen == forks) return;
    StateGuard guard(self->renewing);
    if (self->forks_seen == forks) return;
    self->readers = 0;
    if (self->writer != PyThread_get_thread_ident()) self->writer = 0, self->depth = 0;
    self->forks_seen = forks.load();
}

ReadWriteLock *rwlock(PyObject *raw) {
    renew(reinterpret_cast<ReadWriteLock *>(raw));
    return reinterpret_cast<ReadWriteLock *>(raw);
}

PyObject *rwlock_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    if (PyTuple_GET_SIZE(args) || (kwargs && PyDict_GET_SIZE(kwargs))) {
        PyErr_SetString(PyExc_TypeError, "ReadWriteLock() takes no arguments");
        return nullptr;
    }
    PyObject *made = type->tp_alloc(type, 0);
    if (made) reinterpret_cast<ReadWriteLock *>(made)->forks_seen = forks.load();
    return made;
}

PyObject *acquire_write(PyObject *raw, PyObject *) {
    ReadWriteLock *self = rwlock(raw);
    const unsigned long me = PyThread_get_thread_ident();
    if (self->writer != me) {
        for (unsigned long nobody = 0; !self->writer.compare_exchange_strong(nobody, me); nobody = 0) nap();
        while (self->readers.load()) nap();
    }
    ++self->depth;
    Py_RETURN_NONE;
}

PyObject *release_write(PyObject *raw, PyObject *) {
    ReadWriteLock *self = rwlock(raw);
    if (self->writer != PyThread_get_thread_ident()) {
        PyErr_SetString(PyExc_RuntimeError, "this thread is not the writer");
        return nullptr;
    }
    if (--self->depth == 0) self->writer = 0;
    Py_RETURN_NONE;
}

PyObject *acquire_read(PyObject *raw, PyObject *) {
    reinterpret_cast<ReadWriteLock *>(raw)->begin_call();
    ++reading;
    Py_RETURN_NONE;
}

PyObject *release_read(PyObject *raw, PyObject *) {
    rwlock(raw)->end_call();
    if (reading > 0) --reading;
    Py_RETURN_NONE;
}

PyMethodDef rwlock_methods[] = {
    {"acquire_write", entry<acquire_write>, METH_NOARGS,
     "Wait for the calls under way and keep those of other threads out. May be nested; not between acquire_read() and release_read()."},
    {"release_write", entry<release_write>, METH_NOARGS, "End what acquire_write() began."},
    {"acquire_read", entry<acquire_read>, METH_NOARGS, "Begin calls that are not prepared ones; waits while another thread is the writer."},
    {"release_read", entry<release_read>, METH_NOARGS, "End what acquire_read() began, on the same thread."},
    {nullptr, nullptr, 0, nullptr}};

PyObject *get_readers(PyObject *raw, void *) { return PyLong_FromLong(rwlock(raw)->readers.load()); }
PyObject *get_write_locked(PyObject *raw, void *) { return PyBool_FromLong(rwlock(raw)->writer != 0); }

PyGetSetDef rwlock_getset[] = {{"readers", entry<get_readers>, nullptr, "calls that are under way without the GIL", nullptr},
                             {"write_locked", entry<get_write_locked>, nullptr, "whether a thread has the library to itself", nullptr},
                             {nullptr, nullptr, nullptr, nullptr, nullptr}};

}  // namespace

std::atomic<int> forks{0};

void ReadWriteLock::wait() {
    renew(this);
    const unsigned long me = PyThread_get_thread_ident();
    if (!writer || writer == me || reading) return;
    Ref alive(Py_NewRef(reinterpret_cast<PyObject *>(this)));
    for (unsigned long now = writer; now && now != me; now = writer) nap();
}

// It counts itself first and looks for a writer then, while a writer comes first and looks for calls then: one of the two sees the other.
void ReadWriteLock::begin_call() {
    renew(this);
    for (;;) {
        ++readers;
        const unsigned long now = writer;
        if (!now || reading || now == PyThread_get_thread_ident()) return;
        --readers;
        wait();
    }
}

void ReadWriteLock::end_call() {
    int count = readers;
    while (count > 0 && !readers.compare_exchange_weak(count, count - 1)) {}  // 0 in a child that was forked in between
}

PyTypeObject ReadWriteLockType = {PyVarObject_HEAD_INIT(nullptr, 0)};

int add_rwlock_type(PyObject *module) {
    ReadWriteLockType.tp_name = "backline._core.ReadWriteLock";
    ReadWriteLockType.tp_basicsize = sizeof(ReadWriteLock);
    ReadWriteLockType.tp_flags = Py_TPFLAGS_DEFAULT;
    ReadWriteLockType.tp_doc =
        "ReadWriteLock(): lets one thread have a library to itself for a while. Prepared calls with this `rwlock` wait meanwhile.";
    ReadWriteLockType.tp_new = entry<rwlock_new>;
    ReadWriteLockType.tp_methods = rwlock_methods;
    ReadWriteLockType.tp_getset = rwlock_getset;
    if (pthread_atfork(nullptr, nullptr, [] { ++forks; })) {
        PyErr_NoMemory();
        return -1;
    }
    return PyModule_AddType(module, &ReadWriteLockType);
}

}  // namespace backline
