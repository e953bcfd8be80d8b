// Fourier transforms of many lines, or of one that is divided into lines: as many at a time as a vector has lanes (radix_passes.hpp). A
// line is read once and written once, whatever its steps, so a transform of several axes reads and writes an array once for each axis.
#include "kernels.hpp"
#include "prime_radix.hpp"
#include "real_lines.hpp"

namespace backline {
namespace {

// Which side of a line is real, and how it becomes complex. Of an even number of points every two are one number (real_lines.hpp); of an
// odd one, imaginary parts are 0.
enum Side : int64_t { kNone, kEvenNumbers, kEvenResults, kOddNumbers, kOddResults };

// In the constant memory of a plan, eight bytes each.
struct Lines {
    int64_t level, is_double;
    int64_t points;  // of a line, as the complex transform has them
    Side side;
    int64_t inverse;  // whether the sign of the exponent is +1
    double scale;
    int64_t from_point, from_part, from_line;  // bytes from one point of a line to the next, to its imaginary part, and to the next line
    int64_t to_point, to_part, to_line;
    int64_t turn_point;  // elements of `turns` from one point to the next
    int64_t passes, radices[kMostPasses];
    Convolution last;  // after them, if there is one
};

struct Transform {
    template <class T, int Bytes>
    static BACKLINE_INLINE void run(const Lines &p, int64_t lines, const char *from, char *to, const void *table, const void *turns, char *work) {
        Run<T, Bytes>{p, static_cast<const T *>(table), static_cast<const T *>(turns)}.all(lines, from, to, work);
    }

  private:
    template <class T, int Bytes>
    struct Run {
        using L = Lanes<T, Bytes>;
        using V = typename L::Vector;
        using R = RadixPasses<T, Bytes>;
        using Point = typename R::Point;
        static constexpr int count = L::count;
        static constexpr int64_t item = sizeof(T);

        const Lines &p;
        const T *table, *turns;

        // Numbers of a line that are read, and that are written.
        BACKLINE_INLINE int64_t taken() const {
            return p.side == kEvenResults ? p.points + 1 : p.side == kOddResults ? p.points / 2 + 1 : p.points;
        }
        BACKLINE_INLINE int64_t given() const {
            return p.side == kEvenNumbers ? p.points + 1 : p.side == kOddNumbers ? p.points / 2 + 1 : p.points;
        }

        BACKLINE_INLINE void all(int64_t lines, const char *from, char *to, char *work) const {
            for (int64_t done = 0; done < lines; done += count, from += count * p.from_line, to += count * p.to_line)
                some(std::min<int64_t>(count, lines - done), from, to, turns ? turns + 2 * done : nullptr, reinterpret_cast<Point *>(work));
        }

        BACKLINE_INLINE void some(int64_t n, const char *from, char *to, const T *turn, Point *work) const {
            Point *here = work, *there = here + p.points + 1, *const spare = there + p.points + 1;
            const bool whole = n == count;
            typename R::From in = R::buffer(static_cast<const Point *>(here));
            if (whole && (p.side == kNone || p.side == kEvenNumbers) && in_lanes(p.from_line, p.from_part)) {
                in = {from, p.from_point, p.from_part, p.from_line != item};
            } else {
                read(n, from, here);
                if (p.side == kEvenResults) fold(here);
                if (p.side == kOddResults) {
                    here[0].im = V{};
                    for (int64_t j = taken(); j < p.points; ++j) here[j] = {here[p.points - j].re, -here[p.points - j].im};
                }
            }
            const bool ends = !p.last.prime;
            const bool mirrored = p.side == kOddNumbers && p.passes > ends;
            const Groups groups = mirrored ? Groups{p.radices[0], p.radices[0] / 2 + 1} : Groups{1, 1};
            const bool direct = whole && (p.side == kNone || p.side == kEvenResults) && in_lanes(p.to_line, p.to_part);
            Point *const last = p.passes % 2 == ends ? here : there, *const results = last == here ? there : here;
            typename R::To out = R::buffer(results);
            if (direct) out = {to, p.to_point, p.to_part, p.to_line != item};
            // Unless the turns of all lanes are there, they have their turn after this.
            const Finish finish = {p.inverse ? p.points : 0, whole ? turn : nullptr, 2 * p.turn_point, p.side == kEvenNumbers ? 1 : p.scale};
            constexpr auto run = TypedVersions<RunPasses>::table[Bytes / 32][sizeof(T) / 8];
            if (p.passes) run({p.radices, p.passes, p.points, ends, groups, in, out, here, there, finish, table});
            if (!ends) {
                if (p.passes) in = R::buffer(static_cast<const Point *>(last));
                const PrimeRadix<T, Bytes> convolution = {p.last, table + p.last.table, run};
                convolution.last_pass(in, out, p.points / p.last.prime, finish, groups, spare);
            }
            if (direct) return;
            here = results, there = last;
            if (mirrored)
                for (int64_t j = 0; j < given(); ++j)
                    if (j % groups.period >= groups.kept) here[j] = {here[p.points - j].re, -here[p.points - j].im};
            if (turn && !whole)
                for (int64_t j = 0; j < p.points; ++j) {
                    T padded[2 * count] = {};
                    std::memcpy(padded, turn + j * 2 * p.turn_point, size_t(2 * n * item));
                    Point factor;
                    R::split(padded, factor);
                    R::times(here[j], factor);
                }
            if (p.side == kEvenNumbers) unfold(here);
            write(n, here, there, to);
        }

        // Whether numbers of neighbouring lines are neighbours: complex ones, or the real parts, as the imaginary parts are.
        static BACKLINE_INLINE bool in_lanes(int64_t line, int64_t part) { return (line == 2 * item && part == item) || line == item; }

        // In place, whose last number has a place of its own; the factors lie before those of the passes.
        BACKLINE_INLINE void unfold(Point *x) const {
            const T *factor = table - 2 * (p.points + 1);
            x[p.points] = x[0];
            for (int64_t k = 0; 2 * k <= p.points; ++k, factor += 2) unfold_pair(x[k], x[p.points - k], factor[0], factor[1], T(0.5 * p.scale));
        }
        BACKLINE_INLINE void fold(Point *x) const {
            const T *factor = table - 2 * (p.points + 1);
            x[0].im = x[p.points].im = V{};
            for (int64_t k = 0; 2 * k <= p.points; ++k, factor += 2) fold_pair(x[k], x[p.points - k], factor[0], factor[1]);
        }

        BACKLINE_INLINE void read(int64_t n, const char *from, Point *to) const {
            const int64_t points = taken(), step = p.side == kOddNumbers ? 1 : 2;  // real numbers of a point
            int64_t j = 0;
            if (in_lanes(p.from_line, step == 2 ? p.from_part : 0))
                for (; j < points; ++j) {
                    T some[2 * count] = {};
                    const char *at = from + j * p.from_point;
                    if (p.from_line == item) {
                        std::memcpy(some, at, size_t(n * item));
                        if (step == 2) std::memcpy(some + count, at + p.from_part, size_t(n * item));
                        L::load(to[j].re, some);
                        L::load(to[j].im, some + count);
                    } else {
                        std::memcpy(some, at, size_t(2 * n * item));
                        R::split(some, to[j]);
                    }
                }
            else if (p.from_point == step * item && p.from_part == item)
                for (; j + count / step <= points; j += count / step) {
                    V rows[count];
                    const char *at = from + step * j * item;
                    if (n == count) {
#pragma GCC unroll 16
                        for (int i = 0; i < count; ++i) L::load(rows[i], reinterpret_cast<const T *>(at + i * p.from_line));
                    } else {
                        for (int i = 0; i < count; ++i) L::load(rows[i], reinterpret_cast<const T *>(at + (i < n ? i : 0) * p.from_line));
                    }
                    transpose(rows);
                    if (step == 1)
#pragma GCC unroll 16
                        for (int i = 0; i < count; ++i) to[j + i] = {rows[i], V{}};
                    else
#pragma GCC unroll 8
                        for (int i = 0; i < count / 2; ++i) to[j + i] = {rows[2 * i], rows[2 * i + 1]};
                }
            for (; j < points; ++j) {
                T some[2][count] = {};
                for (int64_t i = 0; i < n; ++i)
                    for (int part = 0; part < step; ++part)
                        std::memcpy(&some[part][i], from + i * p.from_line + j * p.from_point + part * p.from_part, item);
                L::load(to[j].re, some[0]);
                L::load(to[j].im, some[1]);
            }
        }

        BACKLINE_INLINE void write(int64_t n, const Point *from, Point *spare, char *to) const {
            const int64_t points = given(), step = p.side == kOddResults ? 1 : 2;
            int64_t j = 0;
            if (in_lanes(p.to_line, step == 2 ? p.to_part : 0))
                for (; j < points; ++j) {
                    T some[2 * count];
                    char *at = to + j * p.to_point;
                    if (p.to_line == item) {
                        L::store(from[j].re, some);
                        L::store(from[j].im, some + count);
                        std::memcpy(at, some, size_t(n * item));
                        if (step == 2) std::memcpy(at + p.to_part, some + count, size_t(n * item));
                    } else {
                        R::join(from[j], some);
                        std::memcpy(at, some, size_t(2 * n * item));
                    }
                }
            else if (p.to_point == step * item && p.to_part == item)
                for (; j + count / step <= points; j += count / step) {
                    V rows[count];
                    if (step == 1)
#pragma GCC unroll 16
                        for (int i = 0; i < count; ++i) rows[i] = from[j + i].re;
                    else
#pragma GCC unroll 8
                        for (int i = 0; i < count / 2; ++i) rows[2 * i] = from[j + i].re, rows[2 * i + 1] = from[j + i].im;
                    transpose(rows);
                    char *at = to + step * j * item;
                    if (n == count) {
#pragma GCC unroll 16
                        for (int i = 0; i < count; ++i) L::store(rows[i], reinterpret_cast<T *>(at + i * p.to_line));
                    } else {
                        std::memcpy(spare, rows, sizeof rows);
                        for (int i = 0; i < n; ++i) std::memcpy(at + i * p.to_line, reinterpret_cast<char *>(spare) + i * int64_t(sizeof(V)), sizeof(V));
                    }
                }
            for (; j < points; ++j) {
                T some[2][count];
                L::store(from[j].re, some[0]);
                L::store(from[j].im, some[1]);
                for (int64_t i = 0; i < n; ++i)
                    for (int part = 0; part < step; ++part)
                        std::memcpy(to + i * p.to_line + j * p.to_point + part * p.to_part, &some[part][i], item);
            }
        }

        // Element i of row k becomes element k of row i.
        static BACKLINE_INLINE void transpose(V (&rows)[count]) {
            exchange<1>(rows);
            if constexpr (count > 2) exchange<2>(rows);
            if constexpr (count > 4) exchange<4>(rows);
            if constexpr (count > 8) exchange<8>(rows);
        }
        template <int S>
        static BACKLINE_INLINE void exchange(V (&rows)[count]) {
#pragma GCC unroll 16
            for (int i = 0; i < count; ++i)
                if (!(i & S)) halves<S>(rows[i], rows[i | S], std::make_index_sequence<count>());
        }
        template <int S, size_t... I>
        static BACKLINE_INLINE void halves(V &one, V &other, std::index_sequence<I...>) {
            const V upper = __builtin_shufflevector(one, other, (I & S ? count + I - S : I)...);
            other = __builtin_shufflevector(one, other, (I & S ? count + I : I + S)...);
            one = upper;
        }
    };
};

void transform_lines(const Lines *p, int64_t lines, const char *from, char *to, const void *table, const void *turns, char *work) {
    TypedVersions<Transform>::table[p->level][p->is_double](*p, lines, from, to, table, turns, work);
}

// The two results, or numbers, of a long real line that are made of the same two: `count` pairs from the first on.
struct LineEnds {
    int64_t level, is_double;
    int64_t unfolds;  // whether results of the whole are made of those of the half, or the other way round
    int64_t points;   // of the half
    double scale;
};

struct Pairs {
    template <class T, int Bytes>
    static BACKLINE_INLINE void run(const LineEnds &p, int64_t first, int64_t count, const char *numbers, char *results, const void *factors) {
        using Passes = RadixPasses<T, Bytes>;
        using Point = typename Passes::Point;
        struct Number {
            T re, im;
        };
        constexpr int64_t lanes = Passes::L::count;
        const T *from = reinterpret_cast<const T *>(numbers), *factor = static_cast<const T *>(factors);
        T *to = reinterpret_cast<T *>(results);
        const int64_t n = p.points, end = first + count;
        const T half = T(0.5 * p.scale);
        int64_t k = first;
        for (; k < end; ++k) {
            if (k > 0 && k + lanes <= end && k + lanes <= n - k - lanes + 1) {
                for (; k + lanes <= end && k + lanes <= n - k - lanes + 1; k += lanes) {
                    const int64_t back = n - k - lanes + 1;  // the partner of the last one
                    Point one, other, f;
                    Passes::split(from + 2 * k, one);
                    Passes::split(from + 2 * back, other);
                    Passes::split(factor + 2 * k, f);
                    Passes::reverse(other);
                    if (p.unfolds) unfold_pair(one, other, f.re, f.im, half);
                    else fold_pair(one, other, f.re, f.im);
                    Passes::reverse(other);
                    Passes::join(one, to + 2 * k);
                    Passes::join(other, to + 2 * back);
                }
                if (k == end) break;
            }
            const int64_t back = p.unfolds && k == 0 ? 0 : n - k;
            Number one = {from[2 * k], from[2 * k + 1]}, other = {from[2 * back], from[2 * back + 1]};
            if (k == 0 && !p.unfolds) one.im = other.im = 0;
            if (p.unfolds) unfold_pair(one, other, factor[2 * k], factor[2 * k + 1], half);
            else fold_pair(one, other, factor[2 * k], factor[2 * k + 1]);
            if (p.unfolds || k > 0) to[2 * (n - k)] = other.re, to[2 * (n - k) + 1] = other.im;
            to[2 * k] = one.re, to[2 * k + 1] = one.im;
        }
    }
};

void real_line(const LineEnds *p, int64_t first, int64_t count, const char *numbers, char *results, const void *factors) {
    TypedVersions<Pairs>::table[p->level][p->is_double](*p, first, count, numbers, results, factors);
}

}  // namespace

int add_mixed_radix(PyObject *, PyObject *addresses) {
    return add_kernels(addresses, {kernel("transform_lines", transform_lines), kernel("real_line", real_line)});
}

}  // namespace backline
