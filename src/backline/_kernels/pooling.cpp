// The largest element, or the mean, of each window of images of float32 or float64, with channels first or last: first of lines, then of
// the points of a line. NaN stays one. Plain functions over plain memory, which plans call by address as they call a vendor's.
#include "kernels.hpp"
#include "lanes.hpp"
#include "pooling.hpp"
#include "targets.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace backline {
namespace {

// Written by libraries/kernels/pooling_loops.py, eight bytes each. With channels first every channel is an image of one.
struct FloatPooling {
    int64_t wide, average, include;  // whether elements are float64; means, in which the padding is counted
    Windows windows;
};

struct Largest {
    template <class T>
    static constexpr T nothing = -std::numeric_limits<T>::infinity();

    template <class V>
    static BACKLINE_INLINE void add(V &most, const V &next) {
        V chosen;
        larger(chosen, next, most);
        choose(most, next != next, next, chosen);
    }
};

struct Sum {
    template <class T>
    static constexpr T nothing = 0;

    template <class V>
    static BACKLINE_INLINE void add(V &sum, const V &next) {
        sum += next;
    }
};

template <class R, class T, int Bytes>
struct Pool {
    using L = Lanes<T, Bytes>;
    using V = typename L::Vector;
    static constexpr int64_t count = L::count;

    const Windows &p;
    const FloatPooling &f;
    T *line, *phases, *counts;  // of an image; its elements as strides meet them, with padding; elements of each window
    int64_t length, counted = -1;

    // Calls run(i) for vectors of n elements from 0 on, of which the last one overlaps the one before it.
    template <class Run>
    static BACKLINE_INLINE void vectors(int64_t n, Run run) {
        for (int64_t i = 0; i + count <= n; i += count) run(i);
        if (n % count) run(n - count);
    }

    // Of each of n elements, those of several rows.
    static BACKLINE_INLINE void joined(const T *from, int64_t rows, int64_t step, T *to, int64_t n) {
        if (n < count) {
            for (int64_t i = 0; i < n; ++i) {
                V v, next;
                L::fill(v, from[i]);
                for (int64_t k = 1; k < rows; ++k) L::fill(next, from[k * step + i]), R::add(v, next);
                to[i] = v[0];
            }
            return;
        }
        vectors(n, [&](int64_t i) __attribute__((always_inline)) {
            V v, next;
            L::load(v, from + i);
            for (int64_t k = 1; k < rows; ++k) L::load(next, from + k * step + i), R::add(v, next);
            L::store(v, to + i);
        });
    }

    // How many elements each window of a line has.
    BACKLINE_INLINE void count_elements(int64_t lines) {
        if (counted == lines) return;
        counted = lines;
        for (int64_t j = 0; j < p.points; ++j) {
            const int64_t here = f.include ? p.kernel[0] * p.kernel[1] : lines * std::max<int64_t>(p.window(1, j, p.width).count, 0);
            counts[j] = T(here);
        }
    }

    // From two vectors the even elements, or the odd ones.
    template <int... I>
    static BACKLINE_INLINE void apart(V &even, V &odd, const T *from, std::integer_sequence<int, I...>) {
        V one, other;
        L::load(one, from);
        L::load(other, from + count);
        even = __builtin_shufflevector(one, other, (2 * I)...);
        odd = __builtin_shufflevector(one, other, (2 * I + 1)...);
    }

    // One line of points beside each other: element i * stride + k of the padded line is element i of phase k.
    BACKLINE_INLINE void points(const T *from, T *to) {
        const int64_t stride = p.stride[1], before = p.before[1];
        const int64_t end = std::min(p.width, stride * length - before);  // what no window sees is left out
        if (stride == 1) {
            std::copy(from, from + std::max<int64_t>(end, 0), phases + before);
        } else {
            int64_t i = 0;
            auto put = [&] { phases[(i + before) % stride * length + (i + before) / stride] = from[i], ++i; };
            if (stride == 2) {
                if (before % 2 && i < end) put();
                T *even = phases + (i + before) / 2, *odd = even + length;
                V a, b;
                for (; i + 2 * count <= end; i += 2 * count, even += count, odd += count) {
                    apart(a, b, from + i, std::make_integer_sequence<int, int(count)>());
                    L::store(a, even);
                    L::store(b, odd);
                }
            }
            while (i < end) put();
        }
        auto seen = [&](int64_t k) __attribute__((always_inline)) {
            const int64_t at = k * p.dilation[1];
            return phases + at % stride * length + at / stride;
        };
        if (p.points < count) {
            for (int64_t j = 0; j < p.points; ++j) {
                V v, next;
                L::fill(v, seen(0)[j]);
                for (int64_t k = 1; k < p.kernel[1]; ++k) L::fill(next, seen(k)[j]), R::add(v, next);
                to[j] = f.average ? v[0] / counts[j] : v[0];
            }
            return;
        }
        vectors(p.points, [&](int64_t j) __attribute__((always_inline)) {
            V v, next;
            L::load(v, seen(0) + j);
            for (int64_t k = 1; k < p.kernel[1]; ++k) L::load(next, seen(k) + j), R::add(v, next);
            if (f.average) L::load(next, counts + j), v /= next;
            L::store(v, to + j);
        });
    }

    // One line of points with several channels each.
    BACKLINE_INLINE void channels(const T *from, T *to) {
        const int64_t n = p.channels;
        for (int64_t j = 0; j < p.points; ++j, to += n) {
            const Window across = p.window(1, j, p.width);
            if (across.count < 1) {
                std::fill(to, to + n, R::template nothing<T>);
            } else {
                joined(from + across.first * n, across.count, p.dilation[1] * n, to, n);
            }
            if (f.average)
                for (int64_t c = 0; c < n; ++c) to[c] /= counts[j];
        }
    }

    BACKLINE_INLINE void run(const T *images, T *to, int64_t first, int64_t lines) {
        const int64_t row = p.width * p.channels;
        if (p.channels == 1) std::fill(phases, phases + p.stride[1] * length, R::template nothing<T>);
        for (int64_t g = first; g < first + lines; ++g, to += p.points * p.channels) {
            const Window down = p.window(0, g % p.lines, p.height);
            const T *seen = images + (g / p.lines * p.height + down.first) * row;
            if (down.count < 1) {
                std::fill(line, line + row, R::template nothing<T>);
                seen = line;
            } else if (down.count > 1) {
                joined(seen, down.count, p.dilation[0] * row, line, row);
                seen = line;
            }
            if (f.average) count_elements(std::max<int64_t>(down.count, 0));
            if (p.channels == 1) points(seen, to);
            else channels(seen, to);
        }
    }
};

struct PoolLines {
    template <class T, int Bytes>
    static BACKLINE_INLINE void run(const FloatPooling &f, const void *images, void *to, void *work, int64_t first, int64_t lines) {
        if (f.average) of_kind<Sum, T, Bytes>(f, images, to, work, first, lines);
        else of_kind<Largest, T, Bytes>(f, images, to, work, first, lines);
    }

  private:
    template <class R, class T, int Bytes>
    static BACKLINE_INLINE void of_kind(const FloatPooling &f, const void *images, void *to, void *work, int64_t first, int64_t lines) {
        const Windows &p = f.windows;
        T *line = static_cast<T *>(work), *counts = line + p.width * p.channels, *phases = counts + p.points;
        // So many elements of each phase are seen, or are in front of the line.
        const int64_t length = std::max(p.points + (p.kernel[1] - 1) * p.dilation[1] / p.stride[1], p.before[1] / p.stride[1] + 1);
        Pool<R, T, Bytes>{p, f, line, phases, counts, length}.run(static_cast<const T *>(images), static_cast<T *>(to), first, lines);
    }
};

// Some lines of the result, counted over all images.
void pool_lines(const FloatPooling *f, const void *images, void *to, void *work, int64_t first, int64_t lines) {
    TypedVersions<PoolLines>::table[f->windows.level][f->wide](*f, images, to, work, first, lines);
}

}  // namespace

int add_pooling(PyObject *, PyObject *addresses) { return add_kernels(addresses, {kernel("pool_lines", pool_lines)}); }

}  // namespace backline
