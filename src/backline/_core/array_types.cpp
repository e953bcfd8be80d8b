#include "boundary.hpp"
#include "array_types.hpp"
#include "locks.hpp"

namespace backline {
namespace {

// A type, and how its arrays are told apart: a tuple of paths (tuples of attribute names), or a function of the array that
// returns a tuple. The type is kept, so that its address in keys stays its own.
struct Known {
    PyTypeObject *type;
    PyObject *how;
};

StateLock lock;  // of `known`
std::vector<Known> &known = *new std::vector<Known>;  // one or two; never destroyed

bool is_path(PyObject *path) {
    if (!PyTuple_CheckExact(path) || !PyTuple_GET_SIZE(path)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(path); ++i)
        if (!PyUnicode_CheckExact(PyTuple_GET_ITEM(path, i))) return false;
    return true;
}

bool register_array_type(PyObject *type, PyObject *how) {
    bool usable = PyCallable_Check(how);
    if (PyTuple_CheckExact(how)) {
        usable = true;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(how); ++i) usable = usable && is_path(PyTuple_GET_ITEM(how, i));
    }
    if (!PyType_Check(type) || !usable)
        throw python_error(PyExc_TypeError, "arrays are described by their type and a tuple of paths of attributes, or by a function");
    StateGuard guard(lock);
    for (const Known &k : known)
        if (k.type == as<PyTypeObject>(type)) return false;
    known.reserve(known.size() + 1);
    known.push_back({as<PyTypeObject>(Py_NewRef(type)), Py_NewRef(how)});
    return true;
}

void forget_array_types() {
    std::vector<Known> old;
    {
        StateGuard guard(lock);
        old.swap(known);
    }
    memo_empty();  // keys hold the addresses of the types
    for (const Known &k : old) {
        Py_DECREF(k.type);
        Py_DECREF(k.how);
    }
}

PyObject *at_path(PyObject *array, PyObject *path) {
    Ref found(Py_NewRef(array));
    for (Py_ssize_t i = 0; found && i < PyTuple_GET_SIZE(path); ++i)
        found.reset(PyObject_GetAttr(found.get(), PyTuple_GET_ITEM(path, i)));
    return found.release();
}

enum Part : int64_t { kParts = -1, kDtype = -2 };  // values have tags above 0

// False for what no key is made of.
bool put_part(Signature &signature, PyObject *part) {
    if (PyTuple_CheckExact(part)) {
        signature.put(kParts, PyTuple_GET_SIZE(part));
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(part); ++i)
            if (!signature.put_value(PyTuple_GET_ITEM(part, i))) return false;
        return signature.memoizable;
    }
    if (!PyArray_DescrCheck(part)) return signature.put_value(part) && signature.memoizable;
    PyArray_Descr *dtype = reinterpret_cast<PyArray_Descr *>(part);
    int number = dtype->type_num;  // tells dtypes apart that have no size, unit or fields to choose
    signature.put(kDtype, number);
    return number >= 0 && !PyTypeNum_ISFLEXIBLE(number) && !PyTypeNum_ISDATETIME(number) && PyArray_ISNBO(dtype->byteorder);
}

PyMethodDef methods[] = {
    function<register_array_type>(
        "register_array_type",
        "register_array_type(type, how): let the Memo know arrays of a type by attributes (a tuple of paths, each a tuple of names) or\n"
        "by what a function says of one. False if it knew them."),
    function<forget_array_types>("forget_array_types", "Forget every such type, and every Plan."),
    {}};

}  // namespace

bool put_described(Signature &signature, PyObject *array) {
    PyTypeObject *type = Py_TYPE(array);
    Ref how;  // owned: what it runs may forget it
    {
        StateGuard guard(lock);
        for (const Known &k : known)
            if (k.type == type) how.reset(Py_NewRef(k.how));
    }
    if (!how) return false;
    signature.put(reinterpret_cast<int64_t>(type));
    bool paths = PyTuple_CheckExact(how.get());
    Ref told(paths ? Py_NewRef(how.get()) : PyObject_CallOneArg(how.get(), array));
    bool good = told && PyTuple_CheckExact(told.get());
    for (Py_ssize_t i = 0; good && i < PyTuple_GET_SIZE(told.get()); ++i) {
        PyObject *item = PyTuple_GET_ITEM(told.get(), i);
        Ref part(paths ? at_path(array, item) : Py_NewRef(item));
        good = part && put_part(signature, part.get());
    }
    // The slow way asks again, and then it is raised; an interrupt is not to be lost.
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear();
    return good;
}

int add_array_types(PyObject *module) { return PyModule_AddFunctions(module, methods); }

}  // namespace backline
