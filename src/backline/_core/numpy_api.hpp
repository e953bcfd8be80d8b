// NumPy's C API. One source file of each compiled module defines BACKLINE_IMPORTS_NUMPY and imports it.
#pragma once
#include "python.hpp"

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL backline_ARRAY_API
#ifndef BACKLINE_IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>
