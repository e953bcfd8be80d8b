// Threads that have run library code, so that a fork can wait for those that are ending.
//
// Python's Thread.join() returns when the interpreter has let go of a thread. The system's thread still runs for a moment then: it
// frees what libraries keep for each thread, and may hold a lock of theirs while it does (MKL's memory manager spins on one lock a
// thread). A fork at that moment leaves the lock closed in the child for ever.
//
// A thread that `threading` started has nothing else to do once Python has let go of it: it is ending. One that another program
// started calls Python now and then, has no state of Python's in between, and may live as long as it likes. It is ending when its
// thread-local objects are destroyed, which comes before libraries are told.
#include "ended_threads.hpp"

#include "boundary.hpp"

#ifdef __linux__
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <thread>
#endif

namespace backline {

#ifdef __linux__

namespace {

struct Known {
    pthread_t ident;  // as Python counts its threads
    pid_t id;
    bool ends;  // as soon as Python has no state of it
};

// Never destroyed: threads may end after the exit handlers have run.
std::mutex *lock = new std::mutex;
std::vector<Known> *known = new std::vector<Known>;

bool exists(pid_t id) { return syscall(SYS_tgkill, getpid(), id, 0) == 0 || errno != ESRCH; }

// An object of each known thread, destroyed when the thread ends.
struct UntilEnd {
    ~UntilEnd() {
        const pthread_t me = pthread_self();
        std::lock_guard<std::mutex> hold(*lock);
        for (Known &each : *known)
            if (each.ident == me) each.ends = true;
    }
};

// Whether `threading` started this thread. It has an object for each one that it did, and for the main thread and others that asked
// for one objects of classes of their own.
bool started_by_threading() {
    Ref threading(PyImport_ImportModule("threading"));
    auto named = [&](const char *name) { return Ref(threading ? PyObject_GetAttrString(threading.get(), name) : nullptr); };
    Ref objects = named("_active"), others = named("_DummyThread"), first = named("_MainThread");
    Ref ident(PyLong_FromUnsignedLong(PyThread_get_thread_ident()));
    Ref object(objects && ident ? PyObject_GetItem(objects.get(), ident.get()) : nullptr);
    PyErr_Clear();
    // Without those names every thread is taken for one that ends: forks may wait longer than needed, and never too short.
    if (!objects || !others || !first) return true;
    return object && Py_TYPE(object.get()) != as<PyTypeObject>(others.get()) && Py_TYPE(object.get()) != as<PyTypeObject>(first.get());
}

int wait_for_ended_threads(PyObject *running, double seconds) {
    std::vector<Known> threads;
    {
        std::lock_guard<std::mutex> hold(*lock);
        threads = *known;
    }
    std::vector<pid_t> ended;
    for (const Known &each : threads) {
        Ref ident(checked(PyLong_FromUnsignedLong(static_cast<unsigned long>(each.ident))));
        int found = each.ends ? PySequence_Contains(running, ident.get()) : 1;
        if (found < 0) throw PythonError();
        if (!found) ended.push_back(each.id);
    }
    const auto limit = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    int left = 0;
    for (pid_t id : ended) {
        while (exists(id) && std::chrono::steady_clock::now() < limit) std::this_thread::sleep_for(std::chrono::microseconds(50));
        left += exists(id);
    }
    return left;
}

}  // namespace

void note_this_thread() {
    static thread_local UntilEnd until_end;
    const Known mine{pthread_self(), static_cast<pid_t>(syscall(SYS_gettid)), started_by_threading()};
    std::lock_guard<std::mutex> hold(*lock);
    auto gone = [&](const Known &each) { return each.ident == mine.ident || !exists(each.id); };
    known->erase(std::remove_if(known->begin(), known->end(), gone), known->end());
    known->push_back(mine);
}

#else

namespace {

int wait_for_ended_threads(PyObject *, double) { return 0; }

}  // namespace

void note_this_thread() {}

#endif

int add_ended_threads(PyObject *module) {
    static PyMethodDef functions[] = {
        function<wait_for_ended_threads>(
            "wait_for_ended_threads",
            "wait_for_ended_threads(running, seconds): waits until the threads that ran a Plan, are not among the idents `running`, and "
            "are ending have left the process, for at most that long; returns how many have not."),
        {}};
#ifdef __linux__
    // In a forked child none of them is there, and a lock that another thread held would stay closed.
    if (pthread_atfork(nullptr, nullptr, [] { lock = new std::mutex, known->clear(); })) {
        PyErr_NoMemory();
        return -1;
    }
#endif
    return PyModule_AddFunctions(module, functions);
}

}  // namespace backline
