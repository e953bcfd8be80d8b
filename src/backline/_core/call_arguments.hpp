// The arguments of a call as a tuple and a dict: how functions in Python take them on.
#pragma once
#include "python.hpp"

namespace backline {

struct CallArguments {
    CallArguments(PyObject *const *args, size_t nargsf, PyObject *kwnames) {
        const Py_ssize_t nargs = PyVectorcall_NARGS(nargsf), named = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
        positional.reset(checked(PyTuple_New(nargs)));
        keywords.reset(checked(PyDict_New()));
        for (Py_ssize_t i = 0; i < nargs; ++i) PyTuple_SET_ITEM(positional.get(), i, Py_NewRef(args[i]));
        for (Py_ssize_t i = 0; i < named; ++i)
            checked(PyDict_SetItem(keywords.get(), PyTuple_GET_ITEM(kwnames, i), args[nargs + i]) == 0);
    }
    Ref positional, keywords;
};

}  // namespace backline
