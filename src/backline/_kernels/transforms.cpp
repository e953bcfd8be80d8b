// What plans of Fourier transforms call by address: a library that has one plan for aligned arrays and another for any arrays is
// asked for the right one, a result is multiplied by a number, the second half of a result made of the first, numbers are
// converted between float32 and float64, or multiplied with a table of complex numbers and filled up with zeros.
#include "kernels.hpp"
#include "targets.hpp"

#include <cstring>

namespace backline {
namespace {

// In the constant memory of a plan, eight bytes each.
struct Execution {
    void (*execute)(void *plan, void *in, void *out);
    void *aligned, *any;  // plans; the first is for addresses that are multiples of 16
};

struct Scaling {
    double factor;
    int64_t item;                 // bytes of a real number: 4 or 8
    int64_t sizes[3], strides[3];  // bytes; the innermost last
};

struct Mirror {
    int64_t item;  // bytes of a complex number: 8 or 16
    int64_t rows, columns;
    int64_t from_row, from_column, to_row, to_column;  // bytes; lines are read backwards where a step is below 0
};

struct Conversion {
    int64_t widens;     // whether float32 becomes float64; else float64 becomes float32
    int64_t parts;      // real numbers of an element: 1, or 2 for complex numbers
    int64_t conjugate;  // whether the second part changes its sign
    int64_t rows, columns;
    int64_t from_row, from_column, to_row, to_column;  // bytes
};

// What is real at an end: the number, whose imaginary part has no say, or the result, whose imaginary part becomes 0.
constexpr int64_t kTaken = 1, kGiven = 2;

struct Weighting {
    int64_t level;                       // of the instruction set
    int64_t item;                        // bytes of a real number: 4 or 8
    int64_t real_numbers, real_results;  // whether these are; not both
    int64_t real_first, real_last;       // of the first and of the last: kTaken, kGiven, or 0
    int64_t count, zeros;                // numbers that are multiplied, and zeros that follow them
    int64_t from_step, to_step;          // bytes
};

void run_transform(const Execution *e, void *in, void *out) {
    bool odd = (reinterpret_cast<uintptr_t>(in) | reinterpret_cast<uintptr_t>(out)) & 15;
    e->execute(odd ? e->any : e->aligned, in, out);
}

template <class T>
void scale_lines(const Scaling &s, char *data) {
    const T factor = T(s.factor);
    const int64_t count = s.sizes[2], step = s.strides[2];
    for (int64_t i = 0; i < s.sizes[0]; ++i)
        for (int64_t j = 0; j < s.sizes[1]; ++j) {
            char *line = data + i * s.strides[0] + j * s.strides[1];
            if (step == int64_t(sizeof(T))) {
                T *numbers = reinterpret_cast<T *>(line);
                for (int64_t k = 0; k < count; ++k) numbers[k] *= factor;
            } else {
                for (int64_t k = 0; k < count; ++k) *reinterpret_cast<T *>(line + k * step) *= factor;
            }
        }
}

void scale_result(const Scaling *s, char *data) { s->item == 4 ? scale_lines<float>(*s, data) : scale_lines<double>(*s, data); }

template <class T>
void mirror_lines(const Mirror &m, const char *from, char *to) {
    const int64_t item = 2 * int64_t(sizeof(T)), count = m.columns;
    for (int64_t i = 0; i < m.rows; ++i) {
        const char *source = from + i * m.from_row;
        char *target = to + i * m.to_row;
        if (m.from_column == -item && m.to_column == item) {
            const T *last = reinterpret_cast<const T *>(source);
            T *first = reinterpret_cast<T *>(target);
            for (int64_t j = 0; j < count; ++j) {
                first[2 * j] = last[-2 * j];
                first[2 * j + 1] = -last[1 - 2 * j];
            }
        } else {
            for (int64_t j = 0; j < count; ++j) {
                const T *one = reinterpret_cast<const T *>(source + j * m.from_column);
                T *other = reinterpret_cast<T *>(target + j * m.to_column);
                other[0] = one[0];
                other[1] = -one[1];
            }
        }
    }
}

void mirror_result(const Mirror *m, const char *from, char *to) {
    m->item == 8 ? mirror_lines<float>(*m, from, to) : mirror_lines<double>(*m, from, to);
}

template <class From, class To>
void convert_lines(const Conversion &c, const char *from, char *to) {
    const To sign = To(c.conjugate ? -1 : 1);
    for (int64_t i = 0; i < c.rows; ++i) {
        const char *source = from + i * c.from_row;
        char *target = to + i * c.to_row;
        bool dense = c.from_column == c.parts * int64_t(sizeof(From)) && c.to_column == c.parts * int64_t(sizeof(To));
        bool aligned = reinterpret_cast<uintptr_t>(source) % alignof(From) == 0 && reinterpret_cast<uintptr_t>(target) % alignof(To) == 0;
        if (dense && aligned && !c.conjugate) {
            const From *numbers = reinterpret_cast<const From *>(source);
            To *results = reinterpret_cast<To *>(target);
            for (int64_t j = 0; j < c.parts * c.columns; ++j) results[j] = To(numbers[j]);
            continue;
        }
        for (int64_t j = 0; j < c.columns; ++j) {
            From numbers[2] = {};
            To results[2];
            std::memcpy(numbers, source + j * c.from_column, size_t(c.parts) * sizeof(From));
            results[0] = To(numbers[0]);
            results[1] = sign * To(numbers[1]);
            std::memcpy(target + j * c.to_column, results, size_t(c.parts) * sizeof(To));
        }
    }
}

void convert(const Conversion *c, const char *from, char *to) {
    c->widens ? convert_lines<float, double>(*c, from, to) : convert_lines<double, float>(*c, from, to);
}

// Products are computed in float64 and rounded once: for float32 the table's own rounding would cost a tenth of a digit more. Where
// numbers are real, the imaginary parts are 0; where results are, those are left out.
template <class T, bool RealNumbers, bool RealResults>
BACKLINE_INLINE void weight_dense(int64_t count, const double *table, const T *numbers, T *results) {
    for (int64_t j = 0; j < count; ++j) {
        const double re = numbers[RealNumbers ? j : 2 * j], im = RealNumbers ? 0.0 : numbers[2 * j + 1];
        const double c = table[2 * j], d = table[2 * j + 1];
        results[RealResults ? j : 2 * j] = T(RealNumbers ? re * c : re * c - im * d);
        if (!RealResults) results[2 * j + 1] = T(RealNumbers ? re * d : re * d + im * c);
    }
}

template <class T, bool RealNumbers, bool RealResults>
void weight_lines(const Weighting &w, const double *table, const char *from, char *to) {
    constexpr int64_t item = sizeof(T), number = RealNumbers ? item : 2 * item, result = RealResults ? item : 2 * item;
    constexpr auto dense = weight_dense<T, RealNumbers, RealResults>;
    if (w.from_step == number && w.to_step == result)
        // GCC 12 fuses complex products for AVX-512 whatever it is told, but not the ones that a vector does not fill.
        Versions<dense>::without_avx512[w.level](w.count, table, reinterpret_cast<const T *>(from), reinterpret_cast<T *>(to));
    else
        for (int64_t j = 0; j < w.count; ++j)
            dense(1, table + 2 * j, reinterpret_cast<const T *>(from + j * w.from_step), reinterpret_cast<T *>(to + j * w.to_step));
    if (w.to_step == result)
        std::memset(to + w.count * result, 0, size_t(w.zeros * result));
    else
        for (int64_t j = w.count; j < w.count + w.zeros; ++j) std::memset(to + j * w.to_step, 0, size_t(result));
}

template <class T>
void weight_of(const Weighting &w, const double *table, const char *from, char *to) {
    auto lines = w.real_numbers   ? weight_lines<T, true, false>
                 : w.real_results ? weight_lines<T, false, true>
                                  : weight_lines<T, false, false>;
    lines(w, table, from, to);
    auto end = [&](int64_t kind, int64_t at) {
        T *result = reinterpret_cast<T *>(to + at * w.to_step);
        if (kind == kTaken) weight_dense<T, true, false>(1, table + 2 * at, reinterpret_cast<const T *>(from + at * w.from_step), result);
        if (kind == kGiven) result[1] = T(0);
    };
    if (w.count > 0) {
        end(w.real_first, 0);
        end(w.real_last, w.count - 1);
    }
}

// `from` may be `to` where both are complex and no end is kTaken.
void weight(const Weighting *w, const double *table, const char *from, char *to) {
    w->item == 4 ? weight_of<float>(*w, table, from, to) : weight_of<double>(*w, table, from, to);
}

}  // namespace

int add_transforms(PyObject *, PyObject *addresses) {
    return add_kernels(addresses, {kernel("transform_run", run_transform),
                                   kernel("transform_scale", scale_result),
                                   kernel("transform_mirror", mirror_result),
                                   kernel("transform_convert", convert),
                                   kernel("transform_weight", weight)});
}

}  // namespace backline
