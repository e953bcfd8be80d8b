// Gradients that no vendor library has with the semantics wanted here: of relu, where NaN lets the gradient through, and of pooling,
// where it goes to one element of each window. One function call is one item: a share of an array, or a few planes of an image.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "../_core/bits.hpp"
#include "kernels.hpp"
#include "lanes.hpp"

namespace backline {
namespace {

constexpr int kAxes = 4;

// Written by libraries/kernels/compiled_loops.py: eight bytes for each field, in this order; strides in bytes. The item is an index
// along the first axis.
struct ReluGrad {
    int64_t itemsize, level;
    int64_t shape[kAxes], input[kAxes], grad[kAxes], result[kAxes];
};

template <class T>
inline T &at(char *base, int64_t offset) {
    return *reinterpret_cast<T *>(base + offset);
}
template <class T>
inline const T &at(const char *base, int64_t offset) {
    return *reinterpret_cast<const T *>(base + offset);
}

// From the element `done` on, as many as fill vectors; returns how many are done.
template <class T, int Bytes>
BACKLINE_INLINE int64_t relu_vectors(const T *x, const T *g, T *y, int64_t n, int64_t done) {
    using L = Lanes<T, Bytes>;
    typename L::Vector a, b, zero = {};
    for (; done + L::count <= n; done += L::count) {  // a branch would be mispredicted every other time
        L::load(a, x + done);
        L::load(b, g + done);
        a = a <= zero ? zero : b;
        L::store(a, y + done);
    }
    return done;
}

template <class T, int Bytes>
BACKLINE_INLINE void relu_row(const char *x, const char *g, char *y, int64_t n, int64_t dx, int64_t dg, int64_t dy) {
    constexpr int64_t size = sizeof(T);
    if (dx == size && dg == size && dy == size) {
        const T *from = reinterpret_cast<const T *>(x), *grad = reinterpret_cast<const T *>(g);
        T *to = reinterpret_cast<T *>(y);
        int64_t i = relu_vectors<T, Bytes>(from, grad, to, n, 0);
        if constexpr (Bytes > 32) i = relu_vectors<T, 32>(from, grad, to, n, i);  // rows may be short
        if constexpr (Bytes > 16) i = relu_vectors<T, 16>(from, grad, to, n, i);
        for (; i < n; ++i) to[i] = from[i] <= T(0) ? T(0) : grad[i];
    } else {
        for (int64_t i = 0; i < n; ++i) at<T>(y, i * dy) = at<T>(x, i * dx) <= T(0) ? T(0) : at<T>(g, i * dg);
    }
}

struct ReluRows {
    template <class T, int Bytes>
    static BACKLINE_INLINE void run(const ReluGrad &p, const char *x, const char *g, char *y) {
        for (int64_t i = 0; i < p.shape[1]; ++i)
            for (int64_t j = 0; j < p.shape[2]; ++j)
                relu_row<T, Bytes>(x + i * p.input[1] + j * p.input[2], g + i * p.grad[1] + j * p.grad[2],
                                   y + i * p.result[1] + j * p.result[2], p.shape[3], p.input[3], p.grad[3], p.result[3]);
    }
};

void relu_grad_item(const ReluGrad *p, int64_t item, const char *x, const char *g, char *y) {
    TypedVersions<ReluRows>::table[p->level][p->itemsize == 8](*p, x + item * p->input[0], g + item * p->grad[0], y + item * p->result[0]);
}

// Written by the same module. Three dimensions, those that are missing have one point. The item is a number of lanes, neighbouring
// channels, of one image; its sums are in work: points of the image times lanes, in float64.
struct Pooling {
    int64_t itemsize, average, channels, lanes;
    int64_t image[3], points[3], kernel[3], stride[3], dilation[3], before[3];
    int64_t counted[3], padded, divisor;            // average: where points cease to count; whether those outside do; 0: counted
    int64_t input[5], grad[5], result[5];           // strides: batch, channels, the three dimensions
};

struct Span {  // of one window along one dimension: its first place, and its places inside the image
    int64_t start, from, to;
};

inline Span span(const Pooling &p, int d, int64_t point) {
    int64_t start = point * p.stride[d] - p.before[d], step = p.dilation[d];
    int64_t before = std::max<int64_t>(-start, 0), inside = std::max<int64_t>(p.image[d] - start, 0);
    if (step > 1) before = (before + step - 1) / step, inside = (inside + step - 1) / step;  // divisions are slow
    return {start, before, std::min(p.kernel[d], inside)};
}

inline double counted(const Pooling &p, int d, const Span &s) {
    if (p.padded) return double(std::min(s.start + p.kernel[d], p.counted[d]) - s.start);
    return double(std::min(s.start + p.kernel[d], p.image[d]) - std::max<int64_t>(s.start, 0));
}

constexpr int kLanes = 64;

// The largest so far, and its place, -1 before there is one; in a row of NaNs the last one. Without branches: they would be
// mispredicted.
template <class T, int Lanes>
struct Largest {
    using Bits = typename backline::Lanes<T, 16>::Integer;
    using Place = std::make_signed_t<Bits>;
    T value[Lanes ? Lanes : kLanes];
    Place place[Lanes ? Lanes : kLanes];

    BACKLINE_INLINE void clear(int64_t lanes) {
        for (int64_t l = 0; l < lanes; ++l) value[l] = -std::numeric_limits<T>::infinity(), place[l] = -1;
    }
    BACKLINE_INLINE void meet(int64_t l, T v, Place here) {
        const Bits mask = Bits(0) - Bits((place[l] < 0) | (v > value[l]) | (v != v)), old = bits_as<Bits>(value[l]);
        value[l] = bits_as<T>(old ^ ((old ^ bits_as<Bits>(v)) & mask));
        place[l] ^= (place[l] ^ here) & Place(mask);
    }
};

// Lanes is 0 for a number known when it runs.
template <class T, int Lanes, bool Average>
void pooling_item(const Pooling &p, int64_t lanes_here, const char *x, const char *g, char *y, double *work) {
    const int64_t lanes = Lanes ? Lanes : lanes_here, width = Lanes ? Lanes : p.lanes;
    const int64_t n = p.image[0] * p.image[1] * p.image[2];
    std::fill(work, work + n * width, 0.0);
    [[maybe_unused]] Largest<T, Lanes> best;
    for (int64_t a = 0; a < p.points[0]; ++a) {
        Span s0 = span(p, 0, a);
        for (int64_t b = 0; b < p.points[1]; ++b) {
            Span s1 = span(p, 1, b);
            for (int64_t c = 0; c < p.points[2]; ++c) {
                Span s2 = span(p, 2, c);
                const char *grad = g + a * p.grad[2] + b * p.grad[3] + c * p.grad[4];
                double share = 1;
                if constexpr (Average) {
                    share = p.divisor ? double(p.divisor) : counted(p, 0, s0) * counted(p, 1, s1) * counted(p, 2, s2);
                } else {
                    best.clear(lanes);
                }
                for (int64_t i = s0.from; i < s0.to; ++i) {
                    int64_t z0 = s0.start + i * p.dilation[0];
                    for (int64_t j = s1.from; j < s1.to; ++j) {
                        int64_t z1 = s1.start + j * p.dilation[1];
                        for (int64_t k = s2.from; k < s2.to; ++k) {
                            int64_t z2 = s2.start + k * p.dilation[2];
                            int64_t place = (z0 * p.image[1] + z1) * p.image[2] + z2;
                            if constexpr (Average) {
                                double *sums = work + place * width;
                                for (int64_t l = 0; l < lanes; ++l) sums[l] += double(at<T>(grad, l * p.grad[1])) / share;
                            } else {
                                const char *from = x + z0 * p.input[2] + z1 * p.input[3] + z2 * p.input[4];
                                for (int64_t l = 0; l < lanes; ++l)
                                    best.meet(l, at<T>(from, l * p.input[1]), typename Largest<T, Lanes>::Place(place));
                            }
                        }
                    }
                }
                if constexpr (!Average)
                    for (int64_t l = 0; l < lanes; ++l)
                        if (best.place[l] >= 0) work[best.place[l] * width + l] += double(at<T>(grad, l * p.grad[1]));
            }
        }
    }
    for (int64_t a = 0; a < p.image[0]; ++a)
        for (int64_t b = 0; b < p.image[1]; ++b)
            for (int64_t c = 0; c < p.image[2]; ++c, work += width) {
                char *to = y + a * p.result[2] + b * p.result[3] + c * p.result[4];
                for (int64_t l = 0; l < lanes; ++l) at<T>(to, l * p.result[1]) = T(work[l]);
            }
}

template <class T, bool Average>
void pooling_typed(const Pooling &p, int64_t item, const char *x, const char *g, char *y, char *work) {
    int64_t blocks = (p.channels + p.lanes - 1) / p.lanes, image = item / blocks, channel = item % blocks * p.lanes;
    int64_t lanes = std::min(p.lanes, p.channels - channel);
    x += image * p.input[0] + channel * p.input[1];
    g += image * p.grad[0] + channel * p.grad[1];
    y += image * p.result[0] + channel * p.result[1];
    double *sums = reinterpret_cast<double *>(work);
    if (p.lanes == 1) pooling_item<T, 1, Average>(p, 1, x, g, y, sums);
    else pooling_item<T, 0, Average>(p, lanes, x, g, y, sums);
}

// An average does not look at its input: any pointer will do.
void pooling_grad_item(const Pooling *p, int64_t item, const char *input, const char *grad, char *result, char *work) {
    auto run = p->itemsize == 4 ? (p->average ? pooling_typed<float, true> : pooling_typed<float, false>)
                                : (p->average ? pooling_typed<double, true> : pooling_typed<double, false>);
    run(*p, item, input, grad, result, work);
}

}  // namespace

int add_gradients(PyObject *, PyObject *addresses) {
    return add_kernels(addresses, {kernel("relu_grad", relu_grad_item),
                                   kernel("pooling_grad", pooling_grad_item)});
}

}  // namespace backline
