// Threads of Python that have run library code, so that a fork can wait for those that have just ended.
//
// Python's Thread.join() returns when the interpreter has let go of a thread. The system's thread still runs for a moment then: it
// frees what libraries keep for each thread, and may hold a lock of theirs while it does (MKL's memory manager spins on one lock a
// thread). A fork at that moment leaves the lock closed in the child for ever.
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
};

// Never destroyed: threads may end after the exit handlers have run.
std::mutex *lock = new std::mutex;
std::vector<Known> *known = new std::vector<Known>;

bool exists(pid_t id) { return syscall(SYS_tgkill, getpid(), id, 0) == 0 || errno != ESRCH; }

PyObject *wait_for_ended_threads(PyObject *, PyObject *args) {
    PyObject *running = nullptr;  // a container of the idents of Python's threads
    double seconds = 0;
    if (!PyArg_ParseTuple(args, "Od", &running, &seconds)) return nullptr;
    std::vector<Known> threads;
    {
        std::lock_guard<std::mutex> hold(*lock);
        threads = *known;
    }
    std::vector<pid_t> ended;
    for (const Known &each : threads) {
        Ref ident(PyLong_FromUnsignedLong(static_cast<unsigned long>(each.ident)));
        int found = ident ? PySequence_Contains(running, ident.get()) : -1;
        if (found < 0) return nullptr;
        if (!found) ended.push_back(each.id);
    }
    const auto limit = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    long left = 0;
    for (pid_t id : ended) {
        while (exists(id) && std::chrono::steady_clock::now() < limit) std::this_thread::sleep_for(std::chrono::microseconds(50));
        left += exists(id);
    }
    return PyLong_FromLong(left);
}

}  // namespace

void note_this_thread() {
    const Known mine{pthread_self(), static_cast<pid_t>(syscall(SYS_gettid))};
    std::lock_guard<std::mutex> hold(*lock);
    auto gone = [&](const Known &each) { return each.ident == mine.ident || !exists(each.id); };
    known->erase(std::remove_if(known->begin(), known->end(), gone), known->end());
    known->push_back(mine);
}

#else

namespace {

PyObject *wait_for_ended_threads(PyObject *, PyObject *) { return PyLong_FromLong(0); }

}  // namespace

void note_this_thread() {}

#endif

int add_ended_threads(PyObject *module) {
    static PyMethodDef functions[] = {
        {"wait_for_ended_threads", entry<wait_for_ended_threads>, METH_VARARGS,
         "wait_for_ended_threads(running, seconds): waits until the threads that ran a Plan and are not among the idents `running` "
         "have left the process, for at most that long; returns how many have not."},
        {nullptr, nullptr, 0, nullptr}};
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
