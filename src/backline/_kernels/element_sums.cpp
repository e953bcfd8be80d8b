// Sums of elements along axes, sums of products of the elements of two arrays, such products alone, cross products and powers. Sums are kept in float64.
// Lanes, blocks and parts are the same on every processor and for any number of threads, and so are the bits of a result.
#include <algorithm>

#include "double_lanes.hpp"
#include "kernels.hpp"

namespace backline {
namespace {

constexpr int kAxes = 4;
constexpr int64_t kBlock = 1024;   // elements summed up in lanes, before such sums are added in pairs
constexpr int64_t kColumns = 128;  // neighbouring results that are summed up at once

struct Axis {
    int64_t size, x, y, out;  // strides in bytes
};

// Written by libraries/kernels/element_loops.py: eight bytes for each field, in this order. Axes that are not used have one element. An
// item is `share` rows; a row is one result, or `width` neighbouring ones on the last kept axis, fewer at its end.
struct Sum {
    int64_t itemsize, complex, level, operands, width, share, rows;
    Axis kept[kAxes], reduced[kAxes];
};

// The sum of some lanes, or of those with real and those with imaginary parts.
struct Total {
    double sums[2];
};

BACKLINE_INLINE Total operator+(const Total &a, const Total &b) { return {{a.sums[0] + b.sums[0], a.sums[1] + b.sums[1]}}; }

template <int Bytes>
struct Lanes {
    using Eight = Doubles<Bytes>;
    Eight sums[kGroups] = {};
    double rest[2] = {0, 0};  // of numbers that fill no vector

    template <int Operands, class T>
    BACKLINE_INLINE void take(int group, const T *x, const T *y, int64_t last = kWide) {
        Eight terms, factors;
        load_doubles(terms, x);
        if constexpr (Operands == 2) load_doubles(factors, y);
        if (last < kWide) {
            keep_last(terms, last);
            if constexpr (Operands == 2) keep_last(factors, last);  // what is taken away may be infinite
        }
        by_vectors([](auto &sum, const auto &term, const auto &factor) __attribute__((always_inline)) {
            if constexpr (Operands == 1) sum += term;
            else if constexpr (sizeof(T) == 4) add_exact_product(sum, term, factor);
            else sum += term * factor;
        }, sums[group], terms, factors);
    }

    // Adds numbers without gaps.
    template <int Operands, class T>
    BACKLINE_INLINE void add(const T *x, const T *y, int64_t n) {
        int64_t i = 0;
        for (; i + kLanes <= n; i += kLanes)
            for (int group = 0; group < kGroups; ++group) take<Operands>(group, x + i + group * kWide, y + i + group * kWide);
        for (; i + kWide <= n; i += kWide) take<Operands>(0, x + i, y + i);
        if (i == n) return;
        if (n > kWide) {  // the last eight, without those that were taken
            take<Operands>(0, x + n - kWide, y + n - kWide, n - i);
            return;
        }
        for (; i < n; ++i) rest[i % 2] += Operands == 2 ? double(x[i]) * double(y[i]) : double(x[i]);
    }

    template <int Parts>
    BACKLINE_INLINE Total folded() const {
        Eight all;
        join_groups(all, sums);
        const TwoDoubles two = backline::folded(all);
        if constexpr (Parts == 2) return {{two[0] + rest[0], two[1] + rest[1]}};
        else return {{(two[0] + two[1]) + (rest[0] + rest[1]), 0.0}};
    }
};

// At most kBlock numbers without gaps.
template <int Operands, int Parts, class T, int Bytes>
BACKLINE_INLINE Total block(const T *x, const T *y, int64_t n) {
    Lanes<Bytes> lanes;
    lanes.template add<Operands>(x, y, n);
    return lanes.template folded<Parts>();
}

// Numbers at any distance; of few of them, one after the other.
template <int Operands, int Parts, class T, int Bytes>
BACKLINE_INLINE Total apart(const char *x, int64_t step_x, const char *y, int64_t step_y, int64_t n) {
    auto at = [](const char *p) __attribute__((always_inline)) {
        T value;
        std::memcpy(&value, p, sizeof value);
        return double(value);
    };
    auto term = [&](int64_t i, int64_t part) __attribute__((always_inline)) {
        const double one = at(x + i * step_x + part * int64_t(sizeof(T)));
        return Operands == 2 ? one * at(y + i * step_y) : one;
    };
    if (n * Parts < kLanes) {
        Total total = {{0, 0}};
        for (int64_t i = 0; i < n; ++i)
            for (int part = 0; part < Parts; ++part) total.sums[part] += term(i, part);
        return total;
    }
    double terms[kBlock];
    for (int64_t i = 0; i < n; ++i)
        for (int part = 0; part < Parts; ++part) terms[i * Parts + part] = term(i, part);
    return block<1, Parts, double, Bytes>(terms, terms, n * Parts);
}

// Any number of elements: blocks are added in pairs, and such pairs in pairs.
template <int Operands, int Parts, class T, int Bytes>
BACKLINE_INLINE Total run_of(const char *x, int64_t step_x, const char *y, int64_t step_y, int64_t n) {
    constexpr int64_t item = int64_t(sizeof(T)) * Parts, most = kBlock / Parts;
    const bool dense = step_x == item && (Operands == 1 || step_y == item);
    auto some = [&](int64_t first, int64_t count) __attribute__((always_inline)) {
        const char *from = x + first * step_x, *other = y + first * step_y;
        if (!dense || count * Parts < kLanes) return apart<Operands, Parts, T, Bytes>(from, step_x, other, step_y, count);
        return block<Operands, Parts, T, Bytes>(reinterpret_cast<const T *>(from), reinterpret_cast<const T *>(other), count * Parts);
    };
    if (n <= most) return some(0, n);
    Total sums[64];
    int filled = 0;
    int64_t done = 0, blocks = 0;
    while (done < n) {
        const int64_t count = std::min(most, n - done);
        Total sum = some(done, count);
        done += count;
        for (int64_t pairs = ++blocks; filled && pairs % 2 == 0; pairs /= 2) sum = sums[--filled] + sum;
        sums[filled++] = sum;
    }
    Total total = sums[--filled];
    while (filled) total = sums[--filled] + total;
    return total;
}

// Where a row begins, in each array.
struct Place {
    const char *x, *y;
    char *out;
    int64_t first;  // on the last kept axis
};

// Calls take(place) for each row of an item.
template <class Take>
BACKLINE_INLINE void each_row(const Sum &p, int64_t item, const char *x, const char *y, char *out, Take take) {
    const int64_t blocks = (p.kept[3].size + p.width - 1) / p.width, end = std::min((item + 1) * p.share, p.rows);
    int64_t index[kAxes], left = item * p.share;
    index[3] = left % blocks, left /= blocks;
    for (int axis = 2; axis >= 0; --axis) index[axis] = left % p.kept[axis].size, left /= p.kept[axis].size;
    const Axis *k = p.kept;
    int64_t i = item * p.share;
    while (i < end) {
        const int64_t x0 = index[0] * k[0].x + index[1] * k[1].x, y0 = index[0] * k[0].y + index[1] * k[1].y;
        const int64_t out0 = index[0] * k[0].out + index[1] * k[1].out;
        for (; index[2] < k[2].size && i < end; ++index[2], index[3] = 0) {
            const int64_t first = index[3] * p.width, step_x = p.width * k[3].x, step_y = p.width * k[3].y, step_out = p.width * k[3].out;
            Place place{x + x0 + index[2] * k[2].x + first * k[3].x, y + y0 + index[2] * k[2].y + first * k[3].y,
                        out + out0 + index[2] * k[2].out + first * k[3].out, first};
            const int64_t count = std::min(blocks - index[3], end - i);
            i += count, index[3] += count;
            for (int64_t n = 0; n < count; ++n) {
                take(place);
                place.x += step_x, place.y += step_y, place.out += step_out, place.first += p.width;
            }
        }
        index[2] = 0;
        if (++index[1] == k[1].size) index[1] = 0, ++index[0];
    }
}

// Calls take(x, y) for all but the last of the axes that are summed over.
template <class Take>
BACKLINE_INLINE void each_run(const Sum &p, const char *x, const char *y, Take take) {
    const Axis *r = p.reduced;
    for (int64_t i = 0; i < r[0].size; ++i)
        for (int64_t j = 0; j < r[1].size; ++j)
            for (int64_t k = 0; k < r[2].size; ++k)
                take(x + i * r[0].x + j * r[1].x + k * r[2].x, y + i * r[0].y + j * r[1].y + k * r[2].y);
}

template <int Parts, class T>
BACKLINE_INLINE void store(const Total &total, char *out) {
    for (int part = 0; part < Parts; ++part) {
        const T value = T(total.sums[part]);
        std::memcpy(out + part * int64_t(sizeof(T)), &value, sizeof value);
    }
}

// One result a row, of neighbours that are at least eight: those of eight rows are folded together.
template <int Operands, class T, int Bytes>
BACKLINE_INLINE void results_of_runs(const Sum &p, int64_t item, const char *x, const char *y, char *out) {
    Doubles<Bytes> rows[kWide] = {};
    char *places[kWide];
    int filled = 0;
    auto store_rows = [&]() __attribute__((always_inline)) {
        double each[kWide];
        totals(rows, each);
        for (int i = 0; i < filled; ++i) {
            const T value = T(each[i]);
            std::memcpy(places[i], &value, sizeof value);
        }
        filled = 0;
    };
    each_row(p, item, x, y, out, [&](const Place &at) __attribute__((always_inline)) {
        Lanes<Bytes> lanes;
        lanes.template add<Operands>(reinterpret_cast<const T *>(at.x), reinterpret_cast<const T *>(at.y), p.reduced[3].size);
        join_groups(rows[filled], lanes.sums);
        places[filled] = at.out;
        if (++filled == kWide) store_rows();
    });
    store_rows();
}

// One result a row.
template <int Operands, int Parts, class T, int Bytes>
BACKLINE_INLINE void results(const Sum &p, int64_t item, const char *x, const char *y, char *out) {
    const Axis &inner = p.reduced[3];
    constexpr int64_t size = int64_t(sizeof(T)) * Parts;
    const bool dense = inner.x == size && (Operands == 1 || inner.y == size), few = inner.size * Parts < kBlock;
    if constexpr (Parts == 1) {
        const bool single = p.reduced[0].size * p.reduced[1].size * p.reduced[2].size == 1;
        if (dense && few && single && inner.size >= kWide) return results_of_runs<Operands, T, Bytes>(p, item, x, y, out);
    }
    each_row(p, item, x, y, out, [&](const Place &at) __attribute__((always_inline)) {
        Total total = {{0, 0}};
        if (dense && few) {  // one after the other in the same lanes, for about as many as make a block
            Lanes<Bytes> lanes;
            int64_t taken = 0;
            each_run(p, at.x, at.y, [&](const char *from, const char *other) __attribute__((always_inline)) {
                if (taken >= kBlock) {
                    total = total + lanes.template folded<Parts>();
                    taken = 0;
                    lanes = Lanes<Bytes>();
                }
                lanes.template add<Operands>(reinterpret_cast<const T *>(from), reinterpret_cast<const T *>(other), inner.size * Parts);
                taken += inner.size * Parts;
            });
            total = total + lanes.template folded<Parts>();
        } else {
            each_run(p, at.x, at.y, [&](const char *from, const char *other) __attribute__((always_inline)) {
                total = total + run_of<Operands, Parts, T, Bytes>(from, inner.x, other, inner.y, inner.size);
            });
        }
        store<Parts, T>(total, at.out);
    });
}

// Some neighbouring results a row.
template <int Operands, class T>
BACKLINE_INLINE void columns(const Sum &p, int64_t item, const char *x, const char *y, char *out) {
    const Axis &inner = p.reduced[3], &last = p.kept[3];
    each_row(p, item, x, y, out, [&](const Place &at) __attribute__((always_inline)) {
        const int64_t n = std::min(p.width, last.size - at.first);
        double sums[kColumns] = {};
        each_run(p, at.x, at.y, [&](const char *from, const char *other) __attribute__((always_inline)) {
            int64_t i = 0;
            auto x_of = [&](int64_t row) __attribute__((always_inline)) { return reinterpret_cast<const T *>(from + row * inner.x); };
            auto y_of = [&](int64_t row) __attribute__((always_inline)) { return reinterpret_cast<const T *>(other + row * inner.y); };
            if (Operands == 1)
                for (; i + 4 <= inner.size; i += 4) {
                    const T *a = x_of(i), *b = x_of(i + 1), *c = x_of(i + 2), *d = x_of(i + 3);
                    for (int64_t k = 0; k < n; ++k) sums[k] += (double(a[k]) + double(b[k])) + (double(c[k]) + double(d[k]));
                }
            for (; i < inner.size; ++i) {
                const T *a = x_of(i), *b = y_of(i);
                if (Operands == 1) {
                    for (int64_t k = 0; k < n; ++k) sums[k] += double(a[k]);
                } else if (last.x && last.y) {
                    for (int64_t k = 0; k < n; ++k) sums[k] += double(a[k]) * double(b[k]);
                } else {
                    const double factor = last.x ? double(*b) : double(*a);
                    const T *each = last.x ? a : b;
                    for (int64_t k = 0; k < n; ++k) sums[k] += factor * double(each[k]);
                }
            }
        });
        T *to = reinterpret_cast<T *>(at.out);
        for (int64_t k = 0; k < n; ++k) to[k] = T(sums[k]);
    });
}

template <class T>
struct Pair {
    T real, imaginary;
    BACKLINE_INLINE Pair operator-(const Pair &o) const { return {real - o.real, imaginary - o.imaginary}; }
    BACKLINE_INLINE Pair operator*(const Pair &o) const {
        return {real * o.real - imaginary * o.imaginary, real * o.imaginary + imaginary * o.real};
    }
};

// Products of elements: nothing is added up.
template <class E>
BACKLINE_INLINE void products(const Sum &p, int64_t item, const char *x, const char *y, char *out) {
    const Axis &last = p.kept[3];
    constexpr int64_t size = int64_t(sizeof(E));
    each_row(p, item, x, y, out, [&](const Place &at) __attribute__((always_inline)) {
        const int64_t n = std::min(p.width, last.size - at.first);
        const E *a = reinterpret_cast<const E *>(at.x), *b = reinterpret_cast<const E *>(at.y);
        E *__restrict to = reinterpret_cast<E *>(at.out);
        if (last.out == size && last.x == size && last.y == size) {
            for (int64_t k = 0; k < n; ++k) to[k] = a[k] * b[k];
        } else if (last.out == size && last.x == size && !last.y) {
            const E factor = *b;
            for (int64_t k = 0; k < n; ++k) to[k] = a[k] * factor;
        } else if (last.out == size && !last.x && last.y == size) {
            const E factor = *a;
            for (int64_t k = 0; k < n; ++k) to[k] = factor * b[k];
        } else {
            for (int64_t k = 0; k < n; ++k) {
                const E &left = *reinterpret_cast<const E *>(at.x + k * last.x), &right = *reinterpret_cast<const E *>(at.y + k * last.y);
                *reinterpret_cast<E *>(at.out + k * last.out) = left * right;
            }
        }
    });
}

// Cross products: the axis of three elements is the last one that is summed over.
template <class E>
BACKLINE_INLINE void crosses(const Sum &p, int64_t item, const char *x, const char *y, char *out) {
    const Axis &last = p.kept[3], &three = p.reduced[3];
    each_row(p, item, x, y, out, [&](const Place &at) __attribute__((always_inline)) {
        const int64_t n = std::min(p.width, last.size - at.first);
        for (int64_t k = 0; k < n; ++k) {
            E a[3], b[3];
            for (int i = 0; i < 3; ++i) {
                std::memcpy(&a[i], at.x + k * last.x + i * three.x, sizeof(E));
                std::memcpy(&b[i], at.y + k * last.y + i * three.y, sizeof(E));
            }
            for (int i = 0; i < 3; ++i) {
                const int j = (i + 1) % 3, l = (i + 2) % 3;
                const E value = a[j] * b[l] - a[l] * b[j];
                std::memcpy(at.out + k * last.out + i * three.out, &value, sizeof(E));
            }
        }
    });
}

// Powers 1, x, x^2, ... along the last axis of the result: the first eight each the one before times x, and others x^8 times an earlier one.
template <class E>
BACKLINE_INLINE void powers(const Sum &p, int64_t item, const char *x, const char *y, char *out) {
    const Axis &last = p.kept[3], &axis = p.reduced[3];
    each_row(p, item, x, y, out, [&](const Place &at) __attribute__((always_inline)) {
        const int64_t n = std::min(p.width, last.size - at.first);
        for (int64_t k = 0; k < n; ++k) {
            char *to = at.out + k * last.out;
            E base, power[kWide], step = {1};
            std::memcpy(&base, at.x + k * last.x, sizeof base);
            for (int j = 0; j < kWide; ++j) power[j] = step, step = step * base;
            for (int64_t from = 0; from < axis.size; from += kWide, to += kWide * axis.out) {
                const int64_t columns = std::min(int64_t(kWide), axis.size - from);
                if (columns == kWide && axis.out == int64_t(sizeof(E))) {
                    std::memcpy(to, power, sizeof power);
                } else {
                    for (int64_t j = 0; j < columns; ++j) std::memcpy(to + j * axis.out, &power[j], sizeof(E));
                }
                for (int j = 0; j < kWide; ++j) power[j] = power[j] * step;
            }
        }
    });
}

template <class T, int Bytes>
BACKLINE_INLINE void rows_item(const Sum &p, int64_t item, const char *x, const char *y, char *out) {
    if (p.complex) results<1, 2, T, Bytes>(p, item, x, y, out);
    else if (p.operands == 2) results<2, 1, T, Bytes>(p, item, x, y, out);
    else results<1, 1, T, Bytes>(p, item, x, y, out);
}

// One part of the elements of the only result: `share` of them.
template <class T, int Bytes>
BACKLINE_INLINE void part_item(const Sum &p, int64_t item, const char *x, const char *y, char *out) {
    const Axis &r = p.reduced[3];
    const int64_t first = item * p.share, n = std::min(p.share, r.size - first);
    x += first * r.x, y += first * r.y;
    const Total total = p.complex         ? run_of<1, 2, T, Bytes>(x, r.x, y, r.y, n)
                        : p.operands == 2 ? run_of<2, 1, T, Bytes>(x, r.x, y, r.y, n)
                                          : run_of<1, 1, T, Bytes>(x, r.x, y, r.y, n);
    std::memcpy(out + item * int64_t(sizeof total), &total, sizeof total);
}

enum Way { kRows, kColumnWise, kPart, kMultiply, kCross, kPowers };

template <Way W, class T, int Bytes>
BACKLINE_INLINE void typed(const Sum &p, int64_t item, const char *x, const char *y, char *out) {
    if constexpr (W == kRows) rows_item<T, Bytes>(p, item, x, y, out);
    else if constexpr (W == kPart) part_item<T, Bytes>(p, item, x, y, out);
    else if constexpr (W == kColumnWise) p.operands == 2 ? columns<2, T>(p, item, x, y, out) : columns<1, T>(p, item, x, y, out);
    else if constexpr (W == kMultiply) p.complex ? products<Pair<T>>(p, item, x, y, out) : products<T>(p, item, x, y, out);
    else if constexpr (W == kCross) p.complex ? crosses<Pair<T>>(p, item, x, y, out) : crosses<T>(p, item, x, y, out);
    else p.complex ? powers<Pair<T>>(p, item, x, y, out) : powers<T>(p, item, x, y, out);
}

template <Way W>
struct Body {
    template <class T, int Bytes>
    static BACKLINE_INLINE void run(const Sum &p, int64_t item, const char *x, const char *y, char *out) {
        typed<W, T, Bytes>(p, item, x, y, out);
    }
};

template <Way W>
void run(const Sum *p, int64_t item, const char *x, const char *y, char *out) {
    TypedVersions<Body<W>>::table[p->level][p->itemsize == 8](*p, item, x, y, out);
}

// The one result of parts.
void sum_of_parts(const Sum *p, int64_t count, const Total *parts, char *out) {
    Total total = parts[0];
    for (int64_t i = 1; i < count; ++i) total = total + parts[i];
    if (p->itemsize == 8) p->complex ? store<2, double>(total, out) : store<1, double>(total, out);
    else p->complex ? store<2, float>(total, out) : store<1, float>(total, out);
}

// The sum of numbers, which are complex where `parts` is 2.
void add_up(int64_t itemsize, int64_t parts, int64_t count, const char *from, char *to) {
    auto run = [&](auto zero) {
        using T = decltype(zero);
        for (int64_t part = 0; part < parts; ++part) {
            double total = 0;
            for (int64_t i = 0; i < count; ++i) total += double(reinterpret_cast<const T *>(from)[i * parts + part]);
            reinterpret_cast<T *>(to)[part] = T(total);
        }
    };
    itemsize == 8 ? run(double(0)) : run(float(0));
}

}  // namespace

int add_element_sums(PyObject *, PyObject *addresses) {
    return add_kernels(addresses, {kernel("sum_rows", run<kRows>), kernel("sum_columns", run<kColumnWise>), kernel("sum_part", run<kPart>),
                                   kernel("sum_of_parts", sum_of_parts), kernel("multiply", run<kMultiply>), kernel("cross_products", run<kCross>),
                                   kernel("powers", run<kPowers>), kernel("add_up", add_up)});
}

}  // namespace backline
