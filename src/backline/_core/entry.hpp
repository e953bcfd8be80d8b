// Entries from Python: C++ exceptions become Python's.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <type_traits>

namespace backline {

// Puts Python's exception for the C++ exception that is being handled. Call it inside catch (...).
void raise_current_exception();

template <auto Function>
struct Boundary;
template <class R, class... A, R (*Function)(A...)>
struct Boundary<Function> {
    static R call(A... arguments) {
        try {
            return Function(arguments...);
        } catch (...) {
            raise_current_exception();
            if constexpr (std::is_pointer_v<R>) return nullptr;
            else return R(-1);
        }
    }
};

// A function for Python's tables that lets no C++ exception out: it raises MemoryError or RuntimeError instead.
template <auto Function>
constexpr auto entry = &Boundary<Function>::call;

}  // namespace backline
