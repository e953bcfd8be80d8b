"""The namespaces that formulas are written for: NumPy's, CuPy's and MLX's functions, and what is spelled differently in each.

A formula is a function of a `Space` and of arrays that are of its kind. It uses operators, slices, `astype` and `reshape` of
arrays, and of the namespace what all three have under one name: exp, log, sqrt, abs, where, isnan, pad, concatenate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...records import Record

__all__ = ["NUMPY", "PIECES", "Space", "mlx_space"]

Array = Any


def _sigmoid(xp: Any, x: Array) -> Array:
    e = xp.exp(-xp.abs(x))  # never above 1: nothing overflows
    return xp.where(x >= 0, 1, e) / (1 + e)


def _erfc(x: Array) -> Array:
    from .error_function import erfc  # not at the top: `import backline` imports this module

    return erfc(x).astype(x.dtype, copy=False)


# Elementwise parts of the formulas, which a library may have a kernel for. Arrays broadcast.
PIECES: dict[str, Callable[..., Array]] = {
    "sigmoid": lambda xp, x: _sigmoid(xp, x),
    "erfc": lambda xp, x: _erfc(x),
    "shifted_exp": lambda xp, x, m: xp.exp(x - m),
    "divided": lambda xp, x, s: x / s,
    "less": lambda xp, x, m, s: x - m - s,
    "times": lambda xp, x, y: x * y,
    "softmax_moved": lambda xp, y, g, s: y * (g - s),
    "log_softmax_moved": lambda xp, y, g, s: g - xp.exp(y) * s,
    "squared": lambda xp, x, m: (x - m) * (x - m),
    "normalised": lambda xp, x, m, r: (x - m) * r,
    "scaled": lambda xp, x, m, r, w, b: (x - m) * r * w + b,
    "norm_moved": lambda xp, y, g, r, a, b: r * (g - a - y * b),
}


class Space(Record):
    """An array namespace, and the functions that differ between namespaces."""

    xp: Any  # the namespace: `numpy`, CuPy, ``mlx.core``
    sums: np.dtype[Any] | None = None  # the dtype that sums are taken in; None for that of their terms
    dtypes: Callable[[np.dtype[Any]], Any] = lambda dtype: dtype  # what the namespace calls a dtype of NumPy's
    kernels: Mapping[str, Callable[..., Array]] = {}  # functions in the place of `PIECES`
    # Makes an array, without contents, of the axes' order in memory that another one has: of it, a shape, a dtype.
    new: Callable[[Array, tuple[int, ...], Any], Array] | None = None
    kept: dict[str, Any] | None = None  # constants by name, where the Space is one Problem's own; None where nothing is kept

    @property
    def writes(self) -> bool:
        """True where functions may write to an array that is given."""
        return self.new is not None

    def piece(self, name: str, *arrays: Array) -> Array:
        """One of the elementwise `PIECES` of arrays."""
        kernel = self.kernels.get(name)
        return kernel(*arrays) if kernel is not None else PIECES[name](self.xp, *arrays)

    def sum(self, x: Array, axes: tuple[int, ...]) -> Array:
        """Sum along axes, which stay with size 1; in the dtype of the terms."""
        if not axes:
            return x
        if self.sums is None:
            return self.xp.sum(x, axis=axes, keepdims=True)
        return self.xp.sum(x, axis=axes, dtype=self.sums, keepdims=True).astype(x.dtype, copy=False)

    def total(self, x: Array, axes: tuple[int, ...]) -> Array:
        """Sum along axes, which go, of an array of any floating-point dtype; in the dtype that sums are taken in."""
        if self.sums is None:
            x = self.cast(x, np.dtype(np.float32)) if x.itemsize == 2 else x
            return self.xp.sum(x, axis=axes) if axes else x
        x = x if x.dtype.kind == "f" else x.astype(np.float32)
        return self.xp.sum(x, axis=axes, dtype=self.sums) if axes else x.astype(self.sums)

    def add_to(self, total: Array, index: Any, x: Array) -> None:
        """Add to a part of an array."""
        if self.writes:
            part = total[index]  # CuPy would write the part to itself once more
            part += x
        else:
            total[index] += x

    def put(self, whole: Array, index: Any, x: Array) -> Array:
        """An array with another part, which is written to it unless it is all of it."""
        if tuple(whole.shape) == tuple(x.shape):
            return x
        whole[index] = x
        return whole

    def keep(self, name: str, make: Callable[[], Any]) -> Any:
        """A constant that depends on the Problem alone: made once, if the Space keeps such."""
        if self.kept is None:
            return make()
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]

    def max(self, x: Array, axis: int) -> Array:
        """Largest elements along an axis, which stays with size 1; NaN where there is one."""
        return self.xp.max(x, axis=axis, keepdims=True)

    def cast(self, x: Array, dtype: np.dtype[Any]) -> Array:
        """An array in a dtype; itself where it is of that."""
        kind = self.dtypes(dtype)
        return x if x.dtype == kind else x.astype(kind)

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return self.xp.zeros(shape, dtype=self.dtypes(dtype))

    def full(self, shape: tuple[int, ...], value: float, dtype: np.dtype[Any]) -> Array:
        return self.xp.full(shape, value, dtype=self.dtypes(dtype))

    def constant(self, values: Any, dtype: np.dtype[Any]) -> Array:
        """A few numbers that are known from the Problem, as an array."""
        return self.xp.array(np.asarray(values, np.float64), dtype=self.dtypes(dtype))

    def like(self, x: Array, of: Array) -> Array:
        """A result with the axes' order in memory that another array has."""
        if self.new is None or (x.flags.c_contiguous and of.flags.c_contiguous):
            return x
        made = self.new(of, tuple(x.shape), x.dtype)
        if made.strides == x.strides:
            return x
        made[...] = x
        return made


NUMPY = Space(np, np.dtype(np.float64), new=lambda like, shape, dtype: np.empty_like(like, dtype, "K", False, shape))


def mlx_space(mx: Any) -> Space:
    """The Space of ``mlx.core``, which has no sums in float64 on Metal; its arrays have no order of axes in memory."""
    names = {"bool": "bool_"}
    kernels = {"sigmoid": mx.sigmoid, "erfc": lambda x: 1 - mx.erf(x)}
    return Space(mx, None, lambda dtype: getattr(mx, names.get(dtype.name, dtype.name)), kernels)


def count(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    """Elements along axes."""
    return math.prod(shape[i] for i in axes)
