// backline._kernels: the numeric loops that no vendor library has.
#define BACKLINE_IMPORTS_NUMPY
#include "arrays.hpp"
#include "kernels.hpp"
#include "targets.hpp"

namespace backline {

const Services *services = nullptr;

void raise_current_exception() { services->raise_current_exception(); }

int best_level() {
#if defined(__x86_64__)
    static const int level = [] {
        __builtin_cpu_init();
        if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
        bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
        return wide ? 2 : 1;
    }();
    return level;
#else
    return 0;
#endif
}

int add_kernels(PyObject *addresses, std::initializer_list<Kernel> kernels) {
    for (const Kernel &k : kernels) {
        PyObject *address = PyLong_FromVoidPtr(k.address);
        if (!address) return -1;
        int status = PyDict_SetItemString(addresses, k.name, address);
        Py_DECREF(address);
        if (status < 0) return -1;
    }
    return 0;
}

namespace {

constexpr int (*kParts[])(PyObject *, PyObject *) = {add_attention, add_gradients,  add_im2col,       add_matrix_results, add_norms,   add_quantize,
                                                     add_recurrent, add_requantize, add_softmax_rows, add_transforms};

int execute(PyObject *module) {
    if (PyArray_ImportNumPyAPI() < 0) return -1;
    // Not PyCapsule_Import: it wants the core as an attribute of the package, which it is not where a program loaded it by its path.
    PyObject *core = PyImport_ImportModule("backline._core");
    PyObject *capsule = core ? PyObject_GetAttrString(core, "services") : nullptr;
    services = capsule ? static_cast<const Services *>(PyCapsule_GetPointer(capsule, kServices)) : nullptr;
    Py_XDECREF(capsule);
    Py_XDECREF(core);
    if (!services) return -1;
    PyObject *addresses = PyDict_New();
    if (!addresses) return -1;
    int status = PyModule_AddObjectRef(module, "addresses", addresses);
    for (auto add : kParts)
        if (status == 0) status = add(module, addresses);
    Py_DECREF(addresses);
    return status < 0 ? -1 : PyModule_AddIntConstant(module, "instruction_level", best_level());
}

PyModuleDef_Slot slots[] = {{Py_mod_exec, reinterpret_cast<void *>(execute)},
#if PY_VERSION_HEX >= 0x030C0000
                            {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#ifdef Py_GIL_DISABLED
                            {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
                            {0, nullptr}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "backline._kernels", "Numeric loops that no vendor library has, by their addresses.",
                          0, nullptr, slots, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace backline

PyMODINIT_FUNC PyInit__kernels() { return PyModuleDef_Init(&backline::definition); }
