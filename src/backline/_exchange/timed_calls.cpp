// Calls of functions by their addresses, timed.
#include "loaded_objects.hpp"

#if BACKLINE_HAS_EXCHANGE
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace backline {
namespace {

constexpr int kReals = 8;
constexpr size_t kArguments = 30;

// Of the arguments that a function does not have, it sees nothing: they are in registers and on the stack past its own.
template <size_t>
using Word = int64_t;
template <class>
struct Call;
template <size_t... I>
struct Call<std::index_sequence<I...>> {
    using Function = void (*)(double, double, double, double, double, double, double, double, Word<I>...);
    static void run(void *function, const double *x, const int64_t *w) {
        reinterpret_cast<Function>(function)(x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], w[I]...);
    }
};

struct Copy {
    void *to;
    const void *from;
    size_t bytes;
};

// Seconds of so many calls with these words, and numbers in the registers of such; before each call operands are copied, untimed.
double timed_calls(void *address, PyObject *words, PyObject *reals, int64_t count, PyObject *copies) {
    int64_t w[kArguments] = {};
    double x[kReals] = {};
    const auto bytes = [](PyObject *object, void *to, size_t most) {
        char *data;
        Py_ssize_t size;
        checked(PyBytes_AsStringAndSize(object, &data, &size) == 0);
        if (size_t(size) > most) throw python_error(PyExc_ValueError, "%zd bytes are more than a call has arguments for", size);
        std::memcpy(to, data, size_t(size));
    };
    bytes(words, w, sizeof(w));
    bytes(reals, x, sizeof(x));
    constexpr int kCopies = 8;
    Copy list[kCopies];
    Ref rows(checked(PySequence_Fast(copies, "copies are a sequence")));
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(rows.get());
    if (size > kCopies || !address) throw python_error(PyExc_ValueError, "a function, and at most %d copies", kCopies);
    for (Py_ssize_t i = 0; i < size; ++i) {
        unsigned long long to, from;
        Py_ssize_t length;
        checked(PyArg_ParseTuple(PySequence_Fast_GET_ITEM(rows.get(), i), "KKn", &to, &from, &length) != 0);
        list[i] = {reinterpret_cast<void *>(uintptr_t(to)), reinterpret_cast<const void *>(uintptr_t(from)), size_t(length)};
    }
    int64_t spent = 0;
    const auto call = [&] { Call<std::make_index_sequence<kArguments>>::run(address, x, w); };
    Py_BEGIN_ALLOW_THREADS;
    if (size == 0) {
        const int64_t start = now();
        for (int64_t i = 0; i < count; ++i) call();
        spent = now() - start;
    } else {
        for (int64_t i = 0; i < count; ++i) {
            for (Py_ssize_t k = 0; k < size; ++k) std::memcpy(list[k].to, list[k].from, list[k].bytes);
            const int64_t start = now();
            call();
            spent += now() - start;
        }
    }
    Py_END_ALLOW_THREADS;
    return double(spent) * 1e-9;
}

// Called with the arguments of a product in the Fortran interface.
using Product = void (*)(const void *, const void *, const void *, const void *, const void *, const void *, const void *, const void *,
                         const void *, const void *, const void *, const void *, const void *);
void nothing(const void *, const void *, const void *, const void *, const void *, const void *, const void *, const void *, const void *,
             const void *, const void *, const void *, const void *) {}

double call_seconds(void *address, int64_t count) {
    const volatile Product function = address ? reinterpret_cast<Product>(address) : nothing;
    int64_t n = 8;  // written to by functions that convert integers
    const int64_t begin = now();
    for (int64_t i = 0; i < count; ++i) function(&n, &n, &n, &n, &n, &n, &n, &n, &n, &n, &n, &n, &n);
    return double(now() - begin) * 1e-9;
}

void *no_function() { return reinterpret_cast<void *>(nothing); }

PyMethodDef functions[] = {
    function<timed_calls>("timed_calls", "Seconds of so many calls: (function, words, numbers, count, copies)."),
    function<call_seconds>("call_seconds", "Time of calling an address so many times; 0 is a function that does nothing."),
    function<no_function>("no_function", "Address of a function that does nothing."),
    {}};

}  // namespace

int add_timed_calls(PyObject *module) { return PyModule_AddFunctions(module, functions); }

}  // namespace backline

#else

namespace backline {
int add_timed_calls(PyObject *) { return 0; }
}  // namespace backline

#endif
