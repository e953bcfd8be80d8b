"""Shared by the tests of MLX's arrays: arrays there and back, comparison with float64 of NumPy, a Metal device that is played."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries
from backline.libraries.mlx.library import MLX
from backline.libraries.mlx.placement import Device
from support import BFLOAT16, dtype_of

mx: Any = pytest.importorskip("mlx.core")

Array = Any
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52, "complex64": 2.0**-23}


def there(x: Any) -> Any:
    """The same as arrays of MLX; what is no array stays."""
    if isinstance(x, tuple):
        return tuple(map(there, x))
    return mx.array(x, dtype=getattr(mx, "bool_" if x.dtype.kind == "b" else x.dtype.name)) if isinstance(x, np.ndarray) else x


def back(x: Any) -> Any:
    """NumPy's arrays of the same numbers."""
    if isinstance(x, tuple):
        return tuple(map(back, x))
    assert isinstance(x, mx.array), type(x)
    return np.array(x.astype(mx.float32)).astype(BFLOAT16) if x.dtype == mx.bfloat16 else np.array(x)


def wide(x: Any) -> Any:
    """In float64 or complex128, where it is an array of fewer bits."""
    if isinstance(x, tuple):
        return tuple(map(wide, x))
    if not isinstance(x, np.ndarray) or x.dtype.kind in "biu":
        return x
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def agree(op: Callable[..., Any], *args: Any, times: float = 16, dtype: str = "", **kwargs: Any) -> Any:
    """Run an operation on arrays of MLX, and on float64 of NumPy by NumPy alone; the results are the same but for rounding.

    Returns MLX's result, as NumPy's arrays.
    """
    with backline.use("numpy", only=True):
        wanted = op(*map(wide, args), **{k: wide(v) for k, v in kwargs.items()})
    found = op(*map(there, args), **{k: there(v) for k, v in kwargs.items()})
    assert backline.explain().library == "mlx"
    given = next(x for x in (*args, *kwargs.values()) if isinstance(x, np.ndarray))
    close(back(found), wanted, EPS[given.dtype.name if given.dtype.name in EPS else "float32"], times)
    name = dtype or given.dtype.name
    for part in found if isinstance(found, tuple) else (found,):
        if name and back(part).dtype.kind == dtype_of(name).kind and part.size:
            assert back(part).dtype.name == name, (back(part).dtype, name)
    return back(found)


def close(found: Any, wanted: Any, eps: float, times: float = 16) -> None:
    """Arrays, or tuples of them, that differ by some roundings of the largest number; NaN and infinity at the same places."""
    if isinstance(wanted, tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            close(one, other, eps, times)
        return
    found, wanted = wide(found), np.asarray(wanted)
    assert found.shape == wanted.shape, (found.shape, wanted.shape)
    finite = np.isfinite(wanted)
    assert np.array_equal(np.isnan(found), np.isnan(wanted)), (found, wanted)
    assert np.array_equal(found[~finite & ~np.isnan(wanted)], wanted[~finite & ~np.isnan(wanted)])
    if finite.any():
        found, wanted = found[finite], wanted[finite]
        error, most = float(np.abs(found - wanted).max()), times * eps * max(float(np.abs(wanted).max()), 1e-30)
        assert error <= most, (error, most)


# A Metal device that is played --------------------------------------------------------------------------------------


class Fast:
    """MLX's own functions, where the fused attention runs as if there were a kernel for some head dims."""

    def __init__(self) -> None:
        self.masks: list[Any] = []

    def scaled_dot_product_attention(self, q: Any, k: Any, v: Any, *, scale: float, mask: Any, force_fused: bool) -> Any:
        assert force_fused and q.ndim == k.ndim == v.ndim == 4
        if q.shape[-1] != 8:
            raise ValueError("force_fused=True but no fused kernel is available: head dims")
        self.masks.append(mask)
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)


class Core:
    """``mlx.core`` with a GPU that is the CPU."""

    gpu = mx.cpu

    def __init__(self) -> None:
        self.fast = Fast()

    def __getattr__(self, name: str) -> Any:
        return getattr(mx, name)


@pytest.fixture
def metal() -> Iterator[Core]:
    library, core = MLX(), Core()
    library._device, library.core = Device(metal=True), lambda: core  # type: ignore[method-assign]  # doubles
    libraries.register(library)
    yield core
    libraries.unregister("mlx")
