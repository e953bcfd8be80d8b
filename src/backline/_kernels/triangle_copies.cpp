// Copies of one triangle of a matrix for a factorization: the other becomes 0, and NaN and infinity are looked for on the way.
#include "kernels.hpp"
#include "targets.hpp"

#include <algorithm>

namespace backline {
namespace {

// Written by libraries/blas/lapack_parts.py: eight bytes for each field, in this order. Lines are rows, or columns where these lie
// without gaps.
struct Triangle {
    int64_t real, parts, level;  // bytes of a real number, how many an element has; of vector instructions
    int64_t n, apart;            // elements of a line, and bytes from the start of a line to that of the next
    int64_t tail;                // whether line i keeps its elements from i on, else those up to i
};

// Tells whether one of the numbers, given as their bits, is not finite: its exponent, of all ones, then carries into the sign.
template <class Bits, Bits Exponent, Bits Lowest>
BACKLINE_INLINE bool copied(const Bits *from, Bits *to, int64_t count) {
    Bits seen = 0;
    for (int64_t i = 0; i < count; ++i) {
        const Bits bits = from[i];
        to[i] = bits;
        seen |= (bits & Exponent) + Lowest;
    }
    return seen >> (8 * sizeof(Bits) - 1);
}

template <class Bits, Bits Exponent, Bits Lowest>
bool copied_lines(const Triangle &t, const char *from, char *to, int64_t first, int64_t count) {
    const auto run = Versions<copied<Bits, Exponent, Lowest>>::table[t.level];
    const int64_t element = t.real * t.parts, line = t.n * element;
    bool found = false;
    for (int64_t i = first; i < first + count; ++i) {
        const int64_t start = t.tail ? i * element : 0, end = t.tail ? line : (i + 1) * element;
        char *here = to + i * line;
        std::memset(here, 0, size_t(start));
        found |= run(reinterpret_cast<const Bits *>(from + i * t.apart + start), reinterpret_cast<Bits *>(here + start), (end - start) / t.real);
        std::memset(here + end, 0, size_t(line - end));
    }
    return found;
}

// Some lines; `flag` becomes 1 where they hold NaN or infinity, else 0.
void copy_triangle(const Triangle *t, const char *from, char *to, int64_t first, int64_t count, int32_t *flag) {
    *flag = t->real == 4 ? copied_lines<uint32_t, 0x7F800000, 0x00800000>(*t, from, to, first, count)
                         : copied_lines<uint64_t, 0x7FF0000000000000, 0x0010000000000000>(*t, from, to, first, count);
}

// 1, a status, where one of so many flags is.
int64_t any_flag(int64_t count, const int32_t *flags) { return std::any_of(flags, flags + count, [](int32_t flag) { return flag != 0; }); }

}  // namespace

int add_triangle_copies(PyObject *, PyObject *addresses) {
    return add_kernels(addresses, {kernel("copy_triangle", copy_triangle), kernel("any_flag", any_flag)});
}

}  // namespace backline
