"""Depthwise convolutions and their gradients, channel by channel: kernels that CuPy compiles when they are first needed.

Each element of a result is summed by one thread, tap after tap. The gradient by the weights is summed in parts of a number of
rows first, and the parts then by CuPy, whose order the shape decides. Images are read and written as they lie, channels first or
last; neighbouring threads compute what lies side by side. Places are counted in 32 bits where that is enough.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ....problems.conv_problem import ConvProblem
from ..common import bindings, elementwise_kernels
from ..common.device_plan import new_images

__all__ = ["FORWARD", "INPUT", "PLACES", "SCALARS", "WEIGHT", "run"]

SHORT = 1 << 31  # elements from which on places take 64 bits
THREADS = 1 << 20  # that the gradient by the weights is divided among, where there are so many rows
Array = Any

SCALARS = (
    "channels", "features", "id", "ih", "iw", "kd", "kh", "kw", "od", "oh", "ow", "sd", "sh", "sw", "dd", "dh", "dw",
    "pd", "ph", "pw",
)  # fmt: skip
"""Scalars for the kernels: channels, features; three each of image, kernel and output sizes, stride, dilation, padding."""

# x: images, w: weights, g: gradient of the result; dense, in order. y has the dtype P that sums are in. LAST: channels are last.
# Place: the type of places. IMAGE, RESULT: places in the images, and in the result or its gradient.
PLACES = r"""
#define IMAGE(n, m, z, r, s) \
    (LAST ? ((((Place)(n) * id + (z)) * ih + (r)) * iw + (s)) * C + (m) \
          : ((((Place)(n) * C + (m)) * id + (z)) * ih + (r)) * iw + (s))
#define RESULT(n, f, a, b, c) \
    (LAST ? ((((Place)(n) * od + (a)) * oh + (b)) * ow + (c)) * F + (f) \
          : ((((Place)(n) * F + (f)) * od + (a)) * oh + (b)) * ow + (c))
"""
FORWARD = r"""
    const Place C = channels, F = features;
    Place q = i, f = q % F;
    if (LAST) q /= F;
    const int c = q % ow; q /= ow;
    const int b = q % oh; q /= oh;
    const int a = q % od; q /= od;
    if (!LAST) { f = q % F; q /= F; }
    const Place m = f / (F / C);
    P sum = P(0);
    for (int u = 0; u < kd; ++u) {
        const int z = a * sd - pd + u * dd;
        if (z < 0 || z >= id) continue;
        for (int v = 0; v < kh; ++v) {
            const int r = b * sh - ph + v * dh;
            if (r < 0 || r >= ih) continue;
            for (int t = 0; t < kw; ++t) {
                const int s = c * sw - pw + t * dw;
                if (s < 0 || s >= iw) continue;
                sum += P(x[IMAGE(q, m, z, r, s)]) * P(w[((f * kd + u) * kh + v) * kw + t]);
            }
        }
    }
    y = sum;
"""
INPUT = r"""
    const Place C = channels, F = features, more = F / C;
    Place q = i, m = q % C;
    if (LAST) q /= C;
    const int s = q % iw; q /= iw;
    const int r = q % ih; q /= ih;
    const int z = q % id; q /= id;
    if (!LAST) { m = q % C; q /= C; }
    P sum = P(0);
    for (Place f = m * more; f < (m + 1) * more; ++f)
        for (int u = 0; u < kd; ++u) {
            const int a = z + pd - u * dd;
            if (a < 0 || a % sd || a / sd >= od) continue;
            for (int v = 0; v < kh; ++v) {
                const int b = r + ph - v * dh;
                if (b < 0 || b % sh || b / sh >= oh) continue;
                for (int t = 0; t < kw; ++t) {
                    const int c = s + pw - t * dw;
                    if (c < 0 || c % sw || c / sw >= ow) continue;
                    sum += P(g[RESULT(q, f, a / sd, b / sh, c / sw)]) * P(w[((f * kd + u) * kh + v) * kw + t]);
                }
            }
        }
    y = sum;
"""
WEIGHT = r"""
    const Place C = channels, F = features;
    Place q = i;
    const int t = q % kw; q /= kw;
    const int v = q % kh; q /= kh;
    const int u = q % kd; q /= kd;
    const Place f = q % F, part = q / F, m = f / (F / C);
    P sum = P(0);
    for (Place row = part * step; row < (part + 1) * step && row < rows; ++row) {
        const int b = row % oh, a = row / oh % od;
        const Place image = row / oh / od;
        const int z = a * sd - pd + u * dd, r = b * sh - ph + v * dh;
        if (z < 0 || z >= id || r < 0 || r >= ih) continue;
        for (int c = 0; c < ow; ++c) {
            const int s = c * sw - pw + t * dw;
            if (s < 0 || s >= iw) continue;
            sum += P(x[IMAGE(image, m, z, r, s)]) * P(g[RESULT(image, f, a, b, c)]);
        }
    }
    y = sum;
"""
_NUMBERS = ", ".join(["int64 channels, int64 features", *(f"int32 {name}" for name in SCALARS[2:])])
_KERNELS = {
    "conv": ("raw T x, raw T w", FORWARD, ""), "conv_grad_input": ("raw T g, raw T w", INPUT, ""),
    "conv_grad_weight": ("raw T x, raw T g", WEIGHT, ", int64 rows, int64 step"),
}  # fmt: skip
_ROLES = {"conv": ("input", "weight"), "conv_grad_input": ("grad", "weight"), "conv_grad_weight": ("input", "grad")}


def run(p: ConvProblem, given: dict[str, Array], work: Any) -> Array:
    """The sums, in the dtype `work`, of a depthwise convolution that is not empty, or of one of its gradients; arrays by role.

    Those of images have their channels last where `p.last` says so.
    """
    cupy = bindings.cupy()
    inputs, body, more = _KERNELS[p.op]
    roles, last = _ROLES[p.op], bool(p.last)
    seen = [given[role] if role == "weight" or not last else _channels_behind(given[role]) for role in roles]
    arrays = [cupy.ascontiguousarray(array) for array in seen]
    rows = p.batch * prod(p.points[:-1])
    parts = max(min(rows, THREADS // max(p.features * prod(p.kernel), 1)), 1)
    short = max(*(a.size for a in arrays), prod(p.result), parts * p.features * prod(p.kernel)) < SHORT
    source = elementwise_kernels.Kernel(f"{inputs}, {_NUMBERS}{more}", "P y", body)
    preamble = f"#define LAST {int(last)}\ntypedef {'unsigned' if short else 'long long'} Place;{PLACES}"
    kernel = elementwise_kernels.made(f"depthwise_{p.op}{'_last' if last else ''}{'_short' if short else ''}", source, preamble)
    padding = tuple(before for before, _ in p.padding)
    numbers = [p.channels, p.features]
    for values, missing in ((p.image, 1), (p.kernel, 1), (p.points, 1), (p.stride, 1), (p.dilation, 1), (padding, 0)):
        numbers += [*[missing] * (3 - len(values)), *values]
    if p.op != "conv_grad_weight":
        result = new_images(p.result, work, last)
        kernel(*arrays, *numbers, _channels_behind(result) if last else result)
        return result
    step = -(-rows // parts)
    partial = cupy.empty((-(-rows // step), *p.result), work)
    kernel(*arrays, *numbers, rows, step, partial)
    return partial.sum(axis=0)


def _channels_behind(images: Array) -> Array:
    return images.transpose((0, *range(2, images.ndim), 1))
