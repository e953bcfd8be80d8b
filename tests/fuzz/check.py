"""Comparison of a result with a reference in wider arithmetic and a bound for each element."""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import FORMATS, Array, wide


class Wrong(AssertionError):
    """A result that is not what the operation says; `kind` is the sort of fault, for grouping."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def like(result: Any, shape: tuple[int, ...], dtype: Any, name: str = "result") -> Array:
    """The result, once its shape and dtype are right."""
    got = np.asarray(result)
    if got.shape != tuple(shape):
        raise Wrong("shape", f"{name} has shape {got.shape}, not {tuple(shape)}")
    if got.dtype != dtype:
        raise Wrong("dtype", f"{name} has dtype {got.dtype}, not {dtype}")
    return got


def near(result: Any, reference: Array, bound: Any, dtype: Any, name: str = "result", special: str = "same") -> None:
    """|result - reference| <= bound for each element.

    Where the reference is not finite the result must be the same ("same"), or not finite either ("any"), or may be anything
    ("free"). Where the bound is not finite the result may be anything.
    """
    got = like(result, reference.shape, dtype, name)
    if not got.size:
        return
    if got.dtype.kind in "biu":
        if not np.array_equal(got, reference):
            raise _wrong("value", name, got, reference, got != reference, 0)
        return
    with np.errstate(all="ignore"):
        g = wide(got)
        error = np.abs(g - reference)
        right = error <= bound
        if right.all():
            return
        bound = np.broadcast_to(np.asarray(bound), reference.shape)
        right |= ~np.isfinite(bound)
        finite = np.isfinite(reference)
        largest = FORMATS[got.dtype.name].largest
        # A result that rounds past the largest number is infinite.
        beyond = (np.abs(reference) + bound >= largest) & ~np.isfinite(g)
        right |= beyond & finite
        if special == "free":
            right |= ~finite
        elif special == "any" or got.dtype.kind == "c":
            right |= ~finite & ~np.isfinite(g)
        else:
            right |= ~finite & ((g == reference) | np.isnan(g) & np.isnan(reference))
    if right.all():
        return
    wrong = ~right
    lost = wrong & finite & ~np.isfinite(g)
    kind = "not finite" if lost.any() else "special values" if (wrong & ~finite).all() else "value"
    raise _wrong(kind, name, got, reference, wrong, bound)


def _wrong(kind: str, name: str, got: Array, reference: Array, wrong: Array, bound: Any) -> Wrong:
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
    limit = np.broadcast_to(np.asarray(bound), reference.shape)[at]
    with np.errstate(all="ignore"):
        error = np.abs(np.asarray(wide(got))[at] - reference[at])
    text = f"{name}{list(at)} is {got[at]}, not {reference[at]}: off by {float(error):.3g}, the bound is {float(limit):.3g}"
    return Wrong(kind, f"{text}; {int(wrong.sum())} of {wrong.size} elements are wrong")


def sums(reference: Array, size: Array, terms: int, dtype: Any, steps: int = 1) -> Array:
    """Bound of a sum of products: `size` is the same sum of absolute values; results of `steps` stages are rounded to the dtype."""
    f = FORMATS[np.dtype(dtype).name]
    with np.errstate(all="ignore"):
        # Complex products need a factor; sums of squares of the bound are below the second term.
        n = (terms + 4) * (3 if np.dtype(dtype).kind == "c" else 1) + steps
        bound = 1.01 * n * f.accumulate * size + steps * f.eps * (size if steps > 1 else np.abs(reference)) + (terms + 2) * 4 * f.tiny
        limit = f.largest if np.dtype(dtype).name != "float16" else FORMATS["float32"].largest
        # A partial sum may leave the range of numbers, and a small result come back from there as infinity or NaN.
        return np.where(np.isfinite(size) & (size > limit / 4), np.inf, bound)


def normwise(result: Any, reference: Array, tolerance: float, dtype: Any, name: str = "result", scale: Any = None) -> None:
    """Every element within `tolerance` of the largest one."""
    got = like(result, reference.shape, dtype, name)
    if not got.size:
        return
    size = np.max(np.abs(reference)) if scale is None else scale
    near(got, reference, tolerance * size + FORMATS[np.dtype(dtype).name].tiny * 16, dtype, name)
