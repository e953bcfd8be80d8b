#include "boundary.hpp"

#include "team.hpp"

#include <cxxabi.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <thread>

namespace backline {
namespace {

// How long the end of the process waits for calls of other threads.
constexpr auto kPatience = std::chrono::seconds(5);

std::atomic<int> running{0};  // native calls without the GIL, of all threads
thread_local int mine = 0;    // those of this thread: it cannot wait for itself if a library calls exit()
std::atomic<bool> ended{false};
thread_local bool ends = false;  // this thread ends the process

// Waits for native calls; false if some still run after kPatience.
bool wait_for_calls() {
    auto end = std::chrono::steady_clock::now() + kPatience;
    while (running.load() > mine) {
        if (std::chrono::steady_clock::now() > end) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
}

#ifdef __GLIBC__
// A call that was left running may hold the lock of a stream for good: what it prints to is left as it is.
void flush_if_free(FILE *stream) {
    if (ftrylockfile(stream) != 0) return;
    fflush_unlocked(stream);
    funlockfile(stream);
}

void leave_at_once(int status, void *) {
    flush_if_free(stdout);
    flush_if_free(stderr);
    _exit(status);
}
#endif

// Daemon threads compute on while the interpreter ends. Then the libraries' own exit handlers run: OpenBLAS unmaps its buffers
// under its kernels. So the calls are waited for. One that takes longer than that is left running, and the process ends without
// those handlers: on_exit registers a function that runs before all of them and knows the exit status.
void before_exit() {
    ended = ends = true;
    if (wait_for_calls()) return;
#ifdef __GLIBC__
    on_exit(leave_at_once, nullptr);
#else
    while (running.load() > mine) std::this_thread::sleep_for(std::chrono::milliseconds(1));
#endif
}

}  // namespace

[[noreturn]] void stop_thread() {
    running -= mine;  // the calls around this one end here, too: their destructors never run
    mine = 0;
    for (;;) pause();
}

void raise_current_exception() {
    try {
        throw;
    } catch (const std::bad_alloc &) {
        PyErr_NoMemory();
    } catch (const TooManyThreads &error) {
        PyErr_Format(PyExc_RuntimeError,
                     "a call on %d threads cannot run: the system let %d start (%s). Set fewer (backline.set_num_threads(), "
                     "BACKLINE_NUM_THREADS), or raise the limit of processes (ulimit -u, pids.max of the container) "
                     "or memory (ulimit -v)",
                     error.wanted, error.started, std::strerror(error.error));
    } catch (const std::exception &error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
#ifdef __GLIBC__
    catch (abi::__forced_unwind &) {
        stop_thread();
    }
#endif
    catch (...) {
        PyErr_SetString(PyExc_RuntimeError, "a C++ exception of an unknown type");
    }
}

NativeCall::NativeCall() {
    ++running;
    if (!ended || ends) {  // what ends the process may itself compute: exit handlers that are written in Python
        ++mine;
        return;
    }
    --running;  // libraries are being taken down
    stop_thread();
}

NativeCall::~NativeCall() {
    --mine;
    --running;
}

#if PY_VERSION_HEX < 0x030E0000
PythonCall::PythonCall() { ++running, ++mine; }
PythonCall::~PythonCall() { --mine, --running; }
#endif

int add_boundary(PyObject *) {
    // In a forked child the threads of the parent are not there.
    if (pthread_atfork(nullptr, nullptr, [] { running = mine; }) || std::atexit(before_exit)) {
        PyErr_NoMemory();
        return -1;
    }
    // Earlier than the handlers of all libraries, which are loaded later; where Python has no room for it, the one above is left.
    Py_AtExit(before_exit);
    return 0;
}

}  // namespace backline
