// The definition of a compiled module of the package.
#pragma once
#include "python.hpp"

namespace backline {

// Multi-phase initialisation by Execute(module). The GIL may be off; subinterpreters share the state of the process, and are refused.
template <int (*Execute)(PyObject *module)>
PyObject *module_definition(const char *name, const char *doc) {
    static PyModuleDef_Slot slots[] = {{Py_mod_exec, reinterpret_cast<void *>(entry<Execute>)},
#if PY_VERSION_HEX >= 0x030C0000
                                       {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#ifdef Py_GIL_DISABLED
                                       {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
                                       {0, nullptr}};
    static PyModuleDef definition = {PyModuleDef_HEAD_INIT, name, doc, 0, nullptr, slots, nullptr, nullptr, nullptr};
    return PyModuleDef_Init(&definition);
}

}  // namespace backline
