"""MLX's functions by NumPy's names, for what is written once for arrays of every kind."""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np

__all__ = ["names"]

Array = Any


class Names:
    """Adapter that gives ``mlx.core`` NumPy's names where they differ; other attributes are those of ``mlx.core``.

    Dtypes may be NumPy's. Numbers that are not arrays take part in the dtype of the arrays beside them.
    """

    def __init__(self, mx: Any) -> None:
        self._mx = mx
        self.inf = float("inf")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mx, name)

    def dtype(self, dtype: Any) -> Any:
        """MLX's name of a dtype."""
        if not isinstance(dtype, (np.dtype, type)):
            return dtype
        name = np.dtype(dtype).name
        return getattr(self._mx, "bool_" if name == "bool" else name)

    def astype(self, array: Array, dtype: Any) -> Array:
        return array.astype(self.dtype(dtype))

    def zeros(self, shape: Any, dtype: Any) -> Array:
        return self._mx.zeros(shape, self.dtype(dtype))

    def eye(self, n: int, m: int | None = None, *, dtype: Any) -> Array:
        return self._mx.eye(n, m, dtype=self.dtype(dtype))

    def moveaxis(self, array: Array, source: tuple[int, ...], target: tuple[int, ...]) -> Array:
        n = array.ndim
        source, target = tuple(s % n for s in source), tuple(t % n for t in target)
        order = [i for i in range(n) if i not in source]
        for to, axis in sorted(zip(target, source, strict=True)):
            order.insert(to, axis)
        return self._mx.transpose(array, order)

    def ascontiguousarray(self, array: Array, dtype: Any = None) -> Array:
        return array if dtype is None else self.astype(array, dtype)

    def asarray(self, value: Any) -> Array:
        return self._mx.array(value)


@lru_cache(maxsize=1)
def names() -> Names:
    """The namespace; a program that has arrays of MLX has imported it."""
    return Names(sys.modules.get("mlx.core") or import_module("mlx.core"))
