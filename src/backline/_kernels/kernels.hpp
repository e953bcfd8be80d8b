// The numeric loops that no vendor library has. Most are plain functions over plain memory, which plans call by address as they call
// a vendor's; each source file lists its own.
#pragma once
#include "../_core/python.hpp"
#include "../_core/services.hpp"

#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace backline {

struct Kernel {
    const char *name;
    void *address;
};

template <class Function>
Kernel kernel(const char *name, Function *function) {
    return {name, reinterpret_cast<void *>(function)};
}

// Adds kernels to the module's table of addresses; -1 with an exception set.
int add_kernels(PyObject *addresses, std::initializer_list<Kernel> kernels);

// Each adds the kernels of one source file to the addresses, and its functions, if it has any, to the module.
int add_attention(PyObject *module, PyObject *addresses);
int add_byte_pooling(PyObject *module, PyObject *addresses);
int add_depthwise(PyObject *module, PyObject *addresses);
int add_depthwise_bytes(PyObject *module, PyObject *addresses);
int add_element_functions(PyObject *module, PyObject *addresses);
int add_element_sums(PyObject *module, PyObject *addresses);
int add_exponential(PyObject *module, PyObject *addresses);
int add_few_rows(PyObject *module, PyObject *addresses);
int add_gradients(PyObject *module, PyObject *addresses);
int add_im2col(PyObject *module, PyObject *addresses);
int add_int8_products(PyObject *module, PyObject *addresses);
int add_int8_tiles(PyObject *module, PyObject *addresses);
int add_matrix_results(PyObject *module, PyObject *addresses);
int add_matrix_tiles(PyObject *module, PyObject *addresses);
int add_mixed_radix(PyObject *module, PyObject *addresses);
int add_normalize(PyObject *module, PyObject *addresses);
int add_norms(PyObject *module, PyObject *addresses);
int add_pointwise(PyObject *module, PyObject *addresses);
int add_pooling(PyObject *module, PyObject *addresses);
int add_quantize(PyObject *module, PyObject *addresses);
int add_recurrent(PyObject *module, PyObject *addresses);
int add_requantize(PyObject *module, PyObject *addresses);
int add_roots(PyObject *module, PyObject *addresses);
int add_short_time(PyObject *module, PyObject *addresses);
int add_small_products(PyObject *module, PyObject *addresses);
int add_small_spectra(PyObject *module, PyObject *addresses);
int add_small_systems(PyObject *module, PyObject *addresses);
int add_softmax_columns(PyObject *module, PyObject *addresses);
int add_softmax_rows(PyObject *module, PyObject *addresses);
int add_transforms(PyObject *module, PyObject *addresses);
int add_triangle_copies(PyObject *module, PyObject *addresses);
int add_ufunc_transforms(PyObject *module, PyObject *addresses);
int add_vector_functions(PyObject *module, PyObject *addresses);

extern const Services *services;  // of the core

}  // namespace backline
