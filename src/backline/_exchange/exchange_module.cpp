// backline._exchange: the addresses through which loaded objects call functions of others, and functions that choose by size.
#include "loaded_objects.hpp"

#include "../_core/module.hpp"

#include <exception>
#include <new>

namespace backline {

void raise_current_exception() {
    try {
        throw;
    } catch (const std::bad_alloc &) {
        PyErr_NoMemory();
    } catch (const std::exception &error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    } catch (...) {
        PyErr_SetString(PyExc_RuntimeError, "an unknown C++ exception");
    }
}

namespace {

int execute(PyObject *module) {
    if (PyModule_AddObjectRef(module, "supported", BACKLINE_HAS_EXCHANGE ? Py_True : Py_False) < 0) return -1;
    if (add_loaded_objects(module) < 0) return -1;
    if (add_size_shims(module) < 0) return -1;
    if (add_narrow_calls(module) < 0) return -1;
    if (add_call_table(module) < 0) return -1;
    if (add_call_recorder(module) < 0) return -1;
    return add_timed_calls(module);
}

}  // namespace
}  // namespace backline

// By this other programs tell this module from others of its name.
extern "C" __attribute__((visibility("default"))) int backline_exchange() { return 1; }

PyMODINIT_FUNC PyInit__exchange() {
    return backline::module_definition<backline::execute>("backline._exchange",
                                                          "Addresses of functions in loaded objects, and functions that choose by size.");
}
