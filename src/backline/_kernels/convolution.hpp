// The geometry of convolutions by loops: im2col.cpp and depthwise.cpp.
#pragma once
#include "../_core/bits.hpp"

#include <algorithm>
#include <cstdint>

namespace backline {

// In the constant memory of a plan, one 64-bit integer after the other. Images have up to three dimensions; those that are
// missing come first and have size 1. "Points" are the places of the kernel, "taps" the elements of the kernel.
struct Geometry {
    int64_t item;                   // bytes of an element
    int64_t type;                   // of the elements, where they are added up: a Type
    int64_t channels;               // of one part
    int64_t image[3], kernel[3], points[3];
    int64_t stride[3], dilation[3], before[3];  // before: zeros in front of the image
    int64_t step_channel, step[3];  // of the image in memory, in bytes
    int64_t keep;                   // 1: what comes is added to what is there
    int64_t level;                  // of vector instructions: 0 what all have, 1 AVX2 with FMA, 2 AVX-512
    int64_t features;               // depthwise: of each channel
    int64_t step_result;            // depthwise: bytes from one feature of the result, or with channels last point, to the next
};

// Points along an axis at which a tap lies inside the image.
struct Inside {
    int64_t from, to;
    Inside(const Geometry &g, int axis, int64_t tap) {
        int64_t shift = tap * g.dilation[axis] - g.before[axis], stride = g.stride[axis];
        from = shift >= 0 ? 0 : (-shift + stride - 1) / stride;
        int64_t left = g.image[axis] - 1 - shift;
        to = left < 0 ? 0 : left / stride + 1;
        from = std::min(from, g.points[axis]);
        to = std::max(from, std::min(to, g.points[axis]));
    }
};

inline int64_t place(const Geometry &g, int axis, int64_t point, int64_t tap) {
    return point * g.stride[axis] - g.before[axis] + tap * g.dilation[axis];
}

// A point of the result, in the order of memory: the last axis runs fastest.
struct Point {
    int64_t x, y, z;
    Point(const Geometry &g, int64_t number)
        : x(number % g.points[2]), y(number / g.points[2] % g.points[1]), z(number / g.points[2] / g.points[1]) {}
    void next_line(const Geometry &g) {
        x = 0;
        if (++y == g.points[1]) y = 0, ++z;
    }
    void next(const Geometry &g) {
        if (++x == g.points[2]) next_line(g);
    }
};

inline bool within(const Geometry &g, int axis, int64_t at) { return at >= 0 && at < g.image[axis]; }

}  // namespace backline
