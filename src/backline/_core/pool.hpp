// Memory for large outputs and workspaces. A fresh large block costs a page fault for every 4 KiB, which can double
// the time of a memory-bound operation, so freed blocks are kept for a while, up to a bound.
#pragma once
#include "common.hpp"

namespace backline {

constexpr size_t kPooledBytes = size_t(1) << 20;  // smaller blocks are malloc's business

void *pool_take(size_t bytes);               // nullptr when there is no memory
void pool_give(void *block, size_t bytes);   // bytes as they were asked for

// An uninitialised array like PyArray_NewFromDescr makes (which steals the descriptor), its data from the pool when large.
PyObject *new_array(PyArray_Descr *descr, int ndim, const npy_intp *shape, const npy_intp *strides, bool fortran);

}  // namespace backline
