// backline._core: the compiled core. No reference to any one vendor library lives here.
#define BACKLINE_IMPORTS_NUMPY
#include "common.hpp"
#include "team.hpp"

#ifndef BACKLINE_CXX_FLAGS
#define BACKLINE_CXX_FLAGS ""
#endif

namespace {

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "backline._core", "The compiled core of Backline: Memo, PreparedCall, Gate, Door.",
                          -1, nullptr, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__core() {
    import_array();
    backline::Ref module(PyModule_Create(&definition));
    if (!module) return nullptr;
    for (auto add : {backline::add_boundary, backline::add_frame_type, backline::add_team_types, backline::add_door_type, backline::add_plan_types,
                     backline::add_operation_types, backline::add_memo, backline::add_kinds, backline::add_pool, backline::add_columns,
                     backline::add_attention, backline::add_gates, backline::add_gradients, backline::add_rows, backline::add_quantized,
                     backline::add_squares, backline::add_transforms})
        if (add(module.get()) < 0) return nullptr;
    if (PyModule_AddIntConstant(module.get(), "most_threads", backline::kMostThreads) < 0) return nullptr;
    if (PyModule_AddStringConstant(module.get(), "cxx_flags", BACKLINE_CXX_FLAGS) < 0) return nullptr;
    return module.release();
}
