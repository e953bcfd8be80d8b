// What windows see of images: byte_pooling.cpp and pooling.cpp.
#pragma once
#include "targets.hpp"

#include <algorithm>
#include <cstdint>

namespace backline {

// What a window sees along an axis: the first place and how many, `dilation` apart; those in the padding do not count.
struct Window {
    int64_t first, count;
};

// Eight bytes each, in the constant memory of a plan.
struct Windows {
    int64_t level, channels;               // of vector instructions; 1 where each channel is an image of its own
    int64_t height, width, lines, points;  // of an image, and of a result
    int64_t kernel[2], stride[2], before[2], dilation[2];

    BACKLINE_INLINE Window window(int axis, int64_t at, int64_t size) const {
        const int64_t step = dilation[axis], begin = at * stride[axis] - before[axis];
        const int64_t skipped = begin < 0 ? (-begin + step - 1) / step : 0, first = begin + skipped * step;
        return {first, std::min(kernel[axis] - skipped, (size - first + step - 1) / step)};
    }
};

}  // namespace backline
