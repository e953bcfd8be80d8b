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

ReadWriteLock *renewed(ReadWriteLock *self) {
    if (self->forks_seen == forks) return self;
    StateGuard guard(self->renewing);
    if (self->forks_seen == forks) return self;
    self->readers = 0;
    if (self->writer != PyThread_get_thread_ident()) self->writer = 0, self->depth = 0;
    self->forks_seen = forks.load();
    return self;
}

PyObject *rwlock_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    if (PyTuple_GET_SIZE(args) || (kwargs && PyDict_GET_SIZE(kwargs)))
        throw python_error(PyExc_TypeError, "ReadWriteLock() takes no arguments");
    PyObject *made = checked(type->tp_alloc(type, 0));
    as<ReadWriteLock>(made)->forks_seen = forks.load();
    return made;
}

void acquire_write(ReadWriteLock *self) {
    renewed(self);
    const unsigned long me = PyThread_get_thread_ident();
    if (self->writer != me) {
        for (unsigned long nobody = 0; !self->writer.compare_exchange_strong(nobody, me); nobody = 0) nap();
        while (self->readers.load()) nap();
    }
    ++self->depth;
}

void release_write(ReadWriteLock *self) {
    if (renewed(self)->writer != PyThread_get_thread_ident())
        throw python_error(PyExc_RuntimeError, "this thread is not the writer");
    if (--self->depth == 0) self->writer = 0;
}

void acquire_read(ReadWriteLock *self) {
    self->begin_call();
    ++reading;
}

void release_read(ReadWriteLock *self) {
    renewed(self)->end_call();
    if (reading > 0) --reading;
}

PyMethodDef rwlock_methods[] = {
    method<acquire_write>("acquire_write", "Wait for the calls under way and keep those of other threads out. May be nested; not between "
                                           "acquire_read() and release_read()."),
    method<release_write>("release_write", "End what acquire_write() began."),
    method<acquire_read>("acquire_read", "Begin calls that are not prepared ones; waits while another thread is the writer."),
    method<release_read>("release_read", "End what acquire_read() began, on the same thread."),
    {}};

int get_readers(ReadWriteLock *self) { return renewed(self)->readers.load(); }
bool get_write_locked(ReadWriteLock *self) { return renewed(self)->writer != 0; }

PyGetSetDef rwlock_getset[] = {attribute<get_readers>("readers", "calls that are under way without the GIL"),
                               attribute<get_write_locked>("write_locked", "whether a thread has the library to itself"),
                               {}};

}  // namespace

std::atomic<int> forks{0};

void ReadWriteLock::wait() {
    renewed(this);
    const unsigned long me = PyThread_get_thread_ident();
    if (!writer || writer == me || reading) return;
    Ref alive(Py_NewRef(reinterpret_cast<PyObject *>(this)));
    for (unsigned long now = writer; now && now != me; now = writer) nap();
}

// It counts itself first and looks for a writer then, while a writer comes first and looks for calls then: one of the two sees the other.
void ReadWriteLock::begin_call() {
    renewed(this);
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
    describe<ReadWriteLock>(ReadWriteLockType, "backline._core.ReadWriteLock", entry<rwlock_new>,
                            "ReadWriteLock(): lets one thread have a library to itself for a while. Prepared calls with this `rwlock` "
                            "wait meanwhile.");
    ReadWriteLockType.tp_methods = rwlock_methods;
    ReadWriteLockType.tp_getset = rwlock_getset;
    if (pthread_atfork(nullptr, nullptr, [] { ++forks; })) {
        PyErr_NoMemory();
        return -1;
    }
    return PyModule_AddType(module, &ReadWriteLockType);
}

}  // namespace backline
