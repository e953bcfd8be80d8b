// The boundary to Python: C++ exceptions become Python's, and threads that the interpreter ends stop where they are.
#pragma once
#include "common.hpp"

namespace backline {

// Stops this thread for good. For a thread that Python ends because the interpreter is finalizing (until 3.13, by unwinding its
// stack at the moment when it asks for the GIL): destructors would let go of Python objects without the GIL. Its calls count as
// ended: a stopped thread uses nothing of a library any more.
[[noreturn]] void stop_thread();

// Lets other Python threads run in its lifetime.
class ReleaseGil {
  public:
    ReleaseGil() : state_(PyEval_SaveThread()) {}
    ReleaseGil(const ReleaseGil &) = delete;
    ~ReleaseGil() {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {  // pthread_exit: the interpreter is gone
            stop_thread();
        }
    }

  private:
    PyThreadState *state_;
};

// One native call under way without the GIL. When the process ends, exit handlers of libraries free memory that such a call still
// uses, so the end waits for these calls; see boundary.cpp.
class NativeCall {
  public:
    NativeCall();
    NativeCall(const NativeCall &) = delete;
    ~NativeCall();
};

// A call of a plan that is written in Python, in whose native parts the GIL may be released. Until 3.13 the stack of a thread that
// the interpreter ends is unwound, which ends the call; from 3.14 on such a thread hangs, and nothing would tell that it is done.
#if PY_VERSION_HEX < 0x030E0000
class PythonCall {
  public:
    PythonCall();
    PythonCall(const PythonCall &) = delete;
    ~PythonCall();
};
#else
struct PythonCall {};
#endif

}  // namespace backline
