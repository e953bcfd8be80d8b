// The largest element of each window of images of int8 or uint8 with channels last: first of lines, then of the points of a line.
#include "kernels.hpp"
#include "lanes.hpp"
#include "pooling.hpp"
#include "targets.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

namespace backline {
namespace {

constexpr int kVector = 32, kFew = 9;  // bytes of a vector; points of a window that are read one by one

// Written by libraries/kernels/pooling_loops.py.
struct Pooling {
    int64_t sign;  // whether elements are signed
    Windows windows;
};

template <class T>
BACKLINE_INLINE void largest(T *to, const T *from, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = to[i] < from[i] ? from[i] : to[i];
}

// Windows of few points over channels that fill vectors: each is read where it lies.
template <class T>
BACKLINE_INLINE void pool_vectors(const Windows &p, const T *image, T *to, int64_t first, int64_t count) {
    using L = Lanes<T, kVector>;
    const int64_t row = p.width * p.channels, below = p.dilation[0] * row, beside = p.dilation[1] * p.channels;
    for (int64_t i = first; i < first + count; ++i) {
        const Window down = p.window(0, i, p.height);
        for (int64_t j = 0; j < p.points; ++j, to += p.channels) {
            const Window across = p.window(1, j, p.width);
            if (down.count < 1 || across.count < 1) {  // nothing but padding, which counts as the least number
                std::fill(to, to + p.channels, std::numeric_limits<T>::min());
                continue;
            }
            const T *corner = image + down.first * row + across.first * p.channels;
            auto largest_of = [&](int64_t lines, int64_t points) __attribute__((always_inline)) {
                for (int64_t c = 0; c < p.channels; c += kVector) {
                    typename L::Vector most, next;
                    L::load(most, corner + c);
                    for (int64_t k = 0; k < lines; ++k)
                        for (int64_t l = 0; l < points; ++l) {
                            L::load(next, corner + k * below + l * beside + c);
                            choose(most, most < next, next, most);
                        }
                    L::store(most, to + c);
                }
            };
            if (down.count == 2 && across.count == 2) largest_of(2, 2);  // without loops
            else largest_of(down.count, across.count);
        }
    }
}

template <class T>
BACKLINE_INLINE void pool_lines(const Windows &p, const T *image, T *to, T *line, int64_t first, int64_t count) {
    if (p.channels % kVector == 0 && p.kernel[0] * p.kernel[1] <= kFew) return pool_vectors(p, image, to, first, count);
    const int64_t row = p.width * p.channels;
    for (int64_t i = first; i < first + count; ++i) {
        const Window down = p.window(0, i, p.height);
        const T *seen = image + down.first * row;
        if (down.count < 1) {  // nothing but padding, which counts as the least number
            std::fill(to, to + p.points * p.channels, std::numeric_limits<T>::min());
            to += p.points * p.channels;
            continue;
        }
        if (down.count > 1) {
            std::memcpy(line, seen, size_t(row));
            for (int64_t k = 1; k < down.count; ++k) largest(line, seen + k * p.dilation[0] * row, row);
            seen = line;
        }
        for (int64_t j = 0; j < p.points; ++j, to += p.channels) {
            const Window across = p.window(1, j, p.width);
            if (across.count < 1) {
                std::fill(to, to + p.channels, std::numeric_limits<T>::min());
                continue;
            }
            std::memcpy(to, seen + across.first * p.channels, size_t(p.channels));
            for (int64_t k = 1; k < across.count; ++k)
                largest(to, seen + (across.first + k * p.dilation[1]) * p.channels, p.channels);
        }
    }
}

// Some lines of the result of one image; `line` is workspace for a line of the image.
void pool_bytes(const Pooling *p, const void *image, void *to, void *line, int64_t first, int64_t count) {
    if (p->sign) {
        using T = int8_t;
        Versions<pool_lines<T>>::table[p->windows.level](p->windows, static_cast<const T *>(image), static_cast<T *>(to), static_cast<T *>(line), first, count);
    } else {
        using T = uint8_t;
        Versions<pool_lines<T>>::table[p->windows.level](p->windows, static_cast<const T *>(image), static_cast<T *>(to), static_cast<T *>(line), first, count);
    }
}

}  // namespace

int add_byte_pooling(PyObject *, PyObject *addresses) { return add_kernels(addresses, {kernel("pool_bytes", pool_bytes)}); }

}  // namespace backline
