// Python's C API as C++: owned references, exceptions, and functions of C++ as entries of Python's tables.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdarg>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>

namespace backline {

// Whether the interpreter is finalizing.
inline bool ending() {
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing();
#else
    return _Py_IsFinalizing();
#endif
}

// An owned reference. Only where a function has several exits; straight-line code counts by hand. It lets go of nothing while the
// interpreter is finalizing: a thread that Python ends then unwinds its stack without holding the GIL.
struct Decref {
    template <class T>
    void operator()(T *o) const {
        if (o && !ending()) Py_DECREF(reinterpret_cast<PyObject *>(o));
    }
};
template <class T>
using Owned = std::unique_ptr<T, Decref>;
using Ref = Owned<PyObject>;

// Exceptions ------------------------------------------------------------------------------------------------------------

// Thrown where Python's exception is set; the entry that Python called returns then.
struct PythonError {};

// Sets Python's exception: throw python_error(PyExc_ValueError, "a size is %d or more", least).
inline PythonError python_error(PyObject *type, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    PyErr_FormatV(type, format, arguments);
    va_end(arguments);
    return {};
}

// A pointer that is nullptr where Python's exception is set.
template <class T>
T *checked(T *value) {
    if (!value) throw PythonError();
    return value;
}

inline void checked(bool done) {
    if (!done) throw PythonError();
}

// Puts Python's exception for the C++ exception that is being handled. Call it inside catch (...).
void raise_current_exception();

template <class R, class Run>
R guarded(R failed, const Run &run) {
    try {
        return run();
    } catch (const PythonError &) {
    } catch (...) {
        raise_current_exception();
    }
    return failed;
}

template <auto Function>
struct Boundary;
template <class R, class... A, R (*Function)(A...)>
struct Boundary<Function> {
    static R call(A... arguments) {
        if constexpr (std::is_pointer_v<R>) return guarded<R>(nullptr, [&] { return Function(arguments...); });
        else return guarded<R>(R(-1), [&] { return Function(arguments...); });
    }
};

// A function with the signature of one of Python's tables, which lets no C++ exception out: it raises MemoryError or RuntimeError.
template <auto Function>
constexpr auto entry = &Boundary<Function>::call;

// Functions, methods and attributes ---------------------------------------------------------------------------------------

template <class T>
T from_python(PyObject *value) {
    if constexpr (std::is_same_v<T, PyObject *>) {
        return value;
    } else if constexpr (std::is_same_v<T, bool>) {
        const int truth = PyObject_IsTrue(value);
        if (truth < 0) throw PythonError();
        return truth != 0;
    } else if constexpr (std::is_same_v<T, void *>) {  // an address
        void *address = PyLong_AsVoidPtr(value);
        if (!address && PyErr_Occurred()) throw PythonError();
        return address;
    } else if constexpr (std::is_floating_point_v<T>) {
        const double number = PyFloat_AsDouble(value);
        if (number == -1 && PyErr_Occurred()) throw PythonError();
        return T(number);
    } else {
        static_assert(std::is_integral_v<T> && std::is_signed_v<T>);
        const long long number = PyLong_AsLongLong(value);
        if (number == -1 && PyErr_Occurred()) throw PythonError();
        if (number < std::numeric_limits<T>::min() || number > std::numeric_limits<T>::max())
            throw python_error(PyExc_OverflowError, "%lld does not fit into %d bytes", number, int(sizeof(T)));
        return T(number);
    }
}

template <class T>
PyObject *to_python(T value) {
    if constexpr (std::is_same_v<T, PyObject *>) return value;
    else if constexpr (std::is_same_v<T, Ref>) return value.release();
    else if constexpr (std::is_same_v<T, bool>) return PyBool_FromLong(value);
    else if constexpr (std::is_pointer_v<T>) return PyLong_FromVoidPtr(reinterpret_cast<void *>(value));
    else if constexpr (std::is_floating_point_v<T>) return PyFloat_FromDouble(value);
    else if constexpr (std::is_unsigned_v<T>) return PyLong_FromUnsignedLongLong(value);
    else return PyLong_FromLongLong(value);
}

template <class T>
T *as(PyObject *object) {
    return reinterpret_cast<T *>(object);
}

// A function of C++ as Python calls it: its parameters are taken from Python's arguments, those of a method after `Self`. A result
// of the type void is None.
template <auto Function, class R, class Self, class... A>
struct Callee {
    template <size_t... I>
    static PyObject *run([[maybe_unused]] PyObject *self, [[maybe_unused]] PyObject *const *arguments, std::index_sequence<I...>) {
        return guarded<PyObject *>(nullptr, [&]() -> PyObject * {
            auto call = [&]() -> R {
                if constexpr (std::is_void_v<Self>) return Function(from_python<A>(arguments[I])...);
                else return Function(as<Self>(self), from_python<A>(arguments[I])...);
            };
            if constexpr (std::is_void_v<R>) return call(), Py_NewRef(Py_None);
            else return to_python<R>(call());
        });
    }
    static PyObject *without(PyObject *self, PyObject *) { return run(self, nullptr, std::index_sequence<>()); }
    static PyObject *with_one(PyObject *self, PyObject *argument) { return run(self, &argument, std::index_sequence<0>()); }
    static PyObject *with_several(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
        if (count == Py_ssize_t(sizeof...(A))) return run(self, arguments, std::index_sequence_for<A...>());
        return PyErr_Format(PyExc_TypeError, "%d arguments are needed, %zd were given", int(sizeof...(A)), count);
    }
    static PyMethodDef definition(const char *name, const char *doc) {
        if constexpr (sizeof...(A) == 0) return {name, without, METH_NOARGS, doc};
        else if constexpr (sizeof...(A) == 1) return {name, with_one, METH_O, doc};
        else return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void *>(with_several)), METH_FASTCALL, doc};
    }
};

template <auto Function, class R, class... A>
PyMethodDef function_of(R (*)(A...), const char *name, const char *doc) {
    return Callee<Function, R, void, A...>::definition(name, doc);
}
template <auto Function, class R, class Self, class... A>
PyMethodDef method_of(R (*)(Self *, A...), const char *name, const char *doc) {
    return Callee<Function, R, Self, A...>::definition(name, doc);
}

// Rows of a PyMethodDef table: a function of a module, and a method, whose first parameter is the object.
template <auto Function>
PyMethodDef function(const char *name, const char *doc) {
    return function_of<Function>(Function, name, doc);
}
template <auto Function>
PyMethodDef method(const char *name, const char *doc) {
    return method_of<Function>(Function, name, doc);
}

template <auto Function>
struct Attribute;
template <class R, class Self, R (*Function)(Self *)>
struct Attribute<Function> {
    static PyObject *get(PyObject *self, void *) { return Callee<Function, R, Self>::without(self, nullptr); }
};
template <class Self, void (*Function)(Self *, PyObject *)>
struct Attribute<Function> {
    static int set(PyObject *self, PyObject *value, void *) {
        return guarded(-1, [&] { return Function(as<Self>(self), value), 0; });
    }
};

// Rows of a PyGetSetDef table. Who sets gets nullptr where the attribute is deleted.
template <auto Get>
PyGetSetDef attribute(const char *name, const char *doc) {
    return {name, Attribute<Get>::get, nullptr, doc, nullptr};
}
template <auto Get, auto Set>
PyGetSetDef attribute(const char *name, const char *doc) {
    return {name, Attribute<Get>::get, Attribute<Set>::set, doc, nullptr};
}

// Types -------------------------------------------------------------------------------------------------------------------

// The first fields of the type of objects of T, which Python allocates zeroed.
template <class T>
void describe(PyTypeObject &type, const char *name, newfunc create, const char *doc, unsigned long flags = 0) {
    type.tp_name = name;
    type.tp_basicsize = sizeof(T);
    type.tp_flags = Py_TPFLAGS_DEFAULT | flags;
    type.tp_doc = doc;
    type.tp_new = create;
}

// What becomes of the references that an object of T has.
template <class T, PyObject *T::*... Members>
struct References {
    static int traverse(PyObject *raw, visitproc visit, void *arg) {
        for (auto member : {Members...}) Py_VISIT(as<T>(raw)->*member);
        return 0;
    }
    static int clear(PyObject *raw) {
        for (auto member : {Members...}) Py_CLEAR(as<T>(raw)->*member);
        return 0;
    }
    static void dealloc(PyObject *raw) {
        PyObject_GC_UnTrack(raw);
        clear(raw);
        Py_TYPE(raw)->tp_free(raw);
    }
};

}  // namespace backline
