// Functions of one vector, such as the C library has, called for neighbours in memory: with the arguments of MKL's functions of
// vectors, but for the last, which is the function.
#include "kernels.hpp"
#include "targets.hpp"

#include <algorithm>

namespace backline {
namespace {

struct OfVectors {
    template <class T, int Bytes>
    static BACKLINE_INLINE void run(int64_t number, const void *from, void *to, int64_t function) {
        typedef T Vector __attribute__((vector_size(Bytes)));
        constexpr int64_t lanes = Bytes / sizeof(T);
        const auto compute = reinterpret_cast<Vector (*)(Vector)>(function);
        const T *source = static_cast<const T *>(from);
        T *target = static_cast<T *>(to);
        Vector v;
        int64_t i = 0;
        for (; i + lanes <= number; i += lanes) {
            std::memcpy(&v, source + i, Bytes);
            v = compute(v);
            std::memcpy(target + i, &v, Bytes);
        }
        if (i == number) return;
        T last[lanes];
        std::fill_n(last, lanes, T(1));  // every function has a value there
        std::copy(source + i, source + number, last);
        std::memcpy(&v, last, Bytes);
        v = compute(v);
        std::memcpy(last, &v, Bytes);
        std::copy(last, last + (number - i), target + i);
    }
};

constexpr auto &kLoops = TypedVersions<OfVectors>::table;

}  // namespace

int add_vector_functions(PyObject *, PyObject *addresses) {
    return add_kernels(
        addresses, {
                       kernel("float32_vectors_0", kLoops[0][0]),
                       kernel("float64_vectors_0", kLoops[0][1]),
#if defined(__x86_64__)
                       kernel("float32_vectors_1", kLoops[1][0]),
                       kernel("float64_vectors_1", kLoops[1][1]),
                       kernel("float32_vectors_2", kLoops[2][0]),
                       kernel("float64_vectors_2", kLoops[2][1]),
#endif
                   });
}

}  // namespace backline
