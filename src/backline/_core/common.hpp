// Shared by every source file of the compiled core.
#pragma once
#include "numpy_api.hpp"

#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

namespace backline {

// Each adds what its source file has to the module; -1 with an exception set.
int add_boundary(PyObject *module);
int add_scope_state_type(PyObject *module);
int add_team(PyObject *module);
int add_team_speedup(PyObject *module);
int add_thread_count_guard_type(PyObject *module);
int add_rwlock_type(PyObject *module);
int add_plan_types(PyObject *module);
int add_plan_template_type(PyObject *module);
int add_sampled_plan_type(PyObject *module);
int add_call_sampler_type(PyObject *module);
int add_operation_types(PyObject *module);
int add_memo(PyObject *module);
int add_array_types(PyObject *module);
int add_pool(PyObject *module);
int add_services(PyObject *module);
int add_independent_jobs(PyObject *module);
int add_ended_threads(PyObject *module);
int add_processor_share(PyObject *module);

}  // namespace backline
