// Functions of one vector, such as the C library has, called for neighbours in memory: with the arguments of MKL's functions of
// vectors, but for the last, which is the function.
#include "kernels.hpp"
#include "targets.hpp"

#include <algorithm>
#include <iterator>

namespace backline {
namespace {

// The library's sines may be a unit beyond 1, and its cosines of x and -x a unit apart.
enum Kind { kAny, kSine, kCosine };

template <Kind kind, class Vector>
BACKLINE_INLINE Vector value(Vector (*function)(Vector), Vector x) {
    if constexpr (kind == kCosine) x = x < 0 ? -x : x;
    Vector y = function(x);
    if constexpr (kind != kAny) {  // NaN stays
        const Vector one = Vector{} + 1;
        y = y > one ? one : y;
        y = y < -one ? -one : y;
    }
    return y;
}

template <Kind kind>
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
            v = value<kind>(compute, v);
            std::memcpy(target + i, &v, Bytes);
        }
        if (i == number) return;
        T last[lanes];
        std::fill_n(last, lanes, T(1));  // every function has a value there
        std::copy(source + i, source + number, last);
        std::memcpy(&v, last, Bytes);
        v = value<kind>(compute, v);
        std::memcpy(last, &v, Bytes);
        std::copy(last, last + (number - i), target + i);
    }
};

// Their names end in the level, and the level decides the bytes of a vector.
template <Kind kind>
int add(PyObject *addresses, const char *(&&names)[kLevels][2]) {
    const auto &loops = TypedVersions<OfVectors<kind>>::table;
    for (size_t level = 0; level < std::size(loops); ++level)
        for (int wide = 0; wide < 2; ++wide)
            if (add_kernels(addresses, {kernel(names[level][wide], loops[level][wide])}) < 0) return -1;
    return 0;
}

#define BACKLINE_NAMES(kind)                                                                                            \
    {{"float32_" kind "_0", "float64_" kind "_0"}, {"float32_" kind "_1", "float64_" kind "_1"}, {"float32_" kind "_2", "float64_" kind "_2"}}

}  // namespace

int add_vector_functions(PyObject *, PyObject *addresses) {
    if (add<kAny>(addresses, BACKLINE_NAMES("vectors")) < 0 || add<kSine>(addresses, BACKLINE_NAMES("sines")) < 0) return -1;
    return add<kCosine>(addresses, BACKLINE_NAMES("cosines"));
}

}  // namespace backline
