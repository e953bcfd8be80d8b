// backline._kernels: the numeric loops that no vendor library has.
#define BACKLINE_IMPORTS_NUMPY
#include "arrays.hpp"
#include "../_core/module.hpp"
#include "targets.hpp"

namespace backline {

const Services *services = nullptr;

void raise_current_exception() {
    if (services) services->raise_current_exception();
    else PyErr_SetString(PyExc_ImportError, "backline._kernels could not be initialised");
}

int best_level() {
#if defined(__x86_64__)
    static const int level = [] {
        __builtin_cpu_init();
        if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c")) return 0;
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
        Ref address(PyLong_FromVoidPtr(k.address));
        if (!address || PyDict_SetItemString(addresses, k.name, address.get()) < 0) return -1;
    }
    return 0;
}

namespace {

constexpr int (*kParts[])(PyObject *, PyObject *) = {
    add_attention, add_byte_pooling, add_depthwise, add_depthwise_bytes, add_element_functions, add_element_sums,
    add_exponential, add_few_rows,
    add_gradients, add_im2col, add_int8_products, add_int8_tiles, add_matrix_results, add_matrix_tiles, add_mixed_radix,
    add_normalize, add_norms,
    add_pointwise, add_pooling, add_quantize, add_recurrent, add_requantize, add_roots, add_short_time, add_small_spectra,
    add_small_products, add_small_systems, add_softmax_columns, add_softmax_rows, add_transforms, add_triangle_copies, add_ufunc_transforms,
    add_vector_functions};

int execute(PyObject *module) {
    if (PyArray_ImportNumPyAPI() < 0) return -1;
    // Not PyCapsule_Import: it wants the core as an attribute of the package, which it is not where a program loaded it by its path.
    Ref core(checked(PyImport_ImportModule("backline._core")));
    Ref capsule(checked(PyObject_GetAttrString(core.get(), "services")));
    services = static_cast<const Services *>(checked(PyCapsule_GetPointer(capsule.get(), kServices)));
    Ref addresses(checked(PyDict_New()));
    if (PyModule_AddObjectRef(module, "addresses", addresses.get()) < 0) return -1;
    for (auto add : kParts)
        if (add(module, addresses.get()) < 0) return -1;
    return PyModule_AddIntConstant(module, "instruction_level", best_level());
}

}  // namespace
}  // namespace backline

PyMODINIT_FUNC PyInit__kernels() {
    return backline::module_definition<backline::execute>("backline._kernels", "Numeric loops that no vendor library has, by their addresses.");
}
