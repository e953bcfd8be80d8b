// Functions of one array, element by element, by the compiled loops below NumPy's own ufuncs, or by functions of neighbours in memory,
// such as MKL's: an item is some lines of the array, or parts of lines, so that threads share the work. NumPy's loops have other code
// for elements with gaps, with other last bits, and the others have none: they are given copies side by side.
#include "arrays.hpp"
#include "kernels.hpp"

#include <algorithm>
#include <numpy/ufuncobject.h>
#include <utility>

namespace backline {
namespace {

constexpr int kOuter = 15;            // axes of the lines
constexpr int64_t kBuffer = 1 << 15;  // bytes of the elements of an item: they stay in the nearest cache
constexpr int64_t kShort = 64;        // elements of a line that is worth a call

using VectorFunction = void (*)(int64_t, const void *, void *, int64_t);  // as MKL has them, with 64-bit integers

// Written by libraries/kernels/element_functions.py: eight bytes for each field, in this order. Steps in bytes.
struct ElementFunction {
    void *function;         // a PyUFuncGenericFunction, or with a mode a VectorFunction; null copies
    void *data;             // of a ufunc's loop
    int64_t mode;           // the last argument of a VectorFunction
    int64_t item;           // bytes of an element
    int64_t length, width;  // elements of a line, and of the parts that it is cut into
    int64_t share, rows;    // parts of an item, kBuffer bytes at most where there are several, and of the whole array
    int64_t from_step, to_step;
    int64_t sizes[kOuter], from_outer[kOuter], to_outer[kOuter];
};

template <class E>
void move_as(const char *from, int64_t from_step, char *to, int64_t to_step, int64_t count) {
    for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * to_step, from + i * from_step, sizeof(E));
}

void move(int64_t item, const char *from, int64_t from_step, char *to, int64_t to_step, int64_t count) {
    if (item == 2) move_as<char[2]>(from, from_step, to, to_step, count);
    else if (item == 4) move_as<char[4]>(from, from_step, to, to_step, count);
    else if (item == 8) move_as<char[8]>(from, from_step, to, to_step, count);
    else move_as<char[16]>(from, from_step, to, to_step, count);
}

// The function of neighbours in memory, which may be written where they are.
void call(const ElementFunction *u, char *from, char *to, int64_t number) {
    if (!u->function) {
        if (from != to) std::memcpy(to, from, size_t(number * u->item));
        return;
    }
    if (u->mode) return reinterpret_cast<VectorFunction>(u->function)(number, from, to, u->mode);
    const npy_intp count = npy_intp(number), steps[] = {npy_intp(u->item), npy_intp(u->item)};
    char *arrays[] = {from, to};
    reinterpret_cast<PyUFuncGenericFunction>(u->function)(arrays, &count, steps, u->data);
}

// The function of elements that may have gaps.
void compute(const ElementFunction *u, char *from, char *to, int64_t number) {
    alignas(64) char buffer[kBuffer];
    const auto dense = [=](const char *place, int64_t step) {
        return (step == u->item || number == 1) && reinterpret_cast<uintptr_t>(place) % uintptr_t(std::min<int64_t>(u->item, 8)) == 0;
    };
    const bool source_dense = dense(from, u->from_step), target_dense = dense(to, u->to_step);
    char *source = source_dense ? from : target_dense ? to : buffer, *target = target_dense ? to : buffer;
    if (!source_dense) move(u->item, from, u->from_step, source, u->item, number);
    call(u, source, target, number);
    if (!target_dense) move(u->item, target, u->item, to, u->to_step, number);
}

// Where a part is: steps from one to the next take no division.
class Place {
  public:
    int64_t source = 0, target = 0;

    Place(const ElementFunction *description, int64_t row) : u(description), parts((u->length + u->width - 1) / u->width) {
        part = row % parts;
        int64_t line = row / parts;
        for (int axis = kOuter - 1; axis >= 0; --axis) {
            at[axis] = line % u->sizes[axis];
            line /= u->sizes[axis];
            source += at[axis] * u->from_outer[axis];
            target += at[axis] * u->to_outer[axis];
        }
        source += part * u->width * u->from_step;
        target += part * u->width * u->to_step;
    }

    int64_t count() const { return std::min(u->width, u->length - part * u->width); }

    void advance() {
        if (++part < parts) return shift(u->width * u->from_step, u->width * u->to_step);
        part = 0;
        shift((1 - parts) * u->width * u->from_step, (1 - parts) * u->width * u->to_step);
        for (int axis = kOuter - 1; axis >= 0; --axis) {
            shift(u->from_outer[axis], u->to_outer[axis]);
            if (++at[axis] < u->sizes[axis]) return;
            at[axis] = 0;
            shift(-u->sizes[axis] * u->from_outer[axis], -u->sizes[axis] * u->to_outer[axis]);
        }
    }

  private:
    void shift(int64_t from, int64_t to) {
        source += from;
        target += to;
    }

    const ElementFunction *u;
    int64_t parts, part, at[kOuter];
};

// Lines so short that a call for each takes longer than to bring them together; those of an item have room.
void compute_together(const ElementFunction *u, int64_t row, int64_t rows, char *from, char *to) {
    alignas(64) char buffer[kBuffer];
    const int64_t length = u->length * u->item;
    char *here = buffer;
    for (auto [place, i] = std::pair(Place(u, row), int64_t(0)); i < rows; ++i, place.advance(), here += length)
        move(u->item, from + place.source, u->from_step, here, u->item, u->length);
    call(u, buffer, buffer, rows * u->length);
    here = buffer;
    for (auto [place, i] = std::pair(Place(u, row), int64_t(0)); i < rows; ++i, place.advance(), here += length)
        move(u->item, here, u->item, to + place.target, u->to_step, u->length);
}

void element_function(const ElementFunction *u, int64_t item, char *from, char *to) {
    if (u->rows == 1) return compute(u, from, to, u->length);
    const int64_t first = item * u->share, rows = std::min(u->rows - first, u->share);
    if (rows > 1 && u->length < kShort) return compute_together(u, first, rows, from, to);
    Place place(u, first);
    for (int64_t i = 0; i < rows; ++i, place.advance()) compute(u, from + place.source, to + place.target, place.count());
}

}  // namespace

int add_element_functions(PyObject *, PyObject *addresses) { return add_kernels(addresses, {kernel("element_function", element_function)}); }

}  // namespace backline
