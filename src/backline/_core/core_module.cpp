// backline._core: dispatch. It knows no vendor library and computes nothing itself but copies.
#define BACKLINE_IMPORTS_NUMPY
#include "common.hpp"
#include "call.hpp"
#include "module.hpp"
#include "team.hpp"

#ifndef BACKLINE_CXX_FLAGS
#define BACKLINE_CXX_FLAGS ""
#endif

namespace backline {
namespace {

constexpr int (*kParts[])(PyObject *) = {add_boundary, add_scope_state_type, add_team, add_thread_count_guard_type,
                                         add_rwlock_type, add_plan_types, add_plan_template_type, add_sampled_plan_type,
                                         add_operation_types, add_memo, add_array_types, add_pool, add_services,
                                         add_independent_jobs, add_ended_threads, add_processor_share, add_call_sampler_type,
                                         add_team_speedup};

// Types and tables belong to the process: a program that removes modules from sys.modules and imports them again gets the same.
int execute(PyObject *module) {
    static PyObject *contents = nullptr;
    PyObject *names = PyModule_GetDict(module);
    if (contents) return PyDict_Merge(names, contents, 0);
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "backline._core cannot be used in a subinterpreter: its state belongs to the process");
        return -1;
    }
    if (PyArray_ImportNumPyAPI() < 0) return -1;
    for (auto add : kParts)
        if (add(module) < 0) return -1;
    if (PyModule_AddIntConstant(module, "most_threads", kMostThreads) < 0) return -1;
    if (PyModule_AddIntConstant(module, "most_rolled", kMostApart) < 0) return -1;
    if (PyModule_AddStringConstant(module, "cxx_flags", BACKLINE_CXX_FLAGS) < 0) return -1;
    if (PyModule_AddStringConstant(module, "call_convention", kCallConvention) < 0) return -1;
    contents = PyDict_Copy(names);
    return contents ? 0 : -1;
}

}  // namespace
}  // namespace backline

// By this name the controller for threadpoolctl knows the file: many packages have one called _core.
extern "C" __attribute__((visibility("default"))) int backline_core() { return 1; }

PyMODINIT_FUNC PyInit__core() {
    return backline::module_definition<backline::execute>("backline._core", "Dispatch: Memo, PreparedCall, Operation, ThreadCountGuard.");
}
