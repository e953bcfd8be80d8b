// What protects state that threads share, where the GIL does so in most builds. In a build for a free-threaded interpreter a StateLock
// is a mutex; in others it is empty, and the compiler leaves it out.
//
// Under a StateLock nothing runs Python code, frees an object or waits. So no thread holds two of them, and os.fork() and the garbage
// collector, which stop other threads only where these could run Python code, find the protected state whole.
#pragma once
#include "common.hpp"

#include <atomic>
#include <mutex>

namespace backline {

#ifdef Py_GIL_DISABLED
constexpr bool kFreeThreaded = true;
class StateLock {
  public:
    void lock() { PyMutex_Lock(&mutex_); }
    void unlock() { PyMutex_Unlock(&mutex_); }

  private:
    PyMutex mutex_{};
};
#else
constexpr bool kFreeThreaded = false;
class StateLock {
  public:
    void lock() {}
    void unlock() {}
};
#endif
using StateGuard = std::lock_guard<StateLock>;

// A reference for a few instructions. Without a GIL another thread may let go of the object meanwhile, so it is owned; with one it
// is borrowed, and whoever lets Python code run in between takes a reference of its own.
struct NoDecref {
    void operator()(PyObject *) const {}
};
using Held = std::unique_ptr<PyObject, std::conditional_t<kFreeThreaded, Decref, NoDecref>>;

inline Held hold(PyObject *o) {
    if constexpr (kFreeThreaded) Py_XINCREF(o);
    return Held(o);
}

// A reference, or nullptr, that threads read and replace. It is not released at the end: other threads may still compute then.
class ObjectSlot {
  public:
    Held get() {
        if (!value_.load(std::memory_order_relaxed)) return {};
        StateGuard guard(lock_);
        return hold(value_.load(std::memory_order_relaxed));
    }
    void set(PyObject *value) {
        Py_XINCREF(value);
        PyObject *old;
        {
            StateGuard guard(lock_);
            old = value_.load(std::memory_order_relaxed);
            value_.store(value, std::memory_order_relaxed);
        }
        Py_XDECREF(old);
    }

  private:
    std::atomic<PyObject *> value_{nullptr};
    StateLock lock_;
};

// A number that calls count up. With a GIL its holder is the only one who does, and a plain addition is enough.
class Counter {
  public:
    uint64_t next() {
        if constexpr (kFreeThreaded) return value_.fetch_add(1, std::memory_order_relaxed) + 1;
        uint64_t value = get() + 1;
        value_.store(value, std::memory_order_relaxed);
        return value;
    }
    uint64_t get() const { return value_.load(std::memory_order_relaxed); }
    void set(uint64_t value) { value_.store(value, std::memory_order_relaxed); }

  private:
    std::atomic<uint64_t> value_{0};
};

}  // namespace backline
