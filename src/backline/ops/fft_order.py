"""The frequencies of a transform, and the order in which they are shown."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from ..errors import BadValue, refuse_overlap
from ..libraries.array_kinds import kind_of
from ..switches.switch import show
from .array_arguments import check_array, check_out, functions, into
from .axes import axes_of
from .composite import natively, on_its_device
from .doc_fragments import filled
from .families import function_family, kinds
from .fft_checks import MODULE, Array, Sizes
from .layer_checks import FLOATS
from .linalg_checks import dtype_given, enough_memory, number, whole

__all__ = ["fftfreq", "fftshift", "ifftshift", "rfftfreq"]


def _frequencies(where: str, n: Any, d: Any, numbers: Any, out: Any, dtype: Any) -> Array:
    points = whole(where, "n", n)
    if points < 1:
        raise BadValue(f"{where}: n={show(points)}", cause="Invalid number of data points", remedy="1 or more")
    step = number(where, "d", d)
    if step == 0:
        raise BadValue(f"{where}: d=0", cause="it is the time between two samples", remedy="another number")
    enough_memory(where, (points,), np.dtype(np.float64), f"n={points}")
    found: Array = numbers(points) * (1.0 / (points * step))
    if dtype is not None:
        with np.errstate(over="ignore"):
            found = found.astype(dtype_given(where, dtype, FLOATS))
    if out is None:
        return found
    own = check_array(out, f"{where}: out").dtype
    check_out(out, f"{where}: out", found.shape, own if dtype is None and own.name == "float32" else found.dtype)
    out[...] = found
    given: Array = out
    return given


FREQUENCIES = """Frequencies that the elements of `{transform}` stand for.

Parameters
----------
n
    Points of the transform.
d
    Time between two samples.
dtype
    float16, bfloat16, float32 or float64; None is float64. Frequencies are computed in float64 and rounded once.
out
    Array of that dtype for the result; without `dtype` also of float32.

{returns_array}
    Of `dtype`, in cycles per unit of `d`: {order}.

{raises}
    `n` below 1; `d` is 0, or no number; a `dtype` that is not one of those; an `out` that does not fit.

Examples
--------
>>> import backline
>>> backline.fft.{name}(4, 0.5)
{example}
"""
FREQUENCY_FACTS = {
    "fftfreq": {"transform": "fft", "order": "0, the positive ones, then the negative ones",
                "example": "array([ 0. ,  0.5, -1. , -0.5])"},
    "rfftfreq": {"transform": "rfft", "order": "``n // 2 + 1`` elements, none negative", "example": "array([0. , 0.5, 1. ])"},
}  # fmt: skip


def _frequencies_of(where: str, n: int, d: float = 1.0, *, dtype: Any = None, out: Array | None = None) -> Array:
    if where == "rfftfreq":
        return _frequencies(where, n, d, lambda m: np.arange(m // 2 + 1), out, dtype)
    return _frequencies(where, n, d, lambda m: (np.arange(m) + m // 2) % m - m // 2, out, dtype)


fftfreq, rfftfreq = function_family(
    _frequencies_of, kinds("fftfreq", "rfftfreq"), lambda name: filled(FREQUENCIES, name=name, **FREQUENCY_FACTS[name]),
    module=MODULE,
)  # fmt: skip


def _rolled(where: str, input: Any, dim: Any, out: Any, *, back: bool) -> Array:
    kind = kind_of(input)
    array = input if kind is not None else check_array(input, f"{where}: input")
    axes = tuple(range(array.ndim)) if dim is None else axes_of(where, "dim", dim, array.shape)
    if kind is not None:
        xp = functions(array)
        steps = [-(array.shape[axis] // 2) if back else array.shape[axis] // 2 for axis in axes]
        moved = xp.roll(array, tuple(steps), axes) if axes else xp.array(array)
        return into(out, where, moved)
    target = np.empty(array.shape, array.dtype) if out is None else check_out(out, f"{where}: out", array.shape, array.dtype)
    if out is not None:
        refuse_overlap(out, array)
    halves = []
    for axis, n in enumerate(array.shape):
        cut = 0 if axis not in axes else n // 2 if back else n - n // 2
        halves.append([(slice(cut, None), slice(None, n - cut)), (slice(None, cut), slice(n - cut, None))][: 2 if cut else 1])
    for parts in product(*halves):
        target[tuple(to for _, to in parts)] = array[tuple(of for of, _ in parts)]
    return target


SHIFT = """{title}

Parameters
----------
input
    Array of any shape.
dim
    The axes. None: all.
out
    Array of the same shape and dtype for the result; it must not overlap the input.

{returns_array}
    A copy; along each of `dim` the {half}.

{raises}
    No such axis, or one named twice; an `out` that does not fit.

{examples}
{example}
"""
SHIFT_FACTS = {
    "fftshift": {
        "title": "Moves frequency 0 to the middle.", "half": "second half comes first",
        "example": ">>> backline.fft.fftshift(backline.fft.fftfreq(4))\narray([-0.5 , -0.25,  0.  ,  0.25])",
    },
    "ifftshift": {
        "title": "Undoes `fftshift`.", "half": "first half comes last",
        "example": ">>> backline.fft.ifftshift(np.array([-1, 0, 1]))\narray([ 0,  1, -1])",
    },
}  # fmt: skip


def _shift(where: str, input: Array, dim: Sizes = None, *, out: Array | None = None) -> Array:
    return _rolled(where, input, dim, out, back=where == "ifftshift")


fftshift, ifftshift = function_family(
    _shift, kinds("fftshift", "ifftshift"), lambda name: filled(SHIFT, **SHIFT_FACTS[name]), module=MODULE,
    decorate=lambda _, function: on_its_device(natively(function)),
)  # fmt: skip
