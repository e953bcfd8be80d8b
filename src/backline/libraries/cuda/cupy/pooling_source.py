"""The CUDA C++ of pooling and of its gradients: a thread, or several, for each element that is written.

Images are read where they are, by strides: channels first or last, views, repeated ones. Results lie in one piece, in the order
of axes that the images have in memory, and neighbouring threads write neighbouring elements. Gradients are gathered: a thread
goes through the windows that its element is in, in one order, so nothing is added by atomics and all runs give the same bits.
Whether an element is the one that a maximum was taken from is found by comparing it with the window once more; the comparison
ends at the first larger element, mostly after a few.

Sums are taken in float32, those of float64 in float64, and rounded once. A maximum has the bits of the element that it is.

cuDNN's pooling is not used: the descriptors of `cudnnPoolingForward` have neither dilation, nor a window that reaches beyond the
padding (`ceil_mode`), nor a divisor, nor windows of several sizes, and it gives no indices; its gradients want the result as
well; all of it is deprecated. The nodes of graphs that replace it are not among those of the frontend for Python
(`tests/cudnn/test_pooling.py`).
"""

from __future__ import annotations

from . import row_source

__all__ = ["AVERAGE", "AVERAGE_GRAD", "LEAST", "MAXIMUM", "MAXIMUM_GRAD", "TYPES", "WINDOWS"]

_INTEGERS = {8: "char", 16: "short", 32: "int", 64: "long long"}
TYPES = row_source.TYPES | {
    f"{sign}int{bits}": (f"{'unsigned' if sign else 'signed'} {name}",) * 2
    for bits, name in _INTEGERS.items()
    for sign in ("", "u")
}
"""The type of elements and that of computation, by dtype; integers have maxima only."""

LEAST = {
    "float16": "{0xfc00}", "bfloat16": "{0xff80}", "float32": "(-infinity())", "float64": "(-infinity())",
    **{f"int{bits}": f"(-{2 ** (bits - 1) - 1}{'LL' if bits == 64 else ''} - 1)" for bits in _INTEGERS},
    **{f"uint{bits}": "(0)" for bits in _INTEGERS},
}  # fmt: skip
"""The number below which a dtype has none, from which a T is made."""

# PLACE counts elements of results; STEP has a sign, as places in images have, which may be read backwards. ORDER: the axes of the
# result, the innermost in memory first, of images, channels, depth, height and width.
WINDOWS = r"""
typedef PLACE Place;
typedef STEP Step;
struct Axis { L image, points, kernel, stride, dilation, before, limit; };  // limit: the end of the padding that counts
struct Pool {
    L size[5];               // of the result
    L step[5], other[5];     // from one element to the next, of the first array and of the second
    Axis axes[3];
    L adaptive, padded;      // whether windows are spread over the image; whether padding counts
    L divisor;               // 0 where it is what counts
};

// The place of an element of the result along each axis.
__device__ inline void locate(const Pool &p, Place q, Step *at) {
    const int order[5] = {ORDER};
#pragma unroll
    for (int k = 0; k < 5; ++k) {
        const Place n = Place(p.size[order[k]]), rest = q < n ? 0 : n == 1 ? q : q / n;
        at[order[k]] = Step(q - rest * n);
        q = rest;
    }
}
template <class E> __device__ inline const E *image_of(const E *x, const L *step, const Step *at) {
    return x + (at[0] * Step(step[0]) + at[1] * Step(step[1]));
}
__device__ inline Step at_most(Step v, Step most) { return v > most ? most : v; }

// The elements of an image that one window has along an axis, `dilation` apart; and how many count for an average.
struct Window { Step from, to, counted; };
__device__ inline Window window(const Pool &p, int axis, Step point) {
    const Axis &a = p.axes[axis];
    if (p.adaptive) {
        const Step from = Step(point * a.image / a.points), to = Step(((point + L(1)) * a.image + a.points - 1) / a.points);
        return {from, to, to - from};
    }
    const Step begin = point * Step(a.stride) - Step(a.before), apart = Step(a.dilation);
    const Step end = begin + Step(a.kernel - 1) * apart + 1;
    const Step from = begin < 0 ? (begin % apart + apart) % apart : begin, to = at_most(end, Step(a.image));
    return {from, to, p.padded ? at_most(end, Step(a.limit)) - begin : to - from};
}

// The windows that an element of an image may be in along an axis.
struct Windows { Step first, last; };
__device__ inline Windows windows(const Pool &p, int axis, Step at) {
    const Axis &a = p.axes[axis];
    if (p.adaptive) return {Step(at * a.points / a.image), Step(((at + L(1)) * a.points + a.image - 1) / a.image - 1)};
    const Step from = at + Step(a.before), left = from - Step(a.kernel - 1) * Step(a.dilation) - 1;
    return {left < 0 ? Step(0) : left / Step(a.stride) + 1, at_most(from / Step(a.stride), Step(a.points) - 1)};
}
__device__ inline S divisor(const Pool &p, const Window *w) {
    return p.divisor ? S(p.divisor) : S(w[0].counted) * S(w[1].counted) * S(w[2].counted);
}
"""

MAXIMUM = r"""
extern "C" __global__ __launch_bounds__(256) void max_pool(const T *x, T *y, L *where, const Pool p, L count)
{
    const Step apart[3] = {Step(p.axes[0].dilation), Step(p.axes[1].dilation), Step(p.axes[2].dilation)};
    const L height = p.axes[1].image, width = p.axes[2].image;
    for (L i = blockIdx.x * L(256) + threadIdx.x; i < count; i += gridDim.x * L(256)) {
        Step at[5];
        locate(p, Place(i), at);
        const T *image = image_of(x, p.step, at);
        Window w[3];
        for (int k = 0; k < 3; ++k) w[k] = window(p, k, at[2 + k]);
        T best = T LEAST;
        S most = wide(best);
        L place = (w[0].from * height + w[1].from) * width + w[2].from;
        for (Step z = w[0].from; z < w[0].to; z += apart[0])
            for (Step r = w[1].from; r < w[1].to; r += apart[1])
                for (Step c = w[2].from; c < w[2].to; c += apart[2]) {
                    const T t = image[z * Step(p.step[2]) + r * Step(p.step[3]) + c * Step(p.step[4])];
                    const S v = wide(t);
                    if (v > most || v != v) {
                        best = t;
                        most = v;
                        if (where) place = (z * height + r) * width + c;
                    }
                }
        y[i] = best;
        if (where) where[i] = place;
    }
}
"""

MAXIMUM_GRAD = r"""
// Whether the element `own` of an image, v, is the one of a window that the maximum is: the first of the largest, the last NaN.
__device__ inline bool chosen(const T *image, const Pool &p, const Window *w, const Step *own, S v) {
    bool after = false;
    for (Step z = w[0].from; z < w[0].to; z += Step(p.axes[0].dilation))
        for (Step r = w[1].from; r < w[1].to; r += Step(p.axes[1].dilation))
            for (Step c = w[2].from; c < w[2].to; c += Step(p.axes[2].dilation)) {
                if (z == own[0] && r == own[1] && c == own[2]) {
                    after = true;
                    continue;
                }
                const S u = wide(image[z * Step(p.step[2]) + r * Step(p.step[3]) + c * Step(p.step[4])]);
                if (v != v ? after && u != u : after ? !(u <= v) : !(u < v)) return false;
            }
    return true;
}

extern "C" __global__ __launch_bounds__(256) void max_pool_grad(const T *x, const T *g, T *y, const Pool p, L count)
{
    for (L i = blockIdx.x * L(256) + threadIdx.x; i < count; i += gridDim.x * L(256)) {
        Step at[5];
        locate(p, Place(i), at);
        const T *image = image_of(x, p.step, at), *grad = image_of(g, p.other, at);
        const S v = wide(image[at[2] * Step(p.step[2]) + at[3] * Step(p.step[3]) + at[4] * Step(p.step[4])]);
        Windows of[3];
        Step phase[3];
        for (int k = 0; k < 3; ++k) {
            of[k] = windows(p, k, at[2 + k]);
            phase[k] = at[2 + k] + Step(p.axes[k].before);
        }
        Window w[3];
        S sum = S(0);
        for (Step z = of[0].first; z <= of[0].last; ++z) {
            if ((phase[0] - z * Step(p.axes[0].stride)) % Step(p.axes[0].dilation)) continue;
            w[0] = window(p, 0, z);
            for (Step r = of[1].first; r <= of[1].last; ++r) {
                if ((phase[1] - r * Step(p.axes[1].stride)) % Step(p.axes[1].dilation)) continue;
                w[1] = window(p, 1, r);
                for (Step c = of[2].first; c <= of[2].last; ++c) {
                    if ((phase[2] - c * Step(p.axes[2].stride)) % Step(p.axes[2].dilation)) continue;
                    w[2] = window(p, 2, c);
                    if (chosen(image, p, w, at + 2, v))
                        sum += wide(grad[z * Step(p.other[2]) + r * Step(p.other[3]) + c * Step(p.other[4])]);
                }
            }
        }
        put(y[i], sum);
    }
}
"""

# SHARE: 0, a thread for each element; 1, threads that lie side by side share a window; 2, threads of a column of the block do.
AVERAGE = r"""
extern "C" __global__ __launch_bounds__(1024) void avg_pool(const T *x, T *y, const Pool p, L count)
{
    const L beside = SHARE == 1 ? blockDim.y : blockDim.x;
    const int own = SHARE == 1 ? threadIdx.y : threadIdx.x, lane = SHARE == 1 ? threadIdx.x : threadIdx.y;
    const int lanes = SHARE == 1 ? blockDim.x : blockDim.y;
    for (L begin = blockIdx.x * beside; begin < count; begin += gridDim.x * beside) {
        const bool there = begin + own < count;
        Step at[5];
        locate(p, Place(there ? begin + own : 0), at);
        const T *image = image_of(x, p.step, at);
        Window w[3];
        for (int k = 0; k < 3; ++k) w[k] = window(p, k, at[2 + k]);
        Sum m = Sum::none();
        if (SHARE) {
            const Step rows = w[1].to - w[1].from, columns = w[2].to - w[2].from, all = (w[0].to - w[0].from) * rows * columns;
            for (Step t = lane; t < all; t += lanes) {
                const Step row = t / columns, c = w[2].from + t - row * columns, z = w[0].from + row / rows;
                const Step r = w[1].from + row % rows;
                m.sum += wide(image[z * Step(p.step[2]) + r * Step(p.step[3]) + c * Step(p.step[4])]);
            }
#if SHARE == 1
            m = across(m);
#elif SHARE == 2
            m = along(m);
#endif
        } else {
            for (Step z = w[0].from; z < w[0].to; ++z)
                for (Step r = w[1].from; r < w[1].to; ++r)
                    for (Step c = w[2].from; c < w[2].to; ++c)
                        m.sum += wide(image[z * Step(p.step[2]) + r * Step(p.step[3]) + c * Step(p.step[4])]);
        }
        if (there && (!SHARE || lane == 0)) put(y[begin + own], m.sum / divisor(p, w));
    }
}
"""

AVERAGE_GRAD = r"""
extern "C" __global__ __launch_bounds__(256) void avg_pool_grad(const T *g, T *y, const Pool p, L count)
{
    for (L i = blockIdx.x * L(256) + threadIdx.x; i < count; i += gridDim.x * L(256)) {
        Step at[5];
        locate(p, Place(i), at);
        const T *grad = image_of(g, p.step, at);
        Windows of[3];
        for (int k = 0; k < 3; ++k) of[k] = windows(p, k, at[2 + k]);
        Window w[3];
        S sum = S(0);
        for (Step z = of[0].first; z <= of[0].last; ++z) {
            w[0] = window(p, 0, z);
            for (Step r = of[1].first; r <= of[1].last; ++r) {
                w[1] = window(p, 1, r);
                for (Step c = of[2].first; c <= of[2].last; ++c) {
                    w[2] = window(p, 2, c);
                    sum += wide(grad[z * Step(p.step[2]) + r * Step(p.step[3]) + c * Step(p.step[4])]) / divisor(p, w);
                }
            }
        }
        put(y[i], sum);
    }
}
"""
