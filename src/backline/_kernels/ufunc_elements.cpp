// Functions of one array, element by element, by the compiled loops below NumPy's own ufuncs: an item is some lines of the array, or
// parts of lines, so that threads share the work.
#include "arrays.hpp"
#include "kernels.hpp"

#include <algorithm>
#include <numpy/ufuncobject.h>

namespace backline {
namespace {

constexpr int kOuter = 3;  // axes of the lines

// Written by libraries/numpy/element_loops.py: eight bytes for each field, in this order. Steps in bytes.
struct UfuncElements {
    PyUFuncGenericFunction loop;
    void *data;
    int64_t length, width;     // elements of a line, and of the parts that it is cut into
    int64_t share, rows;       // parts of an item, and of the whole array
    int64_t from_step, to_step;
    int64_t sizes[kOuter], from_outer[kOuter], to_outer[kOuter];
};

void elements_ufunc(const UfuncElements *u, int64_t item, char *from, char *to) {
    const int64_t parts = (u->length + u->width - 1) / u->width, end = std::min(u->rows, (item + 1) * u->share);
    const npy_intp steps[] = {npy_intp(u->from_step), npy_intp(u->to_step)};
    for (int64_t row = item * u->share; row < end; ++row) {
        const int64_t first = row % parts * u->width;
        int64_t line = row / parts, source = first * u->from_step, target = first * u->to_step;
        for (int axis = kOuter - 1; axis >= 0; --axis) {
            const int64_t at = line % u->sizes[axis];
            line /= u->sizes[axis];
            source += at * u->from_outer[axis];
            target += at * u->to_outer[axis];
        }
        const npy_intp count = npy_intp(std::min(u->width, u->length - first));
        char *arrays[] = {from + source, to + target};
        u->loop(arrays, &count, steps, u->data);
    }
}

}  // namespace

int add_ufunc_elements(PyObject *, PyObject *addresses) { return add_kernels(addresses, {kernel("elements_ufunc", elements_ufunc)}); }

}  // namespace backline
