"""Convolutions of MLX's arrays, and their gradients. MLX has channels last: axes are moved there and back, which copies nothing.

A transposed convolution, and the gradient by the input, is a convolution of the input with zeros between its points; the gradient
by the weights is one in which images and channels change places.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...problems.conv_problem import ConvProblem
from .mlx_layers import finished

__all__ = ["function", "note", "refusal"]

Array = Any
Run = Callable[..., Array]

DTYPES = ("float16", "bfloat16", "float32")


def refusal(p: ConvProblem) -> str:
    """Returns the reason why MLX does not support a convolution, or an empty string."""
    if p.dtype.name == "float64":
        return "MLX convolves float64 in single precision"
    if p.dtype.name not in DTYPES:
        return f"MLX has convolutions of {', '.join(DTYPES)}, not of {p.dtype.name}"
    if p.packed:
        return "there are no packed weights for arrays of MLX"
    return ""


def note(p: ConvProblem) -> str:
    """Returns a note for users on rounding and grouped convolutions, or an empty string."""
    notes = []
    if p.dtype.itemsize == 2 and any(o.role in ("bias", "residual") for o in p.operands):
        notes.append("on Metal halves are rounded after the convolution too")
    if _divided(p):
        notes.append("one convolution for each group: MLX has groups in one and two dimensions")
    return "; ".join(notes)


def _divided(p: ConvProblem) -> bool:
    return p.groups > 1 and (len(p.kernel) == 3 or p.op != "conv")


def function(p: ConvProblem, mx: Any, metal: bool) -> Run:
    """The function of the arrays of a call."""
    roles = [o.role for o in p.operands]
    compute = {"conv": _gathered, "conv_grad_weight": _weight}.get(p.op, _scattered)
    halves = p.dtype.itemsize == 2

    def run(*arrays: Array) -> Array:
        given = dict(zip(roles, arrays, strict=True))
        dtype = arrays[0].dtype
        if halves and not metal:
            given = {role: x.astype(mx.float32) for role, x in given.items()}
        working = next(iter(given.values())).dtype
        # MLX stops the process where sizes are 0.
        result = mx.zeros(p.result, working) if _nothing(p) else compute(p, mx, given)
        added = [given["bias"].reshape(-1, *[1] * len(p.kernel))] if "bias" in given else []
        added += [given["residual"]] if "residual" in given else []
        return finished(result, added, p.parameter("activation"), dtype, halves, mx)

    return run


def _nothing(p: ConvProblem) -> bool:
    return p.empty or 0 in p.result or any(0 in o.shape for o in p.operands)


def _last(mx: Any, x: Array) -> Array:
    return mx.moveaxis(x, 1, -1)


def _groups(p: ConvProblem, mx: Any, x: Array, axis: int) -> list[Array]:
    return mx.split(x, p.groups, axis=axis) if p.groups > 1 else [x]


def _gathered(p: ConvProblem, mx: Any, given: dict[str, Array]) -> Array:
    padding = ([before for before, _ in p.padding], [after for _, after in p.padding])
    more = {"stride": p.stride, "padding": padding, "kernel_dilation": p.dilation}
    x, weight = _last(mx, given["input"]), _last(mx, given["weight"])
    if not _divided(p):
        return mx.moveaxis(mx.conv_general(x, weight, groups=p.groups, **more), -1, 1)
    parts = zip(_groups(p, mx, x, -1), _groups(p, mx, weight, 0), strict=True)
    return mx.moveaxis(mx.concatenate([mx.conv_general(a, w, **more) for a, w in parts], axis=-1), -1, 1)


def _scattered(p: ConvProblem, mx: Any, given: dict[str, Array]) -> Array:
    source = given["grad" if p.op == "conv_grad_input" else "input"]
    before, after, kept = [], [], []
    sizes = zip(p.padding, p.kernel, p.dilation, p.stride, source.shape[2:], p.result[2:], strict=True)
    for (low, _), kernel, dilation, stride, points, size in sizes:
        ahead, behind = dilation * (kernel - 1) - low, size + low - (points - 1) * stride - 1
        # Less than nothing is not padded: as many points of the result are left out.
        before.append(max(ahead, 0))
        after.append(max(behind, 0))
        kept.append(slice(max(-ahead, 0), max(-ahead, 0) + size))
    more = {"padding": (before, after), "kernel_dilation": p.dilation, "input_dilation": p.stride, "flip": True}
    parts = []
    for x, weight in zip(_groups(p, mx, _last(mx, source), -1), _groups(p, mx, given["weight"], 0), strict=True):
        parts.append(mx.conv_general(x, mx.moveaxis(weight, 0, -1), **more))
    return mx.moveaxis(mx.concatenate(parts, axis=-1), -1, 1)[(slice(None), slice(None), *kept)]


def _weight(p: ConvProblem, mx: Any, given: dict[str, Array]) -> Array:
    # Steps between windows become steps between taps, and the other way round; what is beyond the kernel is cut off.
    padding = ([before for before, _ in p.padding], [after for _, after in p.padding])
    more = {"stride": p.dilation, "kernel_dilation": p.stride, "padding": padding}
    parts = []
    for x, grad in zip(_groups(p, mx, given["input"], 1), _groups(p, mx, given["grad"], 1), strict=True):
        images, weights = mx.moveaxis(x, 0, -1), mx.moveaxis(grad, 0, -1)  # what is last is summed over
        found = mx.moveaxis(mx.conv_general(images, weights, **more), -1, 0)  # (O, C, taps)
        parts.append(found[(slice(None), slice(None), *(slice(0, kernel) for kernel in p.kernel))])
    return mx.concatenate(parts, axis=0)
